//! (pure) The configuration of the controller of PeerPods: `config.yaml` of the ConfigMap `vm-operator-peerpod`.

use crate::settings::{Section, limits};
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration of the controller of PeerPods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerPodSettings {
    /// Namespaces of PeerPods. Without it, the controller watches all namespaces.
    pub namespaces: Vec<String>,
    /// The provider `virtualmachine`.
    pub virtual_machine: VirtualMachineProvider,
}

/// Key `virtualMachine`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct VirtualMachineProvider {
    /// Namespaces in which the controller may delete VirtualMachines. The controller needs permissions there.
    pub namespaces: Vec<String>,
}

impl Section for PeerPodSettings {
    const PATH: &'static [&'static str] = &[];

    fn violation(&self) -> Option<(String, &'static str)> {
        let lists = [
            ("namespaces", &self.namespaces),
            (
                "virtualMachine.namespaces",
                &self.virtual_machine.namespaces,
            ),
        ];
        let wrong = lists.into_iter().find_map(|(key, list)| {
            let wrong = list.iter().position(|name| !limits::is_namespace(name))?;
            Some(format!("{key}[{wrong}]"))
        });
        wrong.map(|key| (key, "use the name of a namespace"))
    }
}
