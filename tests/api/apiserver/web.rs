//! The web console as a process, on a real API server, with the account, Role and admission policy of `deploy/`.

use crate::apiserver::leader::address_in;
use crate::apiserver::world::{TIMEOUT, World, eventually, machine, root};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

mod pools;
mod provider;
mod rights;
mod screen;

type Page = WebSocketStream<TcpStream>;

/// The hash of `secret`.
const HASH: &str = "$2y$04$H3Klq0Jrf5swL7aAgAqSeOnsRcbsAepJMs8AWLGkpBMF5Zjr9KEFG";

/// A console that runs as the account `vm-web`.
struct Console {
    world: World,
    /// Address of the replica that gets the requests.
    address: SocketAddr,
    dir: TempDir,
    process: Child,
}

/// The headers of a page of the console.
const SAME_ORIGIN: &str = "Sec-Fetch-Site: same-origin\r\n";

impl Console {
    async fn start(name: &str) -> Self {
        let world = World::new(name).await;
        for object in world.kustomize("deploy/cluster") {
            if object["metadata"]["name"] == "vm-web" {
                world.apply(&object, false).await.unwrap();
            }
        }
        for mut object in world.kustomize("deploy/web") {
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = world.namespace.clone().into();
            }
            world.apply(&object, false).await.unwrap();
        }
        for (name, user, may) in [
            ("vm", "alice", json!(["start", "stop"])),
            ("read", "alice", json!(["stop"])),
            ("other", "bob", json!(["*"])),
            ("shared", "nobody", json!([])),
        ] {
            let permissions =
                json!([{"user": user, "may": may}, {"role": "staff", "may": ["stop"]}]);
            let spec = json!({"permissions": permissions, "vm": {"state": "Running", "maximumRam": "1Gi", "networks": [], "disks": [],
                "display": {"spice": {}}}});
            let (vms, vm) = (world.vms(), machine(name, spec));
            vms.create(&PostParams::default(), &vm).await.unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        configure(&dir, &world, HASH, json!({}));
        let mut kubeconfig = world.server.kubeconfig();
        let account = format!("system:serviceaccount:{}:vm-web", world.namespace);
        kubeconfig["users"][0]["user"]["as"] = account.into();
        let kubeconfig = kubeconfig.to_string();
        std::fs::write(dir.path().join("kubeconfig"), kubeconfig).unwrap();
        let (process, address) = start_replica(&dir, "log").await;
        Self {
            world,
            address,
            dir,
            process,
        }
    }

    /// Sends a request to the replica. Returns code, head and body of the response.
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String, String) {
        send(self.address, method, path, headers, body).await
    }

    /// The headers of a page of the logged-in user.
    async fn login(&self, user: &str, headers: &str) -> String {
        let credentials = json!({"user": user, "password": "secret"}).to_string();
        let headers = format!("{headers}{SAME_ORIGIN}");
        let (code, head, body) = self
            .send("POST", "/api/v1/login", &headers, &credentials)
            .await;
        assert_eq!(code, 200, "{body}");
        let (_, cookie) = head.split_once("set-cookie: ").unwrap();
        let (cookie, attributes) = cookie.split_once("; ").unwrap();
        let attributes = attributes.lines().next().unwrap();
        assert!(cookie.starts_with("__Host-vmop=") && !cookie.contains(user));
        assert_eq!(attributes, "HttpOnly; SameSite=Strict; Secure; Path=/");
        format!("Cookie: {cookie}\r\n{SAME_ORIGIN}")
    }

    /// A page of the logged-in user that is connected to the path.
    async fn page(&self, headers: &str, path: &str) -> Page {
        self.upgrade(headers, path).await.unwrap()
    }

    async fn upgrade(
        &self,
        headers: &str,
        path: &str,
    ) -> Result<Page, tokio_tungstenite::tungstenite::Error> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let mut request = format!("ws://{}/api/v1/{path}", self.address)
            .into_client_request()
            .unwrap();
        let origin = format!("http://{}", self.address).parse().unwrap();
        request.headers_mut().insert("origin", origin);
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let (page, _) = client_async(request, stream).await?;
        Ok(page)
    }

    async fn act(&self, headers: &str, vm: &str, action: &str) -> (u16, Value) {
        let body = json!({"do": action}).to_string();
        let path = format!("/api/v1/vms/{vm}/actions");
        let (code, _, body) = self.send("POST", &path, headers, &body).await;
        (code, serde_json::from_str(&body).unwrap_or_default())
    }

    /// The events about actions of users: reason, object and note, the oldest first.
    async fn notes(&self) -> Vec<String> {
        let events =
            kube::Api::<Event>::namespaced(self.world.client.clone(), &self.world.namespace);
        let mut events = events.list(&Default::default()).await.unwrap().items;
        let reporter = Some("vmoperator.jdrupes.org/vm-web");
        events.retain(|event| event.reporting_controller.as_deref() == reporter);
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let note = |event: Event| {
            let object = event.regarding.and_then(|it| it.name).unwrap();
            format!(
                "{} {object}: {}",
                event.reason.unwrap(),
                event.note.unwrap()
            )
        };
        events.into_iter().map(note).collect()
    }

    async fn state(&self, vm: &str) -> Value {
        let vm = self.world.vms().get(vm).await.unwrap();
        json!(vm.spec.vm.state)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

/// Starts a process of the console, and waits until it has its keys.
async fn start_replica(dir: &TempDir, log: &str) -> (Child, SocketAddr) {
    let log = dir.path().join(log);
    let process = Command::new(env!("CARGO_BIN_EXE_vm-operator"))
        .args([
            "web",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--log-format",
            "json",
        ])
        .arg("--config")
        .arg(dir.path().join("config.yaml"))
        .arg("--users")
        .arg(dir.path().join("users.yaml"))
        .env("KUBECONFIG", dir.path().join("kubeconfig"))
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("the console listens", async || address_in(&log).is_some()).await;
    let address = address_in(&log).unwrap();
    eventually("the console has its keys", async || {
        send(address, "GET", "/api/v1/session", "", "").await.0 == 401
    })
    .await;
    (process, address)
}

/// Sends a request. Returns code, head and body of the response.
async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server that rejects a long body may reset the connection after its answer.
    drop(stream.read_to_end(&mut answer).await);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.into(), body.into())
}

fn configure(dir: &TempDir, world: &World, hash: &str, roles: Value) {
    let user = |name: &str| json!([{"name": name, "password": hash}]);
    std::fs::write(dir.path().join("users.yaml"), user("bob").to_string()).unwrap();
    let roles = json!({"rolesByUser": roles});
    let console = json!({"/LoginConlet": {"users": user("alice")}, "/RoleConfigurator": roles});
    let console = json!({"/ConsoleWeblet": {"/WebConsole": console}});
    let namespace = json!({"namespace": world.namespace});
    let config = json!({"/Manager": {"/Controller": namespace, "/GuiHttpServer": console}});
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("new"), config.to_string()).unwrap();
    std::fs::rename(path("new"), path("config.yaml")).unwrap();
}

/// Gives a role to alice, with this list of page types.
fn configure_pages(console: &Console, types: Value) {
    configure(
        &console.dir,
        &console.world,
        HASH,
        json!({"alice": ["pages"]}),
    );
    let path = console.dir.path().join("config.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let pages = json!({"conletTypesByRole": {"pages": types}});
    config["/Manager"]["/GuiHttpServer"]["/ConsoleWeblet"]["/WebConsole"]["/RoleConletFilter"] =
        pages;
    std::fs::write(console.dir.path().join("new"), config.to_string()).unwrap();
    std::fs::rename(console.dir.path().join("new"), path).unwrap();
}

#[tokio::test]
async fn only_viewers_of_all_vms_see_totals_and_nodes() {
    let console = Console::start("web-overview").await;
    let status = json!({"status": {"cpus": 2, "ram": "1 GiB", "nodeName": "node"}});
    let merge = PatchParams::default();
    let vms = console.world.vms();
    vms.patch_status("other", &merge, &Patch::Merge(status))
        .await
        .unwrap();
    let alice = console.login("alice", "").await;
    let history = async || {
        let (code, _, body) = console.send("GET", "/api/v1/history", &alice, "").await;
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    assert_eq!(history().await.0, 404);
    configure_pages(&console, json!(["org.jdrupes.vmoperator.vmmgmt.VmMgmt"]));
    eventually("the role has an effect", async || history().await.0 == 200).await;
    let (_, samples) = history().await;
    assert!(samples[0]["time"].as_i64().unwrap() > 0, "{samples}");
    let mut page = console.page(&alice, "live").await;
    let Message::Text(text) = page.next().await.unwrap().unwrap() else {
        panic!("no text");
    };
    let update: Value = serde_json::from_str(&text).unwrap();
    let rows = update["rows"].as_array().unwrap();
    let other = rows.iter().find(|row| row["name"] == "other").unwrap();
    let facts = &other["facts"];
    assert_eq!(
        (&facts["node"], &facts["cpus"]),
        (&json!("node"), &json!(2))
    );
    assert_eq!(console.act(&alice, "other", "stop").await.0, 403);
}

#[tokio::test]
async fn details_and_size_of_a_vm_need_their_rights() {
    let console = Console::start("web-details").await;
    let (vms, merge) = (console.world.vms(), PatchParams::default());
    let spec =
        json!({"spec": {"cloudInit": {"userData": {"hidden": 1}}, "vm": {"maximumCpus": 4}}});
    let vm = vms.patch("vm", &merge, &Patch::Merge(spec)).await.unwrap();
    let regarding = json!({"kind": "VirtualMachine", "name": "vm", "namespace": console.world.namespace, "uid": vm.metadata.uid});
    let namesake = json!({"kind": "VirtualMachine", "name": "vm", "namespace": console.world.namespace, "uid": "previous"});
    let events =
        kube::Api::<Event>::namespaced(console.world.client.clone(), &console.world.namespace);
    for (name, regarding) in [("new", regarding), ("old", namesake)] {
        let event = json!({"metadata": {"name": name}, "regarding": regarding, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning",
            "reason": name, "note": "", "action": "Test", "reportingController": "test", "reportingInstance": "test"});
        let event = serde_json::from_value(event).unwrap();
        events.create(&PostParams::default(), &event).await.unwrap();
    }
    let alice = console.login("alice", "").await;
    let details = async |vm: &str| {
        let path = format!("/api/v1/vms/{vm}");
        let (code, _, body) = console.send("GET", &path, &alice, "").await;
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    for vm in ["other", "missing"] {
        assert_eq!(details(vm).await.0, 404, "{vm}");
    }
    let (code, body) = details("vm").await;
    let limits = json!({"cpus": {"requested": "4", "limit": "4"}, "ram": {"requested": "1 GiB", "limit": "1 GiB"}});
    assert_eq!((code, &body["size"]), (200, &limits));
    let events = body["events"].as_array().unwrap();
    assert_eq!((events.len(), &events[0]["reason"]), (1, &json!("new")));
    assert!(!body.to_string().contains("hidden"), "{body}");

    let resize = async |vm: &str, cpus: &str| {
        let (path, size) = (
            format!("/api/v1/vms/{vm}/size"),
            json!({"cpus": cpus, "ram": "512Mi"}),
        );
        let (code, _, body) = console.send("PUT", &path, &alice, &size.to_string()).await;
        (code, serde_json::from_str(&body).unwrap_or(Value::Null))
    };
    assert_eq!(resize("vm", "2").await.0, 403);
    assert_eq!(resize("other", "1").await.0, 404);
    configure_pages(&console, json!(["*"]));
    eventually("the role has an effect", async || {
        details("vm").await.1["mayResize"] == true
    })
    .await;
    let above = json!({"reason": "AboveLimit", "field": "cpus", "limit": "4"});
    assert_eq!(resize("vm", "5").await, (422, above));
    assert_eq!(resize("vm", "2").await.0, 204);
    let vm = vms.get("vm").await.unwrap().spec.vm;
    assert_eq!(
        (vm.current_cpus, vm.current_ram.as_deref()),
        (Some(2), Some("512Mi"))
    );
    assert_eq!(resize("missing", "1").await.0, 404);
    let line = console.log().lines().last().unwrap().to_owned();
    assert!(line.contains(r#""message":"request rejected""#), "{line}");
    let previous = json!({"cpus": "1", "uid": "previous"}).to_string();
    let path = "/api/v1/vms/vm/size";
    let (code, _, body) = console.send("PUT", path, &alice, &previous).await;
    assert_eq!(code, 409, "{body}");
}

#[tokio::test]
async fn user_of_a_provider_uses_vms_in_a_browser() {
    let console = Console::start("web-browser").await;
    configure_pages(&console, json!(["*"]));
    // Roles of the configuration and of the provider give the same pages.
    let roles = json!({"roleMappings": [{"from": "operators", "to": "pages"}]});
    let _provider = provider::start_provider(&console, roles).await;
    pools::create_pool(&console.world, "desktops", json!(["accessConsole", "stop"])).await;
    let screenshot = root().join(".cache/web");
    std::fs::create_dir_all(&screenshot).unwrap();
    let journey = Command::new(root().join("tests/web/pages"))
        .arg("journey")
        .env("CONSOLE_URL", format!("http://{}", console.address))
        .env("CONSOLE_USER", "alice")
        .env("CONSOLE_PASSWORD", "secret")
        .env("VM", "vm")
        .env("PROVIDER", "the test")
        .env("POWER", "yes")
        .env("OVERVIEW", "other")
        .env("POOL", "desktops")
        .env("SCREENSHOT", screenshot.join("list.png"))
        .output();
    let operator = async {
        pools::assign(&console.world, "shared").await;
        std::future::pending::<()>().await;
    };
    let journey = tokio::select! {
        journey = journey => journey.unwrap(),
        () = operator => unreachable!(),
    };
    let text = String::from_utf8_lossy(&journey.stdout);
    let error = String::from_utf8_lossy(&journey.stderr);
    assert!(journey.status.success(), "{text}{error}\n{}", console.log());
    let log = console.log();
    // One VM by its buttons; then the two VMs that may stop, of which one may start; then two changes of the size; then a VM of
    // a pool, which she gives back.
    let mut lines = vec!["login rejected", "login by a provider"];
    lines.extend(["action"; 5]);
    lines.extend(["action rejected", "action", "action", "action"]);
    lines.push("logout");
    let audit = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let audit = audit.filter(|line: &Value| line["client"] == "127.0.0.1");
    let audit: Vec<Value> = audit.collect();
    let messages: Vec<_> = audit.iter().map(|line| line["message"].clone()).collect();
    assert_eq!(messages, lines);
    assert!(audit.iter().all(|line| line["user"] == "alice"), "{log}");
    assert!(!log.contains("secret") && !log.contains("__Host"), "{log}");
}

#[tokio::test]
async fn actions_need_a_login_a_permission_and_a_page_of_the_console() {
    let console = Console::start("web-rights").await;
    for (method, path) in [
        ("GET", "/api/v1/session"),
        ("GET", "/api/v1/live"),
        ("GET", "/api/v1/history"),
        ("GET", "/api/v1/vms/vm/screen"),
        ("GET", "/api/v1/vms/vm/serial"),
        ("POST", "/api/v1/vms/vm/viewer-file"),
        ("POST", "/api/v1/active"),
        ("POST", "/api/v1/vms/vm/actions"),
        ("GET", "/api/v1/vms/vm"),
        ("PUT", "/api/v1/vms/vm/size"),
        ("GET", "/api/v1/unknown"),
    ] {
        let (code, head, body) = console.send(method, path, SAME_ORIGIN, "{}").await;
        let expected = if path.ends_with("unknown") { 404 } else { 401 };
        assert_eq!(code, expected, "{path}: {body}");
        for header in ["content-security-policy: default-src 'none'", "nosniff"] {
            assert!(head.contains(header), "{path}: {head}");
        }
    }
    let alice = console.login("alice", "").await;
    for (vm, action, code, reason) in [
        ("read", "start", 403, "NotPermitted"),
        ("other", "stop", 404, "NotFound"),
        ("missing", "stop", 404, "NotFound"),
        ("..%2Fpods", "stop", 404, "NotFound"),
        ("..", "stop", 404, "NotFound"),
        ("vm", "reset", 403, "NotPermitted"),
        ("vm", "explode", 422, "InvalidRequest"),
    ] {
        let (found, body) = console.act(&alice, vm, action).await;
        assert_eq!(
            (found, &body["reason"]),
            (code, &json!(reason)),
            "{vm} {action}"
        );
    }
    let foreign = alice.replace("same-origin", "cross-site");
    for headers in [
        foreign.clone(),
        alice.replace(SAME_ORIGIN, "Origin: http://evil.example\r\n"),
    ] {
        let (code, body) = console.act(&headers, "vm", "stop").await;
        assert_eq!(
            (code, &body["reason"]),
            (403, &json!("OtherOrigin")),
            "{headers}"
        );
    }
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let (code, ..) = console
        .send("GET", "/api/v1/live", &format!("{foreign}{upgrade}"), "")
        .await;
    assert_eq!(code, 403);
    let long = "x".repeat(9 << 10);
    let (code, ..) = console
        .send("POST", "/api/v1/login", SAME_ORIGIN, &long)
        .await;
    assert_eq!(code, 413);
    assert_eq!(console.state("vm").await, "Running");
    assert_eq!(console.act(&alice, "vm", "stop").await.0, 204);
    assert_eq!(console.state("vm").await, "Stopped");

    // A new login of a browser, a logout and another password end a login.
    let next = console.login("alice", &alice).await;
    assert_eq!(
        console.send("POST", "/api/v1/active", &alice, "").await.0,
        401
    );
    let bob = console.login("bob", "").await;
    assert_eq!(
        console.send("POST", "/api/v1/logout", &next, "").await.0,
        204
    );
    assert_eq!(console.act(&next, "vm", "start").await.0, 401);
    for request in [1, 2] {
        assert_eq!(console.act(&bob, "other", "reset").await.0, 204);
        let other = console.world.vms().get("other").await.unwrap();
        assert_eq!(other.spec.vm.reset_request, Some(request));
    }
    assert_eq!(console.act(&bob, "other", "stop").await.0, 204);
    let hash = HASH.replace("$2y$", "$2b$");
    configure(&console.dir, &console.world, &hash, json!({}));
    eventually("the other hash ends the login", async || {
        console.act(&bob, "other", "stop").await.0 == 401
    })
    .await;
}

#[tokio::test]
async fn account_of_the_console_changes_only_the_fields_of_its_actions() {
    let console = Console::start("web-policy").await;
    let world = &console.world;
    let client = world.token("vm-web", None).await;
    let vms = kube::Api::<vm_operator::api::VirtualMachine>::namespaced(client, &world.namespace);
    let patch = async |patch: Value| {
        let params = PatchParams::default();
        vms.patch("vm", &params, &Patch::Merge(patch)).await
    };
    let machine = |machine: Value| json!({"spec": {"vm": machine}});
    eventually("the policy is in force", async || {
        let params = PatchParams::default().dry_run();
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        vms.patch("vm", &params, &Patch::Merge(labels))
            .await
            .is_err()
    })
    .await;
    let all_rejected = async |rejected: Vec<(&str, Value)>| {
        for (field, rejected) in rejected {
            let error = patch(rejected.clone()).await.unwrap_err().to_string();
            let expected = format!("the account vm-web may not change {field}, but only");
            assert!(error.contains(&expected), "{rejected}: {error}");
        }
    };
    let metadata = |field: &str, value: Value| json!({"metadata": {field: value}});
    all_rejected(vec![
        ("metadata.labels", metadata("labels", json!({"a": "b"}))),
        (
            "metadata.annotations",
            metadata("annotations", json!({"a": "b"})),
        ),
        (
            "metadata.finalizers",
            metadata("finalizers", json!(["a/b"])),
        ),
        (
            "spec.permissions",
            json!({"spec": {"permissions": [{"user": "eve", "may": ["*"]}]}}),
        ),
        ("spec.permissions", json!({"spec": {"permissions": null}})),
        (
            "spec.cloudInit",
            json!({"spec": {"cloudInit": {"userData": {}}}}),
        ),
        ("spec.image", json!({"spec": {"image": {"source": "evil"}}})),
        ("spec.vm.maximumRam", machine(json!({"maximumRam": "2Gi"}))),
        (
            "spec.vm.disks",
            machine(json!({"disks": [{"cdrom": {"image": "evil.iso"}}]})),
        ),
        (
            "spec.vm.maximumCpus",
            machine(json!({"state": "Stopped", "maximumCpus": 3})),
        ),
    ])
    .await;
    let allowed = json!({"state": "Stopped", "currentCpus": 1, "currentRam": "1Gi", "resetRequest": 1, "restartRequest": 1});
    patch(machine(allowed)).await.unwrap();
    patch(machine(json!({"currentCpus": null}))).await.unwrap();
    let delete = vms.delete("vm", &Default::default()).await;
    assert!(delete.unwrap_err().to_string().contains("forbidden"));
    // The policy is for this account only.
    let spec = json!({"spec": {"vm": {"maximumRam": "2Gi"}}});
    let own = world.vms();
    let params = PatchParams::default();
    own.patch("vm", &params, &Patch::Merge(spec)).await.unwrap();

    // Changed and removed fields. An admission plugin rejects other owners by itself, unless the account may delete the VM.
    let rule =
        json!({"apiGroups": ["vmoperator.jdrupes.org"], "resources": ["vms"], "verbs": ["*"]});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "vm-web"}, "rules": [rule]});
    world.apply(&role, false).await.unwrap();
    let uid = own.get("read").await.unwrap().metadata.uid;
    let owner = |name: &str| json!([{"apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": name, "uid": uid}]);
    let present = json!({"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.org/a"], "ownerReferences": owner("read")});
    let present = json!({"metadata": present, "spec": {"vm": {"maximumCpus": 3}}});
    own.patch("vm", &params, &Patch::Merge(present))
        .await
        .unwrap();
    eventually("the account may delete the VM", async || {
        let params = kube::api::DeleteParams::default().dry_run();
        vms.delete("vm", &params).await.is_ok()
    })
    .await;
    all_rejected(vec![
        ("metadata.labels", metadata("labels", json!({"a": "c"}))),
        ("metadata.labels", metadata("labels", Value::Null)),
        (
            "metadata.annotations",
            metadata("annotations", json!({"a": "c"})),
        ),
        ("metadata.annotations", metadata("annotations", Value::Null)),
        ("metadata.finalizers", metadata("finalizers", Value::Null)),
        (
            "metadata.ownerReferences",
            metadata("ownerReferences", owner("other")),
        ),
        (
            "metadata.ownerReferences",
            metadata("ownerReferences", Value::Null),
        ),
        ("spec.vm.maximumCpus", machine(json!({"maximumCpus": null}))),
    ])
    .await;
    patch(machine(json!({"state": "Running"}))).await.unwrap();
}

/// The names on a page, after its next message.
async fn next_names(page: &mut Page, names: &mut BTreeSet<String>) -> Option<u16> {
    loop {
        let message = tokio::time::timeout(TIMEOUT, page.next()).await;
        let text = match message.expect("no message").unwrap().unwrap() {
            Message::Text(text) => text,
            Message::Close(frame) => return Some(frame.unwrap().code.into()),
            _ => continue,
        };
        let update: Value = serde_json::from_str(&text).unwrap();
        if update["user"] == "alice" {
            names.clear();
        }
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        names.extend(update["rows"].as_array().unwrap().iter().map(name));
        for gone in update["gone"].as_array().into_iter().flatten() {
            assert!(names.remove(gone.as_str().unwrap()), "{gone}");
        }
        return None;
    }
}

#[tokio::test]
async fn open_page_loses_vms_with_the_right_to_see_them_and_ends_with_the_login() {
    let console = Console::start("web-live").await;
    let alice = console.login("alice", "").await;
    let mut page = console.page(&alice, "live").await;
    let mut names = BTreeSet::new();
    let set = |names: &[&str]| BTreeSet::from_iter(names.iter().map(|name| (*name).to_owned()));
    assert_eq!(next_names(&mut page, &mut names).await, None);
    assert_eq!(names, set(&["read", "vm"]));

    let staff = json!({"alice": ["staff"]});
    for (roles, expected) in [
        (staff, set(&["other", "read", "shared", "vm"])),
        (json!({}), set(&["read", "vm"])),
    ] {
        configure(&console.dir, &console.world, HASH, roles);
        assert_eq!(next_names(&mut page, &mut names).await, None);
        assert_eq!(names, expected);
    }
    let (vms, params) = (console.world.vms(), PatchParams::default());
    let nobody = json!({"spec": {"permissions": null}});
    vms.patch("read", &params, &Patch::Merge(nobody))
        .await
        .unwrap();
    assert_eq!(next_names(&mut page, &mut names).await, None);
    assert_eq!(names, set(&["vm"]));
    vms.delete("vm", &Default::default()).await.unwrap();
    assert_eq!(next_names(&mut page, &mut names).await, None);
    assert_eq!(names, set(&[]));
    console.send("POST", "/api/v1/logout", &alice, "").await;
    assert_eq!(next_names(&mut page, &mut names).await, Some(4401));
}

#[tokio::test]
async fn login_is_valid_at_all_replicas_and_survives_the_loss_of_one() {
    let mut console = Console::start("web-replicas").await;
    let first = console.address;
    let (_second, second) = start_replica(&console.dir, "second").await;
    let alice = console.login("alice", "").await;
    let bob = console.login("bob", "").await;
    console.address = second;
    assert_eq!(console.act(&alice, "vm", "stop").await.0, 204);

    // A logout ends a page at the other replica.
    let mut page = console.page(&bob, "live").await;
    let mut names = BTreeSet::new();
    assert_eq!(next_names(&mut page, &mut names).await, None);
    let logout = async |address, headers: &str| {
        let (code, _, body) = send(address, "POST", "/api/v1/logout", headers, "").await;
        (
            code,
            serde_json::from_str(&body).unwrap_or(Value::Null)["reason"].clone(),
        )
    };
    assert_eq!(logout(first, &bob).await, (204, Value::Null));
    while next_names(&mut page, &mut names).await != Some(4401) {}
    assert_eq!(console.act(&bob, "other", "stop").await.0, 401);

    console.process.kill().await.unwrap();
    assert_eq!(console.act(&alice, "vm", "start").await.0, 204);
    let (_third, third) = start_replica(&console.dir, "third").await;
    console.address = third;
    assert_eq!(console.act(&alice, "vm", "stop").await.0, 204);
    assert_eq!(console.act(&bob, "other", "stop").await.0, 401);

    // Without the Secret, a logout cannot hold at all replicas. New keys end all logins.
    let secrets =
        kube::Api::<Secret>::namespaced(console.world.client.clone(), &console.world.namespace);
    secrets
        .delete("vm-web-keys", &Default::default())
        .await
        .unwrap();
    assert_eq!(logout(second, &alice).await, (502, json!("ApiServer")));
    assert_eq!(console.act(&alice, "vm", "start").await.0, 204);
    for object in console.world.kustomize("deploy/web") {
        if object["kind"] == "Secret" {
            console.world.apply(&object, false).await.unwrap();
        }
    }
    for address in [second, third] {
        console.address = address;
        eventually("new keys end all logins", async || {
            console.act(&alice, "vm", "start").await.0 == 401
        })
        .await;
    }
    console.login("alice", "").await;
}
