//! Tests on a real API server, which each run starts itself. They need no node and no local cluster.
//!
//! | module | command | content |
//! |---|---|---|
//! | `apiserver` | `make test-apiserver` | the operator with the real scheduler and garbage collector |
//! | `changes` | `make test-changes` | random changes of VMs, with simulated components |
//! | `pool_load` | `tests/run pool-load` | two operators and users of pools, while leaders are suspended |
//! | `faults` | `make test-faults` | faults at calls of the operator, with simulated components |

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod apiserver;
mod changes;
mod faults;
mod pool_load;
