//! The status of clusters, and their events.

use crate::api::SIPCluster;
use crate::api::conditions::{DesiredCondition, find};
use crate::api::sip::{
    DEGRADED, HostCount, IGNORED_FIELD, Member, READY, RejectedHost, SERVICES_READY,
    SIPClusterReason, SIPClusterStatus,
};
use crate::controllers::sip::SipController;
use crate::controllers::sip::facts::{Host, Obstacle, Role, has_been_complete, since};
use crate::controllers::sip::plan::{Placed, Plan};
use crate::controllers::sip::services::Services;
use crate::k8s::cluster::Cluster;
use crate::k8s::error::Error;
use crate::k8s::events;
use crate::k8s::key::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The number of hosts in a message.
const HOSTS_IN_MESSAGE_MAX: usize = 10;

/// The number of rejected hosts in the status.
const REJECTED_MAX: usize = 20;

/// The desired condition `Ready` if it is false: its reason and message.
pub type Problem = (SIPClusterReason, String);

/// The plan and the services of a cluster, as far as they are known.
#[derive(Default)]
pub struct Progress<'a> {
    /// The roles of the spec, and the plan after all writes.
    pub plan: Option<(&'a BTreeMap<&'a str, Role>, &'a Plan<'a>)>,
    /// The services.
    pub services: Option<Services>,
    /// The first problem.
    pub problem: Option<Problem>,
    /// ConfigMaps with templates of the Airship SIP operator, if the controller has looked for them.
    pub templates: Option<Vec<&'static str>>,
}

/// (pure) The status.
#[must_use]
pub fn status(cluster: &SIPCluster, progress: &Progress, now: Timestamp) -> SIPClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    let generation = cluster.metadata.generation;
    // Before the generation, which shows that the status is ours.
    status.has_been_complete = has_been_complete(cluster);
    status.observed_generation = generation;
    let mut conditions = Vec::new();
    let (mut is_ready, mut ready) = (true, None);
    if let Some((roles, plan)) = progress.plan {
        status.rejected = rejected(cluster, roles, plan);
        describe_hosts(&mut status, cluster, plan, now);
        ready = of_plan(plan);
        let is_complete =
            plan.shortages.is_empty() && plan.claims.is_empty() && status.hosts.wanted > 0;
        status.has_been_complete |= is_complete;
    }
    if let Some(services) = &progress.services {
        status.endpoints.clone_from(&services.endpoints);
        if !services.endpoints.is_empty() {
            let is_running = services.problem.is_none();
            conditions.push(DesiredCondition {
                type_: SERVICES_READY,
                status: is_running,
                reason: match is_running {
                    true => SIPClusterReason::ServicesRunning,
                    false => SIPClusterReason::PodsNotReady,
                },
                message: services.problem.clone().unwrap_or_default(),
            });
        }
        if let Some(problem) = &services.problem {
            ready = ready.or_else(|| Some((SIPClusterReason::Progressing, problem.clone())));
        }
    }
    if let (None, Some((SIPClusterReason::InfraServiceFailure, message))) =
        (&progress.services, &progress.problem)
    {
        conditions.push(DesiredCondition {
            type_: SERVICES_READY,
            status: false,
            reason: SIPClusterReason::InfraServiceFailure,
            message: message.clone(),
        });
    }
    let problem = progress.problem.clone().or(ready);
    is_ready &= problem.is_none();
    let (reason, message) = problem.unwrap_or_else(|| {
        let message = format!("{} of {} hosts", status.hosts.members, status.hosts.wanted);
        (SIPClusterReason::ReconciliationSucceeded, message)
    });
    conditions.insert(
        0,
        DesiredCondition {
            type_: READY,
            status: is_ready,
            reason,
            message,
        },
    );
    if let Some((roles, plan)) = progress.plan {
        conditions.extend(degraded(roles, plan));
    }
    if let Some(templates) = progress.templates.as_ref().filter(|it| !it.is_empty()) {
        conditions.push(DesiredCondition {
            type_: IGNORED_FIELD,
            status: true,
            reason: SIPClusterReason::NotSupported,
            message: format!(
                "the templates in the ConfigMaps {} have no effect, because the configuration of load balancers is built in; delete them",
                templates.join(", ")
            ),
        });
    }
    let present = std::mem::take(&mut status.conditions);
    let kept = present.iter().filter(|it| {
        // Unknown in this reconcile.
        let is_known = conditions.iter().any(|desired| desired.type_ == it.type_);
        !is_known && it.type_ == SERVICES_READY && progress.services.is_none()
            || it.type_ == DEGRADED && progress.plan.is_none()
            || it.type_ == IGNORED_FIELD && progress.templates.is_none()
    });
    let desired = conditions.iter().map(|it| it.at(&present, generation, now));
    status.conditions = desired.chain(kept.cloned()).collect();
    status
}

fn describe_hosts(
    status: &mut SIPClusterStatus,
    cluster: &SIPCluster,
    plan: &Plan,
    now: Timestamp,
) {
    let counts = || plan.counts.values();
    status.hosts = HostCount {
        wanted: counts().map(|it| it.wanted).sum(),
        members: counts().map(|it| it.members).sum(),
    };
    let nodes = plan
        .counts
        .iter()
        .map(|(role, count)| ((*role).to_owned(), *count));
    status.nodes = nodes.collect();
    let since = since(cluster);
    // Objects have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let member = |it: &Placed| Member {
        uid: it.host.uid().to_owned(),
        name: it.host.view.name_any(),
        namespace: elsewhere(&it.host, cluster),
        role: it.role.to_owned(),
        since: Time(since.get(it.host.uid()).copied().unwrap_or(now)),
    };
    let mut members: Vec<Member> = plan
        .members
        .iter()
        .chain(&plan.leaving)
        .map(member)
        .collect();
    members.sort_by(|a, b| {
        let order = |it: &Member| (it.role.clone(), it.name.clone(), it.namespace.clone());
        order(a).cmp(&order(b))
    });
    status.members = members;
}

/// The namespace of the host, if it is another one than that of the cluster.
fn elsewhere(host: &Host, cluster: &SIPCluster) -> Option<String> {
    let namespace = host.view.metadata.namespace.clone();
    namespace.filter(|it| Some(it) != cluster.metadata.namespace.as_ref())
}

/// Hosts that cannot have a role with too few hosts.
fn rejected(cluster: &SIPCluster, roles: &BTreeMap<&str, Role>, plan: &Plan) -> Vec<RejectedHost> {
    let all = plan.shortages.iter().flat_map(|shortage| {
        let rejected = shortage.rejected.iter();
        rejected.map(|(host, obstacle)| (shortage.role, host, obstacle))
    });
    let all = all.map(|(role, host, obstacle)| {
        let address = roles.get(role).and_then(|rule| host.missing_address(rule));
        let message = match obstacle {
            Obstacle::Address => address.unwrap_or_default(),
            Obstacle::BmcNotAllowed => host.bmc().err().unwrap_or_default(),
            Obstacle::Consumed => format!("it is used by {}", host.consumer().unwrap_or_default()),
            Obstacle::Failed if !host.view.status.error_message.is_empty() => {
                host.view.status.error_message.clone()
            }
            _ => format!("hosts {}", obstacle.text()),
        };
        let reason: &str = obstacle.into();
        RejectedHost {
            name: host.view.name_any(),
            namespace: elsewhere(host, cluster),
            role: role.to_owned(),
            reason: reason.to_owned(),
            message,
        }
    });
    all.take(REJECTED_MAX).collect()
}

/// Why the hosts are not as the spec requests.
fn of_plan(plan: &Plan) -> Option<Problem> {
    if !plan.shortages.is_empty() {
        let roles = plan.shortages.iter().map(|shortage| {
            let role = shortage.role;
            let count = plan.counts.get(role).copied().unwrap_or_default();
            let obstacles = shortage
                .obstacles
                .iter()
                .map(|(it, n)| format!("{}: {n}", it.text()));
            let obstacles: Vec<String> = obstacles.collect();
            // Otherwise a reader wonders why a role with candidates lacks hosts.
            let shared = match count.candidates {
                0 => "",
                _ => " (other roles, or values of the topologyKey, need the candidates)",
            };
            let others = match obstacles.as_slice() {
                [] => String::new(),
                obstacles => format!(
                    "; other hosts, by reason: {}",
                    listed(obstacles.iter().cloned())
                ),
            };
            format!(
                "role {role}: {} hosts wanted, {} members, {} candidates, {} hosts missing{shared}{others}",
                count.wanted, count.members, count.candidates, shortage.missing
            )
        });
        let roles: Vec<String> = roles.collect();
        let next = "add hosts, free some, or change count, labelSelector or topologyKey of the role; status.rejected names hosts";
        return Some((
            SIPClusterReason::Unschedulable,
            format!("{}; {next}", roles.join(". ")),
        ));
    }
    if !plan.in_use.is_empty() {
        let hosts = plan.in_use.iter().map(|it| {
            let consumer = it.host.consumer().unwrap_or_default();
            format!("{} ({consumer})", it.host.name)
        });
        let message = format!(
            "hosts that are no longer wanted have consumers: {}; delete the consumers, or raise the count",
            listed(hosts)
        );
        return Some((SIPClusterReason::HostsInUse, message));
    }
    if !plan.leaving.is_empty() {
        let hosts = listed(plan.leaving.iter().map(|it| it.host.name.to_owned()));
        let message = format!(
            "the hosts {hosts} leave the cluster when no pod of a load balancer has the previous configuration"
        );
        return Some((SIPClusterReason::Progressing, message));
    }
    let claims = plan.claims.iter().map(|it| it.host.name.to_owned());
    (!plan.claims.is_empty()).then(|| {
        let message = format!("the hosts {} join", listed(claims));
        (SIPClusterReason::Progressing, message)
    })
}

fn listed(hosts: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = hosts.collect();
    match all.len().checked_sub(HOSTS_IN_MESSAGE_MAX) {
        None | Some(0) => all.join(", "),
        Some(more) => format!(
            "{} and {more} more",
            all.iter()
                .take(HOSTS_IN_MESSAGE_MAX)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Members in a bad state. They remain members.
fn degraded(
    roles: &BTreeMap<&str, Role>,
    plan: &Plan,
) -> Option<DesiredCondition<SIPClusterReason>> {
    let problems = plan.members.iter().filter_map(|member| {
        let problem = problem_of(member, roles.get(member.role)?, plan)?;
        let (host, role) = (member.host.name, member.role);
        Some(format!("host {host} of role {role} {problem}"))
    });
    let problems: Vec<String> = problems.collect();
    if problems.is_empty() {
        return None;
    }
    Some(DesiredCondition {
        type_: DEGRADED,
        status: true,
        reason: SIPClusterReason::MembersDegraded,
        message: listed(problems.into_iter()),
    })
}

fn problem_of(member: &Placed, role: &Role, plan: &Plan) -> Option<String> {
    let host = &member.host;
    let error = &host.view.status.error_message;
    match host.problem() {
        Some(Obstacle::Deleting) => return Some("is being deleted".to_owned()),
        Some(_) if error.is_empty() => return Some("is unhealthy or has an error".to_owned()),
        Some(_) => return Some(format!("has an error: {error}")),
        None => {}
    }
    if let Some(problem) = host.missing_address(role) {
        return Some(format!("gets no connections: {problem}"));
    }
    if let Some(problem) = host.missing_bmc(role) {
        return Some(format!("has no BMC at the jump host: {problem}"));
    }
    if !host.matches(role) {
        return Some("no longer matches the labelSelector".to_owned());
    }
    let domain = host.domain(role)?;
    let mut others = plan.members.iter().filter(|it| it.role == member.role);
    let other =
        others.find(|it| it.host.uid() != host.uid() && it.host.domain(role) == Some(domain))?;
    let key = role.topology_key.as_deref().unwrap_or_default();
    Some(format!(
        "has the same label {key} as host {}",
        other.host.name
    ))
}

/// Publishes an event on the cluster.
async fn publish(cluster: &Cluster, of: &SIPCluster, type_: EventType, reason: &str, note: &str) {
    let object = of.object_ref(&());
    events::publish(cluster, &object, type_, reason, note).await;
}

impl SipController {
    /// Logs and publishes an event of type `Normal`.
    pub(super) async fn publish_normal(&self, of: &SIPCluster, reason: &str, note: &str) {
        tracing::info!(cluster = %ObjectKey::of(of), "{note}");
        publish(&self.scope.cluster, of, EventType::Normal, reason, note).await;
    }

    /// Writes the status, if it differs.
    pub(super) async fn report(
        &self,
        cluster: &SIPCluster,
        progress: &Progress<'_>,
    ) -> Result<(), Error> {
        let status = status(cluster, progress, (self.scope.cluster.now)());
        let before = cluster.status.clone().unwrap_or_default();
        if status == before && cluster.status.is_some() {
            return Ok(());
        }
        let mut body = json!({
            "metadata": {"resourceVersion": cluster.metadata.resource_version},
            "status": status,
        });
        // A merge patch keeps the roles that it does not name.
        let removed = before
            .nodes
            .keys()
            .filter(|role| !status.nodes.contains_key(*role));
        if let Some(Value::Object(nodes)) = body.pointer_mut("/status/nodes") {
            nodes.extend(removed.map(|role| (role.clone(), Value::Null)));
        }
        let writer = self.scope.writer();
        let name = cluster.name_any();
        let written = writer.merge_status::<_, SIPCluster>(&self.clusters, &name, &body);
        written.await?;
        let (was, is) = (
            find(&before.conditions, READY),
            find(&status.conditions, READY),
        );
        if let Some(ready) = is.filter(|is| was.is_none_or(|was| was.reason != is.reason)) {
            let is_problem = ready.status != "True" && ready.reason != "Progressing";
            let type_ = if is_problem {
                EventType::Warning
            } else {
                EventType::Normal
            };
            tracing::info!(cluster = %ObjectKey::of(cluster), "{}: {}", ready.reason, ready.message);
            publish(
                &self.scope.cluster,
                cluster,
                type_,
                &ready.reason,
                &ready.message,
            )
            .await;
        }
        let is_lost = |member: &&Member| {
            let namespace = member.namespace.as_ref().unwrap_or(&self.scope.namespace);
            let host = self.hosts.get(&ObjectKey::new(namespace, &member.name));
            progress.plan.is_some()
                && host.is_none_or(|host| host.uid().as_ref() != Some(&member.uid))
        };
        for lost in before.members.iter().filter(is_lost) {
            let place = lost.namespace.iter().map(|it| format!("_{it}"));
            let name = lost.name.clone() + &place.collect::<String>();
            let note = format!("host {name} of role {} was deleted", lost.role);
            publish(
                &self.scope.cluster,
                cluster,
                EventType::Warning,
                "HostLost",
                &note,
            )
            .await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_templates_of_airship_have_no_effect_and_are_reported() {
        let spec = serde_json::from_value(json!({"services": {}})).unwrap();
        let mut cluster = SIPCluster::new("tenant", spec);
        let mut reported = |templates| {
            let progress = Progress {
                templates,
                ..Progress::default()
            };
            let status = status(&cluster, &progress, Timestamp::UNIX_EPOCH);
            cluster.status = Some(status.clone());
            find(&status.conditions, IGNORED_FIELD).map(|it| it.message.clone())
        };
        assert_eq!(reported(None), None);
        let message = reported(Some(vec!["loadbalancerworker"])).unwrap();
        assert!(message.contains("ConfigMaps loadbalancerworker have no effect"));
        // Until the next look.
        assert_eq!(reported(None), Some(message));
        assert_eq!(reported(Some(Vec::new())), None);
    }
}
