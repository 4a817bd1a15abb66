//! `make bench-startup`: the duration of each step of the programs' start, for docs/latency.md. Both programs are the
//! released ones. The operator is a process that connects to its own API server over TLS, with an empty namespace. The
//! runner of the image runs in the fixture of its tests, with a tiny guest. Each is started `STARTS` times (20), one
//! after the other.
//!
//! It needs root, `make programs`, `make images`, `make guests` and the built cluster (`tests/cluster/cluster build`).

mod operator;
mod runner;

/// The names of the steps in order, with the end of each step in each start, in ms since the program's start.
type Steps = Vec<(&'static str, Vec<f64>)>;

use support::provenance;

#[test]
fn startup_time_is_printed_by_step() {
    let starts =
        std::env::var("STARTS").map_or(20, |text| text.parse().expect("STARTS is a number"));
    print_steps("operator", operator::starts(starts));
    print_steps("runner", runner::starts(starts));
    provenance::print("make bench-startup");
}

/// Prints the end and the duration of each step.
fn print_steps(program: &str, steps: Steps) {
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

/// Median and 95th percentile.
fn quantiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let value = |share: f64| {
        values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1]
    };
    format!("p50 {:.0} ms, p95 {:.0} ms", value(0.5), value(0.95))
}
