//! Writes and their authors, from the API server's audit log.

use super::environment;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

/// The log since a position.
pub struct AuditLog {
    from: u64,
}

/// A write request.
#[derive(Clone, Debug)]
pub struct Write {
    /// The time of the request.
    pub at: Timestamp,
    /// `create`, `patch`, `update`, `delete` or `deletecollection`.
    pub verb: String,
    /// Such as `pods` or `vms/status`.
    pub resource: String,
    /// Namespace and name of the object.
    pub object: (String, String),
    /// The pod that sent it.
    pub pod: String,
    /// Whether it changes anything. A runner reads its VM by a write without changes.
    pub is_kept: bool,
}

impl AuditLog {
    /// The log from now on.
    pub fn from_now() -> Self {
        Self {
            from: fs::metadata(path())
                .map(|meta| meta.len())
                .unwrap_or_default(),
        }
    }

    /// All writes of a service account without events and the Lease.
    ///
    /// # Panics
    /// The log cannot be read.
    pub fn writes_by(&self, namespace: &str, account: &str) -> Vec<Write> {
        let apart = |write: &Write| ["events", "leases"].contains(&write.resource.as_str());
        self.all_writes_by(namespace, account)
            .into_iter()
            .filter(|write| !apart(write))
            .collect()
    }

    /// All writes of a service account.
    ///
    /// # Panics
    /// The log cannot be read.
    pub fn all_writes_by(&self, namespace: &str, account: &str) -> Vec<Write> {
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let entries = self.text();
        let entries = entries.lines().filter(|line| line.contains(&user));
        let entries = entries.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let entries = entries.filter(|entry| {
            entry["user"]["username"] == user && entry["stage"] == "ResponseComplete"
        });
        entries
            .filter_map(|entry| Write::read(&entry))
            .filter(|write| write.is_kept)
            .collect()
    }

    fn text(&self) -> String {
        let mut file = File::open(path())
            .unwrap_or_else(|e| panic!("{}: {e}; run `make cluster`", path().display()));
        // The log is rotated at 200 MB.
        let begins_anew = file.metadata().is_ok_and(|meta| meta.len() < self.from);
        file.seek(SeekFrom::Start(if begins_anew { 0 } else { self.from }))
            .unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }
}

impl Write {
    /// The write of an entry of the log, if it is one.
    pub fn read(entry: &Value) -> Option<Self> {
        let verb = entry["verb"].as_str()?;
        if !["create", "patch", "update", "delete", "deletecollection"].contains(&verb) {
            return None;
        }
        let object = &entry["objectRef"];
        let part = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let slash = if object["subresource"].is_string() {
            "/"
        } else {
            ""
        };
        let from = &entry["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
        Some(Self {
            at: entry["requestReceivedTimestamp"].as_str()?.parse().ok()?,
            verb: verb.to_owned(),
            resource: format!("{}{slash}{}", part("resource"), part("subresource")),
            object: (part("namespace"), part("name")),
            pod: from.as_str().unwrap_or_default().to_owned(),
            is_kept: !entry["requestURI"].as_str()?.contains("dryRun=All"),
        })
    }
}

fn path() -> std::path::PathBuf {
    environment::dir().join("logs/audit.log")
}
