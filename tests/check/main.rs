//! What can be tested with Rust and a C compiler alone: `make check`.
//!
//! | module | content |
//! |---|---|
//! | [`generic`] | two made-up kinds as controllers on the generic layer |
//! | [`golden`] | what becomes of each example and fixture; what is generated |
//! | [`layers`] | imports point downwards only |
//! | [`prose`] | texts follow the rules for prose |
//! | [`scenarios`] | a VM's life against a scripted API server |
//! | [`model`] | at most one QEMU per disk, in every world that can come about |
//! | [`simulated`] | every fault at every call of the operator, on an API server in memory |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod generic;
mod golden;
mod layers;
mod model;
mod prose;
mod scenarios;
mod simulated;
