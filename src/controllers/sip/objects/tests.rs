use super::host_key::{PRIVATE_KEY, PUBLIC_KEY, generate};
use super::services;
use crate::api::SIPCluster;
use crate::api::sip::names::ANNOTATION_CONFIGURATION;
use crate::controllers::sip::facts::{Host, roles};
use crate::controllers::sip::objects::child::ServiceObjects;
use crate::controllers::sip::plan::Placed;
use crate::controllers::sip::views::{Credentials, HostView, Networks};
use crate::settings::sip::SipSettings;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use russh::keys::{Algorithm, PrivateKey, PublicKey};
use serde_json::{Value, json};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFqvy0wEdKmEkGkXwLFKKzZhbZSFmqvDyTDEAyMbcdx";
const PASSWORD: &str = "qwertz";

fn cluster(change: Value) -> SIPCluster {
    let mut entry = json!({
        "image": "", "nodePort": 30022, "nodeInterfaceId": "oam", "sshAuthorizedKeys": [KEY], "nodeSSHPrivateKeys": "keys",
    });
    let fields = entry.as_object_mut().unwrap();
    fields.extend(change.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster",
        "metadata": {"name": "tenant", "namespace": "ns", "uid": "u"},
        "spec": {"nodes": {"Worker": {"count": {"active": 1}}}, "services": {"jumpHost": [entry]}},
    }))
    .unwrap()
}

/// A host with this address of its BMC.
fn host(address: &str) -> HostView {
    let bmc = json!({
        "address": address, "credentialsName": "a-bmc", "disableCertificateVerification": true,
    });
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns"},
        "spec": {"networkData": {"name": "a-network"}, "bmc": bmc},
    }))
    .unwrap()
}

/// The objects of the jump host of a cluster with one host.
fn jump_host(change: Value, address: &str) -> ServiceObjects {
    let host = host("redfish-virtualmedia+http://10.0.0.9:8000/redfish/v1/Systems/a/");
    let networks = Networks::Known([("oam".to_owned(), address.to_owned())].into());
    let credentials = Credentials {
        username: "admin".to_owned(),
        password: PASSWORD.to_owned(),
    };
    let host = Host {
        view: &host,
        name: "a",
        networks: Some(&networks),
        credentials: Some(&credentials),
        may_use_bmc: true,
    };
    let role = "Worker";
    let (cluster, settings) = (cluster(change), SipSettings::default());
    let objects = services(&cluster, &[Placed { host, role }], &settings, &|name| {
        name == "keys"
    });
    objects.unwrap().remove(0)
}

fn hosts(objects: &ServiceObjects) -> Value {
    let data = objects.secret.clone().unwrap().data.unwrap();
    serde_json::from_slice(&data["hosts.json"].0).unwrap()
}

fn text<'a>(objects: &'a ServiceObjects, file: &str) -> &'a str {
    &objects.config_map.as_ref().unwrap().data.as_ref().unwrap()[file]
}

fn configuration(objects: &ServiceObjects) -> &str {
    let template = &objects.deployment.spec.as_ref().unwrap().template;
    let annotations = template.metadata.as_ref().unwrap().annotations.as_ref();
    &annotations.unwrap()[ANNOTATION_CONFIGURATION]
}

#[test]
fn s23_bmc_password_is_stored_only_in_the_secret() {
    let without = jump_host(json!({}), "10.0.0.1");
    let listed = json!([{"name": "a", "role": "Worker", "address": "10.0.0.1"}]);
    assert_eq!(hosts(&without), listed);
    let with = jump_host(json!({"bmc": {}}), "10.0.0.1");
    let bmc = json!({
        "url": "http://10.0.0.9:8000/redfish/v1/Systems/a", "insecure": true, "username": "admin", "password": PASSWORD,
    });
    assert_eq!(hosts(&with)[0]["bmc"], bmc);
    for objects in [&without, &with] {
        let other = ServiceObjects {
            secret: None,
            ..objects.clone()
        };
        let pods = serde_json::to_string(&objects.deployment).unwrap();
        let all = format!("{pods}{}{other:?}", text(objects, "config"));
        assert!(!all.contains(PASSWORD) && !all.contains(&STANDARD.encode(PASSWORD)));
    }
}

#[test]
fn s24_change_of_keys_or_hosts_needs_no_other_pod() {
    let before = jump_host(json!({}), "10.0.0.1");
    let after = jump_host(json!({"sshAuthorizedKeys": [KEY, KEY]}), "fd00::1");
    assert_eq!(text(&after, "authorized_keys"), format!("{KEY}\n{KEY}\n"));
    assert!(text(&after, "config").starts_with("Host a\n  HostName fd00::1\n"));
    assert_eq!(before.deployment, after.deployment);
    let pod = serde_json::to_value(&after.deployment).unwrap()["spec"]["template"]["spec"].clone();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    // The kubelet does not refresh a single file.
    assert!(mounts.iter().all(|mount| mount["subPath"].is_null()));
    assert_eq!(after.name, "jumphost-tenant");
}

#[test]
fn s26_requests_to_bmcs_use_a_proxy_only_if_the_entry_permits_it() {
    let config = |bmc: Value| text(&jump_host(bmc, "10.0.0.1"), "sshd_config").to_owned();
    assert!(config(json!({"bmc": {}})).contains(" NO_PROXY=*\n"));
    assert!(config(json!({"bmc": {"proxy": false}})).contains(" NO_PROXY=*\n"));
    assert!(!config(json!({"bmc": {"proxy": true}})).contains("PROXY"));
    let [before, after] = [json!({}), json!({"bmc": {}})].map(|bmc| jump_host(bmc, "10.0.0.1"));
    // sshd reads its configuration once.
    assert_ne!(configuration(&before), configuration(&after));
}

#[test]
fn missing_secret_with_the_keys_for_hosts_is_a_problem_and_the_pod_starts_without_it() {
    assert_eq!(jump_host(json!({}), "10.0.0.1").problem, None);
    let missing = jump_host(json!({"nodeSSHPrivateKeys": "none"}), "10.0.0.1");
    let problem = missing.problem.unwrap();
    assert!(problem.contains(
        "spec.services.jumpHost[0].nodeSSHPrivateKeys: Secret none does not exist; create it"
    ));
    let pod =
        serde_json::to_value(&missing.deployment).unwrap()["spec"]["template"]["spec"].clone();
    let keys = json!({"secretName": "none", "optional": true, "defaultMode": 0o440});
    assert_eq!(pod["volumes"][4]["secret"], keys);
    let no_secret = jump_host(json!({"nodeSSHPrivateKeys": ""}), "10.0.0.1");
    assert_eq!(no_secret.problem, None);
}

#[test]
fn s25_each_generated_host_key_is_another_key_and_matches_its_public_key() {
    let generated = [generate().unwrap(), generate().unwrap()];
    assert_ne!(generated[0][PRIVATE_KEY], generated[1][PRIVATE_KEY]);
    let file = |name: &str| String::from_utf8(generated[0][name].0.clone()).unwrap();
    let private = PrivateKey::from_openssh(file(PRIVATE_KEY)).unwrap();
    let public = PublicKey::from_openssh(file(PUBLIC_KEY).trim_end()).unwrap();
    assert_eq!(private.public_key(), &public);
    assert_eq!(public.algorithm(), Algorithm::Ed25519);
}

#[test]
fn s27_invalid_authorized_key_is_reported_by_its_position_without_its_text() {
    let with = |key: &str| {
        let cluster = cluster(json!({"sshAuthorizedKeys": [KEY, key]}));
        roles(&cluster).map(drop)
    };
    for key in [
        KEY,
        &format!("{KEY} user@host"),
        &format!("command=\"echo a b\",no-pty {KEY} user"),
    ] {
        assert_eq!(with(key), Ok(()));
    }
    let rest = KEY.strip_prefix("ssh-ed25519 ").unwrap();
    for key in [
        "",
        "secret",
        &format!("ssh-rsa {rest}"),
        "ssh-ed25519 AAAA",
        &format!("{KEY}\n{KEY}"),
    ] {
        let error = with(key).unwrap_err();
        assert!(
            error.starts_with("spec.services.jumpHost[0].sshAuthorizedKeys[1]: "),
            "{error}"
        );
        assert!(
            !error.contains("AAAA") && !error.contains("secret"),
            "{error}"
        );
    }
}

#[test]
fn bmc_without_redfish_or_credentials_is_a_problem_of_the_host_with_its_field() {
    let credentials = Credentials {
        username: "admin".to_owned(),
        password: PASSWORD.to_owned(),
    };
    let problem = |address: &str, credentials| {
        let view = host(address);
        let host = Host {
            view: &view,
            name: "a",
            networks: None,
            credentials,
            may_use_bmc: true,
        };
        host.bmc().map(|bmc| bmc.url)
    };
    let path = "10.0.0.9/redfish/v1/Systems/a";
    for scheme in ["redfish", "redfish+https", "redfish-virtualmedia"] {
        let url = problem(&format!("{scheme}://{path}"), Some(&credentials));
        assert_eq!(url, Ok(format!("https://{path}")));
    }
    for address in ["ipmi://10.0.0.9", "redfish+ftp://10.0.0.9", ""] {
        let error = problem(address, Some(&credentials)).unwrap_err();
        assert!(error.starts_with("spec.bmc.address is not that of a Redfish service; use one"));
    }
    let error = problem(&format!("redfish://{path}"), None).unwrap_err();
    assert!(error.starts_with("Secret a-bmc of spec.bmc.credentialsName does not exist"));
}

#[test]
fn openid_connect_server_has_the_files_of_the_secrets_and_names_a_missing_one() {
    let auth = |entry: Value| {
        let mut cluster = cluster(json!({}));
        cluster.spec.services.jump_host.clear();
        cluster.spec.services.auth = vec![serde_json::from_value(entry).unwrap()];
        let has_secret = |name: &str| name != "none";
        let services = services(&cluster, &[], &SipSettings::default(), &has_secret).unwrap();
        services.into_iter().next().unwrap()
    };
    let of = |objects: &ServiceObjects| {
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let pod = deployment["spec"]["template"]["spec"].clone();
        (pod["containers"][0].clone(), pod)
    };
    let dex =
        json!({"image": "dex", "nodePort": 30556, "configSecret": "config", "tlsSecret": "tls"});
    let objects = auth(dex);
    assert_eq!((&*objects.name, &objects.problem), ("auth-tenant", &None));
    let (container, pod) = of(&objects);
    assert_eq!(container["command"], Value::Null);
    assert_eq!(
        container["args"],
        json!(["dex", "serve", "/etc/dex/config.yaml"])
    );
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let paths: Vec<_> = mounts
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["/etc/dex", "/etc/dex-tls", "/tmp"]);
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "tls");
    assert_eq!(pod["automountServiceAccountToken"], false);

    let other = json!({
        "image": "other", "nodePort": 0, "args": ["--a"], "port": 8443, "tlsSecret": "none",
    });
    let objects = auth(other);
    let (container, _) = of(&objects);
    assert_eq!(
        (&container["image"], &container["args"]),
        (&json!("other"), &json!(["--a"]))
    );
    let port = &objects.service.spec.unwrap().ports.unwrap()[0];
    assert_eq!((port.port, port.node_port), (8443, None));
    let problem = objects.problem.unwrap();
    assert!(problem.starts_with("spec.services.auth[0].tlsSecret: Secret none does not exist"));
}

#[test]
fn s17_s18_s19_load_balancers_run_anywhere_without_root_and_each_has_its_own_name() {
    let mut cluster = cluster(json!({}));
    cluster.spec.services.jump_host.clear();
    let entries = json!([
        {"image": "", "nodePort": 0, "nodeInterfaceId": "oam"},
        {"image": "", "nodePort": 0, "nodeLabels": {"zone": "a"}},
    ]);
    let balancers = &mut cluster.spec.services.load_balancer_control_plane;
    *balancers = serde_json::from_value(entries).unwrap();
    let views = ["a", "b"].map(|name| {
        let mut view = host("redfish://10.0.0.9/x");
        view.metadata.name = Some(name.to_owned());
        view
    });
    let networks = Networks::Known([("oam".to_owned(), "10.0.0.1".to_owned())].into());
    let hosts = views.each_ref().map(|view| Host {
        view,
        name: view.metadata.name.as_deref().unwrap(),
        networks: Some(&networks),
        credentials: None,
        may_use_bmc: true,
    });
    let members = hosts.map(|host| Placed {
        host,
        role: "ControlPlane",
    });
    let objects = services(&cluster, &members, &SipSettings::default(), &|_| true).unwrap();
    let names: Vec<&str> = objects.iter().map(|it| &*it.name).collect();
    let first = "loadbalancer-controlplane-tenant";
    assert_eq!(names, [first, "loadbalancer-controlplane-tenant-2"]);
    let spec =
        |index: usize| serde_json::to_value(&objects[index].deployment).unwrap()["spec"].clone();
    assert_eq!(spec(0)["replicas"], 2);
    let pod = |index: usize| spec(index)["template"]["spec"].clone();
    assert_eq!(
        (&pod(0)["nodeSelector"], &pod(0)["tolerations"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(pod(1)["nodeSelector"], json!({"zone": "a"}));
    assert_eq!(pod(0)["securityContext"]["runAsNonRoot"], true);
    let container = &pod(0)["containers"][0];
    assert!(
        container["readinessProbe"].is_object() && container["resources"]["limits"].is_object()
    );
}
