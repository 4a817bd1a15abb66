#!/usr/bin/env python3
"""Claims about the files of a release, for release/selftest: `release/facts.py CLAIM ARGUMENT...`. Exits with 1 if one is wrong."""

import json
import pathlib
import re
import sys

import yaml


def documents(path):
    return [it for it in yaml.safe_load_all(pathlib.Path(path).read_text()) if it]


def of_kind(objects, *kinds):
    return [it for it in objects if it["kind"] in kinds]


def configuration(objects):
    (config_map,) = [it for it in of_kind(objects, "ConfigMap") if it["metadata"]["name"] == "vm-operator"]
    return yaml.safe_load(config_map["data"]["config.yaml"])["/Manager"]["/Controller"]["/Reconciler"]


def container(it):
    (found,) = it["spec"]["template"]["spec"]["containers"]
    return found


def key(it):
    return it["kind"], it["metadata"]["name"]


def normal(it):
    """An object without differences that have no effect: the text of the configuration, and the annotation for Helm."""
    it = json.loads(json.dumps(it))
    if it["kind"] == "ConfigMap":
        it["data"] = {name: yaml.safe_load(text) for name, text in it.get("data", {}).items()}
    if it["kind"] == "CustomResourceDefinition":
        it["metadata"].pop("annotations", None)
    return it


def without_namespace(it):
    it["metadata"].pop("namespace", None)
    for subject in it.get("subjects", []):
        subject.pop("namespace", None)
    return it


def assert_same(expected, found):
    assert len(expected) > 3, expected
    assert sorted(map(key, expected)) == sorted(map(key, found)), (sorted(map(key, expected)), sorted(map(key, found)))
    found = {key(it): it for it in found}
    for it in expected:
        assert it == found[key(it)], f"{key(it)}:\n{it}\n{found[key(it)]}"


def same(expected, found):
    assert_same([normal(it) for it in documents(expected)], [normal(it) for it in documents(found)])


def same_but_namespace(expected, found):
    expected, found = [[normal(it) for it in documents(path)] for path in (expected, found)]
    assert all(it["metadata"]["namespace"] == "vm-operator" for it in found)
    assert_same([without_namespace(it) for it in expected], [without_namespace(it) for it in found])


def images(path, registry, version):
    """All images of the registry, also those in the configuration."""
    objects = documents(path)
    for it in of_kind(objects, "Deployment") + of_kind(objects, "DaemonSet"):
        assert container(it)["image"] == f"{registry}/vm-operator:{version}", container(it)["image"]
    config_maps = {it["metadata"]["name"]: it for it in of_kind(objects, "ConfigMap")}
    if "vm-operator" in config_maps:
        assert configuration(objects)["runnerImage"]["source"] == f"{registry}/vm-runner:{version}", configuration(objects)
    if "vm-operator-sip" in config_maps:
        config = yaml.safe_load(config_maps["vm-operator-sip"]["data"]["config.yaml"])["sip"]
        names = {"loadBalancer": "vm-load-balancer", "jumpHost": "vm-jump-host"}
        assert config["images"] == {key: f"{registry}/{name}:{version}" for key, name in names.items()}, config
    return objects


def manifests(dist, registry, version):
    dist = pathlib.Path(dist)
    namespaced = images(dist / "vm-operator.yaml", registry, version)
    assert {"Deployment", "ConfigMap", "Lease", "Role", "RoleBinding", "ServiceAccount"} == {it["kind"] for it in namespaced}
    assert not [it for it in namespaced if "namespace" in it["metadata"]]
    web = images(dist / "web.yaml", registry, version)
    kinds = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount"}
    assert kinds == {it["kind"] for it in web}
    assert not [it for it in web if "namespace" in it["metadata"]]
    own_definitions = list(dist.glob("*-crds.yaml"))
    assert own_definitions
    for path in own_definitions:
        assert {it["kind"] for it in documents(path)} == {"CustomResourceDefinition"}, path
        controller = images(path.with_name(path.name.replace("-crds", "")), registry, version)
        namespaces = {it["metadata"]["namespace"] for it in controller if "namespace" in it["metadata"]}
        # A manifest for any namespace has no object of the cluster. Others name one namespace.
        assert len(namespaces) == any(it["kind"].startswith("Cluster") for it in controller), path
    cluster = images(dist / "cluster.yaml", registry, version)
    assert {it["metadata"].get("namespace") for it in cluster} == {None, "kube-system"}
    definitions = documents(dist / "crds.yaml")
    assert {"vms.vmoperator.jdrupes.org", "vmreports.vmoperator.jdrupes.org"} <= {it["metadata"]["name"] for it in definitions}
    assert {it["kind"] for it in definitions} == {"CustomResourceDefinition"}
    assert not of_kind(namespaced + cluster, "Namespace")
    assert [it["kind"] for it in documents(dist / "debian.yaml")] == ["VirtualMachine"]
    for name in ("monitoring", "monitoring-kube-prometheus-stack", "monitoring-kube-prometheus"):
        kinds = {it["kind"] for it in documents(dist / f"{name}.yaml")}
        assert {"ConfigMap", "PodMonitor", "PrometheusRule"} <= kinds <= {"ConfigMap", "PodMonitor", "PrometheusRule", "Role", "RoleBinding"}, kinds
    monitors = [it["metadata"]["name"] for it in of_kind(documents(dist / "monitoring.yaml"), "PodMonitor")]
    jobs = [it["job_name"] for it in documents(dist / "prometheus-scrape.yaml")[0]["scrape_configs"]]
    assert sorted(jobs) == sorted(monitors), jobs
    assert [list(it) for it in documents(dist / "prometheus-rules.yaml")] == [["groups"]]
    for file in dist.glob("*.yaml"):
        assert "localhost/" not in file.read_text(), file


def licences(dist):
    dist = pathlib.Path(dist)
    boms = [json.loads(path.read_text())["components"] for path in dist.glob("*.cdx.json")]
    parts = {it["bom-ref"]: it for bom in boms for it in bom}.values()
    without = [it["name"] for it in parts if not it.get("licenses") and it["name"] != "vm-operator"]
    assert not without, f"without licences: {without}"
    notices = (dist / "THIRD-PARTY-NOTICES").read_text()
    crates = [it for it in parts if it["purl"].startswith("pkg:cargo/") and it["name"] != "vm-operator"]
    missing = [it["name"] for it in crates if not re.search(rf"^{re.escape(it['name'])} {re.escape(it['version'])} \(", notices, re.M)]
    assert len(crates) > 100 and not missing, f"no notice: {missing}"
    for text in ("Mozilla Public License", "xterm", "Permission is hereby granted, free of charge", "GNU LESSER GENERAL PUBLIC LICENSE", "GNU GENERAL PUBLIC LICENSE"):
        assert text in notices, text
    sources = (dist / "SOURCES.md").read_text()
    versions = {it["name"]: it["version"] for it in parts}
    for name in ("qemu-system-x86", "libc6", "libc6-dev", "libglib2.0-0t64", "haproxy"):
        assert f"| {name} | {versions[name]} | [" in sources, name
    ids = {it["name"]: [licence["license"].get("id") for licence in it["licenses"] if "license" in licence] for it in parts}
    assert "GPL-2.0-only" in ids["qemu-system-x86"] and "LGPL-2.1-or-later" in ids["libc6"], ids


def values(path):
    objects = images(path, "other.example.org", "v9")
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert "--controllers=vm" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert container(deployment)["resources"]["requests"] == {"cpu": 2, "memory": "32Mi"}, container(deployment)["resources"]
    assert deployment["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    config = configuration(objects)
    assert config["deviceAccess"] == "root" and config["accelerator"]["policy"] == "tcg"
    assert config["accelerator"]["kvmResource"] == "vmoperator.jdrupes.org/kvm-if-present", "the shipped keys stay"


def controller_values(path):
    """Labels and annotations for the identity of a workload, Roles of the named namespaces, names of the adaptor's objects. By default,
    the chart has no definition of PeerPod."""
    objects = documents(path)
    assert {it["metadata"].get("namespace") for it in objects} == {None, "coco", "team-a", "team-b"}
    (deployment,) = of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == {**deployment["spec"]["selector"]["matchLabels"], "azure.workload.identity/use": "true"}, labels
    (account,) = of_kind(objects, "ServiceAccount")
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn"}
    roles = {it["metadata"].get("namespace"): it for it in of_kind(objects, "Role")}
    assert roles.keys() == {"coco", "team-a", "team-b"}
    assert ["other"] in [it.get("resourceNames") for it in roles["coco"]["rules"]]
    subjects = [it["subjects"][0]["namespace"] for it in of_kind(objects, "RoleBinding", "ClusterRoleBinding")]
    assert subjects == ["coco"] * 4, subjects
    (config_map,) = of_kind(objects, "ConfigMap")
    assert yaml.safe_load(config_map["data"]["config.yaml"])["configMap"] == "other"
    assert not of_kind(objects, "CustomResourceDefinition")


def host_namespaces(path):
    """Roles in the namespaces with hosts of SIPClusters, for the account of the controller."""
    objects = documents(path)
    (role,) = [it for it in of_kind(objects, "Role") if it["metadata"].get("namespace") == "racks"]
    assert [it["verbs"] for it in role["rules"]] == [["list", "watch", "get", "patch"], ["list", "watch"]], role["rules"]
    subjects = [it["subjects"][0]["namespace"] for it in of_kind(objects, "RoleBinding")]
    assert subjects == ["tenants"] * 2, subjects


def with_console(path):
    objects = documents(path)
    assert [container(it)["args"][0] for it in of_kind(objects, "Deployment")] == ["run", "web"]
    (ingress,) = of_kind(objects, "Ingress")
    assert ingress["spec"]["rules"][0]["host"] == "vms.example.org" == ingress["spec"]["tls"][0]["hosts"][0]


def without_plugin(path):
    objects = documents(path)
    assert not [it for it in objects if it["metadata"]["name"] == "vm-device-plugin"]
    assert of_kind(objects, "ValidatingAdmissionPolicy") and of_kind(objects, "CustomResourceDefinition")


def kept(path):
    definitions = of_kind(documents(path), "CustomResourceDefinition")
    assert definitions and all(it["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for it in definitions)


CLAIMS = (same, same_but_namespace, images, manifests, licences, values, controller_values, host_namespaces, with_console, without_plugin, kept)
{claim.__name__.replace("_", "-"): claim for claim in CLAIMS}[sys.argv[1]](*sys.argv[2:])
