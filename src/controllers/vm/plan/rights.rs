//! (pure) Rights of a VM's pod beyond Pod Security `restricted`, and the feature that needs each.

use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{Forward, Machine};
use crate::controllers::vm::plan::{invalid, protocol};
use crate::settings::{self, DeviceAccess, Policy};

/// Rights of a pod beyond Pod Security `restricted`. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The node's network and the capability NET_ADMIN, to attach a tap to a bridge of the node.
    pub tap: Option<Tun>,
    /// A privileged container, for `/dev/kvm` without a device plugin. The runner drops all other privileges.
    pub privileged: bool,
    /// User ID 0 without capabilities, for block devices that belong to root.
    pub root: bool,
    /// The pod of the Java VM-Operator, for its runner: a privileged container with the user of its image, a writable root file
    /// system and the node's network. All other fields are then unset.
    pub as_java_runner: bool,
}

/// How a pod gets `/dev/net/tun`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tun {
    /// By an extended resource of a device plugin.
    Resource(String),
    /// By a mount of the node's device.
    HostPath,
    /// By a privileged container, which has all devices of the node.
    Privileged,
}

impl Rights {
    /// The rights that the VM needs with that image.
    pub(super) fn of(machine: &Machine, image: &str, settings: &settings::Reconciler) -> Self {
        if image.starts_with(settings::REFERENCE_IMAGES) {
            return Self {
                as_java_runner: true,
                ..Self::default()
            };
        }
        let has_tap = machine.networks.iter().any(|network| network.tap.is_some());
        let accelerator = &settings.accelerator;
        let privileged = accelerator.privileged && accelerator.policy != Policy::Tcg;
        let tun = || match (privileged, settings.tap.host_path) {
            (true, _) => Tun::Privileged,
            (_, true) => Tun::HostPath,
            _ => Tun::Resource(settings.tap.tun_resource.clone()),
        };
        let root = settings.device_access == DeviceAccess::Root;
        Self {
            tap: has_tap.then(tun),
            privileged,
            root,
            as_java_runner: false,
        }
    }

    /// Whether the administrator allows these rights: to the image, and to networks on these bridges.
    ///
    /// # Errors
    /// If the image is not trusted, or a bridge is not allowed.
    pub(super) fn check(
        &self,
        machine: &Machine,
        image: &str,
        settings: &settings::Reconciler,
    ) -> Result<(), Diagnosis> {
        if let Some(bridges) = &settings.tap.bridges {
            for (i, network) in machine.networks.iter().enumerate() {
                let Some(tap) = &network.tap else { continue };
                if !bridges.contains(&tap.bridge) {
                    let allowed = match bridges.as_slice() {
                        [] => {
                            "replace the network's field tap with the field user, because the operator's ConfigMap allows no bridge"
                                .to_owned()
                        }
                        bridges => {
                            format!("use an allowed bridge: {}", bridges.join(", "))
                        }
                    };
                    return invalid(
                        format!("spec.vm.networks[{i}].tap.bridge"),
                        format!(
                            "the operator's ConfigMap does not allow the bridge {:?} (tap.bridges)",
                            tap.bridge
                        ),
                        allowed,
                    );
                }
            }
        }
        match self.beyond_restricted() {
            Some(feature) if !settings.trusts(image) => invalid(
                "spec.image",
                format!(
                    "{feature} gives the pod more rights than the Pod Security level restricted allows. Such a pod needs an image \
                        from the list trustedImages in the operator's ConfigMap; the image {image:?} is not in this list"
                ),
                "remove spec.image, or let the administrator add the image to trustedImages in the operator's ConfigMap",
            ),
            _ => Ok(()),
        }
    }

    /// The feature that needs rights beyond Pod Security `restricted`.
    fn beyond_restricted(&self) -> Option<&'static str> {
        if self.as_java_runner {
            Some("the runner of the Java VM-Operator")
        } else if self.tap.is_some() {
            Some("a tap network in spec.vm.networks")
        } else if self.privileged {
            Some("accelerator.privileged")
        } else if self.root {
            Some("deviceAccess: root")
        } else {
            None
        }
    }

    /// Whether the pod uses the node's network.
    #[must_use]
    pub fn host_network(&self) -> bool {
        self.tap.is_some() || self.as_java_runner
    }

    /// The extended resource for `/dev/net/tun` that the pod requests.
    #[must_use]
    pub fn tun_resource(&self) -> Option<&str> {
        match &self.tap {
            Some(Tun::Resource(name)) => Some(name),
            _ => None,
        }
    }

    /// A port of the runner: the port of the VM, or the default. The default is not used if the VM uses the port, or in the node's
    /// network, where it would be open to other hosts and could be in use by another VM.
    pub(super) fn runner_port(
        &self,
        wanted: Option<i64>,
        default: u16,
        others: [Option<u16>; 2],
        forwards: &[Forward],
    ) -> Option<u16> {
        if wanted.is_some() {
            return wanted
                .and_then(|port| u16::try_from(port).ok())
                .filter(|_| !self.as_java_runner);
        }
        let is_forwarded =
            |f: &Forward| f.port == i32::from(default) && protocol(f.protocol) == "TCP";
        let is_free = !others.contains(&Some(default)) && !forwards.iter().any(is_forwarded);
        (is_free && !self.host_network()).then_some(default)
    }
}
