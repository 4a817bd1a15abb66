//! (io) The guest's screen by VNC: QEMU serves a client at the other end of a socket, without a port of its own.
//!
//! Keys of a client without its own keyboard layout arrive as symbols, and QEMU finds their place on an American keyboard. Clients
//! such as noVNC send the place of the key itself.

use crate::runner::qmp::{Client, Command, Error};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of the next client, because QEMU knows its descriptor by a name.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Shows the screen to the VNC client at that socket. QEMU disconnects earlier clients if the client asks for an exclusive
/// connection.
///
/// # Errors
/// QEMU does not take the socket. It is closed then.
pub async fn show(qmp: &Client, client: OwnedFd) -> Result<(), Error> {
    let name = format!("screen{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let given = qmp.execute_with(Command::get_descriptor(&name), client);
    let added = match given.await {
        Ok(_) => qmp.execute(Command::add_vnc_client(&name)).await,
        Err(error) => Err(error),
    };
    if added.is_err() {
        // QEMU may carry out a command that it has not answered in time, and closes its descriptors with its own end.
        drop(qmp.execute(Command::close_descriptor(&name)).await);
    }
    added.map(drop)
}
