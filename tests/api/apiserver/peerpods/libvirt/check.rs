//! `vm-operator peerpod check`.

use super::{HOST, Host, SshServer, keys};
use crate::apiserver::peerpods::life::instant;
use serde_json::json;
use vm_operator::api::peerpod::names;
use vm_operator::settings::peerpod::PeerPodSettings;

#[tokio::test(flavor = "multi_thread")]
async fn check_prints_the_libvirt_host_or_the_access_error() {
    let host = Host::start("libvirt-check").await;
    let ssh = SshServer::start(&host).await;
    let controller = host.controller(PeerPodSettings::default(), instant).await;
    let unknown = keys(&host, "other", "ed25519").await;
    let known = format!("[127.0.0.1]:{} {}", ssh.port, ssh.host_key);
    let missing = "qemu+unix:///system?socket=/missing".to_owned();
    for (uri, key, is_ok, part) in [
        (host.uri(), "", true, HOST),
        (missing, "", false, "/missing: No such file"),
        (ssh.uri(&host, ""), &*unknown, false, "authorized keys"),
        (ssh.uri(&host, ""), &*ssh.key, true, HOST),
    ] {
        let data = json!({names::KEY_PROVIDER: names::PROVIDER_LIBVIRT, "LIBVIRT_URI": uri});
        host.write("ConfigMap", "peer-pods-cm", "data", data).await;
        let data = json!({"id_rsa": key, "known_hosts": known});
        host.write("Secret", "ssh-key-secret", "stringData", data)
            .await;
        let findings = controller.check().await;
        let mut own = findings
            .iter()
            .filter(|it| it.text.starts_with("libvirt: "));
        let (Some(found), None) = (own.next(), own.next()) else {
            panic!("{uri}: {findings:?}")
        };
        assert_eq!(found.is_ok, is_ok, "{uri}: {found:?}");
        let line = unknown.lines().nth(1).unwrap();
        assert!(
            found.text.contains(part) && !found.text.contains(line),
            "{uri}: {found:?}"
        );
    }
}
