//! The pages of `docs/reference/`.

use super::super::fields::LATER;
use super::super::{sample_metrics, sample_web_metrics};
use super::{anchor, cell, schema_rows};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::schema::StructuralSchemaRewriter;
use schemars::generate::SchemaSettings;
use std::fmt::Write;
use vm_operator::api::pool;
use vm_operator::api::runner::metrics;
use vm_operator::api::vm::conditions::{self, ConditionReason};
use vm_operator::api::vm::{self, names};
use vm_operator::settings::Settings;

const FIELDS: &str = "| field | type | default | limits | description |\n|---|---|---|---|---|\n";
const SPEC: &str = "# VirtualMachine: `spec`\n\n\
    The desired state of a VM. The column `limits` quotes the message with which the API server rejects an invalid value. In the\n\
    message, the name of the field precedes it. [examples/full.yaml](../../examples/full.yaml) has most of the fields in a VM.\n\n";
const POOLS: &str = "# VmPool and VmAssignment\n\n\
    The kinds of pools. [Pools](../pools.md) describes their use.\n";
const LATER_HEAD: &str =
    "## Fields without effect on the created objects\n\n| field | reason |\n|---|---|\n";
const STATUS: &str = "# VirtualMachine: `status`\n\n\
    The observed state of a VM. [Conditions](conditions.md) has the conditions and their reasons. `kubectl get vm NAME -o yaml`\n\
    prints all fields.\n\n";
const CONDITIONS: &str = "# Conditions\n\n\
    `kubectl wait --for=condition=NAME vm/VM-NAME` waits for a condition. A VM has the first five conditions from its creation.\n\n\
    | condition | true if | written or reported |\n|---|---|---|\n";
const REASONS_HEAD: &str = "\n## Reasons\n\n\
    The reasons of `Ready` are in [troubleshooting.md](../troubleshooting.md); events have the same reasons.\n\n\
    | condition | reason | meaning |\n|---|---|---|\n";
const SETTINGS: &str = "# Configuration\n\n\
    The configuration of the operator is `config.yaml` in the ConfigMap `vm-operator`.\n\
    [Configuration of the operator](../operate/configuration.md) has an example and the way to change it. All keys are below\n\
    `/Manager` → `/Controller`, and a dot separates a key from the key that contains it. `namespace`, `runnerDataPvc`,\n\
    `cpuOvercommit`, `ramOvercommit`, `loadBalancerService` and `loggingProperties` are keys of the Java VM-Operator; the others are\n\
    extensions. The operator ignores keys that only web consoles read. It logs a warning for other keys\n\
    without effect.\n\n\
    `/Reconciler` → `/DisplaySecretReconciler` → `passwordValidity` is for the [web console](../web/reference.md#configuration), which\n\
    reads it from the ConfigMap. The operator ignores the key. Other console front ends can write `display-password` and `password-expiry`\n\
    (seconds since 1970) into the VM's display Secret. They wait until `status.displayPasswordSerial` increases.\n\n\
    | key | type | default | limits | description |\n|---|---|---|---|---|\n";
const METRICS: &str = "# Metrics\n\n\
    [Monitoring](../operate/monitoring.md) describes the installation of monitors, dashboard and alerts.\n\n\
    ## Metrics of the operator\n\n\
    The operator serves its metrics on port 8081 of its pod, path `/metrics`, in the OpenMetrics format. `/livez` on the same port\n\
    is 200 if the process answers. `/readyz` is 200 if the stores of the operator are complete, else it names the missing ones.\n\n\
    | name | kind | labels | description |\n|---|---|---|---|\n";
const WEB_METRICS: &str = "\n## Metrics of the web console\n\n\
    The [web console](../web.md) serves its metrics on port 8081 of its pod, path `/metrics`, in the OpenMetrics format. It has no\n\
    metrics of the operator.\n\n\
    | name | kind | labels | description |\n|---|---|---|---|\n";
const VM_METRICS: &str = "\n## Metrics of each VM\n\n\
    The runner serves the metrics of its VM on the port `metrics` of the pod (`spec.metricsPort`), path `/metrics`, in the text\n\
    format of Prometheus. It reads them for each scrape. Metrics with the meaning of a KubeVirt metric have its name. All have\n\
    the labels `node`, `namespace` and `name` of the VM. Unavailable metrics are omitted. The balloon driver of the guest reports\n\
    the memory in the guest. Traffic of `user` networks is part of the pod's traffic. The label `drive` is the name of the disk in\n\
    the pod, such as `system-disk`.\n\n\
    | name | kind | labels | description |\n|---|---|---|---|\n";

/// The pages, by name.
pub(super) fn pages() -> [(&'static str, String); 7] {
    [
        ("spec", spec()),
        (
            "status",
            STATUS.to_owned() + FIELDS + &fields_of(&vm::crd(), "status"),
        ),
        ("conditions", conditions_page()),
        ("configuration", SETTINGS.to_owned() + &settings()),
        ("metrics", metrics_page()),
        ("labels", labels()),
        ("pools", pools()),
    ]
}

fn spec() -> String {
    let mut text = SPEC.to_owned() + &sections(&fields_of(&vm::crd(), "spec"));
    text += LATER_HEAD;
    for (field, why) in LATER {
        writeln!(text, "| `{field}` | {} |", cell(why)).unwrap();
    }
    text
}

/// A table for each object below `spec` and `spec.vm`, and one for the fields beside them.
fn sections(rows: &str) -> String {
    let path = |row: &str| row.split('`').nth(1).unwrap_or_default().to_owned();
    let paths: Vec<String> = rows.lines().map(path).collect();
    let mut sections: Vec<(String, String)> = Vec::new();
    for (row, path) in rows.lines().zip(&paths) {
        let depth = if path.starts_with("spec.vm.") { 3 } else { 2 };
        let parts: Vec<&str> = path.split('.').take(depth).collect();
        let object = parts.join(".").replace(['[', ']', '{', '}'], "");
        let has_fields = paths.iter().any(|other| {
            let rest = other.strip_prefix(&object);
            rest.is_some_and(|rest| {
                rest.trim_start_matches(['[', ']', '{', '}'])
                    .starts_with('.')
            })
        });
        let parent = object.rsplit_once('.').map_or("spec", |(parent, _)| parent);
        let name = if has_fields { object.as_str() } else { parent };
        let index = sections.iter().position(|(section, _)| section == name);
        let index = index.unwrap_or_else(|| {
            sections.push((name.to_owned(), String::new()));
            sections.len() - 1
        });
        sections[index].1.push_str(row);
        sections[index].1.push('\n');
    }
    let table =
        |(name, rows): (String, String)| format!("## Fields of `{name}`\n\n{FIELDS}{rows}\n");
    sections.into_iter().map(table).collect()
}

fn conditions_page() -> String {
    let mut text = CONDITIONS.to_owned();
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
            "| {}`{name}` | {} | {} |",
            anchor(name),
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
                "| {}`{condition}` | `{}` | {meaning} |",
                anchor(&format!("{condition}-{}", reason.as_str())),
                reason.as_str()
            )
            .unwrap();
        }
    }
    text
}

fn metrics_page() -> String {
    let mut text = METRICS.to_owned() + &metrics(&sample_metrics().text());
    text += WEB_METRICS;
    text += &metrics(&sample_web_metrics().text(0, k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
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
    text
}

fn labels() -> String {
    let annotations = "The operator ignores annotations of users with the same prefixes.\n\n";
    "# Labels and annotations\n".to_owned()
        + &constants("Labels", "", names::LABELS, "Label: ")
        + &constants("Annotations", annotations, names::ANNOTATIONS, "Annotation")
}

/// The kinds of pools.
fn pools() -> String {
    let mut text = POOLS.to_owned();
    for crd in pool::definitions() {
        for part in ["spec", "status"] {
            let kind = &crd.spec.names.kind;
            // Both kinds have fields with the same names.
            let rows = fields_of(&crd, part).replace("<a id=\"", &format!("<a id=\"{kind}."));
            write!(text, "\n## {kind}: `{part}`\n\n{FIELDS}{rows}").unwrap();
        }
    }
    text
}

/// Rows for the fields of a part of a kind, from the definition.
fn fields_of(crd: &CustomResourceDefinition, part: &str) -> String {
    let crd = serde_json::to_value(crd).unwrap_or_default();
    let schema = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties")
        .and_then(|properties| properties.get(part));
    schema
        .map(|schema| schema_rows::rows(part, schema))
        .unwrap_or_default()
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
fn metrics(served: &str) -> String {
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
        let full = match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
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
