use super::*;
use crate::runner::qmp::testing::Peer;
use tokio::net::UnixListener;

struct Rig {
    _dir: tempfile::TempDir,
    listener: UnixListener,
    client: Client,
    signals: mpsc::UnboundedReceiver<Signal>,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("monitor.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, signals) = mpsc::unbounded_channel();
    let (client, task) = connect(path, sender);
    tokio::spawn(task);
    Rig { _dir: dir, listener, client, signals }
}

#[tokio::test]
async fn answers_find_their_commands_whatever_comes_between() {
    let Rig { _dir, listener, client, mut signals } = rig();
    let mut peer = Peer::accept(&listener).await;
    assert_eq!(signals.recv().await, Some(Signal::Ready));
    let status = tokio::spawn({
        let client = client.clone();
        async move { client.execute(Command::query_status()).await }
    });
    let first = peer.hear().await;
    let quit = tokio::spawn(async move { client.execute(Command::quit()).await });
    let second = peer.hear().await;
    peer.say(r#"{"event": "RESET", "data": {"guest": true}}"#).await;
    peer.say(&format!(r#"{{"error": {{"class": "GenericError", "desc": "no"}}, "id": {}}}"#, second["id"])).await;
    peer.say(&format!(r#"{{"return": {{"status": "running"}}, "id": {}}}"#, first["id"])).await;
    assert_eq!(status.await.unwrap().unwrap()["status"], "running");
    assert_eq!(quit.await.unwrap(), Err(Error::Refused { command: "quit", description: "no".to_owned() }));
    assert_eq!(signals.recv().await, Some(Signal::Event(Event::Reset)));
}

#[tokio::test]
async fn b17_a_lost_connection_fails_what_waits_and_is_made_again() {
    let Rig { _dir, listener, client, mut signals } = rig();
    let mut peer = Peer::accept(&listener).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.execute(Command::cont()).await }
    });
    peer.hear().await;
    drop(peer);
    assert_eq!(waiting.await.unwrap(), Err(Error::Unanswered("cont")));
    let mut again = Peer::accept(&listener).await;
    assert_eq!(signals.recv().await, Some(Signal::Ready));
    assert!(matches!(signals.recv().await, Some(Signal::Lost(_))));
    assert_eq!(signals.recv().await, Some(Signal::Ready));
    let status = tokio::spawn(async move { client.execute(Command::query_status()).await });
    let command = again.hear().await;
    again.say(&format!(r#"{{"return": {{}}, "id": {}}}"#, command["id"])).await;
    assert!(status.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_silent_qemu_is_waited_for_no_longer_than_the_limit() {
    let Rig { _dir, listener, client, signals: _signals } = rig();
    let mut peer = Peer::accept(&listener).await;
    let waiting = tokio::spawn(async move { client.execute(Command::cont()).await });
    peer.hear().await;
    assert_eq!(waiting.await.unwrap(), Err(Error::Timeout("cont")));
}

#[tokio::test]
async fn nonsense_ends_the_connection_and_not_the_program() {
    let Rig { _dir, listener, client: _client, mut signals } = rig();
    let mut peer = Peer::accept(&listener).await;
    assert_eq!(signals.recv().await, Some(Signal::Ready));
    peer.say("not json").await;
    assert!(matches!(signals.recv().await, Some(Signal::Lost(_))));
}

#[tokio::test]
async fn half_an_answer_is_none_and_the_next_connection_begins_anew() {
    let Rig { _dir, listener, client, signals: _signals } = rig();
    let mut peer = Peer::accept(&listener).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.execute(Command::query_status()).await }
    });
    let first = peer.hear().await;
    peer.say_part(r#"{"return": {"status": "runn"#).await;
    drop(peer);
    assert_eq!(waiting.await.unwrap(), Err(Error::Unanswered("query-status")));
    let mut again = Peer::accept(&listener).await;
    let asked = tokio::spawn(async move { client.execute(Command::query_status()).await });
    let second = again.hear().await;
    // Commands are counted for each connection: that number was somebody's before.
    assert_eq!(first["id"], second["id"]);
    again.say(&format!(r#"{{"return": {{"status": "paused"}}, "id": {}}}"#, second["id"])).await;
    assert_eq!(asked.await.unwrap().unwrap()["status"], "paused");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_twice_or_too_late_is_nobodys() {
    let Rig { _dir, listener, client, signals: _signals } = rig();
    let mut peer = Peer::accept(&listener).await;
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.execute(Command::query_status()).await })
    };
    let given_up = ask();
    let first = peer.hear().await;
    assert_eq!(given_up.await.unwrap(), Err(Error::Timeout("query-status")));
    let waiting = ask();
    let second = peer.hear().await;
    for (status, id) in [("late", &first["id"]), ("right", &second["id"]), ("again", &second["id"])] {
        peer.say(&format!(r#"{{"return": {{"status": "{status}"}}, "id": {id}}}"#)).await;
    }
    assert_eq!(waiting.await.unwrap().unwrap()["status"], "right");
    let next = ask();
    let third = peer.hear().await;
    peer.say(&format!(r#"{{"return": {{"status": "next"}}, "id": {}}}"#, third["id"])).await;
    assert_eq!(next.await.unwrap().unwrap()["status"], "next");
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_caller_has_given_up_is_not_given_any_more() {
    let Rig { _dir, listener, client, signals: _signals } = rig();
    drop(Peer::accept(&listener).await);
    // Connected again, and not greeted yet.
    let (stream, _) = listener.accept().await.unwrap();
    assert_eq!(client.execute(Command::system_reset()).await, Err(Error::NotConnected("system_reset")));
    let mut again = Peer::greet(stream).await;
    let _asked = tokio::spawn(async move { client.execute(Command::query_status()).await });
    assert_eq!(again.hear().await["execute"], "query-status");
}
