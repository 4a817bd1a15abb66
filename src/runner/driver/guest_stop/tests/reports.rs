//! Reports of the driver.

use super::*;
use crate::runner::qmp::QmpEvent;

fn reported(rig: &Rig, type_: &str) -> (bool, &'static str) {
    let conditions = rig.driver.observed.conditions();
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    (condition.status, condition.reason.as_str())
}

#[tokio::test]
async fn lost_qmp_connection_is_reported_while_the_guest_continues() {
    let mut rig = rig().await;
    let (other, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut rig.peer, Peer::of(other)));
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    while !rig.driver.observed.monitor_lost {
        tokio::select! {
            Some(signal) = rig.inbox.monitor.recv() => rig.driver.handle_qmp_signal(signal),
            Some(task_results) = rig.inbox.task_results.recv() => rig.driver.task_finished(task_results),
        }
    }
    assert!(
        began.elapsed() >= Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        (reported(&rig, "ConfigInSync"), rig.driver.state.phase()),
        ((false, "MonitorLost"), Phase::Booting)
    );
}

#[tokio::test]
async fn reported_disk_error_is_cleared_at_guest_reset() {
    let mut rig = rig().await;
    let error = json!({"node-name": "drive-0-host-resource", "operation": "write", "action": "report",
        "nospace": false, "reason": "Input/output error"});
    let error = json!({"event": "BLOCK_IO_ERROR", "data": error}).to_string();
    rig.peer.send_line(&error).await;
    rig.until("running", |driver| driver.observed.disk_error.is_some())
        .await;
    assert_eq!(reported(&rig, "StorageHealthy"), (false, "DiskError"));
    rig.peer
        .send_line(r#"{"event": "RESET", "data": {"guest": true}}"#)
        .await;
    rig.until("running", |driver| driver.observed.disk_error.is_none())
        .await;
    assert_eq!(reported(&rig, "StorageHealthy"), (true, "Healthy"));
}

#[tokio::test]
async fn guest_agent_data_is_cleared_when_the_agent_disconnects() {
    let mut rig = rig().await;
    rig.driver.step(Event::AgentChannel(true));
    rig.driver.task_finished(TaskResult::Osinfo(
        json!({"id": "debian"}).as_object().unwrap().clone(),
    ));
    rig.driver
        .task_finished(TaskResult::Addresses(vec!["10.0.2.15".to_owned()]));
    assert_eq!(
        (
            rig.driver.state.phase(),
            rig.driver.observed.addresses.len()
        ),
        (Phase::Booted, 1)
    );
    rig.driver.step(Event::AgentChannel(false));
    assert_eq!(
        (
            rig.driver.observed.osinfo.clone(),
            rig.driver.observed.addresses.clone()
        ),
        (None, Vec::new())
    );
}

#[tokio::test]
async fn changed_key_that_needs_a_restart_is_reported_until_it_is_reverted() {
    let mut rig = rig().await;
    let mut reported = |keys: &str| {
        let text = format!(
            r#"{{"/Runner": {{{keys} "vm": {{"name": "test-vm", "display": {{"spice": {{}}}}}}}}}}"#
        );
        let files = ConfigFiles {
            config: Ok(Some(text)),
            password: Ok(None),
            certificate: [None; 3],
            console_keys: Vec::new(),
        };
        rig.driver.files_changed(files);
        rig.driver.observed.config_problem.clone()
    };
    let waits = |keys: &str| {
        let why =
            format!("restart the VM to apply the changes of these configuration keys: {keys}");
        Some(ConfigProblem::RestartNeeded(why))
    };
    let seed = r#""cloudInit": {"userData": {"password": "x"}},"#;
    assert_eq!(
        reported(&format!(
            r#"{seed} "metricsPort": 9000, "logLevel": "debug","#
        )),
        waits("logLevel, metricsPort, cloudInit")
    );
    assert_eq!(
        reported(r#""dataDir": "/d", "runtimeDir": "/r", "uid": "u","#),
        waits("dataDir, runtimeDir, uid")
    );
    assert_eq!(
        reported(r#""generation": 7, "resetCounter": 1, "guestShutdownStops": true,"#),
        None,
        "the runner follows these keys or does not read them"
    );
    let invalid = reported(r#""logLevel": "loud","#);
    let names_the_level = |why: &String| why.contains("logLevel: \"loud\" is not allowed");
    assert!(
        matches!(&invalid, Some(ConfigProblem::Invalid(why)) if names_the_level(why)),
        "{invalid:?}"
    );
    assert_eq!(reported(""), None);
}

#[tokio::test]
async fn another_assignment_disconnects_clients_of_the_display_and_needs_no_restart() {
    let mut rig = rig().await;
    let user = |name: &str, assignment: &str| {
        TaskResult::SpiceUser(name.to_owned(), Some(assignment.to_owned()))
    };
    let assign = |driver: &mut Driver, key: &str| {
        let vm = r#""vm": {"name": "test-vm", "display": {"spice": {}}}"#;
        driver.files_changed(ConfigFiles {
            config: Ok(Some(format!(r#"{{"/Runner": {{{key} {vm}}}}}"#))),
            password: Ok(None),
            certificate: [None; 3],
            console_keys: Vec::new(),
        });
        assert_eq!(driver.observed.config_problem, None);
        let disconnects = driver.desired_state.borrow().disconnects;
        (disconnects, driver.observed.spice_user.clone())
    };
    let driver = &mut rig.driver;
    let (one, two) = (r#""assignment": "1","#, r#""assignment": "2","#);
    let bob = "bob".to_owned();
    driver.task_finished(user("alice", "1"));
    // The configuration arrives after the first password.
    assert_eq!(assign(driver, one), (0, "alice".to_owned()));
    assert_eq!(assign(driver, ""), (1, String::new()));
    driver.task_finished(user("bob", "2"));
    assert_eq!(assign(driver, two), (1, bob.clone()));
    assert_eq!(assign(driver, two), (1, bob.clone()));
    driver.task_finished(TaskResult::SpiceUserRejected("alice".to_owned()));
    assert_eq!(assign(driver, two), (1, bob));
    driver.task_finished(TaskResult::SpiceUserRejected("bob".to_owned()));
    assert_eq!(assign(driver, two), (2, String::new()));
}

#[tokio::test]
async fn user_of_the_connected_client_is_disconnected_and_not_the_one_who_has_gone() {
    let mut rig = rig().await;
    let driver = &mut rig.driver;
    let (host, port) = ("192.0.2.7".to_owned(), "1".to_owned());
    let connected = || QmpEvent::ConsoleConnected {
        host: host.clone(),
        port: port.clone(),
    };
    let gone = || QmpEvent::ConsoleDisconnected {
        host: host.clone(),
        port: port.clone(),
    };
    let password = |user: &str| TaskResult::SpiceUser(user.to_owned(), None);
    let rejected = |driver: &mut Driver, user: &str| {
        driver.task_finished(TaskResult::SpiceUserRejected(user.to_owned()));
        driver.desired_state.borrow().disconnects
    };
    driver.task_finished(password("alice"));
    driver.qemu_event(connected());
    driver.task_finished(password("bob"));
    assert_eq!(rejected(driver, "carol"), 0);
    assert_eq!(rejected(driver, "alice"), 1);
    driver.qemu_event(gone());
    driver.task_finished(password("bob"));
    assert_eq!(rejected(driver, "alice"), 1);
    assert_eq!(driver.observed.spice_user, "bob");
}
