//! (client) Calls to providers outside the cluster, beside the reconciles. Each provider has its own queue and pause. All waiting calls of `aws` are
//! made together, so that their number does not grow with that of the instances.
//!
//! ```text
//! reconcile ──► Job ──► configuration ──► pause? ──► still decided? ──► calls ──► result ──► reconcile
//! ```

use crate::api::peerpod::{AwsId, PeerPodReason, names};
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::aws::config::AwsConfig;
use crate::controllers::peerpod::aws::{Ec2, Found, METADATA_HOSTS, ROUND_MAX, TERMINATE_MAX};
use crate::controllers::peerpod::decide::{
    Answer, Decision, InstanceId, InstanceState, Read, decide,
};
use crate::controllers::peerpod::facts::{Owner, Seen};
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::gate::Gate;
use crate::controllers::peerpod::libvirt::config::LibvirtConfig;
use crate::controllers::peerpod::libvirt::{Host, INSTANCES_MAX, Session};
use crate::controllers::peerpod::{PeerPodController, PeerPodState};
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

/// The first and the longest pause after a failure of all calls to a provider.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// The longest pause that a provider can demand by `Retry-After`. A wrong header must not stop deletions for a day.
const DEMANDED_PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

/// Delay before the configuration is read again during a pause. A changed one ends the pause.
const CONFIG_RECHECK: Duration = Duration::from_secs(2);

/// Maximum number of instances in one round whose addresses and interfaces are removed. The other ones wait for the next round, so that they do not
/// delay terminations.
const RELEASES_MAX: usize = 10;

/// A provider outside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Instances of EC2.
    Aws,
    /// Domains of libvirt.
    Libvirt,
}

impl Provider {
    fn of(id: &InstanceId) -> Option<Self> {
        match id {
            InstanceId::VirtualMachine(_) => None,
            InstanceId::Aws(_) => Some(Self::Aws),
            InstanceId::Libvirt(_) => Some(Self::Libvirt),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Aws => names::PROVIDER_AWS,
            Self::Libvirt => names::PROVIDER_LIBVIRT,
        }
    }

    /// Maximum number of instances in one round of calls.
    fn round_max(self) -> usize {
        match self {
            Self::Aws => ROUND_MAX,
            Self::Libvirt => INSTANCES_MAX,
        }
    }
}

/// The configuration of calls to a provider.
#[derive(Clone, PartialEq, Eq)]
enum ProviderConfig {
    Aws(AwsConfig),
    Libvirt(LibvirtConfig),
}

/// A connection to a provider.
enum Connection {
    Aws(Box<Ec2>),
    Libvirt(Box<Host>),
}

/// A call that a decision needs.
pub struct Job {
    /// The `PeerPod`.
    pub key: ObjectKey,
    /// UID of the `PeerPod`.
    pub uid: String,
    /// Its pod.
    pub owner: Owner,
    /// Whether the `PeerPod` is being deleted.
    pub is_ending: bool,
    /// The note about the instance.
    pub seen: Option<Seen>,
    /// What was read before the decision.
    pub read: Read,
    /// The decision.
    pub decision: Decision,
}

impl Job {
    fn instance(&self) -> Option<&InstanceId> {
        match &self.decision {
            Decision::Describe(id) | Decision::Delete(id) => Some(id),
            _ => None,
        }
    }

    fn id(&self) -> Option<&AwsId> {
        match self.instance() {
            Some(InstanceId::Aws(id)) => Some(id),
            _ => None,
        }
    }

    fn is_deletion(&self) -> bool {
        matches!(self.decision, Decision::Delete(_))
    }
}

/// The calls that wait, of each provider.
#[derive(Default)]
pub struct Queues {
    aws: Calls,
    libvirt: Calls,
}

impl Queues {
    /// Adds a call.
    pub fn push(&self, job: Job) {
        if let Some(provider) = job.instance().and_then(Provider::of) {
            self.of(provider).push(job);
        }
    }

    /// Waits until no pause of the provider `aws` is left.
    pub async fn aws_unpaused(&self) {
        self.aws.unpaused().await;
    }

    fn of(&self, provider: Provider) -> &Calls {
        match provider {
            Provider::Aws => &self.aws,
            Provider::Libvirt => &self.libvirt,
        }
    }
}

/// The calls to one provider that wait.
#[derive(Default)]
struct Calls {
    jobs: Mutex<VecDeque<Job>>,
    added: Notify,
    /// The end of the pause after a failure of all calls.
    paused_until: Mutex<Option<Instant>>,
}

impl Calls {
    fn push(&self, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.push_back(job);
        self.added.notify_one();
    }

    fn set_pause(&self, until: Option<Instant>) {
        let paused_until = self.paused_until.lock();
        *paused_until.unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Waits until no pause after a failure of all calls is left.
    async fn unpaused(&self) {
        loop {
            let until = *self
                .paused_until
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => sleep_until(until).await,
                None => return,
            }
        }
    }

    async fn waiting(&self) {
        loop {
            let added = self.added.notified();
            let jobs = self
                .jobs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len();
            if jobs > 0 {
                return;
            }
            added.await;
        }
    }

    /// Takes up to `max` calls of one round: deletions first, then descriptions of ended pods' instances, the oldest of each.
    fn take(&self, max: usize) -> Vec<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_deletion = jobs.iter().any(Job::is_deletion);
        let mut all: Vec<Job> = std::mem::take(&mut *jobs).into();
        // The sort is stable.
        all.sort_by_key(|job| (!job.is_deletion(), !job.is_ending));
        let same = all
            .iter()
            .take_while(|job| job.is_deletion() == is_deletion);
        let count = same.count().min(max);
        jobs.extend(all.split_off(count));
        all
    }
}

/// The pause of a provider after a failure of all calls.
#[derive(Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
    /// The configuration with which the calls have failed.
    config: Option<Result<ProviderConfig, Failure>>,
}

impl Pause {
    /// The rest of the pause. A changed configuration ends it.
    fn left(&self, now: Instant, config: &Result<ProviderConfig, Failure>) -> Option<Duration> {
        let left = self.until?.checked_duration_since(now)?;
        let is_same = self.config.as_ref() == Some(config);
        (is_same && !left.is_zero()).then_some(left)
    }

    fn begin(
        &mut self,
        now: Instant,
        config: &Result<ProviderConfig, Failure>,
        demanded: Option<Duration>,
    ) {
        let (first, longest) = PAUSES;
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = match demanded {
            Some(demanded) => demanded.clamp(first, DEMANDED_PAUSE_MAX),
            None => first.saturating_mul(factor).min(longest),
        };
        self.failures = self.failures.saturating_add(1);
        (self.until, self.config) = (Some(now + pause), Some(config.clone()));
    }
}

impl PeerPodController {
    /// Makes the calls that reconciles need, as long as the process runs. A provider that does not answer delays no other one.
    pub async fn call_providers(self: Arc<Self>) {
        self.cluster.leadership.elected().await;
        futures::join!(
            self.call_provider(Provider::Aws),
            self.call_provider(Provider::Libvirt)
        );
    }

    async fn call_provider(&self, provider: Provider) {
        let calls = self.calls.of(provider);
        let (mut pause, mut connection) = (Pause::default(), None);
        loop {
            calls.waiting().await;
            let Some((adaptor, ssh, cluster_uid)) = self.read_for_calls(calls, provider).await
            else {
                sleep(CONFIG_RECHECK).await;
                continue;
            };
            let config = self.config_of(provider, &adaptor, &ssh);
            if let Some(left) = pause.left(Instant::now(), &config) {
                sleep(left.min(CONFIG_RECHECK)).await;
                continue;
            }
            let jobs: Vec<Job> = calls
                .take(provider.round_max())
                .into_iter()
                .filter(|job| {
                    let is_decided = self.is_decided(job);
                    if !is_decided {
                        self.states.with(&job.key, |state| state.is_asked = false);
                        self.requeue(job);
                    }
                    is_decided
                })
                .collect();
            if jobs.is_empty() {
                continue;
            }
            let results = match self.connected(&config, &mut connection) {
                Ok(Connection::Aws(ec2)) => self.round(ec2, &jobs, &adaptor, cluster_uid).await,
                Ok(Connection::Libvirt(host)) => self.round_of_host(host, &jobs, &adaptor).await,
                Err(failure) => Err(failure),
            };
            let of_provider = match &results {
                Ok(results) => {
                    let mut failures = results.iter().filter_map(|it| it.as_ref().err());
                    failures.find(|failure| failure.is_of_provider())
                }
                // A call that all jobs need has failed.
                Err(failure) => Some(failure),
            };
            self.metrics.set_up(provider.name(), of_provider.is_none());
            match of_provider {
                Some(failure) => {
                    tracing::warn!(
                        provider = provider.name(),
                        "calls are paused: {}",
                        failure.message
                    );
                    pause.begin(Instant::now(), &config, failure.retry_after);
                }
                None => pause = Pause::default(),
            }
            calls.set_pause(pause.until);
            let each = |failure: Failure| vec![Err(failure); jobs.len()];
            for (job, result) in jobs.iter().zip(results.unwrap_or_else(each)) {
                self.deliver(provider, job, result);
            }
        }
    }

    /// The configuration of the adaptor, and the UID of the cluster. Without them, the calls wait.
    async fn read_for_calls(
        &self,
        calls: &Calls,
        provider: Provider,
    ) -> Option<(AdaptorConfig, BTreeMap<String, String>, &str)> {
        let read = async {
            let cluster_uid = self.cluster_uid.get_or_try_init(|| self.read_cluster_uid());
            let ssh = match provider {
                Provider::Aws => BTreeMap::new(),
                Provider::Libvirt => self.read_secret(&self.settings.ssh_secret).await?,
            };
            Ok::<_, Error>((self.read_adaptor().await?, ssh, cluster_uid.await?.as_str()))
        };
        match read.await {
            Ok(read) => Some(read),
            Err(error) => {
                tracing::warn!(%error, "cannot read the configuration of the cloud-api-adaptor, so no call to a provider is made");
                if error.code() == Some(403) {
                    let message = format!("{error}; give the controller this permission");
                    let failure = Failure::new(PeerPodReason::PermissionDenied, message);
                    for job in calls.take(provider.round_max()) {
                        self.deliver(provider, &job, Err(failure.clone()));
                    }
                }
                None
            }
        }
    }

    fn config_of(
        &self,
        provider: Provider,
        adaptor: &AdaptorConfig,
        ssh: &BTreeMap<String, String>,
    ) -> Result<ProviderConfig, Failure> {
        match provider {
            Provider::Aws => AwsConfig::of(adaptor, &self.environment).map(ProviderConfig::Aws),
            Provider::Libvirt => LibvirtConfig::of(adaptor, (&self.settings.ssh_secret, ssh))
                .map(ProviderConfig::Libvirt),
        }
    }

    /// The connection with that configuration.
    fn connected<'a>(
        &self,
        config: &Result<ProviderConfig, Failure>,
        connection: &'a mut Option<(ProviderConfig, Connection)>,
    ) -> Result<&'a mut Connection, Failure> {
        let config = config.as_ref().map_err(Clone::clone)?;
        let known = match connection.take() {
            Some(known) if known.0 == *config => known,
            before => {
                if before.is_some() {
                    self.reset_backoff();
                }
                (config.clone(), self.connect(config)?)
            }
        };
        Ok(&mut connection.insert(known).1)
    }

    /// A connection that has sent nothing yet.
    fn connect(&self, config: &ProviderConfig) -> Result<Connection, Failure> {
        match config {
            ProviderConfig::Aws(config) => Ok(Connection::Aws(Box::new(self.connect_aws(config)?))),
            ProviderConfig::Libvirt(config) => {
                let (leadership, open) = (self.cluster.leadership.clone(), &self.open_socket);
                let host = Host::new(config.clone(), leadership, open.clone());
                Ok(Connection::Libvirt(Box::new(host)))
            }
        }
    }

    /// A connection to EC2 that has sent nothing yet.
    pub(super) fn connect_aws(&self, config: &AwsConfig) -> Result<Ec2, Failure> {
        let https = (self.https)(self.settings.ca_bundle.as_bytes());
        let https = https.map_err(|error| {
            let message = format!("the setting caBundle cannot be used: {error}");
            Failure::new(PeerPodReason::ConfigInvalid, message)
        })?;
        let leadership = self.cluster.leadership.clone();
        let gate = Gate::new(https.with_plain_hosts(&METADATA_HOSTS), leadership);
        Ok(Ec2::new(config, &self.settings.providers.aws, gate))
    }

    /// Begins the backoff of failed calls again, after a change of the configuration.
    fn reset_backoff(&self) {
        for peerpod in self.peerpods.reader().state() {
            let key = ObjectKey::of(&*peerpod);
            let failures = self
                .states
                .with(&key, |state| std::mem::take(&mut state.failures));
            if failures.is_some_and(|failures| failures > 0)
                && let Some(changes) = self.changes.get()
            {
                changes.object(key);
            }
        }
    }

    /// Whether the decision is still the same. The call may have waited for hours, and a person or the adaptor may have decided otherwise.
    fn is_decided(&self, job: &Job) -> bool {
        let peerpod = self.peerpods.get(&job.key);
        let peerpod = peerpod.filter(|it| it.metadata.uid.as_ref() == Some(&job.uid));
        peerpod.is_some_and(|peerpod| {
            let facts = self.facts(&peerpod);
            decide(&facts, &job.read, &self.settings.virtual_machine.namespaces) == job.decision
        })
    }

    /// Retains the deletions that are decided at this moment, by the objects and by the configuration of the adaptor.
    async fn retain_decided(&self, batch: &mut Vec<Entry<'_>>) {
        let is_developer_mode = match self.read_adaptor().await {
            Ok(adaptor) => Ok(adaptor.is_developer_mode()),
            Err(error) => {
                let message = format!(
                    "{error}; nothing is deleted without the configuration of the cloud-api-adaptor, and the controller tries again"
                );
                Err(Failure::new(PeerPodReason::DeletionFailed, message))
            }
        };
        batch.retain_mut(|(job, result)| {
            match (&is_developer_mode, &mut **result) {
                (Ok(is_on), Ok(answer)) => answer.is_developer_mode = *is_on,
                (Err(failure), result) => *result = Err(failure.clone()),
                (Ok(_), Err(_)) => {}
            }
            is_developer_mode == Ok(false) && self.is_decided(job)
        });
    }

    /// Describes the instances of all jobs. Then deletes those that were decided to be deleted, and are still in the state of the decision.
    /// Terminations come first, because other calls can take minutes.
    ///
    /// # Errors
    /// A call that all jobs need fails.
    async fn round(
        &self,
        ec2: &mut Ec2,
        jobs: &[Job],
        adaptor: &AdaptorConfig,
        cluster_uid: &str,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let place = ec2.begin_round().await?;
        let ids: Vec<&AwsId> = jobs.iter().filter_map(Job::id).collect();
        let found = ec2.find(&ids).await?;
        let nothing = Found::default();
        let of = |job: &Job| job.id().and_then(|id| found.get(id)).unwrap_or(&nothing);
        let described = |job: &Job| Answer {
            is_developer_mode: adaptor.is_developer_mode(),
            ..of(job).answer(&job.owner, cluster_uid, &place)
        };
        let mut results: Vec<_> = jobs.iter().map(|job| Ok(described(job))).collect();

        let (mut terminations, mut releases, mut confirmations) =
            (Vec::new(), Vec::new(), Vec::new());
        for (job, result) in jobs.iter().zip(&mut results) {
            match next_call(job, result) {
                Some(NextCall::Terminate) => terminations.push((job, result)),
                Some(NextCall::Release) if releases.len() < RELEASES_MAX => {
                    releases.push((job, result));
                }
                Some(NextCall::ConfirmAbsence) => confirmations.push((job, result)),
                Some(NextCall::Release) | None => {}
            }
        }
        // A failure of all calls ends the round.
        let mut away: Option<Failure> = None;
        while !terminations.is_empty() && away.is_none() {
            let size = terminations.len().min(TERMINATE_MAX);
            let mut batch: Vec<Entry> = terminations.drain(..size).collect();
            self.retain_decided(&mut batch).await;
            let ids: Vec<AwsId> = batch.iter().filter_map(|it| it.0.id().cloned()).collect();
            let failures = ec2.terminate(&ids).await;
            for (job, result) in batch {
                match (job.id().and_then(|id| failures.get(id)), &mut *result) {
                    (Some(failure), result) => *result = Err(failure.clone()),
                    (None, Ok(answer)) => {
                        answer.state = InstanceState::Ours { is_ending: true };
                        answer.has_deleted = true;
                    }
                    (None, Err(_)) => {}
                }
            }
            away = failures.into_values().find(Failure::is_of_provider);
        }
        let mut releases = releases.into_iter();
        while away.is_none()
            && let Some(entry) = releases.next()
        {
            let mut batch = vec![entry];
            self.retain_decided(&mut batch).await;
            for (job, result) in batch {
                match (ec2.release(of(job)).await, &mut *result) {
                    (Ok(()), Ok(answer)) => {
                        answer.state = InstanceState::Gone { has_remains: false };
                    }
                    (Ok(()), Err(_)) => {}
                    (Err(failure), result) => {
                        away = Some(failure.clone()).filter(Failure::is_of_provider);
                        *result = Err(failure);
                    }
                }
            }
        }
        let mut confirmations = confirmations.into_iter();
        while away.is_none()
            && let Some((job, result)) = confirmations.next()
        {
            let confirmed = match job.id() {
                Some(id) => ec2.confirm_absence(id).await,
                None => Ok(()),
            };
            if let Err(failure) = confirmed {
                away = Some(failure.clone()).filter(Failure::is_of_provider);
                *result = Err(failure);
            }
        }
        if let Some(failure) = away {
            for (_, result) in terminations
                .into_iter()
                .chain(releases)
                .chain(confirmations)
            {
                *result = Err(failure.clone());
            }
        }
        Ok(results)
    }

    /// Describes the domain of each job. Deletes it if that was decided, and it is still in the state of the decision.
    ///
    /// # Errors
    /// There is no connection.
    async fn round_of_host(
        &self,
        host: &mut Host,
        jobs: &[Job],
        adaptor: &AdaptorConfig,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut session = host.begin_round().await?;
        let (mut results, mut away) = (Vec::new(), None::<Failure>);
        for job in jobs {
            let result = match &away {
                Some(failure) => Err(failure.clone()),
                None => self.call_host(&mut session, job, adaptor).await,
            };
            let failure = result.as_ref().err();
            away = away.or_else(|| failure.filter(|it| it.is_of_provider()).cloned());
            results.push(result);
        }
        Ok(results)
    }

    async fn call_host(
        &self,
        session: &mut Session<'_>,
        job: &Job,
        adaptor: &AdaptorConfig,
    ) -> Result<Answer, Failure> {
        let Some(InstanceId::Libvirt(id)) = job.instance() else {
            return Ok(Answer::default());
        };
        let found = session.find(*id, &job.owner, job.seen.as_ref()).await?;
        let mut result = Ok(Answer {
            is_developer_mode: adaptor.is_developer_mode(),
            ..found.answer(&job.owner, session.place())
        });
        if !is_same_deletion(job, &result) {
            return result;
        }
        let mut batch = vec![(job, &mut result)];
        self.retain_decided(&mut batch).await;
        if batch.is_empty() {
            return result;
        }
        let remains = session.delete(&found).await?;
        Ok(Answer {
            state: InstanceState::Gone { has_remains: false },
            has_deleted: found.domain.is_some(),
            remains,
            ..result?
        })
    }

    /// Keeps the result for the next reconcile, and begins it.
    fn deliver(&self, provider: Provider, job: &Job, result: Result<Answer, Failure>) {
        let now = (self.cluster.instant)();
        if let Err(failure) = &result {
            self.metrics.failed(provider.name(), failure.reason.into());
        }
        self.states.with(&job.key, |state| {
            if state.uid.as_ref() != Some(&job.uid) {
                return;
            }
            state.receive(result, now);
        });
        self.requeue(job);
    }

    fn requeue(&self, job: &Job) {
        if let Some(changes) = self.changes.get() {
            changes.object(job.key.clone());
        }
    }
}

/// A job of a round, with its result.
type Entry<'a> = (&'a Job, &'a mut Result<Answer, Failure>);

/// The call that a described instance needs.
enum NextCall {
    Terminate,
    Release,
    ConfirmAbsence,
}

/// Whether the job deletes an instance that is still in the state of the decision.
fn is_same_deletion(job: &Job, result: &Result<Answer, Failure>) -> bool {
    let (Some(decided), Ok(answer)) = (&job.read.answer, result) else {
        return false;
    };
    let is_same = decided.state == answer.state
        && decided.place == answer.place
        && decided.noted_remain == answer.noted_remain
        // Without its volumes in the note, a deletion that stops halfway would leave them.
        && decided.seen == answer.seen;
    job.is_deletion() && is_same
}

fn next_call(job: &Job, result: &Result<Answer, Failure>) -> Option<NextCall> {
    let answer = result.as_ref().ok()?;
    let is_deletion = is_same_deletion(job, result);
    match &answer.state {
        InstanceState::Ours { is_ending: false } if is_deletion => Some(NextCall::Terminate),
        InstanceState::Gone { has_remains: true } if is_deletion => Some(NextCall::Release),
        InstanceState::Absent if job.is_ending => Some(NextCall::ConfirmAbsence),
        _ => None,
    }
}

impl PeerPodState {
    /// Keeps the result of a call for the next reconcile.
    fn receive(&mut self, result: Result<Answer, Failure>, now: std::time::Instant) {
        match &result {
            Ok(answer) => {
                self.has_deleted |= answer.has_deleted;
                let answered = (answer.state.clone(), answer.place.clone());
                if self.answered.as_ref() != Some(&answered) {
                    // A successful deletion changes the state. Descriptions between failed deletions do not.
                    (self.failures, self.absent_since) = (0, None);
                }
                if answer.state == InstanceState::Absent {
                    let since = *self.absent_since.get_or_insert(now);
                    self.absent = now.saturating_duration_since(since);
                }
                self.answered = Some(answered);
            }
            Err(_) => self.failures = self.failures.saturating_add(1),
        }
        self.is_asked = false;
        self.result = Some(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, is_ending: bool, is_deletion: bool) -> Job {
        let id = InstanceId::Aws("i-12345678".parse().unwrap());
        Job {
            key: ObjectKey::new("ns", name),
            uid: name.to_owned(),
            owner: Owner {
                namespace: "ns".to_owned(),
                name: name.to_owned(),
                uid: name.to_owned(),
            },
            is_ending,
            seen: None,
            read: Read::default(),
            decision: match is_deletion {
                true => Decision::Delete(id),
                false => Decision::Describe(id),
            },
        }
    }

    #[test]
    fn deletions_come_first_and_then_instances_of_ended_pods() {
        let calls = Calls::default();
        for (name, is_ending, is_deletion) in [
            ("live", false, false),
            ("ended", true, false),
            ("first", true, true),
            ("second", true, true),
        ] {
            calls.push(job(name, is_ending, is_deletion));
        }
        let taken = || -> Vec<String> {
            calls
                .take(ROUND_MAX)
                .into_iter()
                .map(|job| job.uid)
                .collect()
        };
        assert_eq!(taken(), ["first", "second"]);
        assert_eq!(taken(), ["ended", "live"]);
        for n in 0..=ROUND_MAX {
            calls.push(job(&n.to_string(), true, false));
        }
        assert_eq!(
            (taken().len(), taken()),
            (ROUND_MAX, vec![ROUND_MAX.to_string()])
        );
    }

    #[test]
    fn backoff_grows_until_the_answer_changes() {
        let (mut state, now) = (PeerPodState::default(), std::time::Instant::now());
        let answer = |state: InstanceState, place: &str| Answer {
            state,
            place: place.to_owned(),
            ..Answer::default()
        };
        let running = || answer(InstanceState::Ours { is_ending: false }, "a");
        for failures in 1..4 {
            state.receive(Ok(running()), now);
            let failure = Failure::new(PeerPodReason::PermissionDenied, String::new());
            state.receive(Err(failure), now);
            assert_eq!(state.failures, failures);
        }
        state.receive(
            Ok(answer(InstanceState::Ours { is_ending: true }, "a")),
            now,
        );
        assert_eq!(state.failures, 0);
        // Answers without the instance count at the same place only.
        for (place, seconds, absent) in [("a", 0, 0), ("a", 1, 1), ("b", 2, 0)] {
            let at = now + Duration::from_secs(seconds);
            state.receive(Ok(answer(InstanceState::Absent, place)), at);
            assert_eq!(state.absent, Duration::from_secs(absent));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pause_doubles_to_a_minute_and_ends_with_a_changed_configuration() {
        let config = |region: &str| {
            Ok(ProviderConfig::Aws(AwsConfig {
                region: region.to_owned(),
                variables: std::collections::HashMap::new(),
            }))
        };
        let (mut pause, now) = (Pause::default(), Instant::now());
        assert_eq!(pause.left(now, &config("a")), None);
        let mut seconds = Vec::new();
        for _ in 0..6 {
            pause.begin(now, &config("a"), None);
            seconds.push(pause.left(now, &config("a")).unwrap().as_secs());
        }
        assert_eq!(seconds, [5, 10, 20, 40, 60, 60]);
        assert_eq!(pause.left(now, &config("b")), None);
        assert_eq!(
            pause.left(now + Duration::from_secs(60), &config("a")),
            None
        );
        for (demanded, expected) in [(0, 5), (7, 7), (600, 600), (86_400, 900)] {
            pause.begin(now, &config("a"), Some(Duration::from_secs(demanded)));
            let expected = Some(Duration::from_secs(expected));
            assert_eq!(pause.left(now, &config("a")), expected);
        }
    }
}
