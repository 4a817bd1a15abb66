//! (pure) Files for SPICE viewers: `.vv` files of virt-viewer.

use crate::api::runner::viewer::Display;
use crate::settings::web::ViewerFiles;
use crate::web::view::SpiceView;
use serde::Serialize;
use std::net::IpAddr;

/// A file, and its content for people.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewerFile {
    file: String,
    host: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_seconds: Option<u32>,
}

/// The file for a display at one of these addresses. Keys and their order are those of the Java VM-Operator; an encrypted display has a
/// port and an authority for TLS. None if no address is known.
#[must_use]
pub fn create(
    spice: &SpiceView,
    (addresses, port): (&[IpAddr], u16),
    display: Display,
    options: ViewerFiles,
) -> Option<ViewerFile> {
    let preferred = addresses
        .iter()
        .find(|it| it.is_ipv6() == options.prefers_ipv6);
    let address = || preferred.or(addresses.first()).map(ToString::to_string);
    let host = spice
        .server
        .as_deref()
        .map(str::to_owned)
        .or_else(address)?;
    let port_key = if display.is_encrypted {
        "tls-port"
    } else {
        "port"
    };
    let proxy = spice.proxy_url.as_deref().filter(|url| !url.is_empty());
    // The line ends of a value in such a file are written like this.
    let authority = display
        .authority
        .map(|pem| pem.trim_end().replace('\n', "\\n"));
    let lines = [
        ("type", Some("spice".to_owned())),
        ("host", Some(host.clone())),
        (port_key, Some(port.to_string())),
        ("password", display.password.clone()),
        ("proxy", proxy.map(str::to_owned)),
        (
            "delete-this-file",
            options.deletes_itself.then(|| "1".to_owned()),
        ),
        ("ca", authority),
    ];
    let mut file = "[virt-viewer]\n".to_owned();
    for (key, value) in lines {
        let Some(value) = value else { continue };
        // A value of the VM cannot add keys.
        let value = value.replace(char::is_control, "");
        file.extend([key, "=", &value, "\n"]);
    }
    Some(ViewerFile {
        file,
        host,
        port,
        password: display.password,
        valid_seconds: display.valid_seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(
        server: Option<&str>,
        proxy: Option<&str>,
        display: Display,
        options: ViewerFiles,
    ) -> Option<String> {
        let spice = SpiceView {
            server: server.map(Into::into),
            proxy_url: proxy.map(Into::into),
        };
        let addresses = ["fd00::1", "10.0.0.1"].map(|text| text.parse().unwrap());
        create(&spice, (&addresses, 5910), display, options).map(|file| file.file)
    }

    #[test]
    fn file_has_the_keys_of_the_java_vm_operator_in_their_order() {
        let display = Display {
            password: Some("secret".to_owned()),
            ..Display::default()
        };
        let options = ViewerFiles {
            prefers_ipv6: false,
            deletes_itself: true,
        };
        let expected = "[virt-viewer]\ntype=spice\nhost=10.0.0.1\nport=5910\npassword=secret\nproxy=http://proxy:3128\ndelete-this-file=1\n";
        assert_eq!(
            file(None, Some("http://proxy:3128"), display, options).unwrap(),
            expected
        );
        let options = ViewerFiles {
            prefers_ipv6: true,
            deletes_itself: false,
        };
        let encrypted = Display {
            is_encrypted: true,
            authority: Some("BEGIN\nA\n".to_owned()),
            ..Display::default()
        };
        let expected = "[virt-viewer]\ntype=spice\nhost=fd00::1\ntls-port=5910\nca=BEGIN\\nA\n";
        assert_eq!(file(None, Some(""), encrypted, options).unwrap(), expected);
    }

    #[test]
    fn values_of_the_vm_add_no_keys_and_a_display_without_address_has_no_file() {
        let options = ViewerFiles {
            prefers_ipv6: false,
            deletes_itself: false,
        };
        let text = file(
            Some("vm.example\nproxy=http://evil"),
            None,
            Display::default(),
            options,
        );
        let expected = "[virt-viewer]\ntype=spice\nhost=vm.exampleproxy=http://evil\nport=5910\n";
        assert_eq!(text.unwrap(), expected);
        let none = create(
            &SpiceView::default(),
            (&[], 5900),
            Display::default(),
            options,
        );
        assert!(none.is_none());
    }
}
