use crate::runner::qmp::client::*;
use crate::runner::qmp::testing::Peer;

struct Rig {
    peer: Peer,
    client: Client,
    signals: mpsc::UnboundedReceiver<QmpSignal>,
}

async fn rig() -> Rig {
    let (ours, qemus) = UnixStream::pair().unwrap();
    let (sender, signals) = mpsc::unbounded_channel();
    let (client, task) = connect(ours, sender);
    tokio::spawn(task);
    Rig {
        peer: Peer::send_greeting(qemus).await,
        client,
        signals,
    }
}

#[tokio::test]
async fn replies_are_matched_to_commands_despite_interleaved_messages() {
    let Rig {
        mut peer,
        client,
        mut signals,
    } = rig().await;
    assert_eq!(signals.recv().await, Some(QmpSignal::Ready));
    let status = tokio::spawn({
        let client = client.clone();
        async move { client.execute(Command::query_status()).await }
    });
    let first = peer.receive_command().await;
    let quit = tokio::spawn(async move { client.execute(Command::quit()).await });
    let second = peer.receive_command().await;
    peer.send_line(r#"{"event": "RESET", "data": {"guest": true}}"#)
        .await;
    peer.send_line(&format!(
        r#"{{"error": {{"class": "GenericError", "desc": "no"}}, "id": {}}}"#,
        second["id"]
    ))
    .await;
    peer.send_line(&format!(
        r#"{{"return": {{"status": "running"}}, "id": {}}}"#,
        first["id"]
    ))
    .await;
    assert_eq!(status.await.unwrap().unwrap()["status"], "running");
    assert_eq!(
        quit.await.unwrap(),
        Err(Error::Rejected {
            command: "quit",
            description: "no".to_owned()
        })
    );
    assert_eq!(
        signals.recv().await,
        Some(QmpSignal::Event(QmpEvent::Reset))
    );
}

#[tokio::test]
async fn b17_closed_connection_fails_pending_and_later_commands() {
    let Rig {
        mut peer,
        client,
        mut signals,
    } = rig().await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.execute(Command::cont()).await }
    });
    peer.receive_command().await;
    peer.send_partial_line(r#"{"return": {"status": "runn"#)
        .await;
    drop(peer);
    assert_eq!(waiting.await.unwrap(), Err(Error::Lost("cont")));
    assert_eq!(signals.recv().await, Some(QmpSignal::Ready));
    assert!(matches!(signals.recv().await, Some(QmpSignal::Lost(_))));
    assert_eq!(
        client.execute(Command::query_status()).await,
        Err(Error::Lost("query-status"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_qemu_is_waited_for_no_longer_than_the_limit() {
    let Rig {
        mut peer,
        client,
        signals: _signals,
    } = rig().await;
    let waiting = tokio::spawn(async move { client.execute(Command::cont()).await });
    peer.receive_command().await;
    assert_eq!(waiting.await.unwrap(), Err(Error::Timeout("cont")));
}

#[tokio::test]
async fn nonsense_ends_the_connection_and_not_the_program() {
    let Rig {
        mut peer,
        client,
        mut signals,
    } = rig().await;
    assert_eq!(signals.recv().await, Some(QmpSignal::Ready));
    peer.send_line("not json").await;
    assert!(matches!(signals.recv().await, Some(QmpSignal::Lost(_))));
    assert_eq!(
        client.execute(Command::cont()).await,
        Err(Error::Lost("cont"))
    );
}

#[tokio::test(start_paused = true)]
async fn duplicate_or_late_reply_is_discarded() {
    let Rig {
        mut peer,
        client,
        signals: _signals,
    } = rig().await;
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.execute(Command::query_status()).await })
    };
    let given_up = ask();
    let first = peer.receive_command().await;
    assert_eq!(given_up.await.unwrap(), Err(Error::Timeout("query-status")));
    let waiting = ask();
    let second = peer.receive_command().await;
    for (status, id) in [
        ("late", &first["id"]),
        ("right", &second["id"]),
        ("again", &second["id"]),
    ] {
        peer.send_line(&format!(
            r#"{{"return": {{"status": "{status}"}}, "id": {id}}}"#
        ))
        .await;
    }
    assert_eq!(waiting.await.unwrap().unwrap()["status"], "right");
    let next = ask();
    let third = peer.receive_command().await;
    peer.send_line(&format!(
        r#"{{"return": {{"status": "next"}}, "id": {}}}"#,
        third["id"]
    ))
    .await;
    assert_eq!(next.await.unwrap().unwrap()["status"], "next");
}

#[tokio::test(start_paused = true)]
async fn command_of_a_cancelled_caller_is_not_sent() {
    let (ours, qemus) = UnixStream::pair().unwrap();
    let (sender, _signals) = mpsc::unbounded_channel();
    let (client, task) = connect(ours, sender);
    tokio::spawn(task);
    // Not greeted yet.
    assert_eq!(
        client.execute(Command::system_reset()).await,
        Err(Error::Timeout("system_reset"))
    );
    let mut peer = Peer::send_greeting(qemus).await;
    let _asked = tokio::spawn(async move { client.execute(Command::query_status()).await });
    assert_eq!(peer.receive_command().await["execute"], "query-status");
}
