mod shutdown;

mod ending;
mod kvm;
mod start;

use crate::api::runner::outcome::EndReason;
use crate::runner::state::*;
use proptest::prelude::*;

const T: u64 = 60;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Plays the events at their seconds; gives the actions with theirs.
fn play(events: &[(u64, Event)]) -> (State, Vec<(u64, Action)>) {
    play_from(State::new(Duration::ZERO, secs(T), false), events)
}

/// The same with KVM.
fn play_with_kvm(events: &[(u64, Event)]) -> (State, Vec<(u64, Action)>) {
    play_from(State::new(Duration::ZERO, secs(T), true), events)
}

fn play_from(mut state: State, events: &[(u64, Event)]) -> (State, Vec<(u64, Action)>) {
    let mut seen = Vec::new();
    for (second, event) in events {
        let (next, actions) = state.step(secs(*second), event.clone());
        state = next;
        seen.extend(actions.into_iter().map(|action| (*second, action)));
    }
    (state, seen)
}

/// Lets time pass until nothing is left to wait for; gives the actions with their seconds.
fn wait(mut state: State) -> (State, Vec<(u64, Action)>) {
    let mut seen = Vec::new();
    for _ in 0..100 {
        let Some(at) = state.deadline() else { break };
        let (next, actions) = state.step(at, Event::Tick);
        state = next;
        seen.extend(actions.into_iter().map(|action| (at.as_secs(), action)));
    }
    (state, seen)
}

fn booting() -> Vec<(u64, Event)> {
    vec![
        (0, Event::MonitorReady),
        (0, Event::Configured),
        (0, Event::Continued),
    ]
}

fn booted() -> Vec<(u64, Event)> {
    [
        booting(),
        vec![(1, Event::AgentChannel(true)), (1, Event::AgentAnswered)],
    ]
    .concat()
}

fn ended(status: i32) -> Event {
    Event::QemuExited {
        status,
        last_output: "last words".to_owned(),
    }
}

fn outcome(actions: &[(u64, Action)]) -> &Outcome {
    match &actions.last().unwrap().1 {
        Action::Finish(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_is_configured_then_continued_then_asked_for_its_guest() {
    let (state, actions) = play(&booted());
    assert_eq!(state.phase(), Phase::Booted);
    assert_eq!(
        actions,
        [
            (0, Action::Configure),
            (0, Action::Continue),
            (1, Action::AskAgent)
        ]
    );
    assert_eq!(state.deadline(), None);
}

#[test]
fn a_guest_without_agent_stays_booting_and_waits_for_nothing() {
    let (state, _) = play(&booting());
    assert_eq!((state.phase(), state.deadline()), (Phase::Booting, None));
}

#[test]
fn a_reset_makes_it_boot_again() {
    let (state, actions) =
        play(&[booted(), vec![(9, Event::Reset), (9, Event::AgentAnswered)]].concat());
    assert_eq!(state.phase(), Phase::Booting);
    assert_eq!(actions.last(), Some(&(9, Action::ForgetGuest)));
    let (state, actions) = state.step(secs(12), Event::AgentChannel(true));
    assert_eq!(actions, [Action::AskAgent]);
    assert_eq!(
        state.step(secs(13), Event::AgentAnswered).0.phase(),
        Phase::Booted
    );
}

#[test]
fn an_agent_that_goes_is_no_booted_guest() {
    let (state, actions) = play(&[booted(), vec![(9, Event::AgentChannel(false))]].concat());
    assert_eq!(state.phase(), Phase::Booting);
    // The reported values may be outdated.
    assert_eq!(actions.last(), Some(&(9, Action::ForgetAgent)));
}

#[test]
fn a_silent_agent_is_asked_again() {
    let (state, _) = play(
        &[
            booting(),
            vec![(1, Event::AgentChannel(true)), (6, Event::AgentSilent)],
        ]
        .concat(),
    );
    assert_eq!(state.deadline(), Some(secs(7)));
    let (state, actions) = state.step(secs(7), Event::Tick);
    assert_eq!(actions, [Action::AskAgent]);
    assert_eq!(
        state.step(secs(12), Event::AgentSilent).0.deadline(),
        Some(secs(14))
    );
}

#[test]
fn b26_a_guest_that_powers_off_by_itself_is_a_shutdown_by_the_guest() {
    let (_, actions) = play(&[booting(), vec![(9, Event::GuestOff), (9, ended(0))]].concat());
    assert_eq!(actions[2], (9, Action::Quit));
    let outcome = outcome(&actions);
    assert_eq!(
        (outcome.reason, outcome.by_guest),
        (EndReason::GuestShutdown, true)
    );
}

#[test]
fn unexpected_qemu_exit_is_a_crash_with_its_last_output() {
    let (_, actions) = play(&[booted(), vec![(9, ended(-9))]].concat());
    let outcome = outcome(&actions);
    assert_eq!(
        (outcome.reason, outcome.qemu_exit),
        (EndReason::QemuCrashed, Some(-9))
    );
    assert!(
        outcome.message.contains("out of memory: last words"),
        "{}",
        outcome.message
    );
}

#[test]
fn b37_b38_a_qemu_that_is_gone_ends_every_wait() {
    // While its agent seems to be connected: the runner would wait for the agent's shutdown.
    let (state, actions) = play(&[booted(), vec![(9, Event::Stop), (10, ended(0))]].concat());
    assert!(
        matches!(actions.last(), Some((10, Action::Finish(_)))),
        "{actions:?}"
    );
    assert_eq!(
        (outcome(&actions).reason, state.deadline()),
        (EndReason::Stopped, None)
    );
}

#[test]
fn b04_a_qemu_that_ends_before_the_guest_ran_has_failed_to_start() {
    let (_, actions) = play(&[(0, ended(1))]);
    let outcome = outcome(&actions);
    assert_eq!(outcome.reason, EndReason::StartFailed);
    assert_eq!(
        outcome.message,
        "QEMU exited with exit code 1 before the guest started: last words"
    );
}

#[test]
fn a_guest_that_qemu_has_stopped_for_good_ends_the_machine_and_says_why() {
    let halted = || Event::GuestHalted("KVM internal error".to_owned());
    let (state, actions) =
        play(&[booted(), vec![(9, halted()), (9, halted()), (9, ended(0))]].concat());
    assert_eq!(
        (state.phase(), &actions[3]),
        (Phase::Stopped, &(9, Action::Quit))
    );
    let outcome_of = |actions: &[(u64, Action)]| outcome(actions).clone();
    let end = outcome_of(&actions);
    assert_eq!(
        (end.reason, end.message.as_str()),
        (EndReason::GuestHalted, "KVM internal error: last words")
    );
    assert!(!end.by_guest);
    // A shutdown was requested, and a stopped guest cannot carry it out: the runner does not wait.
    let (_, actions) = play(
        &[
            booted(),
            vec![(9, Event::Stop), (10, halted()), (10, ended(0))],
        ]
        .concat(),
    );
    assert_eq!(
        actions[3..5],
        [(9, Action::ShutDownByAgent), (10, Action::Quit)]
    );
    assert_eq!(outcome_of(&actions).reason, EndReason::Stopped);
}

#[test]
fn a_machine_type_that_qemu_no_longer_has_is_explained() {
    let last_output =
        "qemu-system-x86_64: unsupported machine type: \"pc-q35-2.1\"; Use -machine help"
            .to_owned();
    let (_, actions) = play(&[(
        0,
        Event::QemuExited {
            status: 1,
            last_output,
        },
    )]);
    let outcome = outcome(&actions);
    assert_eq!(outcome.reason, EndReason::StartFailed);
    assert!(
        outcome.message.contains("pc-q35-2.1") && outcome.message.contains("machine.json"),
        "{}",
        outcome.message
    );
}

#[test]
fn b15_each_part_of_the_start_has_its_deadline() {
    let (state, actions) = play(&[(30, Event::Tick), (34, Event::Tick)]);
    assert_eq!(actions, [(30, Action::Interrupt), (34, Action::Kill)]);
    let (_, actions) = state.step(secs(35), ended(-9));
    let Some(Action::Finish(outcome)) = actions.first() else {
        panic!("{actions:?}")
    };
    assert_eq!(
        outcome.message,
        "QEMU has started, but has not answered on its QMP connection within 30 s (the node may be overloaded): last words"
    );
    let (state, _) = play(&[(20, Event::MonitorReady)]);
    assert_eq!(wait(state).1.first(), Some(&(50, Action::Quit)));
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::MonitorReady),
        Just(Event::MonitorLost),
        Just(Event::Configured),
        Just(Event::Continued),
        Just(Event::ContinueFailed(String::new())),
        any::<bool>().prop_map(Event::AgentChannel),
        Just(Event::AgentAnswered),
        Just(Event::AgentSilent),
        Just(Event::Reset),
        Just(Event::GuestOff),
        Just(Event::GuestHalted(String::new())),
        Just(Event::KvmFailed(String::new())),
        Just(Event::Stop),
        Just(Event::Interrupt),
        Just(Event::PowerOff),
        (0u64..1000).prop_map(|seconds| Event::PowerdownTimeout(secs(seconds))),
        Just(Event::Tick),
    ]
}

proptest! {
    #[test]
    fn a_request_to_end_is_never_lost(
        before in prop::collection::vec((0u64..50, any_event()), 0..30), requests in 1usize..6,
    ) {
        let (mut state, mut now) = (State::new(Duration::ZERO, secs(T), false), 0);
        // A QEMU that writes is not killed as long as its guest could have shut down.
        let kills_too_early = |before: &State, now: u64, actions: &[Action]| {
            let ending = before.shutdown.as_ref();
            actions.contains(&Action::Kill) && ending.is_some_and(|ending| secs(now) < ending.since + ending.time)
        };
        for (gap, event) in before {
            now += gap;
            let (next, actions) = state.clone().step(secs(now), event);
            prop_assert!(!kills_too_early(&state, now, &actions));
            state = next;
        }
        prop_assume!(state.phase() != Phase::Stopped);
        // The guest has its time however often the shutdown is requested.
        let runs = matches!(state.phase(), Phase::Booting | Phase::Booted);
        for _ in 0..requests {
            let (next, actions) = state.clone().step(secs(now), Event::Stop);
            prop_assert!(!kills_too_early(&state, now, &actions));
            prop_assert_eq!(next.phase(), Phase::Terminating);
            state = next;
        }
        let ending = state.shutdown.clone().unwrap();
        let time = ending.time.as_secs();
        // A guest that does nothing and a QEMU that does not end: every way is used, in time, and then it is over.
        let (state, later) = wait(state);
        prop_assert_eq!((state.phase(), state.deadline()), (Phase::Stopped, None));
        prop_assert!(matches!(later.last(), Some((_, Action::Finish(_)))));
        prop_assert!(later.iter().all(|(second, _)| *second <= now.max(ending.since.as_secs() + time) + 6));
        // But none of them while the guest may still shut down.
        let force_from = if runs { now + time } else { 0 };
        let kill_from = ending.since.as_secs() + time;
        let too_early = later.iter().find(|(second, action)| match action {
            Action::Quit | Action::Interrupt => *second < force_from,
            Action::Kill => *second < kill_from,
            _ => false,
        });
        prop_assert_eq!(too_early, None);
    }

    #[test]
    fn a_dead_qemu_ends_every_wait(events in prop::collection::vec((0u64..50, any_event()), 0..30), status: i32) {
        let (state, _) = play(&events);
        prop_assume!(state.phase() != Phase::Stopped);
        let (state, actions) = state.step(secs(60), ended(status));
        prop_assert_eq!(state.phase(), Phase::Stopped);
        prop_assert!(matches!(actions.as_slice(), [Action::Finish(_)]));
        prop_assert_eq!(state.deadline(), None);
        let (state, actions) = state.step(secs(61), Event::Stop);
        prop_assert!(actions.is_empty() && state.phase() == Phase::Stopped);
    }
}
