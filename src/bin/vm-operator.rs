//! The operator.

use std::process::ExitCode;

fn main() -> ExitCode {
    // One TLS provider in the process; an error means that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    vm_operator::operator::cli::run()
}
