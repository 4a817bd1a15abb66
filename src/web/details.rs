//! (pure) The details of one VM on a page.

use crate::api::VirtualMachine;
use crate::api::pool::Why;
use crate::api::vm::{Disk, Network};
use crate::web::MANAGER;
use crate::web::rights::Viewer;
use crate::web::size::Size;
use crate::web::view::{MachineView, VmView, shortened};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use strum::VariantNames;

/// Events on a page.
const EVENTS_MAX: usize = 50;

/// Reasons of events with addresses of users. Events with names of users have the reasons of [`Why`], or are about actions.
const CONSOLE_REASONS: [&str; 2] = ["ConsoleConnected", "ConsoleDisconnected"];

/// Addresses on a page.
const ADDRESSES_MAX: usize = 16;

/// A VM with the fields that only its details have.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VirtualMachine)]
#[allow(missing_docs)]
pub struct DetailedVm {
    pub metadata: ObjectMeta,
    pub spec: DetailedSpec,
    #[serde(default)]
    pub status: DetailedStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct DetailedStatus {
    #[serde(rename = "guestIPs")]
    pub guest_ips: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct DetailedSpec {
    pub vm: DetailedMachine,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct DetailedMachine {
    /// As the API server has it: the stored VM can be older than a change of the size.
    #[serde(flatten)]
    pub machine: MachineView,
    pub disks: Vec<Disk>,
    pub networks: Vec<Network>,
}

/// The details of a VM. It has all fields that leave the console.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    size: Size,
    may_resize: bool,
    used_cpus: u64,
    used_ram: u64,
    disks: Vec<DiskRow>,
    networks: Vec<NetworkRow>,
    /// IP addresses of the guest.
    addresses: Vec<String>,
    events: Vec<EventRow>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DiskRow {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<String>,
    is_cd: bool,
}

#[derive(Debug, Serialize)]
struct NetworkRow {
    name: String,
    /// None for a network behind the address of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    bridge: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Time>,
    is_warning: bool,
    /// Whether a console has written the event about an action of a user.
    is_by_user: bool,
    reason: String,
    note: String,
    count: i32,
}

impl Details {
    /// The details of the VM with these objects.
    #[must_use]
    pub fn of(vm: &VmView, viewer: &Viewer<'_>, detailed: &DetailedVm, events: Vec<Event>) -> Self {
        let events = events.into_iter().map(EventRow::of);
        let is_shown = |event: &EventRow| viewer.sees_all() || !event.is_about_users();
        let mut events: Vec<_> = events.filter(is_shown).collect();
        events.sort_by_key(|event| std::cmp::Reverse(event.time.as_ref().map(|time| time.0)));
        events.truncate(EVENTS_MAX);
        let (machine, addresses) = (&detailed.spec.vm, detailed.status.guest_ips.iter());
        let addresses = addresses.take(ADDRESSES_MAX);
        let mut claims = 0;
        let disks = machine.disks.iter().map(|disk| {
            let row = DiskRow::of(disk, claims);
            claims += usize::from(!row.is_cd);
            row
        });
        Self {
            size: machine.machine.size(),
            may_resize: viewer.may_resize(),
            used_cpus: vm.used().0,
            used_ram: vm.used().1,
            disks: disks.collect(),
            networks: machine.networks.iter().map(NetworkRow::of).collect(),
            addresses: addresses.map(|it| shortened(it).to_owned()).collect(),
            events,
        }
    }
}

impl DiskRow {
    /// The disk after that number of disks that are no CD drives.
    fn of(disk: &Disk, claims: usize) -> Self {
        if let Some(cdrom) = &disk.cdrom {
            // The other parts of a URL can have a password.
            let path = cdrom.image.split(['?', '#']).next().unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default();
            return Self {
                name: shortened(name).to_owned(),
                size: None,
                is_cd: true,
            };
        }
        let template = disk.volume_claim_template.as_ref();
        let name = template.and_then(|template| template.metadata.as_ref()?.name.clone());
        let resources = template.and_then(|template| template.spec.as_ref()?.resources.as_ref());
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        let size = requests.and_then(|requests| requests.get("storage"));
        Self {
            name: name.unwrap_or_else(|| format!("disk-{claims}")),
            size: size.map(|size| shortened(&size.0).to_owned()),
            is_cd: false,
        }
    }
}

impl NetworkRow {
    fn of(network: &Network) -> Self {
        let bridge = network.tap.as_ref().map(|tap| tap.bridge.clone());
        let name = network.name.clone().or_else(|| bridge.clone());
        Self {
            name: name.unwrap_or_else(|| "user".to_owned()),
            bridge,
        }
    }
}

impl EventRow {
    fn of(event: Event) -> Self {
        let (series, created) = (event.series.as_ref(), event.creation_timestamp());
        let newest = series.map(|series| Time(series.last_observed_time.0));
        let first = event.event_time.as_ref().map(|time| Time(time.0));
        let time = newest.or(event.deprecated_last_timestamp).or(first);
        let count = series.map(|series| series.count).or(event.deprecated_count);
        let text = |text: Option<String>| shortened(&text.unwrap_or_default()).to_owned();
        Self {
            time: time.or(created),
            is_warning: event.type_.as_deref() == Some("Warning"),
            is_by_user: event.reporting_controller.as_deref() == Some(MANAGER.reporter),
            count: count.unwrap_or(1),
            reason: text(event.reason),
            note: text(event.note),
        }
    }

    /// Whether the event can name other users, or their addresses.
    fn is_about_users(&self) -> bool {
        let reason = self.reason.as_str();
        self.is_by_user || Why::VARIANTS.contains(&reason) || CONSOLE_REASONS.contains(&reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::web::WebSettings;
    use crate::web::rights::Capability;
    use serde_json::{Value, from_value, json, to_value};

    #[test]
    fn details_have_the_newest_events_and_no_secret_of_a_disk() {
        let event = |n: usize| {
            let time = format!("2026-01-01T00:{n:02}:00Z");
            json!({"metadata": {"name": "e"}, "deprecatedLastTimestamp": time, "reason": format!("R{n}"), "note": "x".repeat(2000)})
        };
        let series = json!({"count": 7, "lastObservedTime": "2026-01-02T00:00:00.000000Z"});
        let mut events: Vec<Value> = (0..60).map(event).collect();
        events.push(json!({"metadata": {}, "type": "Warning", "reason": "Series", "series": series, "eventTime": "2026-01-01T00:00:00.000000Z"}));
        let disk = json!({"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "20Gi"}}}});
        let image = "https://user:secret@example.org/iso/debian.iso?token=secret";
        let disks = json!([{"volumeClaimTemplate": disk}, {"cdrom": {"image": image}}, {"volumeClaimTemplate": {}}]);
        let networks =
            json!([{"user": {}}, {"tap": {}}, {"name": "lan", "tap": {"bridge": "br1"}}]);
        let vm = json!({"metadata": {"name": "vm"}, "spec": {"vm": {"maximumRam": "1 GiB", "disks": disks, "networks": networks}},
            "status": {"guestIPs": ["192.0.2.9"]}});
        let settings = WebSettings::default();
        let viewer = Viewer::new(&settings, "alice", &[]);
        let (view, detailed) = (from_value(vm.clone()).unwrap(), from_value(vm).unwrap());
        let events = from_value(json!(events)).unwrap();
        let details = to_value(Details::of(&view, &viewer, &detailed, events)).unwrap();
        let expected = json!([
            {"name": "system", "size": "20Gi", "isCd": false}, {"name": "debian.iso", "isCd": true},
            {"name": "disk-1", "isCd": false},
        ]);
        assert_eq!(details["disks"], expected);
        let expected = json!([
            {"name": "user"}, {"name": "br0", "bridge": "br0"}, {"name": "lan", "bridge": "br1"},
        ]);
        assert_eq!(details["networks"], expected);
        assert_eq!(details["addresses"], json!(["192.0.2.9"]));
        let newest = json!({"time": "2026-01-02T00:00:00Z", "isWarning": true, "isByUser": false, "reason": "Series", "note": "", "count": 7});
        assert_eq!(details["events"][0], newest);
        let reasons = details["events"].as_array().unwrap();
        assert_eq!((reasons.len(), &reasons[49]["reason"]), (50, &json!("R11")));
        assert_eq!(reasons[1]["note"].as_str().unwrap().len(), 1024);
    }

    #[test]
    fn only_viewers_of_all_vms_see_events_about_users() {
        let event =
            |reason| json!({"metadata": {}, "reason": reason, "note": "bob from 192.0.2.7"});
        let mut events = [
            "VmStarted",
            "Released",
            "Assigned",
            "ConsoleConnected",
            "Any",
        ]
        .map(event);
        events[4]["reportingController"] = json!(MANAGER.reporter);
        let vm = json!({"metadata": {"name": "vm"}, "spec": {"vm": {}}});
        let (view, detailed) = (from_value(vm.clone()).unwrap(), from_value(vm).unwrap());
        let settings = WebSettings::default();
        let mut viewer = Viewer::new(&settings, "alice", &[]);
        let mut reasons = |capability| {
            viewer.capabilities.insert(capability);
            let events = from_value(json!(events)).unwrap();
            let events = Details::of(&view, &viewer, &detailed, events).events;
            events.into_iter().map(|it| it.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(Capability::Portal), ["VmStarted"]);
        assert_eq!(reasons(Capability::Overview).len(), 5);
    }
}
