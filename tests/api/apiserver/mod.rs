//! What only a real API server can tell: whether it takes our definitions, what they admit and refuse, what its merges
//! do, and what the operator makes there. Pods are made and never get a node.
//!
//! `make test-apiserver` runs it. It starts an etcd, an API server, a scheduler and a garbage collector for itself, and needs no
//! cluster.
//!
//! | file | what |
//! |---|---|
//! | `definitions` | the definitions, their defaults, and that every example and overlay is admitted |
//! | `admission` | each rule of admission: what it admits, what it refuses, with which words |
//! | `conformance` | the API server in memory answers as a real one |
//! | `connection` | a connection whose other side is gone is noticed; a network namespace instead of the API server |
//! | `commands` | the commands that the README and the guides show |
//! | `ratcheting` | what was stored before there was a rule can still be edited |
//! | `generated` | thousands of objects that the reference can run are admitted |
//! | `status` | who writes what in a status |
//! | `settings` | the operator's process follows the file with its configuration |
//! | `adoption` | VMs of the reference are taken over while they run |
//! | `leader` | two operators as processes: one leads, the other takes over |
//! | `policy` | what the token of a runner may do |
//! | `objects` | what the operator makes of a VM, and that it writes nothing where there is nothing to do |
//! | `services` | the load balancer service; restarts that are asked for |

mod admission;
mod adoption;
mod commands;
mod conformance;
mod connection;
mod definition;
mod definitions;
mod generated;
mod leader;
mod objects;
mod policy;
mod ratcheting;
mod services;
mod settings;
mod status;
mod world;
