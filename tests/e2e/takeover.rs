//! The guide `docs/takeover.md`, from its first to its last command, as printed. A namespace of the Java VM-Operator,
//! with its definition, its objects and stand-ins for its programs, is migrated and reverted.

mod reference;

use super::harness::kubectl::typed;
use super::harness::space::e2e_in_an_empty_namespace;
use super::harness::vm::{Vm, condition, uid};
use super::harness::{Space, environment, eventually, process};
use reference::Reference;
use serde_json::{Value, json};
use std::fs;

/// The commands of a section of the guide, by its steps. A section without steps is one step.
fn steps(heading: &str) -> Vec<Vec<String>> {
    let guide = fs::read_to_string(environment::repo().join("docs/takeover.md")).unwrap();
    let section = guide
        .split(heading)
        .nth(1)
        .unwrap_or_else(|| panic!("no {heading:?} in the guide"));
    let section = section.split("\n## ").next().unwrap();
    let (mut steps, mut in_block) = (vec![Vec::new()], false);
    for line in section.lines() {
        let is_step = line
            .split_once(". **")
            .is_some_and(|(n, _)| n.parse::<usize>().is_ok_and(|n| n == steps.len()));
        if is_step {
            steps.push(Vec::new());
        }
        match line.trim() {
            fence if fence.starts_with("```") => in_block = !in_block,
            command if in_block => steps.last_mut().unwrap().push(command.to_owned()),
            _ => {}
        }
    }
    steps
}

/// Runs the commands with this namespace and this copy of `examples/takeover`, which the guide calls
/// `examples/my-takeover`.
async fn follow(space: &Space, commands: &[String]) -> Vec<String> {
    let mut outputs = Vec::new();
    for command in commands {
        let copy = space.overlay_dir().display().to_string();
        outputs.push(
            typed(
                &command
                    .replace("vmop-demo", &space.name)
                    .replace("examples/my-takeover", &copy),
            )
            .await,
        );
    }
    outputs
}

/// The copy of `examples/takeover` of the first step.
fn copy_of_the_example(space: &Space, with_component: bool) {
    let text = fs::read_to_string(environment::repo().join("examples/takeover/kustomization.yaml"))
        .unwrap();
    let mut copy: Value =
        serde_saphyr::from_str(&text.replace("../../deploy", "../../../deploy")).unwrap();
    copy["namespace"] = space.name.clone().into();
    if !with_component {
        copy.as_object_mut().unwrap().remove("components");
    }
    // The configuration of the Java VM-Operator, unchanged.
    let patch = json!([{"op": "replace", "path": "/data/config.yaml", "value": reference::CONFIG}]);
    let patch =
        json!({"target": {"kind": "ConfigMap", "name": "vm-operator"}, "patch": patch.to_string()});
    copy["patches"].as_array_mut().unwrap().push(patch);
    fs::write(
        space.overlay_dir().join("kustomization.yaml"),
        copy.to_string(),
    )
    .unwrap();
}

/// The running pod: its UID and the restarts of its container.
fn life(vm: &Vm<'_>) -> (String, Value) {
    let pod = vm.pod().unwrap();
    (
        uid(&pod),
        pod["status"]["containerStatuses"][0]["restartCount"].clone(),
    )
}

/// Asserts that an object of the Java VM-Operator belongs to the operator and has not changed otherwise.
async fn is_adopted(space: &Space, kind: &str, before: &str) {
    eventually(&format!("the {kind} is adopted"), 30, async || {
        let object = space
            .kubectl(&["get", kind, "test-vm", "--output", "json"])
            .await;
        let object: Value = serde_json::from_str(&object).unwrap();
        assert_eq!(uid(&object), before);
        if object["metadata"]["ownerReferences"][0]["controller"] == true {
            Ok(())
        } else {
            Err(object.to_string())
        }
    })
    .await;
}

/// The disk's content, the VM's UUID and the instance ID of its seed.
async fn check_retained_state(space: &Space, vm: &Vm<'_>) {
    assert_eq!(
        vm.counts().await.boot,
        1,
        "the disk is the guest's, which boots for the first time"
    );
    let kept = vm
        .guest("dd if=/dev/vda bs=512 skip=97256 count=1 2>/dev/null | head -c 20")
        .await;
    assert_eq!(kept, reference::ON_THE_DISK);
    let uuid = vm.guest("cat /sys/class/dmi/id/product_uuid").await;
    assert_eq!(uuid, reference::UUID);
    assert_eq!(
        vm.guest("grep -c v17 /dev/vdb").await,
        "1",
        "it is the instance that it was"
    );
    let pod = vm.pod().unwrap();
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert!(pod["spec"]["hostNetwork"].is_null(), "{:#}", pod["spec"]);
    assert!(
        condition(&vm.now(), "Accelerated").is_object(),
        "the runner reports more, in {}",
        space.name
    );
}

async fn revert(space: &Space, reference: &Reference<'_>, test_vm: &Vm<'_>, other: &Vm<'_>) {
    let (ours, theirs) = (life(test_vm), life(other));
    let [commands] = <[Vec<String>; 1]>::try_from(steps("\n## Roll back\n")).unwrap();
    follow(space, &commands).await;
    reference.install_again().await;
    assert_eq!(
        (life(test_vm), life(other)),
        (ours, theirs),
        "nothing restarts by it"
    );
    assert_eq!(
        process::of_pod(&test_vm.pod_uid(), "qemu-system-x86").len(),
        1
    );
    // The fields that the Java VM-Operator reads have not changed.
    let now = reference::get(space, "vm", "test-vm").await;
    assert_eq!(now["spec"]["vm"]["state"], "Running");
    assert_eq!(
        reference::get(space, "secret", "test-vm-display-secret").await["data"]["display-password"],
        "c2VjcmV0"
    );
    assert!(
        reference::get(space, "pvc", "test-vm-system-disk")
            .await
            .is_object()
    );
}

/// The tests on a real API server dry-run the guide's commands.
mod exhaustive {
    use super::*;

    #[test]
    fn the_guide_takes_a_namespace_of_the_reference_over_and_gives_it_back() {
        // The definitions are cluster-scoped, so no other VM of these tests exists at the same time.
        e2e_in_an_empty_namespace(environment::SLOTS, async |space| {
            let way_over = steps("\n## Migrate\n");
            assert_eq!(way_over.len(), 9, "{way_over:#?}");
            let reference = Reference::install(space).await;
            let test_vm = reference.vm("test-vm").await;
            let other = reference.vm("other").await;
            let (first, second) = (life(&test_vm), life(&other));
            let config_map = uid(&reference::get(space, "configmap", "test-vm").await);
            let claims = space
                .kubectl(&[
                    "get",
                    "pvc",
                    "--output",
                    "jsonpath={.items[*].metadata.uid}",
                ])
                .await;
            copy_of_the_example(space, true);

            let before = follow(space, &way_over[2]).await;
            for step in &way_over[3..=5] {
                follow(space, step).await;
            }
            for vm in [&test_vm, &other] {
                vm.wait_for_reason("Running", 60).await;
            }
            is_adopted(space, "configmap", &config_map).await;
            let looked = follow(space, &way_over[6]).await;
            assert_eq!(looked[1], before[0], "the pods are those from before");
            assert!(
                looked[0].contains("test-vm") && looked[0].contains("other"),
                "{}",
                looked[0]
            );
            assert!(
                looked[2].contains("spec.runnerTemplate.source"),
                "{}",
                looked[2]
            );
            assert_eq!(
                (life(&test_vm), life(&other)),
                (first.clone(), second.clone())
            );
            // Its runner still writes outdated states. The operator restores its part.
            reference.writes_status("other").await;
            other.wait_for_reason("Running", 30).await;
            let secret = reference::get(space, "secret", "test-vm-display-secret").await;
            assert_eq!(
                secret["data"]["display-password"], "c2VjcmV0",
                "passwords stay"
            );

            follow(space, &way_over[7]).await;
            test_vm.booted().await;
            assert_ne!(life(&test_vm).0, first.0);
            check_retained_state(space, &test_vm).await;
            assert_eq!(life(&other), second, "the other one is left alone");
            assert_eq!(
                space
                    .kubectl(&[
                        "get",
                        "pvc",
                        "--output",
                        "jsonpath={.items[*].metadata.uid}"
                    ])
                    .await,
                claims,
                "no claim was created or removed"
            );
            // The last step, without the pod, which still belongs to the Java VM-Operator.
            copy_of_the_example(space, false);
            follow(space, &way_over[5][1..]).await;
            follow(space, &way_over[8]).await;

            revert(space, &reference, &test_vm, &other).await;
        });
    }
}
