//! Runners that write to a report: the permissions of a real token, bound to the pod, with the role of `deploy/base` and the
//! admission policy of `deploy/cluster`; the limits of a report; its deletion with its pod.

use crate::apiserver::objects::unschedulable_vm;
use crate::apiserver::world::{World, eventually};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use vm_operator::api::report::{CONSOLES_MAX, MESSAGE_MAX, OSINFO_ENTRIES_MAX, TEXTS_MAX};
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;
use vm_operator::api::{VirtualMachine, VmReport};

/// A text in each object of another VM, and in no other.
const MARKER: &str = "marker-of-another-vm";
/// The path of the objects of this project in a namespace.
const GROUP: &str = "/apis/vmoperator.jdrupes.org/v1/namespaces";

/// A namespace with an operator's VMs `vm` and `other`, their pods and reports. Each object of `other` has the marker.
struct TwoVms {
    world: World,
    uids: BTreeMap<&'static str, String>,
}

async fn two_vms(name: &str) -> TwoVms {
    let world = World::new(name).await;
    for object in world.kustomize("deploy/cluster") {
        // No node runs the device plugin here.
        if object["kind"]
            .as_str()
            .unwrap()
            .starts_with("ValidatingAdmissionPolicy")
        {
            world.apply(&object, false).await.unwrap();
        }
    }
    for mut object in world.kustomize("deploy") {
        let wanted = ["Role", "RoleBinding"].contains(&object["kind"].as_str().unwrap());
        if wanted && object["metadata"]["name"] == "vm-reporter" {
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = world.namespace.clone().into();
            }
            world.apply(&object, false).await.unwrap();
        }
    }
    let operator = world.start_operator().await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let reports = Api::<VmReport>::namespaced(world.client.clone(), &world.namespace);
    let mut uids = BTreeMap::new();
    for name in ["vm", "other"] {
        let mut vm = unschedulable_vm("Running");
        vm.metadata.name = Some(name.to_owned());
        if name == "other" {
            let data = json!({"userData": {"password": MARKER}});
            vm.spec.cloud_init = serde_json::from_value(data).unwrap();
            vm.spec.pod_annotations = Some([("marker".to_owned(), MARKER.to_owned())].into());
            vm.annotations_mut()
                .insert("marker".to_owned(), MARKER.to_owned());
        }
        vms.create(&PostParams::default(), &vm).await.unwrap();
        eventually("its pod has a report", || async {
            let pod = pods.get_opt(name).await.unwrap();
            let uid = pod.and_then(|pod| pod.uid()).unwrap_or_default();
            !uid.is_empty() && reports.get_opt(&uid).await.unwrap().is_some()
        })
        .await;
        uids.insert(name, pods.get(name).await.unwrap().uid().unwrap());
    }
    operator.stop().await;
    TwoVms { world, uids }
}

impl TwoVms {
    fn reports(&self, client: &Client) -> Api<VmReport> {
        Api::namespaced(client.clone(), &self.world.namespace)
    }

    /// A client with the token of the runner in the pod `vm`, after the policy is in force.
    async fn runner(&self) -> Client {
        let runner = self.world.token("vm-reporter", Some("vm")).await;
        eventually("the policy is in force", || async {
            write(
                &self.reports(&runner),
                &self.uids["other"],
                json!({"cpus": 7}),
            )
            .await
            .is_err_and(|error| error.to_string().contains("ValidatingAdmissionPolicy"))
        })
        .await;
        runner
    }
}

/// Writes a report as a runner does.
async fn write(reports: &Api<VmReport>, name: &str, status: Value) -> Result<VmReport, Error> {
    let body = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmReport", "metadata": {"name": name}, "status": status,
    });
    let params = PatchParams::apply(names::MANAGER_RUNNER).force();
    reports
        .patch_status(name, &params, &Patch::Apply(&body))
        .await
}

/// The code and the text of the answer to any request.
async fn send(client: &Client, method: &str, path: &str, kind: &str, body: &str) -> (u16, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", kind)
        .body(body.as_bytes().to_vec());
    match client.request_text(request.unwrap()).await {
        Ok(text) => (200, text),
        Err(Error::Api(status)) => (status.code, json!(status).to_string()),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// Requests of a taken-over runner: method, path, content type, body. `NS` stands for the namespace.
fn attempts(
    uids: &BTreeMap<&'static str, String>,
) -> Vec<(&'static str, String, &'static str, String)> {
    const JSON: &str = "application/json";
    const MERGE: &str = "application/merge-patch+json";
    const JSON_PATCH: &str = "application/json-patch+json";
    const APPLY: &str = "application/apply-patch+yaml";
    let mut all = Vec::new();
    let targets = [
        "vms/other".to_owned(),
        "vms/other/status".to_owned(),
        "vms/vm".to_owned(),
        "vms/vm/status".to_owned(),
        format!("vmreports/{}", uids["other"]),
        // A runner cannot know this name. Its object has nothing of the VM's manifest.
        format!("vmreports/{}/status", uids["other"]),
        "vmreports/other/status".to_owned(),
    ];
    for target in &targets {
        let path = format!("{GROUP}/NS/{target}");
        for validation in ["Strict", "Warn", "Ignore"] {
            for dry in ["", "&dryRun=All"] {
                let path = format!("{path}?fieldValidation={validation}{dry}");
                all.push((
                    "PATCH",
                    path,
                    MERGE,
                    json!({"unknown": 1, "status": {"x": 1}}).to_string(),
                ));
            }
        }
        let copy = json!([{
            "op": "copy", "from": "/spec/cloudInit/userData/password", "path": "/status/conditions/0/lastTransitionTime",
        }]);
        let test =
            json!([{"op": "test", "path": "/spec/cloudInit/userData/password", "value": "a"}]);
        for patch in [copy, test] {
            all.push(("PATCH", path.clone(), JSON_PATCH, patch.to_string()));
        }
        let applied = json!({"apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "status": {"x": 1}});
        let query = "?fieldManager=x&force=true&fieldValidation=Strict";
        all.push((
            "PATCH",
            format!("{path}{query}"),
            APPLY,
            applied.to_string(),
        ));
        all.push(("GET", path.clone(), JSON, String::new()));
        all.push((
            "PUT",
            path.clone(),
            JSON,
            json!({"metadata": {"name": "other"}}).to_string(),
        ));
        all.push(("DELETE", path, JSON, String::new()));
    }
    for collection in ["vms", "vmreports"] {
        let of_other = "?labelSelector=app.kubernetes.io/instance%3Dother";
        for query in [
            "",
            of_other,
            "?watch=true&timeoutSeconds=1",
            "?fieldSelector=metadata.name%3Dother",
        ] {
            all.push((
                "GET",
                format!("{GROUP}/NS/{collection}{query}"),
                JSON,
                String::new(),
            ));
        }
        all.push((
            "DELETE",
            format!("{GROUP}/NS/{collection}"),
            JSON,
            String::new(),
        ));
        all.push((
            "GET",
            format!("{GROUP}/default/{collection}"),
            JSON,
            String::new(),
        ));
        all.push((
            "GET",
            format!("/apis/vmoperator.jdrupes.org/v1/{collection}"),
            JSON,
            String::new(),
        ));
    }
    for object in [
        "pods/other",
        "pods",
        "configmaps/other",
        "configmaps",
        "secrets",
        "events",
    ] {
        all.push((
            "GET",
            format!("/api/v1/namespaces/NS/{object}"),
            JSON,
            String::new(),
        ));
    }
    let pod = "/api/v1/namespaces/NS/pods/other/status?fieldValidation=Strict";
    all.push(("PATCH", pod.to_owned(), MERGE, json!({"x": 1}).to_string()));
    all
}

#[tokio::test]
async fn no_answer_to_a_runner_has_anything_of_another_vm() {
    let two = two_vms("no-leak").await;
    let runner = two.runner().await;
    let admin = &two.world.client;
    let namespace = &two.world.namespace;
    let own = format!("{GROUP}/{namespace}/vms/other");
    let (_, seen) = send(admin, "GET", &own, "application/json", "").await;
    assert!(seen.contains(MARKER), "the VM has the marker: {seen}");
    let attempts = attempts(&two.uids);
    assert!(attempts.len() >= 60, "{}", attempts.len());
    for (method, path, kind, body) in attempts {
        let path = path.replace("/NS/", &format!("/{namespace}/"));
        let (code, text) = send(&runner, method, &path, kind, &body).await;
        assert!(!text.contains(MARKER), "{method} {path} {body}: {text}");
        assert!(
            (400..500).contains(&code),
            "{method} {path} {body} is answered with {code}: {text}"
        );
    }
}

#[tokio::test]
async fn runner_can_write_only_the_status_of_its_own_report() {
    let two = two_vms("own-report").await;
    let runner = two.runner().await;
    let (reports, own) = (two.reports(&runner), &two.uids["vm"]);
    let written = write(&reports, own, json!({"cpus": 3})).await.unwrap();
    assert_eq!(written.status.unwrap().cpus, 3);
    let error = write(&reports, &two.uids["other"], json!({"cpus": 3}))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("only the status of its own report"),
        "{error}"
    );
    // A token of the same account that is not bound to a pod.
    let unbound = two.world.token("vm-reporter", None).await;
    let error = write(&two.reports(&unbound), own, json!({"cpus": 3}))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("only with the token of a pod"),
        "{error}"
    );
    // A status write changes nothing else of the report.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"vm": "other"}}));
    let answer = reports
        .patch_status(own, &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(
        (answer.spec.vm.as_str(), answer.labels().get("a")),
        ("vm", None)
    );
}

#[tokio::test]
async fn the_policy_for_reports_holds_also_where_a_role_gives_too_much() {
    let two = two_vms("reports-too-much").await;
    let rule = json!({"apiGroups": ["vmoperator.jdrupes.org", "events.k8s.io"], "resources": ["*"], "verbs": ["*"]});
    let metadata = json!({"name": "vm-reporter", "namespace": two.world.namespace});
    let version = "rbac.authorization.k8s.io/v1";
    let role =
        json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]});
    two.world.apply(&role, false).await.unwrap();
    let runner = two.runner().await;
    let reports = two.reports(&runner);
    eventually("the role is in force", || async {
        reports.get(&two.uids["vm"]).await.is_ok()
    })
    .await;
    let vms = Api::<VirtualMachine>::namespaced(runner.clone(), &two.world.namespace);
    let params = PatchParams::default();
    let stopped = Patch::Merge(json!({"spec": {"vm": {"state": "Stopped"}}}));
    let delete = DeleteParams::default();
    let own = &two.uids["vm"];
    let new = VmReport::new("new", Default::default());
    let results = [
        vms.patch("vm", &params, &stopped).await.map(drop),
        vms.delete("vm", &delete).await.map(drop),
        reports.delete(own, &delete).await.map(drop),
        reports.create(&PostParams::default(), &new).await.map(drop),
        reports
            .patch(
                own,
                &params,
                &Patch::Merge(json!({"spec": {"vm": "other"}})),
            )
            .await
            .map(drop),
    ];
    for result in results {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("only the status of its own report"),
            "{error}"
        );
    }
}

/// The largest report that the definition admits.
fn largest() -> Value {
    let types = conditions::OF_RUNNER;
    let room = TEXTS_MAX / types.len();
    let condition = |type_: &&str| {
        json!({
            "type": type_, "status": "False", "reason": "R".repeat(32), "message": "\"".repeat(room),
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": i64::MAX,
        })
    };
    let osinfo: BTreeMap<String, &str> = (0..OSINFO_ENTRIES_MAX)
        .map(|n| (format!("{n:032}"), ""))
        .collect();
    let console = json!({"user": "", "client": "c".repeat(64), "protocol": "Serial", "since": "2026-01-01T00:00:00Z"});
    json!({
        "runnerVersion": "9".repeat(32), "cpus": 100_000, "ram": "9".repeat(24),
        "guestIPs": vec!["2001:0db8:0000:0000:0000:0000:0000:0001"; 32],
        "consoleClient": "c".repeat(64), "loggedInUser": "", "displayPasswordSerial": i64::MAX, "osinfo": osinfo,
        "boots": i64::MAX, "resets": i64::MAX, "consoleConnections": i64::MAX, "observedResetRequest": i64::MAX,
        "consoles": vec![console; CONSOLES_MAX], "consoleKey": "k".repeat(128),
        "conditions": types.iter().map(condition).collect::<Vec<_>>(),
    })
}

#[tokio::test]
async fn a_report_has_at_most_10_kib_and_each_of_its_fields_is_limited() {
    let two = two_vms("limits").await;
    let (reports, own) = (two.reports(&two.world.client), &two.uids["vm"]);
    let written = write(&reports, own, largest()).await.unwrap();
    let size = json!(written.status).to_string().len();
    assert!((9000..=10240).contains(&size), "{size}");
    let with = |path: &str, value: Value| {
        let mut report = largest();
        *report.pointer_mut(path).unwrap() = value;
        report
    };
    let too_large = [
        with("/runnerVersion", "9".repeat(33).into()),
        with("/cpus", (-1).into()),
        with("/ram", "lots".into()),
        with("/guestIPs", json!(vec!["10.0.0.1"; 33])),
        with("/guestIPs/0", "example.org".into()),
        with("/consoleClient", "c".repeat(65).into()),
        with("/loggedInUser", "u".repeat(129).into()),
        with("/loggedInUser", "u".repeat(100).into()),
        with("/osinfo", json!({"n".repeat(33): ""})),
        with(
            "/osinfo",
            (0..17)
                .map(|n| (n.to_string(), "".into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        ),
        with("/boots", (-1).into()),
        with("/conditions/0/type", "Ready".into()),
        with("/conditions/0/status", "Unknown".into()),
        with("/conditions/0/reason", "R".repeat(33).into()),
        with("/conditions/0/message", "m".repeat(MESSAGE_MAX + 1).into()),
        with("/conditions/0/message", "m".repeat(MESSAGE_MAX).into()),
        with("/conditions/0/message", "a\nb".into()),
    ];
    for report in too_large {
        let error = write(&reports, own, report.clone()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Api(status) if status.code == 422),
            "{error}: {report}"
        );
    }
}

#[tokio::test]
async fn a_report_is_deleted_with_its_pod() {
    let two = two_vms("collected").await;
    let pods = Api::<Pod>::namespaced(two.world.client.clone(), &two.world.namespace);
    pods.delete("vm", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    let reports = two.reports(&two.world.client);
    eventually("the report is collected", || async {
        reports.get_opt(&two.uids["vm"]).await.unwrap().is_none()
    })
    .await;
    assert!(reports.get_opt(&two.uids["other"]).await.unwrap().is_some());
}
