//! The commands of the README and the guides are valid in their order. They select VMs of this project even if KubeVirt
//! is installed.

use crate::apiserver::definition::Definition;
use crate::apiserver::definitions::kustomizations;
use crate::apiserver::world::{World, root};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use serde_json::json;
use vm_operator::api::VirtualMachine;

const SHOWN: &[&str] = &[
    "README.md",
    "docs/install.md",
    "docs/operations.md",
    "docs/upgrade.md",
    "docs/nodes.md",
    "docs/takeover.md",
];

/// Commands that have no dry run because they need a running pod or a named node; the end-to-end tests and the demo run them.
const WITHOUT_DRY_RUN: &[&str] = &["kubectl exec ", "kubectl port-forward ", "kubectl drain "];

/// The commands in a text: each line of a code block, and inline code.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for (n, part) in text.split("```").enumerate() {
        if n % 2 == 1 {
            // Several spaces precede a comment.
            let lines = part.lines().map(|line| {
                line.split("   #")
                    .next()
                    .unwrap_or_default()
                    .trim()
                    .to_owned()
            });
            commands.extend(lines);
        } else {
            commands.extend(
                part.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|code| code.replace('\n', " ")),
            );
        }
    }
    commands.retain(|command| command.starts_with("kubectl "));
    commands
}

/// The command as a dry run.
fn dry(command: &str) -> String {
    let verb = command.split_whitespace().nth(1).unwrap();
    let more = match verb {
        "apply" | "patch" | "delete" | "scale" | "label" => "--dry-run=server",
        // The object must exist.
        "create" => "--dry-run=client",
        "get" => "--ignore-not-found",
        "wait" | "rollout" => "--timeout=1s",
        _ => "",
    };
    format!("{command} {more}")
}

async fn prepare(world: &World) {
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    for example in ["smallest", "test-vm"] {
        let text =
            std::fs::read_to_string(root().join(format!("examples/{example}.yaml"))).unwrap();
        vms.create(
            &PostParams::default(),
            &serde_saphyr::from_str(&text).unwrap(),
        )
        .await
        .unwrap();
    }
    let secrets = Api::<Secret>::namespaced(world.client.clone(), &world.namespace);
    let secret = json!({"metadata": {"name": "test-vm-display-secret"}});
    secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(secret).unwrap(),
        )
        .await
        .unwrap();
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

#[tokio::test]
async fn each_command_that_is_shown_is_taken() {
    let world = World::new("commands").await;
    prepare(&world).await;
    let _others = Definition::with_the_names_of_kubevirt(&world).await;
    let (mut taken, mut wrong) = (0, Vec::new());
    for file in SHOWN {
        for command in commands(&std::fs::read_to_string(root().join(file)).unwrap()) {
            if WITHOUT_DRY_RUN
                .iter()
                .any(|start| command.starts_with(start))
            {
                continue;
            }
            if let Some((_, overlay)) = command.split_once(" -k ") {
                // The guide's copy of a file.
                let overlay = if overlay == "examples/my-takeover" {
                    "examples/takeover"
                } else {
                    overlay
                };
                let tried = kustomizations().iter().any(|tried| tried == overlay);
                assert!(tried, "{file}: no test applies {overlay}");
            } else if command.split_whitespace().count() > 2 {
                let command = dry(&command).replace("vmop-demo", &world.namespace);
                let result = world.shell(&command);
                // Nothing runs here to wait for.
                if result.as_ref().err().is_some_and(|result| {
                    !result.contains("timed out") && !result.contains("no matching")
                }) {
                    wrong.push(format!("{file}: {command}: {result:?}"));
                }
                taken += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(taken >= 15, "only {taken} commands were found");
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
