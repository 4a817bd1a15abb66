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

/// What `demands` admit: a host for one role, one host for a domain, no more than are missing.
fn check(demands: &[Demand], selected: &[Vec<usize>]) {
    let mut used = BTreeSet::new();
    for (demand, hosts) in demands.iter().zip(selected) {
        assert!(hosts.len() <= demand.missing);
        let mut domains = BTreeSet::new();
        for host in hosts {
            assert!(used.insert(*host), "two roles have one host: {demands:?}");
            let domain = demand
                .candidates
                .iter()
                .find(|(candidate, _)| candidate == host);
            let (_, domain) = domain.expect("only candidates are selected");
            assert!(
                domain.is_none_or(|domain| domains.insert(domain)),
                "{demands:?}"
            );
        }
    }
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
        check(&demands, &selected);
        let number: usize = selected.iter().map(Vec::len).sum();
        assert_eq!(
            number,
            brute_force(&demands, 0, &mut BTreeSet::new()),
            "{demands:?}"
        );
        assert_eq!(select(&demands), selected);
    }
}
