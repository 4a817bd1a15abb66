//! One run of a scenario: the controller, its object, the steps, and the wait for the expected state.

use super::{Controller, History, Reference, Scenario, Started, Step, Verdict};
use crate::components::{Cluster, Kind};
use crate::fault::Fault;
use crate::final_state::{content, difference, with_deletion_of};
use crate::layer::Layer;
use crate::timings::Timings;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// The polling interval without notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The message of a rejection by the [`Layer`].
pub const REJECTION: &str = "rejected by the test";

/// A run.
pub struct Run {
    controller: &'static Controller,
    /// The simulated cluster.
    pub cluster: Cluster,
    /// The namespace of the run.
    pub namespace: String,
    /// The number of pods that the scenario itself has deleted.
    pub deleted_by_others: usize,
    timings: Timings,
    layer: Layer,
    started: Option<Started>,
    starts: usize,
}

impl Run {
    /// A run in an existing namespace.
    ///
    /// # Panics
    /// The API server rejects the list.
    pub async fn new(
        controller: &'static Controller,
        cluster: &Cluster,
        namespace: String,
        timings: Timings,
    ) -> Self {
        let (cluster, server) = (cluster.clone(), cluster.client.clone());
        let revision = revision(controller, &cluster, &namespace).await;
        let layer = Layer::new(
            server,
            controller.follows,
            revision,
            timings.late,
            timings.traces,
        );
        Self {
            controller,
            cluster,
            namespace,
            deleted_by_others: 0,
            timings,
            layer,
            started: None,
            starts: 0,
        }
    }

    /// Makes the kind with that plural name unknown to the controller, or all kinds known.
    pub fn set_unknown(&self, kind: Option<&'static str>) {
        self.layer.set_unknown(kind);
    }

    /// Runs the scenario without a fault.
    ///
    /// # Errors
    /// The run does not end as the scenario requires.
    pub async fn reference(mut self, scenario: &Scenario) -> Result<Reference, String> {
        self.steps_before(scenario).await?;
        let before = content(&self.cluster, &self.namespace);
        self.arm(Vec::new()).await;
        for step in scenario.steps {
            self.step(*step, scenario).await;
        }
        let stays = self.timings.stays;
        let is_settled = |run: &Self| (!run.is_settled()).then(|| "it is not settled".to_owned());
        let settled = self.wait(stays, is_settled).await;
        let end = content(&self.cluster, &self.namespace);
        let mut places = self.layer.places();
        self.layer.disarm();
        places.sort();
        places.dedup();
        let violations = self.end(settled.is_ok()).await;
        let controller = self.controller;
        settled
            .and_then(|()| scenario.verify(controller, &end))
            .map_err(|why| format!("{}: {why}", scenario.name))?;
        match violations.is_empty() {
            true => Ok(Reference {
                ends: [before, end],
                places,
            }),
            false => Err(format!("{}: {}", scenario.name, violations.join("; "))),
        }
    }

    /// Runs the scenario with faults.
    pub async fn with_faults(
        mut self,
        scenario: &Scenario,
        reference: &Reference,
        faults: Vec<(String, Fault)>,
    ) -> Verdict {
        let before = self.steps_before(scenario).await.and_then(|()| {
            let found = content(&self.cluster, &self.namespace);
            match found == reference.ends[0] {
                true => Ok(()),
                false => Err(difference(&reference.ends[0], &found)),
            }
        });
        if let Err(difference) = before {
            let violations = self.end(false).await;
            return Verdict::new(
                Err(format!("before the fault: {difference}")),
                &violations,
                false,
            );
        }
        let is_reported = faults
            .iter()
            .any(|(place, fault)| (self.controller.is_reported)(place, *fault));
        self.arm(faults).await;
        for step in scenario.steps {
            self.step(*step, scenario).await;
        }
        let stays = self.timings.stays;
        let end = if is_reported {
            let reports =
                |run: &Self| (run.controller.reports)(&run.cluster, &run.namespace, REJECTION);
            self.wait(stays, |run| {
                (!reports(run)).then(|| "the refusal is not reported".to_owned())
            })
            .await
        } else {
            let expected = &reference.ends[1];
            self.wait(stays, |run| {
                let found = with_deletion_of(expected, content(&run.cluster, &run.namespace));
                (found != *expected).then(|| difference(expected, &found))
            })
            .await
        };
        let is_reached = !self.layer.has_pending_fault();
        let violations = self.end(end.is_ok()).await;
        Verdict::new(end, &violations, is_reached)
    }

    /// Starts to count places and injects each fault at its place.
    async fn arm(&self, faults: Vec<(String, Fault)>) {
        self.layer.arm(
            faults,
            revision(self.controller, &self.cluster, &self.namespace).await,
        );
    }

    async fn steps_before(&mut self, scenario: &Scenario) -> Result<(), String> {
        for step in scenario.before {
            self.step(*step, scenario).await;
            if matches!(step, Step::Start) {
                continue;
            }
            let rest = self.timings.rest;
            self.wait(rest, |run| {
                (!run.is_settled()).then(|| "it is not settled".to_owned())
            })
            .await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: Step, scenario: &Scenario) {
        let Controller { kinds, name, .. } = *self.controller;
        let Kind {
            group,
            version,
            kind,
            ..
        } = kinds[0];
        match step {
            Step::Start => self.replace(),
            Step::Create => {
                let spec: Value = serde_json::from_str(scenario.spec).unwrap();
                let object = json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {"name": name}, "spec": spec});
                self.cluster.make(&self.namespace, kind, object).await;
            }
            Step::Patch(patch) => {
                let patch = serde_json::from_str(patch).unwrap();
                self.cluster
                    .merge(kind, &self.namespace, name, "", patch)
                    .await
                    .unwrap();
            }
            Step::Delete => {
                let api = self.cluster.api(kind, Some(&self.namespace));
                api.delete(name, &DeleteParams::default()).await.unwrap();
            }
            Step::Act(act) => act(self, scenario).await,
        }
    }

    /// Starts a new controller with empty memory. A running one is killed before.
    fn replace(&mut self) {
        self.kill();
        self.layer = self.layer.next();
        self.starts += 1;
        self.started = Some((self.controller.start)(
            &self.layer,
            &self.namespace,
            &self.timings,
        ));
    }

    fn kill(&mut self) {
        if let Some(started) = self.started.take() {
            self.layer.disconnect();
            started.task.abort();
        }
    }

    /// Whether the controller, if it runs, has reported on the newest state of its object.
    fn is_settled(&self) -> bool {
        self.started.is_none() || (self.controller.is_settled)(&self.cluster, &self.namespace)
    }

    /// The remaining work of the controller, if it runs.
    fn busy_reason(&self) -> Option<String> {
        let started = self.started.as_ref()?;
        self.layer
            .traffic
            .busy_reason()
            .or_else(|| (started.busy_reason)())
    }

    /// The numbers of changes, requests and starts so far.
    fn progress(&self) -> (usize, usize, usize) {
        (
            self.cluster.changes(&self.namespace),
            self.layer.traffic.requests(),
            self.starts,
        )
    }

    /// Waits until the state is no longer wrong, also while the controller has work. One that a fault kills is started again.
    ///
    /// # Panics
    /// The time limit has passed.
    pub async fn until(&mut self, wrong: impl Fn(&Self) -> Option<String>) {
        let (began, kill) = (Instant::now(), self.layer.kill.clone());
        while let Some(why) = wrong(self) {
            assert!(began.elapsed() <= self.timings.until, "{why}");
            tokio::select! {
                biased;
                () = kill.notified() => self.replace(),
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Waits until the controller has been idle for that time, without a change and without a request, and the state is
    /// the expected one. A controller that a fault kills is started again.
    ///
    /// # Errors
    /// The time limit has passed. The text gives the reason.
    async fn wait(
        &mut self,
        quiet: Duration,
        wrong: impl Fn(&Self) -> Option<String>,
    ) -> Result<(), String> {
        let began = Instant::now();
        let kill = self.layer.kill.clone();
        let mut progress = self.progress();
        let mut since = Instant::now();
        // The progress at the last idle check that found a wrong state.
        let mut checked = None;
        let (mut last_busy_reason, mut last_wrong_state) =
            ("the controller is never idle".to_owned(), None);
        loop {
            let mut changes = self.cluster.changed.listen();
            let mut traffic = self.layer.traffic.changes();
            let before = std::mem::replace(&mut progress, self.progress());
            let busy_reason = self.busy_reason();
            if before != progress || busy_reason.is_some() {
                since = Instant::now();
                checked = None;
            }
            if let Some(busy_reason) = busy_reason {
                last_busy_reason = busy_reason;
            }
            if since.elapsed() >= quiet && checked != Some(progress) {
                match wrong(self) {
                    None => return Ok(()),
                    wrong => last_wrong_state = wrong,
                }
                checked = Some(progress);
            }
            if began.elapsed() > self.timings.until {
                return Err(last_wrong_state.unwrap_or(last_busy_reason));
            }
            let look = Instant::now() + POLL_INTERVAL;
            let look = if since.elapsed() < quiet {
                look.min(since + quiet)
            } else {
                look
            };
            tokio::select! {
                biased;
                () = kill.notified() => self.replace(),
                () = changes.changed() => {}
                () = traffic.changed() => {}
                () = tokio::time::sleep_until(look) => {}
            }
        }
    }

    /// Ends the run and returns the violations of the invariants.
    async fn end(&mut self, ended_as_expected: bool) -> Vec<String> {
        self.kill();
        let present = self.cluster.present(&self.namespace);
        let mut violations = self.cluster.failures(&self.namespace);
        let history = self.cluster.take_history(&self.namespace);
        let history = History {
            history,
            deleted_by_others: self.deleted_by_others,
            ended_as_expected,
        };
        violations.extend((self.controller.judge)(&history));
        if self.timings.shortened.is_some() {
            // On a real API server, remaining objects would appear in the watches of other runs.
            for (kind, name) in present.into_keys() {
                if kind != "PersistentVolumeClaim" {
                    let params = DeleteParams::default().grace_period(0);
                    let _ = self
                        .cluster
                        .api(kind, Some(&self.namespace))
                        .delete(&name, &params)
                        .await;
                }
            }
        }
        violations
    }
}

/// The present revision.
async fn revision(controller: &Controller, cluster: &Cluster, namespace: &str) -> String {
    let api = cluster.api(controller.kind(), Some(namespace));
    api.list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap()
}
