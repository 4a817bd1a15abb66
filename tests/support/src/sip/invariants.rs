//! Rules that hold in each revision of a run with `SIPClusters`.

use super::LABEL;
use crate::components::Entry;
use crate::enumeration::History;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::BTreeMap;

/// A `SIPCluster`.
#[derive(Default)]
struct Tenant {
    /// The number of wanted hosts, and the largest one so far.
    wanted: u64,
    wanted_max: u64,
    has_been_complete: bool,
    is_ending: bool,
    /// Whether a jump host gives access to BMCs.
    has_bmc: bool,
}

/// The course of a run, as far as the invariants need it.
#[derive(Default)]
struct Seen {
    clusters: BTreeMap<String, Tenant>,
    /// The cluster of each host; empty for a free one.
    hosts: BTreeMap<String, String>,
    /// The configuration of each load balancer.
    texts: BTreeMap<String, String>,
    /// The configuration with which each pod was created.
    pods: BTreeMap<String, String>,
    /// The key of the jump host.
    key: Option<Value>,
    found: Vec<String>,
}

fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name]
        .as_str()
        .unwrap_or_default()
}

fn names(configuration: &str, host: &str) -> bool {
    configuration.contains(&format!("server {host} "))
}

impl Seen {
    fn count(&self, cluster: &str) -> u64 {
        let of_cluster = self.hosts.values().filter(|of| *of == cluster);
        of_cluster.count() as u64
    }

    fn host(&mut self, entry: &Entry, name: &str) {
        let next = label(&entry.object, LABEL);
        let before = match entry.deleted {
            true => self.hosts.remove(name),
            false => self.hosts.get(name).cloned(),
        };
        let before = before.unwrap_or_default();
        if entry.deleted {
            return;
        }
        if before != next {
            let violation = match (&*before, next) {
                ("", cluster) => self.wrong_claim(cluster),
                (cluster, "") => self.wrong_release(cluster, name, &entry.object),
                (..) => Some(format!("host {name} moves from {before} to {next}")),
            };
            self.found.extend(violation);
        }
        self.hosts.insert(name.to_owned(), next.to_owned());
    }

    /// The violation by a host that gets labels, which is still counted as free.
    fn wrong_claim(&self, cluster: &str) -> Option<String> {
        let Some(tenant) = self.clusters.get(cluster) else {
            return Some(format!("a host joins {cluster}, which does not exist"));
        };
        if self.count(cluster) >= tenant.wanted_max {
            let wanted = tenant.wanted_max;
            return Some(format!("a host joins {cluster}, which has all {wanted}"));
        }
        let is_first = !tenant.has_been_complete && self.count(cluster) == 0;
        let is_short = is_first && self.count("") < tenant.wanted;
        is_short.then(|| format!("{cluster} begins its first claim with too few free hosts"))
    }

    fn wrong_release(&self, cluster: &str, name: &str, host: &Value) -> Option<String> {
        if self.clusters.get(cluster).is_none_or(|it| it.is_ending) {
            return None;
        }
        if !host["spec"]["consumerRef"].is_null() {
            return Some(format!(
                "host {name} has a consumer, and has lost its labels"
            ));
        }
        let is_used = self.pods.values().any(|text| names(text, name));
        is_used
            .then(|| format!("host {name} has lost its labels before a pod that uses it has ended"))
    }

    fn config_map(&mut self, object: &Value, name: &str) {
        let cluster = label(object, LABEL);
        let text = object["data"]["haproxy.cfg"].as_str();
        if let Some(text) = text {
            self.texts.insert(name.to_owned(), text.to_owned());
        }
        let config = object["data"]["config"].as_str().unwrap_or_default();
        let is_named = |host: &str| {
            text.is_some_and(|text| names(text, host)) || config.contains(&format!("Host {host}\n"))
        };
        let others = self.hosts.iter().filter(|(_, of)| *of != cluster);
        let named = others.filter(|(host, _)| is_named(host));
        let named =
            named.map(|(host, _)| format!("{name} names {host}, which is not in {cluster}"));
        self.found.extend(named);
    }

    fn secret(&mut self, object: &Value) {
        let data = &object["data"];
        let hosts = data["hosts.json"].as_str().unwrap_or_default();
        let hosts = String::from_utf8(STANDARD.decode(hosts).unwrap()).unwrap();
        let tenant = self.clusters.get(label(object, LABEL));
        if hosts.contains("qwertz") && !tenant.is_some_and(|it| it.has_bmc) {
            self.found
                .push("a password of a BMC is at a jump host without bmc".to_owned());
        }
        if data["hosts.json"].is_null() && self.key.get_or_insert(data.clone()) != data {
            self.found
                .push("the key of the jump host has changed".to_owned());
        }
    }

    fn cluster(&mut self, object: &Value, name: &str, is_ending: bool) {
        let tenant = self.clusters.entry(name.to_owned()).or_default();
        let counts = object["spec"]["nodes"].as_object().into_iter().flatten();
        let counts =
            counts.flat_map(|(_, role)| [&role["count"]["active"], &role["count"]["standby"]]);
        tenant.wanted = counts.filter_map(Value::as_u64).sum();
        tenant.wanted_max = tenant.wanted_max.max(tenant.wanted);
        tenant.has_been_complete = object["status"]["hasBeenComplete"] == true;
        tenant.is_ending = is_ending;
        tenant.has_bmc |= !object["spec"]["services"]["jumpHost"][0]["bmc"].is_null();
    }

    fn entry(&mut self, entry: &Entry) {
        let object = &entry.object;
        let name = object["metadata"]["name"].as_str().unwrap();
        let is_ending = entry.deleted || !object["metadata"]["deletionTimestamp"].is_null();
        let tenant = self.clusters.get(label(object, LABEL));
        let is_used = !is_ending && tenant.is_some_and(|tenant| !tenant.is_ending);
        match entry.kind {
            "BareMetalHost" => self.host(entry, name),
            "ConfigMap" if is_used => self.config_map(object, name),
            "Secret" if !is_ending && name.starts_with("jumphost") => self.secret(object),
            "Pod" if entry.deleted => drop(self.pods.remove(name)),
            "Pod" => {
                let service = label(object, "app.kubernetes.io/instance");
                let text = self.texts.get(service).cloned().unwrap_or_default();
                self.pods.entry(name.to_owned()).or_insert(text);
            }
            "SIPCluster" => self.cluster(object, name, is_ending),
            _ => {}
        }
    }
}

/// A host is in one cluster at most, and moves to no other one without becoming free. A load balancer names only hosts of its cluster, and a
/// host that leaves keeps its labels until no pod uses it. A cluster never has more hosts than it has ever wanted, and begins its first claim
/// only if enough hosts are free. A host with a consumer keeps its labels.
pub(super) fn judge(history: &History) -> Vec<String> {
    let mut seen = Seen::default();
    for entry in &history.history {
        seen.entry(entry);
    }
    seen.found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(kind: &'static str, name: &str, object: Value) -> Entry {
        let mut object = object;
        object["metadata"]["name"] = name.into();
        Entry {
            revision: 0,
            kind,
            deleted: false,
            object,
        }
    }

    fn found(entries: Vec<Entry>) -> Vec<String> {
        judge(&History {
            history: entries,
            deleted_by_others: 0,
            ended_as_expected: true,
        })
    }

    #[test]
    fn each_broken_rule_is_found() {
        let cluster = |name, active: u8| {
            let nodes = json!({"r": {"count": {"active": active}}});
            entry("SIPCluster", name, json!({"spec": {"nodes": nodes}}))
        };
        let host = |name, of: &str, consumer: Value| {
            let labels = match of {
                "" => json!({}),
                of => json!({LABEL: of}),
            };
            let object = json!({"metadata": {"labels": labels}, "spec": {"consumerRef": consumer}});
            entry("BareMetalHost", name, object)
        };
        let free = |name| host(name, "", Value::Null);
        let member = |name, of| host(name, of, Value::Null);
        let labels = json!({LABEL: "one", "app.kubernetes.io/instance": "lb"});
        let config = || {
            let data = json!({"haproxy.cfg": "server a 10.0.0.1"});
            entry(
                "ConfigMap",
                "lb",
                json!({"metadata": {"labels": labels}, "data": data}),
            )
        };
        let pod = entry("Pod", "pod", json!({"metadata": {"labels": labels}}));
        let one = || vec![cluster("one", 1), free("a"), member("a", "one")];
        let with = |more: Vec<Entry>| found([one(), more].concat());
        assert_eq!(with(vec![config(), pod.clone()]), [""; 0]);
        for (more, part) in [
            (
                vec![cluster("two", 1), member("a", "two")],
                "moves from one to two",
            ),
            (vec![free("b"), member("b", "one")], "which has all 1"),
            (
                vec![cluster("two", 2), free("b"), member("b", "two")],
                "too few free hosts",
            ),
            (vec![free("a"), config()], "lb names a, which is not in one"),
            (vec![config(), pod, free("a")], "before a pod"),
            (vec![host("a", "", json!({}))], "has a consumer"),
        ] {
            let found = with(more);
            assert!(
                found.len() == 1 && found[0].contains(part),
                "{part}: {found:?}"
            );
        }
    }
}
