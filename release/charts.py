#!/usr/bin/env python3
"""Writes the Helm charts from the manifests: `release/charts.py DIST VERSION REGISTRY TARGET`.

DIST has the manifests of the release; TARGET gets a directory for each chart. The templates are the objects of the manifests, with
expressions at the fields that the values set.
"""

import pathlib
import re
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
OVERLAYS = HERE.parent / "deploy" / "overlays"
KEEP = "  annotations:\n    helm.sh/resource-policy: keep\n"
IMAGE = "{{ .Values.image.registry }}/%s:{{ .Values.image.tag | default .Chart.AppVersion }}"


class Text(str):
    """A text of several lines, written as a block."""


yaml.SafeDumper.add_representer(Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


class Marks:
    """Places in the objects at which the template has an expression."""

    def __init__(self):
        self.expressions = {}

    def scalar(self, expression):
        """A value that Helm computes."""
        mark = f"helm-{len(self.expressions)}-mark"
        self.expressions[mark] = expression
        return mark

    def block(self, value):
        """A mapping or a list of the values."""
        return self.scalar(("block", value))

    def entries(self, mapping, value):
        """More entries of a mapping, from the values."""
        mapping[self.scalar(("entries", value))] = None

    def resolve(self, text):
        lines = []
        for line in text.splitlines():
            mark = re.search(r"helm-\d+-mark", line)
            expression = self.expressions[mark[0]] if mark else None
            if isinstance(expression, tuple):
                kind, value = expression
                outer = " " * (len(line) - len(line.lstrip()))
                inner, key = (outer + "  ", [line[: mark.start()].rstrip()]) if kind == "block" else (outer, [])
                lines += [f"{outer}{{{{- with {value} }}}}", *key, f"{inner}{{{{- toYaml . | nindent {len(inner)} }}}}", f"{outer}{{{{- end }}}}"]
            else:
                lines.append(line.replace(mark[0], expression) if mark else line)
        return "\n".join(lines) + "\n"


def documents(path):
    return [it for it in yaml.safe_load_all(path.read_text()) if it]


def blocks(value):
    """The value with each text of several lines as a block."""
    if isinstance(value, dict):
        return {key: blocks(it) for key, it in value.items()}
    if isinstance(value, list):
        return [blocks(it) for it in value]
    return Text(value) if isinstance(value, str) and "\n" in value else value


def template(marks, objects):
    texts = [yaml.safe_dump(blocks(it), sort_keys=False, width=10**6) for it in objects]
    return marks.resolve("---\n".join(texts))


def set_image(marks, pod, resources):
    """The values of a pod with one container."""
    (container,) = pod["containers"]
    name = re.fullmatch(r".*/([a-z-]+):[^:/]+", container["image"])[1]
    container["image"] = marks.scalar(f"'{IMAGE % name}'")
    container["imagePullPolicy"] = marks.scalar("{{ .Values.image.pullPolicy }}")
    container["resources"] = marks.block(resources)
    pod["imagePullSecrets"] = marks.block(".Values.imagePullSecrets")


def settings(marks, objects):
    """The shipped configuration as a named template. The ConfigMap gets it merged with the values."""
    (config_map,) = of_kind(objects, "ConfigMap")
    # Each image in single quotes is one of the release.
    config = re.sub(r"'[^']*/([a-z-]+):[^:']*'", lambda found: f"'{IMAGE % found[1]}'", config_map["data"]["config.yaml"])
    assert config.count("image.registry") == config.count("/vm-"), config
    merged = '{{- mergeOverwrite (include "vm-operator.config" . | fromYaml) .Values.config | toYaml | nindent 4 }}'
    data = "data:\n  config.yaml: |\n    " + merged + "\n"
    del config_map["data"]
    head = marks.resolve(yaml.safe_dump(config_map, sort_keys=False))
    objects.remove(config_map)
    return f'{{{{- define "vm-operator.config" -}}}}\n{config}{{{{- end }}}}\n{head}{data}'


def of_kind(objects, *kinds):
    return [it for it in objects if it["kind"] in kinds]


def set_namespace(marks, objects):
    for it in objects:
        for place in [it["metadata"], *it.get("subjects", [])]:
            if "namespace" in place:
                place["namespace"] = marks.scalar("{{ .Release.Namespace }}")


def namespaced(dist):
    objects, marks = documents(dist / "vm-operator.yaml"), Marks()
    set_namespace(marks, objects)
    files = {"config-map.yaml": settings(marks, objects)}
    (deployment,) = of_kind(objects, "Deployment")
    deployment["spec"]["replicas"] = marks.scalar("{{ .Values.replicas }}")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    selection = '--controllers={{ join "," .Values.controllers }}'
    container["args"] = [marks.scalar(f"'{selection}'") if arg.startswith("--controllers=") else arg for arg in container["args"]]
    set_image(marks, pod, ".Values.resources")
    return files | {"vm-operator.yaml": template(marks, objects), "web.yaml": web(dist)}


def web(dist):
    objects, marks = documents(dist / "web.yaml"), Marks()
    set_namespace(marks, objects)
    (deployment,) = of_kind(objects, "Deployment")
    deployment["spec"]["replicas"] = marks.scalar("{{ .Values.web.replicas }}")
    set_image(marks, deployment["spec"]["template"]["spec"], ".Values.web.resources")
    return "{{- if .Values.web.enabled }}\n" + template(marks, objects) + "{{- end }}\n"


def controller(dist, name):
    """The chart of a set of controllers with a Deployment of its own."""
    objects, marks = documents(dist / f"{name}.yaml"), Marks()
    set_namespace(marks, objects)
    files = {"config-map.yaml": settings(marks, objects)}
    for it in of_kind(objects, "ServiceAccount"):
        it["metadata"]["annotations"] = marks.block(".Values.serviceAccount.annotations")
    (deployment,) = of_kind(objects, "Deployment")
    deployment["spec"]["replicas"] = marks.scalar("{{ .Values.replicas }}")
    pod = deployment["spec"]["template"]
    marks.entries(pod["metadata"]["labels"], ".Values.podLabels")
    set_image(marks, pod["spec"], ".Values.resources")
    return files | {
        "definition.yaml": "{{- if .Values.definition }}\n" + definitions(dist / f"{name}-crds.yaml") + "{{- end }}\n",
        f"{name}.yaml": template(marks, objects),
    }


def peerpod(dist, name):
    """The names of the adaptor's objects, and the namespaces of VirtualMachines, are in the configuration and in Roles."""
    files = controller(dist, name)
    for key, default in (("configMap", "peer-pods-cm"), ("secret", "peer-pods-secret"), ("sshSecret", "ssh-key-secret")):
        files["peerpod.yaml"], count = re.subn(rf"(?m)^  - {default}$", f'  - {{{{ .Values.config.{key} | default "{default}" }}}}', files["peerpod.yaml"])
        assert count == 1, default
    marks = Marks()
    objects = [it for file in ("role.yaml", "role-binding.yaml") for it in documents(OVERLAYS / "peerpod-local" / file)]
    for it in objects:
        it["metadata"]["namespace"] = marks.scalar("{{ . }}")
        for subject in it.get("subjects", []):
            subject["namespace"] = marks.scalar("{{ $.Release.Namespace }}")
    files["virtual-machines.yaml"] = "{{- range .Values.config.virtualMachine.namespaces }}\n---\n" + template(marks, objects) + "{{- end }}\n"
    return files


def sip(dist, name):
    """The namespaces with hosts are in the configuration, and have Roles."""
    files, marks = controller(dist, name), Marks()
    (own,) = of_kind(documents(dist / "sip.yaml"), "Role")
    rules = [it for it in own["rules"] if it["resources"] == ["baremetalhosts"]]
    rules.append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]})
    head = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    name = "vm-operator-sip-hosts"
    metadata = {"name": name, "namespace": marks.scalar("{{ .name }}"), "labels": own["metadata"]["labels"]}
    subject = {"kind": "ServiceAccount", "name": "vm-operator-sip", "namespace": marks.scalar("{{ $.Release.Namespace }}")}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    objects = [
        head | {"kind": "Role", "metadata": metadata, "rules": rules},
        head | {"kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject]},
    ]
    files["hosts.yaml"] = "{{- range (.Values.config.sip).hostNamespaces }}\n---\n" + template(marks, objects) + "{{- end }}\n"
    return files


# Controllers with Roles in namespaces that the values name. The charts of all others need no code.
WITH_ROLES = {"peerpod": peerpod, "sip": sip}


def definitions(path):
    """The definitions unchanged, except that Helm retains them."""
    text = path.read_text()
    count = text.count("\nkind: CustomResourceDefinition\n")
    text, kept = re.subn(r"(\nkind: CustomResourceDefinition\nmetadata:\n)(?!  annotations:)", r"\1" + KEEP, text)
    assert "{{" not in text and kept == count > 0, "an expression of a template, or other annotations, in the definitions"
    return text


def cluster(dist):
    objects, marks = documents(dist / "cluster.yaml"), Marks()
    plugin = [it for it in objects if it["metadata"]["name"] == "vm-device-plugin"]
    (daemon_set,) = of_kind(plugin, "DaemonSet")
    set_image(marks, daemon_set["spec"]["template"]["spec"], ".Values.devicePlugin.resources")
    return {
        "definitions.yaml": definitions(dist / "crds.yaml"),
        "policies.yaml": template(Marks(), [it for it in objects if it not in plugin]),
        "device-plugin.yaml": "{{- if .Values.devicePlugin.enabled }}\n" + template(marks, plugin) + "{{- end }}\n",
    }


def write(source, target, values):
    """The files of a chart that are not generated."""
    text = source.read_text()
    for mark, value in values.items():
        text = text.replace(mark, value)
    target.write_text(text)


def main():
    dist, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[4])
    values = {"@VERSION@": sys.argv[2], "@REGISTRY@": sys.argv[3]}
    charts = {"vm-operator": namespaced(dist), "vm-operator-cluster": cluster(dist)}
    for path in dist.glob("*-crds.yaml"):
        name = path.name.removesuffix("-crds.yaml")
        charts[f"vm-operator-{name}"] = WITH_ROLES.get(name, controller)(dist, name)
    for name, templates in charts.items():
        chart = target / name
        (chart / "templates").mkdir(parents=True)
        for source in sorted(it for it in (HERE / "charts" / name).rglob("*") if it.is_file()):
            write(source, chart / source.relative_to(HERE / "charts" / name), values)
        for file, text in templates.items():
            (chart / "templates" / file).write_text(text)


main()
