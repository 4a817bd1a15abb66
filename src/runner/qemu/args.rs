//! (pure) The list of QEMU's arguments. A value is added as JSON, or as text with doubled commas.

use serde_json::Value;

/// Arguments.
#[derive(Debug, Default)]
pub struct Args(Vec<String>);

impl Args {
    /// Adds an option without a value.
    pub fn flag(&mut self, option: &str) {
        self.0.push(option.to_owned());
    }

    /// Adds an option in QEMU's own syntax. Values that are not constants must be escaped by
    /// [`escape`].
    pub fn plain(&mut self, option: &str, value: &str) {
        self.0.extend([option.to_owned(), value.to_owned()]);
    }

    /// Adds an option as JSON.
    pub fn json(&mut self, option: &str, value: &Value) {
        self.0.extend([option.to_owned(), value.to_string()]);
    }

    /// Adds `-device`.
    pub fn device(&mut self, value: &Value) {
        self.json("-device", value);
    }

    /// Adds `-device` in that PCI slot.
    pub fn pci_device(&mut self, slot: u8, mut value: Value) {
        if let Some(fields) = value.as_object_mut() {
            fields.insert("bus".to_owned(), "pcie.0".into());
            fields.insert("addr".to_owned(), format!("{slot:#x}").into());
        }
        self.device(&value);
    }

    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// Escapes a value for QEMU's own syntax, in which a single comma ends a value.
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
