//! Soak test (`make soak`), by default for an hour: VMs are created, changed, stopped, crashed and drained at random on
//! the local cluster, while operator, API server and kubelet are killed at random. The invariants are checked all the
//! time, and at the end in the audit log. Then the node must have no remains.
//!
//! ```text
//! SOAK_MINUTES=3 make soak        # an hour by default
//! SOAK_SEED=42 make soak          # the events of an earlier run; their effects also depend on the time
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`chaos`] | the random events |
//! | [`follow`] | writes and their authors, from the API server's audit log |
//! | [`lives`] | ownership of pods, and the status of VMs without one |
//! | [`host`] | the node: at most one QEMU for each VM, resources of programs, remains at the end |

mod chaos;
mod follow;
mod host;
mod lives;

use crate::harness::bridge::Bridge;
use crate::harness::vm::{BOOT, SHUTDOWN, Vm};
use crate::harness::{Space, e2e_with, environment, eventually, kubectl};
use chaos::{Chaos, VMS, name};
use follow::Follow;
use host::Host;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A run of this length has caused every event.
const ALL_HAPPENS: Duration = Duration::from_secs(30 * 60);
/// The time without writes after which all VMs count as settled.
const QUIET: Duration = Duration::from_secs(15);

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
    )
}

#[test]
fn an_hour_of_everything_that_can_happen() {
    let minutes = setting("SOAK_MINUTES").unwrap_or(60);
    let seed =
        setting("SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()) ^ host::nanos());
    println!("SOAK_SEED={seed} SOAK_MINUTES={minutes}");
    environment::ready();
    // Its pod belongs to the cluster and remains.
    let plugin = [
        "rollout",
        "status",
        "daemonset/vm-device-plugin",
        "--namespace",
        "kube-system",
        "--timeout",
        "60s",
    ];
    assert!(
        kubectl::command(&plugin)
            .into_std()
            .output()
            .is_ok_and(|output| output.status.success()),
        "{plugin:?}"
    );
    let before = Host::observe();
    let pods = RefCell::new(BTreeSet::new());
    // A tap needs the host network.
    e2e_with(environment::SLOTS, "privileged", json!({}), async |space| {
        let _bridge = Bridge::make(chaos::BRIDGE);
        soak(space, seed, Duration::from_secs(minutes * 60)).await;
        pods.replace(space.pods.names_by_uid().into_keys().collect());
    });
    nothing_is_left(&before, &pods.take());
}

async fn soak(space: &Space, seed: u64, time: Duration) {
    let mut audit = Follow::from_now(&space.name);
    space.operator().await;
    let mut vms = Vec::new();
    for n in 0..VMS {
        let name = name(&space.name, n);
        vms.push(space.create(&name, chaos::machine(&name)).await);
    }
    let mut chaos = Chaos::new(space, &vms, seed);
    let mut watch = host::Watch::default();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let happening = async {
            chaos.cause_event().await;
            tokio::time::sleep(chaos.pause()).await;
        };
        tokio::select! {
            () = happening => {}
            () = observe_always(space, &mut audit, &mut watch) => {}
        }
    }
    println!("events: {}", chaos.summary());
    if time >= ALL_HAPPENS {
        chaos.judge();
    }
    let outages = chaos.outages().to_vec();
    drop(chaos);
    settle(space, &vms, &mut audit, &mut watch).await;
    watch.judge();
    audit.judge(&outages);
    watch.lives.judge(audit.to_pods());
    println!("{}\n{}", watch.summary(), audit.summary());
}

/// Observes until the caller has enough.
async fn observe_always(space: &Space, audit: &mut Follow, watch: &mut host::Watch) {
    loop {
        watch.observe(space);
        audit.read();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Asserts that all VMs start again on request. Then no program writes any more, not even a new operator.
async fn settle(space: &Space, vms: &[Vm<'_>], audit: &mut Follow, watch: &mut host::Watch) {
    for vm in vms {
        if vm.now().is_null() {
            chaos::make_again(vm).await;
        }
        // This resets the backoff of a VM that has exited often.
        vm.set_state("Stopped").await;
        vm.wait_for_reason("Stopped", 2 * SHUTDOWN).await;
        vm.patch(
            &json!({"spec": {"vm": {"state": "Running", "currentCpus": 1, "currentRam": "256Mi"}}}),
        )
        .await;
        vm.booted().await;
        watch.observe(space);
    }
    quiet(space, audit, watch).await;
    let before: Vec<Value> = vms.iter().map(Vm::now).collect();
    let old = space.operator().await;
    chaos::kill_operator(space).await;
    let new = space
        .operator_other_than(&[crate::harness::vm::uid(&old)])
        .await;
    let new = new["metadata"]["name"].as_str().unwrap().to_owned();
    // The Lease of the killed operator must expire first.
    eventually("the new operator leads", 90, async || {
        audit.read();
        if audit.leases_by(&new) > 0 {
            Ok(())
        } else {
            Err("another one, or none".to_owned())
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    audit.read();
    let written = audit.by_pod(&new);
    assert!(
        written.is_empty(),
        "a new operator writes nothing where all is settled: {written:#?}"
    );
    assert_eq!(vms.iter().map(Vm::now).collect::<Vec<Value>>(), before);
}

async fn quiet(space: &Space, audit: &mut Follow, watch: &mut host::Watch) {
    let began = Instant::now();
    let mut last = (audit.writes(), Instant::now());
    while last.1.elapsed() < QUIET {
        assert!(
            began.elapsed() < Duration::from_secs(180),
            "who writes, where nothing happens: {:#?}",
            audit.last(10)
        );
        watch.observe(space);
        audit.read();
        if audit.writes() != last.0 {
            last = (audit.writes(), Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The time limit for the cleanup by kubelet and kernel.
fn nothing_is_left(before: &Host, pods: &BTreeSet<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(eventually("nothing is left", BOOT + SHUTDOWN, async || {
        let left = Host::observe().more_than(before, pods);
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:#?}"))
        }
    }));
    println!("nothing is left of {} pods: {before}", pods.len());
}
