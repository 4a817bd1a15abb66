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
    /// Omit the steps of the check that use 64-bit mode. The check at the start of a VM with the accelerator policy `kvm`
    /// also omits these steps.
    #[arg(long)]
    basic: bool,
    /// Path of the KVM device.
    #[arg(long, hide = true, default_value = DEVICE)]
    device: PathBuf,
    /// Execute the steps in this process, and print one line of JSON for each.
    #[arg(long = child::STEPS_OPTION, hide = true)]
    steps: bool,
}

/// Runs the command. The exit code is 0 if KVM works, 69 if it does not work, and 1 if the check has timed out.
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
            eprintln!(
                "vm-runner: the runner cannot start its threads: {error}; raise the limit of processes of the pod \
                 (podPidsLimit of the kubelet)"
            );
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
            println!("{}", consequence(*step));
        }
        Finding::Unknown(_) => {
            print_result(
                current,
                &format!("no result after {} s", check.limit.as_secs()),
            );
            println!(
                "the KVM check has timed out, so it is unknown whether KVM works; run vm-runner kvm-check again"
            );
        }
    }
    finding
}

fn print_result(step: Option<Step>, result: &str) {
    if let Some(step) = step {
        println!("{}: {result}", step.text());
    }
}

/// The consequence of a failed step for VMs.
fn consequence(step: Step) -> &'static str {
    if step.is_basic() {
        "KVM does not work on this node; repair KVM, or use a different node. If accelerator.policy in the operator's ConfigMap \
         is auto, QEMU emulates the VM. If accelerator.policy is kvm, the VM does not start"
    } else {
        "KVM on this node cannot execute instructions that operating systems need; use a different node. If accelerator.policy \
         in the operator's ConfigMap is auto, QEMU emulates the VM. If accelerator.policy is kvm, the guest crashes"
    }
}

fn exit_code(finding: &Finding) -> ExitCode {
    match finding {
        Finding::Passed => ExitCode::SUCCESS,
        Finding::Failed(_) => ExitCode::from(EndReason::AcceleratorUnavailable.exit_code()),
        Finding::Unknown(_) => ExitCode::FAILURE,
    }
}

/// Prints the properties of the node that a bug report needs.
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
        "KVM modules: {}",
        if modules.is_empty() {
            "unknown".to_owned()
        } else {
            modules.join(", ")
        }
    );
}
