//! `docs/reference.md`.

use super::super::fields::LATER;
use super::{cell, schema_rows};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::schema::StructuralSchemaRewriter;
use schemars::generate::SchemaSettings;
use std::fmt::Write;
use vm_operator::api::conditions::{self, ConditionReason};
use vm_operator::api::pool;
use vm_operator::api::runner::metrics;
use vm_operator::api::vm::{self, names};
use vm_operator::settings::Settings;
use vm_operator::telemetry::metrics::Metrics;

const HEAD: &str = "# Reference\n\n\
    Fields, configuration keys, conditions, metrics, labels and annotations. The reasons of the condition `Ready`, with causes\n\
    and next steps, are in [troubleshooting.md](troubleshooting.md). Differences from the Java VM-Operator are in\n\
    [deviations.md](deviations.md). The column `limits` quotes the message with which the API server rejects an invalid value.\n\
    In the message, the name of the field precedes it.\n";
const SETTINGS: &str = "\n## Settings\n\n\
    The configuration of the operator is `config.yaml` in the ConfigMap `vm-operator`. All keys are below `/Manager` →\n\
    `/Controller`, and a dot separates a key from the key that contains it. `namespace`, `runnerDataPvc`, `cpuOvercommit`,\n\
    `ramOvercommit`, `loadBalancerService` and `loggingProperties` are keys of the Java VM-Operator; the others are extensions.\n\
    The operator ignores keys that only the web console of the Java VM-Operator reads. It logs a warning for other keys without\n\
    effect.\n\n\
    `/Reconciler` → `/DisplaySecretReconciler` → `passwordValidity` (seconds, default 10) is for console front ends, which read it\n\
    from the ConfigMap; the operator ignores it. A front end writes `display-password` and `password-expiry` (seconds since 1970)\n\
    into the VM's display Secret and waits until `status.displayPasswordSerial` increases.\n\n\
    | key | type | default | limits | description |\n|---|---|---|---|---|\n";
const LATER_HEAD: &str =
    "\n### Fields without effect on the created objects\n\n| field | reason |\n|---|---|\n";
const CONDITIONS: &str = "\n## Conditions\n\n\
    `kubectl wait --for=condition=NAME vm/VM-NAME` waits for a condition. A VM has the first five conditions from its creation.\n\n\
    | condition | true if | written or reported |\n|---|---|---|\n";
const REASONS_HEAD: &str = "\n### Reasons of conditions\n\n\
    The reasons of `Ready` are in [troubleshooting.md](troubleshooting.md); events have the same reasons.\n\n\
    | condition | reason | meaning |\n|---|---|---|\n";
const METRICS: &str = "\n## Metrics\n\n\
    The operator serves its metrics on port 8081 of its pod, path `/metrics`, in the OpenMetrics format. `/livez` on the same port\n\
    is 200 if the process answers. `/readyz` is 200 if the stores of the operator are complete, else it names the missing ones.\n\n\
    | name | kind | labels | description |\n|---|---|---|---|\n";

const VM_METRICS: &str = "\n### Metrics of each VM\n\n\
    The runner serves the metrics of its VM on the port `metrics` of the pod (`spec.metricsPort`), path `/metrics`, in the text\n\
    format of Prometheus. It reads them for each scrape. Metrics with the meaning of a KubeVirt metric have its name. All have\n\
    the labels `node`, `namespace` and `name` of the VM. Unavailable metrics are omitted. The balloon driver of the guest reports\n\
    the memory in the guest. Traffic of `user` networks is part of the pod's traffic. `deploy/monitoring` configures the\n\
    Prometheus operator to scrape the operator and its VMs.\n\n\
    | name | kind | labels | description |\n|---|---|---|---|\n";

/// The file's text.
pub(super) fn reference() -> String {
    let mut text = HEAD.to_owned();
    text += &objects(&vm::crd());
    text += LATER_HEAD;
    for (field, why) in LATER {
        writeln!(text, "| `{field}` | {} |", cell(why)).unwrap();
    }
    text += CONDITIONS;
    // The five conditions that every VM has come first.
    let (always, sometimes): (Vec<_>, Vec<_>) = conditions::TYPES
        .iter()
        .partition(|(name, _)| conditions::INITIAL.contains(name));
    for (name, about) in always.into_iter().chain(sometimes) {
        let about = about.trim().trim_start_matches("Condition: ");
        let source = [". Written ", ". Reported "]
            .into_iter()
            .find_map(|verb| about.split_once(verb));
        let (what, source) = source.unwrap_or((about, ""));
        writeln!(
            text,
            "| `{name}` | {} | {} |",
            cell(what),
            cell(source.trim_end_matches('.'))
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
    text += &pools();
    let annotations = "The operator ignores annotations of users with the same prefixes.\n\n";
    text += &constants("Annotations", annotations, names::ANNOTATIONS, "Annotation");
    text
}

/// The kinds of pools.
fn pools() -> String {
    let definitions = pool::definitions();
    definitions.iter().map(objects).collect()
}

/// The fields of a kind.
fn objects(crd: &CustomResourceDefinition) -> String {
    let crd = serde_json::to_value(crd).unwrap_or_default();
    let kind = crd
        .pointer("/spec/names/kind")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let schema = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties")
        .cloned()
        .unwrap_or_default();
    let mut text = String::new();
    for (part, title) in [("spec", "desired state"), ("status", "observed state")] {
        write!(
            text,
            "\n## {kind}: `{part}`, {title}\n\n| field | type | default | limits | description |\n|---|---|---|---|---|\n"
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

/// Rows for all metrics, from the output of `/metrics`.
fn metrics() -> String {
    let metrics = Metrics::default();
    // A metric with labels is served only with a value.
    metrics.reconciled("vm", "ok", 0.0);
    metrics.set_backoff("vm", 0);
    metrics.requested("get", "vms");
    metrics.set_vms(["Running"].into_iter());
    metrics.set_stored("vms", 1);
    metrics.pools.set_vms("desktops", "free", 1);
    metrics.pools.set_waiting("desktops", 0);
    metrics.pools.assigned("desktops", 0.1);
    metrics.pools.conflict("desktops");
    metrics.conditions.set_source(|sample| {
        sample(&[
            ("namespace", ""),
            ("name", ""),
            ("type", ""),
            ("status", ""),
        ]);
    });
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
    let mut text = format!("\n## {title}\n\n{about}| name | description |\n|---|---|\n");
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
