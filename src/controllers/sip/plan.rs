//! (pure) The plan of a cluster: which hosts remain, join and leave.
//!
//! Present members remain. A role with too few hosts gets candidates, see [`select`]; one with too many loses hosts without a consumer.
//! Before all roles were complete once, nothing is claimed unless all roles can be completed, and a claim that can no longer be completed
//! is taken back.

use crate::api::SIPCluster;
use crate::api::sip::RoleStatus;
use crate::controllers::sip::facts::{Host, Membership, Obstacle, Role, has_been_complete, since};
use crate::controllers::sip::select::{Demand, select};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A host in a role.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The host.
    pub host: Host<'a>,
    /// The role.
    pub role: &'a str,
}

/// A role that cannot be completed.
#[derive(Clone, Debug)]
pub struct Shortage<'a> {
    /// The role.
    pub role: &'a str,
    /// The number of hosts that it still lacks when all possible hosts have joined.
    pub missing: usize,
    /// The hosts that are no candidates, by reason.
    pub obstacles: BTreeMap<Obstacle, usize>,
    /// The free hosts among them that match the selector.
    pub rejected: Vec<(Host<'a>, Obstacle)>,
}

/// The plan of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Plan<'a> {
    /// The members that remain, in the order of their names.
    pub members: Vec<Placed<'a>>,
    /// The hosts that join.
    pub claims: Vec<Placed<'a>>,
    /// The members that leave.
    pub leaving: Vec<Placed<'a>>,
    /// The members that would leave if they had no consumer. They are part of `members`.
    pub in_use: Vec<Placed<'a>>,
    /// The roles that cannot be completed.
    pub shortages: Vec<Shortage<'a>>,
    /// The numbers of hosts by role.
    pub counts: BTreeMap<&'a str, RoleStatus>,
    /// Whether the first claim is taken back, or not begun.
    pub is_first_claim_abandoned: bool,
}

/// Plans a cluster. `hosts` are all hosts in the order of their names. `states` are the provisioning states of candidates; if there is
/// none, each state is allowed.
#[must_use]
pub fn plan<'a>(
    cluster: &'a SIPCluster,
    roles: &BTreeMap<&'a str, Role>,
    hosts: &[Host<'a>],
    states: &[String],
) -> Plan<'a> {
    let mut plan = Plan::default();
    let mut by_role: BTreeMap<&str, Vec<Host<'a>>> = BTreeMap::new();
    for host in hosts {
        if let Membership::Own(role) = host.membership(cluster) {
            by_role.entry(role).or_default().push(*host);
        }
    }
    let since = since(cluster);
    for (role, present) in &by_role {
        let surplus = present.len() - present.len().min(roles.get(role).map_or(0, |it| it.wanted));
        let mut order: Vec<Host> = present.clone();
        // The first ones leave first.
        order.sort_by_key(|host| {
            let rule = roles.get(role);
            let is_good = rule.is_some_and(|rule| host.matches(rule)) && host.problem().is_none();
            let since = since.get(host.uid()).copied();
            (is_good, Reverse(since.is_none()), Reverse(since), host.name)
        });
        let (used, unused): (Vec<Host>, Vec<Host>) = order
            .into_iter()
            .partition(|host| host.consumer().is_some());
        let place = |host: Host<'a>| Placed { host, role };
        let leaving = unused.iter().take(surplus).copied();
        plan.leaving.extend(leaving.map(place));
        let in_use = used
            .iter()
            .take(surplus - unused.len().min(surplus))
            .copied();
        plan.in_use.extend(in_use.map(place));
        let is_leaving = |host: &&Host| plan.leaving.iter().any(|it| it.host.uid() == host.uid());
        let remaining: Vec<Placed> = present
            .iter()
            .filter(|host| !is_leaving(host))
            .map(|host| place(*host))
            .collect();
        plan.members.extend(remaining);
    }
    fill(&mut plan, cluster, roles, hosts, states);
    for (role, rule) in roles {
        let present = by_role.get(role).map_or(0, Vec::len);
        let count = plan.counts.entry(*role).or_default();
        (count.wanted, count.members) = (as_i64(rule.wanted), as_i64(present));
    }
    for (role, present) in &by_role {
        plan.counts.entry(*role).or_default().members = as_i64(present.len());
    }
    let is_first = !has_been_complete(cluster);
    if is_first && !plan.shortages.is_empty() {
        plan.abandon_first_claim();
    }
    plan
}

impl Plan<'_> {
    /// Claims nothing, and releases all members without a consumer.
    pub fn abandon_first_claim(&mut self) {
        self.is_first_claim_abandoned = true;
        self.claims.clear();
        let members = std::mem::take(&mut self.members).into_iter();
        let (used, unused): (Vec<_>, Vec<_>) =
            members.partition(|member| member.host.consumer().is_some());
        self.members = used;
        self.leaving.extend(unused);
    }
}

/// Selects hosts for the roles with too few of them.
fn fill<'a>(
    plan: &mut Plan<'a>,
    cluster: &SIPCluster,
    roles: &BTreeMap<&'a str, Role>,
    hosts: &[Host<'a>],
    states: &[String],
) {
    let mut demands = Vec::new();
    let mut obstacles = Vec::new();
    for (role, rule) in roles {
        let of_role = plan.members.iter().filter(|member| member.role == *role);
        let taken: BTreeSet<&str> = of_role
            .clone()
            .filter_map(|member| member.host.domain(rule))
            .collect();
        let mut demand = Demand {
            missing: rule.wanted.saturating_sub(of_role.count()),
            candidates: Vec::new(),
        };
        let mut counted: BTreeMap<Obstacle, usize> = BTreeMap::new();
        let mut rejected = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            let obstacle = match host.membership(cluster) {
                Membership::Own(_) => continue,
                Membership::Other => Some(Obstacle::OtherCluster),
                Membership::Free => host.obstacle(rule, states),
            };
            let domain = host.domain(rule);
            let is_taken = domain.is_some_and(|domain| taken.contains(domain));
            let obstacle = obstacle.or_else(|| is_taken.then_some(Obstacle::Domain));
            let Some(obstacle) = obstacle else {
                demand.candidates.push((index, domain));
                continue;
            };
            if !matches!(obstacle, Obstacle::Selector | Obstacle::OtherCluster) {
                rejected.push((*host, obstacle.clone()));
            }
            *counted.entry(obstacle).or_default() += 1;
        }
        plan.counts.entry(*role).or_default().candidates = as_i64(demand.candidates.len());
        demands.push(demand);
        obstacles.push((counted, rejected));
    }
    let selected = select(&demands);
    for (((role, demand), (obstacles, rejected)), selected) in
        roles.keys().zip(&demands).zip(obstacles).zip(selected)
    {
        if selected.len() < demand.missing {
            plan.shortages.push(Shortage {
                role,
                missing: demand.missing - selected.len(),
                obstacles,
                rejected,
            });
        }
        let chosen = selected.iter().filter_map(|index| hosts.get(*index));
        plan.claims
            .extend(chosen.map(|host| Placed { host: *host, role }));
    }
}

fn as_i64(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
