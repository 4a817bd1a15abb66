//! The port of the runner for the web console, which the test plays.

use crate::api::Api;
use crate::fixture::{Fixture, LIMIT};
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
    let (user, client) = (user.to_owned(), "192.0.2.1".to_owned());
    let open = Function::Screen;
    let request = Request {
        open,
        user,
        client,
        take_over,
    };
    json!(request).to_string()
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
    let vm = fixture.start_with_report(&api, "pod-uid");
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
    for (unknown, expected) in [
        (
            r#"{"open":"printer","user":"alice","client":""}"#.to_owned(),
            Some(Answer::Unsupported),
        ),
        ("x".repeat(3000), None),
    ] {
        let mut page = open(&fixture, console, unknown).await.unwrap();
        match expected {
            Some(expected) => assert_eq!(answer(&mut page).await, expected),
            None => assert_eq!(next(&mut page).await, None),
        }
    }

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
    vm.logged("the user does not see the screen any more");
    vm.until("the screen is free", || {
        fixture
            .log()
            .matches("not see the screen any more")
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
