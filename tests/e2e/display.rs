//! The display's password and its certificate, with a real client: only a client that has the password and trusts the
//! certificate gets a picture.

use super::harness::display::{self, Entry};
use super::harness::vm::{BOOT, Vm, condition, ready_reason};
use super::harness::{Space, e2e, eventually, kubectl, process};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use support::web::Authority;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

/// The time limit in seconds until the kubelet has updated a Secret in the pod after the operator's trigger. Without a
/// trigger it refreshes volumes each minute.
const PROPAGATION: u64 = 20;

async fn secret(space: &Space, name: &str) -> Option<Value> {
    serde_json::from_str(
        &space
            .try_kubectl(&["get", "secret", name, "--output", "json"])
            .await
            .ok()?,
    )
    .ok()
}

async fn password(space: &Space, name: &str) -> String {
    let template = "go-template={{index .data \"display-password\" | base64decode}}";
    space
        .kubectl(&["get", "secret", name, "--output", template])
        .await
}

async fn set(space: &Space, secret: &str, values: &Value) {
    let patch = json!({"stringData": values}).to_string();
    space
        .kubectl(&[
            "patch", "secret", secret, "--type", "merge", "--patch", &patch,
        ])
        .await;
}

fn serial(vm: &Vm<'_>) -> i64 {
    vm.now()["status"]["displayPasswordSerial"]
        .as_i64()
        .unwrap_or_default()
}

/// Waits until the kubelet has updated the file in the pod, and the runner has reported another password than that of
/// the given serial.
async fn in_effect(vm: &Vm<'_>, before: i64, file: &str, content: &str) {
    let pod = vm.pod_uid();
    eventually(
        "the kubelet brings the secret into the pod",
        PROPAGATION,
        async || {
            if process::config_file(&pod, file).as_deref() == Some(content) {
                Ok(())
            } else {
                Err(String::new())
            }
        },
    )
    .await;
    vm.until("the display has the password", 30, |vm| {
        vm["status"]["displayPasswordSerial"].as_i64() > Some(before)
    })
    .await;
}

async fn expect(vm: &Vm<'_>, password: Option<&str>, entry: Entry) {
    let address = vm.now()["status"]["podIP"].as_str().unwrap().to_owned();
    let got = display::enter(&address, 5900, password).await;
    assert_eq!(got, entry, "with the password {password:?}");
}

/// A user's display Secret with the name of-my-own, for the VM with the name vm.
async fn create_own(space: &Space, values: &Value) {
    let labels = json!({
        "app.kubernetes.io/name": "vm-runner",
        "app.kubernetes.io/instance": "vm",
        "app.kubernetes.io/component": "display-secret",
    });
    let own = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": space.name, "name": "of-my-own", "labels": labels},
        "stringData": values,
    });
    kubectl::create(&own).await.unwrap();
}

/// A Secret with a certificate, in the format of cert-manager.
fn certificate(dir: &Path) -> Value {
    let file = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    json!({"tls.crt": file("server.pem"), "tls.key": file("server.key"), "ca.crt": file("ca.pem")})
}

/// The display's port on this host, by `kubectl port-forward`, because the certificate is for localhost. It serves one
/// client, because it ends with an aborted connection.
async fn forwarded(space: &Space) -> (Child, u16) {
    let mut command = kubectl::command(&[
        "--namespace",
        &space.name,
        "port-forward",
        "pod/vm",
        ":5900",
    ]);
    let mut forwarding = command
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(forwarding.stdout.as_mut().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap_or_default();
    let port = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("127.0.0.1:")?.parse().ok());
    (
        forwarding,
        port.unwrap_or_else(|| panic!("no port in {line:?}")),
    )
}

/// Asserts that the VM has not been disturbed since its first start.
fn was_never_disturbed(vm: &Vm<'_>) {
    assert_eq!(
        vm.space.pods.uids(&vm.name).len(),
        1,
        "the pod was not recreated"
    );
    let history = vm.space.vms.history(&vm.name);
    let reasons = history
        .iter()
        .map(|seen| ready_reason(&seen.object))
        .skip_while(|reason| reason != "Running");
    let others: Vec<String> = reasons.filter(|reason| reason != "Running").collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(
        condition(&vm.now(), "RestartRequired").is_null(),
        "{:#}",
        vm.now()
    );
}

#[test]
fn a_new_password_is_in_effect_at_once_and_the_old_one_is_not() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        let name = "vm-display-secret";
        let generated = password(space, name).await;
        expect(&vm, Some(&generated), Entry::Refused).await;

        for (n, password) in ["first", "second", "third"].into_iter().enumerate() {
            let before = serial(&vm);
            set(
                space,
                name,
                &json!({"display-password": password, "password-expiry": "never"}),
            )
            .await;
            in_effect(&vm, before, "display-password", password).await;
            if n != 1 {
                expect(&vm, Some(password), Entry::Admitted).await;
            }
        }
        expect(&vm, Some("second"), Entry::Refused).await;
        expect(&vm, None, Entry::Refused).await;

        // Only the expiry, in both directions.
        for (expiry, entry) in [("now", Entry::Refused), ("never", Entry::Admitted)] {
            let before = serial(&vm);
            set(space, name, &json!({"password-expiry": expiry})).await;
            in_effect(&vm, before, "password-expiry", expiry).await;
            expect(&vm, Some("third"), entry).await;
        }

        // A deleted generated Secret is created again with another password, which does not work yet.
        let before = serial(&vm);
        space.kubectl(&["delete", "secret", name]).await;
        eventually("the secret is recreated", 20, async || {
            secret(space, name).await.map(drop).ok_or(String::new())
        })
        .await;
        let regenerated = password(space, name).await;
        assert!(regenerated != "third" && regenerated != generated);
        in_effect(&vm, before, "display-password", &regenerated).await;
        expect(&vm, Some("third"), Entry::Refused).await;
        expect(&vm, Some(&regenerated), Entry::Refused).await;
        let before = serial(&vm);
        set(space, name, &json!({"password-expiry": "never"})).await;
        in_effect(&vm, before, "password-expiry", "never").await;
        expect(&vm, Some(&regenerated), Entry::Admitted).await;
        was_never_disturbed(&vm);
    });
}

/// The runner's tests cover certificates, and the simulated faults a user's Secret.
mod exhaustive {
    use super::*;

    #[test]
    fn a_secret_of_the_users_own_is_followed_and_never_written_and_without_one_the_display_is_open()
    {
        e2e(2, async |space| {
            create_own(space, &json!({"display-password": "fixed"})).await;
            let vm = space.create("vm", json!({})).await;
            let open = json!({"spec": {"vm": {"display": {"spice": {"generateSecret": false}}}}});
            let open = space.create("open", open).await;
            vm.booted().await;
            open.booted().await;
            expect(&vm, Some("fixed"), Entry::Admitted).await;
            expect(&vm, Some("other"), Entry::Refused).await;
            expect(&open, None, Entry::Admitted).await;
            assert_eq!(
                serial(&open),
                -1,
                "as the Java VM-Operator reports a missing password"
            );

            let before = serial(&vm);
            set(space, "of-my-own", &json!({"display-password": "changed"})).await;
            in_effect(&vm, before, "display-password", "changed").await;
            expect(&vm, Some("fixed"), Entry::Refused).await;
            expect(&vm, Some("changed"), Entry::Admitted).await;

            // A new operator processes all of it again.
            let version = secret(space, "of-my-own").await.unwrap()["metadata"].take();
            space.restart_operator().await;
            vm.patch(&json!({"spec": {"vm": {"currentCpus": 1}}})).await;
            vm.wait_for_reason("Running", BOOT).await;
            assert_eq!(
                secret(space, "of-my-own").await.unwrap()["metadata"],
                version
            );
            let all = [
                "get",
                "secrets",
                "--selector",
                "app.kubernetes.io/component=display-secret",
                "--output",
                "name",
            ];
            assert_eq!(space.kubectl(&all).await.trim(), "secret/of-my-own");
            was_never_disturbed(&vm);
            assert!(secret(space, "open-display-secret").await.is_none());
        });
    }

    #[test]
    fn display_uses_the_certificate_and_reports_a_renewed_one_until_restart() {
        e2e(1, async |space| {
            let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            Authority::make(first.path());
            Authority::make(second.path());
            let mut values = certificate(first.path());
            values["display-password"] = json!("word");
            create_own(space, &values).await;
            let vm = space.create("vm", json!({})).await;
            vm.booted().await;
            let admitted = async |dir: &Path| {
                let (_forwarding, port) = forwarded(space).await;
                display::enter_by_tls(port, "word", &dir.join("ca.pem")).await
            };
            let in_sync = async |status: &str, reason: &str| {
                let holds = |vm: &Value| {
                    let found = condition(vm, "ConfigInSync");
                    found["status"] == status && found["reason"] == reason
                };
                condition(
                    &vm.until(&format!("has reason {reason}"), 120, holds).await,
                    "ConfigInSync",
                )
            };
            in_sync("True", "Applied").await;
            assert!(admitted(first.path()).await && !admitted(second.path()).await);
            let (_forwarding, port) = forwarded(space).await;
            let (has_picture, output) =
                display::connect(&format!("spice://localhost:{port}"), Some("word"), None).await;
            assert!(!has_picture, "the port accepts only TLS: {output}");

            let pod = vm.pod_uid();
            set(space, "of-my-own", &certificate(second.path())).await;
            let found = in_sync("False", "RestartNeeded").await;
            assert!(
                found["message"].as_str().unwrap().contains("certificate"),
                "{found}"
            );
            assert!(admitted(first.path()).await && !admitted(second.path()).await);
            assert_eq!(vm.pod_uid(), pod, "nothing is restarted for it");

            vm.patch(&json!({"spec": {"vm": {"restartRequest": 1}}}))
                .await;
            vm.until("is restarted", BOOT, |vm| {
                vm["status"]["observedRestartRequest"] == 1
            })
            .await;
            vm.booted().await;
            in_sync("True", "Applied").await;
            assert!(admitted(second.path()).await && !admitted(first.path()).await);
        });
    }
}
