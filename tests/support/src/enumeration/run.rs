//! One run of a scenario: the controller, its object, the steps, and the wait until all is as it should be.

use super::{Controller, Life, Reference, Scenario, Started, Step, Verdict};
use crate::fault::Fault;
use crate::judge::{content, difference, with_deletion_of};
use crate::layer::Layer;
use crate::played::{Cluster, api};
use crate::timings::Timings;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// How often the controller is looked at where nothing is reported.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The message of a refusal by the [`Layer`].
pub const REFUSAL: &str = "refused by the test";

/// A run.
pub struct Run {
    controller: &'static Controller,
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace of the run.
    pub namespace: String,
    /// How many pods the scenario itself has deleted.
    pub deleted_by_others: usize,
    timings: Timings,
    layer: Layer,
    started: Option<Started>,
    starts: usize,
}

impl Run {
    /// A run in that namespace, which exists.
    ///
    /// # Panics
    /// If the API server refuses to list.
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

    /// Runs the scenario without a fault.
    ///
    /// # Errors
    /// If it does not end as the scenario says.
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
        let broken = self.end(settled.is_ok()).await;
        let controller = self.controller;
        settled
            .and_then(|()| scenario.verify(controller, &end))
            .map_err(|why| format!("{}: {why}", scenario.name))?;
        match broken.is_empty() {
            true => Ok(Reference {
                ends: [before, end],
                places,
            }),
            false => Err(format!("{}: {}", scenario.name, broken.join("; "))),
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
            let broken = self.end(false).await;
            return Verdict::new(
                Err(format!("before the fault: {difference}")),
                &broken,
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
                |run: &Self| (run.controller.reports)(&run.cluster, &run.namespace, REFUSAL);
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
        let is_reached = !self.layer.waits_for_fault();
        let broken = self.end(end.is_ok()).await;
        Verdict::new(end, &broken, is_reached)
    }

    /// From now on what passes is counted, and each fault happens at its place.
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
        let Controller {
            api_version,
            kind,
            name,
            ..
        } = *self.controller;
        match step {
            Step::Start => self.replace(),
            Step::Create => {
                let spec: Value = serde_json::from_str(scenario.spec).unwrap();
                let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
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
                let api = api(&self.cluster.client, kind, Some(&self.namespace));
                api.delete(name, &DeleteParams::default()).await.unwrap();
            }
            Step::Act(act) => act(self, scenario).await,
        }
    }

    /// A new controller, with empty memory; one that runs is killed before.
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
            self.layer.die();
            started.task.abort();
        }
    }

    /// Whether the controller, if there is one, has reported on the newest state of its object.
    fn is_settled(&self) -> bool {
        self.started.is_none() || (self.controller.is_settled)(&self.cluster, &self.namespace)
    }

    /// What the controller still has to do, if there is one.
    fn unrest(&self) -> Option<String> {
        let started = self.started.as_ref()?;
        self.layer.traffic.unrest().or_else(|| (started.unrest)())
    }

    /// Changes, requests and starts so far.
    fn progress(&self) -> (usize, usize, usize) {
        (
            self.cluster.changes(&self.namespace),
            self.layer.traffic.requests(),
            self.starts,
        )
    }

    /// Waits until the controller has been at rest for that long, without a change and without a request, and nothing is
    /// wrong then. A controller that a fault kills is started again.
    ///
    /// # Errors
    /// If that does not happen in time: with the reason.
    async fn wait(
        &mut self,
        quiet: Duration,
        wrong: impl Fn(&Self) -> Option<String>,
    ) -> Result<(), String> {
        let began = Instant::now();
        let kill = self.layer.kill.clone();
        let mut progress = self.progress();
        let mut since = Instant::now();
        // The progress for which something was wrong though the controller was at rest.
        let mut checked = None;
        let (mut unrest_was, mut wrong_was) = ("there is no rest".to_owned(), None);
        loop {
            let mut changes = self.cluster.changed.listen();
            let mut traffic = self.layer.traffic.changes();
            let before = std::mem::replace(&mut progress, self.progress());
            let unrest = self.unrest();
            if before != progress || unrest.is_some() {
                since = Instant::now();
                checked = None;
            }
            if let Some(unrest) = unrest {
                unrest_was = unrest;
            }
            if since.elapsed() >= quiet && checked != Some(progress) {
                match wrong(self) {
                    None => return Ok(()),
                    wrong => wrong_was = wrong,
                }
                checked = Some(progress);
            }
            if began.elapsed() > self.timings.until {
                return Err(wrong_was.unwrap_or(unrest_was));
            }
            let look = Instant::now() + LOOK_PERIOD;
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

    /// Ends it; gives what must never have happened.
    async fn end(&mut self, is_at_end: bool) -> Vec<String> {
        self.kill();
        let present = self.cluster.present(&self.namespace);
        let mut broken = self.cluster.failures(&self.namespace);
        let history = self.cluster.take_history(&self.namespace);
        let life = Life {
            history,
            deleted_by_others: self.deleted_by_others,
            is_at_end,
        };
        broken.extend((self.controller.judge)(&life));
        if self.timings.shortened.is_some() {
            // On a real API server what is left would be watched by everybody.
            for (kind, name) in present.into_keys() {
                if kind != "PersistentVolumeClaim" {
                    let params = DeleteParams::default().grace_period(0);
                    let _ = api(&self.cluster.client, kind, Some(&self.namespace))
                        .delete(&name, &params)
                        .await;
                }
            }
        }
        broken
    }
}

/// The revision of now.
async fn revision(controller: &Controller, cluster: &Cluster, namespace: &str) -> String {
    let api = api(&cluster.client, controller.kind, Some(namespace));
    api.list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap()
}
