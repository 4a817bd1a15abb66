//! `make bench-startup`: where the time of the programs' own start goes, for docs/latency.md. Both are those that ship: the
//! operator as a process at an API server of its own, over TLS and in a namespace with nothing in it; the runner of the image, in the
//! rig of its tests, with a tiny guest. Each is started `STARTS` times (20), one after the other.
//!
//! It needs root, `make programs`, `make images`, `make guests` and the built cluster (`tests/cluster/cluster build`).

mod operator;
mod runner;

/// In the order in which they come, a step's name and its end in each of the starts, in ms from the program's own.
type Steps = Vec<(&'static str, Vec<f64>)>;

use support::taken;

#[test]
fn where_the_time_of_a_start_goes() {
    let starts =
        std::env::var("STARTS").map_or(20, |text| text.parse().expect("STARTS is a number"));
    tell("operator", operator::starts(starts));
    tell("runner", runner::starts(starts));
    taken::tell("make bench-startup");
}

/// When each step is over, and how long it took.
fn tell(program: &str, steps: Steps) {
    let mut before: Option<Vec<f64>> = None;
    for (step, ends) in steps {
        let from = before.unwrap_or_else(|| vec![0.0; ends.len()]);
        let took = ends
            .iter()
            .zip(&from)
            .map(|(end, from)| end - from)
            .collect();
        println!(
            "{:<60} {}; this step {}",
            format!("{program}: {step}"),
            quantiles(ends.clone()),
            quantiles(took)
        );
        before = Some(ends);
    }
}

/// The values below which half and 95 of 100 of the values are.
fn quantiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let value = |share: f64| {
        values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1]
    };
    format!("p50 {:.0} ms, p95 {:.0} ms", value(0.5), value(0.95))
}
