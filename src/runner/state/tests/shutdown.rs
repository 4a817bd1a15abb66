//! Requested shutdowns.

use super::*;

#[test]
fn b23_a_guest_with_agent_is_asked_first_then_buttoned_then_ended() {
    let (state, actions) = play(&[booted(), vec![(100, Event::Stop)]].concat());
    assert_eq!(actions.last(), Some(&(100, Action::ShutDownByAgent)));
    let (_, actions) = wait(state);
    let presses = [120, 130, 140, 150].map(|second| (second, Action::PressPowerButton));
    let force = [
        (160, Action::Quit),
        (162, Action::Interrupt),
        (164, Action::Kill),
    ];
    assert_eq!(
        actions[..actions.len() - 1],
        [presses.as_slice(), force.as_slice()].concat()
    );
}

#[test]
fn a_guest_without_agent_has_its_button_pressed_at_once() {
    let (state, actions) = play(&[booting(), vec![(100, Event::Stop)]].concat());
    assert_eq!(actions.last(), Some(&(100, Action::PressPowerButton)));
    assert_eq!(
        wait(state).1.first(),
        Some(&(110, Action::PressPowerButton))
    );
}

#[test]
fn an_agent_that_comes_up_during_the_shutdown_is_asked_too() {
    let (_, actions) = play(
        &[
            booting(),
            vec![(100, Event::Stop), (103, Event::AgentChannel(true))],
        ]
        .concat(),
    );
    assert_eq!(actions.last(), Some(&(103, Action::ShutDownByAgent)));
}

#[test]
fn an_agent_that_does_not_take_the_request_is_not_waited_for() {
    let (_, actions) = play(
        &[
            booted(),
            vec![(100, Event::Stop), (102, Event::AgentSilent)],
        ]
        .concat(),
    );
    assert_eq!(actions.last(), Some(&(102, Action::PressPowerButton)));
}

#[test]
fn a_second_request_to_end_has_no_patience() {
    let (_, actions) = play(
        &[
            booted(),
            vec![
                (100, Event::Stop),
                (101, Event::Interrupt),
                (101, Event::Interrupt),
            ],
        ]
        .concat(),
    );
    assert_eq!(
        actions[actions.len() - 2..],
        [(101, Action::Quit), (101, Action::Interrupt)]
    );
}

#[test]
fn repeated_sigterm_leaves_the_guest_its_time() {
    let once = [booted(), vec![(100, Event::Stop)]].concat();
    let (state, actions) = play(&[once.clone(), vec![(101, Event::Stop); 3]].concat());
    assert_eq!(actions.last(), Some(&(100, Action::ShutDownByAgent)));
    assert_eq!(wait(state).1, wait(play(&once).0).1);
}

#[test]
fn a_machine_that_is_asked_to_end_before_its_guest_ran_ends_at_once() {
    let (_, actions) = play(&[(0, Event::Stop)]);
    assert_eq!(actions, [(0, Action::Interrupt)]);
    let (state, actions) = play(&[(0, Event::MonitorReady), (1, Event::Stop)]);
    assert_eq!(actions, [(0, Action::Configure), (1, Action::Quit)]);
    assert_eq!(
        wait(state).1[..2],
        [(3, Action::Interrupt), (5, Action::Kill)]
    );
}

#[test]
fn a_guest_that_was_asked_to_power_off_is_a_stop() {
    let (_, actions) = play(
        &[
            booted(),
            vec![(9, Event::Stop), (11, Event::GuestOff), (11, ended(0))],
        ]
        .concat(),
    );
    assert_eq!(actions[actions.len() - 2], (11, Action::Quit));
    let outcome = outcome(&actions);
    assert_eq!(
        (outcome.reason, outcome.by_guest),
        (EndReason::Stopped, false)
    );
}

#[test]
fn a_changed_time_to_shut_down_counts_from_the_request() {
    let (state, _) = play(
        &[
            booted(),
            vec![(100, Event::Stop), (101, Event::PowerdownTimeout(secs(5)))],
        ]
        .concat(),
    );
    assert_eq!(wait(state).1.first(), Some(&(105, Action::Quit)));
}

#[test]
fn guest_that_cannot_react_to_its_power_button_is_waited_for_ten_seconds() {
    let stop = [booting(), vec![(100, Event::Stop)]].concat();
    let (state, _) = play(&stop);
    let (_, actions) = wait(state);
    let checks: Vec<_> = actions
        .iter()
        .filter(|(_, action)| *action == Action::CheckPowerButton)
        .collect();
    assert_eq!(checks, [&(110, Action::CheckPowerButton)]);
    // A guest that reacts has its whole time.
    assert!(actions.contains(&(160, Action::Quit)), "{actions:?}");
    let unused = |before: Vec<(u64, Event)>| {
        let events = [stop.clone(), before, vec![(110, Event::PowerButtonUnused)]];
        play(&events.concat()).1.pop().unwrap()
    };
    assert_eq!(unused(vec![]), (110, Action::Quit));
    let agent = vec![(105, Event::AgentChannel(true))];
    assert_eq!(unused(agent.clone()), (105, Action::ShutDownByAgent));
    // Firmware opens the agent's channel, and does not answer.
    let silent = [agent.clone(), vec![(109, Event::AgentSilent)]].concat();
    assert_eq!(unused(silent), (110, Action::Quit));
    // The time of the request to the agent ends after the check, which is repeated then.
    let check = |at| {
        [
            vec![(at, Event::Tick); 2],
            vec![(at, Event::PowerButtonUnused)],
        ]
        .concat()
    };
    let late = [
        agent,
        check(110),
        vec![(114, Event::AgentSilent)],
        check(120),
    ]
    .concat();
    let (_, actions) = play(&[stop, late].concat());
    let end = [(120, Action::CheckPowerButton), (120, Action::Quit)];
    assert!(actions.ends_with(&end), "{actions:?}");
    // A guest with an agent is not checked.
    let (state, _) = play(&[booted(), vec![(100, Event::Stop)]].concat());
    let (_, actions) = wait(state);
    assert!(
        !actions
            .iter()
            .any(|(_, it)| *it == Action::CheckPowerButton)
    );
}
