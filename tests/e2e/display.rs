//! The display's password, with a real client: who has it gets a picture, whoever has another does not.

use super::harness::display::{self, Entry};
use super::harness::vm::{BOOT, Vm, condition, ready_reason};
use super::harness::{Space, e2e, eventually, kubectl, process};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Seconds until the kubelet has brought a new secret into the pod. Its own look at all volumes is a minute apart: what
/// is quicker than this was announced.
const PROPAGATION: u64 = 20;
/// From the file in the pod to the runner's word that QEMU has it.
const IN_EFFECT: Duration = Duration::from_secs(2);

async fn secret(space: &Space, name: &str) -> Option<Value> {
    serde_json::from_str(&space.try_kubectl(&["get", "secret", name, "--output", "json"]).await.ok()?).ok()
}

async fn password(space: &Space, name: &str) -> String {
    let template = "go-template={{index .data \"display-password\" | base64decode}}";
    space.kubectl(&["get", "secret", name, "--output", template]).await
}

async fn set(space: &Space, secret: &str, values: &Value) {
    let patch = json!({"stringData": values}).to_string();
    space.kubectl(&["patch", "secret", secret, "--type", "merge", "--patch", &patch]).await;
}

fn serial(vm: &Vm<'_>) -> i64 {
    vm.now()["status"]["displayPasswordSerial"].as_i64().unwrap_or_default()
}

/// Waits until the runner has told of another password than that of the serial given, and that within the time that it
/// has for it since the file changed.
async fn in_effect(vm: &Vm<'_>, before: i64, file: &str, content: &str) {
    let pod = vm.pod_uid();
    eventually("the kubelet brings the secret into the pod", PROPAGATION, async || {
        if process::config_file(&pod, file).as_deref() == Some(content) { Ok(()) } else { Err(String::new()) }
    })
    .await;
    let began = Instant::now();
    vm.until("the display has the password", 30, |vm| vm["status"]["displayPasswordSerial"].as_i64() > Some(before))
        .await;
    let took = began.elapsed();
    assert!(took <= IN_EFFECT, "{file} was in the pod {took:?} before it was in effect");
}

async fn expect(vm: &Vm<'_>, password: Option<&str>, entry: Entry) {
    let address = vm.now()["status"]["podIP"].as_str().unwrap().to_owned();
    let got = display::enter(&address, 5900, password).await;
    assert_eq!(got, entry, "with the password {password:?}");
}

/// Since the VM ran first, nothing has disturbed it.
fn was_never_disturbed(vm: &Vm<'_>) {
    assert_eq!(vm.space.pods.uids(&vm.name).len(), 1, "the pod was not made anew");
    let ever = vm.space.vms.ever(&vm.name);
    let reasons = ever.iter().map(|seen| ready_reason(&seen.object)).skip_while(|reason| reason != "Running");
    let others: Vec<String> = reasons.filter(|reason| reason != "Running").collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(condition(&vm.now(), "RestartRequired").is_null(), "{:#}", vm.now());
}

#[test]
fn a_new_password_is_in_effect_at_once_and_the_old_one_is_not() {
    e2e(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        vm.booted().await;
        let name = "vm-display-secret";
        let generated = password(space, name).await;
        expect(&vm, Some(&generated), Entry::Refused).await;

        for (n, word) in ["first", "second", "third"].into_iter().enumerate() {
            let before = serial(&vm);
            set(space, name, &json!({"display-password": word, "password-expiry": "never"})).await;
            in_effect(&vm, before, "display-password", word).await;
            if n != 1 {
                expect(&vm, Some(word), Entry::Admitted).await;
            }
        }
        expect(&vm, Some("second"), Entry::Refused).await;
        expect(&vm, None, Entry::Refused).await;

        // The expiry alone, one way and the other.
        for (expiry, entry) in [("now", Entry::Refused), ("never", Entry::Admitted)] {
            let before = serial(&vm);
            set(space, name, &json!({"password-expiry": expiry})).await;
            in_effect(&vm, before, "password-expiry", expiry).await;
            expect(&vm, Some("third"), entry).await;
        }

        // A generated one that is deleted comes back as another, with which nobody gets in yet.
        let before = serial(&vm);
        space.kubectl(&["delete", "secret", name]).await;
        eventually("the secret is made anew", 20, async || secret(space, name).await.map(drop).ok_or(String::new()))
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

#[test]
fn a_secret_of_the_users_own_is_followed_and_never_written_and_without_one_the_display_is_open() {
    e2e(2, async |space| {
        let labels = json!({
            "app.kubernetes.io/name": "vm-runner",
            "app.kubernetes.io/instance": "vm",
            "app.kubernetes.io/component": "display-secret",
        });
        let own = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"namespace": space.name, "name": "of-my-own", "labels": labels},
            "stringData": {"display-password": "fixed"},
        });
        kubectl::create(&own).await.unwrap();
        let vm = space.create("vm", json!({})).await;
        let open = json!({"spec": {"vm": {"display": {"spice": {"generateSecret": false}}}}});
        let open = space.create("open", open).await;
        vm.booted().await;
        open.booted().await;
        expect(&vm, Some("fixed"), Entry::Admitted).await;
        expect(&vm, Some("other"), Entry::Refused).await;
        expect(&open, None, Entry::Admitted).await;
        assert_eq!(serial(&open), -1, "as the reference tells that there is no password");

        let before = serial(&vm);
        set(space, "of-my-own", &json!({"display-password": "changed"})).await;
        in_effect(&vm, before, "display-password", "changed").await;
        expect(&vm, Some("fixed"), Entry::Refused).await;
        expect(&vm, Some("changed"), Entry::Admitted).await;

        // A new operator looks at all of it again.
        let version = secret(space, "of-my-own").await.unwrap()["metadata"].take();
        space.kubectl(&["rollout", "restart", "deployment/vm-operator"]).await;
        space.kubectl(&["rollout", "status", "deployment/vm-operator", "--timeout", "60s"]).await;
        vm.patch(&json!({"spec": {"vm": {"currentCpus": 1}}})).await;
        vm.becomes("Running", BOOT).await;
        assert_eq!(secret(space, "of-my-own").await.unwrap()["metadata"], version);
        let all = ["get", "secrets", "--selector", "app.kubernetes.io/component=display-secret", "--output", "name"];
        assert_eq!(space.kubectl(&all).await.trim(), "secret/of-my-own");
        was_never_disturbed(&vm);
        assert!(secret(space, "open-display-secret").await.is_none());
    });
}
