//! CD images by URL: downloaded once by a separate pod, and inserted when they exist.

use super::harness::vm::{BOOT, Vm, condition, ready_reason};
use super::harness::{Space, e2e, eventually, kubectl, process};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::web::{Authority, Reply, Web, tunnel_at};

/// The node's address, under which pods reach it.
const NODE: &str = "10.88.0.1:0";
/// A web server on the node with one image, under any path.
#[derive(Clone)]
struct Server {
    requests: Arc<AtomicUsize>,
    open: Arc<AtomicBool>,
    address: String,
}

fn image() -> Vec<u8> {
    (0..1_u32 << 20)
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
        .collect()
}

fn checksum() -> String {
    let sum: String = Sha256::digest(image())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{sum}")
}

impl Server {
    /// Starts the server. Until it is opened, it fails.
    async fn start(open: bool) -> Self {
        let listener = tokio::net::TcpListener::bind(NODE).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Self {
            requests: Arc::default(),
            open: Arc::new(AtomicBool::new(open)),
            address,
        };
        let router = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        server
    }

    fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn answer(State(server): State<Server>, _: Uri) -> (StatusCode, Vec<u8>) {
    server.requests.fetch_add(1, Ordering::Relaxed);
    match server.open.load(Ordering::Relaxed) {
        true => (StatusCode::OK, image()),
        false => (StatusCode::SERVICE_UNAVAILABLE, Vec::new()),
    }
}

/// The tiny guest's disk before a CD drive. The guest boots from the disk.
fn with_cd(space: &Space, name: &str, cdrom: &Value, cd_first: bool) -> Value {
    let mut vm = super::harness::vm::tiny(space, name, &json!({}));
    let disk = vm["spec"]["vm"]["disks"][0].take();
    let mut disks = vec![disk, json!({"cdrom": cdrom})];
    if !cd_first {
        disks[0]["bootindex"] = json!(0);
    }
    json!({"spec": {"vm": {"disks": disks}}})
}

/// Whether QEMU has the image open, with the content of the server. (The tiny guest has no driver for CDs.)
fn has_cd(vm: &Vm<'_>) -> bool {
    let [qemu] = &process::of_pod(&vm.pod_uid(), "qemu-system-x86")[..] else {
        return false;
    };
    let open = fs::read_dir(format!("/proc/{qemu}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let fetched = open.filter(|fd| {
        fs::read_link(fd.path()).is_ok_and(|to| to.display().to_string().contains("/fetched/"))
    });
    fetched
        .into_iter()
        .any(|fd| fs::read(fd.path()).is_ok_and(|content| content == image()))
}

async fn until_cd(vm: &Vm<'_>, there: bool) {
    let what = if there {
        "the image comes into the drive"
    } else {
        "the drive is emptied"
    };
    eventually(what, 90, async || match has_cd(vm) == there {
        true => Ok(()),
        false => Err(format!("{:#}", vm.now()["status"])),
    })
    .await;
}

#[test]
fn cd_image_from_a_url_is_fetched_once_before_the_machine_starts() {
    e2e(2, async |space| {
        let server = Server::start(false).await;
        let cdrom = json!({"image": server.url("install.iso"), "checksum": checksum()});
        let vm = space.create("vm", with_cd(space, "vm", &cdrom, true)).await;
        let waits = |vm: &Value| {
            condition(vm, "MediaFetched")["status"] == "False" && ready_reason(vm) != "Running"
        };
        let waiting = vm.until("waits for the image", 60, waits).await;
        assert!(vm.pod().is_none(), "{:#}", waiting["status"]);
        eventually("the server has received a request", 60, async || {
            (server.requests() > 0)
                .then_some(())
                .ok_or_else(String::new)
        })
        .await;
        let reported = vm.until("reports the failing server", 30, |vm| {
            condition(vm, "MediaFetched")["message"]
                .as_str()
                .is_some_and(|text| text.contains("503"))
        });
        reported.await;

        server.open.store(true, Ordering::Relaxed);
        vm.booted().await;
        assert_eq!(
            condition(&vm.now(), "MediaFetched")["status"],
            "True",
            "{:#}",
            vm.now()["status"]
        );
        vm.counts().await;
        assert!(has_cd(&vm), "the image is in the drive from the start");

        // For another VM the image exists already, independent of the server.
        let requests = server.requests();
        server.open.store(false, Ordering::Relaxed);
        let other = space
            .create("other", with_cd(space, "other", &cdrom, true))
            .await;
        other.booted().await;
        other.counts().await;
        assert!(has_cd(&other));
        assert_eq!(server.requests(), requests, "it is fetched once");
    });
}

#[test]
fn optional_cd_image_is_inserted_into_the_running_machine() {
    e2e(1, async |space| {
        let server = Server::start(false).await;
        let wrong = json!({"image": server.url("tools.iso"), "checksum": format!("sha256:{}", "0".repeat(64))});
        let vm = space
            .create("vm", with_cd(space, "vm", &wrong, false))
            .await;
        vm.booted().await;
        vm.counts().await;
        assert!(!has_cd(&vm), "the drive is empty");
        let pod = vm.pod_uid();

        server.open.store(true, Ordering::Relaxed);
        let mistaken = |vm: &Value| condition(vm, "MediaFetched")["reason"] == "ChecksumMismatch";
        let object = vm.until("reports the wrong checksum", BOOT, mistaken).await;
        let message = condition(&object, "MediaFetched")["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(message.contains("spec.vm.disks[1].cdrom"), "{message}");
        assert!(
            !has_cd(&vm),
            "nothing that is not what it should be is in the drive"
        );

        let disks = with_cd(
            space,
            "vm",
            &json!({"image": server.url("tools.iso"), "checksum": checksum()}),
            false,
        );
        vm.patch(&disks).await;
        vm.until("has fetched", BOOT, |vm| {
            condition(vm, "MediaFetched")["status"] == "True"
        })
        .await;
        until_cd(&vm, true).await;

        // Ejected by hand, and inserted again. The server is not needed any more.
        server.open.store(false, Ordering::Relaxed);
        vm.patch(&with_cd(space, "vm", &json!({"image": ""}), false))
            .await;
        until_cd(&vm, false).await;
        vm.patch(&disks).await;
        until_cd(&vm, true).await;
        assert_eq!(vm.pod_uid(), pod, "all that without a restart");
    });
}

#[test]
fn an_image_comes_through_the_companys_proxy_from_a_server_that_the_companys_authority_has_signed()
{
    e2e(1, async |space| {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::make(dir.path());
        let server = Web::start_secure(&authority, |request| {
            Reply::image(request, &image(), "\"one\"")
        });
        let (proxy, requests) = tunnel_at(NODE.trim_end_matches(":0"));
        let proxy = format!("http://anna:sesame@{}:{proxy}", NODE.trim_end_matches(":0"));
        let ours = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": space.name, "name": name}});
        let mut secret = ours("Secret", "proxy");
        secret["stringData"] = json!({"HTTPS_PROXY": proxy});
        kubectl::create(&secret).await.unwrap();
        let fetch = json!({"proxySecret": "proxy", "authorities": {"configMap": "company"}});
        space
            .configure(&json!({"imageRepository": {"fetch": fetch}}))
            .await;

        // The server is only on the node. Without the proxy, no pod would reach it by that name.
        let cdrom = json!({"image": server.url("/install.iso"), "checksum": checksum()});
        let vm = space.create("vm", with_cd(space, "vm", &cdrom, true)).await;
        let missing = |vm: &Value| {
            condition(vm, "MediaFetched")["message"]
                .as_str()
                .is_some_and(|m| m.contains("company"))
        };
        vm.until("reports the missing ConfigMap", 120, missing)
            .await;
        let mut company = ours("ConfigMap", "company");
        company["data"] = json!({"ca.crt": fs::read_to_string(dir.path().join("ca.pem")).unwrap()});
        kubectl::create(&company).await.unwrap();
        vm.booted().await;
        assert_eq!(
            condition(&vm.now(), "MediaFetched")["status"],
            "True",
            "{:#}",
            vm.now()["status"]
        );
        assert!(has_cd(&vm));
        let requests = requests.lock().unwrap().concat();
        assert!(
            requests.starts_with("CONNECT localhost:")
                && requests.contains("Proxy-Authorization: Basic "),
            "{requests}"
        );
        let pods = space
            .kubectl(&["get", "pods,events", "--output", "yaml"])
            .await;
        assert!(!pods.contains("sesame") && !vm.now().to_string().contains("sesame"));
    });
}
