//! (io) Taps: a network interface of the host on a bridge, whose other end is a descriptor that QEMU gets.
//!
//! What always holds: no other program is started for it, and an interface is gone with the last process that has its
//! descriptor. The kernel has no safe wrapper for these requests; each is one call with one structure.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// From linux/sockios.h: puts an interface on a bridge.
const SIOCBRADDIF: libc::Ioctl = 0x89a2 as libc::Ioctl;

/// A tap on a bridge.
pub struct Tap {
    /// QEMU's end.
    pub fd: OwnedFd,
    /// The name of the interface.
    pub name: String,
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
    let mut request = Request::named(pattern);
    request.0.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    request
        .give(&tap, libc::TUNSETIFF as libc::Ioctl)
        .map_err(TapError::Create)?;
    attach(&mut request, bridge).map_err(TapError::Attach)?;
    Ok(Tap {
        fd: tap,
        name: request.name(),
    })
}

/// Puts the tap on the bridge and brings it up.
fn attach(tap: &mut Request, bridge: &str) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut bridge = Request::named(bridge);
    bridge.give(&socket, libc::SIOCGIFMTU as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member.
    let mtu = unsafe { bridge.0.ifr_ifru.ifru_mtu };
    tap.0.ifr_ifru.ifru_mtu = mtu;
    tap.give(&socket, libc::SIOCSIFMTU as libc::Ioctl)?;
    // A bridge takes the lowest address of its interfaces; this one must not change it.
    tap.give(&socket, libc::SIOCGIFHWADDR as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member, and it is plain data.
    unsafe { tap.0.ifr_ifru.ifru_hwaddr.sa_data[0] = 0xfe_u8 as libc::c_char };
    tap.give(&socket, libc::SIOCSIFHWADDR as libc::Ioctl)?;
    tap.give(&socket, libc::SIOCGIFINDEX as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member.
    bridge.0.ifr_ifru.ifru_ifindex = unsafe { tap.0.ifr_ifru.ifru_ifindex };
    bridge.give(&socket, SIOCBRADDIF)?;
    tap.give(&socket, libc::SIOCGIFFLAGS as libc::Ioctl)?;
    // SAFETY: the kernel has filled this member.
    tap.0.ifr_ifru.ifru_flags =
        unsafe { tap.0.ifr_ifru.ifru_flags } | libc::IFF_UP as libc::c_short;
    tap.give(&socket, libc::SIOCSIFFLAGS as libc::Ioctl)
}

/// What the kernel takes and gives about an interface.
struct Request(libc::ifreq);

impl Request {
    /// One of the interface of that name; a name that is too long is cut, and then unknown.
    fn named(name: &str) -> Self {
        // SAFETY: all zeros is a value of this plain structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from as libc::c_char;
        }
        Self(request)
    }

    /// The name, which the kernel completes when it makes the interface.
    fn name(&self) -> String {
        let letters = self
            .0
            .ifr_name
            .iter()
            .map(|letter| *letter as u8)
            .take_while(|letter| *letter != 0);
        String::from_utf8_lossy(&letters.collect::<Vec<_>>()).into_owned()
    }

    fn give(&mut self, to: &impl AsFd, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: each of the requests reads and writes one such structure, which outlives the call.
        let result = unsafe { libc::ioctl(to.as_fd().as_raw_fd(), request, &raw mut self.0) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
