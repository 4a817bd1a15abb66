//! Adoption of running VMs of the Java VM-Operator. The tests create its objects and send the requests of its runner.

use crate::apiserver::definition::Definition;
use crate::apiserver::world::{World, eventually, machine};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::{find, is_true};
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;

/// The image that the definition of the Java VM-Operator sets in each VM.
const IMAGE: &str = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest";

fn at(seconds: u32) -> String {
    format!("2026-01-01T00:00:{seconds:02}Z")
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": "", "observedGeneration": 1,
        "lastTransitionTime": at(1),
    })
}

/// The complete status that the runner of the Java VM-Operator writes.
fn java_status(cpus: i64) -> Value {
    json!({
        "runnerVersion": "4.0.3", "cpus": cpus, "ram": "1Gi", "displayPasswordSerial": 1, "consoleClient": "", "assignment": {},
        "conditions": [
            condition("Running", "True", "VmStarted"), condition("Booted", "False", "VmStarted"),
            condition("VmopAgentConnected", "False", "VmStopped"), condition("UserLoggedIn", "False", "NotRequested"),
            condition("ConsoleConnected", "False", "VmStopped"),
        ],
    })
}

/// The only status write of that runner: a JSON patch that replaces the status by an older read state.
async fn replace_status(vms: &Api<VirtualMachine>, status: &Value) {
    let patch = json!([{"op": "replace", "path": "/status", "value": status}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    let params = PatchParams {
        field_manager: Some("kubernetes-java-kubectl-apply".to_owned()),
        ..Default::default()
    };
    vms.patch_status("vm", &params, &patch).await.unwrap();
}

async fn create<K>(world: &World, object: Value) -> K
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api = Api::<K>::namespaced(world.client.clone(), &world.namespace);
    api.create(
        &PostParams::default(),
        &serde_json::from_value(object).unwrap(),
    )
    .await
    .unwrap()
}

/// A VM with all objects that the Java VM-Operator creates for it, and a running pod.
async fn of_the_reference(world: &World) -> Pod {
    let template = json!({"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "1Mi"}}}});
    let spec = json!({
        "image": {"source": IMAGE}, "nodeSelector": {"no-such": "node"},
        "cloudInit": {"userData": {"hostname": "guest"}},
        "vm": {"state": "Running", "maximumCpus": 2, "currentCpus": 2, "maximumRam": "1Gi", "disks": [{"volumeClaimTemplate": template}]},
    });
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let vm = vms
        .create(&PostParams::default(), &machine("vm", spec))
        .await
        .unwrap();
    replace_status(&vms, &java_status(2)).await;

    let labels = json!({
        "app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm", "app.kubernetes.io/managed-by": "vm-operator",
    });
    let with = |component: &str| {
        let mut labels = labels.clone();
        labels["app.kubernetes.io/component"] = component.into();
        labels
    };
    let owner = json!([{
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": "vm", "uid": vm.uid(),
        "controller": false, "blockOwnerDeletion": true,
    }]);
    let config = "\"/Runner\":\n  dataDir: /var/local/vm-data\n  cloudInit:\n    metaData: {instance-id: v3, local-hostname: vm}\n    userData: {hostname: guest}\n  vm: {name: vm}\n";
    let data = json!({"config.yaml": config, "logging.properties": ""});
    let metadata = json!({"name": "vm", "labels": labels, "ownerReferences": owner});
    create::<ConfigMap>(world, json!({"metadata": metadata, "data": data})).await;
    for (name, mode, size) in [
        ("vm-runner-data", "Filesystem", "1Mi"),
        ("vm-system-disk", "Block", "1Mi"),
        ("vmop-image-repository", "Filesystem", "1Gi"),
    ] {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "resources": {"requests": {"storage": size}},
        });
        create::<PersistentVolumeClaim>(
            world,
            json!({"metadata": {"name": name, "labels": labels}, "spec": spec}),
        )
        .await;
    }
    let mut secret_labels = with("display-secret");
    secret_labels
        .as_object_mut()
        .unwrap()
        .remove("app.kubernetes.io/managed-by");
    let data = json!({"display-password": "secret", "password-expiry": "never"});
    let metadata = json!({"name": "vm-display-secret", "labels": secret_labels});
    create::<Secret>(world, json!({"metadata": metadata, "stringData": data})).await;

    let metadata = json!({
        "name": "vm", "labels": with("vm-runner"), "ownerReferences": owner,
        "annotations": {"vmrunner.jdrupes.org/cmVersion": "1", "vmoperator.jdrupes.org/version": "4.0.3"},
    });
    let container = json!({
        "name": "vm", "image": IMAGE, "securityContext": {"privileged": true},
        "resources": {"requests": {"cpu": "1", "memory": "858993459"}},
    });
    let spec = json!({
        "containers": [container], "hostNetwork": true, "nodeSelector": {"no-such": "node"}, "serviceAccountName": "vm-runner",
        "terminationGracePeriodSeconds": 905,
    });
    let pod = create::<Pod>(world, json!({"metadata": metadata, "spec": spec})).await;
    let started = json!({"running": {"startedAt": at(1)}});
    let container = json!({
        "name": "vm", "image": IMAGE, "imageID": "", "ready": true, "started": true, "restartCount": 0, "state": started,
    });
    let status = json!({"status": {"phase": "Running", "containerStatuses": [container]}});
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    pods.patch_status("vm", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    pod
}

fn ready_reason(vm: &VirtualMachine) -> String {
    let status = vm.status.as_ref().unwrap();
    find(&status.conditions, conditions::READY)
        .map(|ready| ready.reason.clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_running_vm_of_the_reference_is_taken_over_without_a_restart() {
    let world = World::new("adoption").await;
    // Pods of the Java VM-Operator are privileged.
    let privileged =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let namespaces = Api::<Namespace>::all(world.client.clone());
    namespaces
        .patch(
            &world.namespace,
            &PatchParams::default(),
            &Patch::Merge(privileged),
        )
        .await
        .unwrap();
    let pod = of_the_reference(&world).await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let is_running = || async { ready_reason(&vms.get("vm").await.unwrap()) == "Running" };

    let operator = world.start_operator().await;
    eventually("the VM is known to run", is_running).await;
    let config_maps = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    eventually("its configuration is ours", || async {
        let config_map = config_maps.get("vm").await.unwrap();
        config_map
            .owner_references()
            .first()
            .is_some_and(|owner| owner.controller == Some(true))
    })
    .await;
    let instance_id = async || {
        let data = config_maps.get("vm").await.unwrap().data.unwrap();
        let config: Value = serde_json::from_str(&data["config.yaml"]).unwrap();
        config["/Runner"]["cloudInit"]["metaData"]["instance-id"].clone()
    };
    assert_eq!(
        instance_id().await,
        "v3",
        "the guest is not set up a second time"
    );
    let writes = operator.writes();
    let about_pods = |writes: &[String]| {
        writes
            .iter()
            .filter(|write| write.contains("/pods") && !write.starts_with("PATCH"))
            .count()
    };
    assert_eq!(
        about_pods(&writes),
        0,
        "no pod is created or deleted: {writes:#?}"
    );
    let made = writes
        .iter()
        .filter(|write| write.starts_with("POST"))
        .collect::<Vec<_>>();
    assert_eq!(
        made,
        Vec::<&String>::new(),
        "claims, secret and ConfigMap are those that were there"
    );
    assert_eq!(pods.get("vm").await.unwrap().uid(), pod.uid());

    // Its runner still writes outdated states. The operator restores its part each time with one write.
    let status_writes = || {
        operator
            .writes()
            .iter()
            .filter(|write| write.ends_with("/vms/vm/status"))
            .count()
    };
    for round in 1..=5 {
        let before = status_writes();
        replace_status(&vms, &java_status(1 + round % 2)).await;
        eventually("our condition is back", is_running).await;
        assert!(
            status_writes() <= before + 1,
            "round {round}: {:#?}",
            operator.writes()
        );
    }
    let vm = vms.get("vm").await.unwrap();
    assert!(
        is_true(&vm.status.as_ref().unwrap().conditions, conditions::RUNNING),
        "its own are left to it"
    );

    // The next start uses this project's runner.
    for state in ["Stopped", "Running"] {
        let patch = json!({"spec": {"vm": {"state": state}}});
        vms.patch("vm", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        let wanted = state == "Running";
        eventually("the pod follows", || async {
            pods.get_opt("vm")
                .await
                .unwrap()
                .is_some_and(|now| now.uid() != pod.uid())
                == wanted
                && (wanted || pods.get_opt("vm").await.unwrap().is_none())
        })
        .await;
    }
    assert_eq!(instance_id().await, "v3");
    let pod = pods.get("vm").await.unwrap().spec.unwrap();
    assert!(
        pod.containers[0]
            .image
            .as_ref()
            .unwrap()
            .starts_with("localhost/vm-runner:"),
        "{:?}",
        pod.containers[0].image
    );
    assert_eq!(
        (pod.host_network, pod.restart_policy.as_deref()),
        (None, Some("Never"))
    );
    // A change of the cloud-init data gives the VM a new instance ID. The adopted one is removed.
    let patch = json!({"spec": {"cloudInit": {"userData": {"hostname": "other"}}}});
    vms.patch("vm", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    eventually("it is another instance", || async {
        instance_id().await != "v3"
    })
    .await;
    let config_map = config_maps.get("vm").await.unwrap();
    assert!(
        !config_map
            .annotations()
            .contains_key(names::ANNOTATION_INSTANCE_ID),
        "{:?}",
        config_map.annotations()
    );
    operator.stop().await;
}

#[tokio::test]
async fn both_write_their_conditions_after_the_references_definition_was_replaced_under_a_live_vm()
{
    let world = World::new("replaced").await;
    let definition = Definition::with_a_list_of_conditions(&world).await;
    definition
        .create("vm", &json!({"vm": {}}), false)
        .await
        .unwrap();
    definition.replace_status("vm", &java_status(2)).await;
    definition.replace().await;

    let apply = async |manager, condition| {
        definition
            .apply_status("vm", manager, &json!({"conditions": [condition]}))
            .await
            .unwrap();
    };
    let conditions = async || {
        let status = definition.status("vm").await;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions
            .iter()
            .map(|c| format!("{}={}", c["type"], c["status"]).replace('"', ""))
            .collect::<Vec<_>>()
    };
    let ready = condition("Ready", "True", "Running");
    // Until the new schema is in force, the list is replaced as a whole.
    eventually(
        "the operator's condition stands beside the others",
        || async {
            definition.replace_status("vm", &java_status(2)).await;
            apply(names::MANAGER_OPERATOR, ready.clone()).await;
            conditions().await.len() == 6
        },
    )
    .await;
    apply(
        names::MANAGER_RUNNER,
        condition("Running", "False", "VmStopped"),
    )
    .await;
    let now = conditions().await;
    assert_eq!(now.len(), 6, "{now:?}");
    assert!(
        now.contains(&"Ready=True".to_owned()) && now.contains(&"Running=False".to_owned()),
        "{now:?}"
    );
    // Again with the JSON patch of the Java VM-Operator's runner.
    definition.replace_status("vm", &java_status(2)).await;
    apply(names::MANAGER_OPERATOR, ready).await;
    let now = conditions().await;
    assert!(
        now.len() == 6 && now.contains(&"Running=True".to_owned()),
        "{now:?}"
    );
}
