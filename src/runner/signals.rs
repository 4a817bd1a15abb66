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

impl Signals {
    /// Starts to receive the signals.
    pub fn receive() -> io::Result<Self> {
        let shutdown = ShutdownSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        };
        Ok(Self {
            shutdown,
            child: signal(SignalKind::child())?,
        })
    }
}

impl ShutdownSignals {
    /// Returns the result of the work, or a failure if a shutdown is requested before.
    pub async fn unless_requested<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            () = self.requested() => Err(Failure::new(EndReason::Stopped, String::new())),
        }
    }

    /// Returns when a shutdown is requested. Dropping the future loses no signal.
    pub async fn requested(&mut self) {
        tokio::select! {
            Some(()) = self.terminate.recv() => {}
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.hangup.recv() => {}
            else => std::future::pending().await,
        }
    }
}
