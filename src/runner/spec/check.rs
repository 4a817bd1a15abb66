//! (pure) Is a string what QEMU takes for it? What is let through here can be put on a command line.

use super::super::failure::Invalid;
use std::net::Ipv4Addr;

/// The value, if all its characters are letters, digits or among `more`, and it is not empty.
pub fn word(key: &str, value: &str, more: &str) -> Result<String, Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    if value.is_empty() || value.len() > 255 || !value.chars().all(allowed) {
        return Err(Invalid::value(key, value, &format!("letters, digits and {more}")));
    }
    Ok(value.to_owned())
}

/// The value, if it is one of those.
pub fn one_of(key: &str, value: &str, allowed: &[&str]) -> Result<String, Invalid> {
    if allowed.contains(&value) {
        return Ok(value.to_owned());
    }
    Err(Invalid::value(key, value, &allowed.join(", ")))
}

/// A UUID in its usual form, in lower case.
pub fn uuid(key: &str, value: &str) -> Result<String, Invalid> {
    let dashes = [8, 13, 18, 23];
    let fits = |(i, c): (usize, char)| if dashes.contains(&i) { c == '-' } else { c.is_ascii_hexdigit() };
    if value.len() != 36 || !value.chars().enumerate().all(fits) {
        return Err(Invalid::value(key, value, "a UUID such as 7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4"));
    }
    Ok(value.to_ascii_lowercase())
}

/// A MAC address of one interface.
pub fn mac(key: &str, value: &str) -> Result<String, Invalid> {
    let octets: Vec<Option<u8>> = value
        .split(':')
        .map(|octet| Some(octet).filter(|o| o.len() == 2).and_then(|o| u8::from_str_radix(o, 16).ok()))
        .collect();
    match octets.as_slice() {
        [Some(first), rest @ ..] if rest.len() == 5 && rest.iter().all(Option::is_some) && first & 1 == 0 => {
            Ok(value.to_ascii_lowercase())
        }
        _ => Err(Invalid::value(key, value, "a unicast MAC address such as 52:54:00:12:34:56")),
    }
}

/// An IPv4 network in CIDR notation.
pub fn network(key: &str, value: &str) -> Result<String, Invalid> {
    let parts = value.split_once('/').map(|(ip, bits)| (ip.parse::<Ipv4Addr>(), bits.parse::<u8>()));
    match parts {
        Some((Ok(_), Ok(bits))) if (8..=30).contains(&bits) => Ok(value.to_owned()),
        _ => Err(Invalid::value(key, value, "an IPv4 network such as 10.0.2.0/24")),
    }
}

/// Where the clock starts.
pub fn rtc_base(key: &str, value: &str) -> Result<String, Invalid> {
    let pattern = "0000-00-00T00:00:00";
    let same_kind = |(c, p): (char, char)| if p == '0' { c.is_ascii_digit() } else { c == p };
    let is_date = (value.len() == 10 || value.len() == 19) && value.chars().zip(pattern.chars()).all(same_kind);
    if is_date || ["utc", "localtime"].contains(&value) {
        return Ok(value.to_owned());
    }
    Err(Invalid::value(key, value, "utc, localtime or a date such as 2026-01-31T12:00:00"))
}

/// An absolute path without surprises.
pub fn path(key: &str, value: &str) -> Result<std::path::PathBuf, Invalid> {
    if !value.starts_with('/') || value.contains('\0') || value.contains('\n') {
        return Err(Invalid::value(key, value, "an absolute path"));
    }
    Ok(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_six_octets_and_not_a_group() {
        assert_eq!(mac("m", "52:54:00:AB:cd:ef").unwrap(), "52:54:00:ab:cd:ef");
        for bad in
            ["", "52:54:00:12:34", "53:54:00:12:34:56", "52:54:00:12:34:5g", "52:54:00:12:34:56,x=1", "5:5:0:1:2:3"]
        {
            assert!(mac("m", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_clock_starts_at_utc_local_time_or_a_date() {
        for good in ["utc", "localtime", "2026-01-31", "2026-01-31T12:00:00"] {
            assert!(rtc_base("r", good).is_ok(), "{good}");
        }
        for bad in ["", "UTC", "2026-01-31T12", "utc,clock=vm", "tomorrow!!"] {
            assert!(rtc_base("r", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_and_uuids_are_what_they_look_like() {
        assert!(network("n", "10.0.2.0/24").is_ok());
        assert!(network("n", "10.0.2.0").is_err() && network("n", "10.0.2.0/24,hostfwd=x").is_err());
        assert!(uuid("u", "7A37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4").is_ok());
        assert!(uuid("u", "7a37e3b45bd04f7b8a0cb0e2a1b2c3d4").is_err());
    }

    #[test]
    fn a_word_holds_nothing_that_qemu_takes_apart() {
        assert!(word("w", "virtio-net", "-_.").is_ok());
        assert!(word("w", "e1000,romfile=/etc/passwd", "-_.").is_err());
        assert!(word("w", "", "-_.").is_err());
    }
}
