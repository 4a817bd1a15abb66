//! (io) Signals that this process receives.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// All signals. Must be created before the first child process, so that no signal is missed.
pub struct Signals {
    /// Signals that request a shutdown.
    pub shutdown: ShutdownSignals,
    /// A child process has exited.
    pub child: Signal,
}

/// Signals that request a shutdown.
pub struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// A signal that requests a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownSignal {
    /// SIGTERM or SIGHUP. Container runtimes send it again, for example after their own restart, so a second one has no meaning.
    Request,
    /// SIGINT, from a terminal. A second one ends QEMU without the guest.
    Interrupt,
}

impl Signals {
    /// Starts to receive the signals.
    pub fn receive() -> io::Result<Self> {
        Ok(Self {
            shutdown: ShutdownSignals::receive()?,
            child: signal(SignalKind::child())?,
        })
    }
}

impl ShutdownSignals {
    /// Starts to receive the signals.
    pub fn receive() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns the result of the work, or a failure if a shutdown is requested before.
    pub async fn unless_requested<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            _ = self.requested() => Err(Failure::new(EndReason::Stopped, String::new())),
        }
    }

    /// Returns the signal when a shutdown is requested. Dropping the future loses no signal.
    pub async fn requested(&mut self) -> ShutdownSignal {
        tokio::select! {
            Some(()) = self.terminate.recv() => ShutdownSignal::Request,
            Some(()) = self.hangup.recv() => ShutdownSignal::Request,
            Some(()) = self.interrupt.recv() => ShutdownSignal::Interrupt,
            else => std::future::pending().await,
        }
    }
}
