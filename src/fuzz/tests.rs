//! What looks for failures finds them.

use super::*;

fn try_for(seconds: u64, target: &Target, check: impl Fn(&[u8])) -> Result<Summary, String> {
    let failures = tempfile::tempdir().unwrap();
    let plan = Plan { time: Duration::from_secs(seconds), seed: 7, input: None, failures: failures.path().to_owned() };
    let result = run(target, &plan, &check);
    if result.is_err() {
        // What was kept fails again.
        let kept = std::fs::read_dir(failures.path()).unwrap().next().unwrap().unwrap().path();
        assert!(run(target, &Plan { input: Some(kept), ..plan }, &check).is_err());
    }
    result
}

fn target<'a>(words: &'a [&'a str]) -> Target<'a> {
    Target { name: "none", words, limits: Limits::default() }
}

#[test]
fn a_parser_that_panics_is_found_and_the_input_made_small() {
    let why =
        try_for(20, &target(&["boom"]), |input| assert!(!input.windows(4).any(|four| four == b"boom"), "it is in"));
    let why = why.unwrap_err();
    assert!(why.starts_with("it is in\n") && why.ends_with("\n\"boom\""), "{why}");
    assert!(why.contains("FUZZ_SEED=7") && why.contains("cargo test --lib fuzz_none"), "{why}");
}

#[test]
fn one_that_takes_too_much_memory_is_found() {
    let why = try_for(20, &target(&[]), |input| drop(Vec::<u8>::with_capacity(input.len().pow(2) * 1024)));
    assert!(why.unwrap_err().starts_with("it allocates "));
}

#[test]
fn one_that_takes_too_long_is_found() {
    let limits = Limits { time: Duration::from_millis(20), ..Limits::default() };
    let why = try_for(20, &Target { limits, ..target(&[]) }, |input| {
        std::thread::sleep(Duration::from_millis(if input.len() > 2 { 40 } else { 0 }));
    });
    assert!(why.unwrap_err().starts_with("it takes "));
}

#[test]
fn one_that_does_what_it_should_is_tried_until_the_time_is_over() {
    assert!(try_for(1, &target(&["a"]), |_| {}).unwrap().runs > 1000);
}

#[test]
fn inputs_that_lead_further_are_kept_where_edges_are_counted() {
    // Four bytes at once are not guessed in a few seconds; one after the other they are.
    let steps = |input: &[u8]| {
        let mut steps = 0;
        for (at, byte) in b"Fuzz".iter().enumerate() {
            if input.get(at) != Some(byte) {
                break;
            }
            // Each step is an edge of its own.
            match at {
                0 => steps += std::hint::black_box(1),
                1 => steps += std::hint::black_box(2),
                2 => steps += std::hint::black_box(3),
                _ => steps += std::hint::black_box(4),
            }
        }
        assert!(steps < 10, "all of it");
    };
    // `make fuzz` says that they are counted.
    if std::env::var_os("FUZZ_GUIDED").is_some() {
        let why = try_for(60, &target(&[]), steps).unwrap_err();
        assert!(why.starts_with("all of it\n"), "{why}");
    }
}
