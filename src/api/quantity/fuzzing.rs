//! Fuzz target: sizes and CPU amounts.

use crate::api::quantity::{Bytes, same_amount};

/// A size is printed as text that parses to the same size; a size without a fraction has its exact value.
pub fn check_quantity(input: &[u8], print: fn(Bytes) -> String) {
    let text = String::from_utf8_lossy(input);
    assert!(same_amount(&text, &text));
    let parsed = text.parse::<Bytes>();
    if let Some(expected) = whole_size(&text) {
        assert_eq!(
            parsed.clone().ok().map(|bytes| bytes.0),
            u64::try_from(expected).ok(),
            "{text:?}"
        );
    }
    match parsed {
        Ok(bytes) => {
            assert_eq!(
                print(bytes).parse(),
                Ok(bytes),
                "{text:?} is printed as {:?}",
                print(bytes)
            );
            assert_eq!(bytes.to_quantity().parse(), Ok(bytes));
            // The parser drops fractions of a byte, so the printed size may be another amount than the text.
            assert!(
                text.contains(['.', 'm']) || same_amount(&text, &bytes.to_quantity()),
                "{text:?}"
            );
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}

/// The value of digits followed by a unit, computed without the parser. `None` for other forms.
fn whole_size(text: &str) -> Option<u128> {
    let (digits, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let factor = match unit {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    digits
        .parse::<u64>()
        .ok()
        .map(|number| u128::from(number) * factor)
}

#[test]
#[should_panic(expected = "is printed as")]
fn size_printed_as_another_size_is_detected() {
    check_quantity(b"1001", |bytes| format!("{} kB", bytes.0 / 1000));
}
