//! A bridge of the node.

use std::process::Command;

/// A bridge of the node, which is this machine, without an address. Dropping it removes it.
pub struct Bridge(&'static str);

impl Bridge {
    /// Creates the bridge. A bridge of a killed run is replaced.
    pub fn make(name: &'static str) -> Self {
        drop(Self(name));
        assert!(ip(&["link", "add", name, "type", "bridge"]).is_ok());
        let bridge = Self(name);
        assert!(ip(&["link", "set", name, "up"]).is_ok());
        bridge
    }

    /// The interfaces on it, one per line.
    pub fn members(&self) -> Vec<String> {
        let links = ip(&["-o", "link", "show", "master", self.0]).unwrap();
        links.lines().map(str::to_owned).collect()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        drop(ip(&["link", "delete", self.0]));
    }
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}
