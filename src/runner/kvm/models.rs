//! (io) Which CPU models QEMU has that work here, and what to say of one that does not.

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::runner::failure::Invalid;
use crate::runner::harden::{Access, Reach};
use crate::runner::kvm::{Running, TIME};
use crate::runner::{config, process, qemu};
use command_fds::FdMapping;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The number that the monitor has in QEMU.
const MONITOR: i32 = 3;
/// So many models are named.
const NAMED: usize = 12;
const QUESTIONS: &[u8] =
    b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-cpu-definitions\"}\n{\"execute\":\"quit\"}\n";

/// The models that work with that accelerator, best first as QEMU has them; none where it does not tell.
pub async fn that_work(
    program: &'static str,
    accelerator: Option<&str>,
    reach: &[(PathBuf, Access)],
) -> Vec<String> {
    match tokio::time::timeout(TIME, ask(program, accelerator, reach)).await {
        Ok(Ok(answers)) => usable(&answers),
        Ok(Err(error)) => {
            tracing::warn!(%error, "QEMU does not tell its CPU models");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

async fn ask(
    program: &'static str,
    accelerator: Option<&str>,
    reach: &[(PathBuf, Access)],
) -> io::Result<String> {
    let (ours, qemus) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(ours)?;
    let mapping = FdMapping {
        parent_fd: qemus.into(),
        child_fd: MONITOR,
    };
    let arguments = qemu::asked_for_models(accelerator, MONITOR);
    let _running = Running(process::spawn(program, &arguments, reach, vec![mapping])?);
    let mut answers = Vec::new();
    stream.write_all(QUESTIONS).await?;
    // QEMU closes it as soon as it has read the last word, which can look like a broken connection.
    match stream.read_to_end(&mut answers).await {
        Err(error) if answers.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answers).into_owned()),
    }
}

/// Those of which the host lacks no feature, but for the pseudo-models that are another's name.
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

/// What a user should know of a model that the host refuses.
pub fn refused(model: &str, why: &str, models: &[String]) -> String {
    let others = others(models);
    format!("this node's KVM does not run the CPU model {model:?} (vm.cpuModel): {why}; {others}")
}

fn others(models: &[String]) -> String {
    match models {
        [] => "host works".to_owned(),
        _ if models.len() > NAMED => format!("among those that work: {}", names(models)),
        _ => format!("those that work: {}", names(models)),
    }
}

fn names(models: &[String]) -> String {
    models
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// What QEMU says of a model that it does not have, or not with all of its features.
const NO_MODEL: [&str; 2] = ["unable to find CPU model", "support requested feature"];
/// What QEMU says of a feature or of its value: the class of the model.
const NO_FEATURE: &str = "-x86_64-cpu.";

/// The CPU model that a machine is started with.
pub struct Chosen<'a> {
    /// QEMU.
    pub program: &'static str,
    /// The configuration file.
    pub file: &'a Path,
    /// The model as it stands there.
    pub model: &'a str,
    /// QEMU's name for what runs the guest's instructions.
    pub accelerator: Option<&'static str>,
}

impl Chosen<'_> {
    /// The outcome, where QEMU did not start because of the CPU model: that of a wrong configuration, with models that
    /// work. Any other stays as it is.
    pub async fn explain(&self, outcome: Outcome) -> Outcome {
        let says = |sign: &str| outcome.message.contains(sign);
        let hint = match outcome.reason {
            EndReason::StartFailed if NO_MODEL.iter().any(|sign| says(sign)) => {
                let models = that_work(self.program, self.accelerator, &Reach::of_any()).await;
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
        let failure = config::in_file(self.file, &Invalid::new("vm.cpuModel", why));
        Outcome {
            qemu_exit: outcome.qemu_exit,
            ..failure.outcome()
        }
    }
}

/// So many first letters make a name look like another.
const ALIKE: usize = 3;

/// Models that the wanted one may be a slip of come first, behind the two that always work.
fn nearest_first(mut models: Vec<String>, wanted: &str) -> Vec<String> {
    let start = |name: &str| name.chars().take(ALIKE).collect::<String>().to_lowercase();
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
        let chosen = Chosen {
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
        let told = refused("Haswell", "QEMU ended with exit code 1", &models);
        assert!(
            told.ends_with("those that work: host, EPYC, EPYC-v2"),
            "{told}"
        );
        assert!(refused("Haswell", "x", &[]).ends_with("host works"));
        assert_eq!(usable("nothing"), Vec::<String>::new());
    }
}
