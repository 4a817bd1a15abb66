//! Identifiers of instances.

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

#[cfg(test)]
mod tests {
    use super::VirtualMachineId;

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
