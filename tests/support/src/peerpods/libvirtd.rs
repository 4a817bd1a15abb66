//! libvirtd, as far as the controller calls it. Domains and volumes are ConfigMaps, so that the history of a run has their states.
//!
//! A domain has the keys `name`, `state` and `volumes`, a volume `path` and `backing`. The name of the ConfigMap is the UUID or the name.

use super::ec2::{CONTROLLER, ENDED_BY, change, config_maps};
use crate::components;
use crate::fault::Fault;
use crate::layer::Layer;
use crate::timings;
use kube::api::{Api, DeleteParams, DynamicObject};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use vm_operator::api::peerpod::LibvirtUuid;
use vm_operator::k8s::leader::Leadership;

/// Time for an answer. With it, the first leadership ends while an instance is deleted.
const LATENCY: Duration = Duration::from_millis(150);

const PROGRAM: u32 = 0x2000_8086;

/// The procedures with their numbers.
const PROCEDURES: [(u32, &str); 16] = [
    (1, "ConnectOpen"),
    (7, "ConnectGetCapabilities"),
    (14, "DomainGetXmlDesc"),
    (24, "DomainLookupByUuid"),
    (35, "DomainUndefine"),
    (66, "AuthList"),
    (84, "StoragePoolLookupByName"),
    (94, "StorageVolDelete"),
    (95, "StorageVolLookupByName"),
    (97, "StorageVolLookupByPath"),
    (99, "StorageVolGetXmlDesc"),
    (231, "DomainUndefineFlags"),
    (234, "DomainDestroyFlags"),
    (273, "ConnectListAllDomains"),
    (281, "ConnectListAllStoragePools"),
    (282, "StoragePoolListAllVolumes"),
];

/// Numbers of errors.
mod code {
    pub const INTERNAL_ERROR: u32 = 1;
    pub const NO_SUPPORT: u32 = 3;
    pub const NO_DOMAIN: u32 = 42;
    pub const AUTH_FAILED: u32 = 45;
    pub const NO_STORAGE_VOL: u32 = 50;
    pub const OPERATION_INVALID: u32 = 55;
    pub const ACCESS_DENIED: u32 = 88;
}

/// The body of an answer, or the number of an error with its message.
type Answer = Result<Vec<u8>, (u32, String)>;

/// A host.
pub struct Libvirtd {
    layer: Layer,
    leadership: Leadership,
    objects: Api<DynamicObject>,
    has_domains: bool,
}

impl Libvirtd {
    /// The host with the domains and volumes of that namespace, or another one.
    pub fn new(layer: &Layer, namespace: &str, leadership: Leadership, has_domains: bool) -> Self {
        Self {
            layer: layer.clone(),
            leadership,
            objects: components::api(layer.server(), "ConfigMap", Some(namespace)),
            has_domains,
        }
    }

    /// Serves a connection. Its calls pass the layer.
    pub async fn serve(self, mut stream: DuplexStream) {
        while let Ok(length) = stream.read_u32().await {
            let mut message = vec![0; length as usize - 4];
            stream.read_exact(&mut message).await.unwrap();
            let call = Call::of(&message);
            self.require(self.leadership.leads(), "a call without leadership");
            let answer = self.answer(&call);
            let answer = self.layer.call(call.name, answer, |it| call.rejection(it));
            let answer = tokio::select! {
                biased;
                answer = answer => answer,
                // The controller waits no longer.
                _ = stream.read_u8() => return,
            };
            let Ok(answer) = answer else { return };
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
    }

    /// An operator that violates this does not survive it. Its end is visible in the run, other than a panic of this task.
    fn require(&self, is_right: bool, violation: &str) {
        if !is_right {
            self.layer.disconnect();
            panic!("{violation}");
        }
    }

    /// The answer, after the call has taken effect.
    async fn answer(&self, call: &Call<'_>) -> Vec<u8> {
        tokio::time::sleep(LATENCY).await;
        call.reply(self.act(call).await)
    }

    async fn act(&self, call: &Call<'_>) -> Answer {
        let mut all = config_maps(&self.objects).await;
        all.retain(|(_, data)| self.has_domains && data["state"] != "terminated");
        let target = call.target();
        let is_target = |(id, data): &&(String, Value)| {
            *id == target || data["name"] == target || data["path"] == target
        };
        let domains = || all.iter().filter(|(_, data)| data["state"].is_string());
        let volumes = || all.iter().filter(|(_, data)| data["path"].is_string());
        let none = |code, kind: &str| (code, format!("there is no {kind} {target}"));
        let own_domain = domains().find(is_target);
        let own_domain = own_domain.ok_or_else(|| none(code::NO_DOMAIN, "domain"));
        let own_volume = volumes().find(is_target);
        let own_volume = own_volume.ok_or_else(|| none(code::NO_STORAGE_VOL, "volume"));
        Ok(match call.name {
            "AuthList" => [number(1), number(0)].concat(),
            "ConnectOpen" => Vec::new(),
            "ConnectGetCapabilities" => {
                let uuid = LibvirtUuid([u8::from(self.has_domains); 16]);
                text(&format!(
                    "<capabilities><host><uuid>{uuid}</uuid></host></capabilities>"
                ))
            }
            "ConnectListAllDomains" => list(domains().map(domain).collect()),
            "ConnectListAllStoragePools" => list(vec![pool()]),
            "StoragePoolListAllVolumes" => list(volumes().map(volume).collect()),
            "StoragePoolLookupByName" => pool(),
            "StorageVolLookupByName" | "StorageVolLookupByPath" => volume(own_volume?),
            "StorageVolGetXmlDesc" => {
                let (_, data) = own_volume?;
                let backing = data["backing"]
                    .as_str()
                    .map(|path| format!("<backingStore><path>{path}</path></backingStore>"));
                let (path, backing) = (data["path"].as_str().unwrap(), backing.unwrap_or_default());
                text(&format!(
                    "<volume><target><path>{path}</path></target>{backing}</volume>"
                ))
            }
            "StorageVolDelete" => {
                let (id, data) = own_volume?;
                let has_domain = domains().any(|(_, it)| paths(it).any(|it| data["path"] == it));
                let is_base = volumes().any(|(_, it)| it["backing"] == data["path"]);
                self.require(
                    !has_domain && !is_base,
                    "a volume is deleted that is in use",
                );
                let params = DeleteParams::default();
                self.objects.delete(id, &params).await.unwrap();
                Vec::new()
            }
            "DomainLookupByUuid" => domain(own_domain?),
            "DomainGetXmlDesc" => {
                let disks =
                    paths(&own_domain?.1).map(|it| format!("<disk><source file='{it}'/></disk>"));
                text(&format!(
                    "<domain><devices>{}</devices></domain>",
                    disks.collect::<String>()
                ))
            }
            "DomainDestroyFlags" => {
                let (id, data) = own_domain?;
                if data["state"] != "running" {
                    return Err((code::OPERATION_INVALID, "it is not running".to_owned()));
                }
                let state = match data["transient"] == "true" {
                    true => "terminated",
                    false => "shut off",
                };
                let time = timings::now().to_string();
                let ends =
                    json!({"state": state, "transient": null, ENDED_BY: CONTROLLER, "time": time});
                change(&self.objects, id, ends).await;
                Vec::new()
            }
            "DomainUndefine" | "DomainUndefineFlags" => {
                let (id, data) = own_domain?;
                // A domain that is running remains until its stop.
                let undefined = match data["state"] == "running" {
                    true => json!({"transient": "true"}),
                    false => json!({"state": "terminated"}),
                };
                change(&self.objects, id, undefined).await;
                Vec::new()
            }
            name => panic!("{name}"),
        })
    }
}

/// A call.
struct Call<'a> {
    procedure: u32,
    name: &'static str,
    serial: u32,
    arguments: &'a [u8],
}

impl<'a> Call<'a> {
    /// The call in a message: program, version, procedure, type, serial, status, arguments.
    fn of(message: &'a [u8]) -> Self {
        let (header, arguments) = message.split_at(24);
        let word = |n: usize| u32::from_be_bytes(header[4 * n..][..4].try_into().unwrap());
        assert_eq!([word(0), word(1), word(3), word(5)], [PROGRAM, 1, 0, 0]);
        let procedure = word(2);
        let known = PROCEDURES.iter().find(|it| it.0 == procedure);
        let name = known.unwrap_or_else(|| panic!("procedure {procedure}")).1;
        Self {
            procedure,
            name,
            serial: word(4),
            arguments,
        }
    }

    /// The UUID, the name or the path of the domain or volume that the call is about.
    fn target(&self) -> String {
        let text = |bytes| split_text(bytes).0;
        match self.name {
            "DomainLookupByUuid" => LibvirtUuid(self.arguments.try_into().unwrap()).to_string(),
            // The name of the pool comes first, with its UUID if it is that of a pool.
            "StorageVolDelete" | "StorageVolGetXmlDesc" => text(split_text(self.arguments).1),
            "StorageVolLookupByName" => text(&split_text(self.arguments).1[16..]),
            "StorageVolLookupByPath" => text(self.arguments),
            name if name.starts_with("Domain") => text(self.arguments),
            _ => "none".to_owned(),
        }
    }

    fn reply(&self, answer: Answer) -> Vec<u8> {
        let (status, body) = match answer {
            Ok(body) => (0, body),
            // The second number is the part of libvirt. The third one says that there is a message.
            Err((code, message)) => {
                let body = [number(code), number(0), number(1), text(&message)];
                (1, body.concat())
            }
        };
        let length = u32::try_from(body.len() + 28).unwrap();
        let header = [length, PROGRAM, 1, self.procedure, 1, self.serial, status];
        [header.map(u32::to_be_bytes).concat(), body].concat()
    }

    /// The answer with a fault. Codes other than those of logins and permissions stand for a procedure that the host does not have, a state in
    /// which it is impossible, and other errors.
    fn rejection(&self, fault: Fault) -> Vec<u8> {
        let code = match fault {
            // The host demands a login.
            Fault::Refused(401) if self.name == "AuthList" => {
                return self.reply(Ok([number(1), number(1)].concat()));
            }
            Fault::Refused(401) => code::AUTH_FAILED,
            Fault::Refused(403) => code::ACCESS_DENIED,
            Fault::Refused(429) => code::NO_SUPPORT,
            Fault::Refused(503) => code::OPERATION_INVALID,
            Fault::Refused(_) => code::INTERNAL_ERROR,
            _ => return b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        };
        self.reply(Err((code, "rejected by the test".to_owned())))
    }
}

/// The first text, and the rest.
fn split_text(bytes: &[u8]) -> (String, &[u8]) {
    let (length, rest) = bytes.split_first_chunk::<4>().unwrap();
    let length = u32::from_be_bytes(*length) as usize;
    let text = String::from_utf8(rest[..length].to_vec()).unwrap();
    (text, &rest[length.next_multiple_of(4)..])
}

fn number(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = number(u32::try_from(text.len()).unwrap());
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn list(items: Vec<Vec<u8>>) -> Vec<u8> {
    let count = number(u32::try_from(items.len()).unwrap());
    [count.clone(), items.concat(), count].concat()
}

fn pool() -> Vec<u8> {
    [text("default"), vec![0; 16]].concat()
}

fn domain((id, data): &(String, Value)) -> Vec<u8> {
    let uuid: LibvirtUuid = id.parse().unwrap();
    let number_of = match data["state"] == "running" {
        true => 1,
        false => u32::MAX,
    };
    let name = text(data["name"].as_str().unwrap());
    [name, uuid.0.to_vec(), number(number_of)].concat()
}

fn volume((id, data): &(String, Value)) -> Vec<u8> {
    let path = data["path"].as_str().unwrap();
    [text("default"), text(id), text(path)].concat()
}

/// The paths of the volumes of a domain.
fn paths(domain: &Value) -> impl Iterator<Item = &str> {
    domain["volumes"].as_str().unwrap().split(' ')
}
