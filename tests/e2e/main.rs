//! End to end: the project's own images on the local cluster of `tests/cluster`, with a real kubelet, real volumes,
//! real QEMU and the tiny guest. Each test has a namespace of its own, with an operator of its own, in which Pod Security
//! `restricted` is enforced.
//!
//! ```text
//! make cluster images guests          # what the tests stand on; whoever lacks one of them is told so
//! tests/run previous                  # and the programs of before, for the upgrade
//! cargo test --test e2e               # two VMs at a time, however many threads there are
//! ```
//!
//! | module | what a user sees |
//! |---|---|
//! | [`example`] | the well-known example boots, and its status says so |
//! | [`lifecycle`] | stop and start, a deleted pod, a deleted VM |
//! | [`ends`] | a guest that powers itself off, a killed QEMU, a killed runner |
//! | [`disruption`] | a drained node, a killed operator |
//! | [`loss`] | a node that is lost, and one that is off for sure |
//! | [`rights`] | nodes that keep devices for root |
//! | [`bridge`] | guests on a bridge of the node |
//! | [`reach`] | a Service and a port-forward into the guest |
//! | [`mistakes`] | each mistake is explained in `kubectl describe vm` |
//! | [`changes`] | CPUs change while the guest runs |
//! | [`media`] | CD images that are given by URL |
//! | [`display`] | the display's password is changed while the guest runs; encryption |
//! | [`seed`] | what cloud-init gets: from secrets, and large |
//! | [`isolation`] | two operators in two namespaces |
//! | [`devices`] | what the device plugin gives to pods |
//! | [`development`] | the operator outside of the cluster |
//! | [`upgrade`] | from the operator of before to today's, and back |
//! | [`takeover`] | the guide to take over from the reference, and back |
//! | [`writes`] | how many requests all that costs |
//! | [`harness`] | what the tests are told with |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bridge;
mod changes;
mod development;
mod devices;
mod display;
mod disruption;
mod ends;
mod example;
mod harness;
mod isolation;
mod lifecycle;
mod loss;
mod media;
mod mistakes;
mod reach;
mod rights;
mod seed;
mod takeover;
mod upgrade;
#[path = "../runner/fetch/server.rs"]
#[allow(dead_code)] // The fetches by the runner alone use the rest.
mod web;
mod writes;
