//! (io) The program's arguments, and the way from them to an exit code.

use crate::api::runner::outcome;
use crate::api::vm::names;
use crate::runner::failure::Failure;
use crate::runner::machine::{self, Directories, Environment};
use crate::runner::{config, console, fetch, resolved, start};
use clap::{Args, Parser, Subcommand};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tracing_subscriber::filter::LevelFilter;

/// Runs one virtual machine: starts QEMU, keeps it as configured, reports.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file.
    #[arg(short, long, global = true, default_value_os_t = default_config())]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Runs the machine (default).
    Run,
    /// Attaches to the serial console of the machine that runs in this container; Ctrl-] detaches.
    Console(ConsoleArguments),
    /// Ends the machine that runs in this container, as pulling its plug does; QEMU has 10 s at most to write what it still has.
    PowerOff,
    /// Brings an image from a web server into the image repository.
    Fetch(fetch::Arguments),
}

#[derive(Args)]
struct ConsoleArguments {
    /// Prints what the guest has written since it boots, and ends.
    #[arg(long)]
    log: bool,
}

fn default_config() -> PathBuf {
    Path::new(names::CONFIG_DIR).join(names::CONFIG_FILE)
}

/// Does what the arguments say.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.unwrap_or(Subcommands::Run) {
        Subcommands::Run => run_machine(arguments.config),
        Subcommands::Console(options) => reach(
            &arguments.config,
            if options.log {
                console::log
            } else {
                console::attach
            },
        ),
        Subcommands::PowerOff => reach(&arguments.config, console::power_off),
        Subcommands::Fetch(options) => fetch::run(options),
    }
}

fn run_machine(config: PathBuf) -> ExitCode {
    let began = Instant::now();
    log_to_stdout(&config);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(machine::kept_from_others()));
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return end(&Failure::start(format!("no runtime: {error}")).outcome()),
    };
    let outcome = runtime.block_on(start::run(config, began));
    runtime.shutdown_background();
    end(&outcome)
}

/// The exit code. The termination message was written by then, where there is a machine that took time to end.
fn end(outcome: &outcome::Outcome) -> ExitCode {
    match outcome.message.as_str() {
        "" => tracing::info!(reason = ?outcome.reason, qemu_exit = outcome.qemu_exit, "end"),
        message => {
            tracing::error!(reason = ?outcome.reason, qemu_exit = outcome.qemu_exit, "{message}")
        }
    }
    ExitCode::from(outcome.reason.exit_code())
}

/// Does something with the console of the machine that runs in this container.
fn reach(config: &Path, what: fn(&Path) -> io::Result<()>) -> ExitCode {
    let socket = match console_socket(config) {
        Ok(socket) => socket,
        Err(failure) => {
            eprintln!("vm-runner: {failure}");
            return ExitCode::from(failure.reason.exit_code());
        }
    };
    match what(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vm-runner: {error}");
            ExitCode::FAILURE
        }
    }
}

fn console_socket(config: &Path) -> Result<PathBuf, Failure> {
    let config = config::read(config)?.config;
    let name = config
        .vm
        .as_ref()
        .map(|vm| vm.name.clone())
        .unwrap_or_default();
    Ok(Directories::locate(&config, &name, &Environment::of_process()).file(machine::CONSOLE_SOCKET))
}

fn log_to_stdout(config: &Path) {
    let verbose = std::env::var_os("VMRUNNER_DEBUG").is_some();
    let level = if verbose {
        LevelFilter::DEBUG
    } else {
        configured_level(config).unwrap_or(LevelFilter::INFO)
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .init();
}

/// The level that the configuration gives. One that cannot be used is told of later.
fn configured_level(config: &Path) -> Option<LevelFilter> {
    resolved::log_level(&config::read(config).ok()?.config).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_says_how_much_is_logged() {
        let dir = tempfile::tempdir().unwrap();
        let level = |text: &str| {
            let file = dir.path().join("config.yaml");
            std::fs::write(&file, text).unwrap();
            configured_level(&file)
        };
        assert_eq!(
            level(r#"{"/Runner": {"logLevel": "debug", "vm": {"name": "t"}}}"#),
            Some(LevelFilter::DEBUG)
        );
        assert_eq!(level(r#"{"/Runner": {"vm": {"name": "t"}}}"#), None);
        assert_eq!(level("{"), None);
    }
}
