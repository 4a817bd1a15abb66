//! `vm-operator device-plugin`: offers `/dev/kvm` and `/dev/net/tun` of a node to pods, as extended resources of the kubelet.
//! With them, a VM's pod gets a device without being privileged.
//!
//! ```text
//!  kubelet.sock ◄── Register ─────────────── plugin ──► host ──► /dev
//!     kubelet ──── ListAndWatch, Allocate ──► service ──► offer
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`cli`] | the command line and the process |
//! | [`plugin`] | sockets, registration, and the reasons to exit |
//! | [`service`] | the gRPC service that the kubelet calls |
//! | [`offer`] | (pure) the resources, and the answers to the kubelet |
//! | [`host`] | the devices of the node, and the device nodes that containers get |
//! | [`protocol`] | (pure) the messages of the kubelet |
//!
//! The plugin opens no device. It writes sockets in the directory of the kubelet and device nodes in a directory of its own.
//! It remembers nothing: after each change of the kubelet it exits, and the kubelet starts its container again.

pub mod cli;
pub mod host;
pub mod offer;
pub mod plugin;
pub mod protocol;
pub mod service;
#[cfg(test)]
mod tests;
