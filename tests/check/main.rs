//! The tests that need only Rust and a C compiler: `make check`.
//!
//! | module | content |
//! |---|---|
//! | [`generic`] | two made-up kinds as controllers on the generic layer |
//! | [`golden`] | the objects of each example and fixture, and generated files |
//! | [`layers`] | imports point downwards only |
//! | [`prose`] | texts follow the rules for prose |
//! | [`scenarios`] | a VM with a scripted API server |
//! | [`model`] | at most one QEMU per disk, in each reachable state |
//! | [`pools`] | no VM of a pool has two users, in each reachable state |
//! | [`sip`] | the requests and reports of a SIPCluster: ready, rejected, and with a lost host |
//! | [`simulated`] | each fault at each call of the operator, on an API server in memory |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::io::Write;

mod generic;
mod golden;
mod layers;
mod model;
mod pools;
mod prose;
mod scenarios;
mod simulated;
mod sip;

/// Prints a line of results. Unlike `println!`, it is not captured, so it is visible for a test that passes.
fn print_result(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

/// Whether `MODELS=quick` leaves out this setting of a model, as `make check` does. The large ones take longer than all others together.
fn is_left_out(setting: &str, is_large: bool) -> bool {
    let left_out = is_large && models() == "quick";
    if left_out {
        print_result(&format!("{setting:<20} left out, because of MODELS=quick"));
    }
    left_out
}

/// `MODELS=deep` adds settings with more accidents, which take minutes and gigabytes. `MODELS=quick` leaves out large ones.
fn models() -> String {
    std::env::var("MODELS").unwrap_or_default()
}
