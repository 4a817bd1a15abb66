//! Images in CD drives.

use super::*;

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
async fn b05_unavailable_image_leaves_the_drive_unchanged_until_it_is_available() {
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
async fn unresponsive_image_repository_does_not_delay_other_changes() {
    let (answer, answers) = std::sync::mpsc::channel::<()>();
    let answers = std::sync::Mutex::new(answers);
    let begun = Arc::new(tokio::sync::Notify::new());
    let begins = Arc::clone(&begun);
    let find: FindImage = Arc::new(move |repository, file| {
        let answers = answers.try_lock().expect("one lookup at a time");
        begins.notify_one();
        let _ = answers.recv();
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
    drop(answer);
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
async fn b05_drive_locked_by_the_guest_is_changed_after_its_release() {
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
