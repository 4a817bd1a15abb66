//! (io) Command line of `vm-runner`, and its exit code.

use crate::api::runner::outcome;
use crate::api::vm::names;
use crate::runner::failure::Failure;
use crate::runner::machine::{self, Directories, Environment};
use crate::runner::start::RunEnd;
use crate::runner::{config, console, fetch, import, kvm, spec, start};
use clap::{Args, Parser, Subcommand};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tracing_subscriber::filter::LevelFilter;

/// Runs one virtual machine: starts QEMU, applies changes of the configuration file, and reports the state of the VM.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Path of the configuration file.
    #[arg(short, long, global = true, default_value_os_t = default_config())]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Runs the VM; this is the default.
    Run,
    /// Connects to the serial console of the VM in this container; Ctrl-] disconnects.
    Console(ConsoleArguments),
    /// Connects the VNC client at the standard input and output to the screen of the VM in this container.
    Vnc,
    /// Powers off the VM in this container without asking its guest; QEMU has at most 10 s to write cached data.
    PowerOff,
    /// Checks whether KVM can run guests in this container, and prints each step.
    KvmCheck(kvm::Arguments),
    /// Downloads a CD image from a web server into the image repository.
    Fetch(fetch::Arguments),
    /// Downloads a raw or qcow2 image from a web server onto a disk in a file system.
    Import(import::Arguments),
}

#[derive(Args)]
struct ConsoleArguments {
    /// Prints the guest's serial output since the last boot, at most the last 64 KiB, and exits.
    #[arg(long)]
    log: bool,
}

fn default_config() -> PathBuf {
    Path::new(names::CONFIG_DIR).join(names::CONFIG_FILE)
}

/// Runs the command.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.unwrap_or(Subcommands::Run) {
        Subcommands::Run => run_machine(arguments.config),
        Subcommands::Console(options) => run_console_command(
            &arguments.config,
            if options.log {
                console::log
            } else {
                console::attach
            },
        ),
        Subcommands::Vnc => run_console_command(&arguments.config, console::vnc),
        Subcommands::PowerOff => run_console_command(&arguments.config, console::power_off),
        Subcommands::KvmCheck(options) => kvm::run(&options),
        Subcommands::Fetch(options) => fetch::run(options),
        Subcommands::Import(options) => import::run(options),
    }
}

fn run_machine(config: PathBuf) -> ExitCode {
    let process_start = Instant::now();
    init_logging(&config);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(machine::umask_for_files()));
    let mut emulation = None;
    loop {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                return exit_code(
                    &Failure::start(format!(
                        "the runner cannot start its threads: {error}; raise the limit of processes of the pod (podPidsLimit of the kubelet)"
                    ))
                    .outcome(),
                );
            }
        };
        let end = runtime.block_on(start::run(config.clone(), process_start, emulation.take()));
        // Ends all tasks of the run, so that another one can use the same sockets and ports.
        runtime.shutdown_background();
        match end {
            RunEnd::Ended(outcome) => return exit_code(&outcome),
            RunEnd::Emulate(next) => emulation = Some(next),
        }
    }
}

/// Logs the outcome and returns its exit code. `start` has written the termination message before.
fn exit_code(outcome: &outcome::Outcome) -> ExitCode {
    let reason: &'static str = outcome.reason.into();
    match outcome.message.as_str() {
        "" => {
            tracing::info!(reason, qemu_exit = outcome.qemu_exit, "the runner exits")
        }
        message => {
            tracing::error!(reason, qemu_exit = outcome.qemu_exit, "{message}")
        }
    }
    ExitCode::from(outcome.reason.exit_code())
}

/// Connects to the console of the VM in this container.
fn run_console_command(config: &Path, command: fn(&Path) -> io::Result<()>) -> ExitCode {
    let socket = match console_socket(config) {
        Ok(socket) => socket,
        Err(failure) => {
            eprintln!("vm-runner: {failure}");
            return ExitCode::from(failure.reason.exit_code());
        }
    };
    match command(&socket) {
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
    Ok(Directories::locate(&config, &name, &Environment::current()).file(machine::CONSOLE_SOCKET))
}

fn init_logging(config: &Path) {
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

/// The configured level. An invalid one is reported when the configuration is checked.
fn configured_level(config: &Path) -> Option<LevelFilter> {
    spec::log_level(&config::read(config).ok()?.config).ok()?
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
