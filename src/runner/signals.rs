//! (io) Signals that this process receives.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// All of them. Made before the first child, so that none is missed.
pub struct Signals {
    /// Those that ask the process to end.
    pub end: EndSignals,
    /// A child has ended.
    pub child: Signal,
}

/// Signals that ask the process to end.
pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Receives them from now on.
    pub fn receive() -> io::Result<Self> {
        let end = EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        };
        Ok(Self {
            end,
            child: signal(SignalKind::child())?,
        })
    }
}

impl EndSignals {
    /// What comes of the work, unless somebody asks for the end before.
    pub async fn unless_asked<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            () = self.asked() => Err(Failure::new(EndReason::Stopped, String::new())),
        }
    }

    /// Comes back when the process is asked to end; loses no signal where it is given up before.
    pub async fn asked(&mut self) {
        tokio::select! {
            Some(()) = self.terminate.recv() => {}
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.hangup.recv() => {}
            else => std::future::pending().await,
        }
    }
}
