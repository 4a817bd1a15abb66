//! (pure) The list of arguments, and the only two ways to put a value into it.

use serde_json::Value;

/// Arguments in the making.
#[derive(Debug, Default)]
pub struct Args(Vec<String>);

impl Args {
    /// An option without a value.
    pub fn flag(&mut self, option: &str) {
        self.0.push(option.to_owned());
    }

    /// An option in QEMU's own syntax; values in it that are not constants went through [`escape`].
    pub fn plain(&mut self, option: &str, value: &str) {
        self.0.extend([option.to_owned(), value.to_owned()]);
    }

    /// An option as JSON.
    pub fn json(&mut self, option: &str, value: &Value) {
        self.0.extend([option.to_owned(), value.to_string()]);
    }

    /// `-device`
    pub fn device(&mut self, value: &Value) {
        self.json("-device", value);
    }

    /// `-device` at that slot of the PCI bus.
    pub fn pci_device(&mut self, slot: u8, mut value: Value) {
        if let Some(fields) = value.as_object_mut() {
            fields.insert("bus".to_owned(), "pcie.0".into());
            fields.insert("addr".to_owned(), format!("{slot:#x}").into());
        }
        self.device(&value);
    }

    /// The arguments.
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// A value for QEMU's own syntax, where a comma ends it unless it is doubled.
pub fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_value_begins_no_option() {
        assert_eq!(escape("a,readonly=off"), "a,,readonly=off");
    }
}
