//! (io) Taps: network interfaces of the node that are attached to a bridge. QEMU gets the
//! descriptor of the other end.
//!
//! Invariants: no other program is started. The kernel deletes the interface when the last process
//! with its descriptor exits. There is no safe wrapper for these requests; each is one call with
//! one structure.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// From linux/sockios.h: attaches an interface to a bridge.
const SIOCBRADDIF: libc::Ioctl = 0x89a2 as libc::Ioctl;

/// A tap on a bridge.
pub struct Tap {
    /// The descriptor for QEMU.
    pub fd: OwnedFd,
    /// The name of the interface.
    pub name: String,
}

impl Tap {
    /// The same tap with a further descriptor. The interface exists until all are closed.
    ///
    /// # Errors
    /// If this process has too many open files.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            name: self.name.clone(),
        })
    }
}

/// The step at which a tap could not be created.
#[derive(Debug)]
pub enum TapError {
    /// The device for taps could not be opened.
    Open(Errno),
    /// The kernel did not create an interface.
    Create(io::Error),
    /// The interface could not be attached to the bridge.
    Attach(io::Error),
}

/// Creates a tap named after `pattern` (`%d` is replaced by a number) on that bridge, by the device `device`.
///
/// # Errors
/// If one of the steps fails.
pub fn open(device: &str, pattern: &str, bridge: &str) -> Result<Tap, TapError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tap = rustix::fs::open(device, flags, Mode::empty()).map_err(TapError::Open)?;
    let mut request = InterfaceRequest::named(pattern);
    request.0.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    request
        .ioctl(&tap, libc::TUNSETIFF as libc::Ioctl)
        .map_err(TapError::Create)?;
    attach(&mut request, bridge).map_err(TapError::Attach)?;
    Ok(Tap {
        fd: tap,
        name: request.name(),
    })
}

/// Attaches the tap to the bridge and brings it up.
fn attach(tap: &mut InterfaceRequest, bridge: &str) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut bridge = InterfaceRequest::named(bridge);
    bridge.ioctl(&socket, libc::SIOCGIFMTU as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member.
    let mtu = unsafe { bridge.0.ifr_ifru.ifru_mtu };
    tap.0.ifr_ifru.ifru_mtu = mtu;
    tap.ioctl(&socket, libc::SIOCSIFMTU as libc::Ioctl)?;
    // A bridge takes the lowest MAC address of its interfaces. The first byte 0xfe keeps the tap's
    // address from being the lowest.
    tap.ioctl(&socket, libc::SIOCGIFHWADDR as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member, and it is plain data.
    unsafe { tap.0.ifr_ifru.ifru_hwaddr.sa_data[0] = 0xfe_u8 as libc::c_char };
    tap.ioctl(&socket, libc::SIOCSIFHWADDR as libc::Ioctl)?;
    tap.ioctl(&socket, libc::SIOCGIFINDEX as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member.
    bridge.0.ifr_ifru.ifru_ifindex = unsafe { tap.0.ifr_ifru.ifru_ifindex };
    bridge.ioctl(&socket, SIOCBRADDIF)?;
    tap.ioctl(&socket, libc::SIOCGIFFLAGS as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member.
    tap.0.ifr_ifru.ifru_flags =
        unsafe { tap.0.ifr_ifru.ifru_flags } | libc::IFF_UP as libc::c_short;
    tap.ioctl(&socket, libc::SIOCSIFFLAGS as libc::Ioctl)
}

/// Argument of the kernel's requests for an interface.
struct InterfaceRequest(libc::ifreq);

impl InterfaceRequest {
    /// A request for the interface of that name. A name of more than 15 bytes is cut, and the
    /// kernel then does not find it.
    fn named(name: &str) -> Self {
        // SAFETY: all zeros is a value of this plain structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from as libc::c_char;
        }
        Self(request)
    }

    /// The name of the interface. The kernel completes the pattern when it creates the interface.
    fn name(&self) -> String {
        let letters = self
            .0
            .ifr_name
            .iter()
            .map(|letter| *letter as u8)
            .take_while(|letter| *letter != 0);
        String::from_utf8_lossy(&letters.collect::<Vec<_>>()).into_owned()
    }

    fn ioctl(&mut self, to: &impl AsFd, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: each of the requests reads and writes one such structure, which outlives the call.
        let result = unsafe { libc::ioctl(to.as_fd().as_raw_fd(), request, &raw mut self.0) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
