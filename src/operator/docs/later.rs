//! (pure) Fields of a VM that change nothing of what is made of it. `tests/check/golden/fields.rs` tries all others.

/// Fields that change nothing of what is made, each with its reason. A place ends with all that is below it.
pub const LATER: &[(&str, &str)] = &[
    ("spec.permissions", "for console front ends, which read it in the VM"),
    ("spec.pools", "for pools, which read it in the VM"),
    ("spec.vm.display.spice.server", "for console front ends, which put it into a client's connection file"),
    ("spec.vm.display.spice.proxyUrl", "for console front ends, which put it into a client's connection file"),
    ("spec.runnerTemplate", "arguments are built from types; the condition IgnoredField tells so"),
];
