//! What a changed configuration says of keys that only a start takes.

use super::*;
use crate::runner::status::ConfigProblem;

#[tokio::test]
async fn what_only_a_start_takes_is_told_by_name_until_it_is_as_it_was() {
    let mut rig = rig().await;
    let mut told = |keys: &str| {
        let text = format!(r#"{{"/Runner": {{{keys} "vm": {{"name": "test-vm", "display": {{"spice": {{}}}}}}}}}}"#);
        let files = Files { config: Ok(Some(text)), password: Ok(None), certificate: [None; 3] };
        rig.driver.files_changed(files);
        rig.driver.observed.config_problem.clone()
    };
    let waits = |keys: &str| {
        let why = format!("changed, and used from the next start of the VM on: {keys}");
        Some(ConfigProblem::RestartNeeded(why))
    };
    let seed = r#""cloudInit": {"userData": {"password": "x"}},"#;
    assert_eq!(
        told(&format!(r#"{seed} "metricsPort": 9000, "logLevel": "debug","#)),
        waits("logLevel, metricsPort, cloudInit")
    );
    assert_eq!(told(r#""dataDir": "/d", "runtimeDir": "/r", "uid": "u","#), waits("dataDir, runtimeDir, uid"));
    assert_eq!(
        told(r#""generation": 7, "resetCounter": 1, "guestShutdownStops": true,"#),
        None,
        "these it follows, or nobody reads"
    );
    let invalid = told(r#""logLevel": "loud","#);
    let is_told = |why: &String| why.contains("logLevel: \"loud\" is not allowed");
    assert!(matches!(&invalid, Some(ConfigProblem::Invalid(why)) if is_told(why)), "{invalid:?}");
    assert_eq!(told(""), None);
}
