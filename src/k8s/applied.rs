//! (pure) Whether an object has the fields that a controller applies.

use serde_json::Value;

/// Whether `present` has all fields of `desired` with the same values. Other fields are defaults, or belong to other programs. Lists must
/// have the same length. Quantities must be in canonical form, and empty maps and lists must be left out of `desired`.
#[must_use]
pub fn contains(present: &Value, desired: &Value) -> bool {
    match (present, desired) {
        (Value::Object(present), Value::Object(desired)) => {
            let has = |(name, desired): (&String, &Value)| {
                present
                    .get(name)
                    .is_some_and(|present| contains(present, desired))
            };
            desired.iter().all(has)
        }
        (Value::Array(present), Value::Array(desired)) => {
            let mut pairs = present.iter().zip(desired);
            present.len() == desired.len()
                && pairs.all(|(present, desired)| contains(present, desired))
        }
        (present, desired) => present == desired,
    }
}

#[cfg(test)]
mod tests {
    use super::contains;
    use serde_json::json;

    #[test]
    fn defaults_are_ignored_and_changes_are_found() {
        let desired = json!({"a": 1, "list": [{"b": "x"}]});
        assert!(contains(
            &json!({"a": 1, "list": [{"b": "x", "c": 2}], "d": {}}),
            &desired
        ));
        for present in [
            json!({"list": [{"b": "x"}]}),
            json!({"a": 1, "list": [{"b": "y"}]}),
            json!({"a": 1, "list": []}),
            json!({"a": 1, "list": [{"b": "x"}, {}]}),
        ] {
            assert!(!contains(&present, &desired), "{present}");
        }
    }
}
