//! What is told of a guest that runs, and for how long.

use super::*;

fn told(rig: &Rig, type_: &str) -> (bool, &'static str) {
    let conditions = rig.driver.observed.conditions();
    let condition = conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (condition.status, condition.reason.as_str())
}

#[tokio::test]
async fn a_guest_goes_on_without_its_monitor_and_that_is_told() {
    let mut rig = rig().await;
    let (other, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut rig.peer, Peer::of(other)));
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    while !rig.driver.observed.monitor_lost {
        tokio::select! {
            Some(signal) = rig.inbox.monitor.recv() => rig.driver.monitor_signal(signal),
            Some(news) = rig.inbox.news.recv() => rig.driver.heard(news),
        }
    }
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!((told(&rig, "ConfigInSync"), rig.driver.state.phase()), ((false, "MonitorLost"), Phase::Booting));
}

#[tokio::test]
async fn an_error_that_a_disk_has_given_the_guest_is_forgotten_when_it_boots_anew() {
    let mut rig = rig().await;
    let error = json!({"node-name": "drive-0-host-resource", "operation": "write", "action": "report",
        "nospace": false, "reason": "Input/output error"});
    let error = json!({"event": "BLOCK_IO_ERROR", "data": error}).to_string();
    rig.peer.say(&error).await;
    rig.until("running", |driver| driver.observed.disk_error.is_some()).await;
    assert_eq!(told(&rig, "StorageHealthy"), (false, "DiskError"));
    rig.peer.say(r#"{"event": "RESET", "data": {"guest": true}}"#).await;
    rig.until("running", |driver| driver.observed.disk_error.is_none()).await;
    assert_eq!(told(&rig, "StorageHealthy"), (true, "Healthy"));
}

#[tokio::test]
async fn what_the_guests_agent_has_told_goes_with_it() {
    let mut rig = rig().await;
    rig.driver.step(Event::AgentChannel(true));
    rig.driver.heard(News::Osinfo(json!({"id": "debian"}).as_object().unwrap().clone()));
    rig.driver.heard(News::Addresses(vec!["10.0.2.15".to_owned()]));
    assert_eq!((rig.driver.state.phase(), rig.driver.observed.addresses.len()), (Phase::Booted, 1));
    rig.driver.step(Event::AgentChannel(false));
    assert_eq!((rig.driver.observed.osinfo.clone(), rig.driver.observed.addresses.clone()), (None, Vec::new()));
}
