//! How long QEMU has to end.

use super::*;

fn kills(actions: &[(u64, Action)]) -> Vec<u64> {
    actions.iter().filter(|(_, action)| *action == Action::Kill).map(|(second, _)| *second).collect()
}

#[test]
fn a_qemu_that_flushes_is_not_killed_before_the_time_to_shut_down_is_over() {
    let by = |events: Vec<(u64, Event)>| kills(&wait(play(&[booted(), events].concat()).0).1);
    let halted = || Event::Halted("KVM internal error".to_owned());
    assert_eq!(by(vec![(100, Event::Stop)]), [164]);
    assert_eq!(by(vec![(100, Event::Stop), (110, Event::GuestOff)]), [164], "what the guest has not used is QEMU's");
    assert_eq!(by(vec![(100, Event::Stop), (110, halted())]), [164]);
    assert_eq!(by(vec![(100, Event::GuestOff)]), [164]);
    assert_eq!(by(vec![(100, halted())]), [164]);
    let changed = Event::PowerdownTimeout(secs(20));
    assert_eq!(by(vec![(100, Event::Stop), (110, Event::GuestOff), (111, changed)]), [124]);
}

#[test]
fn requests_to_end_hurry_and_do_not_kill() {
    let stops = (0..6).map(|_| (100, Event::Stop)).collect();
    let (state, actions) = play(&[booted(), stops].concat());
    assert_eq!(actions[3..], [(100, Action::ShutDownByAgent), (100, Action::Quit), (100, Action::Terminate)]);
    assert_eq!(kills(&wait(state).1), [164]);
}

#[test]
fn a_qemu_that_does_not_end_when_it_is_killed_is_told_and_not_waited_for() {
    let (state, _) = play(&[booted(), vec![(100, Event::Stop)]].concat());
    let (state, later) = wait(state);
    assert_eq!((state.phase(), later.last().map(|(second, _)| *second)), (Phase::Stopped, Some(166)));
    let outcome = outcome(&later);
    assert_eq!((outcome.reason, outcome.qemu_exit), (EndReason::Stopped, None));
    assert!(outcome.message.contains("killed"), "{}", outcome.message);
    // By then nobody is there to hear it.
    assert_eq!(state.step(secs(170), ended(-9)).1, []);
}
