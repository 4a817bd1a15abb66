//! How long QEMU has to end.

use crate::runner::state::tests::*;

fn kills(actions: &[(u64, Action)]) -> Vec<u64> {
    actions
        .iter()
        .filter(|(_, action)| *action == Action::Kill)
        .map(|(second, _)| *second)
        .collect()
}

#[test]
fn a_qemu_that_flushes_is_not_killed_before_the_time_to_shut_down_is_over() {
    let by = |events: Vec<(u64, Event)>| kills(&wait(play(&[booted(), events].concat()).0).1);
    let halted = || Event::GuestHalted("KVM internal error".to_owned());
    assert_eq!(by(vec![(100, Event::Stop)]), [164]);
    assert_eq!(
        by(vec![(100, Event::Stop), (110, Event::GuestOff)]),
        [164],
        "what the guest has not used is QEMU's"
    );
    assert_eq!(by(vec![(100, Event::Stop), (110, halted())]), [164]);
    assert_eq!(by(vec![(100, Event::GuestOff)]), [164]);
    assert_eq!(by(vec![(100, halted())]), [164]);
    let changed = Event::PowerdownTimeout(secs(20));
    assert_eq!(
        by(vec![
            (100, Event::Stop),
            (110, Event::GuestOff),
            (111, changed)
        ]),
        [124]
    );
}

#[test]
fn requests_to_end_hurry_and_do_not_kill() {
    let stops = (0..6).map(|_| (100, Event::Interrupt)).collect();
    let (state, actions) = play(&[booted(), stops].concat());
    assert_eq!(
        actions[3..],
        [
            (100, Action::ShutDownByAgent),
            (100, Action::Quit),
            (100, Action::Interrupt)
        ]
    );
    assert_eq!(kills(&wait(state).1), [164]);
}

#[test]
fn power_off_skips_the_guest_and_kills_qemu_after_ten_seconds() {
    let off = |second: u64| vec![(second, Event::PowerOff)];
    let ways = |second: u64, from: usize| {
        [
            (second, Action::Quit),
            (second + 2, Action::Interrupt),
            (second + 10, Action::Kill),
        ][from..]
            .to_vec()
    };
    let forced = |events: Vec<(u64, Event)>| {
        let (state, before) = play(&events);
        let all = [before, wait(state).1].concat();
        let is_force =
            |action: &Action| matches!(action, Action::Quit | Action::Interrupt | Action::Kill);
        all.into_iter()
            .filter(|(_, action)| is_force(action))
            .collect::<Vec<_>>()
    };
    let stop = vec![(100, Event::Stop)];
    assert_eq!(
        forced([booted(), off(100)].concat()),
        ways(100, 0),
        "one without a request"
    );
    assert_eq!(
        forced([booted(), stop.clone(), off(130)].concat()),
        ways(130, 0),
        "one that shuts down"
    );
    let longer = vec![
        (131, Event::PowerdownTimeout(secs(900))),
        (132, Event::PowerOff),
    ];
    assert_eq!(
        forced([booted(), stop.clone(), off(130), longer].concat())[2],
        (140, Action::Kill),
        "it stays off"
    );
    let asked_again = vec![(100, Event::Stop), (103, Event::Tick)];
    let kills = |events| forced(events).last().cloned();
    assert_eq!(
        kills([booted(), stop.clone(), asked_again, off(110)].concat()),
        Some((120, Action::Kill))
    );
    assert_eq!(
        kills([booted(), stop, off(158)].concat()),
        Some((164, Action::Kill)),
        "no later than without it"
    );
}

#[test]
fn a_qemu_has_two_seconds_after_sigterm_however_little_time_is_left() {
    let shorter = vec![
        (300, Event::PowerdownTimeout(secs(10))),
        (300, Event::Tick),
        (302, Event::Tick),
    ];
    let start = [
        booted(),
        vec![(99, Event::PowerdownTimeout(secs(600))), (100, Event::Stop)],
        shorter,
    ]
    .concat();
    for last in [Event::PowerOff, Event::PowerdownTimeout(secs(5))] {
        let (state, before) = play(&[start.clone(), vec![(303, last.clone())]].concat());
        assert_eq!(
            before[before.len() - 2..],
            [(300, Action::Quit), (302, Action::Interrupt)]
        );
        assert_eq!(kills(&wait(state).1), [304], "{last:?}");
    }
}

#[test]
fn unkillable_qemu_is_reported_and_does_not_block_the_exit() {
    let (state, _) = play(&[booted(), vec![(100, Event::Stop)]].concat());
    let (state, later) = wait(state);
    assert_eq!(
        (state.phase(), later.last().map(|(second, _)| *second)),
        (Phase::Stopped, Some(166))
    );
    let outcome = outcome(&later);
    assert_eq!(
        (outcome.reason, outcome.qemu_exit),
        (EndReason::Stopped, None)
    );
    assert!(outcome.message.contains("killed"), "{}", outcome.message);
    // The runner does not handle it any more.
    assert_eq!(state.step(secs(170), ended(-9)).1, []);
}
