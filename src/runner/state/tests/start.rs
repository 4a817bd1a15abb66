//! Starts that something keeps from going on.

use super::*;

fn outcome_at_the_end(events: &[(u64, Event)]) -> Outcome {
    let (state, mut actions) = wait(play(events).0);
    if state.phase() != Phase::Stopped {
        actions.extend(state.step(secs(99), ended(0)).1.into_iter().map(|action| (99, action)));
    }
    outcome(&actions).clone()
}

#[test]
fn a_guest_that_may_run_already_is_looked_at_again_and_no_failure() {
    let before = [(0, Event::MonitorReady), (0, Event::Configured), (10, Event::ContinueUnanswered)];
    let (state, actions) = play(&before);
    // The monitor is there, and QEMU has not answered.
    assert_eq!((state.phase(), actions.last()), (Phase::Starting, Some(&(10, Action::Continue))));
    // It is not: whoever comes back asks again.
    let lost =
        [(0, Event::MonitorReady), (0, Event::Configured), (1, Event::MonitorLost), (1, Event::ContinueUnanswered)];
    let (state, actions) = play(&lost);
    assert_eq!((state.phase(), actions.last()), (Phase::Starting, Some(&(0, Action::Continue))));
    let (state, _) = state.step(secs(3), Event::MonitorReady);
    let (state, actions) = state.step(secs(3), Event::Configured);
    assert_eq!(actions, [Action::Continue]);
    assert_eq!(state.step(secs(3), Event::Continued).0.phase(), Phase::Booting);
}

#[test]
fn a_monitor_that_comes_and_goes_gives_the_start_no_more_time() {
    let mut events = vec![(0, Event::MonitorReady), (0, Event::Configured)];
    for second in [5, 15, 25] {
        events.extend([(second, Event::MonitorLost), (second + 1, Event::MonitorReady)]);
    }
    let (state, _) = play(&events);
    assert_eq!(state.deadline(), Some(secs(30)));
    let end = outcome_at_the_end(&events);
    assert!(end.reason == EndReason::StartFailed && end.message.contains("not configured within 30 s"), "{end:?}");
}

#[test]
fn a_start_that_has_lost_its_monitor_for_good_says_so() {
    let end = outcome_at_the_end(&[(0, Event::MonitorReady), (2, Event::MonitorLost)]);
    assert!(end.reason == EndReason::MonitorLost && end.message.contains("30 s"), "{end:?}");
    let (state, _) = play(&[booted(), vec![(2, Event::MonitorLost)]].concat());
    assert_eq!((state.phase(), state.deadline()), (Phase::Booted, None), "a guest that runs goes on");
}
