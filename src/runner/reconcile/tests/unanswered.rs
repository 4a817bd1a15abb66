//! Commands that QEMU does not answer in time, and may have carried out.

use super::*;

impl Rig {
    /// Answers until all of a wish was followed; gives the names of the commands, and what was told.
    async fn play(&mut self) -> (Vec<String>, Vec<Progress>) {
        let (mut heard, mut told) = (Vec::new(), Vec::new());
        loop {
            let answer = |command: &str, arguments: &Value| {
                heard.push(command.to_owned());
                if command == "system_reset" { Ok(json!({})) } else { places(command, arguments) }
            };
            tokio::select! {
                () = self.peer.answer(answer) => {}
                progress = self.progress.recv() => match progress.unwrap() {
                    Progress::Complete(_) => return (heard, told),
                    progress => told.push(progress),
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
    assert_eq!(rig.peer.hear().await["execute"], "system_reset");
    tokio::time::pause();
    let (mut heard, mut told) = rig.play().await;
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    let (more, also) = rig.play().await;
    heard.extend(more);
    told.extend(also);
    assert!(!heard.contains(&"system_reset".to_owned()), "{heard:?}");
    assert!(told.contains(&Progress::Reset(Some(4))), "{told:?}");
}

#[tokio::test]
async fn an_image_that_was_opened_unseen_is_closed_again() {
    let (mut rig, mut drive) = (rig(desired(1)).await, FakeDrive::default());
    drive.play(&mut rig).await;
    let a = image(&rig, "a.iso");
    rig.wishes.send_modify(|desired| desired.live.media = vec![a]);
    loop {
        let command = rig.peer.hear().await;
        let answer = drive.answer(command["execute"].as_str().unwrap(), &command["arguments"]).unwrap();
        if command["execute"] == "blockdev-add" {
            break;
        }
        rig.peer.say(&json!({"return": answer, "id": command["id"]}).to_string()).await;
    }
    assert_eq!(drive.nodes.len(), 1);
    tokio::time::pause();
    assert_eq!(drive.play(&mut rig).await, None);
    assert_eq!(drive.nodes, [drive.node.clone().unwrap()]);
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
        assert!(tokio::time::timeout(time, rig.peer.answer(answer)).await.is_ok(), "{heard:?}");
        assert!(heard.len() < 20, "{heard:?}");
    }
    assert!(heard.contains(&"query-hotpluggable-cpus".to_owned()), "{heard:?}");
}
