//! Quantities in the canonical form in which an API server stores them: `2000m` becomes `2`, `1024Mi` becomes `1Gi`.

use serde_json::Value;

/// Decimal suffixes with their powers of ten, the largest first.
const DECIMAL: [(&str, u32); 10] = [
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("", 0),
    ("m", 3),
    ("u", 6),
    ("n", 9),
];
/// Binary suffixes with their powers of two, the largest first.
const BINARY: [(&str, u32); 6] = [
    ("Ei", 60),
    ("Pi", 50),
    ("Ti", 40),
    ("Gi", 30),
    ("Mi", 20),
    ("Ki", 10),
];

/// The canonical form, or `None` for other text. Exponents are not converted.
fn canonical(text: &str) -> Option<String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        // No test stores fractions of binary quantities.
        let bytes = whole.parse::<i128>().ok().filter(|_| fraction.is_empty())? << shift;
        let (name, shift) = BINARY.iter().find(|(_, shift)| bytes % (1 << shift) == 0)?;
        return Some(if bytes == 0 {
            "0".to_owned()
        } else {
            format!("{}{name}", bytes >> shift)
        });
    }
    let (name, power) = DECIMAL.iter().find(|(name, _)| *name == suffix)?;
    let is_small = matches!(*name, "m" | "u" | "n");
    // In billionths.
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    let exponent = 9 + if is_small {
        -i64::from(*power)
    } else {
        i64::from(*power)
    } - i64::try_from(fraction.len()).ok()?;
    let billionths = digits * 10_i128.checked_pow(u32::try_from(exponent).ok()?)?;
    if billionths == 0 {
        return Some("0".to_owned());
    }
    DECIMAL.iter().find_map(|(name, power)| {
        let unit = if matches!(*name, "m" | "u" | "n") {
            9 - power
        } else {
            9 + power
        };
        let unit = 10_i128.pow(unit);
        (billionths % unit == 0).then(|| format!("{}{name}", billionths / unit))
    })
}

/// Rewrites the values of a map of quantities, such as `limits`.
pub fn canonicalize(quantities: &mut Value) {
    let values = quantities
        .as_object_mut()
        .into_iter()
        .flat_map(|map| map.values_mut());
    for value in values {
        // Numbers are quantities, too.
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), ToOwned::to_owned);
        if let Some(canonical) = canonical(&text) {
            *value = canonical.into();
        }
    }
}

/// Rewrites `resources` of a container or PVC.
pub fn canonicalize_resources(owner: &mut Value) {
    for name in ["requests", "limits"] {
        if let Some(quantities) = owner
            .get_mut("resources")
            .and_then(|resources| resources.get_mut(name))
        {
            canonicalize(quantities);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn a_quantity_has_the_largest_unit_that_keeps_it_whole() {
        let cases = [
            ("2000m", "2"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("0.1", "100m"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1000M", "1G"),
            ("0", "0"),
            ("1073741824", "1073741824"),
        ];
        for (given, stored) in cases {
            assert_eq!(canonical(given).unwrap(), stored, "{given}");
        }
        assert_eq!(canonical("1e3"), None);
    }
}
