//! The runner as in a pod: PID 1 with uid 107, in the content of its image, with the image's QEMU and a guest.
//!
//! Needs root, `make images` and `make guests`. Each test has its own mount and PID namespaces. A failed test prints
//! the runner's log.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod alone;
mod api;
mod bench;
mod confined;
mod console_port;
mod desktop;
mod devices;
mod display;
mod end;
mod fetch;
mod fixture;
mod guest;
mod guest_memory;
mod hardware;
mod host;
mod import;
mod kvm;
mod live;
mod media;
mod metrics;
mod network;
mod pairs;
mod processes;
mod report;
mod root;
mod screen;
mod secure_boot;
mod storage;
mod syscalls;
mod viewer;
