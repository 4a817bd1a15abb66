//! The scenarios of VMs.

use super::{adopted, orphans};
use crate::components::api;
use crate::enumeration::run::Run;
use crate::enumeration::{Scenario, Step};
use crate::invariants::DELETED_BY_PERSON;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::DeleteParams;
use serde_json::json;

const SPEC: &str = r#"{"vm": {"state": "Running", "maximumCpus": 4, "maximumRam": "2Gi", "currentRam": "1Gi", "disks": [
    {"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}}]}}"#;
const STOPPED_BY_GUEST: &str = r#"{"guestShutdownStops": true, "vm": {"state": "Running"}}"#;
const GROWING: &str = r#"{"vm": {"state": "Running", "disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
    "storageClassName": "grows", "resources": {"requests": {"storage": "1Gi"}}}}}]}}"#;
const GROWN: Step = Step::Patch(
    r#"{"spec": {"vm": {"disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
    "storageClassName": "grows", "resources": {"requests": {"storage": "2Gi"}}}}}]}}}"#,
);
const LARGER_DISK: Step = Step::Patch(
    r#"{"spec": {"vm": {"disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
    "resources": {"requests": {"storage": "2Gi"}}}}}]}}}"#,
);
const WITH_IMAGE: &str = r#"{"vm": {"state": "Running", "disks": [
    {"source": {"http": {"url": "https://example.org/a.qcow2"}}, "volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
    "volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}}}]}}"#;
const WITH_CD: &str = r#"{"vm": {"state": "Running", "disks": [{"cdrom": {"image": "a.iso"}}]}}"#;
const OTHER_CD: Step =
    Step::Patch(r#"{"spec": {"vm": {"disks": [{"cdrom": {"image": "b.iso"}}]}}}"#);
const WITH_DISPLAY: &str = r#"{"vm": {"state": "Running", "display": {"spice": {}}}}"#;
const RUNNING: &[Step] = &[Step::Start, Step::Create];
const STOP: Step = Step::Patch(r#"{"spec": {"vm": {"state": "Stopped"}}}"#);
const START: Step = Step::Patch(r#"{"spec": {"vm": {"state": "Running"}}}"#);
const NO_SERVICE: Step = Step::Patch(r#"{"spec": {"loadBalancerService": {}}}"#);
const SERVICE: Step = Step::Patch(r#"{"spec": {"loadBalancerService": null}}"#);

const fn scenario(
    name: &'static str,
    before: &'static [Step],
    steps: &'static [Step],
    ready: &'static str,
) -> Scenario {
    Scenario {
        name,
        spec: SPEC,
        before,
        steps,
        ready,
        says: None,
    }
}

/// All scenarios of VMs.
pub const SCENARIOS: &[Scenario] = &[
    scenario("create", &[], RUNNING, "Running"),
    scenario("restart-of-operator", RUNNING, &[Step::Start], "Running"),
    scenario(
        "cpus",
        RUNNING,
        &[Step::Patch(r#"{"spec": {"vm": {"currentCpus": 2}}}"#)],
        "Running",
    ),
    scenario(
        "memory",
        RUNNING,
        &[Step::Patch(r#"{"spec": {"vm": {"currentRam": "2Gi"}}}"#)],
        "Running",
    ),
    Scenario {
        spec: GROWING,
        says: Some((
            "PersistentVolumeClaim/vm-system-disk",
            r#""capacity":{"storage":"2Gi"}"#,
        )),
        ..scenario("disk-size", RUNNING, &[GROWN], "Running")
    },
    // The storage class of this PVC does not allow expansion, so the API server rejects the change.
    Scenario {
        says: Some(("VirtualMachine/vm", r#""reason":"ExpansionRefused""#)),
        ..scenario("disk-size-refused", RUNNING, &[LARGER_DISK], "Running")
    },
    Scenario {
        spec: WITH_CD,
        ..scenario("cd", RUNNING, &[OTHER_CD], "Running")
    },
    scenario(
        "reset",
        RUNNING,
        &[Step::Patch(r#"{"spec": {"vm": {"resetRequest": 1}}}"#)],
        "Running",
    ),
    Scenario {
        spec: WITH_IMAGE,
        says: Some(("VirtualMachine/vm", r#""imported":true"#)),
        ..scenario("import", &[], RUNNING, "Running")
    },
    scenario(
        "restart-request",
        RUNNING,
        &[Step::Patch(r#"{"spec": {"vm": {"restartRequest": 1}}}"#)],
        "Running",
    ),
    scenario(
        "password",
        RUNNING,
        &[Step::Act(change_password)],
        "Running",
    ),
    scenario("service-off", RUNNING, &[NO_SERVICE], "Running"),
    scenario(
        "service-on",
        &[Step::Start, Step::Create, NO_SERVICE],
        &[SERVICE],
        "Running",
    ),
    scenario("stop", RUNNING, &[STOP], "Stopped"),
    scenario(
        "start",
        &[Step::Start, Step::Create, STOP],
        &[START],
        "Running",
    ),
    scenario("crash", RUNNING, &[Step::Act(crash)], "Running"),
    Scenario {
        spec: STOPPED_BY_GUEST,
        ..scenario("power-off", RUNNING, &[Step::Act(power_off)], "Stopped")
    },
    scenario("pod-deleted", RUNNING, &[Step::Act(delete_pod)], "Running"),
    scenario("delete", RUNNING, &[Step::Delete], ""),
    Scenario {
        says: Some(("VirtualMachine/vm", "PVC \\\"vm-system-disk\\\"")),
        ..scenario(
            "claim-deleted",
            RUNNING,
            &[Step::Act(delete_claim), Step::Act(delete_pod)],
            "DataMissing",
        )
    },
    scenario("adopt", &[Step::Act(adopt)], &[Step::Start], "Running"),
    Scenario {
        spec: WITH_DISPLAY,
        ..scenario("namesake", &[Step::Act(leave_objects)], RUNNING, "Running")
    },
];

/// A person deletes the PVC of the running VM.
fn delete_claim<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let (kind, name) = ("PersistentVolumeClaim", "vm-system-disk");
    async move {
        let label = json!({"metadata": {"labels": {DELETED_BY_PERSON: ""}}});
        let labelled = run.cluster.merge(kind, &run.namespace, name, "", label);
        labelled.await.unwrap();
        let claims = api(&run.cluster.client, kind, Some(&run.namespace));
        claims.delete(name, &DeleteParams::default()).await.unwrap();
    }
    .boxed()
}

/// QEMU crashes.
fn crash<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    end_pod(
        run,
        r#"{"reason":"QemuCrashed","message":"signal 9","qemuExit":-9}"#,
    )
    .boxed()
}

/// The guest powers itself off.
fn power_off<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    end_pod(run, r#"{"reason":"GuestShutdown","byGuest":true}"#).boxed()
}

async fn end_pod(run: &Run, outcome: &str) {
    let pod = run.cluster.get(&run.namespace, "Pod", "vm").unwrap();
    let times = ["2026-01-01T00:00:00Z"; 2];
    let terminated = json!({"exitCode": 71, "reason": "Error", "message": outcome, "startedAt": times[0], "finishedAt": times[1]});
    let container = json!({"name": pod["spec"]["containers"][0]["name"], "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": {"terminated": terminated}});
    let status = json!({"status": {"phase": "Failed", "containerStatuses": [container]}});
    run.cluster
        .merge("Pod", &run.namespace, "vm", "status", status)
        .await
        .unwrap();
}

/// A user deletes the pod.
fn delete_pod<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        run.deleted_by_others += 1;
        let pods = api(&run.cluster.client, "Pod", Some(&run.namespace));
        pods.delete("vm", &DeleteParams::default()).await.unwrap();
    }
    .boxed()
}

/// A user changes the display password.
fn change_password<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        let patch = json!({"stringData": {"display-password": "another"}});
        run.cluster
            .merge("Secret", &run.namespace, "vm-display-secret", "", patch)
            .await
            .unwrap();
    }
    .boxed()
}

/// A VM exists with all objects that the Java VM-Operator creates for it, and its pod runs.
fn adopt<'a>(run: &'a mut Run, scenario: &'a Scenario) -> BoxFuture<'a, ()> {
    adopted::make(&run.cluster, &run.namespace, scenario.spec).boxed()
}

/// All objects of a previous VM with the same name exist, because the garbage collector has missed them.
fn leave_objects<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    orphans::make(&run.cluster, &run.namespace).boxed()
}
