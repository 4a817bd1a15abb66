//! The commands of the README and of the pages in `docs/` are valid, in the order of the table of contents. They select VMs of
//! this project even if KubeVirt is installed.
//!
//! Each page is one script. A function in place of kubectl turns commands into dry runs, except `apply -f` and `patch`. Blocks with the
//! comment `not run` are left out. Their complete lines and inline commands are dry runs too, but objects may be missing.

use crate::apiserver::definition::Definition;
use crate::apiserver::definitions::kustomizations;
use crate::apiserver::peerpods;
use crate::apiserver::sip;
use crate::apiserver::world::{World, root, server};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, PostParams};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use support::pages::{Page, complete_lines, pages, reader};
use vm_operator::api::VirtualMachine;

/// The function in place of kubectl, and `shown` for commands about objects that may be missing. Each accepted command is a line of
/// the file `taken`. Commands that need a running pod or a terminal have no dry run; the end-to-end tests and the demo run them.
const FUNCTIONS: &str = r#"
set -euo pipefail
kubectl() {
    local more=()
    case $1 in
        exec | port-forward | drain | uncordon | taint | logs | cp | edit | auth) return 0 ;;
        create) more=(--dry-run=client) ;;
        # A kustomization has a namespace of its own. Another test applies it.
        apply)
            [[ " $* " != *" -k "* ]] || return 0
            [[ -z ${IS_DRY:-} ]] || more=(--dry-run=server)
            ;;
        patch) [[ -z ${IS_DRY:-} ]] || more=(--dry-run=server) ;;
        label | annotate | scale) more=(--dry-run=server) ;;
        delete) more=(--dry-run=server --ignore-not-found) ;;
        get) more=(--ignore-not-found) ;;
        wait) more=(--timeout=200ms) ;;
        rollout) [[ $2 != status ]] || more=(--timeout=200ms) ;;
    esac
    echo "$*" >>"$HOME/taken"
    "$KUBECTL" "$@" "${more[@]}" 2>"$HOME/errors" || {
        # Nothing runs here to wait for.
        [[ $1 == wait || $1 == rollout ]] && grep -qE 'timed out|no matching|deadline exceeded' "$HOME/errors" || {
            cat "$HOME/errors" >&2
            return 1
        }
    }
}
# No pod has written an archive.
tar() { return 0; }
shown() {
    IS_DRY=1 kubectl "$@" 2>"$HOME/shown" || grep -qE "not found|no matching|doesn't have a resource type" "$HOME/shown" || {
        printf 'kubectl %s: ' "$*" >&2
        cat "$HOME/shown" >&2
        return 1
    }
}
"#;

async fn prepare(world: &World) {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    for example in ["test-vm", "install-from-cd", "install-from-url"] {
        let path = root().join(format!("examples/{example}.yaml"));
        let vm = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        vms.create(&PostParams::default(), &vm).await.unwrap();
    }
    let secrets = Api::<Secret>::namespaced(world.client.clone(), &world.namespace);
    for vm in ["test-vm", "debian"] {
        let secret = json!({"metadata": {"name": format!("{vm}-display-secret")}});
        let secret = serde_json::from_value(secret).unwrap();
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
    }
    // A page reads the image of its container.
    let rights = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container =
        json!({"name": "vm", "image": "localhost/vm-runner", "securityContext": rights});
    let pod = json!({"metadata": {"name": "debian"}, "spec": {"containers": [container]}});
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let objects = world.kustomize("deploy/base");
    let mut deployment = objects
        .into_iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    // No operator runs here.
    deployment["spec"]["replicas"] = json!(0);
    let deployments = Api::<Deployment>::namespaced(world.client.clone(), &world.namespace);
    deployments
        .create(
            &PostParams::default(),
            &serde_json::from_value(deployment).unwrap(),
        )
        .await
        .unwrap();
}

/// The script of a page.
fn script(page: &Page) -> String {
    let mut script = FUNCTIONS.to_owned();
    let shown = |command: &str| format!("{}\n", command.replacen("kubectl ", "shown ", 1));
    for block in &page.blocks {
        if block.is_run {
            script += &block.text;
        } else {
            complete_lines(&block.text).for_each(|line| script += &shown(line));
        }
    }
    page.inline
        .iter()
        .for_each(|command| script += &shown(command));
    script
}

/// Objects of the Prometheus Operator. The API server of these tests lacks their definitions.
const OF_PROMETHEUS: &str = "deploy/monitoring";

/// Directories of `apply -k` and `delete -k` that no test applies.
fn untried_kustomizations(script: &str) -> Vec<&str> {
    let folders = script
        .split(" -k ")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next());
    let is_untried = |folder: &&str| {
        let is_tried = kustomizations().iter().any(|tried| tried == folder);
        folder.contains('/') && !is_tried && !folder.starts_with(OF_PROMETHEUS)
    };
    folders.filter(is_untried).collect()
}

/// The directory of a reader with a key for SSH.
fn reader_with_key() -> tempfile::TempDir {
    let folder = reader();
    let key = folder.path().join(".ssh/id_ed25519.pub");
    std::fs::write(key, "ssh-ed25519 AAAAC3Nza reader@example.org\n").unwrap();
    folder
}

/// Runs a script. Returns its error.
fn run(script: &str, folder: &Path) -> Option<String> {
    let output = Command::new("bash")
        .args(["-c", script])
        .current_dir(folder)
        .env("HOME", folder)
        .env("KUBECTL", server().path("kubectl"))
        .env("KUBECONFIG", server().path("kubeconfig"))
        // kubectl must not use the cached kinds of another cluster.
        .env("KUBECACHEDIR", server().path("kubectl-cache"))
        .output()
        .expect("bash is missing");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(errors)
}

#[tokio::test]
async fn each_command_that_is_shown_is_taken() {
    let world = World::new("commands").await;
    prepare(&world).await;
    let _others = Definition::with_the_names_of_kubevirt(&world).await;
    let (reader, mut wrong) = (reader_with_key(), Vec::new());
    for page in pages() {
        let script = script(&page);
        let untried = untried_kustomizations(&script);
        wrong.extend(
            untried
                .iter()
                .map(|folder| format!("{}: no test applies {folder}", page.name)),
        );
        let script = ["vmop-demo", "team-red"]
            .iter()
            .fold(script, |script, name| {
                script.replace(name, &world.namespace)
            });
        let error = run(&script, reader.path());
        wrong.extend(error.map(|error| format!("{}: {error}", page.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let taken = std::fs::read_to_string(reader.path().join("taken")).unwrap();
    let taken = taken.lines().count();
    assert!(taken >= 100, "only {taken} commands were found");
}

/// The first command of a page, as it is printed.
fn first_command(page: &str) -> String {
    let block = page.split("```").nth(1).unwrap_or_default();
    block.trim().lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn first_command_of_each_runbook_works_as_printed() {
    let world = World::new("runbooks").await;
    prepare(&world).await;
    drop(peerpods::install(&world).await);
    drop(sip::install(&world).await);
    let folder = root().join("docs/runbooks");
    let mut tried = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let command = first_command(&std::fs::read_to_string(&path).unwrap());
        assert!(command.starts_with("kubectl "), "{}", path.display());
        let result = world.shell(&command);
        assert!(result.is_ok(), "{}: {command}: {result:?}", path.display());
        tried += 1;
    }
    assert!(tried > 10, "{tried}");
}
