//! Simulations of the election rules with delayed and lost requests, and tests of candidates with a scripted API server
//! and tokio's paused clock.

use crate::k8s::leader::election::{Election, LeaseRequest, LeaseResponse, Timing};
use crate::k8s::leader::{Candidate, Leadership, LeadershipLost, REQUEST_TIMEOUT, identity};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use kube::{Api, Client};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const LEASE: &str = "operator";

/// The API server's copy of the Lease.
#[derive(Clone, Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
}

impl Server {
    fn carry_out(&mut self, request: &LeaseRequest) -> LeaseResponse {
        let present = self
            .lease
            .as_ref()
            .map(|lease| lease.metadata.resource_version.clone());
        match (request, present) {
            (LeaseRequest::Create(lease), None) => self.store(lease.clone()),
            (LeaseRequest::Replace(lease), Some(version))
                if version == lease.metadata.resource_version =>
            {
                self.store(lease.clone())
            }
            (LeaseRequest::Create(_) | LeaseRequest::Replace(_), Some(_)) => {
                LeaseResponse::Conflict
            }
            (_, None) => LeaseResponse::Absent,
            (_, Some(_)) => LeaseResponse::Lease(Box::new(self.lease.clone().unwrap())),
        }
    }

    fn store(&mut self, mut lease: Lease) -> LeaseResponse {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        LeaseResponse::Lease(Box::new(lease))
    }
}

/// The delivery of one request, in milliseconds.
#[derive(Clone, Debug)]
struct Delivery {
    to_server: u64,
    back: u64,
    /// The request does not arrive.
    lost: bool,
    /// The time for which the sender is suspended before it processes the response.
    stopped: u64,
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let delay = prop_oneof![6 => 0..200u64, 2 => 0..6_000u64, 1 => 0..40_000u64];
    let stopped = prop_oneof![20 => Just(0u64), 1 => 0..40_000u64];
    (delay.clone(), delay, prop::bool::weighted(0.15), stopped).prop_map(
        |(to_server, back, lost, stopped)| Delivery {
            to_server,
            back,
            lost,
            stopped,
        },
    )
}

enum SimulatedEvent {
    /// An operator starts an attempt.
    Attempt(usize),
    /// A request arrives at the server.
    Arrives(usize, LeaseRequest, Duration, Delivery),
    /// The sender processes the response, or its time-out expires.
    Response(usize, LeaseRequest, Duration, LeaseResponse),
}

/// Runs operators for two simulated minutes. Returns the number of steps with a leader.
fn simulate(deliveries: &[Vec<Delivery>]) -> usize {
    let timing = Timing::default();
    let mut server = Server::default();
    let mut operators: Vec<Election> = (0..deliveries.len())
        .map(|n| Election::new(LEASE, &n.to_string(), timing))
        .collect();
    let mut next_delivery = vec![0; operators.len()];
    // By time, then in the order of scheduling.
    let mut schedule: BTreeMap<(u64, usize), SimulatedEvent> = BTreeMap::new();
    let mut planned = 0;
    let mut plan = |schedule: &mut BTreeMap<_, _>, at: u64, what: SimulatedEvent| {
        planned += 1;
        schedule.insert((at, planned), what);
    };
    for n in 0..operators.len() {
        plan(&mut schedule, n as u64 * 700, SimulatedEvent::Attempt(n));
    }
    let mut leaders_seen = 0;
    while let Some(((at, _), event)) = schedule.pop_first() {
        if at > 120_000 {
            break;
        }
        let now = Duration::from_millis(at);
        match event {
            SimulatedEvent::Attempt(n) => {
                operators[n].start_attempt();
                // An operator that could not renew exits and starts again.
                if operators[n].leads_until().is_some() && !operators[n].leads(now) {
                    operators[n] = Election::new(LEASE, &format!("{n}-{at}"), timing);
                }
                send(
                    n,
                    &operators[n],
                    at,
                    deliveries,
                    &mut next_delivery,
                    &mut |at, what| plan(&mut schedule, at, what),
                );
            }
            SimulatedEvent::Arrives(n, request, began, delivery) => {
                let response = server.carry_out(&request);
                let expires_at = began.as_millis() as u64 + REQUEST_TIMEOUT.as_millis() as u64;
                let processed_at = at + delivery.back + delivery.stopped;
                if at + delivery.back <= expires_at {
                    plan(
                        &mut schedule,
                        processed_at,
                        SimulatedEvent::Response(n, request, began, response),
                    );
                }
            }
            SimulatedEvent::Response(n, request, began, response) => {
                let again = matches!(
                    (&request, &response),
                    (
                        LeaseRequest::Get,
                        LeaseResponse::Lease(_) | LeaseResponse::Absent
                    ) | (_, LeaseResponse::Conflict)
                );
                operators[n].handle_response(&request, began, now, response);
                if again {
                    send(
                        n,
                        &operators[n],
                        at,
                        deliveries,
                        &mut next_delivery,
                        &mut |at, what| plan(&mut schedule, at, what),
                    );
                } else {
                    plan(&mut schedule, at + 2_000, SimulatedEvent::Attempt(n));
                }
            }
        }
        let leaders: Vec<usize> = (0..operators.len())
            .filter(|n| operators[*n].leads(now))
            .collect();
        assert!(leaders.len() <= 1, "at {at} ms {leaders:?} lead");
        leaders_seen += leaders.len();
    }
    leaders_seen
}

fn send(
    n: usize,
    operator: &Election,
    at: u64,
    deliveries: &[Vec<Delivery>],
    next: &mut [usize],
    plan: &mut dyn FnMut(u64, SimulatedEvent),
) {
    let now = Duration::from_millis(at);
    let request = operator.request(now, Timestamp::UNIX_EPOCH + now);
    if request == LeaseRequest::Nothing {
        return plan(at + 2_000, SimulatedEvent::Attempt(n));
    }
    let delivery = deliveries[n][next[n] % deliveries[n].len()].clone();
    next[n] += 1;
    let limit = REQUEST_TIMEOUT.as_millis() as u64;
    let expires = delivery.lost || delivery.to_server + delivery.back > limit;
    if !delivery.lost {
        // A late request is carried out too, after its sender's time-out.
        plan(
            at + delivery.to_server,
            SimulatedEvent::Arrives(n, request.clone(), now, delivery),
        );
    }
    if expires {
        plan(
            at + limit,
            SimulatedEvent::Response(n, request, now, LeaseResponse::Failed),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn at_most_one_operator_leads_for_any_request_delivery(
        deliveries in prop::collection::vec(prop::collection::vec(delivery(), 1..30), 2..4)
    ) {
        simulate(&deliveries);
    }
}

#[test]
fn one_operator_leads_permanently_without_faults() {
    let good = Delivery {
        to_server: 1,
        back: 1,
        lost: false,
        stopped: 0,
    };
    assert!(simulate(&[vec![good.clone()], vec![good]]) > 100);
}

#[test]
fn the_rules_can_be_broken_by_a_leader_that_leads_too_long() {
    // Proves that the simulation detects two leaders.
    let mut server = Server::default();
    let long = Timing {
        renew_deadline: Duration::from_secs(20),
        ..Timing::default()
    };
    let mut a = Election::new(LEASE, "a", long);
    let mut b = Election::new(LEASE, "b", Timing::default());
    for operator in [&mut a, &mut b] {
        for _ in 0..2 {
            let request = operator.request(Duration::ZERO, Timestamp::UNIX_EPOCH);
            let response = server.carry_out(&request);
            operator.handle_response(&request, Duration::ZERO, Duration::ZERO, response);
        }
    }
    let later = Duration::from_secs(16);
    let request = b.request(later, Timestamp::UNIX_EPOCH);
    let response = server.carry_out(&request);
    b.handle_response(&request, later, later, response);
    assert!(a.leads(later) && b.leads(later));
}

/// The connection of one operator to the server. It can be broken.
#[derive(Clone, Default)]
struct Connection {
    server: Arc<Mutex<Server>>,
    is_broken: Arc<Mutex<bool>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Connection {
    /// Another connection to the same server.
    fn to_same_server(&self) -> Self {
        Self {
            server: self.server.clone(),
            ..Self::default()
        }
    }

    async fn response(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        if *self.is_broken.lock().unwrap() {
            // No response, and no error.
            std::future::pending::<()>().await;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let name = parts
            .uri
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        self.requests
            .lock()
            .unwrap()
            .push(format!("{} {name}", parts.method));
        let request = match parts.method {
            Method::POST => LeaseRequest::Create(serde_json::from_slice(&body)?),
            Method::PUT => LeaseRequest::Replace(serde_json::from_slice(&body)?),
            _ => LeaseRequest::Get,
        };
        let code = match self.server.lock().unwrap().carry_out(&request) {
            LeaseResponse::Lease(lease) => {
                return Ok(Response::new(Body::from(serde_json::to_vec(&lease)?)));
            }
            LeaseResponse::Absent => 404,
            _ => 409,
        };
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "", "reason": "", "code": code});
        Ok(Response::builder()
            .status(code)
            .body(Body::from(serde_json::to_vec(&status)?))?)
    }

    fn holder(&self) -> String {
        let server = self.server.lock().unwrap();
        server
            .lease
            .as_ref()
            .and_then(|lease| lease.spec.as_ref()?.holder_identity.clone())
            .unwrap_or_default()
    }
}

struct Operator {
    leadership: Leadership,
    connection: Connection,
    end: tokio::sync::oneshot::Sender<()>,
    task: JoinHandle<Option<LeadershipLost>>,
}

fn operator(identity: &str, connection: Connection) -> Operator {
    let leadership = Leadership::waiting();
    let client = {
        let connection = connection.clone();
        Client::new(
            tower::service_fn(move |request| connection.clone().response(request)),
            "ns",
        )
    };
    let mut candidate = Candidate::new(
        Api::namespaced(client, "ns"),
        LEASE,
        identity,
        leadership.clone(),
    );
    let (end, ended) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        tokio::select! {
            lost = candidate.run() => return Some(lost),
            _ = ended => {}
        }
        candidate.release().await;
        None
    });
    Operator {
        leadership,
        connection,
        end,
        task,
    }
}

async fn leads_within(operator: &Operator, seconds: u64) -> Duration {
    let began = Instant::now();
    timeout(Duration::from_secs(seconds), operator.leadership.elected())
        .await
        .unwrap();
    assert!(operator.leadership.leads());
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_at_once_and_the_second_soon_after_a_clean_end() {
    let a = operator("a", Connection::default());
    assert!(leads_within(&a, 1).await < Duration::from_secs(1));
    let b = operator("b", a.connection.to_same_server());
    sleep(Duration::from_secs(60)).await;
    assert!(a.leadership.leads() && !b.leadership.leads());
    a.end.send(()).unwrap();
    assert_eq!(a.task.await.unwrap(), None);
    assert!(!a.leadership.leads());
    assert!(leads_within(&b, 5).await < Duration::from_secs(5));
    assert_eq!(b.connection.holder(), "b");
    let transitions = b
        .connection
        .server
        .lock()
        .unwrap()
        .lease
        .clone()
        .unwrap()
        .spec
        .unwrap()
        .lease_transitions;
    assert_eq!(transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_replaced_when_its_lease_has_run_out() {
    let a = operator("a", Connection::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.connection.to_same_server());
    sleep(Duration::from_secs(7)).await;
    a.task.abort();
    let took = leads_within(&b, 20).await;
    assert!(
        (Duration::from_secs(10)..Duration::from_secs(20)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn disconnected_leader_steps_down_before_another_leads() {
    let a = operator("a", Connection::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.connection.to_same_server());
    sleep(Duration::from_secs(5)).await;
    *a.connection.is_broken.lock().unwrap() = true;
    while !b.leadership.leads() {
        assert!(!(a.leadership.leads() && b.leadership.leads()));
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!a.leadership.leads());
    assert_eq!(
        a.task.await.unwrap(),
        Some(LeadershipLost::NotRenewed(Duration::from_secs(10)))
    );
}

#[tokio::test(start_paused = true)]
async fn short_connection_loss_retains_the_leadership() {
    let a = operator("a", Connection::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.connection.to_same_server());
    for _ in 0..3 {
        *a.connection.is_broken.lock().unwrap() = true;
        sleep(Duration::from_secs(5)).await;
        *a.connection.is_broken.lock().unwrap() = false;
        sleep(Duration::from_secs(20)).await;
        assert!(a.leadership.leads() && !b.leadership.leads());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sees_another_in_its_lease_ends() {
    let a = operator("a", Connection::default());
    leads_within(&a, 1).await;
    let mut other = a.connection.server.lock().unwrap().lease.clone().unwrap();
    other.spec.as_mut().unwrap().holder_identity = Some("b".to_owned());
    a.connection.server.lock().unwrap().store(other);
    assert_eq!(
        a.task.await.unwrap(),
        Some(LeadershipLost::TakenOver("b".to_owned()))
    );
    assert!(!a.leadership.leads());
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_recreated_by_the_leader() {
    let a = operator("a", Connection::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.connection.to_same_server());
    for n in 0..5 {
        sleep(Duration::from_millis(4_000 + n * 300)).await;
        a.connection.server.lock().unwrap().lease = None;
    }
    sleep(Duration::from_secs(5)).await;
    assert!(a.leadership.leads() && !b.leadership.leads());
    assert_eq!(a.connection.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn the_next_container_of_a_pod_goes_on_at_once() {
    let of_pod = identity(Some("operator-1"), Some("uid"), "x");
    assert_ne!(
        identity(Some("host"), None, "x"),
        identity(Some("host"), None, "y")
    );
    let a = operator(&of_pod, Connection::default());
    leads_within(&a, 1).await;
    a.task.abort();
    let again = operator(&of_pod, a.connection.to_same_server());
    assert!(leads_within(&again, 1).await < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_every_two_seconds_and_one_that_waits_reads_as_often() {
    let a = operator("a", Connection::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.connection.to_same_server());
    sleep(Duration::from_secs(1)).await;
    for operator in [&a, &b] {
        operator.connection.requests.lock().unwrap().clear();
    }
    sleep(Duration::from_secs(20)).await;
    let requests = |operator: &Operator| operator.connection.requests.lock().unwrap().clone();
    assert_eq!(requests(&a), vec!["PUT operator"; 10]);
    assert_eq!(requests(&b), vec!["GET operator"; 10]);
}
