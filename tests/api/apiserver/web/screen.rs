//! Screens of VMs. The test plays the runner of a VM, in a pod that has the address of this machine.

use super::*;
use futures::SinkExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::accept_async;
use vm_operator::api::runner::viewer::{Answer, Display, Function, Request};
use vm_operator::pinned_tls::{KeyPair, acceptor};

type Viewer = WebSocketStream<TlsStream<TcpStream>>;

/// A runner that knows the key of the console.
struct Runner {
    listener: TcpListener,
    key: KeyPair,
    console: String,
}

impl Runner {
    /// Starts the VM in the API server: its pod and status.
    async fn start(console: &Console, vm: &str) -> Self {
        let world = &console.world;
        let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
        let known = async || {
            let data = maps.get("vm-web").await.unwrap().data?;
            data.get("console-keys").cloned()
        };
        eventually("the console has a key", async || known().await.is_some()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (key, port) = (
            KeyPair::generate().unwrap(),
            listener.local_addr().unwrap().port(),
        );
        let owner = world.vms().get(vm).await.unwrap().metadata.uid;
        let owner = json!([{"apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": vm, "uid": owner, "controller": true}]);
        let ports = json!([{"name": "console", "containerPort": port}, {"name": "spice", "containerPort": 5900}]);
        let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"}});
        let containers =
            json!([{"name": "vm", "image": "none", "ports": ports, "securityContext": security}]);
        let spec = json!({"serviceAccountName": "vm-reporter", "containers": containers});
        let pod = json!({"metadata": {"name": vm, "ownerReferences": owner}, "spec": spec});
        let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.namespace);
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
        let merge = PatchParams::default();
        pods.patch_status(vm, &merge, &Patch::Merge(status))
            .await
            .unwrap();
        let runner = Self {
            listener,
            key,
            console: known().await.unwrap(),
        };
        runner.report(console, vm, json!({})).await;
        runner
    }

    /// Writes the status of the VM with other fields.
    async fn report(&self, console: &Console, vm: &str, other: Value) {
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let mut status = json!({"consoleKey": self.key.public().to_string(), "conditions": [
            condition("Running", "True", "VmBooted"), condition("UserLoggedIn", "False", "NotRequested")]});
        status
            .as_object_mut()
            .unwrap()
            .extend(other.as_object().unwrap().clone());
        let patch = Patch::Merge(json!({"status": status}));
        let vms = console.world.vms();
        vms.patch_status(vm, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// The next connection and its request.
    async fn accept(&self) -> (Viewer, Request) {
        let stream = self.listener.accept().await.unwrap().0;
        let tls = acceptor(&self.key, vec![self.console.parse().unwrap()]).unwrap();
        let mut viewer = accept_async(tls.accept(stream).await.unwrap())
            .await
            .unwrap();
        let Message::Text(text) = viewer.next().await.unwrap().unwrap() else {
            panic!("no request");
        };
        (viewer, serde_json::from_str(&text).unwrap())
    }
}

async fn answer(viewer: &mut Viewer, answer: &Answer) {
    viewer
        .send(Message::text(json!(answer).to_string()))
        .await
        .unwrap();
}

/// The next text of the server, or the code of its end.
async fn next(page: &mut Page) -> Result<Value, u16> {
    loop {
        match timeout(TIMEOUT, page.next())
            .await
            .expect("no message")
            .unwrap()
            .unwrap()
        {
            Message::Text(text) => return Ok(serde_json::from_str(&text).unwrap()),
            Message::Close(frame) => return Err(frame.unwrap().code.into()),
            _ => {}
        }
    }
}

async fn permit(console: &Console, user: &str, may: Value) {
    let permissions = json!({"spec": {"permissions": [{"user": user, "may": may}]}});
    let vms = console.world.vms();
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(permissions))
        .await
        .unwrap();
}

#[tokio::test]
async fn screen_needs_a_right_and_the_own_pod_of_a_running_vm() {
    let console = Console::start("web-screen-rights").await;
    let alice = console.login("alice", "").await;
    let reason = async |vm: &str| {
        let mut page = console.page(&alice, &format!("vms/{vm}/screen")).await;
        let message = next(&mut page).await.unwrap();
        assert_eq!(next(&mut page).await, Err(1000));
        message["reason"].as_str().unwrap().to_owned()
    };
    for vm in ["other", "missing", "..%2Fpods"] {
        assert_eq!(reason(vm).await, "NotFound");
    }
    assert_eq!(reason("vm").await, "NotPermitted");
    permit(&console, "alice", json!(["accessConsole"])).await;
    assert_eq!(reason("vm").await, "NotRunning");
    let runner = Runner::start(&console, "vm").await;
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let (running, login) = (
        condition("Running", "True", "VmBooted"),
        condition("UserLoggedIn", "False", "Processing"),
    );
    let spice = condition("ConsoleConnected", "True", "Connected");
    let console_of = |user: &str| json!({"user": user, "client": "192.0.2.1", "protocol": "Screen", "since": "2026-01-01T00:00:00Z"});
    for (status, expected) in [
        (json!({"conditions": [running, login]}), "LoginPending"),
        (
            json!({"conditions": [running, login], "loggedInUser": "bob"}),
            "LoginPending",
        ),
        (
            json!({"conditions": [running, spice], "consoleUser": "bob"}),
            "InUse",
        ),
        (json!({"consoles": [console_of("bob")]}), "InUse"),
        (json!({"assignment": {"user": "bob"}}), "Assigned"),
        (json!({"consoleKey": null}), "Unsupported"),
        (json!({"consoleKey": "YQ=="}), "Unreachable"),
    ] {
        let nobody = json!({"loggedInUser": null, "consoleUser": "", "consoles": null, "assignment": {"user": null}});
        runner.report(&console, "vm", nobody).await;
        runner.report(&console, "vm", status.clone()).await;
        let accept = async { drop(timeout(TIMEOUT, runner.listener.accept()).await) };
        let found = match expected {
            "Unreachable" => tokio::join!(reason("vm"), accept).0,
            _ => reason("vm").await,
        };
        assert_eq!(found, expected, "{status}");
    }
    // A pod of another VM with that name.
    runner
        .report(&console, "vm", json!({"loggedInUser": null}))
        .await;
    let pods: Api<Pod> = Api::namespaced(console.world.client.clone(), &console.world.namespace);
    let orphan = json!({"metadata": {"ownerReferences": null}});
    pods.patch("vm", &PatchParams::default(), &Patch::Merge(orphan))
        .await
        .unwrap();
    assert_eq!(reason("vm").await, "Unsupported");
    let foreign = alice.replace("same-origin", "cross-site");
    let upgrade = console.upgrade(&foreign, "vms/vm/screen").await;
    assert!(upgrade.unwrap_err().to_string().contains("403"));
}

#[tokio::test]
async fn open_screen_ends_with_the_right_the_login_or_the_runner() {
    let console = Console::start("web-screen").await;
    permit(&console, "alice", json!(["accessConsole"])).await;
    let runner = Runner::start(&console, "vm").await;
    let alice = console.login("alice", "").await;
    let open = async |query: &str| {
        let path = format!("vms/vm/screen{query}");
        let page = console.page(&alice, &path);
        let (page, (viewer, request)) = tokio::join!(page, runner.accept());
        (page, viewer, request)
    };
    let connect = async || {
        let (mut page, mut viewer, _) = open("").await;
        answer(&mut viewer, &Answer::Connected).await;
        assert_eq!(next(&mut page).await, Ok(json!({"connected": true})));
        (page, viewer)
    };
    // Without the right to take the screen, a request for it is one for a free screen.
    let bob = || "bob".to_owned();
    let (mut page, mut viewer, request) = open("?takeOver=true").await;
    assert_eq!(
        (
            request.user.as_str(),
            request.client.as_str(),
            request.take_over
        ),
        ("alice", "127.0.0.1", false)
    );
    answer(&mut viewer, &Answer::InUse { user: bob() }).await;
    assert_eq!(
        next(&mut page).await,
        Ok(json!({"reason": "InUse", "user": "bob", "mayTake": false}))
    );
    permit(&console, "alice", json!(["takeConsole"])).await;
    let (mut page, mut viewer, request) = open("?takeOver=true").await;
    assert!(request.take_over);
    answer(&mut viewer, &Answer::Connected).await;
    assert_eq!(next(&mut page).await, Ok(json!({"connected": true})));
    // Bytes in both directions. Pings of the console come between.
    let bytes = |length: usize| Message::binary(vec![7; length]);
    for length in [1, 200_000] {
        viewer.send(bytes(length)).await.unwrap();
        while page.next().await.unwrap().unwrap() != bytes(length) {}
        page.send(bytes(length)).await.unwrap();
        while viewer.next().await.unwrap().unwrap() != bytes(length) {}
    }
    answer(&mut viewer, &Answer::TakenOver { user: bob() }).await;
    assert_eq!(
        next(&mut page).await,
        Ok(json!({"reason": "TakenOver", "user": "bob"}))
    );

    // The own console, and one of nobody known, are no reason.
    let own = json!([{"user": "alice", "client": "192.0.2.1", "protocol": "Spice", "since": "2026-01-01T00:00:00Z"}]);
    runner
        .report(&console, "vm", json!({"consoles": own}))
        .await;
    permit(&console, "alice", json!(["accessConsole"])).await;
    let (mut page, _viewer) = connect().await;
    runner.report(&console, "vm", json!({"cpus": 2})).await;
    permit(&console, "alice", json!(["stop"])).await;
    assert_eq!(next(&mut page).await, Ok(json!({"reason": "RightLost"})));
    // The connection of the SPICE client does not pass through the console.
    let (mut viewer, request) = runner.accept().await;
    assert_eq!(
        (request.open, request.user.as_str()),
        (Function::Disconnect, "alice")
    );
    answer(&mut viewer, &Answer::Ended).await;
    runner
        .report(&console, "vm", json!({"consoles": null}))
        .await;
    permit(&console, "alice", json!(["accessConsole"])).await;
    let (mut page, viewer) = connect().await;
    runner
        .report(&console, "vm", json!({"assignment": {"user": "bob"}}))
        .await;
    assert_eq!(
        next(&mut page).await,
        Ok(json!({"reason": "Assigned", "user": "bob"}))
    );
    runner
        .report(&console, "vm", json!({"assignment": {"user": null}}))
        .await;
    drop(viewer);
    // The desktop of another user is not shown to this user.
    let (mut page, viewer) = connect().await;
    let condition = json!([{"type": "Running", "status": "True", "reason": "VmBooted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let other = json!({"conditions": condition, "loggedInUser": "bob"});
    runner.report(&console, "vm", other).await;
    assert_eq!(next(&mut page).await, Ok(json!({"reason": "LoginPending"})));
    drop(viewer);
    runner
        .report(&console, "vm", json!({"loggedInUser": null}))
        .await;
    // A runner that is gone is no reason, so that the page connects again.
    let (mut page, viewer) = connect().await;
    drop(viewer);
    assert_eq!(next(&mut page).await, Err(1001));
    let (mut page, mut viewer) = connect().await;
    console.send("POST", "/api/v1/logout", &alice, "").await;
    assert_eq!(next(&mut page).await, Err(4401));
    while let Some(Ok(_)) = viewer.next().await {}
    let log = console.log();
    assert_eq!(log.matches("\"console opened\"").count(), 6, "{log}");
    let taken = "ScreenTakenOver vm: user alice (web console) takes over the screen";
    assert_eq!(console.notes().await, [taken]);
}

#[tokio::test]
async fn serial_console_and_file_for_a_spice_viewer_need_the_same_right() {
    let console = Console::start("web-serial").await;
    let runner = Runner::start(&console, "vm").await;
    let alice = console.login("alice", "").await;
    let file = async || {
        let path = "/api/v1/vms/vm/viewer-file";
        let (code, _, body) = console.send("POST", path, &alice, "{}").await;
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    assert_eq!(file().await, (403, json!({"reason": "NotPermitted"})));
    let mut page = console.page(&alice, "vms/vm/serial").await;
    assert_eq!(next(&mut page).await, Ok(json!({"reason": "NotPermitted"})));
    permit(&console, "alice", json!(["accessConsole"])).await;

    let display = Display {
        password: Some("one-time".to_owned()),
        valid_seconds: Some(30),
        is_encrypted: false,
        authority: None,
    };
    let expected = json!({"file": "[virt-viewer]\ntype=spice\nhost=127.0.0.1\nport=5900\npassword=one-time\ndelete-this-file=1\n",
        "host": "127.0.0.1", "port": 5900, "password": "one-time", "validSeconds": 30});
    for (reply, code, expected) in [
        (Answer::Display(display), 200, expected),
        (
            Answer::PasswordNotSet,
            502,
            json!({"reason": "PasswordNotSet"}),
        ),
        (Answer::NoDisplay, 409, json!({"reason": "NoDisplay"})),
    ] {
        let runner = async {
            let (mut viewer, request) = runner.accept().await;
            assert_eq!(
                (request.open, request.user.as_str()),
                (Function::Display, "alice")
            );
            answer(&mut viewer, &reply).await;
        };
        assert_eq!(tokio::join!(file(), runner).0, (code, expected));
    }
    assert!(!console.log().contains("one-time"), "{}", console.log());
    let file = "ViewerFileCreated vm: user alice (web console) gets a file for virt-viewer";
    eventually("an event names the user", async || {
        console.notes().await == [file]
    })
    .await;

    let page = console.page(&alice, "vms/vm/serial");
    let (mut page, (mut viewer, request)) = tokio::join!(page, runner.accept());
    assert_eq!(request.open, Function::Serial);
    answer(&mut viewer, &Answer::Connected).await;
    assert_eq!(next(&mut page).await, Ok(json!({"connected": true})));
    answer(&mut viewer, &Answer::Ended).await;
    assert_eq!(next(&mut page).await, Ok(json!({"reason": "Ended"})));
}
