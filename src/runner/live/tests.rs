mod cpus;
mod password;

use crate::api::conditions::ConditionReason;
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

/// Longest time for what takes milliseconds, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    dir: tempfile::TempDir,
    peer: Peer,
    wishes: watch::Sender<DesiredState>,
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
    tokio::spawn(run(client, start, wish, sender));
    Rig {
        dir,
        peer,
        wishes,
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

/// A CD drive of a scripted QEMU.
#[derive(Default)]
struct FakeDrive {
    open: bool,
    locked: bool,
    medium: Option<String>,
    /// The block nodes that were deleted.
    deleted: Vec<String>,
}

impl FakeDrive {
    fn answer(&mut self, command: &str, arguments: &Value) -> Result<Value, &'static str> {
        match command {
            "query-hotpluggable-cpus" => return places(command, arguments),
            "blockdev-del" => self
                .deleted
                .push(arguments["node-name"].as_str().unwrap().to_owned()),
            "blockdev-close-tray" => self.open = false,
            "blockdev-change-medium" | "eject" if self.locked && !self.open => {
                return Err("Device '' is locked");
            }
            "blockdev-change-medium" => {
                let node = arguments["filename"]
                    .as_str()
                    .unwrap()
                    .strip_prefix("json:")
                    .unwrap();
                let node: Value = serde_json::from_str(node).unwrap();
                assert_eq!(
                    (&node["read-only"], &node["file"]["locking"]),
                    (&json!(true), &json!("off"))
                );
                self.medium = Some(node["file"]["filename"].as_str().unwrap().to_owned());
                self.open = false;
            }
            "eject" => (self.open, self.medium) = (true, None),
            other => panic!("{other} {arguments}"),
        }
        Ok(json!({}))
    }

    fn has(&self, image: &str) -> bool {
        !self.open
            && self
                .medium
                .as_ref()
                .is_some_and(|medium| medium.ends_with(image))
    }

    /// Answers until all of a wish was followed; gives what was reported of the media.
    async fn play(&mut self, rig: &mut Rig) -> Option<Problem> {
        let mut reported = None;
        loop {
            tokio::select! {
                () = rig.peer.answer(|command, arguments| self.answer(command, arguments)) => {}
                progress = rig.progress.recv() => match progress.unwrap() {
                    Progress::Media(problem) => reported = problem,
                    Progress::Complete(_) => return reported,
                    _ => {}
                }
            }
        }
    }
}

fn image(rig: &Rig, name: &str) -> Option<PathBuf> {
    std::fs::write(rig.dir.path().join(name), "x").unwrap();
    Some(name.into())
}

#[tokio::test]
async fn b05_each_drive_gets_its_medium_once_and_is_then_the_guests() {
    let (mut rig, mut drive) = (rig(desired(1)).await, FakeDrive::default());
    let (a, b) = (image(&rig, "a.iso"), image(&rig, "b.iso"));
    drive.play(&mut rig).await;
    for (wanted, name) in [(a.clone(), "/a.iso"), (b, "/b.iso"), (a.clone(), "/a.iso")] {
        rig.wishes
            .send_modify(|desired| desired.live.media = vec![wanted]);
        assert_eq!(drive.play(&mut rig).await, None);
        assert!(drive.has(name), "{:?}", drive.medium);
    }
    assert_eq!(
        drive.deleted,
        ["drive-cdrom0"],
        "only the medium of the start has a node of ours"
    );
    // The guest ejects it. The runner does not insert it again.
    (drive.open, drive.medium) = (true, None);
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    assert_eq!(drive.play(&mut rig).await, None);
    assert!(drive.open && drive.medium.is_none());
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![None]);
    assert_eq!(drive.play(&mut rig).await, None);
    assert!(drive.medium.is_none() && !drive.open);
}

#[tokio::test]
async fn b05_a_change_that_qemu_has_not_answered_is_followed_by_another_one() {
    let (mut rig, mut drive) = (rig(desired(1)).await, FakeDrive::default());
    let (a, b) = (image(&rig, "a.iso"), image(&rig, "b.iso"));
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![a.clone()]);
    drive.play(&mut rig).await;
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![b]);
    let command = loop {
        let command = rig.peer.receive_command().await;
        if command["execute"] == "blockdev-change-medium" {
            break command;
        }
        let answer = drive
            .answer(command["execute"].as_str().unwrap(), &command["arguments"])
            .unwrap();
        rig.peer
            .send_line(&json!({"return": answer, "id": command["id"]}).to_string())
            .await;
    };
    tokio::time::pause();
    // QEMU carries it out late, when the configuration has the previous image again.
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![a]);
    drive
        .answer("blockdev-change-medium", &command["arguments"])
        .unwrap();
    assert_eq!(drive.play(&mut rig).await, None);
    assert!(drive.has("/a.iso"), "{:?}", drive.medium);
}

#[tokio::test]
async fn b05_an_image_that_cannot_be_had_leaves_the_drive_as_it_is_until_it_comes() {
    let (mut rig, mut drive) = (rig(desired(1)).await, FakeDrive::default());
    let a = image(&rig, "a.iso");
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![a]);
    drive.play(&mut rig).await;
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![Some("late.iso".into())]);
    let problem = drive.play(&mut rig).await.unwrap();
    assert_eq!(
        (problem.reason, drive.has("/a.iso")),
        (ConditionReason::ImageMissing, true)
    );
    image(&rig, "late.iso");
    // The wishes stay as they are: it is looked for again.
    tokio::time::pause();
    assert_eq!(drive.play(&mut rig).await, None);
    assert!(drive.has("/late.iso"));
}

#[tokio::test]
async fn a_repository_that_does_not_answer_delays_nothing_else() {
    let (answer, answers) = std::sync::mpsc::channel::<()>();
    let answers = std::sync::Mutex::new((answers, 0));
    let begun = Arc::new(tokio::sync::Notify::new());
    let begins = Arc::clone(&begun);
    let find: FindImage = Arc::new(move |repository, file| {
        let mut image_lookup = answers.lock().unwrap();
        image_lookup.1 += 1;
        assert_eq!(image_lookup.1, 1, "one look at a time");
        begins.notify_one();
        let _ = image_lookup.0.recv();
        crate::runner::machine::find_cd_image(repository, file)
    });
    let (mut rig, mut drive) = (rig_with(desired(1), find).await, FakeDrive::default());
    drive.play(&mut rig).await;
    let a = image(&rig, "a.iso");
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![a]);
    // The clock stands still while a look waits in its thread.
    tokio::time::pause();
    let time_passes = async {
        begun.notified().await;
        tokio::time::advance(Duration::from_secs(6)).await;
    };
    let (reported, ()) = tokio::join!(drive.play(&mut rig), time_passes);
    tokio::time::resume();
    let reported = reported.unwrap();
    assert!(
        reported.reason == ConditionReason::ImageNotReadable
            && reported.message.contains("has not answered"),
        "{reported:?}"
    );
    // All of that is done while the repository has not answered yet.
    let others = async {
        rig.wishes.send_modify(|desired| {
            desired.password = DisplayPassword::from_files(Some("p".to_owned()), None)
        });
        for expected in ["set_password", "expire_password"] {
            rig.peer
                .answer(|command, _| (command == expected).then(|| json!({})).ok_or("?"))
                .await;
        }
        assert_eq!(drive.play(&mut rig).await, Some(reported));
    };
    tokio::time::timeout(LIMIT, others)
        .await
        .expect("nothing waits for the repository");
    answer.send(()).unwrap();
    let answered = async {
        loop {
            rig.wishes.send_modify(|desired| desired.attempt += 1);
            if drive.play(&mut rig).await.is_none() {
                return;
            }
        }
    };
    tokio::time::timeout(LIMIT, answered)
        .await
        .expect("the answer is used");
    assert!(drive.has("/a.iso"));
}

#[tokio::test]
async fn b05_a_drive_that_the_guest_holds_is_changed_when_the_guest_lets_it_go() {
    let (mut rig, mut drive) = (rig(desired(1)).await, FakeDrive::default());
    let (a, b) = (image(&rig, "a.iso"), image(&rig, "b.iso"));
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![a.clone()]);
    drive.play(&mut rig).await;
    drive.locked = true;
    for wanted in [b.clone(), None] {
        rig.wishes
            .send_modify(|desired| desired.live.media = vec![wanted]);
        assert_eq!(
            drive.play(&mut rig).await.unwrap().reason,
            ConditionReason::GuestHoldsMedium
        );
    }
    // Somebody changes his mind: nothing has to be done.
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![a]);
    assert_eq!(drive.play(&mut rig).await, None);
    assert!(drive.has("/a.iso"));
    rig.wishes
        .send_modify(|desired| desired.live.media = vec![b]);
    assert_eq!(
        drive.play(&mut rig).await.unwrap().reason,
        ConditionReason::GuestHoldsMedium
    );
    (drive.locked, drive.open) = (false, true);
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    assert_eq!(drive.play(&mut rig).await, None);
    assert!(drive.has("/b.iso"));
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
async fn b39_memory_is_what_the_guest_has_and_not_what_was_asked_for() {
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
                Progress::Memory { actual, problem: Some(problem) } => break (actual, problem),
                Progress::Memory { actual, problem: None } => assert_eq!(actual, 1 << 30),
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
async fn a_guest_that_a_disk_has_stopped_goes_on_when_there_is_room_and_not_in_a_hurry() {
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
async fn a_disk_that_has_grown_is_told_once_and_none_shrinks() {
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
async fn b01_a_reset_that_was_given_to_qemu_is_not_given_again_where_it_is_not_answered() {
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
async fn what_qemu_does_not_tell_of_one_aspect_keeps_no_other_from_being_followed() {
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
