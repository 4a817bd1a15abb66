//! (pure) JSON that readers of YAML 1.1, such as the PyYAML of cloud-init, read as it is meant.
//!
//! JSON is nearly YAML. What is not: YAML takes some characters for line ends (U+0085, U+2028, U+2029) and refuses others
//! (U+007F, C1 controls, U+FFFE), and YAML 1.1 takes `1e20` for a string, as its numbers need a point before and a sign in
//! the exponent. Strings, keys too, are always quoted, so that `on`, `0644`, `22:22`, `2024-01-01`, `~` and `<<` stay
//! strings (B35).

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

/// The document.
pub fn text(value: &Value) -> String {
    let mut bytes = Vec::new();
    // Writing plain data into memory cannot fail.
    let written = value.serialize(&mut Serializer::with_formatter(&mut bytes, Yaml));
    written.map_or_else(|_| value.to_string(), |()| String::from_utf8(bytes).unwrap_or_default())
}

struct Yaml;

impl Formatter for Yaml {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_special) {
            let (plain, special) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut characters = special.chars();
            if let Some(character) = characters.next() {
                write!(writer, "\\u{:04x}", u32::from(character))?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_f64<W: Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let point = if digits.contains('.') { "" } else { ".0" };
        let sign = if exponent.starts_with('-') { "" } else { "+" };
        write!(writer, "{digits}{point}e{sign}{exponent}")
    }
}

/// Characters that YAML does not take as they are; all of them are below U+10000.
fn is_special(character: char) -> bool {
    matches!(character, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_yaml_reads_otherwise_is_written_otherwise() {
        let value =
            json!({"on": "22:22", "~": null, "a\u{2028}b": "\u{7f}\u{fffe}\u{85}", "n": [1e20, 1e-7, 0.5, 100, -0.0]});
        assert_eq!(
            text(&value),
            r#"{"a\u2028b":"\u007f\ufffe\u0085","n":[1.0e+20,1.0e-7,5.0e-1,100,-0.0e+0],"on":"22:22","~":null}"#
        );
    }

    proptest! {
        #[test]
        fn it_is_json_that_says_the_same(key: String, string: String, float in proptest::num::f64::NORMAL, integer: i64) {
            let value = json!({key: [string, integer, true, null]});
            prop_assert_eq!(serde_json::from_str::<Value>(&text(&value)).unwrap(), value);
            prop_assert_eq!(text(&json!(float)).parse::<f64>(), Ok(float));
        }
    }
}
