//! The versions that pages name are those of the files that pin them.

use super::root;

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The version after this text in a file, up to the next character that belongs to no version.
fn pinned(path: &str, before: &str) -> String {
    let text = text(path);
    let rest = text
        .split_once(before)
        .unwrap_or_else(|| panic!("{path} has no {before}"))
        .1;
    let is_part = |c: &char| c.is_ascii_digit() || *c == '.';
    rest.chars().take_while(is_part).collect()
}

/// The first two numbers of a version.
fn minor(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Asserts that each page has the text.
fn all_have(pages: &[&str], expected: &str) {
    for page in pages {
        // Pages have line breaks between words.
        let words = text(page);
        let words: Vec<_> = words.split_whitespace().collect();
        assert!(words.join(" ").contains(expected), "{page}: {expected}");
    }
}

#[test]
fn pages_name_the_kubernetes_version_of_the_local_cluster() {
    let version = pinned("tests/cluster/cluster", "\nKUBERNETES_VERSION=");
    let built = pinned("tests/cluster/kube/go.mod", "k8s.io/kubernetes v");
    assert_eq!(version, built);
    let row = format!("| {version} | a complete cluster");
    all_have(&["docs/support.md"], &row);
    let name = format!("Kubernetes {}", minor(&version));
    all_have(
        &["README.md", "docs/nodes/kvm.md", "tests/cluster/README.md"],
        &name,
    );
    all_have(
        &["docs/limits.md"],
        &format!("| Kubernetes | {}", minor(&version)),
    );
}

#[test]
fn pages_and_charts_name_the_same_oldest_kubernetes_version() {
    let oldest = pinned("docs/support.md", "oldest supported version is Kubernetes ");
    let oldest = minor(&oldest);
    let name = format!("Kubernetes {oldest} or newer");
    all_have(&["README.md", "docs/install.md"], &name);
    all_have(&["docs/support.md"], &format!("| {oldest}."));
    for chart in std::fs::read_dir(root().join("release/charts")).unwrap() {
        let path = chart.unwrap().path().join("Chart.yaml");
        let version = pinned(path.to_str().unwrap(), "kubeVersion: \">=");
        assert_eq!(minor(&version), oldest);
    }
}

#[test]
fn support_page_names_the_versions_of_tools_and_images() {
    let tool = |name: &str, module: &str| {
        let version = pinned("tests/tools", &format!("{module}@v"));
        all_have(&["docs/support.md"], &format!("| {name} | {version}"));
    };
    tool("Helm", "helm.sh/helm/v3/cmd/helm");
    tool("kustomize", "sigs.k8s.io/kustomize/kustomize/v5");
    // Debian 13 is trixie. A test of the images compares the version of QEMU.
    all_have(
        &["Dockerfile"],
        "FROM docker.io/library/debian:trixie-slim AS qemu",
    );
    all_have(
        &["docs/support.md"],
        "in the image of the runner, from Debian 13",
    );
}

#[test]
fn pages_and_builds_name_the_same_compilers() {
    let go = minor(&pinned("tests/cluster/kube/go.mod", "\ngo "));
    let name = format!("Go {go} or newer");
    all_have(
        &["README.md", "docs/install.md", "tests/cluster/README.md"],
        &name,
    );
    let rust = minor(&pinned("rust-toolchain.toml", "channel = \""));
    assert_eq!(minor(&pinned("Cargo.toml", "rust-version = \"")), rust);
    assert_eq!(pinned("Dockerfile", "docker.io/library/rust:"), rust);
}
