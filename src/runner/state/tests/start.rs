//! Starts that something keeps from going on.

use crate::runner::state::tests::*;

fn outcome_at_the_end(events: &[(u64, Event)]) -> Outcome {
    let (state, mut actions) = wait(play(events).0);
    if state.phase() != Phase::Stopped {
        actions.extend(
            state
                .step(secs(99), ended(0))
                .1
                .into_iter()
                .map(|action| (99, action)),
        );
    }
    outcome(&actions).clone()
}

#[test]
fn a_start_that_has_lost_its_monitor_says_so() {
    let end = outcome_at_the_end(&[(0, Event::MonitorReady), (2, Event::MonitorLost)]);
    assert!(end.reason == EndReason::MonitorLost, "{end:?}");
    let (state, _) = play(&[booted(), vec![(2, Event::MonitorLost)]].concat());
    assert_eq!(
        (state.phase(), state.deadline()),
        (Phase::Booted, None),
        "a guest that runs goes on"
    );
}
