//! `vm-operator device-plugin`: offers `/dev/kvm`, `/dev/net/tun` and `/dev/vhost-net` of a node to pods, as resources of
//! the kubelet. By them a VM's pod gets a device without being privileged.
//!
//! ```text
//!  kubelet.sock ◄── Register ────────── keep ──► service ──► device ──► /dev
//!     kubelet ──── ListAndWatch, Allocate ──► socket ──┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | the command line and the process |
//! | [`keep`] | one resource: looks after device, kubelet and socket, and registers whenever it has to |
//! | [`socket`], [`grpc`] | how the kubelet reaches it, and it the kubelet |
//! | [`service`] | what it answers |
//! | [`device`] | the devices, and what a container gets |
//! | [`protocol`] | the kubelet's messages |
//!
//! What always holds: the kubelet is told of a device within a second of its coming or going; nothing is opened, written
//! or started on the node but sockets in the kubelet's directory.

pub mod cli;
pub mod device;
pub mod grpc;
pub mod keep;
pub mod protocol;
pub mod service;
pub mod socket;
#[cfg(test)]
mod tests;
