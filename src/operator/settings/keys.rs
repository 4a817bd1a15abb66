//! (pure) The keys of the file, for `docs/reference.md`.

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its place below `/Manager` → `/Controller`; names are parted by blanks.
    pub place: &'static str,
    /// Whether the reference has it too.
    pub of_the_reference: bool,
    /// What it is where the file does not say, as JSON; nothing where that is no value.
    pub default: Option<&'static str>,
    /// What it does, and what is allowed.
    pub what: &'static str,
}

const fn key(place: &'static str, default: Option<&'static str>, what: &'static str) -> Key {
    Key { place, of_the_reference: true, default, what }
}

const fn ours(place: &'static str, default: Option<&'static str>, what: &'static str) -> Key {
    Key { place, of_the_reference: false, default, what }
}

/// All of them, in the order of the file.
pub const KEYS: &[Key] = &[
    key(
        "namespace",
        None,
        "The namespace that is watched. Default: the operator's own. A change takes effect at the operator's next start",
    ),
    key(
        "/Reconciler runnerDataPvc storageClassName",
        None,
        "Storage class of the claims for what runners keep. Default: the cluster's default class",
    ),
    key("/Reconciler cpuOvercommit", Some("2"), "CPUs of guests per CPU that their pods request; above 0"),
    key("/Reconciler ramOvercommit", Some("1.25"), "Memory of guests per memory that their pods request; above 0"),
    key(
        "/Reconciler loadBalancerService",
        Some("false"),
        "Whether each VM gets a service of type LoadBalancer: `true`, `false`, or `labels` and `annotations` of the \
         services, also as a text in YAML. A VM's spec.loadBalancerService adds to it or, being `{}`, switches it off",
    ),
    key(
        "/Reconciler loggingProperties",
        None,
        "Logging of VMs that have no spec.loggingProperties, in Java's syntax: `.level=FINE` and the like; other lines have no \
         effect. Kept as it is in the VMs' ConfigMaps, key `logging.properties`",
    ),
    key(
        "/Reconciler /DisplaySecretReconciler passwordValidity",
        Some("10"),
        "Seconds for which a password that a console front end makes can be used. It is for such a front end to read: nobody \
         can ask the operator for a password by way of a VM, as in the Java VM-Operator that is a call within its own process. A \
         front end writes `display-password` and `password-expiry` (seconds since 1970) into the VM's display secret and \
         waits for `status.displayPasswordSerial` to rise. Also taken from its old place, /DisplaySecretMonitor → \
         passwordValidity beside /Reconciler",
    ),
    ours(
        "/Reconciler runnerImage source",
        None,
        "The runner's image for VMs that name none. Default: `localhost/vm-runner` of the operator's version, which has to be on the nodes already",
    ),
    ours(
        "/Reconciler runnerImage pullPolicy",
        Some("\"IfNotPresent\""),
        "When that image is pulled: `Always`, `Never` or `IfNotPresent`",
    ),
    ours(
        "/Reconciler replacedImages",
        Some("[\"ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-\"]"),
        "Images of VMs that begin so are taken as runnerImage. A VM whose image is the Java VM-Operator's runner and is not among \
         them, as with `[]`, keeps it, and gets the pod that it gets there: privileged, root, in the node's network",
    ),
    ours(
        "/Reconciler imageRepository create",
        Some("true"),
        "Whether the operator makes the claim for CD images where it is missing",
    ),
    ours(
        "/Reconciler imageRepository storageClassName",
        None,
        "Its storage class. Default: the cluster's default class",
    ),
    ours("/Reconciler imageRepository size", Some("\"100Gi\""), "Its size"),
    ours(
        "/Reconciler imageRepository accessModes",
        Some("[\"ReadOnlyMany\"]"),
        "Its access modes. For images by URL one with which a pod can write: `ReadWriteMany`, or `ReadWriteOnce` with all \
         VMs that have CD drives on one node",
    ),
    ours(
        "/Reconciler imageRepository fetch schemes",
        Some("[\"https\", \"http\"]"),
        "Schemes of the URLs from which CD images are fetched; `[]`: none is",
    ),
    ours("/Reconciler imageRepository fetch maxSize", Some("\"20Gi\""), "The largest image that is fetched"),
    ours("/Reconciler imageRepository fetch deadline", Some("3600"), "Seconds that one fetch may take"),
    ours(
        "/Reconciler imageRepository fetch startDeadline",
        Some("600"),
        "Seconds that the start of a VM waits for the image that it boots from; then it starts with the drive empty",
    ),
    ours(
        "/Reconciler imageRepository fetch httpProxy",
        None,
        "The proxy for URLs of http, such as `http://proxy.example.org:3128`. Default: none",
    ),
    ours("/Reconciler imageRepository fetch httpsProxy", None, "That for URLs of https. Default: none"),
    ours(
        "/Reconciler imageRepository fetch noProxy",
        None,
        "Hosts, domains and networks that are asked without one, such as `.example.org,10.0.0.0/8`",
    ),
    ours(
        "/Reconciler imageRepository fetch proxySecret",
        None,
        "A Secret for proxies that want a password: its keys, such as `HTTPS_PROXY` with \
         `http://user:password@proxy.example.org:3128`, are the environment of the pods that fetch",
    ),
    ours(
        "/Reconciler imageRepository fetch authorities configMap",
        None,
        "A ConfigMap with certificate authorities in PEM that are trusted besides the public ones",
    ),
    ours("/Reconciler imageRepository fetch authorities key", None, "The key that has them. Default: `ca.crt`"),
    ours("/Reconciler podDefaults nodeSelector", None, "Labels of the nodes for VMs that have no spec.nodeSelector"),
    ours("/Reconciler podDefaults tolerations", None, "Tolerations of VMs that have no spec.tolerations"),
    ours(
        "/Reconciler podDefaults priorityClassName",
        None,
        "Priority class of VMs that have no spec.priorityClassName",
    ),
    ours("/Reconciler podDefaults imagePullSecrets", None, "Pull secrets of VMs that have no spec.imagePullSecrets"),
    ours(
        "/Reconciler accelerator policy",
        Some("\"auto\""),
        "Hardware acceleration: `kvm` (no VM starts without it), `auto` (where it is) or `tcg` (never)",
    ),
    ours(
        "/Reconciler accelerator kvmResource",
        None,
        "The resource of a device plugin by which a pod gets /dev/kvm. Default: none is asked for",
    ),
    ours(
        "/Reconciler accelerator privileged",
        Some("false"),
        "For clusters without a device plugin: `true` makes all VMs' pods privileged, unless the policy is `tcg`, so that \
         they have the node's /dev/kvm. Its risks are in docs/security.md; where only root may open /dev/kvm, `deviceAccess: \
         root` is needed too",
    ),
    ours(
        "/Reconciler tap tunResource",
        Some("\"vmoperator.jdrupes.org/tun\""),
        "The resource of a device plugin by which the pod of a VM with `tap` networks gets /dev/net/tun",
    ),
    ours(
        "/Reconciler tap hostPath",
        Some("false"),
        "For clusters without a device plugin: such pods mount the node's own /dev/net/tun and ask for no resource. The \
         node has to let the pod's user open it (mode 0666, which is usual), and its container runtime has to let pods have \
         it (runc does, but for 1.2.0 to 1.2.3)",
    ),
    ours(
        "/Reconciler deviceAccess",
        Some("\"cri\""),
        "How VMs get at block devices: `cri` (the nodes' container runtime gives them to the pod's user) or `root` (VMs run \
         as root, to whom devices belong, without any of root's capabilities)",
    ),
    ours(
        "/Reconciler openTelemetry",
        None,
        "No effect any more, and a warning in the log: traces of starts are not sent. Remove it",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::settings::Settings;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    /// A file that says of each key what it would be without.
    fn file_of_defaults() -> Value {
        let mut file = json!({});
        for key in KEYS.iter().filter(|key| key.default.is_some()) {
            let place = format!("/Manager /Controller {}", key.place);
            let at = place
                .split(' ')
                .fold(&mut file, |at, step| at.as_object_mut().unwrap().entry(step).or_insert_with(|| json!({})));
            *at = serde_json::from_str(key.default.unwrap()).unwrap();
        }
        file
    }

    #[test]
    fn the_defaults_are_those_of_a_file_that_says_nothing() {
        let (settings, notes) = Settings::parse(&file_of_defaults().to_string(), "f").unwrap();
        assert_eq!(settings, Settings::default());
        assert!(notes.iter().all(|note| !note.text.contains("no such setting")), "{notes:?}");
    }

    #[test]
    fn every_key_that_is_read_is_described_and_no_other() {
        let source = [include_str!("file.rs"), include_str!("ours.rs"), include_str!("fetch.rs")].join("\n");
        let asked = source.split(['.', ' ', '\n']).filter_map(|call| {
            let name = call.strip_prefix("take(\"").or_else(|| call.strip_prefix("section(\""))?;
            name.split_once('"').map(|(name, _)| name)
        });
        // Where the keys of a map are only passed on, or stand for a place and not for a key.
        let others = ["/Manager", "/Controller", "/DisplaySecretMonitor"];
        let asked: BTreeSet<&str> = asked.filter(|name| !others.contains(name)).collect();
        let mut described: BTreeSet<&str> = KEYS.iter().flat_map(|key| key.place.split(' ')).collect();
        // Taken by a constant.
        assert!(described.remove("passwordValidity"));
        assert_eq!(asked, described, "each key that settings/file.rs, ours.rs or fetch.rs takes stands in KEYS");
    }
}
