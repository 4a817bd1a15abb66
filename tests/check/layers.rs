//! Imports of `src/` point downwards only, and folders do not import each other in a circle.
//!
//! It reads each path of each file: `use` declarations with re-exports, full paths in code, and paths in the arguments
//! of macros.
//! In each folder, its files and subfolders must not form a circle. A file `x.rs` and its folder `x/` count as one. The
//! folder's own `mod.rs` is left out: it declares the others.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use syn::visit::{self, Visit};
use vm_operator::operator::sets;

/// Folders from bottom to top. A module imports from its own folder and from lower layers.
const LAYERS: [&[&str]; 5] = [
    &["api"],
    // They do not import each other, with one exception: the reader of the configuration sets log level and metrics.
    &["sys", "telemetry", "settings", "pinned_tls", "https"],
    &["k8s"],
    &["controllers", "runner", "device_plugin", "web"],
    &["operator"],
];

/// Imports within a layer.
const WITHIN_LAYER: [(&str, &str); 1] = [("settings", "telemetry")];

/// The only folder of `k8s` that the runner needs.
const OF_RUNNER: [&str; 2] = ["k8s", "client"];

/// Known circles, by folder. Remove an entry when its circle is gone.
const KNOWN_CIRCLES: [&str; 0] = [];

/// A path from one module to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    file: PathBuf,
    line: usize,
    from: Vec<String>,
    to: Vec<String>,
}

impl Import {
    fn text(&self) -> String {
        let (file, line) = (self.file.display(), self.line);
        let (from, to) = (self.from.join("::"), self.to.join("::"));
        format!("{file}:{line}: {from} imports {to}")
    }
}

/// The imports and the modules of a tree of sources.
#[derive(Default)]
struct Sources {
    imports: Vec<Import>,
    modules: BTreeSet<Vec<String>>,
}

impl Sources {
    fn read(root: &Path) -> Self {
        let mut sources = Self::default();
        sources.file(&root.join("lib.rs"), root, Vec::new());
        sources
    }

    fn file(&mut self, path: &Path, children: &Path, module: Vec<String>) {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for (child, declaration) in self.text(path, &text, module) {
            let file = children.join(format!("{declaration}.rs"));
            let folder = children.join(&declaration);
            let file = if file.exists() {
                file
            } else {
                folder.join("mod.rs")
            };
            self.file(&file, &folder, child);
        }
    }

    /// Reads a file. Returns the modules that it declares, with their names.
    fn text(&mut self, path: &Path, text: &str, module: Vec<String>) -> Vec<(Vec<String>, String)> {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut reader = Reader {
            sources: self,
            path: path.to_owned(),
            module: module.clone(),
            declared: Vec::new(),
        };
        reader.visit_file(&file);
        let declared = reader.declared;
        self.modules.insert(module);
        declared
    }

    /// The deepest module of a path.
    fn module_of<'a>(&self, path: &'a [String]) -> &'a [String] {
        let lengths = (0..=path.len()).rev();
        let mut prefixes = lengths.map(|length| &path[..length]);
        prefixes
            .find(|prefix| self.modules.contains(*prefix))
            .unwrap_or_default()
    }
}

/// The sources of the product.
static SOURCES: LazyLock<Sources> =
    LazyLock::new(|| Sources::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")));

struct Reader<'a> {
    sources: &'a mut Sources,
    path: PathBuf,
    module: Vec<String>,
    declared: Vec<(Vec<String>, String)>,
}

impl Reader<'_> {
    /// Records a path that begins with `crate` or `super`.
    fn note(&mut self, segments: &[String], line: usize) {
        let supers = segments.iter().take_while(|name| *name == "super").count();
        let base = match segments.first().map(String::as_str) {
            Some("crate") => &[],
            Some("super") => &self.module[..self.module.len().saturating_sub(supers)],
            _ => return,
        };
        let rest = &segments[supers.max(1)..];
        self.sources.imports.push(Import {
            file: self.path.clone(),
            line,
            from: self.module.clone(),
            to: base.iter().chain(rest).cloned().collect(),
        });
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree, before));
            }
            syn::UseTree::Name(syn::UseName { ident, .. })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                let line = ident.span().start().line;
                let name = Some(ident.to_string()).filter(|name| name != "self");
                let path: Vec<_> = before.iter().cloned().chain(name).collect();
                self.note(&path, line);
            }
            syn::UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.note(&before.clone(), line);
            }
        }
    }

    /// Finds paths in the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut line) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons < 2 {
                        self.note(&std::mem::take(&mut path), line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.note(&std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.note(&path, line);
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    fn names_test(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == "test",
            TokenTree::Group(group) => names_test(group.stream()),
            _ => false,
        })
    }
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && names_test(list.tokens.clone()),
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        match &item.content {
            Some(_) => visit::visit_item_mod(self, item),
            None => self
                .declared
                .push((self.module.clone(), item.ident.to_string())),
        }
        self.module.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(&item.tree, &mut Vec::new());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.segments.first().map(|first| first.ident.span());
        let line = line.map_or(0, |span| span.start().line);
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.note(&names.collect::<Vec<_>>(), line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

/// The layer of a module and the folder that it shares with modules that it may import freely.
fn layer(module: &[String]) -> Option<(usize, &[String])> {
    let first = module.first()?;
    let layer = LAYERS
        .iter()
        .position(|folders| folders.contains(&first.as_str()))?;
    let folder = if first == "controllers" { 2 } else { 1 };
    Some((layer, &module[..folder.min(module.len())]))
}

/// The imports that point upwards or sideways.
fn upward(sources: &Sources) -> Vec<String> {
    let is_wrong = |import: &&Import| {
        let to = sources.module_of(&import.to);
        let (Some(from), Some(to_layer)) = (layer(&import.from), layer(to)) else {
            return false;
        };
        let is_within = |(from, to): &(&str, &str)| import.from[0] == *from && import.to[0] == *to;
        let is_allowed = from.1 == to_layer.1
            || from.1.starts_with(to_layer.1)
            || to_layer.0 < from.0
            || WITHIN_LAYER.iter().any(is_within);
        let is_of_runner =
            import.from[0] != "runner" || to[0] != OF_RUNNER[0] || to.iter().take(2).eq(&OF_RUNNER);
        !is_allowed || !is_of_runner
    };
    sources
        .imports
        .iter()
        .filter(is_wrong)
        .map(Import::text)
        .collect()
}

/// The circles among the files and folders of each folder.
fn circles(sources: &Sources) -> Vec<(String, String)> {
    let mut edges: BTreeMap<(Vec<String>, String), BTreeMap<String, String>> = BTreeMap::new();
    for import in &sources.imports {
        let to = sources.module_of(&import.to);
        let pairs = import.from.iter().zip(to);
        let shared = pairs.take_while(|(from, to)| from == to).count();
        if let (Some(from), Some(to)) = (import.from.get(shared), to.get(shared)) {
            let folder = import.from[..shared].to_vec();
            let edges = edges.entry((folder, from.clone())).or_default();
            edges.entry(to.clone()).or_insert_with(|| import.text());
        }
    }
    let mut circles = Vec::new();
    for ((folder, from), targets) in &edges {
        for (to, text) in targets {
            if from < to && reaches(&edges, folder, to, from) {
                let circle = format!("{}: {from} and {to}", folder.join("::"));
                circles.push((circle, text.clone()));
            }
        }
    }
    circles
}

fn reaches(
    edges: &BTreeMap<(Vec<String>, String), BTreeMap<String, String>>,
    folder: &[String],
    from: &str,
    goal: &str,
) -> bool {
    let (mut open, mut seen) = (vec![from.to_owned()], BTreeSet::new());
    while let Some(node) = open.pop() {
        let targets = edges.get(&(folder.to_vec(), node.clone()));
        if node == goal {
            return true;
        }
        if seen.insert(node) {
            open.extend(targets.into_iter().flat_map(BTreeMap::keys).cloned());
        }
    }
    false
}

#[test]
fn imports_point_downwards() {
    let sources = &*SOURCES;
    assert!(sources.modules.len() > 100, "{}", sources.modules.len());
    println!(
        "{} modules, {} imports",
        sources.modules.len(),
        sources.imports.len()
    );
    let wrong = upward(sources);
    assert!(
        wrong.is_empty(),
        "move what is needed to a lower layer, or pass it as a parameter (LAYERS in tests/check/layers.rs):\n{}",
        wrong.join("\n")
    );
}

/// The text of the files at that path, without their tests.
fn code(path: &Path) -> Vec<(PathBuf, String)> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        return entries
            .flat_map(|entry| code(&entry.unwrap().path()))
            .collect();
    }
    let is_test = path.ends_with("tests.rs") || path.extension().is_none_or(|it| it != "rs");
    if is_test {
        return Vec::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let text = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    vec![(path.to_owned(), text.to_owned())]
}

#[test]
fn log_lines_have_no_debug_output() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (path, text) in code(&src) {
        for level in ["info!(", "warn!(", "error!("] {
            let call = format!("tracing::{level}");
            let lines = text.split(&call).skip(1);
            for line in lines.filter_map(|rest| rest.split(");").next()) {
                let has_debug = ["(?", " ?", "\n?"].iter().any(|mark| line.contains(mark));
                assert!(
                    !has_debug && !line.starts_with('?'),
                    "{}: {line}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn generic_code_names_no_kind_of_ours() {
    let kinds = sets::definitions().into_iter().map(|it| it.spec.names.kind);
    let modules = ["api::vm", "api::pool", "api::report", "controllers::"].map(str::to_owned);
    let names: Vec<String> = kinds.chain(modules).collect();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let generic = ["k8s", "telemetry", "operator/http.rs"].map(|part| code(&src.join(part)));
    let generic: Vec<_> = generic.into_iter().flatten().collect();
    assert!(generic.len() > 30 && names.len() > 6);
    for (file, text) in generic {
        let named: Vec<_> = names.iter().filter(|name| text.contains(*name)).collect();
        assert!(named.is_empty(), "{} names {named:?}", file.display());
    }
}

#[test]
fn folders_have_no_circles() {
    let circles = circles(&SOURCES);
    let found: Vec<&str> = circles.iter().map(|(circle, _)| circle.as_str()).collect();
    let gone = KNOWN_CIRCLES.iter().filter(|known| !found.contains(known));
    assert_eq!(gone.count(), 0, "remove from KNOWN_CIRCLES: {found:#?}");
    let new = circles
        .iter()
        .filter(|(circle, _)| !KNOWN_CIRCLES.contains(&circle.as_str()));
    let new: Vec<String> = new
        .map(|(circle, text)| format!("{circle}: {text}"))
        .collect();
    assert!(
        new.is_empty(),
        "{} new circles; move what both need to a third file:\n{}",
        new.len(),
        new.join("\n")
    );
}

/// Sources with two layers. The file `k8s/a.rs` has the given text.
fn planted(text: &str) -> Sources {
    let mut sources = Sources::default();
    for module in ["", "api", "k8s", "k8s::b", "controllers", "controllers::vm"] {
        let module = module.split("::").filter(|name| !name.is_empty());
        sources.modules.insert(module.map(str::to_owned).collect());
    }
    let module = vec!["k8s".to_owned(), "a".to_owned()];
    sources.text(Path::new("k8s/a.rs"), text, module);
    sources
}

#[test]
fn planted_upward_imports_are_found() {
    for text in [
        "use crate::{api::A, controllers::vm::VmController};",
        "fn f() {\n    let context = crate::controllers::vm::VmController::new();\n}",
        "pub use super::super::controllers::vm as controller;",
        "fn f() {\n    assert!(matches!(g(), Some(crate::controllers::vm::X)));\n}",
        "mod inner {\n    use super::super::super::controllers::vm;\n}",
    ] {
        let found = upward(&planted(text));
        assert!(!found.is_empty(), "{text}");
        assert!(found[0].starts_with("k8s/a.rs:"), "{found:?}");
        assert!(found[0].contains("imports controllers::vm"), "{found:?}");
    }
}

#[test]
fn runner_may_import_only_the_client_of_k8s() {
    let mut sources = planted("");
    for module in ["client", "leader"] {
        let module = ["k8s", module].map(str::to_owned);
        sources.modules.insert(module.to_vec());
    }
    let text = "use crate::k8s::{client::builder, leader::Leadership};";
    let module = ["runner", "a"].map(str::to_owned).to_vec();
    sources.text(Path::new("runner/a.rs"), text, module);
    let found = upward(&sources);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("imports k8s::leader"), "{found:?}");
}

#[test]
fn downward_imports_and_tests_are_not_reported() {
    for text in [
        "use crate::api::A;\nuse super::b;",
        "#[cfg(test)]\nmod tests {\n    use crate::controllers::vm;\n}",
        "use kube::controllers::vm;",
    ] {
        assert_eq!(upward(&planted(text)), [""; 0], "{text}");
    }
}

#[test]
fn planted_circle_is_found() {
    let mut sources = planted("use super::b::B;");
    let module = vec!["k8s".to_owned(), "b".to_owned()];
    assert!(circles(&sources).is_empty());
    let text = "fn f() -> crate::k8s::a::A {}";
    sources.text(Path::new("k8s/b.rs"), text, module);
    assert_eq!(circles(&sources)[0].0, "k8s: a and b");
}
