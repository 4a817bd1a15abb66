//! (pure) OpenID Connect servers, with the image and the configuration of the user.

use crate::api::SIPCluster;
use crate::api::sip::AuthService;
use crate::controllers::sip::objects::child::{
    Child, ServiceObjects, container, empty_dir, hash, marked, mount, name, port, secret_volume,
    share_files, writable,
};
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// User and group of the server: those of Dex's image.
const USER: i64 = 1001;
/// The port of Dex.
const PORT: i32 = 5556;
/// The arguments of Dex.
const ARGUMENTS: [&str; 3] = ["dex", "serve", "/etc/dex/config.yaml"];

/// The OpenID Connect servers of the cluster. `has_secret` tells whether a Secret of that name exists.
///
/// # Errors
/// An object cannot be serialized.
pub fn auth_services(
    cluster: &SIPCluster,
    has_secret: &dyn Fn(&str) -> bool,
) -> Result<Vec<ServiceObjects>, Error> {
    let entries = cluster.spec.services.auth.iter().enumerate();
    let service = |(index, entry): (usize, &AuthService)| {
        let child = Child {
            cluster,
            entry: &entry.service,
            name: name("auth", cluster, index),
            component: "auth",
            program: "oidc",
        };
        let secrets = mounted_secrets(entry);
        let missing = secrets.iter().find(|secret| !has_secret(secret.name));
        let problem = missing.map(|MountedSecret { field, name, .. }| {
            format!("spec.services.auth[{index}].{field}: Secret {name} does not exist; create it")
        });
        let target = entry.port.unwrap_or(PORT);
        let deployment = child.deployment(&hash(""), 1, pod(&child, entry, target, &secrets));
        Ok(ServiceObjects {
            cluster_ip: child.cluster_ip(),
            config_map: None,
            secret: None,
            host_key: None,
            deployment: marked(deployment)?,
            service: marked(child.service(vec![port("oidc", target, target, entry.node_port)]))?,
            // With one pod, it would prevent each drain of the node.
            budget: None,
            problem,
            configuration: hash(""),
            name: child.name,
        })
    };
    entries.map(service).collect()
}

/// A Secret of an entry, and its volume.
struct MountedSecret<'a> {
    field: &'static str,
    volume: &'static str,
    directory: &'static str,
    name: &'a str,
}

fn mounted_secrets(entry: &AuthService) -> Vec<MountedSecret<'_>> {
    let config = ("configSecret", "config", "/etc/dex", &entry.config_secret);
    let tls = ("tlsSecret", "tls", "/etc/dex-tls", &entry.tls_secret);
    let named = [config, tls].into_iter();
    let named = named.filter_map(|(field, volume, directory, name)| {
        Some(MountedSecret {
            field,
            volume,
            directory,
            name: name.as_deref()?,
        })
    });
    named.collect()
}

fn pod(child: &Child, entry: &AuthService, port: i32, secrets: &[MountedSecret]) -> PodSpec {
    let mounts = secrets.iter().map(|it| mount(it.volume, it.directory));
    let mounts = mounts.chain([writable("tmp", "/tmp")]).collect();
    let default = || ARGUMENTS.map(str::to_owned).into();
    let arguments = Some(entry.args.clone()).filter(|arguments| !arguments.is_empty());
    let container = Container {
        // The entry point is that of the image.
        command: None,
        args: Some(arguments.unwrap_or_else(default)),
        readiness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::Int(port),
                ..TCPSocketAction::default()
            }),
            period_seconds: Some(5),
            ..Probe::default()
        }),
        ..container("oidc", &[], "256Mi", mounts)
    };
    let mut pod = child.pod(USER, "", container);
    share_files(&mut pod, USER);
    let volumes = secrets.iter();
    let volumes = volumes.map(|it| secret_volume(it.volume, it.name, false));
    pod.volumes = Some(volumes.chain([empty_dir("tmp")]).collect());
    pod
}
