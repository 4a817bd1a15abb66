//! `make bench-web`: live lists of the web console while the states of VMs change.
//!
//! Each user has ten open lists, which is the limit of a login. `WEB_ALL` (default 10) lists are those of administrators, who see all VMs.
//! The VMs belong to the other users in equal parts. No operator runs: the bench writes the statuses. Each change has its number in the
//! message of the condition `Ready`, so clients can find its time.

use super::operator::{Operator, free_port};
use super::{Bench, CLIENTS, NAMESPACE, number, row, spec, value_at};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde::Deserialize;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::replay::vm_name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::interval;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};
use vm_operator::api::VirtualMachine;

/// The hash of `secret`, of the lowest cost.
const HASH: &str = "$2y$04$H3Klq0Jrf5swL7aAgAqSeOnsRcbsAepJMs8AWLGkpBMF5Zjr9KEFG";
/// Maximum lists of one login, and logins of one address in a minute.
const LISTS_OF_LOGIN: usize = 10;
const LOGINS_MAX: usize = 50;
/// A hundred changes per second, for a minute.
const CHANGES: usize = 6_000;
const CHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// The time after the last change in which messages still count.
const LAST_MESSAGES: Duration = Duration::from_secs(5);

/// The parts of a message to a page that the bench reads.
#[derive(Deserialize)]
struct Update {
    user: Option<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    ready: Option<Ready>,
}

#[derive(Deserialize)]
struct Ready {
    message: String,
}

/// The beginnings of changes by their messages, and the times until clients have received them.
#[derive(Default)]
struct Measured {
    begun: HashMap<String, Instant>,
    took: Vec<Duration>,
}

type Times = Arc<Mutex<Measured>>;
type List = WebSocketStream<TcpStream>;

impl Bench {
    pub(super) async fn measure_web(&self, vms: usize, lists: usize) {
        let lists_of_all = number("WEB_ALL").unwrap_or(LISTS_OF_LOGIN);
        let logins = lists.div_ceil(LISTS_OF_LOGIN);
        let administrators = lists_of_all.div_ceil(LISTS_OF_LOGIN);
        assert!(
            logins <= LOGINS_MAX && (1..logins).contains(&administrators),
            "SCALE_WEB is at most 500, and WEB_ALL between 1 and SCALE_WEB"
        );
        let owners = administrators..logins;
        let made = futures::stream::iter(0..vms);
        made.for_each_concurrent(CLIENTS, async |n| {
            let owner = user(owners.start + n % owners.len());
            self.create_owned(n, &owner).await;
        })
        .await;

        // The console writes its keys into them, and is not ready without.
        let keys: Secret =
            serde_json::from_value(json!({"metadata": {"name": "vm-web-keys"}})).unwrap();
        let public: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "vm-web"}})).unwrap();
        let params = PostParams::default();
        let secrets = self.api::<Secret>(NAMESPACE);
        secrets.create(&params, &keys).await.unwrap();
        let config_maps = self.api::<ConfigMap>(NAMESPACE);
        config_maps.create(&params, &public).await.unwrap();
        let port = free_port();
        let listen = format!("--listen=127.0.0.1:{port}");
        let config = configuration(logins, administrators);
        let kubeconfig = self.server.kubeconfig();
        let console = Operator::start_command("web", &kubeconfig, &[&listen], config).await;
        let memory = || format!("{:.1} MiB", console.memory());
        row(
            &format!("memory of the console with {vms} VMs, no list"),
            &memory(),
        );
        let times = Times::default();
        let mut usable = Vec::new();
        // Administrators come last, so that their lists are opened beside the others.
        for login in owners.chain(0..administrators) {
            let cookie = log_in(port, &user(login)).await;
            for _ in 0..LISTS_OF_LOGIN {
                let began = Instant::now();
                let (list, rows) = open_list(port, &cookie).await;
                if login < administrators {
                    usable.push(began.elapsed());
                    assert_eq!(rows, vms, "an administrator does not see all VMs");
                }
                tokio::spawn(follow(list, times.clone()));
            }
        }
        usable.sort();
        let slowest = value_at(&usable, 1.0).as_secs_f64();
        row(
            &format!("list of {vms} VMs usable, slowest of {}", usable.len()),
            &format!("{slowest:.2} s (budget 1.5 s)"),
        );
        let open = logins * LISTS_OF_LOGIN;
        row(&format!("memory with {open} lists, no change"), &memory());

        let (began, cpu) = (Instant::now(), console.cpu());
        self.change(&times, vms).await;
        let (took, used) = (began.elapsed().as_secs_f64(), console.cpu() - cpu);
        let memory = console.memory();
        tokio::time::sleep(LAST_MESSAGES).await;
        row(
            "changes per second",
            &format!("{:.1}", CHANGES as f64 / took),
        );
        let mut times = std::mem::take(&mut times.lock().unwrap().took);
        times.sort();
        let [p50, p95] = [0.5, 0.95].map(|share| value_at(&times, share).as_secs_f64());
        row(
            "change to message at a client",
            &format!("p50 {p50:.2} s, p95 {p95:.2} s (budget p95 1 s)"),
        );
        let expected = CHANGES * (1 + administrators) * LISTS_OF_LOGIN;
        row(
            "received messages of changes",
            &format!("{} of {expected}", times.len()),
        );
        row(
            "memory after the changes",
            &format!("{memory:.1} MiB (budget 120 MiB)"),
        );
        row(
            "cores during the changes",
            &format!("{:.2} (budget 0.5)", used.as_secs_f64() / took),
        );
        console.stop().await;
    }

    /// Creates a running VM of that user.
    async fn create_owned(&self, n: usize, owner: &str) {
        let mut spec = spec();
        spec["permissions"] = json!([{"user": owner, "may": ["*"]}]);
        let vm = json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "metadata": {"name": vm_name(n)}, "spec": spec,
        });
        let vm = serde_json::from_value(vm).unwrap();
        let vms = self.api::<VirtualMachine>(NAMESPACE);
        vms.create(&PostParams::default(), &vm).await.unwrap();
        report(vms, n, "").await;
    }

    /// Makes the changes at their rate, and waits for the answers of the API server.
    async fn change(&self, times: &Times, vms: usize) {
        let mut ticks = interval(CHANGE_INTERVAL);
        let mut writes = JoinSet::new();
        for number in 0..CHANGES {
            ticks.tick().await;
            let message = number.to_string();
            let begun = (message.clone(), Instant::now());
            times.lock().unwrap().begun.extend([begun]);
            let api = self.api::<VirtualMachine>(NAMESPACE);
            writes.spawn(async move { report(api, number % vms, &message).await });
        }
        writes.join_all().await;
    }
}

fn user(login: usize) -> String {
    format!("user-{login:02}")
}

/// The console's configuration: the first users see all VMs, and the others see their own.
fn configuration(logins: usize, administrators: usize) -> String {
    let users: Vec<_> = (0..logins)
        .map(|login| json!({"name": user(login), "password": HASH}))
        .collect();
    let role = |login| if login < administrators { "all" } else { "own" };
    let roles: HashMap<_, _> = (0..logins)
        .map(|login| (user(login), [role(login)]))
        .collect();
    let pages = json!({"all": ["*"], "own": ["org.jdrupes.vmoperator.vmaccess.VmAccess"]});
    let console = json!({
        "/LoginConlet": {"users": users},
        "/RoleConfigurator": {"rolesByUser": roles},
        "/RoleConletFilter": {"conletTypesByRole": pages},
    });
    let gui = json!({"/ConsoleWeblet": {"/WebConsole": console}});
    let namespace = json!({"namespace": NAMESPACE});
    json!({"/Manager": {"/Controller": namespace, "/GuiHttpServer": gui}}).to_string()
}

/// Writes the status of a VM that runs.
async fn report(vms: Api<VirtualMachine>, n: usize, message: &str) {
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions = [
        condition("Running", "VmBooted", ""),
        condition("Ready", "Running", message),
    ];
    let status =
        json!({"status": {"cpus": 1, "ram": "1Gi", "nodeName": "node", "conditions": conditions}});
    let params = PatchParams::default();
    vms.patch_status(&vm_name(n), &params, &Patch::Merge(status))
        .await
        .unwrap();
}

/// Logs in by the password, and returns the cookie.
async fn log_in(port: u16, user: &str) -> String {
    let body = json!({"user": user, "password": "secret"}).to_string();
    let length = body.len();
    let request = format!(
        "POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nSec-Fetch-Site: same-origin\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let cookie = answer.split_once("set-cookie: ");
    let (_, cookie) = cookie.unwrap_or_else(|| panic!("no login: {answer}"));
    cookie.split_once(';').unwrap().0.to_owned()
}

/// Opens a live list. Returns it with the number of its VMs when it is complete.
async fn open_list(port: u16, cookie: &str) -> (List, usize) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("ws://127.0.0.1:{port}/api/v1/live").into_client_request();
    let mut request = request.unwrap();
    let headers = request.headers_mut();
    headers.insert("sec-fetch-site", "same-origin".parse().unwrap());
    headers.insert("cookie", cookie.parse().unwrap());
    let origin = format!("http://127.0.0.1:{port}");
    headers.insert("origin", origin.parse().unwrap());
    let (mut list, _) = client_async(request, stream).await.unwrap();
    let whole = next_update(&mut list).await.unwrap();
    assert!(whole.user.is_some(), "the first message is not the list");
    (list, whole.rows.len())
}

/// The next message with VMs or pools. None at the end of the connection.
async fn next_update(list: &mut List) -> Option<Update> {
    loop {
        if let Message::Text(text) = list.next().await?.ok()? {
            return Some(serde_json::from_str(&text).unwrap());
        }
    }
}

/// Takes the time of the first message of each change.
async fn follow(mut list: List, times: Times) {
    let mut seen = HashSet::new();
    while let Some(update) = next_update(&mut list).await {
        let now = Instant::now();
        let mut times = times.lock().unwrap();
        for message in update.rows.into_iter().filter_map(|row| row.ready) {
            let Some(begun) = times.begun.get(&message.message).copied() else {
                continue;
            };
            if seen.insert(message.message) {
                times.took.push(now - begun);
            }
        }
    }
}
