//! `vm-operator peerpod check`.

use super::{ACTIONS, Cloud, REGION, instant};
use serde_json::json;
use vm_operator::controllers::peerpod::check::Finding;
use vm_operator::settings::peerpod::Sweep;

fn failed(findings: &[Finding]) -> Vec<&str> {
    let failed = findings.iter().filter(|it| !it.is_ok);
    let of_aws = failed.filter(|it| it.text.starts_with("aws: "));
    of_aws.map(|it| &*it.text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_prints_account_and_region_and_each_right() {
    let cloud = Cloud::start("aws-check").await;
    let permitted: Vec<_> = ACTIONS
        .into_iter()
        .filter(|action| *action != "ec2:ReleaseAddress")
        .collect();
    let keys = cloud.user("controller", &permitted).await;
    cloud.enforce().await;
    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    let controller = cloud.controller(Sweep::Off, instant).await;
    let findings = controller.check().await;
    let texts: Vec<&str> = findings.iter().map(|it| &*it.text).collect();
    assert!(
        texts.contains(&"aws: account and region 123456789012/eu-central-1"),
        "{texts:?}"
    );
    for action in ACTIONS {
        let lines = texts
            .iter()
            .filter(|text| text.contains(&format!("{action}: ")));
        assert_eq!(lines.count(), 1, "{action} {texts:?}");
    }
    let [denied] = *failed(&findings) else {
        panic!("{texts:?}")
    };
    assert!(denied.contains("permit ec2:ReleaseAddress"), "{denied}");
    // The account of deploy/peerpod has no Role for VirtualMachines.
    let denied = texts
        .iter()
        .filter(|text| text.starts_with("virtualmachine: ") && text.contains(": denied"));
    assert_eq!(denied.count(), 2, "{texts:?}");

    cloud.permit("controller", &ACTIONS).await;
    assert_eq!(failed(&controller.check().await), [""; 0]);
    let wrong = (keys.0.clone(), "planted".to_owned());
    cloud.configure(json!({"AWS_REGION": REGION}), &wrong).await;
    let findings = controller.check().await;
    let [rejected] = *failed(&findings) else {
        panic!("{findings:?}")
    };
    assert!(
        rejected.contains("correct the credentials") && !rejected.contains("planted"),
        "{rejected}"
    );
    cloud
        .configure(json!({"CLOUD_PROVIDER": "libvirt"}), &keys)
        .await;
    assert_eq!(failed(&controller.check().await), [""; 0]);
}
