//! The port of the runner for the web console, which the test plays.

use crate::api::{Api, condition};
use crate::fixture::{DISPLAY, Fixture, LIMIT, POD_UID};
use crate::viewer::Viewer;
use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};
use vm_operator::api::runner::viewer::{Answer, Function, Request};
use vm_operator::pinned_tls::{self, KeyPair, PublicKey};

const PORT: u16 = 9181;

type Page = WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>;

/// Connects with a key and sends a request.
async fn open(
    fixture: &Fixture,
    (own, runner): (&KeyPair, &PublicKey),
    request: String,
) -> std::io::Result<Page> {
    let stream = fixture.network.connect(PORT)?;
    stream.set_nonblocking(true)?;
    let stream = TcpStream::from_std(stream)?;
    let stream = pinned_tls::connect(own, runner.clone(), stream).await?;
    let page = client_async("ws://runner/", stream).await;
    let (mut page, _) = page.map_err(std::io::Error::other)?;
    page.send(Message::text(request)).await.unwrap();
    Ok(page)
}

fn request(user: &str, take_over: bool) -> String {
    let request = Request::new(
        POD_UID,
        Function::Screen,
        user,
        "192.0.2.1".parse().unwrap(),
    );
    json!(Request {
        take_over,
        ..request
    })
    .to_string()
}

/// The next message, which is not late. None at the end.
async fn next(page: &mut Page) -> Option<Message> {
    loop {
        match timeout(LIMIT, page.next()).await.expect("no message") {
            Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            Some(Ok(Message::Ping(_))) => {}
            Some(Ok(message)) => return Some(message),
        }
    }
}

async fn answer(page: &mut Page) -> Answer {
    loop {
        match next(page).await.expect("an answer") {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            _ => continue,
        }
    }
}

/// The first bytes of a VNC server.
async fn sees_screen(page: &mut Page) {
    assert_eq!(answer(page).await, Answer::Connected);
    let Some(Message::Binary(bytes)) = next(page).await else {
        panic!("no screen");
    };
    assert_eq!(&bytes[..], b"RFB 003.008\n");
}

#[tokio::test]
async fn screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key() {
    let (fixture, api) = (Fixture::new(), Api::start());
    let runtime = &json!({"namespace": "ns", "consolePort": PORT});
    fixture.configure(runtime, &json!({"drives": [], "powerdownTimeout": 0}));
    let vm = fixture.start(Some(&api));
    vm.reaches("Booting");
    let key = vm.until("a report with the key", || {
        let status = api.statuses().pop()?;
        status["status"]["consoleKey"].as_str().map(str::to_owned)
    });
    let runner: PublicKey = key.parse().unwrap();
    let [own, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
    assert!(
        fixture.network.connect(PORT).is_err(),
        "no console is known"
    );
    let keys = format!("{}\n", own.public());
    fixture.write("config/console-keys", &keys);
    vm.until("the port", || fixture.network.connect(PORT).ok());

    let console = (&own, &runner);
    let mut alice = open(&fixture, console, request("alice", false))
        .await
        .unwrap();
    sees_screen(&mut alice).await;
    // TLS 1.3 reports a rejected key of a client with the first message.
    if let Ok(mut page) = open(&fixture, (&other, &runner), request("eve", true)).await {
        assert_eq!(next(&mut page).await, None);
    }
    assert!(
        open(&fixture, (&own, &other.public()), request("alice", false))
            .await
            .is_err()
    );
    let unknown = request("alice", false).replace("screen", "printer");
    let of_other_pod = request("alice", false).replace(POD_UID, "other");
    for (request, expected) in [
        (unknown, Some(Answer::Unsupported)),
        (of_other_pod, None),
        ("x".repeat(3000), None),
    ] {
        let mut page = open(&fixture, console, request).await.unwrap();
        match expected {
            Some(expected) => assert_eq!(answer(&mut page).await, expected),
            None => assert_eq!(next(&mut page).await, None),
        }
    }
    // Connections that send no request do not keep others away.
    let idle: Vec<_> = (0..40)
        .map(|_| fixture.network.connect(PORT).unwrap())
        .collect();
    let mut page = open(&fixture, console, "{}".to_owned()).await.unwrap();
    assert_eq!(answer(&mut page).await, Answer::Unsupported);
    drop(idle);

    let user = |name: &str| name.to_owned();
    let mut bob = open(&fixture, console, request("bob", false))
        .await
        .unwrap();
    assert_eq!(
        answer(&mut bob).await,
        Answer::InUse {
            user: user("alice")
        }
    );
    let mut bob = open(&fixture, console, request("bob", true)).await.unwrap();
    sees_screen(&mut bob).await;
    assert_eq!(
        answer(&mut alice).await,
        Answer::TakenOver { user: user("bob") }
    );
    assert_eq!(next(&mut alice).await, None);
    let reported = |user: &str| {
        let status = api.statuses().pop()?;
        let is_connected = condition(&status, "ConsoleConnected")["status"] == "True";
        let newest = &status["status"]["consoles"][0];
        let expected = (newest["user"] == user, newest["protocol"] == "Screen");
        (is_connected && expected == (true, true)).then_some(())
    };
    vm.until("a report of the user", || reported("bob"));
    let mut again = open(&fixture, console, request("bob", false))
        .await
        .unwrap();
    sees_screen(&mut again).await;
    assert_eq!(answer(&mut bob).await, Answer::Replaced);
    // The client's version, and the types of authentication: none only.
    again
        .send(Message::binary(b"RFB 003.008\n".to_vec()))
        .await
        .unwrap();
    assert_eq!(next(&mut again).await, Some(Message::binary(vec![1, 1])));
    again.close(None).await.unwrap();
    vm.until("the screen is free", || {
        fixture
            .log()
            .matches("the connection of the user has ended")
            .count()
            .ge(&3)
            .then_some(())
    });
    let mut alice = open(&fixture, console, request("alice", false))
        .await
        .unwrap();
    sees_screen(&mut alice).await;

    // A removed key ends connections, and closes the port.
    fixture.write("config/console-keys", "");
    assert_eq!(next(&mut alice).await, None);
    vm.until("the port is closed", || {
        fixture.network.connect(PORT).is_err().then_some(())
    });
    fixture.write("config/console-keys", &keys);
    vm.until("the port", || fixture.network.connect(PORT).ok());
    let mut alice = open(&fixture, console, request("alice", false))
        .await
        .unwrap();
    sees_screen(&mut alice).await;
    vm.signal("-TERM");
    assert_eq!(answer(&mut alice).await, Answer::Ended);
}

#[tokio::test]
async fn serial_console_begins_with_the_last_output_and_a_password_of_the_display_is_valid_once() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let own = KeyPair::generate().unwrap();
    fixture.write("config/console-keys", &own.public().to_string());
    fixture.write("config/display-password", "of the Secret");
    fixture.write("config/password-expiry", "now");
    let spice = json!({"spice": {"port": DISPLAY}});
    let assign = |uid: &str| {
        let runner = json!({"namespace": "ns", "assignment": uid});
        fixture.configure(&runner, &json!({"display": spice}));
    };
    assign("of-alice");
    let vm = fixture.start(Some(&api));
    vm.reaches("Booted");
    let status = api.statuses().pop().unwrap();
    let runner: PublicKey = status["status"]["consoleKey"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let ask_under = async |assignment: &str, function: Function| {
        let request = Request::new(POD_UID, function, "alice", "192.0.2.1".parse().unwrap());
        let request = Request {
            assignment: Some(assignment.to_owned()),
            ..request
        };
        open(&fixture, (&own, &runner), json!(request).to_string())
            .await
            .unwrap()
    };
    let ask = async |function: Function| ask_under("of-alice", function).await;
    let [mut one, mut two] = [ask(Function::Serial).await, ask(Function::Serial).await];
    for page in [&mut one, &mut two] {
        assert_eq!(answer(page).await, Answer::Connected);
        let Some(Message::Binary(log)) = next(page).await else {
            panic!("no output");
        };
        assert!(String::from_utf8_lossy(&log).contains("TINY"));
    }
    one.send(Message::binary(b"sh echo he''llo\n".to_vec()))
        .await
        .unwrap();
    let mut seen = String::new();
    while !seen.contains("TINY sh hello") {
        let Some(Message::Binary(bytes)) = next(&mut two).await else {
            panic!("{seen}");
        };
        seen.push_str(&String::from_utf8_lossy(&bytes));
    }

    let password = async || match answer(&mut ask(Function::Display).await).await {
        Answer::Display(display) => (display.password.unwrap(), display.valid_seconds),
        other => panic!("{other:?}"),
    };
    let (first, second) = (password().await, password().await);
    assert_eq!((first.0.len(), first.1), (24, Some(30)));
    assert_ne!(first.0, second.0);
    let is_reported = || {
        let status = api.statuses().pop().unwrap();
        let consoles = status["status"]["consoles"].as_array();
        let is_spice = |it: &serde_json::Value| it["protocol"] == "Spice" && it["user"] == "alice";
        consoles.into_iter().flatten().any(is_spice)
    };
    let connected = |password: &str| {
        let viewer = Viewer::connect(&fixture, Some(password));
        vm.until("a SPICE client of the user", || is_reported().then_some(()));
        viewer
    };
    let disconnected = |mut viewer: Viewer| {
        vm.until("the end of the SPICE client", || {
            (!viewer.is_there() && !is_reported()).then_some(())
        });
    };
    let viewer = connected(&second.0);
    // The user loses the right.
    assert_eq!(
        answer(&mut ask(Function::Disconnect).await).await,
        Answer::Ended
    );
    disconnected(viewer);
    // The VM gets another user, and the next user has a console before.
    let viewer = connected(&password().await.0);
    let mut next_user = ask_under("of-bob", Function::Serial).await;
    assert_eq!(answer(&mut next_user).await, Answer::Connected);
    assign("of-bob");
    for page in [&mut one, &mut two] {
        assert_eq!(answer(page).await, Answer::Ended);
    }
    disconnected(viewer);
    assert_eq!(
        answer(&mut ask(Function::Serial).await).await,
        Answer::Ended,
        "the assignment is over"
    );
    next_user
        .send(Message::binary(b"sh echo wor''ld\n".to_vec()))
        .await
        .unwrap();
    let mut seen = String::new();
    while !seen.contains("TINY sh world") {
        let Some(Message::Binary(bytes)) = next(&mut next_user).await else {
            panic!("{seen}");
        };
        seen.push_str(&String::from_utf8_lossy(&bytes));
    }
    let status = api.statuses().pop().unwrap();
    assert_eq!(condition(&status, "ConfigInSync")["status"], "True");
    let password = async || match answer(&mut ask_under("of-bob", Function::Display).await).await {
        Answer::Display(display) => (display.password.unwrap(), display.valid_seconds),
        other => panic!("{other:?}"),
    };
    // A password of the Secret that remains valid is used as it is, also after one-time passwords.
    fixture.write("config/password-expiry", "never");
    let fixed = ("of the Secret".to_owned(), None);
    let start = std::time::Instant::now();
    while password().await != fixed {
        assert!(start.elapsed() < LIMIT, "the password of the Secret");
    }
    assert!(!fixture.log().contains(&first.0) && !fixture.log().contains(&fixed.0));
    let serial = |it: &serde_json::Value| it["status"]["displayPasswordSerial"].as_i64();
    let reported = api.statuses().iter().filter_map(serial).max();
    vm.until("reports of the passwords", || {
        (api.statuses().iter().filter_map(serial).max() >= Some(3)).then_some(())
    });
    assert!(reported >= Some(1));
}
