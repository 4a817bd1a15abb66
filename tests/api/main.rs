//! Tests on a real API server that each run starts for itself. No node runs, and no local cluster is needed.
//!
//! | module | command | content |
//! |---|---|---|
//! | `apiserver` | `make test-apiserver` | the operator beside the real scheduler and garbage collector |
//! | `changes` | `make test-changes` | VMs that are changed at random, with played components |
//! | `faults` | `make test-faults` | faults at calls of the operator, with played components |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod apiserver;
mod changes;
mod faults;
