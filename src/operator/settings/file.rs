//! (pure) From the file's text to [`Settings`].
//!
//! Wrong values are refused. Keys that nobody knows are told of and passed over, as in the reference, whose own
//! examples have such keys; so are those of its web console.

use super::ours;
use super::tree::{Node, Section};
use super::{LoadBalancerService, Note, Reconciler, RunnerDataPvc, RunnerImage, Settings, SettingsError};
use crate::api::logging::level;
use std::collections::BTreeMap;
use std::time::Duration;

/// Keys of the reference that have a meaning in its web console only.
const OF_THE_CONSOLE: [&str; 3] = ["clusterName", "/GuiSocketServer", "/GuiHttpServer"];

pub(super) fn parse(text: &str, file: &str) -> Result<(Settings, Vec<Note>), SettingsError> {
    let mut notes = Vec::new();
    let mut root = Node::parse(text, file)?.section()?;
    let mut manager = root.section("/Manager")?;
    let mut controller = manager.section("/Controller")?;
    let namespace = controller.take("namespace").map(|node| namespace(&node)).transpose()?;
    let old_place = controller.section("/DisplaySecretMonitor")?;
    let reconciler = reconciler(controller.section("/Reconciler")?, old_place, &mut notes)?;
    for key in OF_THE_CONSOLE {
        // Whatever they are.
        drop(manager.take(key));
    }
    for section in [root, manager, controller] {
        section.note_rest(&mut notes);
    }
    Ok((Settings { namespace, reconciler }, notes))
}

fn namespace(node: &Node<'_>) -> Result<String, SettingsError> {
    let text = node.text()?;
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > 63 || !text.chars().all(legal) {
        return node.refuse("give the name of a namespace");
    }
    Ok(text)
}

fn reconciler(
    mut section: Section<'_>,
    old_place: Section<'_>,
    notes: &mut Vec<Note>,
) -> Result<Reconciler, SettingsError> {
    let default = Reconciler::default();
    let runner_data_pvc = runner_data_pvc(section.section("runnerDataPvc")?, notes)?;
    let cpu_overcommit = overcommit(section.take("cpuOvercommit"), default.cpu_overcommit)?;
    let ram_overcommit = overcommit(section.take("ramOvercommit"), default.ram_overcommit)?;
    let load_balancer_service = section.take("loadBalancerService").map(load_balancer).transpose()?.unwrap_or_default();
    let logging_properties = section.take("loggingProperties").map(|node| logging(&node, notes)).transpose()?;
    let password_validity = password_validity(section.section("/DisplaySecretReconciler")?, old_place, notes)?;
    let runner_image = runner_image(section.section("runnerImage")?, notes)?;
    let replaced_images = section.take("replacedImages").map(replaced_images).transpose()?;
    let image_repository = ours::image_repository(section.section("imageRepository")?, notes)?;
    let pod_defaults = ours::pod_defaults(section.section("podDefaults")?, notes)?;
    let accelerator = ours::accelerator(section.section("accelerator")?, notes)?;
    let tap = ours::tap(section.section("tap")?, notes)?;
    let device_access = section.take("deviceAccess").map(|node| ours::device_access(&node)).transpose()?;
    if let Some(node) = section.take("openTelemetry") {
        notes.push(
            node.note("it has no effect any more: traces of starts are not sent; see vm_operator_vm_start_seconds"),
        );
    }
    section.note_rest(notes);
    Ok(Reconciler {
        runner_data_pvc,
        cpu_overcommit,
        ram_overcommit,
        load_balancer_service,
        logging_properties,
        password_validity: password_validity.unwrap_or(default.password_validity),
        runner_image,
        replaced_images: replaced_images.unwrap_or(default.replaced_images),
        image_repository,
        pod_defaults,
        accelerator,
        tap,
        device_access: device_access.unwrap_or_default(),
    })
}

fn runner_data_pvc(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<RunnerDataPvc, SettingsError> {
    let storage_class_name = section.take("storageClassName").map(|node| node.text()).transpose()?;
    section.note_rest(notes);
    Ok(RunnerDataPvc { storage_class_name })
}

fn overcommit(node: Option<Node<'_>>, default: f64) -> Result<f64, SettingsError> {
    let Some(node) = node else { return Ok(default) };
    match node.number() {
        Some(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => node.refuse("give a number above 0, such as 1.25"),
    }
}

/// A boolean, or a map, which may be written as a text. (B36: the reference fails on `true`.)
fn load_balancer(node: Node<'_>) -> Result<LoadBalancerService, SettingsError> {
    const ALLOWED: &str = "give true, false, or labels and annotations, each with texts as values";
    match node.boolean() {
        Some(false) => return Ok(LoadBalancerService::Off),
        Some(true) => return Ok(LoadBalancerService::On { labels: BTreeMap::new(), annotations: BTreeMap::new() }),
        None => {}
    }
    let Ok(text) = node.text() else { return labels_and_annotations(node, ALLOWED) };
    let inner = Node::parse(&text, "").ok().filter(|inner| inner.text().is_err());
    match inner.map(load_balancer) {
        Some(Ok(service)) if !text.trim().is_empty() => Ok(service),
        _ => node.refuse(ALLOWED),
    }
}

fn labels_and_annotations(node: Node<'_>, allowed: &str) -> Result<LoadBalancerService, SettingsError> {
    let refusal = node.refuse(allowed);
    let Ok(mut section) = node.section() else { return refusal };
    let mut texts = |key| {
        let texts: Option<BTreeMap<String, Option<String>>> =
            section.take(key).map(|node| node.typed(allowed)).transpose()?;
        // A null takes a default away, and these are the defaults.
        Ok(texts.into_iter().flatten().filter_map(|(key, text)| Some((key, text?))).collect())
    };
    let service = LoadBalancerService::On { labels: texts("labels")?, annotations: texts("annotations")? };
    match section.rest().next() {
        Some(other) => other.refuse(allowed),
        None => Ok(service),
    }
}

fn logging(node: &Node<'_>, notes: &mut Vec<Note>) -> Result<String, SettingsError> {
    let text = node.text()?;
    if let Some(line) = level(&text).1.first() {
        notes.push(node.note(format!("of Java's logging, only the line .level has a meaning; {line:?} has none")));
    }
    Ok(text)
}

/// The reference had it elsewhere before version 4, and still takes it there, with a warning.
fn password_validity(
    mut section: Section<'_>,
    mut old_place: Section<'_>,
    notes: &mut Vec<Note>,
) -> Result<Option<Duration>, SettingsError> {
    const KEY: &str = "passwordValidity";
    let (new, old) = (section.take(KEY), old_place.take(KEY));
    section.note_rest(notes);
    old_place.note_rest(notes);
    if let Some(old) = &old {
        notes.push(old.note("move it to /Manager./Controller./Reconciler./DisplaySecretReconciler"));
    }
    let Some(node) = new.or(old) else { return Ok(None) };
    notes.push(node.note("accepted; it is for console front ends, which this version does not have"));
    match node.number().map(Duration::try_from_secs_f64) {
        Some(Ok(time)) => Ok(Some(time)),
        _ => node.refuse("give a number of seconds, such as 10"),
    }
}

fn runner_image(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<RunnerImage, SettingsError> {
    let default = RunnerImage::default();
    let source = section.take("source").map(|node| node.text()).transpose()?.unwrap_or(default.source);
    let pull_policy = match section.take("pullPolicy") {
        None => default.pull_policy,
        Some(node) => match node.text() {
            Ok(policy) if ["Always", "Never", "IfNotPresent"].contains(&policy.as_str()) => policy,
            _ => return node.refuse("give Always, Never or IfNotPresent"),
        },
    };
    section.note_rest(notes);
    Ok(RunnerImage { source, pull_policy })
}

fn replaced_images(node: Node<'_>) -> Result<Vec<String>, SettingsError> {
    node.items()?.iter().map(Node::text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::settings::REFERENCE_IMAGES;

    fn file(reconciler: &str) -> String {
        let indented: String = reconciler.lines().map(|line| format!("      {line}\n")).collect();
        format!("\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n{indented}")
    }

    fn settings(reconciler: &str) -> Reconciler {
        Settings::parse(&file(reconciler), "f").unwrap_or_else(|e| panic!("{reconciler}: {e}")).0.reconciler
    }

    fn refusal(text: &str) -> String {
        Settings::parse(text, "config.yaml").expect_err(text).to_string()
    }

    #[test]
    fn an_empty_manager_means_defaults() {
        for text in ["", "# nothing\n", "\"/Manager\":\n", "\"/Manager\": {}\n", "\"/Manager\":\n  \"/Controller\":\n"]
        {
            assert_eq!(Settings::parse(text, "f").unwrap(), (Settings::default(), vec![]), "{text:?}");
        }
    }

    #[test]
    fn a_file_of_the_reference_is_read() {
        let text = r#"
"/Manager":
  clusterName: test
  "/GuiSocketServer":
    port: 8888
  "/GuiHttpServer":
    "/ConsoleWeblet":
      "/WebConsole":
        "/LoginConlet":
          users:
          - name: admin
  "/Controller":
    namespace: vmop-dev
    "/Reconciler":
      runnerDataPvc:
        storageClassName: local-path
      cpuOvercommit: 3
      ramOvercommit: "1.5"
      loadBalancerService:
        labels:
          label1: value1
        annotations:
          metallb.universe.tf/loadBalancerIPs: 192.168.168.1
          toBeOverridden: null
      "/DisplaySecretReconciler":
        passwordValidity: 20
"#;
        let (Settings { namespace, reconciler }, notes) = Settings::parse(text, "f").unwrap();
        assert_eq!(namespace.as_deref(), Some("vmop-dev"));
        assert_eq!(reconciler.runner_data_pvc.storage_class_name.as_deref(), Some("local-path"));
        assert!((reconciler.cpu_overcommit - 3.0).abs() < f64::EPSILON);
        assert!((reconciler.ram_overcommit - 1.5).abs() < f64::EPSILON);
        assert_eq!(reconciler.password_validity, Duration::from_secs(20));
        let text = |text: &str| text.to_owned();
        assert_eq!(
            reconciler.load_balancer_service,
            LoadBalancerService::On {
                labels: [(text("label1"), text("value1"))].into(),
                annotations: [(text("metallb.universe.tf/loadBalancerIPs"), text("192.168.168.1"))].into(),
            }
        );
        let keys: Vec<_> = notes.iter().map(|note| note.key.rsplit('.').next().unwrap()).collect();
        assert_eq!(keys, ["passwordValidity"], "only what has no effect is told of");
    }

    #[test]
    fn a_load_balancer_is_on_off_or_described_and_may_be_a_text() {
        let on = |labels: &[(&str, &str)]| LoadBalancerService::On {
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            annotations: BTreeMap::new(),
        };
        for (text, service) in [
            ("", LoadBalancerService::Off),
            ("loadBalancerService:", LoadBalancerService::Off),
            ("loadBalancerService: false", LoadBalancerService::Off),
            ("loadBalancerService: \"false\"", LoadBalancerService::Off),
            // B36: the reference fails here.
            ("loadBalancerService: true", on(&[])),
            ("loadBalancerService: {}", on(&[])),
            ("loadBalancerService: {labels: {a: b}}", on(&[("a", "b")])),
            ("loadBalancerService: |\n  labels:\n    a: b", on(&[("a", "b")])),
        ] {
            assert_eq!(settings(text).load_balancer_service, service, "{text}");
        }
        for text in ["1", "[]", "{label: {}}", "{labels: {a: 1}}", "often", "\"\"", "\"- a\""] {
            let message = refusal(&file(&format!("loadBalancerService: {text}")));
            assert!(message.contains("line 4") && message.contains("give true, false"), "{text}: {message}");
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_file_line_key_and_what_is_allowed() {
        for (text, words) in [
            ("cpuOvercommit: 0", "cpuOvercommit: 0 is not allowed; give a number above 0"),
            ("cpuOvercommit: many", "cpuOvercommit: \"many\""),
            ("ramOvercommit: \"inf\"", "ramOvercommit"),
            ("runnerDataPvc: none", "runnerDataPvc: \"none\" is not allowed; give keys with values"),
            ("runnerDataPvc: {storageClassName: 1}", "runnerDataPvc.storageClassName"),
            ("runnerImage: {pullPolicy: Sometimes}", "give Always, Never or IfNotPresent"),
            ("\"/DisplaySecretReconciler\": {passwordValidity: soon}", "number of seconds"),
            ("loggingProperties: 1", "loggingProperties"),
            ("replacedImages: all", "replacedImages"),
            ("replacedImages: [1]", "replacedImages[0]"),
        ] {
            let message = refusal(&file(text));
            let place = "config.yaml, line 4: /Manager./Controller./Reconciler.";
            assert!(message.starts_with(place) && message.contains(words), "{text}: {message}");
        }
        let message = refusal("\"/Manager\":\n  \"/Controller\": {namespace: Not A Name}\n");
        assert!(message.contains("line 2: /Manager./Controller.namespace"), "{message}");
        let message = refusal("\"/Manager\":\n  \"/Reconciler\" {}\n");
        assert!(message.contains("config.yaml") && message.contains("line"), "{message}");
    }

    #[test]
    fn an_unknown_key_is_told_of_and_passed_over() {
        // An obsolete key of one of the reference's examples, and a slip of the pen.
        let text = file("runnerData: {storageClassName: a}\ncpuOvercomit: 3");
        let (settings, notes) = Settings::parse(&text, "f").unwrap();
        assert_eq!(settings, Settings::default());
        let notes: Vec<_> = notes.iter().map(|note| (note.line, note.key.as_str())).collect();
        let key = "/Manager./Controller./Reconciler.";
        assert_eq!(notes, [(4, &*format!("{key}runnerData")), (5, &*format!("{key}cpuOvercomit"))]);
    }

    #[test]
    fn a_setting_that_has_no_effect_any_more_is_read_with_a_note() {
        let text = "/Manager: {/Controller: {/Reconciler: {openTelemetry: {endpoint: collector}}}}";
        let (settings, notes) = Settings::parse(text, "config.yaml").unwrap();
        assert_eq!(settings, Settings::default());
        assert!(notes.len() == 1 && notes[0].key.ends_with("openTelemetry"), "{notes:?}");
    }

    #[test]
    fn the_old_place_of_the_passwords_validity_is_taken_with_a_note() {
        let old = "\"/Manager\":\n  \"/Controller\":\n    \"/DisplaySecretMonitor\":\n      passwordValidity: \"15\"\n";
        let (settings, notes) = Settings::parse(old, "f").unwrap();
        assert_eq!(settings.reconciler.password_validity, Duration::from_secs(15));
        assert!(notes.iter().any(|note| note.text.contains("/DisplaySecretReconciler")), "{notes:?}");
        let both = format!("{old}    \"/Reconciler\": {{\"/DisplaySecretReconciler\": {{passwordValidity: 5}}}}\n");
        assert_eq!(Settings::parse(&both, "f").unwrap().0.reconciler.password_validity, Duration::from_secs(5));
    }

    #[test]
    fn more_images_can_be_replaced() {
        let text = format!("replacedImages:\n- {REFERENCE_IMAGES}\n- registry.local/mirror/qemu-");
        assert_eq!(settings(&text).replaced_images, [REFERENCE_IMAGES, "registry.local/mirror/qemu-"]);
        assert!(settings("replacedImages: []").replaced_images.is_empty(), "the reference's are kept then");
    }

    #[test]
    fn a_named_file_that_is_missing_is_an_error() {
        let message = Settings::load(Some(std::path::Path::new("/nowhere/config.yaml"))).unwrap_err().to_string();
        assert!(message.contains("/nowhere/config.yaml") && message.contains("-c"), "{message}");
    }
}
