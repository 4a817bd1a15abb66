//! (io) Lists the CPU models that work on this node, and explains a model that does not.

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::Invalid;
use crate::runner::harden::{Access, FileAccess};
use crate::runner::kvm::{KillOnDrop, QEMU_TEST_TIMEOUT};
use crate::runner::{config, process, qemu};
use command_fds::FdMapping;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The number that the monitor has in QEMU.
const QMP_FD: i32 = 3;
/// Number of models in a message.
const LISTED_MODELS_MAX: usize = 12;
const QMP_COMMANDS: &[u8] =
    b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-cpu-definitions\"}\n{\"execute\":\"quit\"}\n";

/// The models that work with that accelerator, the best first. Empty if QEMU does not answer.
pub async fn working_models(
    program: &'static str,
    accelerator: Option<&str>,
    files: &[(PathBuf, Access)],
) -> Vec<String> {
    match tokio::time::timeout(QEMU_TEST_TIMEOUT, ask(program, accelerator, files)).await {
        Ok(Ok(answers)) => usable(&answers),
        Ok(Err(error)) => {
            tracing::warn!(%error, "QEMU does not list its CPU models");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

async fn ask(
    program: &'static str,
    accelerator: Option<&str>,
    files: &[(PathBuf, Access)],
) -> io::Result<String> {
    let (ours, qemus) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(ours)?;
    let mapping = FdMapping {
        parent_fd: qemus.into(),
        child_fd: QMP_FD,
    };
    let arguments = qemu::cpu_model_query(accelerator, QMP_FD);
    let _running = KillOnDrop(process::spawn(program, &arguments, files, vec![mapping])?);
    let mut answers = Vec::new();
    stream.write_all(QMP_COMMANDS).await?;
    // QEMU closes the connection after the last command, which can cause a connection error.
    match stream.read_to_end(&mut answers).await {
        Err(error) if answers.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answers).into_owned()),
    }
}

/// The models with all features on this node, without aliases of other models.
fn usable(answers: &str) -> Vec<String> {
    let lists = answers
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut lists = lists.filter_map(|answer| answer.get("return")?.as_array().cloned());
    let usable = |model: &Value| {
        let whole = model
            .get("unavailable-features")
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty);
        let current = model.get("deprecated").and_then(Value::as_bool) != Some(true);
        let name = model.get("name")?.as_str()?;
        (whole && current && !name.ends_with("-x86_64-cpu") && name != "base")
            .then(|| name.to_owned())
    };
    let mut models: Vec<String> = lists
        .next()
        .unwrap_or_default()
        .iter()
        .filter_map(usable)
        .collect();
    models.sort_by_key(|name| {
        (
            name != "host",
            name != "max",
            name.contains("-v"),
            name.clone(),
        )
    });
    models
}

/// The message for a model that KVM rejects.
pub fn refused(model: &str, why: &str, models: &[String]) -> String {
    let others = others(models);
    format!("this node's KVM does not run the CPU model {model:?} (vm.cpuModel): {why}; {others}")
}

fn others(models: &[String]) -> String {
    match models {
        [] => "host works".to_owned(),
        _ if models.len() > LISTED_MODELS_MAX => {
            format!("among those that work: {}", names(models))
        }
        _ => format!("those that work: {}", names(models)),
    }
}

fn names(models: &[String]) -> String {
    models
        .iter()
        .take(LISTED_MODELS_MAX)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// QEMU's messages for a model that it does not have, or not with all features.
const NO_MODEL: [&str; 2] = ["unable to find CPU model", "support requested feature"];
/// Part of QEMU's messages for an invalid feature: the class of the model.
const NO_FEATURE: &str = "-x86_64-cpu.";

/// The CPU model that a machine is started with.
pub struct SelectedModel<'a> {
    /// QEMU.
    pub program: &'static str,
    /// The configuration file.
    pub file: &'a Path,
    /// The model in that file.
    pub model: &'a str,
    /// QEMU's name of the accelerator.
    pub accelerator: Option<&'static str>,
}

impl SelectedModel<'_> {
    /// Replaces the outcome of a start that failed because of the CPU model: an invalid configuration, with models that
    /// work. Any other outcome is unchanged.
    pub async fn explain(&self, outcome: Outcome) -> Outcome {
        let says = |sign: &str| outcome.message.contains(sign);
        let hint = match outcome.reason {
            EndReason::StartFailed if NO_MODEL.iter().any(|sign| says(sign)) => {
                let models =
                    working_models(self.program, self.accelerator, &FileAccess::of_programs())
                        .await;
                others(&nearest_first(models, self.model))
            }
            EndReason::StartFailed if says(NO_FEATURE) => {
                "correct its features, which are behind commas".to_owned()
            }
            _ => return outcome,
        };
        let why = format!(
            "{:?} does not work: {}; {hint}",
            self.model, outcome.message
        );
        let failure = config::failure_in_file(self.file, &Invalid::new("vm.cpuModel", why));
        Outcome {
            qemu_exit: outcome.qemu_exit,
            ..failure.outcome()
        }
    }
}

/// Length of a prefix that makes two names similar.
const SIMILAR_PREFIX_LENGTH: usize = 3;

/// Sorts models that are similar to the configured one first, after the two that always work.
fn nearest_first(mut models: Vec<String>, wanted: &str) -> Vec<String> {
    let start = |name: &str| {
        name.chars()
            .take(SIMILAR_PREFIX_LENGTH)
            .collect::<String>()
            .to_lowercase()
    };
    let wanted = start(wanted);
    models.sort_by_key(|name| !["host", "max"].contains(&name.as_str()) && start(name) != wanted);
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_with_the_models_that_look_like_it() {
        let models = ["max", "Conroe", "EPYC", "Haswell", "EPYC-v2"]
            .map(str::to_owned)
            .to_vec();
        let names = nearest_first(models, "epic");
        assert_eq!(names, ["max", "Conroe", "EPYC", "Haswell", "EPYC-v2"]);
        assert_eq!(
            nearest_first(names, "epyc,+x"),
            ["max", "EPYC", "EPYC-v2", "Conroe", "Haswell"]
        );
    }

    #[tokio::test]
    async fn what_has_nothing_to_do_with_the_cpu_model_stays_as_it_is() {
        let chosen = SelectedModel {
            program: "/none",
            file: Path::new("/c.yaml"),
            model: "x",
            accelerator: None,
        };
        let outcome = |reason, message: &str| Outcome {
            reason,
            message: message.to_owned(),
            qemu_exit: Some(1),
            by_guest: false,
        };
        for other in [
            outcome(EndReason::StartFailed, "could not open disk"),
            outcome(EndReason::Stopped, ""),
            outcome(EndReason::QemuCrashed, "unable to find CPU model"),
        ] {
            assert_eq!(chosen.explain(other.clone()).await, other);
        }
        let feature = chosen
            .explain(outcome(
                EndReason::StartFailed,
                "Property 'x-x86_64-cpu.y' not found",
            ))
            .await;
        assert_eq!(
            (feature.reason, feature.qemu_exit),
            (EndReason::InvalidConfig, Some(1))
        );
        assert!(
            feature
                .message
                .starts_with("/c.yaml: vm.cpuModel: \"x\" does not work"),
            "{}",
            feature.message
        );
    }

    #[test]
    fn models_whose_features_the_host_lacks_are_left_out() {
        let answers = r#"{"QMP": {}}
{"return": {}}
{"return": [{"name": "EPYC-v2", "unavailable-features": []}, {"name": "EPYC", "unavailable-features": []},
 {"name": "Haswell", "unavailable-features": ["tsx"]}, {"name": "host", "unavailable-features": []},
 {"name": "base", "unavailable-features": []}, {"name": "old", "unavailable-features": [], "deprecated": true}]}
{"return": {}}"#
            .replace("},\n", "},");
        let models = usable(&answers);
        assert_eq!(models, ["host", "EPYC", "EPYC-v2"]);
        let reported = refused("Haswell", "QEMU ended with exit code 1", &models);
        assert!(
            reported.ends_with("those that work: host, EPYC, EPYC-v2"),
            "{reported}"
        );
        assert!(refused("Haswell", "x", &[]).ends_with("host works"));
        assert_eq!(usable("nothing"), Vec::<String>::new());
    }
}
