use super::*;
use crate::api::conditions::find;
use serde_json::json;

pub fn observed(phase: Phase) -> Observed {
    Observed {
        phase,
        generation: Some(3),
        cpus: 2,
        guest_cpus: None,
        ram: Bytes(1 << 30),
        osinfo: None,
        addresses: Vec::new(),
        console: None,
        password_serial: 1,
        acceleration: Acceleration::Tcg,
        login_wanted: None,
        desktop: Desktop::default(),
        cpu_problem: None,
        memory_problem: None,
        stalled: None,
        disk_error: None,
        media: None,
        tpm: None,
        reset_request: None,
        user_data_problem: None,
        config_problem: None,
        password_problem: None,
        monitor_lost: false,
        boots: 0,
        resets: 0,
        console_connections: 0,
        qemu_silent: false,
        console_key: "MCow".to_owned(),
        viewers: Vec::new(),
        spice_user: String::new(),
        spice_client: String::new(),
        spice_since: Timestamp::UNIX_EPOCH,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_running_machine_with_everything() {
    let mut observed = observed(Phase::Booted);
    observed.osinfo = json!({"id": "debian"}).as_object().cloned();
    observed.addresses = vec!["10.0.2.15".to_owned()];
    observed.console = Some(("10.0.0.9".to_owned(), "4711".to_owned()));
    observed.login_wanted = Some("anna".to_owned());
    observed.desktop = Desktop {
        connected: true,
        user: Some("anna".to_owned()),
        problem: None,
    };
    observed.cpu_problem = Some(Problem::new(ConditionReason::NotFollowed, "no room"));
    observed.memory_problem = Some("no driver".to_owned());
    observed.media = Some(Some(Problem::new(
        ConditionReason::ImageMissing,
        "CD drive 0: a.iso is not there",
    )));
    observed.tpm = Some(Some(Problem::new(
        ConditionReason::TpmEnded,
        "the machine's TPM has ended",
    )));
    observed.reset_request = Some(7);
    observed.stalled = Some(Problem::new(
        ConditionReason::DiskFull,
        "there is no room left for disk /dev/x",
    ));
    observed.config_problem = Some(ConfigProblem::RestartNeeded("vm.firmware".to_owned()));
    insta::assert_yaml_snapshot!(json!(observed.report(&[], at(10))));
}

#[test]
fn a_stopped_machine_keeps_no_field_of_its_run() {
    let mut observed = observed(Phase::Stopped);
    observed.osinfo = json!({"id": "debian"}).as_object().cloned();
    observed.addresses = vec!["10.0.2.15".to_owned()];
    observed.console = Some(("10.0.0.9".to_owned(), "4711".to_owned()));
    insta::assert_yaml_snapshot!(json!(observed.report(&[], at(10))));
}

#[test]
fn all_configuration_problems_are_reported_with_the_most_severe_first() {
    let mut observed = observed(Phase::Booted);
    let reported = |observed: &Observed| {
        let reported = observed.config_in_sync();
        (reported.status, reported.reason, reported.message)
    };
    assert_eq!(
        reported(&observed),
        (true, ConditionReason::Applied, String::new())
    );
    observed.config_problem = Some(ConfigProblem::RestartNeeded("later".to_owned()));
    observed.password_problem = Some(Problem::new(ConditionReason::PasswordNotSet, "refused"));
    assert_eq!(
        reported(&observed),
        (
            false,
            ConditionReason::PasswordNotSet,
            "refused; later".to_owned()
        )
    );
    observed.config_problem = Some(ConfigProblem::Invalid("wrong".to_owned()));
    observed.monitor_lost = true;
    let (status, reason, message) = reported(&observed);
    assert!(
        !status
            && reason == ConditionReason::InvalidConfig
            && message.starts_with("wrong; refused; QEMU has closed its QMP connection"),
        "{message}"
    );
    (observed.config_problem, observed.password_problem) = (None, None);
    assert_eq!(reported(&observed).1, ConditionReason::MonitorLost);
}

#[test]
fn cpus_are_those_that_the_guest_uses() {
    let mut observed = observed(Phase::Booted);
    observed.guest_cpus = Some(2);
    assert!(observed.cpus_in_sync().status);
    observed.guest_cpus = Some(1);
    let reported = observed.cpus_in_sync();
    assert_eq!(
        (reported.status, reported.reason),
        (false, ConditionReason::NotFollowed)
    );
    assert!(
        reported.message.contains("only 1 of its 2 CPUs"),
        "{}",
        reported.message
    );
    assert_eq!(observed.report(&[], at(10)).cpus, 1);
}

#[test]
fn cpus_of_a_paused_guest_are_not_in_sync() {
    let mut observed = observed(Phase::Booted);
    assert!(observed.cpus_in_sync().status);
    observed.cpu_problem = Some(Problem::new(ConditionReason::NotFollowed, "no answer"));
    observed.stalled = Some(Problem::new(ConditionReason::DiskFull, "no room"));
    let reported = observed.cpus_in_sync();
    assert_eq!(
        (reported.status, reported.reason),
        (false, ConditionReason::GuestPaused)
    );
    observed.stalled = None;
    assert_eq!(observed.cpus_in_sync().reason, ConditionReason::NotFollowed);
}

#[test]
fn emulation_that_is_not_configured_has_its_cause_in_the_condition() {
    let mut observed = observed(Phase::Booted);
    let problem = Problem::new(ConditionReason::KvmFailed, "QEMU has aborted");
    observed.acceleration = Acceleration::TcgFallback(problem);
    let accelerated = observed.accelerated();
    assert_eq!(
        (
            accelerated.status,
            accelerated.reason,
            accelerated.message.as_str()
        ),
        (
            false,
            ConditionReason::KvmFailed,
            "the guest is emulated, which is slow: QEMU has aborted"
        )
    );
}

#[test]
fn b18_login_succeeds_when_the_wanted_user_is_logged_in() {
    let mut observed = observed(Phase::Booted);
    let mut login = |wanted: Option<&str>, desktop: (bool, Option<&str>, Option<&str>)| {
        observed.login_wanted = wanted.map(str::to_owned);
        let (connected, user, problem) = desktop;
        observed.desktop = Desktop {
            connected,
            user: user.map(str::to_owned),
            problem: problem.map(str::to_owned),
        };
        let wanted = observed.desktop_conditions().1;
        (wanted.status, wanted.reason)
    };
    assert_eq!(
        login(None, (true, None, None)),
        (false, ConditionReason::NotRequested)
    );
    assert_eq!(
        login(Some("anna"), (false, None, None)),
        (false, ConditionReason::VmopAgentDisconnected)
    );
    assert_eq!(
        login(Some("anna"), (true, None, None)),
        (false, ConditionReason::Processing)
    );
    assert_eq!(
        login(Some("anna"), (true, Some("berta"), None)),
        (false, ConditionReason::Processing)
    );
    assert_eq!(
        login(Some("anna"), (true, None, Some("451"))),
        (false, ConditionReason::LoginFailed)
    );
    assert_eq!(
        login(Some("anna"), (true, Some("anna"), None)),
        (true, ConditionReason::LoggedIn)
    );
}

#[test]
fn a_transition_has_the_time_of_its_first_report() {
    let first = observed(Phase::Booting).report(&[], at(10));
    let second = observed(Phase::Booted).report(&first.conditions, at(20));
    let time = |type_| {
        find(&second.conditions, type_)
            .unwrap()
            .last_transition_time
            .0
    };
    assert_eq!(
        (time(conditions::RUNNING), time(conditions::BOOTED)),
        (at(10), at(20))
    );
}

#[test]
fn user_data_that_the_guest_ignores_are_a_condition() {
    let find = |observed: &Observed| {
        let mut all = observed.conditions().into_iter();
        all.find(|it| it.type_ == conditions::USER_DATA_RECOGNIZED)
    };
    let mut observed = observed(Phase::Booted);
    assert!(find(&observed).is_none());
    observed.user_data_problem = Some(Problem::new(ConditionReason::UnknownHeader, "m"));
    assert!(find(&observed).is_some_and(|it| !it.status && it.message == "m"));
}
