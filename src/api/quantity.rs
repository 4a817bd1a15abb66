//! Parsing and printing of sizes.
//!
//! Two syntaxes are accepted everywhere: Kubernetes quantities (`8Gi`, `1G`, `512Mi`, `1e9`), and the syntax of the runner
//! (`4 GiB`, `1.5 GB`). Sizes are printed in the syntax of the runner, which all versions of the runner can read. The unit is
//! the largest one that divides the size exactly.

#[cfg(any(all(test, feature = "runner"), feature = "fuzzing"))]
pub(crate) mod fuzzing;

use serde::{Deserialize, Serialize};
use std::fmt;

/// A size in bytes. It is serialized as text, and deserialized from text or from a number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "Size", into = "String")]
pub struct Bytes(pub u64);

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "not a size; use a text such as 8Gi or 4 GiB, or a number of bytes"
)]
enum Size {
    Text(String),
    Number(serde_json::Number),
}

impl TryFrom<Size> for Bytes {
    type Error = SizeError;

    fn try_from(size: Size) -> Result<Self, SizeError> {
        match size {
            Size::Text(text) => text.parse(),
            Size::Number(number) => number.to_string().parse(),
        }
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.to_string()
    }
}

/// The reason that a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text does not begin with a decimal number.
    #[error("{0:?} does not begin with a number; write a size such as 8Gi, 512Mi or 4 GiB")]
    NoNumber(String),
    /// The text after the number is not a unit.
    #[error(
        "{text:?} has the unknown unit {unit:?}; use one of Ki, Mi, Gi, Ti, k, M, G, T, KiB, MiB, GiB, TiB, kB, MB, GB, TB"
    )]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The part that is not a unit.
        unit: String,
    },
    /// The size does not fit 64 bits.
    #[error("{0:?} is larger than 16 EiB; write a smaller size")]
    TooLarge(String),
}

/// Units for printing, the largest first. Kubernetes' suffixes are the same without the `B`.
const UNITS: [(&str, u64); 12] = [
    ("EiB", 1 << 60),
    ("EB", 1_000_000_000_000_000_000),
    ("PiB", 1 << 50),
    ("PB", 1_000_000_000_000_000),
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
];

fn unit(name: &str) -> Option<u64> {
    match name {
        "" | "B" => return Some(1),
        // `K` is not a Kubernetes suffix, but a common spelling of `k`.
        "K" | "KB" => return Some(1_000),
        _ => {}
    }
    let with_b = |candidate: &str| candidate == name || candidate.strip_suffix('B') == Some(name);
    UNITS
        .iter()
        .find(|(candidate, _)| with_b(candidate))
        .map(|(_, factor)| *factor)
}

impl std::str::FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let trimmed = trimmed.strip_prefix('+').unwrap_or(trimmed);
        let number_end = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, rest) = trimmed.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(SizeError::NoNumber(text.to_owned()));
        }
        let too_large = || SizeError::TooLarge(text.to_owned());
        let unknown = || SizeError::UnknownUnit {
            text: text.to_owned(),
            unit: rest.trim().to_owned(),
        };
        let (factor, divisor) = match rest.strip_prefix(['e', 'E']).map(str::parse::<u32>) {
            Some(Ok(exponent)) => (10u128.checked_pow(exponent).ok_or_else(too_large)?, 1),
            // Kubernetes prints some sums in thousandths of a byte (suffix `m`).
            _ if rest == "m" => (1, 1000),
            _ => (u128::from(unit(rest.trim()).ok_or_else(unknown)?), 1),
        };
        let digits = |s: &str| {
            if s.is_empty() {
                Ok(0)
            } else {
                s.parse::<u128>().map_err(|_| too_large())
            }
        };
        // Fractions of a byte are dropped, so that digits after the 18th have no effect.
        let fraction: String = fraction.chars().take(18).collect();
        let scale = 10u128.pow(u32::try_from(fraction.len()).unwrap_or(18));
        let whole = digits(whole)?.checked_mul(factor).ok_or_else(too_large)?;
        let part = digits(&fraction)?
            .checked_mul(factor)
            .ok_or_else(too_large)?
            / scale;
        let bytes = whole.checked_add(part).ok_or_else(too_large)? / divisor;
        u64::try_from(bytes).map(Bytes).map_err(|_| too_large())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS
            .iter()
            .find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        match exact {
            Some((name, factor)) => write!(f, "{} {name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Bytes {
    /// The size as a Kubernetes quantity (`4Gi`), for resource requests and status fields.
    #[must_use]
    pub fn to_quantity(self) -> String {
        self.to_string()
            .replace(' ', "")
            .trim_end_matches('B')
            .to_owned()
    }
}

/// Whether two Kubernetes quantities are the same amount, such as `1000m` and `1`, as which the API server prints it. Texts
/// that are not quantities are compared as texts.
#[must_use]
pub fn same_amount(a: &str, b: &str) -> bool {
    a == b || billionths(a).is_some_and(|amount| billionths(b) == Some(amount))
}

/// Whether the first Kubernetes quantity is more than the second one. False for texts that are not quantities.
#[must_use]
pub fn is_more(a: &str, b: &str) -> bool {
    billionths(a).zip(billionths(b)).is_some_and(|(a, b)| a > b)
}

/// The amount in billionths, to which Kubernetes rounds up.
fn billionths(text: &str) -> Option<u128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let number = format!("{whole}{fraction}").parse::<u128>().ok()?;
    let (factor, exponent) = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        _ => match suffix.strip_prefix(['e', 'E']).map(str::parse::<i32>) {
            Some(Ok(exponent)) => (1, exponent),
            _ => (u128::from(unit(suffix)?), 0),
        },
    };
    let exponent = exponent
        .checked_add(9)?
        .checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    let amount = number.checked_mul(factor)?;
    match exponent {
        0.. => amount.checked_mul(power),
        _ => Some(amount.div_ceil(power)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size(text: &str) -> Result<u64, SizeError> {
        text.parse::<Bytes>().map(|b| b.0)
    }

    #[test]
    fn both_syntaxes_are_parsed() {
        for (text, bytes) in [
            ("8Gi", 8 << 30),
            ("1G", 1_000_000_000),
            ("4 GiB", 4 << 30),
            (" 512 MiB ", 512 << 20),
            ("1.5 GiB", 3 << 29),
            ("1024", 1024),
            ("1e9", 1_000_000_000),
            ("2k", 2_000),
            ("2Ki", 2_048),
            ("1500m", 1),
            ("1E", 1_000_000_000_000_000_000),
            (".5Ki", 512),
            ("+8Gi", 8 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_has_a_reason() {
        assert!(matches!(size("lots"), Err(SizeError::NoNumber(_))));
        assert!(matches!(size(""), Err(SizeError::NoNumber(_))));
        assert!(matches!(size("1.2.3Gi"), Err(SizeError::NoNumber(_))));
        assert!(matches!(size("-1Gi"), Err(SizeError::NoNumber(_))));
        assert!(matches!(size("8Gb"), Err(SizeError::UnknownUnit { .. })));
        assert!(matches!(size("17 EiB"), Err(SizeError::TooLarge(_))));
        assert!(matches!(size("1e99"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn the_largest_exact_unit_is_printed() {
        for (bytes, text) in [
            (8 << 30, "8 GiB"),
            (1_000_000_000, "1 GB"),
            (1_536 << 20, "1536 MiB"),
            (7, "7"),
            (0, "0"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(4 << 30).to_quantity(), "4Gi");
        assert_eq!(Bytes(1_000).to_quantity(), "1k");
    }

    #[test]
    fn the_same_amount_in_another_spelling_is_no_difference() {
        for (a, b, same) in [
            ("1000m", "1", true),
            ("500m", "0.5", true),
            ("4294967296k", "4294967296000", true),
            ("4Gi", "4294967296", true),
            ("1.5Gi", "1536Mi", true),
            ("0.1Gi", "107374182400m", true),
            ("100000u", "100m", true),
            ("0.0000000001", "1n", true),
            ("1e3", "1k", true),
            ("2e-3", "2m", true),
            ("1E", "1000P", true),
            ("1500m", "1", false),
            ("1500m", "1501m", false),
            ("1Gi", "1G", false),
            ("1e99", "1", false),
            ("odd", "odd", true),
            ("odd", "even", false),
        ] {
            assert_eq!(same_amount(a, b), same, "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn printed_sizes_are_read_back(bytes: u64) {
            prop_assert_eq!(size(&Bytes(bytes).to_string()), Ok(bytes));
            prop_assert_eq!(size(&Bytes(bytes).to_quantity()), Ok(bytes));
        }
    }
}
