//! (pure) CPUs and memory that a VM may use.

use crate::api::quantity::Bytes;
use crate::api::vm::{CPUS_MAX, RAM_MIN};
use crate::web::view::{MachineView, VmView, shortened};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The size of a VM on a page.
#[derive(Debug, Serialize)]
pub struct Size {
    cpus: Amount,
    ram: Amount,
}

#[derive(Debug, Serialize)]
struct Amount {
    requested: String,
    limit: String,
}

/// The texts of the fields that the user has edited on a page.
#[derive(Debug, Deserialize)]
pub struct RequestedSize {
    cpus: Option<String>,
    ram: Option<String>,
}

impl RequestedSize {
    /// CPUs and memory in log lines.
    #[must_use]
    pub fn texts(&self) -> [Option<&str>; 2] {
        [&self.cpus, &self.ram].map(|text| text.as_deref().map(shortened))
    }
}

/// A field with a wrong value.
#[derive(Debug, PartialEq)]
pub struct Wrong {
    /// Name of the field.
    pub field: &'static str,
    /// Code of the error, for which the page has words.
    pub reason: &'static str,
    /// The value that is the highest or the lowest.
    pub limit: Option<String>,
}

impl MachineView {
    /// The number of CPUs, and its limit.
    fn cpus(&self) -> (u32, u32) {
        let number = |n: i64| u32::try_from(n.max(1)).unwrap_or(CPUS_MAX);
        let topology = self.cpu_topology.as_ref().map(|topology| topology.cpus());
        let maximum = topology.or(self.maximum_cpus.map(number));
        let current = self.current_cpus.map(number);
        // A VM without a maximum has the CPUs of its last start.
        let limit = maximum.unwrap_or(CPUS_MAX);
        let current = current.or(maximum).unwrap_or(1);
        // The operator raises the maximum to a greater current number.
        (current, limit.max(current))
    }

    /// The memory, and its limit.
    fn ram(&self) -> (Bytes, Bytes) {
        let size = |text: &Option<Box<str>>| text.as_ref()?.parse::<Bytes>().ok();
        let limit = size(&self.maximum_ram).unwrap_or(RAM_MIN);
        let current = size(&self.current_ram).unwrap_or(limit);
        (current.min(limit), limit)
    }

    /// The size on a page.
    #[must_use]
    pub fn size(&self) -> Size {
        let ((cpus, cpus_max), (ram, ram_max)) = (self.cpus(), self.ram());
        let amount = |requested: String, limit: String| Amount { requested, limit };
        Size {
            cpus: amount(cpus.to_string(), cpus_max.to_string()),
            ram: amount(ram.to_string(), ram_max.to_string()),
        }
    }

    /// The change of `spec.vm`. Equal values are left out and not checked, so that other writers retain their fields.
    ///
    /// # Errors
    /// A value is not a number, or outside of the limits.
    pub fn resize(&self, to: &RequestedSize) -> Result<Value, Wrong> {
        let (cpus, cpus_max) = self.cpus();
        let (ram, ram_max) = self.ram();
        let to_cpus = to.cpus.as_ref().map(|text| text.trim().parse().ok());
        let to_ram = to.ram.as_ref().map(|text| text.parse().ok());
        let mut change = Map::new();
        if let Some(to) = to_cpus.filter(|to| *to != Some(cpus)) {
            let to = check(("cpus", "NotANumber"), to, 1, cpus_max)?;
            change.insert("currentCpus".to_owned(), json!(to));
        }
        if let Some(to) = to_ram.filter(|to| *to != Some(ram)) {
            let to = check(("ram", "NotASize"), to, RAM_MIN, ram_max)?;
            change.insert("currentRam".to_owned(), json!(to.to_quantity()));
        }
        Ok(change.into())
    }
}

impl VmView {
    /// CPUs and bytes of memory that the VM uses. A runner reports them, so they are at most the limits of the VM.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        let ((_, cpus_max), (_, ram_max)) = (self.spec.vm.cpus(), self.spec.vm.ram());
        let Self { status, .. } = self;
        (status.cpus.min(cpus_max.into()), status.ram.min(ram_max.0))
    }
}

/// The value, if it is within the limits. The code is for a text without a value.
fn check<T: Ord + ToString>(
    (field, code): (&'static str, &'static str),
    value: Option<T>,
    lowest: T,
    highest: T,
) -> Result<T, Wrong> {
    let wrong = |reason, limit| {
        Err(Wrong {
            field,
            reason,
            limit,
        })
    };
    match value {
        None => wrong(code, None),
        Some(value) if value > highest => wrong("AboveLimit", Some(highest.to_string())),
        Some(value) if value < lowest => wrong("BelowLimit", Some(lowest.to_string())),
        Some(value) => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resize(vm: Value, cpus: &str, ram: &str) -> Result<Value, (&'static str, &'static str)> {
        let vm: MachineView = serde_json::from_value(vm).unwrap();
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (cpus, ram) = (text(cpus), text(ram));
        let resized = vm.resize(&RequestedSize { cpus, ram });
        resized.map_err(|wrong| (wrong.field, wrong.reason))
    }

    #[test]
    fn size_has_the_limits_of_the_spec() {
        let vm = json!({"maximumCpus": 4, "currentCpus": 2, "maximumRam": "4 GiB"});
        for (cpus, ram, expected) in [
            ("2", "4Gi", Ok(json!({}))),
            (" 4 ", "4096 MiB", Ok(json!({"currentCpus": 4}))),
            ("2", "1.5 GiB", Ok(json!({"currentRam": "1536Mi"}))),
            ("5", "4 GiB", Err(("cpus", "AboveLimit"))),
            ("0", "4 GiB", Err(("cpus", "BelowLimit"))),
            ("two", "4 GiB", Err(("cpus", "NotANumber"))),
            ("2", "5 GiB", Err(("ram", "AboveLimit"))),
            ("2", "4", Err(("ram", "BelowLimit"))),
            ("2", "much", Err(("ram", "NotASize"))),
            ("", "2 GiB", Ok(json!({"currentRam": "2Gi"}))),
            ("3", "", Ok(json!({"currentCpus": 3}))),
        ] {
            assert_eq!(resize(vm.clone(), cpus, ram), expected, "{cpus} {ram}");
        }
    }

    #[test]
    fn maximum_is_a_number_a_topology_or_absent() {
        let topology = json!({"cpuTopology": {"sockets": 2, "coresPerDie": 3}, "maximumRam": "1G"});
        assert_eq!(
            resize(topology.clone(), "6", "1G"),
            Ok(json!({})),
            "the default is the maximum"
        );
        assert_eq!(resize(topology, "7", "1G"), Err(("cpus", "AboveLimit")));
        let open = json!({"currentCpus": 2, "maximumRam": "1G"});
        assert_eq!(resize(open, "8", "1G"), Ok(json!({"currentCpus": 8})));
        let raised =
            json!({"maximumCpus": 2, "currentCpus": 4, "maximumRam": "1G", "currentRam": "1"});
        for (cpus, expected) in [
            ("4", Ok(json!({}))),
            ("3", Ok(json!({"currentCpus": 3}))),
            ("5", Err(("cpus", "AboveLimit"))),
        ] {
            assert_eq!(resize(raised.clone(), cpus, "1"), expected, "{cpus}");
        }
    }
}
