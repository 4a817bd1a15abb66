use super::{Demand, select};
use std::collections::BTreeSet;

/// The largest number of hosts that a search of all possibilities selects.
fn brute_force(demands: &[Demand], role: usize, used: &mut BTreeSet<usize>) -> usize {
    let Some(demand) = demands.get(role) else {
        return 0;
    };
    /// Selects further candidates of the role, beginning with `from`.
    fn further<'a>(
        demands: &[Demand<'a>],
        role: usize,
        from: usize,
        left: usize,
        domains: &mut BTreeSet<&'a str>,
        used: &mut BTreeSet<usize>,
    ) -> usize {
        let mut best = brute_force(demands, role + 1, used);
        if left == 0 {
            return best;
        }
        for (index, (host, domain)) in demands[role].candidates.iter().enumerate().skip(from) {
            if domain.is_some_and(|domain| domains.contains(domain)) || !used.insert(*host) {
                continue;
            }
            domains.extend(*domain);
            best = best.max(1 + further(demands, role, index + 1, left - 1, domains, used));
            if let Some(domain) = domain {
                domains.remove(domain);
            }
            used.remove(host);
        }
        best
    }
    further(demands, role, 0, demand.missing, &mut BTreeSet::new(), used)
}

/// The rule that the selection breaks: a host for one role, one host for a domain, no more than are missing, and as many as possible.
fn broken(demands: &[Demand], selected: &[Vec<usize>]) -> Option<&'static str> {
    let mut used = BTreeSet::new();
    for (demand, hosts) in demands.iter().zip(selected) {
        if hosts.len() > demand.missing {
            return Some("more hosts than are missing");
        }
        let mut domains = BTreeSet::new();
        for host in hosts {
            if !used.insert(*host) {
                return Some("two roles have one host");
            }
            let mut candidates = demand.candidates.iter();
            let candidate = candidates.find(|(candidate, _)| candidate == host);
            let (_, domain) = candidate.expect("only candidates are selected");
            if !domain.is_none_or(|domain| domains.insert(domain)) {
                return Some("two hosts of one domain");
            }
        }
    }
    let most = brute_force(demands, 0, &mut BTreeSet::new());
    (used.len() < most).then_some("fewer hosts than possible")
}

#[test]
fn selection_is_as_large_as_that_of_a_search_of_all_possibilities() {
    const RACKS: [&str; 3] = ["a", "b", "c"];
    // A linear congruential generator, so that each run has the same instances.
    let mut state = 1_u64;
    let mut below = |n: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let (mut without_domains, mut greedy) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..5000 {
        let hosts = usize::try_from(below(6)).unwrap();
        let racks: Vec<Option<&str>> = (0..hosts)
            .map(|_| RACKS.get(usize::try_from(below(4)).unwrap()).copied())
            .collect();
        let mut demands = Vec::new();
        for _ in 0..=below(3) {
            let has_racks = below(2) == 0;
            let all = racks.iter().enumerate();
            let candidates = all.filter(|_| below(2) == 0);
            let candidates = candidates
                .map(|(host, rack)| (host, rack.filter(|_| has_racks)))
                .collect();
            let missing = usize::try_from(below(4)).unwrap();
            demands.push(Demand {
                missing,
                candidates,
            });
        }
        let selected = select(&demands);
        assert_eq!(broken(&demands, &selected), None, "{demands:?}");
        assert_eq!(select(&demands), selected);
        // Two rules that are left out are found: the domains, and all roles at once.
        let mut mutated = demands.clone();
        let all = mutated.iter_mut().flat_map(|it| &mut it.candidates);
        all.for_each(|(_, domain)| *domain = None);
        without_domains.extend(broken(&demands, &select(&mutated)));
        let mut taken = BTreeSet::new();
        let one_by_one = demands.iter().map(|demand| {
            let mut demand = demand.clone();
            demand.candidates.retain(|(host, _)| !taken.contains(host));
            let selected = select(&[demand]).remove(0);
            taken.extend(selected.iter().copied());
            selected
        });
        greedy.extend(broken(&demands, &one_by_one.collect::<Vec<_>>()));
    }
    assert_eq!(without_domains, BTreeSet::from(["two hosts of one domain"]));
    assert_eq!(greedy, BTreeSet::from(["fewer hosts than possible"]));
}
