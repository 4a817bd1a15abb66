#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vm_operator::fuzzing::image(input));
