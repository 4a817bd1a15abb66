//! (pure) The selection of hosts: a maximum flow from roles, over the values of their topology key, to hosts.

use pathfinding::directed::edmonds_karp::edmonds_karp_sparse;
use std::collections::BTreeMap;

/// A role that needs more hosts.
#[derive(Clone, Debug, Default)]
pub struct Demand<'a> {
    /// The number of hosts that it needs.
    pub missing: usize,
    /// Its candidates: the index of the host, and the value of the topology key. At most one host of each value is selected.
    /// Hosts without the value are unrestricted.
    pub candidates: Vec<(usize, Option<&'a str>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vertex {
    Source,
    Role(usize),
    /// A value of the topology key of a role.
    Domain(usize, usize),
    Host(usize),
    Sink,
}

/// Selects hosts for the roles. As many hosts as possible are selected, each for one role. Returns the indexes of the hosts of each
/// role, in ascending order. Equal input has an equal result.
#[must_use]
pub fn select(demands: &[Demand]) -> Vec<Vec<usize>> {
    let mut selected = vec![Vec::new(); demands.len()];
    // The capacities of the edges.
    let mut edges: BTreeMap<(Vertex, Vertex), i32> = BTreeMap::new();
    for (role, demand) in demands.iter().enumerate() {
        let missing = i32::try_from(demand.missing).unwrap_or(i32::MAX);
        if missing == 0 {
            continue;
        }
        edges.insert((Vertex::Source, Vertex::Role(role)), missing);
        let mut domains = BTreeMap::new();
        for (host, domain) in &demand.candidates {
            let mut from = Vertex::Role(role);
            if let Some(domain) = domain {
                let next = domains.len();
                let of = Vertex::Domain(role, *domains.entry(*domain).or_insert(next));
                edges.insert((from, of), 1);
                from = of;
            }
            edges.insert((from, Vertex::Host(*host)), 1);
            edges.insert((Vertex::Host(*host), Vertex::Sink), 1);
        }
    }
    let mut vertices: Vec<Vertex> = edges.keys().flat_map(|(from, to)| [*from, *to]).collect();
    vertices.extend([Vertex::Source, Vertex::Sink]);
    vertices.sort_unstable();
    vertices.dedup();
    let (flows, _, _) = edmonds_karp_sparse(&vertices, &Vertex::Source, &Vertex::Sink, edges);
    for ((from, to), flow) in flows {
        match (from, to) {
            (Vertex::Role(role) | Vertex::Domain(role, _), Vertex::Host(host)) if flow > 0 => {
                if let Some(hosts) = selected.get_mut(role) {
                    hosts.push(host);
                }
            }
            _ => {}
        }
    }
    for hosts in &mut selected {
        hosts.sort_unstable();
    }
    selected
}

#[cfg(test)]
mod tests;
