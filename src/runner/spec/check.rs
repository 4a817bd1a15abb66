//! (pure) Is a string what QEMU takes for it? What is let through here can be put on a command line.

use super::super::failure::Invalid;
use std::net::Ipv4Addr;

/// What a CPU model is made of besides letters and digits: its features are behind commas, and one can be a text.
pub const CPU_MODEL: &str = "-_.,+=:@()/* ";

/// The value, if all its characters are letters, digits or among `more`, and it is not empty.
pub fn word(key: &str, value: &str, more: &str) -> Result<String, Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    if value.is_empty() || value.len() > 1024 || !value.chars().all(allowed) {
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
        .split([':', '-'])
        .map(|octet| Some(octet).filter(|o| o.len() == 2).and_then(|o| u8::from_str_radix(o, 16).ok()))
        .collect();
    match octets.as_slice() {
        [Some(first), rest @ ..] if rest.len() == 5 && rest.iter().all(Option::is_some) && first & 1 == 0 => {
            Ok(value.to_ascii_lowercase().replace('-', ":"))
        }
        _ => Err(Invalid::value(key, value, "a unicast MAC address such as 52:54:00:12:34:56")),
    }
}

/// The name of a network interface of the host. Only the kernel is given it, which takes all but blanks, slashes and
/// colons; commas are QEMU's.
pub fn interface(key: &str, value: &str) -> Result<String, Invalid> {
    let is_of_a_name = |c: char| c.is_ascii_graphic() && !"/:,".contains(c);
    if (1..=15).contains(&value.len()) && ![".", ".."].contains(&value) && value.chars().all(is_of_a_name) {
        return Ok(value.to_owned());
    }
    Err(Invalid::value(key, value, "the name of an interface: 1 to 15 characters, no blank, slash, colon or comma"))
}

/// An IPv4 network: with a number of bits, with a mask, or of the size that its class has.
pub fn network(key: &str, value: &str) -> Result<String, Invalid> {
    let (address, mask) = value.split_once('/').map_or((value, None), |(address, mask)| (address, Some(mask)));
    let of_bits = |bits: u32| (4..=32).contains(&bits).then(|| u32::MAX << (32 - bits));
    let mask_of = |mask: &str| match mask.parse() {
        Ok(bits) => of_bits(bits),
        Err(_) => mask.parse::<Ipv4Addr>().ok().map(u32::from),
    };
    // What QEMU puts there: the pod, a name server, the guest. It takes masks with holes, too.
    let has_room = |mask: u32| {
        let [pod, names, guest] = [0x0202, 0x0203, 0x020f].map(|host: u32| host & !mask);
        pod != names && names != guest && guest != pod
    };
    if address.parse::<Ipv4Addr>().is_ok() && mask.is_none_or(|text| mask_of(text).is_some_and(has_room)) {
        return Ok(value.to_owned());
    }
    Err(Invalid::value(key, value, "an IPv4 network such as 10.0.2.0/24, of 29 bits at most"))
}

/// Where the clock starts: `utc`, `localtime`, or a date whose parts need no leading zeros.
pub fn rtc_base(key: &str, value: &str) -> Result<String, Invalid> {
    let numbers = |text: &str, separator: char| {
        let part = |part: &str| (1..=4).contains(&part.len()) && part.chars().all(|c| c.is_ascii_digit());
        text.split(separator).count() == 3 && text.split(separator).all(part)
    };
    let (date, time) = value.split_once('T').map_or((value, None), |(date, time)| (date, Some(time)));
    let is_time = |time: &str| numbers(time.strip_suffix('Z').unwrap_or(time), ':');
    if ["utc", "localtime"].contains(&value) || numbers(date, '-') && time.is_none_or(is_time) {
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
    use crate::api::virtual_machine::rules::samples::admitted;
    use proptest::prelude::*;

    #[test]
    fn a_mac_address_is_six_octets_and_not_a_group() {
        assert_eq!(mac("m", "52:54:00:AB:cd:ef").unwrap(), "52:54:00:ab:cd:ef");
        assert_eq!(mac("m", "52-54-00-AB-cd-ef").unwrap(), "52:54:00:ab:cd:ef");
        for bad in
            ["", "52:54:00:12:34", "53:54:00:12:34:56", "52:54:00:12:34:5g", "52:54:00:12:34:56,x=1", "5:5:0:1:2:3"]
        {
            assert!(mac("m", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_clock_starts_at_utc_local_time_or_a_date() {
        for good in ["utc", "localtime", "2026-01-31", "2026-01-31T12:00:00", "2026-1-3T1:2:3Z"] {
            assert!(rtc_base("r", good).is_ok(), "{good}");
        }
        for bad in ["", "UTC", "2026-01-31T12", "utc,clock=vm", "tomorrow!!"] {
            assert!(rtc_base("r", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_and_uuids_are_what_they_look_like() {
        assert!(network("n", "10.0.2.0/24").is_ok());
        assert!(network("n", "10.0.2.0").is_ok() && network("n", "10.0.2.0/255.255.255.0").is_ok());
        assert!(network("n", "10.0.2.0/29").is_ok() && network("n", "10.0.2.0/255.255.255.248").is_ok());
        // There QEMU has no room for the pod, a name server and the guest.
        assert!(
            ["30", "31", "32", "3", "255.255.255.252", "0.0.0.255"]
                .map(|mask| network("n", &format!("10.0.2.0/{mask}")).is_err())
                .iter()
                .all(|is| *is)
        );
        assert!(network("n", "10.0.2").is_err() && network("n", "10.0.2.0/24,hostfwd=x").is_err());
        assert!(uuid("u", "7A37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4").is_ok());
        assert!(uuid("u", "7a37e3b45bd04f7b8a0cb0e2a1b2c3d4").is_err());
    }

    proptest! {
        #[test]
        fn what_is_admitted_is_taken(
            address in admitted("spec.vm.networks[].tap.mac"),
            bridge in admitted("spec.vm.networks[].tap.bridge").prop_filter("refused", |name| ![".", ".."].contains(&&**name)),
            net in admitted("spec.vm.networks[].user.net"),
            device in admitted("spec.vm.networks[].user.device"),
            model in admitted("spec.vm.cpuModel"),
            base in admitted("spec.vm.rtcBase"),
            id in admitted("spec.vm.machineUuid"),
        ) {
            prop_assert!(mac("m", &address).is_ok(), "{}", address);
            prop_assert!(interface("b", &bridge).is_ok(), "{}", bridge);
            // Of the rest, how many bits of a network are left to its hosts.
            prop_assert!(network("n", &net).is_ok() || net.contains('/'), "{}", net);
            prop_assert!(word("d", &device, "-_.").is_ok(), "{}", device);
            prop_assert!(word("c", &model, CPU_MODEL).is_ok(), "{}", model);
            prop_assert!(rtc_base("r", &base).is_ok(), "{}", base);
            prop_assert!(uuid("u", &id).is_ok(), "{}", id);
        }
    }

    #[test]
    fn a_word_holds_nothing_that_qemu_takes_apart() {
        assert!(word("w", "virtio-net", "-_.").is_ok());
        assert!(word("w", "e1000,romfile=/etc/passwd", "-_.").is_err());
        assert!(word("w", "", "-_.").is_err());
    }
}
