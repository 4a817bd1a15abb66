//! Operators in a world of their own: first the rules alone, with every request delayed, lost or cut as it comes; then
//! the whole with a scripted API server and tokio's clock.

use crate::k8s::leader::election::{Answer, Ask, Election, Timing};
use crate::k8s::leader::{ATTEMPT, Candidate, Leadership, Lost, identity};
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

const LEASE: &str = "vm-operator";

/// The Lease as the API server keeps it.
#[derive(Clone, Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
}

impl Server {
    fn carry_out(&mut self, ask: &Ask) -> Answer {
        let present = self
            .lease
            .as_ref()
            .map(|lease| lease.metadata.resource_version.clone());
        match (ask, present) {
            (Ask::Create(lease), None) => self.store(lease.clone()),
            (Ask::Replace(lease), Some(version)) if version == lease.metadata.resource_version => {
                self.store(lease.clone())
            }
            (Ask::Create(_) | Ask::Replace(_), Some(_)) => Answer::Conflict,
            (_, None) => Answer::Absent,
            (_, Some(_)) => Answer::Lease(Box::new(self.lease.clone().unwrap())),
        }
    }

    fn store(&mut self, mut lease: Lease) -> Answer {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        Answer::Lease(Box::new(lease))
    }
}

/// What befalls one request, in milliseconds.
#[derive(Clone, Debug)]
struct Fate {
    to_server: u64,
    back: u64,
    /// It does not arrive.
    lost: bool,
    /// Its sender is stopped for that long before it looks at the answer.
    stopped: u64,
}

fn fate() -> impl Strategy<Value = Fate> {
    let delay = prop_oneof![6 => 0..200u64, 2 => 0..6_000u64, 1 => 0..40_000u64];
    let stopped = prop_oneof![20 => Just(0u64), 1 => 0..40_000u64];
    (delay.clone(), delay, prop::bool::weighted(0.15), stopped).prop_map(
        |(to_server, back, lost, stopped)| Fate {
            to_server,
            back,
            lost,
            stopped,
        },
    )
}

enum Happening {
    /// An operator takes its turn.
    Turn(usize),
    /// A request reaches the server.
    Arrives(usize, Ask, Duration, Fate),
    /// The answer is looked at, or the sender gives up.
    Answered(usize, Ask, Duration, Answer),
}

/// Lets operators stand for election for two minutes. Gives how often one led.
fn simulate(fates: &[Vec<Fate>]) -> usize {
    let timing = Timing::default();
    let mut server = Server::default();
    let mut operators: Vec<Election> = (0..fates.len())
        .map(|n| Election::new(LEASE, &n.to_string(), timing))
        .collect();
    let mut next_fate = vec![0; operators.len()];
    // By time, then in order of planning.
    let mut agenda: BTreeMap<(u64, usize), Happening> = BTreeMap::new();
    let mut planned = 0;
    let mut plan = |agenda: &mut BTreeMap<_, _>, at: u64, what: Happening| {
        planned += 1;
        agenda.insert((at, planned), what);
    };
    for n in 0..operators.len() {
        plan(&mut agenda, n as u64 * 700, Happening::Turn(n));
    }
    let mut led = 0;
    while let Some(((at, _), happening)) = agenda.pop_first() {
        if at > 120_000 {
            break;
        }
        let now = Duration::from_millis(at);
        match happening {
            Happening::Turn(n) => {
                operators[n].next_turn();
                // Who could not renew ends, and begins anew.
                if operators[n].leads_until().is_some() && !operators[n].leads(now) {
                    operators[n] = Election::new(LEASE, &format!("{n}-{at}"), timing);
                }
                send(
                    n,
                    &operators[n],
                    at,
                    fates,
                    &mut next_fate,
                    &mut |at, what| plan(&mut agenda, at, what),
                );
            }
            Happening::Arrives(n, ask, began, fate) => {
                let answer = server.carry_out(&ask);
                let given_up = began.as_millis() as u64 + ATTEMPT.as_millis() as u64;
                let looked_at = at + fate.back + fate.stopped;
                if at + fate.back <= given_up {
                    plan(
                        &mut agenda,
                        looked_at,
                        Happening::Answered(n, ask, began, answer),
                    );
                }
            }
            Happening::Answered(n, ask, began, answer) => {
                let again = matches!(
                    (&ask, &answer),
                    (Ask::Get, Answer::Lease(_) | Answer::Absent) | (_, Answer::Conflict)
                );
                operators[n].answered(&ask, began, now, answer);
                if again {
                    send(
                        n,
                        &operators[n],
                        at,
                        fates,
                        &mut next_fate,
                        &mut |at, what| plan(&mut agenda, at, what),
                    );
                } else {
                    plan(&mut agenda, at + 2_000, Happening::Turn(n));
                }
            }
        }
        let leaders: Vec<usize> = (0..operators.len())
            .filter(|n| operators[*n].leads(now))
            .collect();
        assert!(leaders.len() <= 1, "at {at} ms {leaders:?} lead");
        led += leaders.len();
    }
    led
}

fn send(
    n: usize,
    operator: &Election,
    at: u64,
    fates: &[Vec<Fate>],
    next: &mut [usize],
    plan: &mut dyn FnMut(u64, Happening),
) {
    let now = Duration::from_millis(at);
    let ask = operator.ask(now, Timestamp::UNIX_EPOCH + now);
    if ask == Ask::Nothing {
        return plan(at + 2_000, Happening::Turn(n));
    }
    let fate = fates[n][next[n] % fates[n].len()].clone();
    next[n] += 1;
    let limit = ATTEMPT.as_millis() as u64;
    let gives_up = fate.lost || fate.to_server + fate.back > limit;
    if !fate.lost {
        // A late one is carried out too, though nobody waits for it.
        plan(
            at + fate.to_server,
            Happening::Arrives(n, ask.clone(), now, fate),
        );
    }
    if gives_up {
        plan(at + limit, Happening::Answered(n, ask, now, Answer::Failed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn never_do_two_lead_whatever_becomes_of_their_requests(
        fates in prop::collection::vec(prop::collection::vec(fate(), 1..30), 2..4)
    ) {
        simulate(&fates);
    }
}

#[test]
fn where_nothing_goes_wrong_one_leads_all_the_time() {
    let good = Fate {
        to_server: 1,
        back: 1,
        lost: false,
        stopped: 0,
    };
    assert!(simulate(&[vec![good.clone()], vec![good]]) > 100);
}

#[test]
fn the_rules_can_be_broken_by_a_leader_that_leads_too_long() {
    // Shows that the simulation sees two leaders where there are two.
    let mut server = Server::default();
    let long = Timing {
        lead: Duration::from_secs(20),
        ..Timing::default()
    };
    let mut a = Election::new(LEASE, "a", long);
    let mut b = Election::new(LEASE, "b", Timing::default());
    for operator in [&mut a, &mut b] {
        for _ in 0..2 {
            let ask = operator.ask(Duration::ZERO, Timestamp::UNIX_EPOCH);
            let answer = server.carry_out(&ask);
            operator.answered(&ask, Duration::ZERO, Duration::ZERO, answer);
        }
    }
    let later = Duration::from_secs(16);
    let ask = b.ask(later, Timestamp::UNIX_EPOCH);
    let answer = server.carry_out(&ask);
    b.answered(&ask, later, later, answer);
    assert!(a.leads(later) && b.leads(later));
}

/// The server behind a client, with a line that can be cut.
#[derive(Clone, Default)]
struct Line {
    server: Arc<Mutex<Server>>,
    cut: Arc<Mutex<bool>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Line {
    /// Another line to the same server.
    fn beside(&self) -> Self {
        Self {
            server: self.server.clone(),
            ..Self::default()
        }
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        if *self.cut.lock().unwrap() {
            // No answer, no end.
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
        let ask = match parts.method {
            Method::POST => Ask::Create(serde_json::from_slice(&body)?),
            Method::PUT => Ask::Replace(serde_json::from_slice(&body)?),
            _ => Ask::Get,
        };
        let code = match self.server.lock().unwrap().carry_out(&ask) {
            Answer::Lease(lease) => {
                return Ok(Response::new(Body::from(serde_json::to_vec(&lease)?)));
            }
            Answer::Absent => 404,
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
    line: Line,
    end: tokio::sync::oneshot::Sender<()>,
    task: JoinHandle<Option<Lost>>,
}

fn operator(identity: &str, line: Line) -> Operator {
    let leadership = Leadership::waiting();
    let client = {
        let line = line.clone();
        Client::new(
            tower::service_fn(move |request| line.clone().answer(request)),
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
            lost = candidate.stand() => return Some(lost),
            _ = ended => {}
        }
        candidate.release().await;
        None
    });
    Operator {
        leadership,
        line,
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
    let a = operator("a", Line::default());
    assert!(leads_within(&a, 1).await < Duration::from_secs(1));
    let b = operator("b", a.line.beside());
    sleep(Duration::from_secs(60)).await;
    assert!(a.leadership.leads() && !b.leadership.leads());
    a.end.send(()).unwrap();
    assert_eq!(a.task.await.unwrap(), None);
    assert!(!a.leadership.leads());
    assert!(leads_within(&b, 5).await < Duration::from_secs(5));
    assert_eq!(b.line.holder(), "b");
    let transitions = b
        .line
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
    let a = operator("a", Line::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.line.beside());
    sleep(Duration::from_secs(7)).await;
    a.task.abort();
    let took = leads_within(&b, 20).await;
    assert!(
        (Duration::from_secs(10)..Duration::from_secs(20)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_line_is_cut_leads_no_more_before_another_does() {
    let a = operator("a", Line::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.line.beside());
    sleep(Duration::from_secs(5)).await;
    *a.line.cut.lock().unwrap() = true;
    while !b.leadership.leads() {
        assert!(!(a.leadership.leads() && b.leadership.leads()));
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!a.leadership.leads());
    assert_eq!(
        a.task.await.unwrap(),
        Some(Lost::NotRenewed(Duration::from_secs(10)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_short_cut_costs_nothing() {
    let a = operator("a", Line::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.line.beside());
    for _ in 0..3 {
        *a.line.cut.lock().unwrap() = true;
        sleep(Duration::from_secs(5)).await;
        *a.line.cut.lock().unwrap() = false;
        sleep(Duration::from_secs(20)).await;
        assert!(a.leadership.leads() && !b.leadership.leads());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sees_another_in_its_lease_ends() {
    let a = operator("a", Line::default());
    leads_within(&a, 1).await;
    let mut other = a.line.server.lock().unwrap().lease.clone().unwrap();
    other.spec.as_mut().unwrap().holder_identity = Some("b".to_owned());
    a.line.server.lock().unwrap().store(other);
    assert_eq!(a.task.await.unwrap(), Some(Lost::TakenOver("b".to_owned())));
    assert!(!a.leadership.leads());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_anew_by_who_leads() {
    let a = operator("a", Line::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.line.beside());
    for n in 0..5 {
        sleep(Duration::from_millis(4_000 + n * 300)).await;
        a.line.server.lock().unwrap().lease = None;
    }
    sleep(Duration::from_secs(5)).await;
    assert!(a.leadership.leads() && !b.leadership.leads());
    assert_eq!(a.line.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn the_next_container_of_a_pod_goes_on_at_once() {
    let of_pod = identity(Some("vm-operator-1"), Some("uid"), "x");
    assert_ne!(
        identity(Some("host"), None, "x"),
        identity(Some("host"), None, "y")
    );
    let a = operator(&of_pod, Line::default());
    leads_within(&a, 1).await;
    a.task.abort();
    let again = operator(&of_pod, a.line.beside());
    assert!(leads_within(&again, 1).await < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_every_two_seconds_and_one_that_waits_reads_as_often() {
    let a = operator("a", Line::default());
    leads_within(&a, 1).await;
    let b = operator("b", a.line.beside());
    sleep(Duration::from_secs(1)).await;
    for operator in [&a, &b] {
        operator.line.requests.lock().unwrap().clear();
    }
    sleep(Duration::from_secs(20)).await;
    let requests = |operator: &Operator| operator.line.requests.lock().unwrap().clone();
    assert_eq!(requests(&a), vec!["PUT vm-operator"; 10]);
    assert_eq!(requests(&b), vec!["GET vm-operator"; 10]);
}
