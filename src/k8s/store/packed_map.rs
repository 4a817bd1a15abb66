//! A map of strings in one allocation.

use std::collections::BTreeMap;

/// Labels or annotations of a stored object, in the order of their names. A `BTreeMap` takes 700 bytes for one entry, and two allocations
/// for each further one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedMap(Option<Box<str>>);

/// Ends each name and each value.
const END: char = '\0';

impl PackedMap {
    /// The value of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    /// Whether there is an entry of that name.
    #[must_use]
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Names and values.
    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut texts = self.0.as_deref().unwrap_or_default().split_terminator(END);
        std::iter::from_fn(move || texts.next().zip(texts.next()))
    }
}

impl FromIterator<(String, String)> for PackedMap {
    /// Entries that contain U+0000 are left out: no label can, and no annotation that a controller reads does.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(entries: I) -> Self {
        let mut text = String::new();
        for (name, value) in entries {
            if !name.contains(END) && !value.contains(END) {
                text.extend([name.as_str(), "\0", value.as_str(), "\0"]);
            }
        }
        Self((!text.is_empty()).then(|| text.into_boxed_str()))
    }
}

/// A map whose values are strings: [`PackedMap`] of stored objects, `BTreeMap` of objects that are written.
pub trait Texts {
    /// The value of that name.
    fn text(&self, name: &str) -> Option<&str>;
}

impl Texts for PackedMap {
    fn text(&self, name: &str) -> Option<&str> {
        self.get(name)
    }
}

impl Texts for BTreeMap<String, String> {
    fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_also_empty_ones_and_beside_unusable_ones() {
        let entries = [("a", "1"), ("b", "x\0c\0y"), ("d", ""), ("e", "2")];
        let entries = entries.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let packed: PackedMap = entries.into_iter().collect();
        let found = ["a", "b", "c", "d", "e", "1"].map(|name| packed.get(name));
        assert_eq!(found, [Some("1"), None, None, Some(""), Some("2"), None]);
        assert_eq!(packed.iter().count(), 3);
        assert_eq!(PackedMap::default(), PackedMap::from_iter([]));
    }
}
