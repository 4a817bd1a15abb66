//! How long the steps of a runner's start took. The runner tells it within the message of a condition that it writes
//! anyway, so that it costs no request and no field.

use std::fmt;

/// Milliseconds from the runner's start; what has not happened yet is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// QEMU has been started as a process.
    pub qemu: Option<u64>,
    /// QEMU's monitor has answered.
    pub monitor: Option<u64>,
    /// Everything is configured, and the guest is let run.
    pub guest: Option<u64>,
    /// The guest's agent has answered for the first time.
    pub boot: Option<u64>,
}

/// What stands before them in a message.
const HEAD: &str = "ms from the runner's start: ";

impl StartTimes {
    fn named(&self) -> [(&'static str, Option<u64>); 4] {
        [("QEMU", self.qemu), ("monitor", self.monitor), ("guest", self.guest), ("boot", self.boot)]
    }

    /// The message with the times behind it.
    #[must_use]
    pub fn behind(&self, message: &str) -> String {
        if *self == Self::default() { message.to_owned() } else { format!("{message}; {self}") }
    }

    /// The times behind a message.
    #[must_use]
    pub fn read(message: &str) -> Option<Self> {
        let (_, times) = message.split_once(HEAD)?;
        let value = |wanted: &str| {
            let words = times.split(", ").find_map(|time| time.strip_prefix(wanted)?.strip_prefix(' '));
            words.and_then(|number| number.parse::<u64>().ok())
        };
        Some(Self { qemu: value("QEMU"), monitor: value("monitor"), guest: value("guest"), boot: value("boot") })
    }
}

impl fmt::Display for StartTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        let known = self.named().into_iter().filter_map(|(name, time)| Some((name, time?)));
        for (n, (name, time)) in known.enumerate() {
            write!(f, "{}{name} {time}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_through_a_message() {
        let mut times = StartTimes::default();
        assert_eq!(times.behind("QEMU is being started"), "QEMU is being started");
        assert_eq!(StartTimes::read("QEMU is being started"), None);
        (times.qemu, times.monitor, times.guest) = (Some(7), Some(103), Some(111));
        let message = times.behind("QEMU runs the guest");
        assert_eq!(message, "QEMU runs the guest; ms from the runner's start: QEMU 7, monitor 103, guest 111");
        assert_eq!(StartTimes::read(&message), Some(times));
        times.boot = Some(2450);
        assert_eq!(StartTimes::read(&times.behind("x")), Some(times));
    }

    #[test]
    fn what_is_no_number_is_not_known() {
        let read = StartTimes::read("x; ms from the runner's start: QEMU soon, guest 5, more 8");
        assert_eq!(read, Some(StartTimes { guest: Some(5), ..StartTimes::default() }));
    }
}
