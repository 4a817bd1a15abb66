//! What goes wrong between QEMU's start and the guest's.

use super::*;

impl Rig {
    /// Answers until QEMU is told to let the guest run, which it does not answer.
    async fn until_cont(&mut self) {
        loop {
            let command = self.peer.hear().await;
            let answer = match command["execute"].as_str() {
                Some("cont") => return,
                Some("query-status") => json!({"status": "prelaunch"}),
                _ => json!({}),
            };
            self.peer.say(&json!({"return": answer, "id": command["id"]}).to_string()).await;
        }
    }
}

#[tokio::test]
async fn a_monitor_that_is_lost_while_the_guest_is_let_run_ends_no_start() {
    for (run_state, again) in [("prelaunch", 1), ("paused", 1), ("running", 0)] {
        let mut rig = starting().await;
        rig.driver.step(Event::Configured);
        tokio::time::timeout(Duration::from_secs(10), rig.until_cont()).await.unwrap();
        rig.lose_the_monitor().await;
        rig.heard.clear();
        // What is known of the machine is asked for first.
        rig.work(run_state, |_, heard| heard.iter().any(|command| command == "query-chardev")).await;
        rig.driver.step(Event::Configured);
        rig.until(run_state, |driver| driver.state.phase() != Phase::Starting).await;
        assert_eq!(rig.driver.state.phase(), Phase::Booting, "{run_state}");
        assert_eq!(rig.heard.iter().filter(|command| *command == "cont").count(), again, "{run_state}");
    }
}

#[tokio::test]
async fn a_start_that_its_deadline_ends_has_the_tpms_words_too() {
    let mut rig = starting().await;
    let (tpm, qemu) = (rig.take_tpm("libtpms: bad magic"), rig.qemu());
    rig.driver.step(Event::ContinueFailed("too late".to_owned()));
    rig.driver.qemu.signal(Signal::KILL);
    rig.driver.have_ended(&[(tpm, 1)]).await;
    rig.driver.have_ended(&[(qemu, -9)]).await;
    let outcome = rig.driver.outcome.take().unwrap();
    assert!(outcome.message.contains("libtpms: bad magic"), "{}", outcome.message);
}
