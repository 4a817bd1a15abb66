mod invalid;

use crate::settings::*;
use crate::telemetry::logs::LogLevel;
use crate::telemetry::metrics::Metrics;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

fn file(reconciler: &str) -> String {
    let indented: String = reconciler
        .lines()
        .map(|line| format!("      {line}\n"))
        .collect();
    format!("\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n{indented}")
}

fn parse(reconciler: &str) -> Reconciler {
    let parsed = Settings::parse(&file(reconciler), "config.yaml");
    let (settings, warnings) = parsed.unwrap_or_else(|error| panic!("{reconciler}: {error}"));
    assert_eq!(warnings, [""; 0], "{reconciler}");
    settings.reconciler
}

fn error(text: &str) -> String {
    Settings::parse(text, "config.yaml")
        .expect_err(text)
        .to_string()
}

#[test]
fn empty_file_or_section_means_defaults() {
    for text in [
        "",
        "# nothing\n",
        "\"/Manager\":\n",
        "\"/Manager\": {}\n",
        "\"/Manager\":\n  \"/Controller\":\n",
        &file(
            "cpuOvercommit:\nreplacedImages:\nimageRepository: {fetch: {authorities: {}, schemes: null}}",
        ),
    ] {
        assert_eq!(
            Settings::parse(text, "f").unwrap(),
            (Settings::default(), vec![]),
            "{text:?}"
        );
    }
}

#[test]
fn file_of_the_java_vm_operator_is_read() {
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
    let (settings, warnings) = Settings::parse(text, "config.yaml").unwrap();
    let text = |text: &str| text.to_owned();
    let reconciler = Reconciler {
        runner_data_pvc: RunnerDataPvc {
            storage_class_name: Some(text("local-path")),
            ..RunnerDataPvc::default()
        },
        cpu_overcommit: 3.0,
        ram_overcommit: 1.5,
        load_balancer_service: LoadBalancerService::On {
            labels: [(text("label1"), text("value1"))].into(),
            annotations: [(
                text("metallb.universe.tf/loadBalancerIPs"),
                text("192.168.168.1"),
            )]
            .into(),
        },
        ..Reconciler::default()
    };
    assert_eq!(
        settings,
        Settings {
            namespace: Some(text("vmop-dev")),
            reconciler
        }
    );
    assert_eq!(
        warnings,
        [
            "config.yaml, line 26: /Manager./Controller./Reconciler./DisplaySecretReconciler: this key has no effect in the operator; a web console reads the key"
        ]
    );
}

#[test]
fn load_balancer_is_on_off_or_described_and_may_be_a_text() {
    let on = |labels: &[(&str, &str)]| LoadBalancerService::On {
        labels: labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        annotations: BTreeMap::new(),
    };
    for (text, service) in [
        ("", LoadBalancerService::Off),
        ("loadBalancerService:", LoadBalancerService::Off),
        ("loadBalancerService: false", LoadBalancerService::Off),
        ("loadBalancerService: \"false\"", LoadBalancerService::Off),
        // The Java VM-Operator fails here.
        ("loadBalancerService: true", on(&[])),
        ("loadBalancerService: {}", on(&[])),
        ("loadBalancerService: {labels: {a: b}}", on(&[("a", "b")])),
        (
            "loadBalancerService: |\n  labels:\n    a: b\n    c: null",
            on(&[("a", "b")]),
        ),
    ] {
        assert_eq!(parse(text).load_balancer_service, service, "{text}");
    }
    for text in [
        "1",
        "[]",
        "{label: {}}",
        "{labels: {a: 1}}",
        "often",
        "\"\"",
        "\"- a\"",
    ] {
        let message = error(&file(&format!("loadBalancerService: {text}")));
        assert!(
            message.contains("line 4") && message.contains("use true, false"),
            "{text}: {message}"
        );
    }
}

#[test]
fn every_extension_can_be_set() {
    let text = "\
        runnerImage: {source: registry.example/runner, pullPolicy: Always}\n\
        replacedImages: [registry.local/mirror/qemu-]\n\
        trustedImages: [registry.local/runner]\n\
        imageRepository:\n\
        \x20 create: false\n\
        \x20 storageClassName: nfs\n\
        \x20 size: 20 GiB\n\
        \x20 accessModes: [ReadWriteMany]\n\
        \x20 fetch: {schemes: [https], maxSize: 5Gi, deadline: \"60\", startDeadline: 0, httpProxy: \"http://p:3128\",\n\
        \x20   httpsProxy: \"http://[fd00::1]:3129/\", noProxy: \".example.org,10.0.0.0/8\", proxySecret: proxy,\n\
        \x20   authorities: {configMap: company, key: root.pem}}\n\
        podDefaults: {nodeSelector: {vms: \"yes\"}, tolerations: [{key: vms, operator: Exists}], priorityClassName: vms,\n\
        \x20 imagePullSecrets: [{name: registry}]}\n\
        accelerator: {policy: kvm, kvmResource: vmoperator.jdrupes.org/kvm}\n\
        tap: {tunResource: example.org/tun, hostPath: true, bridges: [br0]}\n\
        guestShutdownRecord: status\n\
        deviceAccess: root";
    let text_of = |text: &str| Some(text.to_owned());
    let fetch = FetchSettings {
        schemes: vec!["https".to_owned()],
        max_size: Bytes(5 << 30),
        deadline: 60,
        start_deadline: 0,
        http_proxy: text_of("http://p:3128"),
        https_proxy: text_of("http://[fd00::1]:3129/"),
        no_proxy: text_of(".example.org,10.0.0.0/8"),
        proxy_secret: text_of("proxy"),
        authorities: Authorities {
            config_map: text_of("company"),
            key: "root.pem".to_owned(),
        },
    };
    let toleration = Toleration {
        key: text_of("vms"),
        operator: text_of("Exists"),
        ..Toleration::default()
    };
    let expected = Reconciler {
        runner_image: RunnerImage {
            source: "registry.example/runner".to_owned(),
            pull_policy: "Always".to_owned(),
        },
        replaced_images: vec!["registry.local/mirror/qemu-".to_owned()],
        trusted_images: vec!["registry.local/runner".to_owned()],
        image_repository: ImageRepository {
            create: false,
            storage_class_name: text_of("nfs"),
            size: Bytes(20 << 30),
            access_modes: vec!["ReadWriteMany".to_owned()],
            fetch,
        },
        pod_defaults: PodDefaults {
            node_selector: Some([("vms".to_owned(), "yes".to_owned())].into()),
            tolerations: Some(vec![toleration]),
            priority_class_name: text_of("vms"),
            image_pull_secrets: Some(vec![LocalObjectReference {
                name: "registry".to_owned(),
            }]),
        },
        accelerator: Accelerator {
            policy: Policy::Kvm,
            kvm_resource: text_of("vmoperator.jdrupes.org/kvm"),
            privileged: false,
        },
        tap: Tap {
            tun_resource: "example.org/tun".to_owned(),
            host_path: true,
            bridges: Some(vec!["br0".to_owned()]),
        },
        guest_shutdown_record: GuestShutdownRecord::Status,
        device_access: DeviceAccess::Root,
        ..Reconciler::default()
    };
    assert_eq!(parse(text), expected);
    assert_eq!(
        expected.accelerator.requested(),
        Some("vmoperator.jdrupes.org/kvm")
    );
    assert_eq!(
        parse("accelerator: {policy: tcg, kvmResource: a/kvm}")
            .accelerator
            .requested(),
        None
    );
    assert!(
        parse("accelerator: {policy: kvm, privileged: true}")
            .accelerator
            .privileged
    );
    assert_eq!(
        parse("imageRepository: {fetch: {authorities: {configMap: a}}}")
            .image_repository
            .fetch
            .authorities
            .key,
        "ca.crt"
    );
    assert_eq!(parse("replacedImages: []").replaced_images, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn file_is_followed_and_only_another_valid_configuration_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    let write = |overcommit: &str| {
        std::fs::write(&path, file(&format!("cpuOvercommit: {overcommit}"))).unwrap()
    };
    write("3");
    let config = ConfigFile::<Settings>::load(Some(&path)).unwrap();
    let metrics = Arc::new(Metrics::default());
    let following = tokio::spawn({
        let (metrics, (_filter, level)) = (metrics.clone(), LogLevel::new(LevelFilter::INFO));
        async move { config.changed(&metrics.settings_valid, Some(&level)).await }
    });
    for (overcommit, is_valid) in [
        (Some("lots"), 0),
        (Some("\"3\""), 1),
        (None, 0),
        (Some("3"), 1),
    ] {
        match overcommit {
            Some(overcommit) => write(overcommit),
            None => std::fs::remove_file(&path).unwrap(),
        }
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert_eq!(metrics.settings_valid.get(), is_valid, "{overcommit:?}");
        assert!(!following.is_finished(), "{overcommit:?}");
    }
    write("4");
    let changed = following.await.unwrap();
    assert_eq!(
        changed.settings,
        Settings::parse(&file("cpuOvercommit: 4"), "f").unwrap().0
    );
}

#[tokio::test(start_paused = true)]
async fn missing_optional_file_means_defaults_also_after_an_unreadable_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    let metrics = Arc::new(Metrics::default());
    let follow = |config: ConfigFile<Settings>| {
        let metrics = metrics.clone();
        tokio::spawn(async move { config.changed(&metrics.settings_valid, None).await })
    };
    let config = ConfigFile::load_optional(&path).unwrap();
    assert_eq!(config.settings, Settings::default());
    let following = follow(config);
    std::fs::write(&path, file("cpuOvercommit: 3")).unwrap();
    let config = following.await.unwrap();
    assert_ne!(config.settings, Settings::default());
    let following = follow(config);
    std::fs::write(&path, [0xff]).unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(
        !following.is_finished(),
        "an unreadable file changes nothing"
    );
    std::fs::remove_file(&path).unwrap();
    let config = following.await.unwrap();
    assert_eq!(config.settings, Settings::default());
}
