//! (pure) Jump hosts: OpenSSH without root, with the hosts of the cluster as names.
//!
//! All files of the pod are in volumes that follow their ConfigMap or Secret, so a change of keys or hosts needs no other pod.

use crate::api::SIPCluster;
use crate::api::sip::JumpHost;
use crate::controllers::sip::facts::Bmc;
use crate::controllers::sip::objects::child::{
    Child, ServiceObjects, container, empty_dir, hash, marked, mount, name, port, secret_volume,
    share_files, writable,
};
use crate::controllers::sip::objects::host_key::PRIVATE_KEY;
use crate::controllers::sip::plan::Placed;
use crate::k8s::error::Error;
use crate::settings::sip::SipSettings;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, KeyToPath, PodSpec, Probe, Secret,
    TCPSocketAction, Volume,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;
use std::net::IpAddr;

/// The port at which sshd listens, because port 22 needs root.
const PORT: i32 = 2222;
/// User and group of sshd and of all sessions: the user `ubuntu` of the image.
const USER: i64 = 1000;
/// The command `host` of the users.
const HOST_COMMAND: &str = include_str!("host.sh");

/// A file in a volume: its key in the ConfigMap, and its mode.
type File = (&'static str, i32);

const SSH_FILES: &[File] = &[("authorized_keys", 0o444), ("config", 0o444)];
const SIP_FILES: &[File] = &[("sshd_config", 0o444), ("host", 0o555)];

/// A host, as the command `host` reads it.
#[derive(Serialize)]
struct HostEntry<'a> {
    name: &'a str,
    role: &'a str,
    address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bmc: Option<Bmc<'a>>,
}

/// The jump hosts of the cluster. `has_secret` tells whether a Secret of that name exists.
///
/// # Errors
/// An object cannot be serialized.
pub fn jump_hosts(
    cluster: &SIPCluster,
    members: &[Placed],
    settings: &SipSettings,
    has_secret: &dyn Fn(&str) -> bool,
) -> Result<Vec<ServiceObjects>, Error> {
    let entries = cluster.spec.services.jump_host.iter().enumerate();
    let jump_host = |(index, entry): (usize, &JumpHost)| {
        let child = Child {
            cluster,
            entry: &entry.service,
            name: name("jumphost", cluster, index),
            component: "jumphost",
            program: "jumphost",
        };
        let keys = &entry.node_ssh_private_keys;
        let problem = (!keys.is_empty() && !has_secret(keys)).then(|| {
            format!("spec.services.jumpHost[{index}].nodeSSHPrivateKeys: Secret {keys} does not exist; create it, with a private key for the hosts in each key")
        });
        let objects = objects(&child, entry, members, settings)?;
        Ok(ServiceObjects { problem, ..objects })
    };
    entries.map(jump_host).collect()
}

fn objects(
    child: &Child,
    entry: &JumpHost,
    members: &[Placed],
    settings: &SipSettings,
) -> Result<ServiceObjects, Error> {
    let hosts = hosts(entry, members);
    let sshd_config = sshd_config(entry);
    let configuration = hash(&sshd_config);
    let texts = [
        ("sshd_config", sshd_config),
        ("host", HOST_COMMAND.to_owned()),
        (
            "authorized_keys",
            entry.ssh_authorized_keys.join("\n") + "\n",
        ),
        ("config", ssh_config(&hosts)),
    ];
    let config_map = ConfigMap {
        metadata: child.metadata(),
        data: Some(texts.map(|(name, text)| (name.to_owned(), text)).into()),
        ..ConfigMap::default()
    };
    let list = serde_json::to_vec(&hosts).map_err(|error| Error::Panic(error.to_string()))?;
    let secret = Secret {
        metadata: child.metadata(),
        data: Some([("hosts.json".to_owned(), ByteString(list))].into()),
        ..Secret::default()
    };
    let mut host_key = Secret {
        metadata: child.metadata(),
        ..Secret::default()
    };
    host_key.metadata.name = Some(host_key_name(child));
    let deployment = child.deployment(&configuration, 1, pod(child, entry, settings));
    Ok(ServiceObjects {
        name: child.name.clone(),
        cluster_ip: child.cluster_ip(),
        config_map: Some(marked(config_map)?),
        secret: Some(marked(secret)?),
        host_key: Some(host_key),
        deployment: marked(deployment)?,
        service: marked(child.service(vec![port("ssh", 22, PORT, entry.node_port)]))?,
        // With one pod, it would prevent each drain of the node.
        budget: None,
        problem: None,
        configuration,
    })
}

fn host_key_name(child: &Child) -> String {
    format!("{}-host-key", child.name)
}

/// The hosts of all roles. The credentials of a BMC are left out unless the entry requests them.
fn hosts<'a>(entry: &JumpHost, members: &'a [Placed]) -> Vec<HostEntry<'a>> {
    let interface = entry.service.node_interface_id.as_deref();
    let host = |it: &'a Placed| HostEntry {
        name: it.host.name,
        role: it.role,
        address: it.host.address(interface).ok(),
        bmc: entry.bmc.and_then(|_| it.host.bmc().ok()),
    };
    members.iter().map(host).collect()
}

/// sshd runs as the user of its sessions, so it cannot switch users, use PAM, or check who owns its files.
fn sshd_config(entry: &JumpHost) -> String {
    let proxy = match entry.bmc {
        Some(bmc) if !bmc.proxy => " NO_PROXY=*",
        _ => "",
    };
    format!(
        "Port {PORT}
HostKey /etc/opt/sip/host-key/{PRIVATE_KEY}
AuthorizedKeysFile /home/ubuntu/.ssh/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintLastLog no
SetEnv PATH=/opt/sip:/usr/local/bin:/usr/bin:/bin{proxy}
Include /etc/ssh/sshd_config.d/*.conf
"
    )
}

/// The names of the hosts. The private keys are listed when a connection begins, because their Secret can change at any time.
fn ssh_config(hosts: &[HostEntry]) -> String {
    let named = hosts.iter().filter_map(|host| {
        let address = host.address?;
        Some(format!("Host {}\n  HostName {address}\n", host.name))
    });
    let list = "cd /etc/opt/sip/ssh-private-keys && for key in $(ls); do echo IdentityFile $PWD/$key; done >/tmp/keys.$$ && mv /tmp/keys.$$ /tmp/keys";
    format!(
        "{}Host *
  StrictHostKeyChecking accept-new
  UserKnownHostsFile /tmp/known_hosts
Match exec \"{list}\"
  Include /tmp/keys
",
        named.collect::<String>()
    )
}

fn pod(child: &Child, entry: &JumpHost, settings: &SipSettings) -> PodSpec {
    let mounts = vec![
        mount("ssh", "/home/ubuntu/.ssh"),
        mount("sip", "/opt/sip"),
        mount("hosts", "/etc/opt/sip/hosts"),
        mount("host-key", "/etc/opt/sip/host-key"),
        mount("node-keys", "/etc/opt/sip/ssh-private-keys"),
        writable("tmp", "/tmp"),
    ];
    let command = ["/usr/sbin/sshd", "-D", "-e", "-f", "/opt/sip/sshd_config"];
    let container = Container {
        // Later connections of a probe would be in the log, each as a failed login.
        startup_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::Int(PORT),
                ..TCPSocketAction::default()
            }),
            period_seconds: Some(1),
            failure_threshold: Some(30),
            ..Probe::default()
        }),
        ..container("sshd", &command, "256Mi", mounts)
    };
    let keys = &entry.node_ssh_private_keys;
    let node_keys = match keys.as_str() {
        "" => empty_dir("node-keys"),
        keys => secret_volume("node-keys", keys, true),
    };
    let mut pod = child.pod(USER, &settings.images.jump_host, container);
    share_files(&mut pod, USER);
    pod.volumes = Some(vec![
        files("ssh", child, SSH_FILES),
        files("sip", child, SIP_FILES),
        secret_volume("hosts", &child.name, false),
        secret_volume("host-key", &host_key_name(child), false),
        node_keys,
        empty_dir("tmp"),
    ]);
    pod
}

fn files(volume: &str, child: &Child, files: &[File]) -> Volume {
    let item = |(name, mode): &File| KeyToPath {
        key: (*name).to_owned(),
        path: (*name).to_owned(),
        mode: Some(*mode),
    };
    Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: child.name.clone(),
            items: Some(files.iter().map(item).collect()),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}
