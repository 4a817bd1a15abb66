//! (pure) What a guest's agent says, as far as it is told to others.
//!
//! What always holds: whatever a guest says, what is kept of it is short.

use serde_json::{Map, Value};
use std::net::IpAddr;

/// Most that is kept of a list, and of a text.
const MOST: usize = 16;
const LONGEST: usize = 256;

/// What the guest's system is: names and short texts, which is all that `guest-get-osinfo` has.
pub fn osinfo(said: Map<String, Value>) -> Map<String, Value> {
    let is_short =
        |name: &str, value: &Value| name.len() <= 64 && value.as_str().is_some_and(|text| text.len() <= LONGEST);
    said.into_iter().filter(|(name, value)| is_short(name, value)).take(MOST).collect()
}

/// The addresses of all interfaces, in their order, each once; without those that only the guest itself can use.
pub fn addresses(interfaces: &Value) -> Vec<String> {
    let interfaces = interfaces.as_array().into_iter().flatten();
    let entries = interfaces.filter_map(|interface| interface.get("ip-addresses")?.as_array()).flatten();
    let texts = entries.filter_map(|entry| entry.get("ip-address")?.as_str());
    let mut addresses: Vec<String> = Vec::new();
    for address in texts.filter_map(|text| text.parse::<IpAddr>().ok()).filter(is_of_use) {
        let text = address.to_string();
        if !addresses.contains(&text) && addresses.len() < MOST {
            addresses.push(text);
        }
    }
    addresses
}

fn is_of_use(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_link_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_that_others_can_use_are_told_once() {
        let of = |addresses: &[&str]| json!({"ip-addresses": addresses.iter().map(|a| json!({"ip-address": a})).collect::<Vec<_>>()});
        let interfaces = json!([
            of(&["127.0.0.1", "::1"]), of(&["10.0.2.15", "fe80::5054:ff:fe12:3456", "2001:DB8::1"]), {"name": "down"},
            of(&["10.0.2.15", "169.254.1.1", "x", ""]), 7,
        ]);
        assert_eq!(addresses(&interfaces), ["10.0.2.15", "2001:db8::1"]);
        assert_eq!(addresses(&json!({"a": 1})), Vec::<String>::new());
    }

    #[test]
    fn a_guest_that_says_much_is_kept_short() {
        let many: Vec<_> = (0..1000).map(|n| json!({"ip-address": format!("10.0.{}.{}", n / 256, n % 256)})).collect();
        assert_eq!(addresses(&json!([{"ip-addresses": many}])).len(), MOST);
        let mut said = json!({"id": "tiny", "name": "x".repeat(1 << 16), "nested": {"a": [1]}});
        assert_eq!(osinfo(said.as_object().unwrap().clone()), *json!({"id": "tiny"}).as_object().unwrap());
        for n in 0..1000 {
            said[format!("k{n}")] = json!("v");
        }
        assert_eq!(osinfo(said.as_object().unwrap().clone()).len(), MOST);
    }
}
