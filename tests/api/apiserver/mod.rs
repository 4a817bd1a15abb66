//! Tests that need a real API server: it accepts the definitions, applies their rules, and merges the operator's
//! writes. The created pods never get a node.
//!
//! `make test-apiserver` runs it. It starts an etcd, an API server, a scheduler and a garbage collector for itself, and needs no
//! cluster.
//!
//! | file | content |
//! |---|---|
//! | `definitions` | the definitions and their defaults, and all overlays |
//! | `admission` | each admission rule: accepted values, rejected values, message |
//! | `conformance` | comparison of the API server in memory with a real one |
//! | `connection` | a connection that breaks silently, in a network namespace without an API server |
//! | `examples` | each file in `examples/`, and the objects of its VMs |
//! | `commands` | the commands of the README and the guides |
//! | `ratcheting` | edits of objects that were stored before a rule existed |
//! | `generated` | thousands of objects that the Java VM-Operator can run |
//! | `status` | the owners of status fields |
//! | `monitoring` | the objects of `deploy/monitoring`, and a scrape of an operator |
//! | `user_roles` | the ClusterRoles for users of VMs |
//! | `settings` | changes of the operator's configuration file |
//! | `adoption` | adoption of running VMs of the Java VM-Operator |
//! | `leader` | leader election of two operator processes |
//! | `policy` | the permissions of the token of a runner that writes to its VM |
//! | `missing_definitions` | an operator on a server without the definitions of pools |
//! | `pools` | two controllers of pools that both write, and the rules of the definitions |
//! | `rejections` | the causes of rejections |
//! | `replay` | the client that makes the same writes as the operator, for `make bench-scale` |
//! | `reports` | the permissions of the token of a runner that writes to a report, the limits of reports, and their deletion |
//! | `objects` | the objects of a VM, and reconciles without writes |
//! | `web` | the web console in a browser, its rights, and those of its account |
//! | `peerpods` | the definition of PeerPods, and their controller with moto in place of AWS and with a libvirtd |
//! | `services` | the load balancer service, and restart requests |
//! | `sip` | SIPClusters: their definition, adopted hosts, a taken node port, definitions of hosts, and the permissions of `deploy/sip` |

mod admission;
mod adoption;
mod commands;
mod conformance;
mod connection;
mod definition;
mod definitions;
mod examples;
mod generated;
pub mod leader;
mod missing_definitions;
mod monitoring;
mod objects;
mod peerpods;
mod policy;
mod pools;
mod ratcheting;
mod rejections;
mod replay;
mod reports;
mod services;
mod settings;
mod sip;
mod status;
mod user_roles;
mod web;
pub mod world;
