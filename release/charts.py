#!/usr/bin/env python3
"""Writes the Helm charts from the manifests: `release/charts.py DIST VERSION REGISTRY TARGET`.

DIST has crds.yaml, cluster.yaml and vm-operator.yaml; TARGET gets a directory for each chart. The templates are the objects of the
manifests, with expressions at the fields that the values set.
"""

import pathlib
import re
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
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

    def resolve(self, text):
        lines = []
        for line in text.splitlines():
            mark = re.search(r"helm-\d+-mark", line)
            expression = self.expressions[mark[0]] if mark else None
            if isinstance(expression, tuple):
                key = line[: mark.start()].rstrip()
                indent = len(line) - len(line.lstrip()) + 2
                lines += [f"{' ' * (indent - 2)}{{{{- with {expression[1]} }}}}", key]
                lines += [f"{' ' * indent}{{{{- toYaml . | nindent {indent} }}}}", f"{' ' * (indent - 2)}{{{{- end }}}}"]
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


def settings(objects):
    """The shipped configuration as a named template. The ConfigMap gets it merged with the values."""
    (config_map,) = [it for it in objects if it["kind"] == "ConfigMap"]
    config = config_map["data"]["config.yaml"]
    config, images = re.subn(r"'[^']*/vm-runner:[^']*'", lambda _: f"'{IMAGE % 'vm-runner'}'", config)
    assert images == 1, config
    merged = '{{- mergeOverwrite (include "vm-operator.config" . | fromYaml) .Values.config | toYaml | nindent 4 }}'
    data = "data:\n  config.yaml: |\n    " + merged + "\n"
    del config_map["data"]
    head = yaml.safe_dump(config_map, sort_keys=False)
    objects.remove(config_map)
    return f'{{{{- define "vm-operator.config" -}}}}\n{config}{{{{- end }}}}\n{head}{data}'


def namespaced(dist):
    objects, marks = documents(dist / "vm-operator.yaml"), Marks()
    files = {"config-map.yaml": settings(objects)}
    for it in objects:
        if it["kind"] == "RoleBinding":
            for subject in it["subjects"]:
                subject["namespace"] = marks.scalar("{{ .Release.Namespace }}")
        if it["kind"] == "Deployment":
            it["spec"]["replicas"] = marks.scalar("{{ .Values.replicas }}")
            (container,) = it["spec"]["template"]["spec"]["containers"]
            selection = '--controllers={{ join "," .Values.controllers }}'
            container["args"] = [marks.scalar(f"'{selection}'") if arg.startswith("--controllers=") else arg for arg in container["args"]]
            set_image(marks, it["spec"]["template"]["spec"], ".Values.resources")
    return files | {"vm-operator.yaml": template(marks, objects)}


def definitions(dist):
    """The definitions unchanged, except that Helm retains them."""
    text = (dist / "crds.yaml").read_text()
    count = text.count("\nkind: CustomResourceDefinition\n")
    text, kept = re.subn(r"(\nkind: CustomResourceDefinition\nmetadata:\n)(?!  annotations:)", r"\1" + KEEP, text)
    assert "{{" not in text and kept == count > 0, "an expression of a template, or other annotations, in the definitions"
    return text


def cluster(dist):
    objects, marks = documents(dist / "cluster.yaml"), Marks()
    plugin = [it for it in objects if it["metadata"]["name"] == "vm-device-plugin"]
    (daemon_set,) = [it for it in plugin if it["kind"] == "DaemonSet"]
    set_image(marks, daemon_set["spec"]["template"]["spec"], ".Values.devicePlugin.resources")
    return {
        "definitions.yaml": definitions(dist),
        "policies.yaml": template(Marks(), [it for it in objects if it not in plugin]),
        "device-plugin.yaml": "{{- if .Values.devicePlugin.enabled }}\n" + template(marks, plugin) + "{{- end }}\n",
    }


def main():
    dist, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[4])
    values = {"@VERSION@": sys.argv[2], "@REGISTRY@": sys.argv[3]}
    for name, templates in (("vm-operator", namespaced(dist)), ("vm-operator-cluster", cluster(dist))):
        chart = target / name
        (chart / "templates").mkdir(parents=True)
        for source in sorted((HERE / "charts" / name).iterdir()):
            text = source.read_text()
            for mark, value in values.items():
                text = text.replace(mark, value)
            (chart / source.name).write_text(text)
        for file, text in templates.items():
            (chart / "templates" / file).write_text(text)


main()
