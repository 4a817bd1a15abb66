//! `docs/reference.md`.

use super::super::fields::LATER;
use super::{cell, schema_rows};
use kube::core::schema::StructuralSchemaRewriter;
use schemars::generate::SchemaSettings;
use std::fmt::Write;
use vm_operator::api::conditions::{self, ConditionReason};
use vm_operator::api::runner::metrics;
use vm_operator::api::vm::{self, names};
use vm_operator::settings::Settings;
use vm_operator::telemetry::metrics::Metrics;

const HEAD: &str = "# Reference\n\n\
    Everything that has a name. The reasons of the condition `Ready`, with causes and next steps, are in\n\
    [troubleshooting.md](troubleshooting.md); differences from the Java VM-Operator are in [deviations.md](deviations.md).\n\
    What the API server refuses it refuses with the words that stand here in quotes, after the field's name.\n";
const SETTINGS: &str = "\n## Settings\n\n\
    `config.yaml` in the ConfigMap `vm-operator`. All keys are below `/Manager` → `/Controller`, and a dot separates a key from the\n\
    key that contains it. `namespace`, `runnerDataPvc`, `cpuOvercommit`, `ramOvercommit`, `loadBalancerService` and\n\
    `loggingProperties` are those of the Java VM-Operator, the others are extensions. Keys that only its web console reads are\n\
    ignored. For other keys without effect the log has a warning.\n\n\
    `/Reconciler` → `/DisplaySecretReconciler` → `passwordValidity` (seconds, default 10) is for console front ends, which read it\n\
    from the ConfigMap; the operator ignores it. A front end writes `display-password` and `password-expiry` (seconds since 1970)\n\
    into the VM's display secret and waits for `status.displayPasswordSerial` to rise. Nobody can request a password from the\n\
    operator by way of a VM: in the Java VM-Operator, that is a call within its own process.\n\n\
    | key | type | default | limits | what |\n|---|---|---|---|---|\n";
const LATER_HEAD: &str =
    "\n### Fields that change nothing of what is made\n\n| field | why |\n|---|---|\n";
const CONDITIONS: &str = "\n## Conditions\n\n\
    `kubectl wait --for=condition=NAME vm/…` waits for one. The first five a VM has from its creation on.\n\n\
    | condition | true if | written |\n|---|---|---|\n";
const REASONS_HEAD: &str = "\n### Their reasons\n\n\
    The reasons of `Ready` are in [troubleshooting.md](troubleshooting.md), and are the events' reasons too.\n\n\
    | condition | reason | what it means |\n|---|---|---|\n";
const METRICS: &str = "\n## Metrics\n\n\
    On port 8081 of the operator's pod, path `/metrics`, in the OpenMetrics format. Beside it, `/livez` says whether the process\n\
    answers and `/readyz` whether it knows all that it needs, or what is missing.\n\n\
    | name | kind | labels | what |\n|---|---|---|---|\n";

const VM_METRICS: &str = "\n### Of each VM\n\n\
    On the port `metrics` of each VM's pod (`spec.metricsPort`), path `/metrics`, in Prometheus' text format, counted when somebody\n\
    asks: with KubeVirt's names where the meaning is the same. All have the labels `node`, `namespace` and `name` of the VM. What\n\
    cannot be had at the moment is left out; what the guest's memory is like, its balloon driver tells. Networks of kind `user`\n\
    are counted with the pod. `deploy/monitoring` has the operator and its VMs scraped by the Prometheus operator.\n\n\
    | name | kind | labels | what |\n|---|---|---|---|\n";

/// The file's text.
pub(super) fn reference() -> String {
    let mut text = HEAD.to_owned();
    text += &objects();
    text += LATER_HEAD;
    for (field, why) in LATER {
        writeln!(text, "| `{field}` | {} |", cell(why)).unwrap();
    }
    text += CONDITIONS;
    // The five that are always there come first.
    let (always, sometimes): (Vec<_>, Vec<_>) = conditions::TYPES
        .iter()
        .partition(|(name, _)| conditions::INITIAL.contains(name));
    for (name, about) in always.into_iter().chain(sometimes) {
        let about = about.trim().trim_start_matches("Condition: ");
        let (what, written) = about.split_once(". Written ").unwrap_or((about, ""));
        writeln!(
            text,
            "| `{name}` | {} | {} |",
            cell(what),
            cell(written.trim_end_matches('.'))
        )
        .unwrap();
    }
    text += REASONS_HEAD;
    for (condition, _) in conditions::TYPES {
        for reason in ConditionReason::ALL
            .iter()
            .filter(|reason| reason.conditions().contains(condition))
        {
            let meaning = cell(reason.meaning().trim_end_matches('.'));
            writeln!(
                text,
                "| `{condition}` | `{}` | {meaning} |",
                reason.as_str()
            )
            .unwrap();
        }
    }
    text += SETTINGS;
    text += &settings();
    text += METRICS;
    text += &metrics();
    text += VM_METRICS;
    for metrics::Metric {
        name,
        kind,
        labels,
        what,
    } in metrics::ALL
    {
        let what = cell(what.trim_end_matches('.'));
        writeln!(text, "| `{name}` | {} | {labels} | {what} |", kind.as_str()).unwrap();
    }
    text += &constants("Labels", "", names::LABELS, "Label: ");
    let annotations = "Those of a user under the same prefixes are not taken over to the pod.\n\n";
    text += &constants("Annotations", annotations, names::ANNOTATIONS, "Annotation");
    text
}

/// The fields of a VM.
fn objects() -> String {
    let crd = serde_json::to_value(vm::crd()).unwrap_or_default();
    let kind = crd
        .pointer("/spec/names/kind")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let schema = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties")
        .cloned()
        .unwrap_or_default();
    let mut text = String::new();
    for (part, title) in [("spec", "what it should be"), ("status", "what it is")] {
        write!(
            text,
            "\n## {kind}: `{part}`, {title}\n\n| field | type | default | limits | what |\n|---|---|---|---|---|\n"
        )
        .unwrap();
        text += &schema
            .get(part)
            .map(|schema| schema_rows::rows(part, schema))
            .unwrap_or_default();
    }
    text
}

/// Rows for the keys of the configuration, from its types.
fn settings() -> String {
    let generator = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let generator = generator
        .with_transform(StructuralSchemaRewriter)
        .into_generator();
    let schema = generator.into_root_schema_for::<Settings>();
    let keys = schema
        .get("properties")
        .and_then(serde_json::Value::as_object)
        .into_iter()
        .flatten();
    keys.map(|(key, schema)| schema_rows::rows(key, schema))
        .collect()
}

/// Rows for all figures, from what `/metrics` serves.
fn metrics() -> String {
    let metrics = Metrics::default();
    // A figure with labels is served once it has some.
    metrics.reconciled("vm", "ok", 0.0);
    metrics.set_backoff("vm", 0);
    metrics.requested("get", "vms");
    metrics.set_vms(["Running"].into_iter());
    metrics.set_stored("vms", 1);
    let served = metrics.text();
    let mut text = String::new();
    for line in served.lines() {
        let Some((name, what)) = line
            .strip_prefix("# HELP ")
            .and_then(|help| help.split_once(' '))
        else {
            continue;
        };
        let kind = served.lines().find_map(|line| {
            line.strip_prefix("# TYPE ")?
                .strip_prefix(name)?
                .strip_prefix(' ')
        });
        let kind = kind.unwrap_or_default();
        let full = if kind == "counter" {
            format!("{name}_total")
        } else {
            name.to_owned()
        };
        let counted = match kind {
            "histogram" => format!("{name}_count"),
            _ => full.clone(),
        };
        let sample = served
            .lines()
            .find_map(|line| line.strip_prefix(counted.as_str())?.strip_prefix('{'));
        let labels = sample
            .and_then(|sample| sample.split_once('}'))
            .map(|(labels, _)| labels)
            .unwrap_or_default();
        let labels: Vec<&str> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(name, _)| name)
            .collect();
        let what = cell(what.trim_end_matches('.'));
        writeln!(
            text,
            "| `{full}` | {kind} | {} | {what} |",
            cell(&labels.join(", "))
        )
        .unwrap();
    }
    text
}

fn constants(title: &str, about: &str, all: &[(&str, &str)], prefix: &str) -> String {
    let mut text = format!("\n## {title}\n\n{about}| name | what |\n|---|---|\n");
    for (name, what) in all {
        let what = what
            .trim()
            .trim_start_matches(prefix)
            .trim_start_matches([':', ' '])
            .trim_end_matches('.');
        writeln!(text, "| `{name}` | {} |", cell(what)).unwrap();
    }
    text
}
