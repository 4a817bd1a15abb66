//! (io) Which CPU models the host's KVM has.

use super::probe::{Running, TIME};
use crate::runner::harden::Access;
use crate::runner::{process, qemu};
use command_fds::FdMapping;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The number that the monitor has in QEMU.
const MONITOR: i32 = 3;
/// So many models are named.
const NAMED: usize = 12;
const QUESTIONS: &[u8] =
    b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-cpu-definitions\"}\n{\"execute\":\"quit\"}\n";

/// The models that work, best first as QEMU has them; none where it does not tell.
pub async fn of_host(program: &'static str, reach: &[(PathBuf, Access)]) -> Vec<String> {
    match tokio::time::timeout(TIME, ask(program, reach)).await {
        Ok(Ok(answers)) => usable(&answers),
        Ok(Err(error)) => {
            tracing::warn!(%error, "QEMU does not tell its CPU models");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

async fn ask(program: &'static str, reach: &[(PathBuf, Access)]) -> io::Result<String> {
    let (ours, qemus) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(ours)?;
    let mapping = FdMapping { parent_fd: qemus.into(), child_fd: MONITOR };
    let _running = Running(process::spawn(program, &qemu::asked_for_models(MONITOR), reach, vec![mapping])?);
    let mut answers = String::new();
    stream.write_all(QUESTIONS).await?;
    stream.read_to_string(&mut answers).await?;
    Ok(answers)
}

/// Those of which the host lacks no feature, but for the pseudo-models that are another's name.
fn usable(answers: &str) -> Vec<String> {
    let lists = answers.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut lists = lists.filter_map(|answer| answer.get("return")?.as_array().cloned());
    let usable = |model: &Value| {
        let whole = model.get("unavailable-features").and_then(Value::as_array).is_some_and(Vec::is_empty);
        let current = model.get("deprecated").and_then(Value::as_bool) != Some(true);
        let name = model.get("name")?.as_str()?;
        (whole && current && !name.ends_with("-x86_64-cpu") && name != "base").then(|| name.to_owned())
    };
    let mut models: Vec<String> = lists.next().unwrap_or_default().iter().filter_map(usable).collect();
    models.sort_by_key(|name| (name != "host", name.contains("-v"), name.clone()));
    models
}

/// What a user should know of a model that the host refuses.
pub fn refused(model: &str, why: &str, models: &[String]) -> String {
    let others = match models {
        [] => "host works".to_owned(),
        _ if models.len() > NAMED => format!("among those that work: {}", names(models)),
        _ => format!("those that work: {}", names(models)),
    };
    format!("this node's KVM does not run the CPU model {model:?} (vm.cpuModel): {why}; {others}")
}

fn names(models: &[String]) -> String {
    models.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(told.ends_with("those that work: host, EPYC, EPYC-v2"), "{told}");
        assert!(refused("Haswell", "x", &[]).ends_with("host works"));
        assert_eq!(usable("nothing"), Vec::<String>::new());
    }
}
