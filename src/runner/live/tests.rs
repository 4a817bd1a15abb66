mod media;

mod cpus;
mod password;

use crate::api::quantity::Bytes;
use crate::api::vm::conditions::ConditionReason;
use crate::runner::desired::cpus::tests::desired;
use crate::runner::desired::display_password::DisplayPassword;
use crate::runner::live::*;
use crate::runner::machine::FindImage;
use crate::runner::qmp;
use crate::runner::qmp::testing::Peer;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// Longest time for what takes milliseconds, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    dir: tempfile::TempDir,
    peer: Peer,
    wishes: watch::Sender<DesiredState>,
    passwords: mpsc::Sender<PasswordRequest>,
    progress: mpsc::UnboundedReceiver<Progress>,
}

async fn rig(first: DesiredState) -> Rig {
    rig_with(first, Arc::new(crate::runner::machine::find_cd_image)).await
}

async fn rig_with(first: DesiredState, find: FindImage) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, qemus) = UnixStream::pair().unwrap();
    let (signals, _) = mpsc::unbounded_channel();
    let (client, connection) = qmp::connect(monitor, signals);
    tokio::spawn(connection);
    let peer = Peer::send_greeting(qemus).await;
    let (wishes, wish) = watch::channel(first);
    let (sender, progress) = mpsc::unbounded_channel();
    let start = StartState {
        image_lookup: ImageLookup::new(dir.path().to_owned(), find),
        cd_drives: vec![CdDrive::at_start(0, Some("start.iso".into()))],
        sizes: vec![1 << 20],
        reset: Some(3),
        emulated: true,
    };
    let (passwords, requests) = mpsc::channel(1);
    tokio::spawn(run(client, start, wish, requests, sender));
    Rig {
        dir,
        peer,
        wishes,
        passwords,
        progress,
    }
}

/// Two places, the second free.
fn places(command: &str, _: &Value) -> Result<Value, &'static str> {
    assert_eq!(command, "query-hotpluggable-cpus");
    Ok(json!([
        {"type": "t", "props": {"core-id": 1}, "vcpus-count": 1},
        {"type": "t", "props": {"core-id": 0}, "vcpus-count": 1, "qom-path": "/machine/unattached/device[0]"},
    ]))
}

#[tokio::test]
async fn b01_each_increase_of_the_request_resets_once_also_the_first() {
    let mut first = desired(1);
    first.reset = Some(3);
    let mut rig = rig(first).await;
    rig.peer.answer(places).await;
    assert!(matches!(
        rig.progress.recv().await,
        Some(Progress::Cpus { .. })
    ));
    assert_eq!(
        rig.progress.recv().await,
        Some(Progress::Complete(None)),
        "the start was the third"
    );
    for request in [4, 6] {
        rig.wishes
            .send_modify(|desired| desired.reset = Some(request));
        rig.peer.answer(places).await;
        rig.peer
            .answer(|command, _| (command == "system_reset").then(|| json!({})).ok_or("?"))
            .await;
        rig.progress.recv().await.unwrap();
        assert_eq!(
            rig.progress.recv().await,
            Some(Progress::Reset(Some(request)))
        );
        assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
        rig.wishes.send_modify(|desired| desired.attempt += 1);
        rig.peer.answer(places).await;
        rig.progress.recv().await.unwrap();
        assert_eq!(rig.progress.recv().await, Some(Progress::Complete(None)));
    }
}

#[tokio::test(start_paused = true)]
async fn b39_reported_memory_is_the_actual_and_not_the_requested_size() {
    let mut first = desired(1);
    first.live.ram = Some(Bytes(1 << 29));
    let mut rig = rig(first).await;
    let mut balloon = |command: &str, arguments: &Value| match command {
        "query-balloon" => Ok(json!({"actual": 1u64 << 30})),
        "balloon" => Ok(json!({})),
        _ => places(command, arguments),
    };
    let reported = loop {
        tokio::select! {
            () = rig.peer.answer(&mut balloon) => {}
            progress = rig.progress.recv() => match progress.unwrap() {
                Progress::Memory { actual, problem: Some(problem) } if problem.contains("install the driver") => {
                    break (actual, problem);
                }
                Progress::Memory { actual, problem } => assert!(actual == 1 << 30 && problem.is_some()),
                _ => {}
            }
        }
    };
    assert!(
        reported.0 == 1 << 30 && reported.1.contains("balloon driver"),
        "{reported:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn guest_stopped_by_a_full_disk_is_continued_with_backoff() {
    let mut rig = rig(desired(1)).await;
    rig.wishes.send_modify(|desired| desired.stalls = 1);
    let (mut tries, mut reported, begin) = (0, 0, tokio::time::Instant::now());
    loop {
        let mut answer = |command: &str, arguments: &Value| match command {
            "query-status" => Ok(json!({"status": if tries < 4 { "io-error" } else { "running" }})),
            "cont" => {
                tries += 1;
                Ok(json!({}))
            }
            _ => places(command, arguments),
        };
        tokio::select! {
            () = rig.peer.answer(&mut answer) => {}
            progress = rig.progress.recv() => match progress.unwrap() {
                // Each attempt that fails is reported by QEMU at once.
                Progress::Complete(_) if reported < tries => {
                    reported = tries;
                    rig.wishes.send_modify(|desired| desired.stalls += 1);
                }
                Progress::Resumed => break,
                _ => {}
            }
        }
    }
    assert!(
        tries == 4 && begin.elapsed() >= Duration::from_secs(20),
        "{tries} in {:?}",
        begin.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn guest_that_is_reset_while_a_disk_has_stopped_it_runs_again() {
    let mut rig = rig(desired(1)).await;
    rig.wishes.send_modify(|desired| desired.stalls = 1);
    let (mut state, mut reset_at, mut running_at) = ("io-error", None, None);
    loop {
        let mut answer = |command: &str, arguments: &Value| match command {
            "query-status" => Ok(json!({"status": state})),
            // The volume stays full, so the guest stops again unless it was reset.
            "cont" => {
                if state == "prelaunch" {
                    state = "running";
                    running_at = Some(tokio::time::Instant::now());
                }
                Ok(json!({}))
            }
            "system_reset" => {
                state = "prelaunch";
                reset_at = Some(tokio::time::Instant::now());
                Ok(json!({}))
            }
            _ => places(command, arguments),
        };
        tokio::select! {
            () = rig.peer.answer(&mut answer) => {}
            progress = rig.progress.recv() => match progress.unwrap() {
                Progress::Complete(_) if reset_at.is_none() => {
                    rig.wishes.send_modify(|desired| desired.reset = Some(4));
                }
                Progress::Reset(_) => rig.wishes.send_modify(DesiredState::record_reboot),
                Progress::Resumed => break,
                _ => {}
            }
        }
    }
    assert_eq!(state, "running", "only a running guest is reported as such");
    let delay = running_at.unwrap() - reset_at.unwrap();
    assert!(delay < Duration::from_secs(5), "{delay:?}");
}

#[tokio::test]
async fn grown_disk_is_resized_once_and_disks_never_shrink() {
    let mut first = desired(1);
    first.sizes = vec![1 << 20];
    let mut rig = rig(first).await;
    rig.peer.answer(places).await;
    rig.wishes
        .send_modify(|desired| desired.set_disk_sizes(&[Some(Bytes(2 << 20))]));
    rig.peer
        .answer(|command, arguments| {
            assert_eq!(
                (command, &arguments["node-name"]),
                ("block_resize", &json!("drive-0-backend"))
            );
            assert_eq!(arguments["size"], 2 << 20);
            Ok(json!({}))
        })
        .await;
    rig.peer.answer(places).await;
    rig.wishes.send_modify(|desired| {
        desired.set_disk_sizes(&[Some(Bytes(1 << 20))]);
        desired.attempt += 1;
    });
    rig.peer.answer(places).await;
}

#[tokio::test]
async fn a_disk_that_qemu_does_not_let_grow_is_as_large_as_before_and_can_grow_by_less() {
    let mut first = desired(1);
    first.sizes = vec![1 << 20];
    let mut rig = rig(first).await;
    rig.peer.answer(places).await;
    rig.wishes
        .send_modify(|desired| desired.set_disk_sizes(&[Some(Bytes(9 << 20))]));
    rig.peer
        .answer(|command, _| {
            (command != "block_resize")
                .then(|| json!({}))
                .ok_or("no room")
        })
        .await;
    rig.peer.answer(places).await;
    // Once is enough.
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    rig.peer.answer(places).await;
    rig.wishes
        .send_modify(|desired| desired.set_disk_sizes(&[Some(Bytes(2 << 20))]));
    rig.peer
        .answer(|command, arguments| {
            assert_eq!(
                (command, &arguments["size"]),
                ("block_resize", &json!(2 << 20))
            );
            Ok(json!({}))
        })
        .await;
    rig.peer.answer(places).await;
}

impl Rig {
    /// Answers until all of a wish was followed; gives the names of the commands, and what was reported.
    async fn play(&mut self) -> (Vec<String>, Vec<Progress>) {
        let (mut heard, mut reported) = (Vec::new(), Vec::new());
        loop {
            let answer = |command: &str, arguments: &Value| {
                heard.push(command.to_owned());
                if command == "system_reset" {
                    Ok(json!({}))
                } else {
                    places(command, arguments)
                }
            };
            tokio::select! {
                () = self.peer.answer(answer) => {}
                progress = self.progress.recv() => match progress.unwrap() {
                    Progress::Complete(_) => return (heard, reported),
                    progress => reported.push(progress),
                }
            }
        }
    }
}

#[tokio::test]
async fn b01_reset_without_a_reply_is_not_repeated() {
    let mut first = desired(1);
    first.reset = Some(4);
    let mut rig = rig(first).await;
    rig.peer.answer(places).await;
    assert_eq!(rig.peer.receive_command().await["execute"], "system_reset");
    tokio::time::pause();
    let (mut heard, mut reported) = rig.play().await;
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    let (more, also) = rig.play().await;
    heard.extend(more);
    reported.extend(also);
    assert!(!heard.contains(&"system_reset".to_owned()), "{heard:?}");
    assert!(reported.contains(&Progress::Reset(Some(4))), "{reported:?}");
}

#[tokio::test]
async fn failed_query_of_one_aspect_does_not_block_the_other_aspects() {
    let mut rig = rig(desired(1)).await;
    rig.play().await;
    tokio::time::pause();
    rig.wishes.send_modify(|desired| {
        desired.live.ram = Some(Bytes(1 << 29));
        desired.reset = Some(4);
    });
    let mut heard = Vec::new();
    while !heard.contains(&"system_reset".to_owned()) {
        let answer = |command: &str, arguments: &Value| {
            heard.push(command.to_owned());
            match command {
                "balloon" | "query-balloon" => Err("no balloon device has been activated"),
                "system_reset" => Ok(json!({})),
                _ => places(command, arguments),
            }
        };
        let time = Duration::from_secs(60);
        assert!(
            tokio::time::timeout(time, rig.peer.answer(answer))
                .await
                .is_ok(),
            "{heard:?}"
        );
        assert!(heard.len() < 20, "{heard:?}");
    }
    assert!(
        heard.contains(&"query-hotpluggable-cpus".to_owned()),
        "{heard:?}"
    );
}
