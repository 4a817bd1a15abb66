//! Identifiers of instances.

use std::fmt;
use std::str::FromStr;

/// Identifier of an instance of the provider `virtualmachine`: `<namespace>/<name>/<uid>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualMachineId {
    /// Namespace of the `VirtualMachine`.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl FromStr for VirtualMachineId {
    type Err = String;

    /// # Errors
    /// The text has another form. The error is the next step.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |part: &&str| {
            let is_allowed =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
            let is_edge = |c: char| c.is_ascii_alphanumeric();
            part.len() <= 253
                && part.chars().all(is_allowed)
                && part.starts_with(is_edge)
                && part.ends_with(is_edge)
        };
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            [namespace, name, uid] if parts.iter().all(is_name) => Ok(Self {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                uid: (*uid).to_owned(),
            }),
            _ => Err("use <namespace>/<name>/<uid> of a VirtualMachine".to_owned()),
        }
    }
}

/// Identifier of an instance of the provider `aws`: `i-` and 8 or 17 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwsId(String);

impl AwsId {
    /// The text of the identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AwsId {
    type Err = String;

    /// # Errors
    /// The text has another form. The error is the next step.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("i-").unwrap_or_default();
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        match digits.len() {
            8 | 17 if digits.chars().all(is_digit) => Ok(Self(text.to_owned())),
            _ => {
                Err("use the identifier of an EC2 instance, such as i-0123456789abcdef0".to_owned())
            }
        }
    }
}

/// UUID of a domain, a pool or a host of libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LibvirtUuid(pub [u8; 16]);

impl fmt::Display for LibvirtUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", u128::from_be_bytes(self.0));
        let (first, rest) = hex.split_at(8);
        f.write_str(first)?;
        let (middle, last) = rest.split_at(12);
        for part in middle.as_bytes().chunks(4) {
            write!(f, "-{}", String::from_utf8_lossy(part))?;
        }
        write!(f, "-{last}")
    }
}

impl FromStr for LibvirtUuid {
    type Err = String;

    /// Only one spelling is valid, so that two `PeerPods` name a domain by equal texts. Releases of the adaptor until March 2026 wrote the
    /// number of the domain, which does not name a domain for its whole life.
    ///
    /// # Errors
    /// The text is not 32 digits of lower case in 5 groups. The error is the next step.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = u128::from_str_radix(&text.replace('-', ""), 16);
        let uuid = number.ok().map(|it| Self(it.to_be_bytes()));
        let is_same = |it: &Self| it.to_string() == text;
        uuid.filter(is_same)
            .ok_or_else(|| "use the UUID of a domain of libvirt, in lower case".to_owned())
    }
}

/// The name that the cloud-api-adaptor gives to the instance of a pod begins with this text. The first 8 characters of the sandbox's identifier follow.
#[must_use]
pub fn instance_name_prefix(pod: &str) -> String {
    /// Without the parts around it, the name of a pod has at most this length, so that the whole name has at most 63 characters.
    const POD_LENGTH_MAX: usize = 48;
    let legal = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '-') => c,
        _ => '-',
    };
    let pod: String = pod.chars().map(legal).take(POD_LENGTH_MAX).collect();
    format!("podvm-{pod}-")
}

/// Whether the cloud-api-adaptor gives this name to instances of the pod.
#[must_use]
pub fn is_instance_name(name: &str, pod: &str) -> bool {
    pod_part(name).is_some_and(|part| part == instance_name_prefix(pod))
}

/// The part of an instance's name that [`instance_name_prefix`] makes of a pod, or `None` if the cloud-api-adaptor gives no such name.
#[must_use]
pub fn pod_part(name: &str) -> Option<&str> {
    const SANDBOX_LENGTH: usize = 8;
    let (part, sandbox) = name.split_at_checked(name.len().checked_sub(SANDBOX_LENGTH)?)?;
    let pod = part.strip_prefix("podvm-")?.strip_suffix('-')?;
    let is_sandbox = sandbox.chars().all(|c| c.is_ascii_alphanumeric());
    (is_sandbox && !pod.is_empty()).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::{AwsId, LibvirtUuid, VirtualMachineId, is_instance_name};

    #[test]
    fn id_of_aws_has_8_or_17_digits() {
        for id in ["i-12345678", "i-0123456789abcdef0"] {
            assert_eq!(id.parse::<AwsId>().unwrap().as_str(), id);
        }
        for wrong in [
            "",
            "i-",
            "12345678",
            "i-1234567",
            "i-1234567g",
            "i-12345678&",
            "i-ABCDEF12",
        ] {
            wrong.parse::<AwsId>().unwrap_err();
        }
    }

    #[test]
    fn id_of_libvirt_is_a_uuid_with_one_spelling() {
        let uuid = "0123abcd-0001-0203-0405-060708090a0b";
        assert_eq!(uuid.parse::<LibvirtUuid>().unwrap().to_string(), uuid);
        for wrong in [
            "",
            "7",
            "0123ABCD-0001-0203-0405-060708090a0b",
            "0123abcd000102030405060708090a0b",
            "0123abcd-0001-0203-0405-060708090a0",
            "0123abcd-0001-0203-0405-060708090a0g",
            "+123abcd-0001-0203-0405-060708090a0b",
        ] {
            wrong.parse::<LibvirtUuid>().unwrap_err();
        }
    }

    #[test]
    fn name_of_an_instance_has_the_name_of_its_pod() {
        let long = "x".repeat(100);
        let cut = format!("podvm-{}-0123abcd", "x".repeat(48));
        for (name, pod, is_of_pod) in [
            ("podvm-a-0123abcd", "a", true),
            ("podvm-a-b-0123abcd", "a.b", true),
            (&*cut, &*long, true),
            ("podvm-a-b-0123abcd", "a", false),
            ("podvm-a-0123abc", "a", false),
            ("podvm-a-0123abcde", "a", false),
            ("podvm-b-0123abcd", "a", false),
            ("a-0123abcd", "a", false),
            ("", "", false),
        ] {
            assert_eq!(is_instance_name(name, pod), is_of_pod, "{name} {pod}");
        }
    }

    #[test]
    fn id_has_three_parts_that_can_be_in_a_path() {
        let id: VirtualMachineId = "ns/podvm-a-12345678/6f1c".parse().unwrap();
        assert_eq!(
            (&*id.namespace, &*id.name, &*id.uid),
            ("ns", "podvm-a-12345678", "6f1c")
        );
        for wrong in [
            "", "a", "a/b", "a/b/", "/b/c", "a/b/c/d", "a/../c", "a/B/c", "a/b?x/c",
        ] {
            wrong.parse::<VirtualMachineId>().unwrap_err();
        }
    }
}
