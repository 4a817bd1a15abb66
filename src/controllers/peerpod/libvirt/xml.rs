//! (pure) The descriptions of domains, volumes and hosts.

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use serde::Deserialize;
use std::collections::BTreeSet;

/// A description that cannot be read, so that nothing follows from it.
#[derive(Debug)]
pub struct Unreadable;

#[derive(Deserialize)]
struct Capabilities {
    host: Host,
}

#[derive(Deserialize)]
struct Host {
    uuid: String,
}

/// The UUID of the host in its capabilities.
pub fn host_uuid(xml: &str) -> Result<String, Unreadable> {
    let read: Capabilities = quick_xml::de::from_str(xml).map_err(|_| Unreadable)?;
    Ok(read.host.uuid.trim().to_owned())
}

#[derive(Deserialize)]
struct Volume {
    target: Place,
    #[serde(rename = "backingStore")]
    backing: Option<Place>,
}

#[derive(Deserialize)]
struct Place {
    path: Option<String>,
}

/// The path of a volume, and that of the volume on which it is based.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// The path of the volume.
    pub path: Option<String>,
    /// The path of the backing volume.
    pub backing: Option<String>,
}

/// The paths in the description of a volume.
pub fn paths(xml: &str) -> Result<Paths, Unreadable> {
    let read: Volume = quick_xml::de::from_str(xml).map_err(|_| Unreadable)?;
    Ok(Paths {
        path: read.target.path,
        backing: read.backing.and_then(|it| it.path),
    })
}

/// All paths and volumes to which a domain refers in any element: attributes and texts with a slash, and `<pool>/<volume>`.
pub fn references(xml: &str) -> Result<BTreeSet<String>, Unreadable> {
    let (mut reader, mut found) = (Reader::from_str(xml), BTreeSet::new());
    let (mut text, mut depth) = (String::new(), 0u32);
    loop {
        match reader.read_event().map_err(|_| Unreadable)? {
            Event::Start(element) => {
                add(&element, &mut found)?;
                (text, depth) = (String::new(), depth + 1);
            }
            Event::Empty(element) => add(&element, &mut found)?,
            Event::Text(part) => text.push_str(&part),
            Event::CData(part) => text.push_str(&part),
            Event::GeneralRef(name) => {
                let name = format!("&{};", &*name);
                text.push_str(&unescape(&name).map_err(|_| Unreadable)?);
            }
            Event::End(_) => {
                found.insert(std::mem::take(&mut text).trim().to_owned());
                depth = depth.saturating_sub(1);
            }
            Event::Eof => break,
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
    found.retain(|it| it.contains('/'));
    // A description that is cut, or that is none, would hide references.
    (depth == 0 && xml.trim_end().ends_with("</domain>"))
        .then_some(found)
        .ok_or(Unreadable)
}

fn add(element: &BytesStart, found: &mut BTreeSet<String>) -> Result<(), Unreadable> {
    let (mut pool, mut volume) = (None, None);
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|_| Unreadable)?;
        let value = unescape(&attribute.value).map_err(|_| Unreadable)?;
        match attribute.key.as_ref() {
            "pool" => pool = Some(value.clone().into_owned()),
            "volume" => volume = Some(value.clone().into_owned()),
            _ => {}
        }
        found.insert(value.into_owned());
    }
    if let (Some(pool), Some(volume)) = (pool, volume) {
        found.insert(format!("{pool}/{volume}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_references_of_a_domain_are_found_and_a_cut_description_is_not_read() {
        let xml = "<domain type='qemu'><name>a</name><os><nvram template='/t'>/n&amp;v</nvram></os><devices>\
            <disk><source file=\"/a&apos;b\" index='1'/><backingStore><source file='/base'/></backingStore></disk>\
            <disk><source pool='p' volume='v'/></disk></devices></domain>\n";
        let expected = ["/a'b", "/base", "/n&v", "/t", "p/v"].map(str::to_owned);
        assert_eq!(references(xml).unwrap(), BTreeSet::from(expected));
        for wrong in [
            "",
            "<domain/>",
            "no description",
            &xml[..xml.len() - 2],
            &xml[..xml.len() / 2],
            "<domain></x></domain>",
            "<domain a=b></domain>",
        ] {
            references(wrong).unwrap_err();
        }
    }

    #[test]
    fn volumes_and_hosts_are_read() {
        let xml = "<volume type='file'><name>v</name><target><path>/p</path><format type='qcow2'/></target>\
            <backingStore><path>/b</path></backingStore></volume>";
        let of = |it: &str| Some(it.to_owned());
        let (path, backing) = (of("/p"), of("/b"));
        assert_eq!(paths(xml).unwrap(), Paths { path, backing });
        paths("<volume/>").unwrap_err();
        let xml = "<capabilities><host><uuid>u</uuid><cpu/></host><guest/></capabilities>";
        assert_eq!(host_uuid(xml).unwrap(), "u");
        host_uuid("<capabilities><host/></capabilities>").unwrap_err();
    }
}
