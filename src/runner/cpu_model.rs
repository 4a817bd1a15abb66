//! (pure) Explains a start that failed because of the CPU model, which only QEMU can check.

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::config;
use crate::runner::failure::Invalid;
use std::path::Path;

/// QEMU's messages for a model that it does not have, or not with all features.
const NO_MODEL: [&str; 2] = ["unable to find CPU model", "support requested feature"];
/// Part of QEMU's messages for an invalid feature: the class of the model.
const NO_FEATURE: &str = "-x86_64-cpu.";

/// Replaces the outcome of a start that failed because of the CPU model of that file: an invalid configuration, with the next
/// step. Any other outcome is unchanged.
pub fn explain(outcome: Outcome, file: &Path, model: &str) -> Outcome {
    let says = |sign: &str| outcome.message.contains(sign);
    let hint = match outcome.reason {
        EndReason::StartFailed if NO_MODEL.iter().any(|sign| says(sign)) => {
            "use the CPU model `host`, which works on every node, or a model that `qemu-system-x86_64 -cpu help` prints in the \
             runner's image"
        }
        EndReason::StartFailed if says(NO_FEATURE) => {
            "correct the CPU features, the part of the value after the first comma"
        }
        _ => return outcome,
    };
    let why = format!(
        "the CPU model {model:?} does not work on this node: {}; {hint}",
        outcome.message
    );
    let failure = config::failure_in_file(file, &Invalid::new("vm.cpuModel", why));
    Outcome {
        qemu_exit: outcome.qemu_exit,
        ..failure.outcome()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(reason: EndReason, message: &str) -> Outcome {
        Outcome {
            reason,
            message: message.to_owned(),
            qemu_exit: Some(1),
            by_guest: false,
        }
    }

    #[test]
    fn failures_unrelated_to_the_cpu_model_are_unchanged() {
        for other in [
            outcome(EndReason::StartFailed, "could not open disk"),
            outcome(EndReason::Stopped, ""),
            outcome(EndReason::QemuCrashed, "unable to find CPU model"),
        ] {
            assert_eq!(explain(other.clone(), Path::new("/c.yaml"), "x"), other);
        }
    }

    #[test]
    fn a_model_or_feature_that_qemu_lacks_is_an_invalid_configuration_with_the_next_step() {
        for (words, hint) in [
            (
                "unable to find CPU model 'x'",
                "qemu-system-x86_64 -cpu help",
            ),
            (
                "Host doesn't support requested features",
                "use the CPU model `host`",
            ),
            (
                "Property 'x-x86_64-cpu.y' not found",
                "correct the CPU features",
            ),
        ] {
            let explained = explain(
                outcome(EndReason::StartFailed, words),
                Path::new("/c.yaml"),
                "x",
            );
            assert_eq!(
                (explained.reason, explained.qemu_exit),
                (EndReason::InvalidConfig, Some(1))
            );
            let message = explained.message;
            assert!(
                message.starts_with("/c.yaml: vm.cpuModel: the CPU model \"x\" does not work"),
                "{message}"
            );
            assert!(
                message.contains(words) && message.contains(hint),
                "{message}"
            );
        }
    }
}
