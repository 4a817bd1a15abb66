//! The tables of the defects of the original operators, and the rights of their successors.

use super::docs::functions;
use super::root;
use std::collections::BTreeSet;

/// Each row of the page has tests that exist, or a reason.
fn check_table(page: &str, letter: char, count: usize) {
    let page = std::fs::read_to_string(root().join("docs/contribute").join(page)).unwrap();
    let mut present = BTreeSet::new();
    for directory in ["src", "tests"] {
        functions(&root().join(directory), &mut present);
    }
    let start = format!("| {letter}");
    let rows = page.lines().filter(|line| line.starts_with(&start));
    let rows: Vec<&str> = rows.collect();
    assert_eq!(rows.len(), count);
    for (row, number) in rows.iter().zip(1..) {
        assert!(row.starts_with(&format!("{start}{number}: ")), "{row}");
        let (_, tests) = row.trim_end_matches(" |").rsplit_once(" | ").unwrap();
        let has_reason = tests.starts_with("not built: ");
        let tests: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(has_reason == tests.is_empty(), "{row}");
        for test in tests {
            assert!(present.contains(test), "{letter}{number}: no test {test}");
        }
    }
}

#[test]
fn each_defect_of_the_original_operators_has_a_test_or_a_reason() {
    check_table("peerpod-tests.md", 'P', 33);
    check_table("sip-tests.md", 'S', 30);
}

#[test]
fn s29_rights_are_those_of_one_namespace() {
    let folder = std::fs::read_dir(root().join("deploy/sip")).unwrap();
    let texts = folder.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let texts = texts.collect::<String>();
    assert!(texts.contains("kind: Role\n") && !texts.contains("ClusterRole"));
}

#[test]
fn p30_cluster_role_reads_no_secrets_and_no_configuration() {
    let role = std::fs::read_to_string(root().join("deploy/peerpod/cluster-role.yaml")).unwrap();
    let role: serde_json::Value = serde_saphyr::from_str(&role).unwrap();
    let rules = role["rules"].as_array().unwrap();
    let resources: Vec<_> = rules
        .iter()
        .flat_map(|it| it["resources"].as_array().unwrap())
        .collect();
    let allowed = [
        "peerpods",
        "peerpods/status",
        "pods",
        "namespaces",
        "events",
    ];
    assert!(
        resources
            .iter()
            .all(|it| allowed.contains(&it.as_str().unwrap())),
        "{resources:?}"
    );
}
