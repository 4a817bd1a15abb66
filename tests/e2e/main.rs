//! End-to-end tests: the project's own images on the local cluster of `tests/cluster`, with a real kubelet, real
//! volumes, real QEMU and the tiny guest. Each test has its own namespace and operator. The namespace enforces Pod
//! Security `restricted`.
//!
//! ```text
//! make cluster images guests          # the prerequisites; a test that lacks one says which
//! tests/run previous                  # the programs of the previous commit, for the upgrade
//! cargo test --test e2e -- --test-threads 4 --skip exhaustive --skip granted --skip soak::    # four VMs at a time
//! cargo test --test e2e -- granted                                              # after them
//! cargo test --test e2e -- --test-threads 4 exhaustive                          # the exhaustive tier
//! ```
//!
//! A test in a module named `exhaustive` belongs to the exhaustive tier: a quicker test of the ordinary tier proves the
//! same for one half alone. Tests that need the node for themselves are in [`whole_node`].
//!
//! | module | content |
//! |---|---|
//! | [`example`] | the first example boots, and its status reports that |
//! | [`lifecycle`] | stop and start, a deleted pod, a deleted VM |
//! | [`ends`] | a guest that powers itself off, a killed QEMU, a killed runner |
//! | [`disruption`] | a killed operator |
//! | [`bridge`] | guests on a bridge of the node |
//! | [`pools`] | users of a pool, one after the other; a restart leaves nothing of a session |
//! | [`reach`] | a Service and a port-forward into the guest |
//! | [`mistakes`] | each mistake is explained in `kubectl describe vm` |
//! | [`changes`] | CPUs change while the guest runs |
//! | [`media`] | CD images by URL |
//! | [`display`] | a changed display password while the guest runs; encryption |
//! | [`seed`] | the cloud-init seed: from Secrets, and large |
//! | [`isolation`] | two operators in two namespaces |
//! | [`alerts`] | alerts of a Prometheus name the VMs with a problem |
//! | [`pages`] | the commands of the pages in `docs/` |
//! | [`devices`] | the devices that the device plugin gives to pods |
//! | [`kvm`] | a boot sector with hardware acceleration |
//! | [`development`] | the operator outside the cluster |
//! | [`gitops`] | VMs from Git: applied again, pruned; the removal of the operator |
//! | [`upgrade`] | from the previous operator to the present one, and back |
//! | [`takeover`] | the guide for the migration from the Java VM-Operator, and back |
//! | [`writes`] | the number of requests for a VM |
//! | [`whole_node`] | a drained, a lost and a restarted node; nodes that keep devices for root; changes of the device plugin |
//! | [`granted`] | the roles grant exactly the permissions that the other tests have used |
//! | [`soak`] | random events for a given time |
//! | [`harness`] | the fixtures |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod alerts;
mod bridge;
mod changes;
mod debian;
mod development;
mod devices;
mod display;
mod disruption;
mod ends;
mod example;
mod gitops;
mod granted;
mod harness;
mod isolation;
mod kvm;
mod lifecycle;
mod media;
mod mistakes;
mod pages;
mod pools;
mod reach;
mod seed;
mod soak;
mod takeover;
mod upgrade;
mod uploads;
mod whole_node;
mod writes;
