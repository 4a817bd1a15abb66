//! Two operators, each in its namespace.

use super::harness::disk::Counts;
use super::harness::e2e_in_two;
use super::harness::vm::SHUTDOWN;
use serde_json::json;

#[test]
fn two_operators_with_vms_of_the_same_name_leave_each_other_alone() {
    e2e_in_two(async |here, there| {
        let ours = here.create("vm", json!({})).await;
        let theirs = there.create("vm", json!({})).await;
        ours.booted().await;
        theirs.booted().await;
        let their_pod = theirs.pod_uid();

        ours.set_state("Stopped").await;
        ours.pod_gone(SHUTDOWN).await;
        ours.wait_for_reason("Stopped", SHUTDOWN).await;
        ours.set_state("Running").await;
        ours.booted().await;
        assert_eq!(
            ours.counts().await,
            Counts {
                boot: 2,
                shutdowns: 1
            }
        );

        assert_eq!(
            (theirs.pod_uid(), there.pods.uids("vm").len()),
            (their_pod, 1)
        );
        assert_eq!(
            theirs.counts().await,
            Counts {
                boot: 1,
                shutdowns: 0
            }
        );
        for space in [here, there] {
            for account in ["vm-operator", "vm-reporter"] {
                let writes = space.audit.writes_by(&space.name, account);
                assert!(
                    !writes.is_empty(),
                    "the audit log has no request of {account}"
                );
                let strays: Vec<_> = writes
                    .iter()
                    .filter(|write| write.object.0 != space.name)
                    .collect();
                assert!(
                    strays.is_empty(),
                    "{account} of {} wrote elsewhere: {strays:#?}",
                    space.name
                );
            }
        }
    });
}
