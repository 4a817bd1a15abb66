//! Objects that were stored before a rule existed: other fields can still be edited, and each status can be written.

use crate::apiserver::definition::Definition;
use crate::apiserver::world::World;
use serde_json::{Value, json};

/// A spec that violates a rule of each kind, with unrelated edits and one that repeats the violation.
struct Stored {
    name: &'static str,
    spec: Value,
    still_refused: Value,
}

fn stored() -> Vec<Stored> {
    let bad_disk = json!({"volumeClaimTemplate": {"metadata": {"name": "UPPER"}}});
    let forward = json!({"user": {"forward": [{"port": 5900, "guestPort": 22}]}});
    vec![
        Stored {
            name: "value",
            spec: json!({"vm": {"rtcClock": "tsc", "maximumCpus": 0, "maximumRam": "lots"}}),
            still_refused: json!({"vm": {"rtcClock": "tick"}}),
        },
        Stored {
            name: "list",
            spec: json!({"vm": {"disks": [bad_disk, bad_disk]}}),
            still_refused: json!({"vm": {"disks": [bad_disk]}}),
        },
        Stored {
            name: "memory",
            spec: json!({"vm": {"maximumRam": "1Gi", "currentRam": "4Gi"}}),
            still_refused: json!({"vm": {"currentRam": "5Gi"}}),
        },
        Stored {
            name: "absurd",
            spec: json!({"vm": {"maximumRam": "1e99"}, "resources": {"requests": {"memory": "1e99"}}}),
            still_refused: json!({"vm": {"maximumRam": "1e98"}}),
        },
        Stored {
            name: "cpus",
            spec: json!({"vm": {"cpuTopology": {"sockets": 2}, "currentCpus": 3}}),
            still_refused: json!({"vm": {"currentCpus": 5}}),
        },
        Stored {
            name: "exclusives",
            spec: json!({"vm": {"cpuTopology": {"sockets": 2}, "maximumCpus": 2}, "image": {"version": "1"}}),
            still_refused: json!({"vm": {"maximumCpus": 4}}),
        },
        Stored {
            name: "ports",
            spec: json!({"vm": {"networks": [forward]}}),
            still_refused: json!({"vm": {"networks": [forward, {"user": {}}]}}),
        },
        Stored {
            name: "a-name-that-is-longer-than-the-value-of-a-label-may-be-which-is-63",
            spec: json!({"vm": {}}),
            still_refused: json!({"vm": {"rtcClock": "tick"}}),
        },
    ]
}

#[tokio::test]
async fn invalid_object_from_before_a_rule_can_be_edited_except_the_invalid_field() {
    let world = World::new("ratcheting").await;
    let definition = Definition::without_rules(&world).await;
    for Stored { name, spec, .. } in stored() {
        definition
            .create(name, &spec, false)
            .await
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    definition.add_rules().await;
    for Stored {
        name,
        spec,
        still_refused,
    } in stored()
    {
        if spec != json!({"vm": {}}) {
            assert!(
                definition.create("new", &spec, true).await.is_err(),
                "{name} breaks no rule"
            );
        }
        for edit in [
            json!({"spec": {"vm": {"state": "Running"}}}),
            json!({"spec": {"guestShutdownStops": true, "vm": {"cpuModel": "EPYC", "display": {"outputs": 2}}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
        ] {
            definition
                .merge(name, "", &edit)
                .await
                .unwrap_or_else(|e| panic!("{name}: {edit}: {e}"));
        }
        let status = json!({"status": {"cpus": 2}});
        definition
            .merge(name, "/status", &status)
            .await
            .unwrap_or_else(|e| panic!("{name}: its status: {e}"));
        let repeated = definition
            .merge(name, "", &json!({"spec": still_refused}))
            .await;
        assert!(repeated.is_err(), "{name}: {still_refused} is admitted");
    }
}
