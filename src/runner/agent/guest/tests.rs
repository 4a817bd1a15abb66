use super::*;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;

/// An agent that answers a sync_id and then each question by the next of the replies, if there is one.
fn agent(
    replies: &'static [&'static str],
    before: &'static [u8],
) -> (GuestAgent, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ga.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (reader, mut writer) = listener.accept().await.unwrap().0.into_split();
        let mut reader = BufReader::new(reader);
        let mut replies = replies.iter();
        writer.write_all(before).await.unwrap();
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).await.unwrap_or(0) > 0 {
            let question: Value =
                serde_json::from_slice(line.strip_prefix(&[DELIMITER]).unwrap_or(&line)).unwrap();
            line.clear();
            let reply = match question["execute"].as_str().unwrap() {
                "guest-sync-delimited" => {
                    format!("\u{0}{{\"return\": {}}}", question["arguments"]["id"])
                }
                _ => replies
                    .next()
                    .map_or_else(String::new, |reply| (*reply).to_owned()),
            };
            let mut bytes = reply.into_bytes();
            if bytes.first() == Some(&0) {
                bytes[0] = DELIMITER;
            }
            if !bytes.is_empty() {
                bytes.push(b'\n');
            }
            writer.write_all(&bytes).await.unwrap();
        }
    });
    (GuestAgent::new(path), dir)
}

#[tokio::test]
async fn stale_output_is_not_used_as_a_response() {
    let (agent, _dir) = agent(
        &[r#"{"return": {"id": "debian"}}"#],
        b"{\"return\": {\"id\": \"stale\"}}\n{\"half",
    );
    assert_eq!(agent.osinfo().await.unwrap()["id"], "debian");
}

#[tokio::test]
async fn an_agent_that_goes_in_the_middle_of_an_answer_is_asked_again_by_a_new_connection() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("ga.sock")).unwrap();
    let agent = GuestAgent::new(dir.path().join("ga.sock"));
    let asked = tokio::spawn({
        let agent = agent.clone();
        async move { (agent.osinfo().await, agent.osinfo().await) }
    });
    for answer in [
        "{\"return\": {\"id\": \"deb",
        "{\"return\": {\"id\": \"debian\"}}\n",
    ] {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let mut line = Vec::new();
        stream.read_until(b'\n', &mut line).await.unwrap();
        stream.write_all(b"\xff{\"return\": 1}\n").await.unwrap();
        stream.read_until(b'\n', &mut line).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    let (first, second) = asked.await.unwrap();
    assert_eq!(first.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(second.unwrap()["id"], "debian");
}

#[tokio::test]
async fn cpus_of_the_guest_are_those_that_are_online() {
    let (agent, _dir) = agent(
        &[
            r#"{"return": [{"logical-id": 0, "online": true}, {"logical-id": 1, "online": false, "can-offline": true}]}"#,
            r#"{"return": []}"#,
        ],
        b"",
    );
    assert_eq!(agent.online_cpus().await.unwrap(), 1);
    assert!(agent.online_cpus().await.is_err());
}

#[tokio::test]
async fn a_guest_tells_its_addresses() {
    let (agent, _dir) = agent(
        &[r#"{"return": [{"name": "e", "ip-addresses": [{"ip-address": "10.0.2.15"}]}]}"#],
        b"",
    );
    assert_eq!(agent.addresses().await.unwrap(), ["10.0.2.15"]);
}

#[tokio::test]
async fn a_refusal_is_an_error_and_the_next_question_is_answered() {
    let (agent, _dir) = agent(
        &[r#"{"error": {"class": "GenericError", "desc": "disabled"}}"#],
        b"",
    );
    let error = agent.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Other);
    assert!(error.to_string().contains("disabled"));
}

/// A rejected command ends the queries of addresses and CPUs, a reply that cannot be read does not.
#[tokio::test]
async fn reply_that_is_too_long_is_no_rejection() {
    let long: &'static str = "x".repeat(LINE_SIZE_MAX + 1).leak();
    let replies: &'static [&'static str] = vec![long].leak();
    let (agent, _dir) = agent(replies, b"");
    let error = agent.addresses().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[tokio::test]
async fn an_agent_that_shuts_down_says_nothing() {
    let (agent, _dir) = agent(&[], b"");
    agent.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_is_not_waited_for_longer_than_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(dir.path().join("ga.sock")).unwrap();
    let agent = GuestAgent::new(dir.path().join("ga.sock"));
    assert!(agent.osinfo().await.is_err());
}

#[test]
fn usable_addresses_are_reported_without_duplicates() {
    let of = |addresses: &[&str]| json!({"ip-addresses": addresses.iter().map(|a| json!({"ip-address": a})).collect::<Vec<_>>()});
    let interfaces = json!([
        of(&["127.0.0.1", "::1"]), of(&["10.0.2.15", "fe80::5054:ff:fe12:3456", "2001:DB8::1"]), {"name": "down"},
        of(&["10.0.2.15", "169.254.1.1", "x", ""]), 7,
    ]);
    assert_eq!(usable_addresses(&interfaces), ["10.0.2.15", "2001:db8::1"]);
    assert_eq!(usable_addresses(&json!({"a": 1})), Vec::<String>::new());
}

#[test]
fn a_guest_that_says_much_is_kept_short() {
    let many: Vec<_> = (0..1000)
        .map(|n| json!({"ip-address": format!("10.0.{}.{}", n / 256, n % 256)}))
        .collect();
    assert_eq!(
        usable_addresses(&json!([{"ip-addresses": many}])).len(),
        LIST_ENTRIES_MAX
    );
    let mut said = json!({"id": "tiny", "name": "x".repeat(1 << 16), "nested": {"a": [1]}});
    assert_eq!(
        short_osinfo(said.as_object().unwrap().clone()),
        *json!({"id": "tiny"}).as_object().unwrap()
    );
    for n in 0..1000 {
        said[format!("k{n}")] = json!("v");
    }
    assert_eq!(
        short_osinfo(said.as_object().unwrap().clone()).len(),
        LIST_ENTRIES_MAX
    );
}
