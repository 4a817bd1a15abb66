#!/usr/bin/env python3
"""Writes the licence texts and the offer of sources: `release/notices.py DIST`.

DIST has the list of parts of each image, and gets THIRD-PARTY-NOTICES and SOURCES.md. The texts of the crates are in
their sources, which cargo has downloaded; those of Rust's standard library are in the tool chain, and those of Debian in
/usr/share.
"""

import html.parser
import json
import pathlib
import re
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
COMMON = pathlib.Path("/usr/share/common-licenses")
RULE = "=" * 100
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense|authors)", re.I)


def parts(dist, image):
    return json.loads((dist / f"vm-{image}.cdx.json").read_text())["components"]


def licences(part):
    found = [it.get("expression") or it["license"].get("id") or it["license"]["name"] for it in part.get("licenses", [])]
    return ", ".join(found)


def crate_directories():
    """The directory with the sources of each crate."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, cwd=REPO, check=True, stdout=subprocess.PIPE).stdout)
    return {(it["name"], it["version"]): (pathlib.Path(it["manifest_path"]).parent, it) for it in metadata["packages"]}


def licence_texts(directory):
    """The licence files of a crate."""
    files = [it for it in directory.rglob("*") if it.is_file() and LICENCE_FILE.match(it.name) and it.suffix not in (".rs", ".toml")]
    return [it.read_text(errors="replace").strip() for it in sorted(files, key=lambda it: (len(it.parts), it.name))]


def standard_texts(expression):
    """The texts of the licences that a crate names without including them. Of alternatives, one is enough."""
    rust = pathlib.Path(output("rustc", "--print", "sysroot")) / "share/doc/rust/licenses"
    texts = [rust / f"{name}.txt" for name in re.findall(r"[A-Za-z0-9.-]+", expression)]
    found = [it.read_text().strip() for it in texts if it.exists()]
    return found


def crate_notices(dist):
    """For each text, the crates that it applies to."""
    directories, users = crate_directories(), {}
    crates = {it["bom-ref"]: it for half in ("operator", "runner") for it in parts(dist, half) if it["purl"].startswith("pkg:cargo/")}
    for crate in crates.values():
        if crate["name"] == "vm-operator":
            continue
        directory, package = directories[crate["name"], crate["version"]]
        title = f"{crate['name']} {crate['version']} ({licences(crate)})"
        texts = licence_texts(directory)
        if not texts:
            title += "; its sources contain no licence text; authors: " + (", ".join(package["authors"]) or "not named")
            texts = standard_texts(licences(crate))
        if not texts:
            sys.exit(f"notices: no licence text for {title}")
        for text in texts:
            users.setdefault(text, []).append(title)
    return users


class Plain(html.parser.HTMLParser):
    """The text of a page in HTML."""

    def __init__(self, page):
        super().__init__()
        self.lines = []
        self.feed(page)

    def handle_data(self, data):
        self.lines.append(data)

    def text(self):
        return re.sub(r"\n\s*\n+", "\n\n", "".join(self.lines)).strip()


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def linked_debian(dist):
    return [it["name"] for it in parts(dist, "operator") if it["purl"].startswith("pkg:deb/")]


def write_notices(dist):
    rust = pathlib.Path(output("rustc", "--print", "sysroot")) / "share/doc/rust/COPYRIGHT-library.html"
    sections = [("\n".join(sorted(titles)), text) for text, titles in crate_notices(dist).items()]
    sections.sort()
    sections.append(("The Rust standard library, linked into both programs", Plain(rust.read_text()).text()))
    for package in linked_debian(dist):
        text = pathlib.Path("/usr/share/doc", package, "copyright").read_text(errors="replace").strip()
        sections.append((f"The Debian package {package}, linked into both programs", text))
    for path in sorted(COMMON.iterdir()):
        if not path.is_symlink():
            sections.append((f"{path}, which the copyright files of Debian packages name", path.read_text(errors="replace").strip()))
    head = (
        "Licences of third-party components in the images of vm-operator\n\n"
        "vm-operator itself: Apache License 2.0, file LICENSE. Images other than vm-operator contain Debian packages. The copyright\n"
        "file of each is in the image, at /usr/share/doc/<PACKAGE>/copyright."
    )
    (dist / "THIRD-PARTY-NOTICES").write_text("\n\n".join([head] + [f"{RULE}\n{title}\n{RULE}\n\n{text}" for title, text in sections]) + "\n")


SOURCES = """# Sources

The images of vm-operator contain programs of other projects under the GNU licences GPL, LGPL and AGPL, and under
similar licences. The publisher of these images offers their complete corresponding sources to anyone who has received the images: on
request, for at least three years after the last delivery of this version, and for no more than the cost of the delivery. The address for
requests is that of the publisher. Publishers of own builds of these images make the same offer in their own name.

The sources are also in Debian's archive of all versions, at the links below, with Debian's changes and build scripts.

The sources of vm-operator itself are in its repository, at the commit in the label `org.opencontainers.image.revision`
of each image. With them, both programs can be linked again with a changed glibc: `cargo build --release`.

"""
TABLE = "| package | version | source package | licences |\n|---|---|---|---|\n"


def source_row(part):
    (source,) = [it["value"] for it in part["properties"] if it["name"] == "debian:source"]
    name, version = source.split(" ", 1)
    return f"| {part['name']} | {part['version']} | [{source}](https://snapshot.debian.org/package/{name}/{version}/) | {licences(part)} |\n"


def is_offered(part):
    """Whether the licence requires an offer of sources, or is not known."""
    return part["purl"].startswith("pkg:deb/") and re.search(r"\b[AL]?GPL|MPL|CDDL|CPL|see the copyright file", licences(part))


def write_sources(dist):
    linked = [it for it in parts(dist, "operator") if is_offered(it)]
    text = SOURCES + "## Linked statically into both programs\n\n" + TABLE + "".join(map(source_row, linked))
    for path in sorted(it for it in dist.glob("vm-*.cdx.json") if it.name != "vm-operator.cdx.json"):
        image = path.name.removesuffix(".cdx.json")
        rows = [source_row(it) for it in parts(dist, image.removeprefix("vm-")) if is_offered(it) and it not in linked]
        text += f"\n## Packages of the image {image}\n\n" + TABLE + "".join(rows)
    (dist / "SOURCES.md").write_text(text)


def main():
    dist = pathlib.Path(sys.argv[1])
    write_notices(dist)
    write_sources(dist)


main()
