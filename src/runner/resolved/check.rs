//! (pure) Checks of the values that their types do not limit. Texts that pass can be put on QEMU's command line.

use crate::api::quantity::Bytes;
use crate::api::runner::config::{
    DriveConfig, DriveType, NetworkConfig, NetworkType, Protocol, VmConfig,
};
use crate::runner::failure::Invalid;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// What a CPU model is made of besides letters and digits: its features are behind commas, and one can be a text.
const CPU_MODEL: &str = "-_.,+=:@()/* ";
/// The addresses of x86 programs have 47 bits.
const RAM_RANGE: RangeInclusive<Bytes> = Bytes(1 << 20)..=Bytes(127 << 40);
const CPUS_RANGE: RangeInclusive<u32> = 1..=4096;
const PORT_RANGE: RangeInclusive<u16> = 1..=u16::MAX;
/// A year, in seconds.
const POWERDOWN_TIMEOUT_MAX: u64 = 365 * 24 * 3600;
/// The USB controller's ports, less the one of the tablet.
const USB_REDIRECTS_MAX: u32 = 14;
/// The machine's SATA controller has this many ports.
const CDS_MAX: usize = 6;

/// Checks the machine's values one by one, and those that must differ from each other.
pub fn values(vm: &VmConfig) -> Result<(), Invalid> {
    word("vm.name", &vm.name, "-_.")?;
    vm.uuid.as_ref().map_or(Ok(()), |id| uuid("vm.uuid", id))?;
    word("vm.cpuModel", &vm.cpu_model, CPU_MODEL)?;
    rtc_base("vm.rtcBase", &vm.rtc_base)?;
    range("vm.maximumRam", vm.maximum_ram, RAM_RANGE)?;
    range(
        "vm.currentRam",
        vm.current_ram.unwrap_or(vm.maximum_ram),
        *RAM_RANGE.start()..=Bytes(1 << 63),
    )?;
    range("vm.currentCpus", vm.current_cpus.unwrap_or(1), CPUS_RANGE)?;
    range(
        "vm.powerdownTimeout",
        vm.powerdown_timeout,
        0..=POWERDOWN_TIMEOUT_MAX,
    )?;
    range("vm.display.outputs", vm.display.outputs, 1..=16)?;
    // The agent receives the name in a line. Whether the guest has such a user is for the agent to say.
    if let Some(user) = vm
        .display
        .logged_in_user
        .as_ref()
        .filter(|user| user.contains(|c: char| c.is_ascii_control()))
    {
        return Err(Invalid::value(
            "vm.display.loggedInUser",
            user,
            "a name without line ends",
        ));
    }
    // A port of the pod leads to one place; UDP has ports of its own.
    let mut ports = BTreeMap::new();
    if let Some(spice) = &vm.display.spice {
        range("vm.display.spice.port", spice.port, PORT_RANGE)?;
        range(
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
        network(&format!("vm.network[{n}]"), config)?;
        let forwards = config
            .forward
            .iter()
            .enumerate()
            .filter(|_| config.type_ == NetworkType::User);
        for (i, forward) in forwards {
            let key = format!("vm.network[{n}].forward[{i}]");
            range(format!("{key}.guestPort"), forward.guest_port, PORT_RANGE)?;
            let key = format!("{key}.port");
            range(&key, forward.port, PORT_RANGE)?;
            if let Some(other) = ports.insert((forward.protocol, forward.port), key.clone()) {
                let problem = format!(
                    "{} is in use by {other} already; give each a port of its own",
                    forward.port
                );
                return Err(Invalid::new(key, problem));
            }
        }
    }
    drives(&vm.drives)
}

fn network(key: &str, config: &NetworkConfig) -> Result<(), Invalid> {
    word(&format!("{key}.device"), &config.device, "-_.")?;
    match config.type_ {
        NetworkType::Tap => interface(&format!("{key}.bridge"), config.bridge()),
        NetworkType::User => config
            .net
            .as_ref()
            .map_or(Ok(()), |net| self::net(&format!("{key}.net"), net)),
    }
}

fn drives(drives: &[DriveConfig]) -> Result<(), Invalid> {
    let mut taken = BTreeMap::new();
    for (n, drive) in drives.iter().enumerate() {
        let Some(index) = drive.bootindex else {
            continue;
        };
        let key = format!("vm.drives[{n}].bootindex");
        range(&key, index, 0..=i32::MAX.unsigned_abs())?;
        if let Some(other) = taken.insert(index, n) {
            return Err(Invalid::new(
                key,
                format!("{index} is that of vm.drives[{other}] already; give each its own"),
            ));
        }
    }
    match drives
        .iter()
        .enumerate()
        .filter(|(_, drive)| drive.type_ == DriveType::IdeCd)
        .nth(CDS_MAX)
    {
        Some((n, _)) => {
            let problem = format!("the machine has room for {CDS_MAX} CD drives only");
            Err(Invalid::new(format!("vm.drives[{n}].type"), problem))
        }
        None => Ok(()),
    }
}

/// The value is within the range.
pub fn range<T: PartialOrd + Display>(
    key: impl Into<String>,
    value: T,
    allowed: RangeInclusive<T>,
) -> Result<(), Invalid> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let problem = format!(
        "{value} is not allowed; use {} to {}",
        allowed.start(),
        allowed.end()
    );
    Err(Invalid::new(key, problem))
}

/// All characters of the value are letters, digits or among `more`, and it is not empty.
fn word(key: &str, value: &str, more: &str) -> Result<(), Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    if value.is_empty() || value.len() > 1024 || !value.chars().all(allowed) {
        return Err(Invalid::value(
            key,
            value,
            &format!("letters, digits and {more}"),
        ));
    }
    Ok(())
}

/// A UUID in its usual form.
fn uuid(key: &str, value: &str) -> Result<(), Invalid> {
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
            "a UUID such as 7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4",
        ));
    }
    Ok(())
}

/// The name of a network interface of the host. Only the kernel is given it, which takes all but blanks, slashes and
/// colons; commas are QEMU's.
fn interface(key: &str, value: &str) -> Result<(), Invalid> {
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
        "the name of an interface: 1 to 15 characters, no blank, slash, colon or comma",
    ))
}

/// An IPv4 network: with a number of bits, with a mask, or of the size that its class has.
fn net(key: &str, value: &str) -> Result<(), Invalid> {
    let (address, mask) = value
        .split_once('/')
        .map_or((value, None), |(address, mask)| (address, Some(mask)));
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
    if address.parse::<Ipv4Addr>().is_ok()
        && mask.is_none_or(|text| mask_of(text).is_some_and(has_room))
    {
        return Ok(());
    }
    Err(Invalid::value(
        key,
        value,
        "an IPv4 network such as 10.0.2.0/24, of 29 bits at most",
    ))
}

/// Where the clock starts: `utc`, `localtime`, or a date whose parts need no leading zeros.
fn rtc_base(key: &str, value: &str) -> Result<(), Invalid> {
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
        "utc, localtime or a date such as 2026-01-31T12:00:00",
    ))
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
            assert!(rtc_base("r", good).is_ok(), "{good}");
        }
        for bad in ["", "UTC", "2026-01-31T12", "utc,clock=vm", "tomorrow!!"] {
            assert!(rtc_base("r", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_and_uuids_are_what_they_look_like() {
        assert!(net("n", "10.0.2.0/24").is_ok());
        assert!(net("n", "10.0.2.0").is_ok() && net("n", "10.0.2.0/255.255.255.0").is_ok());
        assert!(net("n", "10.0.2.0/29").is_ok() && net("n", "10.0.2.0/255.255.255.248").is_ok());
        // There QEMU has no room for the pod, a name server and the guest.
        assert!(
            ["30", "31", "32", "3", "255.255.255.252", "0.0.0.255"]
                .map(|mask| net("n", &format!("10.0.2.0/{mask}")).is_err())
                .iter()
                .all(|is| *is)
        );
        assert!(net("n", "10.0.2").is_err() && net("n", "10.0.2.0/24,hostfwd=x").is_err());
        assert!(uuid("u", "7A37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4").is_ok());
        assert!(uuid("u", "7a37e3b45bd04f7b8a0cb0e2a1b2c3d4").is_err());
    }

    proptest! {
        #[test]
        fn what_is_admitted_is_taken(
            address in admitted("spec.vm.networks[].tap.mac"),
            bridge in admitted("spec.vm.networks[].tap.bridge").prop_filter("refused", |name| ![".", ".."].contains(&&**name)),
            network in admitted("spec.vm.networks[].user.net"),
            device in admitted("spec.vm.networks[].user.device"),
            model in admitted("spec.vm.cpuModel"),
            base in admitted("spec.vm.rtcBase"),
            id in admitted("spec.vm.machineUuid"),
        ) {
            prop_assert!(mac(&address).is_ok(), "{}", address);
            prop_assert!(interface("b", &bridge).is_ok(), "{}", bridge);
            // Of the rest, how many bits of a network are left to its hosts.
            prop_assert!(net("n", &network).is_ok() || network.contains('/'), "{}", network);
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
