//! Configuration files with errors.

use super::*;

#[test]
fn wrong_value_is_reported_with_file_line_key_and_the_values_to_use() {
    for (text, words) in [
        (
            "cpuOvercommit: 0",
            "cpuOvercommit: the value is not allowed; use a number above 0",
        ),
        (
            "cpuOvercommit: many",
            "cpuOvercommit: invalid type: string \"many\", expected f64",
        ),
        (
            "ramOvercommit: \"inf\"",
            "ramOvercommit: invalid type: string \"inf\"",
        ),
        (
            "runnerDataPvc: none",
            "runnerDataPvc: invalid type: string \"none\"",
        ),
        (
            "runnerDataPvc: {storageClassName: 1}",
            "runnerDataPvc.storageClassName: invalid type: integer `1`",
        ),
        (
            "runnerDataPvc: {size: 1023Ki}",
            "runnerDataPvc.size: the value is not allowed; use a size of at least 1Mi",
        ),
        (
            "runnerImage: {pullPolicy: Sometimes}",
            "runnerImage.pullPolicy: the value is not allowed; use Always, Never",
        ),
        ("loggingProperties: 1", "loggingProperties: invalid type"),
        ("replacedImages: all", "replacedImages: invalid type"),
        ("replacedImages: [a, 1]", "replacedImages[1]: invalid type"),
        (
            "accelerator: {policy: kvm}",
            "use auto or tcg; kvm is allowed only with kvmResource",
        ),
        (
            "accelerator: {policy: xen}",
            "accelerator.policy: unknown variant `xen`, expected one of `auto`, `kvm`, `tcg`",
        ),
        (
            "accelerator: {privileged: always}",
            "accelerator.privileged: invalid type: string \"always\", expected a boolean",
        ),
        (
            "accelerator: {privileged: true, kvmResource: devices.kubevirt.io/kvm}",
            "remove kvmResource",
        ),
        (
            "accelerator: {kvmResource: kvm}",
            "such as vmoperator.jdrupes.org/kvm",
        ),
        (
            "tap: {tunResource: tun}",
            "such as vmoperator.jdrupes.org/tun",
        ),
        (
            "tap: {hostPath: /dev/net/tun}",
            "tap.hostPath: invalid type",
        ),
        (
            "diskPvc: {volumeMode: block}",
            "diskPvc.volumeMode: unknown variant `block`, expected `Block` or `Filesystem`",
        ),
        (
            "deviceAccess: privileged",
            "deviceAccess: unknown variant `privileged`, expected `cri` or `root`",
        ),
        (
            "imageRepository: {size: \"0\"}",
            "imageRepository.size: the value is not allowed; use a size such as 20Gi",
        ),
        ("imageRepository: {size: lots}", "write a size such as 8Gi"),
        (
            "imageRepository: {create: maybe}",
            "imageRepository.create: invalid type",
        ),
        (
            "imageRepository: {accessModes: [ReadMany]}",
            "use a list of one or more of ReadOnlyMany",
        ),
        ("imageRepository: {accessModes: []}", "one or more"),
        (
            "imageRepository: {fetch: {schemes: [ftp]}}",
            "fetch.schemes: the value is not allowed; use a list with https",
        ),
        (
            "imageRepository: {fetch: {maxSize: 20}}",
            "fetch.maxSize: invalid type: integer `20`",
        ),
        (
            "imageRepository: {fetch: {deadline: 0}}",
            "use 1 to 604800 seconds",
        ),
        (
            "imageRepository: {fetch: {startDeadline: -1}}",
            "fetch.startDeadline: invalid value: integer `-1`",
        ),
        (
            "imageRepository: {fetch: {httpProxy: \"https://p:3128\"}}",
            "use a URL such as http://proxy",
        ),
        (
            "imageRepository: {fetch: {httpsProxy: p}}",
            "fetch.httpsProxy: the value is not allowed; use a URL",
        ),
        (
            "imageRepository: {fetch: {httpsProxy: \"http://p/?a\"}}",
            "use a URL such as http://proxy",
        ),
        (
            "imageRepository: {fetch: {proxySecret: \"a b\"}}",
            "use the name of a Secret",
        ),
        (
            "imageRepository: {fetch: {authorities: {configMap: \"\"}}}",
            "use the name of a ConfigMap",
        ),
        (
            "imageRepository: {fetch: {authorities: {key: root.pem}}}",
            "use both configMap and key",
        ),
        (
            "imageRepository: {fetch: {authorities: {configMap: a, key: a/b}}}",
            "use the name of a key",
        ),
        (
            "podDefaults: {tolerations: {key: a}}",
            "podDefaults.tolerations: invalid type",
        ),
        (
            "podDefaults: {nodeSelector: {a.b/c: 1}}",
            "podDefaults.nodeSelector.a.b/c: invalid type",
        ),
        (
            "podDefaults: {imagePullSecrets: [registry]}",
            "podDefaults.imagePullSecrets[0]: invalid type",
        ),
    ] {
        let message = error(&file(text));
        let place = "config.yaml, line 4: /Manager./Controller./Reconciler.";
        assert!(
            message.starts_with(place) && message.contains(words),
            "{text}: {message}"
        );
    }
    let message = error("\"/Manager\":\n  \"/Controller\": {namespace: Not A Name}\n");
    assert!(
        message.starts_with("config.yaml, line 2: /Manager./Controller.namespace: "),
        "{message}"
    );
    let message = error("\"/Manager\":\n  \"/Reconciler\" {}\n");
    assert!(
        message.starts_with("config.yaml: ") && message.contains("line 2"),
        "{message}"
    );
}

#[test]
fn password_of_a_proxy_is_rejected_and_not_shown() {
    let message = error(&file(
        "imageRepository: {fetch: {httpsProxy: \"http://anna:geheim@p:3128\"}}",
    ));
    assert!(
        message.contains("proxySecret") && !message.contains("geheim"),
        "{message}"
    );
}

#[test]
fn key_without_effect_is_a_warning() {
    let text = file(
        "runnerData: {storageClassName: a}\ncpuOvercomit: 3\nopenTelemetry: {endpoint: collector}\n\
         podDefaults: {tolerations: [{kye: vms}]}\nloggingProperties: |\n  handlers=a\n  .level=FINE",
    );
    let text = text + "    \"/DisplaySecretMonitor\": {passwordValidity: 15}\n";
    let (settings, warnings) = Settings::parse(&text, "f").unwrap();
    assert_eq!(
        settings.reconciler.logging_properties.as_deref(),
        Some("handlers=a\n.level=FINE\n")
    );
    for (line, words) in [
        (4, "/Reconciler.runnerData: this key is unknown"),
        (5, "/Reconciler.cpuOvercomit: this key is unknown"),
        (6, "/Reconciler.openTelemetry: this key has no effect"),
        (
            7,
            "/Reconciler.podDefaults.tolerations.0.kye: this key is unknown",
        ),
        (
            9,
            "/Reconciler.loggingProperties: the line \"handlers=a\" has no effect",
        ),
        (
            11,
            "/DisplaySecretMonitor: this key has no effect in the operator; remove the key. If a web console of the Java VM-Operator reads this file, use the key /Manager./Controller./Reconciler./DisplaySecretReconciler instead",
        ),
    ] {
        let found = warnings
            .iter()
            .find(|warning| warning.contains(words))
            .unwrap_or_else(|| panic!("{warnings:#?}"));
        let place = if words.contains(".0.") {
            "f: ".to_owned()
        } else {
            format!("f, line {line}: ")
        };
        assert!(
            found.starts_with(&(place + "/Manager./Controller./")),
            "{found}"
        );
    }
    assert_eq!(warnings.len(), 6, "{warnings:#?}");
}

#[test]
fn named_file_that_is_missing_is_an_error() {
    let message = ConfigFile::<Settings>::load(Some(Path::new("/nowhere/config.yaml")))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("/nowhere/config.yaml") && message.contains("-c"),
        "{message}"
    );
}
