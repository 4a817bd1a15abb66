//! The cloud-init seed in the guest: from Secrets that no other object shows, and as large as Kubernetes allows.

use super::harness::vm::{BOOT, SHUTDOWN, Vm, condition, tiny, uid};
use super::harness::{Space, console, e2e, eventually, kubectl, process};
use serde_json::{Value, json};
use std::fs;

/// In brackets in the searched file, so that the command line does not contain the result.
const USER: (&str, &str) = ("geheim-user-1", "geheim-user-[1]");
const NETWORK: (&str, &str) = ("geheim-network-1", "geheim-network-[1]");
const CHANGED: (&str, &str) = ("geheim-user-2", "geheim-user-[2]");

/// Whether the seed, which is the guest's second disk, contains the text.
async fn seed_has(vm: &Vm<'_>, pattern: &str) -> bool {
    vm.guest(&format!("grep -c {pattern} /dev/vdb")).await != "0"
}

fn secret(space: &Space, user: &str) -> Value {
    let data = json!({
        "cloud-config": format!("#cloud-config\npassword: {user}\n"),
        "netplan": format!("version: 2\n# {}\n", NETWORK.0),
    });
    let metadata = json!({"namespace": space.name, "name": "guest"});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
}

/// All objects, logs and events of a VM except the Secret itself.
async fn all_output(vm: &Vm<'_>) -> String {
    let space = vm.space;
    let kinds = "vms,pods,configmaps,persistentvolumeclaims,services,events,deployments,leases";
    let mut output = space.kubectl(&["get", kinds, "--output", "yaml"]).await;
    output += &space.kubectl(&["describe", "vms,pods"]).await;
    for app in ["vm-operator", "vm-runner"] {
        let selector = format!("app.kubernetes.io/name={app}");
        output += &space
            .kubectl(&["logs", "--selector", &selector, "--tail", "-1"])
            .await;
    }
    output += &console::log(space, &vm.name).await.unwrap();
    let pod = vm.pod_uid();
    let programs = ["qemu-system-x86", "vm-runner"].map(|program| process::of_pod(&pod, program));
    for pid in programs.iter().flatten() {
        for file in ["cmdline", "environ"] {
            output += &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap());
        }
    }
    assert!(
        output.contains("qemu-system-x86_64")
            && output.contains("/etc/opt/vmrunner-seed/user-data"),
        "{output}"
    );
    output
}

#[test]
fn secret_seed_reaches_only_the_guest() {
    e2e(1, async |space| {
        let from = |key: &str| json!({"secretKeyRef": {"name": "guest", "key": key}});
        let seed =
            json!({"userDataFrom": from("cloud-config"), "networkConfigFrom": from("netplan")});
        let vm = space
            .create("vm", json!({"spec": {"cloudInit": seed}}))
            .await;
        let missing = vm.wait_for_reason("SecretMissing", 60).await;
        let message = condition(&missing, "Ready")["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(message.contains("secret \"guest\" not found"), "{message}");

        kubectl::create(&secret(space, USER.0)).await.unwrap();
        vm.booted().await;
        vm.counts().await;
        assert!(
            seed_has(&vm, USER.1).await && seed_has(&vm, NETWORK.1).await,
            "the guest has its seed"
        );
        let output = all_output(&vm).await;
        let at = output.find("geheim");
        assert!(
            at.is_none(),
            "{}",
            at.map_or("", |at| &output[at.saturating_sub(300)..at + 50])
        );

        // As documented: another content is for the next start, and no restart is required.
        let patch = json!({"stringData": {"cloud-config": format!("#cloud-config\npassword: {}\n", CHANGED.0)}});
        space
            .kubectl(&[
                "patch",
                "secret",
                "guest",
                "--type",
                "merge",
                "--patch",
                &patch.to_string(),
            ])
            .await;
        let now = vm.processed("Running").await;
        assert!(condition(&now, "RestartRequired").is_null(), "{now:#}");
        let pod = vm.pod_uid();
        vm.patch(&json!({"spec": {"vm": {"restartRequest": 1}}}))
            .await;
        vm.pod_after(&pod, SHUTDOWN + BOOT).await;
        vm.booted().await;
        vm.counts().await;
        assert!(seed_has(&vm, CHANGED.1).await && !seed_has(&vm, USER.1).await);
    });
}

/// A VM with user-data of that many bytes, the last of which the guest can find.
fn with_user_data(space: &Space, name: &str, bytes: usize) -> Value {
    let content = format!("{}end-of-1", "0123456789abcde\n".repeat(bytes / 17));
    let files = json!([{"path": "/etc/large", "content": content}]);
    tiny(
        space,
        name,
        &json!({"spec": {"cloudInit": {"userData": {"write_files": files}}}}),
    )
}

/// The operator's memory in MiB.
fn memory(pod_uid: &str) -> u64 {
    let [pid] = <[String; 1]>::try_from(process::of_pod(pod_uid, "vm-operator")).unwrap();
    process::field(&pid, "VmRSS").parse::<u64>().unwrap() >> 10
}

/// Far more MiB than the copies of one VM's user-data, because the allocator's share varies. A copy for each event of
/// the VM would exceed it.
const GROWTH_MAX: u64 = 128;

#[test]
fn user_data_of_900_kib_reaches_the_guest_and_larger_data_is_reported_once() {
    e2e(1, async |space| {
        const KIB: usize = 1 << 10;
        let operator = space.operator().await;
        let memory_before = memory(&uid(&operator));
        let disk = space
            .tiny_disk(
                "vm",
                &json!({"vm-operator.test/disk": format!("{}-vm", space.name)}),
            )
            .await;
        let large = with_user_data(space, "vm", 900 * KIB);

        // Plain `kubectl apply` stores a copy in an annotation, and annotations are limited to 256 KiB.
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), large.to_string()).unwrap();
        let path = file.path().display().to_string();
        let error = space
            .try_kubectl(&["apply", "--filename", &path])
            .await
            .unwrap_err();
        assert!(error.contains("metadata.annotations: Too long"), "{error}");
        space
            .kubectl(&["apply", "--server-side", "--filename", &path])
            .await;
        let vm = Vm {
            space,
            name: "vm".to_owned(),
            disk,
        };
        vm.booted().await;
        vm.counts().await;
        assert!(seed_has(&vm, "end-of-[1]").await, "all of it is there");

        kubectl::create(&with_user_data(space, "larger", 1080 * KIB))
            .await
            .unwrap();
        let condition = eventually("the larger one is explained", 30, async || {
            let ready = condition(&space.vms.get("larger").unwrap_or_default(), "Ready");
            if ready["reason"] == "InvalidSpec" {
                Ok(ready)
            } else {
                Err(format!("{ready:#}"))
            }
        })
        .await;
        let message = condition["message"].as_str().unwrap_or_default();
        for text in ["spec.cloudInit", "1048576", "userDataFrom"] {
            assert!(message.contains(text), "{message}");
        }
        let writes = || space.audit.writes_by(&space.name, "vm-operator");
        let about = || {
            writes()
                .into_iter()
                .filter(|write| write.object.1.starts_with("larger"))
                .count()
        };
        let before = about();
        assert!(before > 0, "the audit log has the explanation");
        let pod = operator["metadata"]["name"].as_str().unwrap();
        for n in 1..=3 {
            let reconciles = space.reconciles(pod).await.unwrap();
            space
                .kubectl(&["label", "vm", "larger", "--overwrite", &format!("look={n}")])
                .await;
            eventually("the operator has looked at it again", 60, async || {
                let now = space.reconciles(pod).await?;
                if now > reconciles {
                    Ok(())
                } else {
                    Err(format!("{now} reconciles"))
                }
            })
            .await;
        }
        assert_eq!(
            (about(), space.pods.uids("larger").len()),
            (before, 0),
            "it is reported once, and nothing else happens"
        );
        let used = memory(&uid(&operator));
        assert!(
            used < memory_before + GROWTH_MAX,
            "the operator takes {used} MiB, and took {memory_before} MiB at first"
        );
        vm.wait_for_reason("Running", BOOT).await;
    });
}
