//! The time for which an assignment is retained: `spec.retention` of a pool.

use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::{Offset, TimeZone};
use k8s_openapi::jiff::{SignedDuration, Span, Timestamp};
use std::str::FromStr;

/// The longest duration in days. It prevents overflows.
const DAYS_MAX: i64 = 36_525;

/// The retention of assignments.
#[derive(Clone, Copy, Debug)]
pub enum Retention {
    /// A duration after the last use: a part by the calendar in UTC, and an exact part.
    For {
        /// Months.
        months: i64,
        /// Days.
        days: i64,
        /// Hours, minutes and seconds.
        exact: SignedDuration,
    },
    /// A timestamp.
    Until(Timestamp),
}

/// The text is neither a duration nor a timestamp.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is neither a duration of at most 100 years nor a timestamp; write a value such as PT4H, P1D or 2030-01-31T18:00:00Z"
)]
pub struct InvalidRetention(pub String);

impl Retention {
    /// The end of an assignment with that last use.
    #[must_use]
    pub fn end(&self, last_used: Timestamp) -> Timestamp {
        match *self {
            Self::Until(end) => end,
            Self::For {
                months,
                days,
                exact,
            } => {
                let calendar = Span::new().try_months(months);
                let calendar = calendar.and_then(|span| span.try_days(days));
                let zoned = last_used.to_zoned(TimeZone::UTC);
                calendar
                    .and_then(|span| zoned.checked_add(span))
                    .and_then(|end| end.timestamp().checked_add(exact))
                    .unwrap_or(Timestamp::MAX)
            }
        }
    }
}

impl FromStr for Retention {
    type Err = InvalidRetention;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.strip_prefix('P') {
            Some(rest) => duration(rest),
            None => timestamp(text),
        };
        parsed.ok_or_else(|| InvalidRetention(text.to_owned()))
    }
}

/// The duration after the letter `P`.
fn duration(text: &str) -> Option<Retention> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, Some(time).filter(|time| !time.is_empty())?),
        None => (text, ""),
    };
    let [years, months, weeks, days] = amounts(date, ["Y", "M", "W", "D"])?;
    let [hours, minutes, seconds] = amounts(&time.to_ascii_uppercase(), ["H", "M", "S"])?;
    if date.is_empty() && time.is_empty() {
        return None;
    }
    let months = years
        .whole()?
        .checked_mul(12)?
        .checked_add(months.whole()?)?;
    let days = weeks.whole()?.checked_mul(7)?.checked_add(days.whole()?)?;
    let minutes = hours
        .whole()?
        .checked_mul(60)?
        .checked_add(minutes.whole()?)?;
    let exact = SignedDuration::try_from_secs_f64(seconds.0).ok()?;
    let exact = exact.checked_add(SignedDuration::from_secs(minutes.checked_mul(60)?))?;
    let total = months.checked_mul(31)?.checked_add(days)?;
    let total = total.checked_add(exact.as_secs() / 86_400)?;
    // 100 years are 1200 months of at most 31 days.
    let is_short = months <= 1200 && total <= DAYS_MAX.max(1200 * 31);
    is_short.then_some(Retention::For {
        months,
        days,
        exact,
    })
}

/// A number in front of a unit.
#[derive(Clone, Copy)]
struct Amount(f64);

impl Amount {
    /// The number, if it is whole and small.
    #[allow(clippy::cast_possible_truncation, reason = "the value is limited")]
    fn whole(self) -> Option<i64> {
        (self.0.fract() == 0.0 && self.0 < 1e10).then_some(self.0 as i64)
    }
}

/// The numbers in front of these units, which have to be in this order. A missing one is 0.
fn amounts<const N: usize>(mut text: &str, units: [&str; N]) -> Option<[Amount; N]> {
    let mut found = [Amount(0.0); N];
    for (amount, unit) in found.iter_mut().zip(units) {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let Some((number, rest)) = digits.and_then(|end| text.split_at_checked(end)) else {
            break;
        };
        if let Some(rest) = rest.strip_prefix(unit) {
            *amount = Amount(number.parse().ok()?);
            text = rest;
        }
    }
    text.is_empty().then_some(found)
}

/// A timestamp with an offset, which can have minutes with or without a colon.
fn timestamp(text: &str) -> Option<Retention> {
    let (_, time) = text.split_once('T')?;
    let zone = time
        .find(['Z', '+', '-'])
        .map(|at| text.len() - time.len() + at)?;
    let (local, zone) = text.split_at_checked(zone)?;
    let local: DateTime = local.parse().ok()?;
    let offset = match zone.strip_prefix(['+', '-']) {
        None => Offset::UTC,
        Some(digits) => {
            let digits = digits.replace(':', "");
            let (hours, minutes) = digits.split_at_checked(2)?;
            let minutes = if minutes.is_empty() { "0" } else { minutes };
            let seconds = hours.parse::<i32>().ok()? * 3600 + minutes.parse::<i32>().ok()? * 60;
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            Offset::from_seconds(sign * seconds).ok()?
        }
    };
    offset.to_timestamp(local).ok().map(Retention::Until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(retention: &str, last_used: &str) -> Option<String> {
        let retention: Retention = retention.parse().ok()?;
        Some(retention.end(last_used.parse().unwrap()).to_string())
    }

    #[test]
    fn each_duration_and_offset_works() {
        let used = "2026-01-31T10:00:00Z";
        for (retention, expected) in [
            ("PT1h", "2026-01-31T11:00:00Z"),
            ("PT1H", "2026-01-31T11:00:00Z"),
            ("PT0s", "2026-01-31T10:00:00Z"),
            ("PT1m", "2026-01-31T10:01:00Z"),
            ("PT90M", "2026-01-31T11:30:00Z"),
            ("PT1.5S", "2026-01-31T10:00:01.5Z"),
            ("PT1.5s", "2026-01-31T10:00:01.5Z"),
            ("PT1H2M3S", "2026-01-31T11:02:03Z"),
            ("PT1h2m3.25s", "2026-01-31T11:02:03.25Z"),
            ("PT36H", "2026-02-01T22:00:00Z"),
            ("P1D", "2026-02-01T10:00:00Z"),
            ("P1W", "2026-02-07T10:00:00Z"),
            ("P2W3D", "2026-02-17T10:00:00Z"),
            ("P1M", "2026-02-28T10:00:00Z"),
            ("P1Y", "2027-01-31T10:00:00Z"),
            ("P1Y2M3W4DT5H6M7S", "2027-04-25T15:06:07Z"),
            ("P0D", "2026-01-31T10:00:00Z"),
            ("P100Y", "2126-01-31T10:00:00Z"),
            ("P1200M", "2126-01-31T10:00:00Z"),
            ("P36500D", "2126-01-07T10:00:00Z"),
            ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
            (
                "2030-01-01T00:00:00.123456789Z",
                "2030-01-01T00:00:00.123456789Z",
            ),
            ("2030-01-01T12:00:00+01:00", "2030-01-01T11:00:00Z"),
            ("2030-01-01T12:00:00+0100", "2030-01-01T11:00:00Z"),
            ("2030-01-01T12:00:00+01", "2030-01-01T11:00:00Z"),
            ("2030-01-01T12:00:00-0530", "2030-01-01T17:30:00Z"),
            ("2030-01-01T12:00:00-23", "2030-01-02T11:00:00Z"),
            ("1990-01-01T00:00:00Z", "1990-01-01T00:00:00Z"),
            ("2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z"),
        ] {
            assert_eq!(
                end(retention, used).as_deref(),
                Some(expected),
                "{retention}"
            );
        }
    }

    #[test]
    fn impossible_times_are_rejected() {
        for retention in [
            "P",
            "PT",
            "P1DT",
            "P101Y",
            "P1201M",
            "PT99999999999999999999H",
            "P999999D",
            "P1D1W",
            "PT1S1M",
            "PT1.5H",
            "P1.5D",
            "1D",
            "",
            "2030-02-30T00:00:00Z",
            "2029-02-29T00:00:00Z",
            "2030-01-01T00:00:00",
            "2030-01-01",
            "tomorrow",
        ] {
            assert_eq!(end(retention, "2026-01-31T10:00:00Z"), None, "{retention}");
        }
    }
}
