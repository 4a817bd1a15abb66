//! Domains of libvirt: the controller with its account on a real API server, and a real libvirtd with guests of QEMU.

mod check;

use crate::apiserver::peerpods::life::{Life, SEEN};
use crate::apiserver::peerpods::log::Log;
use crate::apiserver::world::{eventually, root};
use serde_json::{Value, json};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use vm_operator::settings::peerpod::Providers;

const HOST: &str = "11111111-2222-3333-4444-555555555555";
const GONE: &str = "99999999-2222-3333-4444-555555555555";

/// A boot sector that reports a panic to the device of QEMU for it: `mov dx, 0x505; mov al, 1; out dx, al; hlt`.
const PANIC: [u8; 9] = [0xba, 0x05, 0x05, 0xb0, 0x01, 0xee, 0xf4, 0xeb, 0xfd];

/// A host with libvirtd, and the controller.
struct Host {
    life: Life,
    directory: TempDir,
    server: Child,
}

impl Deref for Host {
    type Target = Life;

    fn deref(&self) -> &Life {
        &self.life
    }
}

fn serve(directory: &TempDir) -> Child {
    let log = std::fs::File::create(directory.path().join("log")).unwrap();
    Command::new(root().join("tests/libvirt"))
        .arg(directory.path())
        .arg(HOST)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

impl Host {
    async fn start(name: &str) -> Self {
        let life = Life::start(name, "libvirt").await;
        let directory = tempfile::tempdir().unwrap();
        let server = serve(&directory);
        let host = Self {
            life,
            directory,
            server,
        };
        host.serves().await;
        let pool = host.path("pool");
        std::fs::create_dir(&pool).unwrap();
        host.virsh(&format!(
            "pool-define-as default dir --target {}",
            pool.display()
        ))
        .await;
        host.virsh("pool-start default").await;
        host.volume("base.qcow2", "").await;
        host.volume("shared.iso", "").await;
        host
    }

    async fn serves(&self) {
        eventually("libvirtd answers", async || {
            let list = self.try_virsh("list").await;
            list.is_ok()
        })
        .await;
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn uri(&self) -> String {
        let socket = self.path("run/libvirt/libvirt-sock");
        format!("qemu+unix:///system?socket={}", socket.display())
    }

    async fn try_virsh(&self, command: &str) -> Result<String, String> {
        let mut virsh = Command::new("virsh");
        virsh
            .args(["--quiet", "--connect", &self.uri()])
            .args(command.split(' '));
        // The program can be missing until `tests/libvirt` has installed it.
        let output = virsh.env("LC_ALL", "C").output().await;
        let output = output.map_err(|error| error.to_string())?;
        let text = |bytes| String::from_utf8(bytes).unwrap().trim().to_owned();
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    async fn virsh(&self, command: &str) -> String {
        let output = self.try_virsh(command).await;
        output.unwrap_or_else(|error| panic!("virsh {command}: {error}"))
    }

    /// Creates a volume of the pool.
    async fn volume(&self, name: &str, options: &str) {
        let format = if name.ends_with("qcow2") {
            "qcow2"
        } else {
            "raw"
        };
        let command = format!("vol-create-as default {name} 1M --format {format} {options}");
        self.virsh(command.trim()).await;
    }

    /// Defines a domain with these volumes. Returns its UUID.
    async fn define(&self, name: &str, volumes: &[&str]) -> String {
        let disks = ["vda", "vdb", "vdc"].iter().zip(volumes);
        let disks = disks.map(|(device, volume)| {
            let path = self.path("pool").join(volume);
            let format = if volume.ends_with("qcow2") { "qcow2" } else { "raw" };
            let readonly = if volume.ends_with("iso") { "<readonly/>" } else { "" };
            format!(
                "<disk type='file'><driver name='qemu' type='{format}'/><source file='{}'/><target dev='{device}' bus='virtio'/>{readonly}</disk>",
                path.display()
            )
        });
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory><os><type>hvm</type></os><features><acpi/></features>\
             <on_crash>preserve</on_crash><devices>{}<panic model='isa'/></devices></domain>",
            disks.collect::<String>()
        );
        let file = self.path(&format!("{name}.xml"));
        std::fs::write(&file, xml).unwrap();
        self.virsh(&format!("define {}", file.display())).await;
        self.virsh(&format!("domuuid {name}")).await
    }

    /// Defines and starts a domain as the cloud-api-adaptor does, with two volumes. Returns its UUID.
    async fn instance(&self, name: &str) -> String {
        let (disk, seed) = (
            format!("{name}-root.qcow2"),
            format!("{name}-cloudinit.iso"),
        );
        self.volume(&disk, "--backing-vol base.qcow2 --backing-vol-format qcow2")
            .await;
        self.volume(&seed, "").await;
        let uuid = self.define(name, &[&disk, &seed, "shared.iso"]).await;
        self.virsh(&format!("start {name}")).await;
        uuid
    }

    async fn domains(&self) -> String {
        self.virsh("list --all --name")
            .await
            .replace('\n', " ")
            .trim()
            .to_owned()
    }

    /// The files of the pool.
    fn volumes(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.path("pool")).unwrap();
        let mut names: Vec<_> = files
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    async fn configure(&self, uri: &str) {
        self.write(
            "ConfigMap",
            "peer-pods-cm",
            "data",
            json!({"LIBVIRT_URI": uri}),
        )
        .await;
    }

    async fn operate(&mut self) {
        self.life.operate(Providers::default()).await;
    }
}

/// Creates a pair of keys. Returns the private one.
async fn keys(host: &Host, name: &str, kind: &str) -> String {
    let mut keygen = Command::new("ssh-keygen");
    keygen
        .args(["-q", "-N", "", "-t", kind, "-f"])
        .arg(host.path(name));
    assert!(keygen.status().await.unwrap().success());
    std::fs::read_to_string(host.path(name)).unwrap()
}

/// An SSH server in front of the host, with its keys.
struct SshServer {
    port: u16,
    /// The private key of the client.
    key: String,
    /// The public key of the server.
    host_key: String,
    _server: Child,
}

impl SshServer {
    async fn start(host: &Host) -> Self {
        keys(host, "host_key", "ed25519").await;
        let key = keys(host, "id_rsa", "rsa").await;
        std::fs::create_dir_all("/run/sshd").unwrap();
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let options = [
            format!("ListenAddress=127.0.0.1:{port}"),
            format!("HostKey={}", host.path("host_key").display()),
            format!("AuthorizedKeysFile={}", host.path("id_rsa.pub").display()),
            "PidFile=none".to_owned(),
            "StrictModes=no".to_owned(),
            "UsePAM=no".to_owned(),
        ];
        let mut server = Command::new("/usr/sbin/sshd");
        server.args(["-D", "-e", "-f", "/dev/null"]);
        server.args(options.iter().flat_map(|option| ["-o", option]));
        let log = std::fs::File::create(host.path("sshd.log")).unwrap();
        let server = server.stdin(Stdio::null()).stderr(log).kill_on_drop(true);
        let server = server.spawn().unwrap();
        eventually("the SSH server listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_ok()
        })
        .await;
        let host_key = std::fs::read_to_string(host.path("host_key.pub")).unwrap();
        Self {
            port,
            key,
            host_key,
            _server: server,
        }
    }

    fn uri(&self, host: &Host, options: &str) -> String {
        let socket = host.path("run/libvirt/libvirt-sock");
        let (port, socket) = (self.port, socket.display());
        format!("qemu+ssh://root@127.0.0.1:{port}/system?socket={socket}{options}")
    }
}

/// A note about an instance.
fn note(place: &str, name: &str, volumes: &[&str]) -> Value {
    json!({SEEN: json!({"place": place, "name": name, "volumes": volumes}).to_string()})
}

#[tokio::test(flavor = "multi_thread")]
async fn p18_p20_domain_of_libvirt_ends_with_its_pod_in_each_state_and_only_its_volumes_do() {
    let mut host = Host::start("libvirt-life").await;
    let running = host.instance("podvm-running-0123abcd").await;
    host.virsh("snapshot-create-as podvm-running-0123abcd before")
        .await;
    let saved = host.instance("podvm-saved-0123abcd").await;
    host.virsh("managedsave podvm-saved-0123abcd").await;
    // Only a domain without a definition is transient.
    let transient = host.instance("podvm-transient-0123abcd").await;
    host.virsh("undefine podvm-transient-0123abcd").await;
    host.volume("podvm-crashed-0123abcd-root.img", "").await;
    let mut sector = PANIC.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(1 << 20, 0);
    std::fs::write(host.path("pool/podvm-crashed-0123abcd-root.img"), sector).unwrap();
    let crashed = host
        .define(
            "podvm-crashed-0123abcd",
            &["podvm-crashed-0123abcd-root.img"],
        )
        .await;
    host.virsh("start podvm-crashed-0123abcd").await;
    eventually("the guest crashes", async || {
        host.virsh("domstate podvm-crashed-0123abcd").await == "crashed"
    })
    .await;
    // A volume with the name of the instance that another domain uses, and one that is the base of another volume.
    host.volume("podvm-running-0123abcd-root.used", "").await;
    host.volume("podvm-saved-0123abcd.base", "").await;
    host.volume(
        "other.qcow2",
        "--backing-vol podvm-saved-0123abcd.base --backing-vol-format raw",
    )
    .await;
    let used = [
        "podvm-running-0123abcd-root.used",
        "podvm-saved-0123abcd.base",
    ];
    host.define("other", &[used[0], "shared.iso"]).await;
    for (pod, volume) in ["running", "saved"].iter().zip(used) {
        let path = host.path("pool").join(volume);
        host.virsh(&format!(
            "attach-disk podvm-{pod}-0123abcd {} vdd --config",
            path.display()
        ))
        .await;
    }

    host.configure(&host.uri()).await;
    host.operate().await;
    let pods = [
        ("running", &running),
        ("saved", &saved),
        ("transient", &transient),
        ("crashed", &crashed),
    ];
    for (pod, uuid) in pods {
        host.pod(pod, uuid, json!({})).await;
        host.noted(pod).await;
    }
    let all = host.volumes();
    assert!(host.domains().await.contains("podvm-running-0123abcd"));
    for (pod, _) in pods {
        host.end(pod).await;
    }
    for (pod, _) in pods {
        host.released(pod).await;
    }
    assert_eq!(host.domains().await, "other");
    let rest = ["base.qcow2", "other.qcow2", used[0], used[1], "shared.iso"];
    assert_eq!(host.volumes(), rest, "{all:?}");
    let saved = std::fs::read_dir(host.path("var/lib/libvirt/qemu/save")).unwrap();
    assert_eq!(saved.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p19_p21_domains_and_volumes_of_libvirt_remain_without_a_proof() {
    let mut host = Host::start("libvirt-proof").await;
    let foreign = host.instance("podvm-foreign-0123abcd").await;
    let number = host.virsh("domid podvm-foreign-0123abcd").await;
    host.volume("podvm-half-0123abcd-root.qcow2", "").await;
    host.volume("podvm-half-0123abcd-12345678-root.qcow2", "")
        .await;
    host.configure("qemu+tls://host/system").await;
    host.operate().await;
    host.pod(
        "forged",
        &foreign,
        note(
            HOST,
            "podvm-forged-0123abcd",
            &["default/podvm-foreign-0123abcd-root.qcow2"],
        ),
    )
    .await;
    host.pod("another", &number, json!({})).await;
    host.pod("never", GONE, json!({})).await;
    let elsewhere = "00000000-2222-3333-4444-555555555555";
    host.pod(
        "elsewhere",
        "99999999-2222-3333-4444-000000000000",
        note(elsewhere, "podvm-elsewhere-0123abcd", &[]),
    )
    .await;
    // The domain is gone, but its volumes are not. The note also has other volumes.
    let volumes = [
        "default/podvm-half-0123abcd-root.qcow2",
        "default/podvm-half-0123abcd-12345678-root.qcow2",
        "default/base.qcow2",
        "default/../x",
        "gone/podvm-half-0123abcd.x",
    ];
    host.pod(
        "half",
        "99999999-0000-3333-4444-000000000000",
        note(HOST, "podvm-half-0123abcd", &volumes),
    )
    .await;
    host.pod(
        "thief",
        "99999999-1111-3333-4444-000000000000",
        note(
            HOST,
            "podvm-foreign-0123abcd",
            &["default/podvm-foreign-0123abcd-root.qcow2"],
        ),
    )
    .await;
    host.end("never").await;
    host.reports("never", "ConfigInvalid", "TLS").await;
    host.configure(&host.uri()).await;
    for pod in ["forged", "another", "elsewhere", "half", "thief"] {
        host.end(pod).await;
    }
    for pod in ["half", "thief"] {
        host.released(pod).await;
    }
    host.reports("forged", "InstanceNotOurs", "podvm-forged-")
        .await;
    host.reports("another", "InstanceIDInvalid", "lower case")
        .await;
    host.reports("never", "InstanceNeverSeen", "check the host")
        .await;
    host.reports("elsewhere", "ScopeChanged", elsewhere).await;
    assert_eq!(host.domains().await, "podvm-foreign-0123abcd");
    let rest = [
        "base.qcow2",
        "podvm-foreign-0123abcd-cloudinit.iso",
        "podvm-foreign-0123abcd-root.qcow2",
        "podvm-half-0123abcd-12345678-root.qcow2",
        "shared.iso",
    ];
    assert_eq!(host.volumes(), rest);
    assert_eq!(
        host.virsh("domstate podvm-foreign-0123abcd").await,
        "running"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn libvirt_that_does_not_answer_releases_nothing() {
    let mut host = Host::start("libvirt-away").await;
    let uuid = host.instance("podvm-a-0123abcd").await;
    host.configure(&host.uri()).await;
    host.operate().await;
    host.pod("a", &uuid, json!({})).await;
    host.noted("a").await;
    // libvirt says nothing about the volumes of a pool that is not active.
    host.virsh("pool-destroy default").await;
    host.end("a").await;
    host.reports("a", "DeletionFailed", "'default' is not active")
        .await;
    assert_eq!(host.domains().await, "podvm-a-0123abcd");
    host.server.kill().await.unwrap();
    host.reports("a", "ProviderUnreachable", "LIBVIRT_URI")
        .await;
    // libvirtd activates pools that exist.
    host.server = serve(&host.directory);
    host.serves().await;
    host.released("a").await;
    assert_eq!(host.domains().await, "");
    assert_eq!(host.volumes(), ["base.qcow2", "shared.iso"]);
}

#[tokio::test]
async fn p28_host_behind_ssh_needs_a_known_key_and_a_login() {
    let mut host = Host::start("libvirt-ssh").await;
    let ssh = SshServer::start(&host).await;
    let log = Log::start();
    host.operate().await;
    let uuid = host.instance("podvm-a-0123abcd").await;
    let known = |key: &str| format!("[127.0.0.1]:{} {key}", ssh.port);
    let secret = async |data: Value| {
        host.write("Secret", "ssh-key-secret", "stringData", data)
            .await;
    };
    host.configure(&ssh.uri(&host, "")).await;
    secret(json!({"id_rsa": ssh.key})).await;
    host.pod("a", &uuid, json!({})).await;
    host.end("a").await;
    host.reports("a", "ConfigMissing", "known_hosts").await;
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    secret(json!({"id_rsa": ssh.key, "known_hosts": known(other)})).await;
    host.reports("a", "ProviderUnreachable", "another key")
        .await;
    assert!(host.domains().await.contains("podvm-a"));
    // A key that the host does not know.
    let planted = keys(&host, "other", "ed25519").await;
    secret(json!({"id_rsa": planted, "known_hosts": known(&ssh.host_key)})).await;
    host.reports("a", "CredentialsRejected", "authorized keys")
        .await;
    let line = planted.lines().nth(1).unwrap();
    host.hides(&log, "CredentialsRejected", &[line]).await;
    secret(json!({"id_rsa": "planted-part", "known_hosts": known(&ssh.host_key)})).await;
    host.reports("a", "ConfigInvalid", "no private key").await;
    let secrets = [line, "planted-part", ssh.key.lines().nth(1).unwrap()];
    host.hides(&log, "ConfigInvalid", &secrets).await;
    let began = Instant::now();
    secret(json!({"id_rsa": ssh.key, "known_hosts": known(&ssh.host_key)})).await;
    host.released("a").await;
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "{:?}",
        began.elapsed()
    );
    host.hides(&log, "ConfigInvalid", &secrets).await;
    assert_eq!(host.domains().await, "");

    // Without known keys, each host is accepted only if the URI says so.
    let uuid = host.instance("podvm-b-0123abcd").await;
    host.configure(&ssh.uri(&host, "&no_verify=1")).await;
    secret(json!({"id_rsa": ssh.key})).await;
    host.pod("b", &uuid, json!({})).await;
    host.end("b").await;
    host.released("b").await;
    assert_eq!(host.volumes(), ["base.qcow2", "shared.iso"]);
}
