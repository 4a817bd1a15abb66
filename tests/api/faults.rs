//! Faults at calls of the operator on a real API server, which validate the simulated ones.
//! [`support::enumeration::real`] documents the variables.
//!
//! `make test-faults` runs it, and so does `make test`. It starts its own API server and etcd; the other components are
//! simulated.

use support::enumeration::real;
use support::real::Server;
use support::{install, vms};

#[test]
fn the_real_api_server_gives_the_verdicts_of_the_simulation() {
    // In this thread, which lives until the end, because the server stops with it.
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let wrong = runtime.block_on(async {
        let client = server.client().await;
        install::install(&client).await;
        real::check(&vms::CONTROLLER, vms::SCENARIOS, client).await
    });
    runtime.shutdown_background();
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
