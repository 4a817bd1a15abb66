//! The API server's audit log, read while it is written. It is rotated at 200 MB, and continues after a restart of the
//! API server.

use crate::harness::{audit, environment};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The service accounts of this project.
const ACCOUNTS: [&str; 2] = ["vm-operator", "vm-reporter"];

/// A write request of operator or runner.
#[derive(Clone, Debug)]
pub struct Write {
    /// `vm-operator` or `vm-reporter`.
    account: String,
    /// The request.
    request: audit::Write,
    /// The status code of the response.
    code: u64,
}

/// The log of one namespace since a position.
pub struct Follow {
    namespace: String,
    file: File,
    rest: Vec<u8>,
    all: Vec<Write>,
}

fn path() -> PathBuf {
    environment::dir().join("logs/audit.log")
}

impl Follow {
    pub fn from_now(namespace: &str) -> Self {
        let file = File::open(path()).unwrap();
        std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)).unwrap();
        Self {
            namespace: namespace.to_owned(),
            file,
            rest: Vec::new(),
            all: Vec::new(),
        }
    }

    /// Reads new entries.
    pub fn read(&mut self) {
        self.file.read_to_end(&mut self.rest).unwrap();
        let begun_anew = fs::metadata(path()).is_ok_and(|now| {
            self.file
                .metadata()
                .is_ok_and(|ours| ours.ino() != now.ino())
        });
        if begun_anew && let Ok(file) = File::open(path()) {
            self.file = file;
            self.file.read_to_end(&mut self.rest).unwrap();
        }
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let lines: Vec<u8> = self.rest.drain(..=end).collect();
        for line in String::from_utf8_lossy(&lines)
            .lines()
            .filter(|line| line.contains(&self.namespace))
        {
            // A killed API server may leave half a line.
            self.all.extend(
                serde_json::from_str(line)
                    .ok()
                    .and_then(|entry| self.write(&entry)),
            );
        }
    }

    fn write(&self, entry: &Value) -> Option<Write> {
        let user = entry["user"]["username"].as_str()?;
        let account = user
            .strip_prefix(&format!("system:serviceaccount:{}:", self.namespace))?
            .to_owned();
        if !ACCOUNTS.contains(&account.as_str()) || entry["stage"] != "ResponseComplete" {
            return None;
        }
        let code = entry["responseStatus"]["code"].as_u64().unwrap_or_default();
        Some(Write {
            account,
            request: audit::Write::read(entry)?,
            code,
        })
    }

    /// All writes without dry runs, events and the Lease.
    fn of_objects(&self) -> impl Iterator<Item = &Write> {
        let apart = |write: &audit::Write| ["events", "leases"].contains(&write.resource.as_str());
        self.all
            .iter()
            .filter(move |write| write.request.is_kept && !apart(&write.request))
    }

    /// Their number.
    pub fn writes(&self) -> usize {
        self.of_objects().count()
    }

    /// The last of them.
    pub fn last(&self, n: usize) -> Vec<Write> {
        let all: Vec<&Write> = self.of_objects().collect();
        all.iter()
            .rev()
            .take(n)
            .rev()
            .map(|write| (*write).clone())
            .collect()
    }

    /// Those of one pod.
    pub fn by_pod(&self, pod: &str) -> Vec<Write> {
        self.of_objects()
            .filter(|write| write.request.pod == pod)
            .cloned()
            .collect()
    }

    /// The operator's writes to existing pods: verb, name and time.
    pub fn to_pods(&self) -> impl Iterator<Item = (&str, &str, Timestamp)> {
        let done = self
            .of_objects()
            .filter(|write| write.account == "vm-operator" && write.code < 300);
        let done = done
            .map(|write| &write.request)
            .filter(|write| write.resource.split('/').next() == Some("pods"));
        done.filter(|write| write.verb != "create")
            .map(|write| (write.verb.as_str(), write.object.1.as_str(), write.at))
    }

    /// The number of Lease writes of a pod.
    pub fn leases_by(&self, pod: &str) -> usize {
        self.all
            .iter()
            .filter(|write| write.request.pod == pod && write.request.resource == "leases")
            .count()
    }

    fn assert_no_write(&self, what: &str, is_so: impl Fn(&Write) -> bool) {
        let found: Vec<&Write> = self.all.iter().filter(|write| is_so(write)).collect();
        assert!(found.is_empty(), "{what}: {found:#?}");
    }

    /// Asserts the rules for all writes. `outages` has the times in which the API server was not ready.
    pub fn judge(&self, outages: &[Range<Timestamp>]) {
        assert!(self.writes() > 20, "the log knows of writes");
        self.assert_no_write("claims are never deleted", |write| {
            write.request.resource.starts_with("persistentvolumeclaims")
                && write.request.verb.starts_with("delete")
        });
        self.assert_no_write("a spec is the user's alone", |write| {
            write.request.resource == "vms"
        });
        self.assert_no_write("VMs are never deleted or created", |write| {
            write.request.resource.starts_with("vms")
                && ["create", "delete", "deletecollection"].contains(&write.request.verb.as_str())
        });
        self.assert_no_write("more than one object is deleted at a time", |write| {
            write.request.verb == "deletecollection"
        });
        self.assert_no_write("a runner writes to reports only", |write| {
            write.account == "vm-reporter" && write.request.resource != "vmreports/status"
        });
        // An API server that is not ready does not know roles yet. The runner of a deleted pod has no permissions any
        // more.
        self.assert_no_write("the operator has the rights that it needs", |write| {
            let is_known = !outages.iter().any(|time| time.contains(&write.request.at));
            write.account == "vm-operator" && write.code == 403 && is_known
        });
        self.assert_no_write(
            "no request is one that the API server cannot take",
            |write| [400, 415, 422].contains(&write.code),
        );
    }

    /// The number of writes by author and resource.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for write in self.of_objects() {
            *counts
                .entry(format!(
                    "{} {} {}",
                    write.account, write.request.verb, write.request.resource
                ))
                .or_default() += 1;
        }
        let counts: Vec<String> = counts
            .into_iter()
            .map(|(what, n)| format!("{what} {n}"))
            .collect();
        format!("writes: {}", counts.join(", "))
    }
}
