//! (pure) The limits of the configured values.

use super::{Authorities, Policy, Reconciler, Settings};
use crate::api::runner::fetch::SCHEMES;

impl Settings {
    /// The first value that is not allowed: its key below `/Controller`, and the next step.
    pub(super) fn first_violation(&self) -> Option<(String, &'static str)> {
        if !self.namespace.as_deref().is_none_or(is_namespace) {
            return Some(("namespace".to_owned(), "use the name of a namespace"));
        }
        self.reconciler
            .violation()
            .map(|(key, next_step)| (format!("/Reconciler.{key}"), next_step))
    }
}

impl Reconciler {
    /// The first value that is not allowed: its key below `/Reconciler`, and the next step.
    fn violation(&self) -> Option<(&'static str, &'static str)> {
        const WEEK: u64 = 7 * 24 * 3600;
        const PULL_POLICIES: [&str; 3] = ["Always", "Never", "IfNotPresent"];
        const MODES: [&str; 4] = [
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ];
        const MODE_LIST: &str = "use a list of one or more of ReadOnlyMany, ReadWriteMany, ReadWriteOnce and ReadWriteOncePod";
        const PROXY: &str = "use a URL such as http://proxy.example.org:3128; for a URL with a password, set proxySecret \
                             to the name of a Secret with the key HTTP_PROXY or HTTPS_PROXY";
        const RESOURCE: &str =
            "use a resource of a device plugin, such as vmoperator.jdrupes.org/kvm";
        let Self {
            runner_image,
            runner_data_pvc,
            image_repository: repository,
            accelerator,
            tap,
            ..
        } = self;
        let fetch = &repository.fetch;
        let authorities = &fetch.authorities;
        let any = |text: &Option<String>, is_legal: fn(&str) -> bool| {
            text.as_deref().is_none_or(is_legal)
        };
        let all = |texts: &[String], allowed: &[&str]| {
            texts.iter().all(|text| allowed.contains(&text.as_str()))
        };
        let is_pull_policy = PULL_POLICIES.contains(&runner_image.pull_policy.as_str());
        let has_modes =
            all(&repository.access_modes, &MODES) && !repository.access_modes.is_empty();
        let is_complete =
            authorities.config_map.is_some() || *authorities == Authorities::default();
        let has_one_device = !accelerator.privileged || accelerator.kvm_resource.is_none();
        let has_device = accelerator.privileged || accelerator.kvm_resource.is_some();
        let limits = [
            (
                "cpuOvercommit",
                self.cpu_overcommit > 0.0,
                "use a number above 0, such as 2 or 1.5",
            ),
            (
                "ramOvercommit",
                self.ram_overcommit > 0.0,
                "use a number above 0, such as 1.25",
            ),
            (
                "runnerImage.pullPolicy",
                is_pull_policy,
                "use Always, Never or IfNotPresent",
            ),
            (
                "runnerDataPvc.size",
                runner_data_pvc.size.0 >= 1 << 20,
                "use a size of at least 1Mi, such as 1Gi",
            ),
            (
                "imageRepository.size",
                repository.size.0 > 0,
                "use a size such as 20Gi",
            ),
            ("imageRepository.accessModes", has_modes, MODE_LIST),
            (
                "imageRepository.fetch.schemes",
                all(&fetch.schemes, &SCHEMES),
                "use a list with https, http or both",
            ),
            (
                "imageRepository.fetch.maxSize",
                fetch.max_size.0 > 0,
                "use a size such as 20Gi",
            ),
            (
                "imageRepository.fetch.deadline",
                (1..=WEEK).contains(&fetch.deadline),
                "use 1 to 604800 seconds",
            ),
            (
                "imageRepository.fetch.startDeadline",
                fetch.start_deadline <= WEEK,
                "use 0 to 604800 seconds",
            ),
            (
                "imageRepository.fetch.httpProxy",
                any(&fetch.http_proxy, is_proxy),
                PROXY,
            ),
            (
                "imageRepository.fetch.httpsProxy",
                any(&fetch.https_proxy, is_proxy),
                PROXY,
            ),
            (
                "imageRepository.fetch.proxySecret",
                any(&fetch.proxy_secret, is_name),
                "use the name of a Secret",
            ),
            (
                "imageRepository.fetch.authorities.configMap",
                any(&authorities.config_map, is_name),
                "use the name of a ConfigMap",
            ),
            (
                "imageRepository.fetch.authorities.key",
                is_name(&authorities.key),
                "use the name of a key in the ConfigMap",
            ),
            (
                "imageRepository.fetch.authorities",
                is_complete,
                "use both configMap and key: the name of a ConfigMap, and the name of a key in this ConfigMap",
            ),
            (
                "accelerator.kvmResource",
                any(&accelerator.kvm_resource, is_resource),
                RESOURCE,
            ),
            (
                "accelerator.privileged",
                has_one_device,
                "use false, or remove kvmResource, because privileged: true gives pods /dev/kvm without kvmResource",
            ),
            (
                "accelerator.policy",
                has_device || accelerator.policy != Policy::Kvm,
                "use auto or tcg; kvm is allowed only with kvmResource or privileged: true, which give pods /dev/kvm",
            ),
            (
                "tap.tunResource",
                is_resource(&tap.tun_resource),
                "use a resource of a device plugin, such as vmoperator.jdrupes.org/tun",
            ),
        ];
        limits
            .into_iter()
            .find(|(_, holds, _)| !holds)
            .map(|(key, _, values)| (key, values))
    }
}

pub(super) fn is_namespace(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(is_legal)
}

/// Whether the text is a name of an object or a key in it.
fn is_name(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && text.chars().all(is_legal)
}

/// Whether the text is an extended resource, which has a domain before its name.
fn is_resource(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(domain, name)| is_name(domain) && is_name(name))
}

/// Whether the text is the URL of a proxy. Connections to proxies have no TLS. A password is not allowed, because it would be
/// readable in the ConfigMap and in the pods.
fn is_proxy(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| {
        uri.scheme_str() == Some("http")
            && uri.host().is_some_and(|host| !host.is_empty())
            && !uri
                .authority()
                .is_some_and(|authority| authority.as_str().contains('@'))
            && uri.path() == "/"
            && uri.query().is_none()
    })
}
