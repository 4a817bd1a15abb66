//! (pure) Checks values that their types do not restrict. Texts that pass are safe on QEMU's
//! command line.

use crate::api::quantity::Bytes;
use crate::api::runner::config::{
    DriveConfig, DriveType, NetworkConfig, NetworkType, Protocol, VmConfig,
};
use crate::api::vm::{
    CD_DRIVES_MAX, CPUS_MAX, OUTPUTS_MAX, POWERDOWN_TIMEOUT_MAX, RAM_MAX, RAM_MIN,
    USB_REDIRECTS_MAX,
};
use crate::runner::failure::Invalid;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Characters of a CPU model besides letters and digits. Features follow after commas, and the
/// value of a feature can be a text.
const CPU_MODEL: &str = "-_.,+=:@()/* ";
const RAM_RANGE: RangeInclusive<Bytes> = RAM_MIN..=RAM_MAX;
/// Numbers of CPUs that a VM can have.
pub const CPUS_RANGE: RangeInclusive<u32> = 1..=CPUS_MAX;
const PORT_RANGE: RangeInclusive<u16> = 1..=u16::MAX;

/// Checks single values, and values that must be different.
pub fn check_values(vm: &VmConfig) -> Result<(), Invalid> {
    check_characters("vm.name", &vm.name, "-_.")?;
    vm.uuid
        .as_ref()
        .map_or(Ok(()), |id| check_uuid("vm.uuid", id))?;
    check_characters("vm.cpuModel", &vm.cpu_model, CPU_MODEL)?;
    check_rtc_base("vm.rtcBase", &vm.rtc_base)?;
    check_range("vm.maximumRam", vm.maximum_ram, RAM_RANGE)?;
    check_range(
        "vm.currentRam",
        vm.current_ram.unwrap_or(vm.maximum_ram),
        *RAM_RANGE.start()..=Bytes(1 << 63),
    )?;
    check_range("vm.currentCpus", vm.current_cpus.unwrap_or(1), CPUS_RANGE)?;
    check_range(
        "vm.powerdownTimeout",
        vm.powerdown_timeout,
        0..=POWERDOWN_TIMEOUT_MAX,
    )?;
    check_range("vm.display.outputs", vm.display.outputs, 1..=OUTPUTS_MAX)?;
    // The agent receives the name in a line. Only the guest knows whether the user exists.
    if let Some(user) = vm
        .display
        .logged_in_user
        .as_ref()
        .filter(|user| user.contains(|c: char| c.is_ascii_control()))
    {
        return Err(Invalid::value(
            "vm.display.loggedInUser",
            user,
            "use a user name without line breaks",
        ));
    }
    // Each port of the pod has one destination. TCP and UDP ports are independent.
    let mut ports = BTreeMap::new();
    if let Some(spice) = &vm.display.spice {
        check_range("vm.display.spice.port", spice.port, PORT_RANGE)?;
        check_range(
            "vm.display.spice.usbRedirects",
            spice.usb_redirects,
            0..=USB_REDIRECTS_MAX,
        )?;
        ports.insert(
            (Protocol::Tcp, spice.port),
            "vm.display.spice.port".to_owned(),
        );
    }
    for (n, config) in vm.network.iter().enumerate() {
        check_network(&format!("vm.network[{n}]"), config)?;
        let forwards = config
            .forward
            .iter()
            .enumerate()
            .filter(|_| config.type_ == NetworkType::User);
        for (i, forward) in forwards {
            let key = format!("vm.network[{n}].forward[{i}]");
            check_range(format!("{key}.guestPort"), forward.guest_port, PORT_RANGE)?;
            let key = format!("{key}.port");
            check_range(&key, forward.port, PORT_RANGE)?;
            if let Some(other) = ports.insert((forward.protocol, forward.port), key.clone()) {
                let problem = format!(
                    "port {} is also the port of {other}; configure two different ports",
                    forward.port
                );
                return Err(Invalid::new(key, problem));
            }
        }
    }
    check_drives(&vm.drives)
}

fn check_network(key: &str, config: &NetworkConfig) -> Result<(), Invalid> {
    check_characters(&format!("{key}.device"), &config.device, "-_.")?;
    match config.type_ {
        NetworkType::Tap => check_interface_name(&format!("{key}.bridge"), config.bridge()),
        NetworkType::User => config
            .net
            .as_ref()
            .map_or(Ok(()), |net| check_ipv4_network(&format!("{key}.net"), net)),
    }
}

fn check_drives(drives: &[DriveConfig]) -> Result<(), Invalid> {
    let mut taken = BTreeMap::new();
    for (n, drive) in drives.iter().enumerate() {
        let Some(index) = drive.bootindex else {
            continue;
        };
        let key = format!("vm.drives[{n}].bootindex");
        check_range(&key, index, 0..=i32::MAX.unsigned_abs())?;
        if let Some(other) = taken.insert(index, n) {
            return Err(Invalid::new(
                key,
                format!(
                    "the value {index} is already in use by vm.drives[{other}]; give each drive a different bootindex"
                ),
            ));
        }
    }
    match drives
        .iter()
        .enumerate()
        .filter(|(_, drive)| drive.type_ == DriveType::IdeCd)
        .nth(CD_DRIVES_MAX)
    {
        Some((n, _)) => {
            let problem =
                format!("a VM can have at most {CD_DRIVES_MAX} CD drives; remove CD drives");
            Err(Invalid::new(format!("vm.drives[{n}].type"), problem))
        }
        None => Ok(()),
    }
}

/// Checks that the value is within the range.
pub fn check_range<T: PartialOrd + Display>(
    key: impl Into<String>,
    value: T,
    allowed: RangeInclusive<T>,
) -> Result<(), Invalid> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let problem = format!(
        "{value} is not allowed; use a value from {} to {}",
        allowed.start(),
        allowed.end()
    );
    Err(Invalid::new(key, problem))
}

/// Checks that the value is not empty and has only letters, digits and characters of `more`.
fn check_characters(key: &str, value: &str, more: &str) -> Result<(), Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    if value.is_empty() || value.len() > 1024 || !value.chars().all(allowed) {
        return Err(Invalid::value(
            key,
            value,
            &format!("use only letters, digits and the characters {more}"),
        ));
    }
    Ok(())
}

/// Checks that the value is a UUID in the usual notation.
fn check_uuid(key: &str, value: &str) -> Result<(), Invalid> {
    let dashes = [8, 13, 18, 23];
    let fits = |(i, c): (usize, char)| {
        if dashes.contains(&i) {
            c == '-'
        } else {
            c.is_ascii_hexdigit()
        }
    };
    if value.len() != 36 || !value.chars().enumerate().all(fits) {
        return Err(Invalid::value(
            key,
            value,
            "use a UUID such as 7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4",
        ));
    }
    Ok(())
}

/// Checks the name of a network interface of the node. The kernel accepts all characters except
/// blanks, slashes and colons. The comma is reserved by QEMU.
fn check_interface_name(key: &str, value: &str) -> Result<(), Invalid> {
    let is_of_a_name = |c: char| c.is_ascii_graphic() && !"/:,".contains(c);
    if (1..=15).contains(&value.len())
        && ![".", ".."].contains(&value)
        && value.chars().all(is_of_a_name)
    {
        return Ok(());
    }
    Err(Invalid::value(
        key,
        value,
        "use the name of a network interface: 1 to 15 characters without blank, slash, colon or comma",
    ))
}

/// Checks an IPv4 network: with a prefix length, with a mask, or with the size of its address
/// class.
fn check_ipv4_network(key: &str, value: &str) -> Result<(), Invalid> {
    let (address, mask) = value
        .split_once('/')
        .map_or((value, None), |(address, mask)| (address, Some(mask)));
    let of_bits = |bits: u32| (4..=32).contains(&bits).then(|| u32::MAX << (32 - bits));
    let mask_of = |mask: &str| match mask.parse() {
        Ok(bits) => of_bits(bits),
        Err(_) => mask.parse::<Ipv4Addr>().ok().map(u32::from),
    };
    // QEMU assigns three addresses: pod, name server and guest. It accepts masks with holes too.
    let has_room = |mask: u32| {
        let [pod, names, guest] = [0x0202, 0x0203, 0x020f].map(|host: u32| host & !mask);
        pod != names && names != guest && guest != pod
    };
    if address.parse::<Ipv4Addr>().is_ok()
        && mask.is_none_or(|text| mask_of(text).is_some_and(has_room))
    {
        return Ok(());
    }
    Err(Invalid::value(
        key,
        value,
        "use an IPv4 network such as 10.0.2.0/24, with a prefix length of at most 29",
    ))
}

/// Checks the start of the clock: `utc`, `localtime`, or a date. Its parts need no leading zeros.
fn check_rtc_base(key: &str, value: &str) -> Result<(), Invalid> {
    let numbers = |text: &str, separator: char| {
        let part =
            |part: &str| (1..=4).contains(&part.len()) && part.chars().all(|c| c.is_ascii_digit());
        text.split(separator).count() == 3 && text.split(separator).all(part)
    };
    let (date, time) = value
        .split_once('T')
        .map_or((value, None), |(date, time)| (date, Some(time)));
    let is_time = |time: &str| numbers(time.strip_suffix('Z').unwrap_or(time), ':');
    if ["utc", "localtime"].contains(&value) || numbers(date, '-') && time.is_none_or(is_time) {
        return Ok(());
    }
    Err(Invalid::value(
        key,
        value,
        "use utc, localtime or a date such as 2026-01-31T12:00:00",
    ))
}

/// Checks that the path is absolute and has one line.
pub fn absolute_path(key: &str, value: &str) -> Result<std::path::PathBuf, Invalid> {
    if !value.starts_with('/') || value.contains('\0') || value.contains('\n') {
        return Err(Invalid::value(key, value, "use an absolute path"));
    }
    Ok(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::runner::config::MacAddr;
    use crate::api::vm::rules::samples::admitted;
    use proptest::prelude::*;

    fn mac(text: &str) -> Result<String, String> {
        MacAddr::try_from(text.to_owned()).map(|address| address.normalized())
    }

    #[test]
    fn a_mac_address_is_six_octets_and_not_a_group() {
        assert_eq!(mac("52:54:00:AB:cd:ef").unwrap(), "52:54:00:ab:cd:ef");
        assert_eq!(mac("52-54-00-AB-cd-ef").unwrap(), "52:54:00:ab:cd:ef");
        for bad in [
            "",
            "52:54:00:12:34",
            "53:54:00:12:34:56",
            "52:54:00:12:34:5g",
            "+2:54:00:12:34:56",
            "52:54:00:12:34:56,x=1",
            "5:5:0:1:2:3",
        ] {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_clock_starts_at_utc_local_time_or_a_date() {
        for good in [
            "utc",
            "localtime",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-1-3T1:2:3Z",
        ] {
            assert!(check_rtc_base("r", good).is_ok(), "{good}");
        }
        for bad in ["", "UTC", "2026-01-31T12", "utc,clock=vm", "tomorrow!!"] {
            assert!(check_rtc_base("r", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_and_uuids_are_validated() {
        assert!(check_ipv4_network("n", "10.0.2.0/24").is_ok());
        assert!(
            check_ipv4_network("n", "10.0.2.0").is_ok()
                && check_ipv4_network("n", "10.0.2.0/255.255.255.0").is_ok()
        );
        assert!(
            check_ipv4_network("n", "10.0.2.0/29").is_ok()
                && check_ipv4_network("n", "10.0.2.0/255.255.255.248").is_ok()
        );
        // Such a network has too few addresses for the pod, a name server and the guest.
        assert!(
            ["30", "31", "32", "3", "255.255.255.252", "0.0.0.255"]
                .map(|mask| check_ipv4_network("n", &format!("10.0.2.0/{mask}")).is_err())
                .iter()
                .all(|is| *is)
        );
        assert!(
            check_ipv4_network("n", "10.0.2").is_err()
                && check_ipv4_network("n", "10.0.2.0/24,hostfwd=x").is_err()
        );
        assert!(check_uuid("u", "7A37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4").is_ok());
        assert!(check_uuid("u", "7a37e3b45bd04f7b8a0cb0e2a1b2c3d4").is_err());
    }

    proptest! {
        #[test]
        fn values_admitted_by_the_schema_are_valid(
            address in admitted("spec.vm.networks[].tap.mac"),
            bridge in admitted("spec.vm.networks[].tap.bridge").prop_filter("refused", |name| ![".", ".."].contains(&&**name)),
            network in admitted("spec.vm.networks[].user.net"),
            device in admitted("spec.vm.networks[].user.device"),
            model in admitted("spec.vm.cpuModel"),
            base in admitted("spec.vm.rtcBase"),
            id in admitted("spec.vm.machineUuid"),
        ) {
            prop_assert!(mac(&address).is_ok(), "{}", address);
            prop_assert!(check_interface_name("b", &bridge).is_ok(), "{}", bridge);
            // The number of address bits that remain for hosts.
            prop_assert!(check_ipv4_network("n", &network).is_ok() || network.contains('/'), "{}", network);
            prop_assert!(check_characters("d", &device, "-_.").is_ok(), "{}", device);
            prop_assert!(check_characters("c", &model, CPU_MODEL).is_ok(), "{}", model);
            prop_assert!(check_rtc_base("r", &base).is_ok(), "{}", base);
            prop_assert!(check_uuid("u", &id).is_ok(), "{}", id);
        }
    }

    #[test]
    fn qemu_separator_characters_are_rejected() {
        assert!(check_characters("w", "virtio-net", "-_.").is_ok());
        assert!(check_characters("w", "e1000,romfile=/etc/passwd", "-_.").is_err());
        assert!(check_characters("w", "", "-_.").is_err());
    }
}
