use crate::api::vm::conditions::ConditionReason;
use crate::runner::live::tests::*;
use std::collections::BTreeMap;

fn no_more(command: &str, _: &Value) -> Result<Value, &'static str> {
    assert_eq!(command, "device_add");
    Err("no more")
}

#[tokio::test]
async fn b03_rejected_cpu_is_tried_once_and_reported() {
    let mut rig = rig(desired(2)).await;
    rig.peer.answer(places).await;
    rig.peer.answer(no_more).await;
    rig.peer.answer(places).await;
    let reported = rig.progress.recv().await.unwrap();
    assert!(
        matches!(
            reported,
            Progress::Cpus {
                count: 1,
                problem: Some(_)
            }
        ),
        "{reported:?}"
    );
    assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
    // Another look is no other wish.
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    rig.peer.answer(places).await;
    assert_eq!(rig.progress.recv().await, Some(reported));
    assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
    // Another number is.
    rig.wishes.send_modify(|desired| desired.live.cpus = 1);
    rig.peer.answer(places).await;
    assert_eq!(
        rig.progress.recv().await,
        Some(Progress::Cpus {
            count: 1,
            problem: None
        })
    );
    rig.progress.recv().await.unwrap();
    rig.wishes.send_modify(|desired| desired.live.cpus = 2);
    rig.peer.answer(places).await;
    rig.peer.answer(no_more).await;
}

#[tokio::test]
async fn cpus_of_an_emulated_vm_are_not_added_more_often_than_qemu_survives() {
    // Four slots. Each change is carried out at once.
    let (mut present, mut added) = (1, 0);
    let mut rig = rig(desired(1)).await;
    let mut last = Vec::new();
    for wanted in [2, 1, 3, 1, 2, 1] {
        rig.wishes.send_modify(|desired| desired.live.cpus = wanted);
        last.push(loop {
            let mut answer = |command: &str, _: &Value| match command {
                "device_add" => {
                    (present, added) = (present + 1, added + 1);
                    Ok(json!({}))
                }
                "device_del" => {
                    present -= 1;
                    Ok(json!({}))
                }
                _ => Ok((0..4)
                    .map(|core| match core {
                        core if core < present => {
                            let path = format!("/machine/peripheral/cpu-{core}");
                            json!({"type": "t", "props": {"core-id": core}, "qom-path": path})
                        }
                        core => json!({"type": "t", "props": {"core-id": core}}),
                    })
                    .collect()),
            };
            tokio::select! {
                () = rig.peer.answer(&mut answer) => {}
                progress = rig.progress.recv() => match progress.unwrap() {
                    Progress::Cpus { count, problem } if count == wanted || problem.is_some() => break (count, problem),
                    _ => {}
                }
            }
        });
    }
    let counts: Vec<u32> = last.iter().map(|(count, _)| *count).collect();
    assert_eq!((counts, added), (vec![2, 1, 3, 1, 1, 1], 3));
    let problem = last[4].1.as_ref().unwrap();
    assert_eq!(problem.reason, ConditionReason::NotFollowed);
    assert!(
        problem.message.contains("at most 3 CPUs to an emulated VM")
            && problem.message.contains("restart the VM"),
        "{problem:?}"
    );
    assert_eq!(last[5].1, None);
}

/// A guest with a second CPU, which it was asked for and keeps.
struct Keeper {
    asked: u32,
    rig: Rig,
}

impl Keeper {
    async fn new() -> Self {
        Self {
            asked: 0,
            rig: rig(desired(1)).await,
        }
    }

    /// Answers until all of a wish was followed; gives what was reported of the CPUs last.
    async fn play(&mut self) -> Problem {
        let mut reported = None;
        loop {
            let answer = |command: &str, arguments: &Value| match command {
                "query-hotpluggable-cpus" => Ok(json!([
                    {"type": "t", "props": {"core-id": 1}, "qom-path": "/machine/peripheral/cpu-1"},
                    {"type": "t", "props": {"core-id": 0}, "qom-path": "/machine/unattached/device[0]"},
                ])),
                "device_del" => {
                    assert_eq!(arguments["id"], "cpu-1");
                    self.asked += 1;
                    Ok(json!({}))
                }
                other => panic!("{other}"),
            };
            tokio::select! {
                () = self.rig.peer.answer(answer) => {}
                progress = self.rig.progress.recv() => match progress.unwrap() {
                    Progress::Cpus { count: 2, problem } => reported = problem,
                    Progress::Complete(_) => return reported.unwrap(),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Simulates a guest that rejects the removal of the CPU. Returns the problem that the runner reports.
    async fn refuse(&mut self) -> Problem {
        self.rig.wishes.send_modify(|desired| {
            desired.unplug_rejections = BTreeMap::from([(
                "cpu-1".to_owned(),
                "says that the device is busy".to_owned(),
            )]);
            desired.attempt += 1;
        });
        self.play().await
    }
}

#[tokio::test(start_paused = true)]
async fn cpu_retained_by_the_guest_is_reported_and_unplug_is_retried_after_a_delay() {
    let mut keeper = Keeper::new().await;
    let reported = keeper.play().await;
    assert!(
        reported.reason == ConditionReason::NotFollowed
            && reported.message.contains("has not reacted"),
        "{reported:?}"
    );
    let reported = keeper.refuse().await;
    assert_eq!(reported.reason, ConditionReason::RefusedByGuest);
    for word in [
        "has not released cpu-1, and says that the device is busy",
        "after 10 minutes",
        "get 1 CPUs",
    ] {
        assert!(reported.message.contains(word), "{reported:?}");
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(500) {
        assert_eq!(keeper.play().await, reported);
    }
    assert_eq!(keeper.asked, 1);
    while begin.elapsed() < Duration::from_secs(1000) {
        keeper.play().await;
    }
    assert_eq!(keeper.asked, 2, "after the pause");
}

#[tokio::test(start_paused = true)]
async fn cpu_unplug_is_requested_again_after_a_reboot() {
    let mut keeper = Keeper::new().await;
    keeper.play().await;
    keeper.refuse().await;
    keeper.rig.wishes.send_modify(|desired| {
        desired.record_reboot();
        desired.booted = false;
    });
    assert!(
        keeper
            .play()
            .await
            .message
            .contains("for the guest agent, then removes CPUs")
    );
    assert_eq!(keeper.asked, 1);
    keeper
        .rig
        .wishes
        .send_modify(|desired| desired.booted = true);
    assert_eq!(
        (keeper.play().await.reason, keeper.asked),
        (ConditionReason::NotFollowed, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_is_asked_two_minutes_after_each_boot() {
    let mut keeper = Keeper::new().await;
    keeper
        .rig
        .wishes
        .send_modify(|desired| desired.booted = false);
    for asked in 1..3 {
        let begin = Instant::now();
        while keeper.asked < asked {
            assert!(
                begin.elapsed() < Duration::from_secs(200),
                "asked {} times",
                keeper.asked
            );
            keeper.play().await;
        }
        assert!(
            begin.elapsed() >= Duration::from_secs(120),
            "{:?} after boot {asked}",
            begin.elapsed()
        );
        keeper.rig.wishes.send_modify(DesiredState::record_reboot);
    }
}
