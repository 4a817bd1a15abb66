//! (pure) Values that only QEMU can judge: what it says of them, in the words of the configuration.

use super::super::config;
use super::super::failure::Invalid;
use super::Network;
use crate::api::outcome::{EndReason, Outcome};
use std::path::Path;

/// What QEMU says of a model that it does not have, that is no network card, or that nobody can plug in.
const NO_CARD: [&str; 3] =
    ["is not a valid device model name", ".netdev' not found", "expects a pluggable device type"];

/// The outcome, where QEMU did not start because of the model of a network card: that of a wrong configuration in this file.
/// Any other stays as it is.
pub fn explain(outcome: Outcome, networks: &[Network], file: &Path) -> Outcome {
    let says = |sign: &str| outcome.message.contains(sign);
    let is_of = |(n, _): &(usize, &Network)| says(&format!("\"netdev\":\"hostnet{n}\""));
    let network = networks.iter().enumerate().find(is_of);
    match network {
        Some((n, network)) if outcome.reason == EndReason::StartFailed && NO_CARD.iter().any(|sign| says(sign)) => {
            let why = format!(
                "{:?} is no network card that this QEMU has; use virtio-net, or another that it lists with -device help: {}",
                network.device, outcome.message
            );
            let failure = config::in_file(file, &Invalid::new(format!("vm.network[{n}].device"), why));
            Outcome { qemu_exit: outcome.qemu_exit, ..failure.outcome() }
        }
        _ => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::spec::Backend;

    #[test]
    fn a_card_that_qemu_does_not_have_is_told_with_its_key_and_all_else_stays_as_it_is() {
        let network = |device: &str| Network {
            device: device.to_owned(),
            mac: None,
            backend: Backend::User { net: None, forwards: Vec::new() },
        };
        let networks = [network("virtio-net"), network("e1001")];
        let outcome = |message: &str| Outcome {
            reason: EndReason::StartFailed,
            message: message.to_owned(),
            qemu_exit: Some(1),
            by_guest: false,
        };
        // In QEMU's own words (10.0).
        for words in [
            r#"-device {"driver":"e1001","netdev":"hostnet1"}: 'e1001' is not a valid device model name"#,
            r#"-device {"driver":"virtio-blk-pci","netdev":"hostnet1"}: Property 'virtio-blk-pci.netdev' not found"#,
            r#"-device {"driver":"cfi.pflash01","netdev":"hostnet1"}: Parameter 'driver' expects a pluggable device type"#,
        ] {
            let told = explain(outcome(words), &networks, Path::new("/c.yaml"));
            assert_eq!((told.reason, told.qemu_exit), (EndReason::InvalidConfig, Some(1)));
            assert!(
                told.message.starts_with("/c.yaml: vm.network[1].device: \"e1001\" is no network card"),
                "{told:?}"
            );
            assert!(told.message.ends_with(words), "{told:?}");
        }
        let others = [
            outcome(r#"-device {"driver":"vga9","id":"video0"}: 'vga9' is not a valid device model name"#),
            outcome(r#"-device {"netdev":"hostnet1"}: failed to find romfile"#),
            Outcome {
                reason: EndReason::QemuCrashed,
                ..outcome(r#""netdev":"hostnet1" is not a valid device model name"#)
            },
        ];
        for other in others {
            assert_eq!(explain(other.clone(), &networks, Path::new("/c.yaml")), other);
        }
    }
}
