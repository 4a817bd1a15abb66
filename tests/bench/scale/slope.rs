//! `make bench-slope`: whether the operator's memory grows with the number of its reconciles.
//!
//! The VMs run and are settled. Then the proxy repeats the last event of each VM, round after round: the operator
//! reconciles each VM, finds no difference and writes nothing. A round ends when the operator's own count of reconciles
//! has increased by the number of VMs. The memory is measured while the operator is idle.

use super::operator::Operator;
use super::{Bench, NAMESPACE, kubelet, row};
use std::time::{Duration, Instant};

/// The maximum growth of the memory from a tenth of the reconciles to the last, in percent.
const GROWTH_MAX_PERCENT: f64 = 1.0;
/// The time in which the operator returns unused memory, with a margin.
const IDLE_TIME: Duration = Duration::from_secs(35);
/// The time limit of a round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

impl Bench {
    pub(super) async fn slope(&self, operator: Operator, vms: usize, reconciles: u64) {
        kubelet::start(&self.client, NAMESPACE);
        self.create(NAMESPACE, 0..vms).await;
        self.wait_until_ready(vms).await;
        self.wait_until_idle().await;
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
            tokio::time::sleep(IDLE_TIME).await;
            let (done, now) = (operator.reconciles().await - first, operator.memory());
            row(
                &format!("operator's memory after {percent} %: {done} reconciles of {vms} VMs"),
                &format!("{now:.2} MiB"),
            );
            memory.push(now);
        }
        let (took, used) = (began.elapsed() - 4 * IDLE_TIME, operator.cpu() - cpu);
        let [_, early, half, end] = memory.as_slice() else {
            unreachable!("it was measured four times")
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
            "its processor time per reconcile",
            &format!("{:.3} ms", used.as_secs_f64() * 1e3 / reconciles as f64),
        );
        row(
            "time for all of these",
            &format!("{:.0} s", took.as_secs_f64()),
        );
        let writes = self.record.writes();
        row(
            "writes in this time",
            &format!("{} {writes:?}", writes.values().sum::<usize>()),
        );
        operator.stop().await;
        assert!(
            slope < GROWTH_MAX_PERCENT,
            "the operator's memory grows with its reconciles: from {early:.2} to {end:.2} MiB, by {slope:+.2} %; less than \
             {GROWTH_MAX_PERCENT} % is allowed"
        );
    }

    /// Repeats the last event of each VM, and waits until the operator has reconciled all of them.
    async fn round(&self, operator: &Operator) {
        let (began, before) = (Instant::now(), operator.reconciles().await);
        let repeated = self.record.repeat_events() as u64;
        while operator.reconciles().await - before < repeated {
            assert!(
                began.elapsed() < ROUND_TIMEOUT,
                "the operator does not reconcile VMs after their events"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
