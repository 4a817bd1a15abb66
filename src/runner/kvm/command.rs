//! (io) The command `vm-runner kvm-check`: prints the steps of the check and what they mean for VMs on this node.

use crate::api::runner::outcome::EndReason;
use crate::runner::kvm::check::{Extent, FailedStep, Step};
use crate::runner::kvm::child::{self, Check, Finding};
use crate::runner::kvm::{CHECK_TIMEOUT, DEVICE, OWN_PROGRAM};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of the command.
#[derive(Args)]
pub struct Arguments {
    /// Leaves out the steps in long mode, as a VM with accelerator kvm does.
    #[arg(long)]
    basic: bool,
    /// The device.
    #[arg(long, hide = true, default_value = DEVICE)]
    device: PathBuf,
    /// Executes the steps in this process, and prints one line of JSON for each.
    #[arg(long = child::STEPS_OPTION, hide = true)]
    steps: bool,
}

/// Runs the command. Exit code 0: KVM works. 69: it does not work. 1: the check has not ended in time.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let extent = if arguments.basic {
        Extent::Basic
    } else {
        Extent::Full
    };
    let device = arguments.device.as_path();
    if arguments.steps {
        return match child::write_steps(device, extent) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("vm-runner: {error}");
                ExitCode::FAILURE
            }
        };
    }
    print_node();
    let check = Check {
        program: Path::new(OWN_PROGRAM),
        device,
        extent,
        limit: CHECK_TIMEOUT,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.map(|runtime| runtime.block_on(check_and_print(&check))) {
        Ok(finding) => exit_code(&finding),
        Err(error) => {
            eprintln!("vm-runner: the runtime for tasks cannot be created: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn check_and_print(check: &Check<'_>) -> Finding {
    let mut current: Option<Step> = None;
    let finding = check
        .run(|step| {
            print_result(current.replace(step), "ok");
        })
        .await;
    match &finding {
        Finding::Passed => {
            print_result(current, "ok");
            println!("KVM works");
        }
        Finding::Failed(FailedStep { step, why }) => {
            print_result(Some(*step), &format!("failed: {why}"));
            println!("{}", meaning(*step));
        }
        Finding::Unknown(_) => {
            print_result(
                current,
                &format!("not ended after {} s", check.limit.as_secs()),
            );
            println!("it is unknown whether KVM works; run the command again");
        }
    }
    finding
}

fn print_result(step: Option<Step>, result: &str) {
    if let Some(step) = step {
        println!("{}: {result}", step.text());
    }
}

/// The result of a failed step for VMs.
fn meaning(step: Step) -> &'static str {
    if step.is_basic() {
        "KVM does not work: with accelerator auto guests are emulated, with kvm they do not start"
    } else {
        "KVM does not run operating systems: with accelerator auto guests are emulated, with kvm they stop"
    }
}

fn exit_code(finding: &Finding) -> ExitCode {
    match finding {
        Finding::Passed => ExitCode::SUCCESS,
        Finding::Failed(_) => ExitCode::from(EndReason::AcceleratorUnavailable.exit_code()),
        Finding::Unknown(_) => ExitCode::FAILURE,
    }
}

/// Prints the properties of the node that a report needs.
fn print_node() {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|model| model.trim_start_matches([':', '\t', ' ']));
    println!("kernel: {}", read("/proc/sys/kernel/osrelease").trim());
    println!("processor: {}", model.unwrap_or("unknown"));
    let is_loaded = |module: &&&str| Path::new("/sys/module").join(module).exists();
    let modules: Vec<&str> = ["kvm_intel", "kvm_amd", "kvm_pvm"]
        .iter()
        .filter(is_loaded)
        .copied()
        .collect();
    println!(
        "module of KVM: {}",
        if modules.is_empty() {
            "unknown".to_owned()
        } else {
            modules.join(", ")
        }
    );
}
