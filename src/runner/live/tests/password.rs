//! The display's password.

use crate::runner::live::tests::*;

fn password(text: &str, expiry: Option<&str>) -> Option<DisplayPassword> {
    DisplayPassword::from_files(Some(text.to_owned()), expiry.map(str::to_owned))
}

/// Answers until all of a wish was followed, all but that command; gives the commands that were about the password.
async fn play(rig: &mut Rig, refused: &str) -> Vec<(String, Value)> {
    let mut heard = Vec::new();
    loop {
        let answer = |command: &str, arguments: &Value| {
            if !command.ends_with("_password") {
                return places(command, arguments);
            }
            heard.push((command.to_owned(), arguments.clone()));
            if command == refused {
                Err("no")
            } else {
                Ok(json!({}))
            }
        };
        tokio::select! {
            () = rig.peer.answer(answer) => {}
            progress = rig.progress.recv() => if let Progress::Complete(_) = progress.unwrap() {
                return heard;
            }
        }
    }
}

#[tokio::test]
async fn rejected_password_does_not_change_the_expiry_of_the_old_password() {
    let mut first = desired(1);
    first.password = password("old", Some("+60"));
    let mut rig = rig(first).await;
    assert_eq!(play(&mut rig, "").await.len(), 2);
    for expiry in [Some("never"), None] {
        rig.wishes
            .send_modify(|desired| desired.password = password("new", expiry));
        let heard = play(&mut rig, "set_password").await;
        assert!(
            heard.len() == 1 && heard[0].0 == "set_password",
            "{heard:?}"
        );
        // Another look is no other wish.
        rig.wishes.send_modify(|desired| desired.attempt += 1);
        assert_eq!(play(&mut rig, "set_password").await, []);
    }
}

/// The same as [`play`], for what was reported of the password.
async fn reported(rig: &mut Rig, refused: &str) -> Vec<Progress> {
    let mut reported = Vec::new();
    loop {
        let answer = |command: &str, arguments: &Value| match command {
            "query-hotpluggable-cpus" => places(command, arguments),
            _ if command == refused => Err("no"),
            _ => Ok(json!({})),
        };
        tokio::select! {
            () = rig.peer.answer(answer) => {}
            progress = rig.progress.recv() => match progress.unwrap() {
                Progress::Complete(_) => return reported,
                Progress::Cpus { .. } => {}
                progress => reported.push(progress),
            }
        }
    }
}

#[tokio::test]
async fn password_problem_is_reported_until_it_is_fixed() {
    let mut rig = rig(desired(1)).await;
    assert_eq!(reported(&mut rig, "").await, []);
    let mut after = async |wanted: Option<DisplayPassword>, refused: &str| {
        rig.wishes.send_modify(|desired| desired.password = wanted);
        reported(&mut rig, refused).await
    };
    let problem = |reported: &[Progress]| match reported {
        [Progress::Password(Some(problem))] => (problem.reason.as_str(), problem.message.clone()),
        other => panic!("{other:?}"),
    };
    let (reason, message) = problem(&after(password("a", Some("tomorrow")), "").await);
    assert_eq!(reason, "PasswordNotSet");
    for word in [
        "password-expiry",
        "\"tomorrow\"",
        "+<seconds>",
        "accepts no password",
    ] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(
        after(password("a", None), "").await,
        [Progress::PasswordSet, Progress::Password(None)]
    );
    let (reason, message) = problem(&after(password("b", None), "set_password").await);
    assert!(
        reason == "PasswordNotSet" && message.contains("display-password"),
        "{message}"
    );
    assert!(message.contains("the previous password"), "{message}");
    // Somebody changes his mind: it is in effect already.
    assert_eq!(
        after(password("a", None), "").await,
        [Progress::Password(None)]
    );
    assert_eq!(
        after(password("b", None), "").await,
        [Progress::PasswordSet]
    );
}

#[tokio::test]
async fn new_password_with_rejected_expiry_admits_no_client() {
    let mut rig = rig(desired(1)).await;
    play(&mut rig, "").await;
    rig.wishes
        .send_modify(|desired| desired.password = password("a", Some("+60")));
    let mut ends = Vec::new();
    loop {
        let answer = |command: &str, arguments: &Value| match command {
            "expire_password" => {
                ends.push(arguments["time"].clone());
                if ends.len() == 1 {
                    Err("no")
                } else {
                    Ok(json!({}))
                }
            }
            "set_password" => Ok(json!({})),
            _ => places(command, arguments),
        };
        tokio::select! {
            () = rig.peer.answer(answer) => {}
            progress = rig.progress.recv() => match progress.unwrap() {
                Progress::Password(problem) => {
                    let problem = problem.unwrap();
                    assert!(problem.message.contains("accepts no password"), "{problem:?}");
                    break;
                }
                Progress::PasswordSet => panic!("it is not as it should be"),
                _ => {}
            }
        }
    }
    assert_eq!(ends, ["+60", "now"]);
}

#[tokio::test]
async fn password_with_invalid_expiry_is_not_set() {
    for expiry in [
        "tomorrow",
        "2030-01-01",
        "-1",
        "+",
        "+ 5",
        "1e9",
        "99999999999999999999",
    ] {
        let mut first = desired(1);
        first.password = password("p", Some(expiry));
        let mut rig = rig(first).await;
        assert_eq!(play(&mut rig, "expire_password").await, [], "{expiry}");
    }
}

/// Requests a password for a viewer, and returns it with the commands that QEMU got.
async fn request(rig: &mut Rig, refused: &str) -> (Option<(String, Option<u32>)>, Vec<String>) {
    let (answer, password) = oneshot::channel();
    let request = PasswordRequest {
        valid_seconds: 30,
        assignment: None,
        answer,
    };
    rig.passwords.send(request).await.unwrap();
    let commands = play(rig, refused).await.into_iter();
    let values = commands.flat_map(|(_, arguments)| {
        let value = arguments.get("time").or(arguments.get("password"));
        value.and_then(Value::as_str).map(str::to_owned)
    });
    let values = values.collect();
    (password.await.unwrap(), values)
}

#[tokio::test]
async fn one_time_password_is_new_for_each_request_until_the_secret_changes() {
    let mut first = desired(1);
    first.password = password("secret", Some("now"));
    let mut rig = rig(first).await;
    play(&mut rig, "").await;
    let (one, commands) = request(&mut rig, "").await;
    let one = one.unwrap();
    assert_eq!(
        (one.1, commands),
        (Some(30), vec![one.0.clone(), "+30".to_owned()])
    );
    let (two, _) = request(&mut rig, "").await;
    assert_ne!(two.unwrap().0, one.0);
    // A rejected password is valid for nobody, and the previous one does not get more time.
    let (none, commands) = request(&mut rig, "set_password").await;
    assert_eq!(
        (none, commands.last().map(String::as_str)),
        (None, Some("now"))
    );
    // An unchanged Secret does not replace it, and a changed one does.
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    assert_eq!(play(&mut rig, "").await, []);
    rig.wishes
        .send_modify(|desired| desired.password = password("secret", None));
    assert_eq!(play(&mut rig, "").await.len(), 2, "password and expiry");
    // It remains valid for longer than a one-time password.
    let fixed = Some(("secret".to_owned(), None));
    assert_eq!(request(&mut rig, "").await, (fixed, vec![]));
}

/// Requests that clients are disconnected, and returns the commands that QEMU got.
async fn disconnect(rig: &mut Rig) -> Vec<(String, Value)> {
    rig.wishes.send_modify(|desired| desired.disconnects += 1);
    play(rig, "").await
}

#[tokio::test]
async fn disconnected_client_cannot_use_its_password_again() {
    let mut first = desired(1);
    first.password = password("secret", None);
    let mut rig = rig(first).await;
    play(&mut rig, "").await;
    // Nobody got the password by the console.
    let kept = disconnect(&mut rig).await;
    let arguments = json!({"protocol": "spice", "password": "secret", "connected": "disconnect"});
    assert_eq!(kept, [("set_password".to_owned(), arguments)]);
    for _ in 0..2 {
        request(&mut rig, "").await.0.unwrap();
        let replaced = disconnect(&mut rig).await;
        let [(_, expiry), (_, new)] = &replaced[..] else {
            panic!("{replaced:?}");
        };
        assert_eq!(expiry["time"], "now");
        assert_eq!(new["connected"], "disconnect");
        assert_ne!(new["password"], "secret");
    }
    // An unchanged Secret does not bring the password back.
    rig.wishes.send_modify(|desired| desired.attempt += 1);
    assert_eq!(play(&mut rig, "").await, []);
    assert_eq!(request(&mut rig, "").await.0.unwrap().1, Some(30));
}

#[tokio::test]
async fn display_without_a_password_gets_no_command() {
    let mut rig = rig(desired(1)).await;
    play(&mut rig, "").await;
    assert_eq!(disconnect(&mut rig).await, []);
}

#[tokio::test]
async fn password_for_the_next_user_of_a_pool_disconnects_the_client_of_the_previous_user() {
    let mut first = desired(1);
    first.password = password("secret", None);
    let mut rig = rig(first).await;
    play(&mut rig, "").await;
    let mut of = async |assignment: &str| {
        let (answer, password) = oneshot::channel();
        let request = PasswordRequest {
            valid_seconds: 30,
            assignment: Some(assignment.to_owned()),
            answer,
        };
        rig.passwords.send(request).await.unwrap();
        let commands = play(&mut rig, "").await;
        let is_disconnect = |(_, it): &(String, Value)| it["connected"] == "disconnect";
        let disconnects = commands.iter().filter(|it| is_disconnect(it)).count();
        (password.await.unwrap().unwrap().1, disconnects)
    };
    assert_eq!(of("1").await, (None, 0), "the password of the Secret");
    assert_eq!(of("2").await, (Some(30), 1));
    assert_eq!(of("2").await, (Some(30), 0));
}
