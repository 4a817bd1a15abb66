//! `make bench-slope`: whether the operator's memory grows with the number of its reconciles.
//!
//! The VMs run and are settled. Then the proxy repeats what the API server has told last of each, round after round: the
//! operator looks at each VM as at one that has changed, finds nothing to do and writes nothing. A round is over when the
//! operator's own count of reconciles says so. The memory is that of an operator at rest.

use super::operator::Operator;
use super::{Bench, NAMESPACE, kubelet, row};
use std::time::{Duration, Instant};

/// By how many percent the memory may grow, at most, from a tenth of the reconciles to the last.
const STEEPEST: f64 = 1.0;
/// By when the operator has given back what it does not use, and a little more.
const REST: Duration = Duration::from_secs(35);
/// By when a round has to be over.
const DEADLINE: Duration = Duration::from_secs(60);

impl Bench {
    pub(super) async fn slope(&self, operator: Operator, vms: usize, reconciles: u64) {
        kubelet::start(&self.client, NAMESPACE);
        self.create(NAMESPACE, 0..vms).await;
        self.settled(vms).await;
        self.quiet().await;
        self.record.forget();
        let (began, cpu, first) = (Instant::now(), operator.cpu(), operator.reconciles().await);
        let mut memory = Vec::new();
        for (percent, share) in [
            (0, 0),
            (10, reconciles / 10),
            (50, reconciles / 2),
            (100, reconciles),
        ] {
            while operator.reconciles().await - first < share {
                self.round(&operator).await;
            }
            tokio::time::sleep(REST).await;
            let (done, now) = (operator.reconciles().await - first, operator.memory());
            row(
                &format!("operator's memory after {percent} %: {done} reconciles of {vms} VMs"),
                &format!("{now:.2} MiB"),
            );
            memory.push(now);
        }
        let (took, used) = (began.elapsed() - 4 * REST, operator.cpu() - cpu);
        let [_, early, half, end] = memory.as_slice() else {
            unreachable!("four were taken")
        };
        let slope = (end / early - 1.0) * 100.0;
        row(
            "slope of its memory from 10 % to 100 %",
            &format!("{slope:+.2} %"),
        );
        row(
            "slope of its memory from 50 % to 100 %",
            &format!("{:+.2} %", (end / half - 1.0) * 100.0),
        );
        row(
            "its processor time for each",
            &format!("{:.3} ms", used.as_secs_f64() * 1e3 / reconciles as f64),
        );
        row(
            "time for all of these",
            &format!("{:.0} s", took.as_secs_f64()),
        );
        let writes = self.record.writes();
        row(
            "writes meanwhile",
            &format!("{} {writes:?}", writes.values().sum::<usize>()),
        );
        operator.stop().await;
        assert!(
            slope < STEEPEST,
            "the operator's memory grows with its reconciles: from {early:.2} to {end:.2} MiB, by {slope:+.2} %; less than \
             {STEEPEST} % is allowed"
        );
    }

    /// Tells of each VM again, and waits until the operator has looked at all of them.
    async fn round(&self, operator: &Operator) {
        let (began, before) = (Instant::now(), operator.reconciles().await);
        let told = self.record.tell_again() as u64;
        while operator.reconciles().await - before < told {
            assert!(
                began.elapsed() < DEADLINE,
                "the operator does not look at VMs that it is told of"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
