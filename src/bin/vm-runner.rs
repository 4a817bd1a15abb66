//! PID 1 of a VM's pod; see `vm_operator::runner`.

fn main() -> std::process::ExitCode {
    vm_operator::runner::cli::run()
}
