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
async fn a_tpm_that_is_stuck_ends_the_start_by_its_own_reason_and_before_the_starts_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = Directories { data: dir.path().to_owned(), runtime: dir.path().to_owned() };
    // QEMU does not answer: it waits for its TPM.
    let (mut driver, mut inbox) = Driver::new(setup(dirs), Signals::receive().unwrap(), Instant::now());
    let sleep = ["30".to_owned()];
    let tpm = process::spawn("/bin/sleep", &sleep, &Reach::of_any(), Vec::new()).unwrap();
    let stat = format!("/proc/{}/stat", tpm.id());
    driver.tpm = Some(Tpm::new(tpm));
    driver.judge_tpm_in_time();
    tokio::time::pause();
    let in_time = |seconds| tokio::time::Instant::now() + Duration::from_secs(seconds);
    // One that only waits for a question is not stuck.
    let (patience, deadline) = (in_time(15), in_time(29));
    let mut stopped = false;
    while !terminates(&driver) {
        tokio::select! {
            Some(signal) = inbox.monitor.recv() => driver.monitor_signal(signal),
            Some(news) = inbox.news.recv() => driver.heard(news),
            () = tokio::time::sleep_until(patience), if !stopped => {
                stopped = true;
                driver.signal_tpm(Signal::STOP);
                // The clock of this test does not wait for the kernel.
                while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            () = tokio::time::sleep_until(deadline) => panic!("nothing was said of it"),
        }
    }
    assert!(stopped);
    driver.signal_tpm(Signal::KILL);
    let qemu = Pid::from_raw(driver.qemu.id()).unwrap();
    driver.qemu.signal(Signal::KILL);
    driver.qemu.wait();
    driver.have_ended(&[(qemu, -9)]).await;
    let outcome = driver.outcome.take().unwrap();
    assert_eq!(outcome.reason, EndReason::StartFailed);
    for words in ["TPM (swtpm) has not answered QEMU within 10 s", "tpm2-00.permall", "stuck"] {
        assert!(outcome.message.contains(words), "{}", outcome.message);
    }
}

#[tokio::test]
async fn a_start_that_its_deadline_ends_has_the_tpms_words_too() {
    let mut rig = starting().await;
    let (tpm, qemu) = (rig.take_tpm("libtpms: bad magic"), rig.qemu());
    rig.driver.step(Event::StartHangs("too late".to_owned()));
    rig.driver.qemu.signal(Signal::KILL);
    rig.driver.have_ended(&[(tpm, 1)]).await;
    rig.driver.have_ended(&[(qemu, -9)]).await;
    let outcome = rig.driver.outcome.take().unwrap();
    assert!(outcome.message.contains("libtpms: bad magic"), "{}", outcome.message);
}
