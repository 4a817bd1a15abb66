//! The controller with domains of libvirt, and its scenarios.

use super::aws::{self, POD_ENDS, config_map, scenario, set};
use super::libvirtd::Libvirtd;
use super::{ADAPTOR, change, leaders, pod_is_gone};
use crate::enumeration::run::Run;
use crate::enumeration::{Controller, Scenario, Step};
use crate::layer::Layer;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use std::io;
use std::sync::Arc;
use vm_operator::controllers::peerpod::{PeerPodController, Socket};
use vm_operator::k8s::leader::Leadership;
use vm_operator::settings::peerpod::Sweep;

/// The controller.
pub const CONTROLLER: Controller = Controller {
    start: |layer, namespace, timings| {
        leaders::start(layer, namespace, timings, Sweep::Off, provide)
    },
    ..aws::CONTROLLER
};

fn provide(
    controller: &mut PeerPodController,
    layer: &Layer,
    namespace: &str,
    leadership: Leadership,
) {
    let (layer, namespace) = (layer.clone(), namespace.to_owned());
    controller.open_socket = Arc::new(move |path: String| {
        let has_domains = HOST.ends_with(&path);
        let libvirtd = Libvirtd::new(&layer, &namespace, leadership.clone(), has_domains);
        async move {
            let (stream, server) = tokio::io::duplex(1 << 16);
            tokio::spawn(libvirtd.serve(server));
            Ok::<Box<dyn Socket>, io::Error>(Box::new(stream))
        }
        .boxed()
    });
}

/// Creates a pod, its instance with a volume, and the `PeerPod` of both. Another domain uses the base of the volume.
fn create<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        config_map(run, ADAPTOR, json!({URI: HOST})).await;
        let pod = super::pod(run).await;
        let (base, path) = ("/pool/base.qcow2", format!("/pool/{VOLUME}"));
        config_map(run, "base.qcow2", json!({"path": base})).await;
        let volume = json!({"path": path, "backing": base, "pod": "pod"});
        config_map(run, VOLUME, volume).await;
        let domain = |name: &str, volumes: &str| json!({"name": name, "state": "running", "volumes": volumes});
        config_map(run, OTHER_DOMAIN, domain("other", base)).await;
        let mut own = domain("podvm-pod-0123abcd", &format!("{path} {base}"));
        own["pod"] = "pod".into();
        config_map(run, DOMAIN, own).await;
        super::peerpod(run, "one", &pod, "libvirt", DOMAIN).await;
    }
    .boxed()
}

/// Removes the domain as the cloud-api-adaptor does, and fails before it removes the volume.
fn remove_domain<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        pod_is_gone(run).await;
        change(
            run,
            "ConfigMap",
            DOMAIN,
            json!({"data": {"state": "terminated"}}),
        )
        .await;
    }
    .boxed()
}

const URI: &str = "LIBVIRT_URI";
const HOST: &str = "qemu:///system?socket=/run/host";
const DOMAIN: &str = "0123abcd-0001-0203-0405-060708090a0b";
const OTHER_DOMAIN: &str = "0123abcd-0001-0203-0405-060708090a0c";
const VOLUME: &str = "podvm-pod-0123abcd-root.qcow2";

const CREATED: &[Step] = &[Step::Act(create), Step::Start];
/// The patch changes nothing, and follows the note about the instance.
const NOTED: &[Step] = &[Step::Act(create), Step::Start, Step::Patch("{}")];

/// The configuration names another host, which does not have the domain.
const LEAVE: Step =
    Step::Act(|run, _| set(run, 0, ADAPTOR, URI, "qemu:///system?socket=/run/other").boxed());
const RETURN: Step = Step::Act(|run, _| set(run, 120, ADAPTOR, URI, HOST).boxed());
const ENDED: Option<(&str, &str)> = Some((
    "ConfigMap/0123abcd-0001-0203-0405-060708090a0b",
    "terminated",
));

/// The scenarios.
pub const SCENARIOS: &[Scenario] = &[
    scenario("libvirt-ends", CREATED, &[POD_ENDS], ENDED),
    scenario(
        "libvirt-half",
        NOTED,
        &[POD_ENDS, Step::Act(remove_domain)],
        ENDED,
    ),
    scenario("libvirt-host", NOTED, &[LEAVE, POD_ENDS, RETURN], ENDED),
];
