//! Rejections by the API server.

use super::*;

#[test]
fn rejection_reason_identifies_quota_or_policy() {
    let refused = |code: u16, message: &str| {
        let status =
            json!({"status": "Failure", "code": code, "message": message, "reason": "Forbidden"});
        let source = kube::Error::Api(serde_json::from_value(status).unwrap());
        let error = Error::Api {
            verb: "create",
            kind: "Pod".into(),
            name: "vm".to_owned(),
            source,
        };
        rejected(&error, None)
    };
    for (message, reason) in [
        (
            "pods \"vm\" is forbidden: exceeded quota: small, requested: requests.memory=1Gi",
            Reason::QuotaExceeded,
        ),
        (
            "pods \"vm\" is forbidden: failed quota: q: must specify limits.memory for: vm-runner",
            Reason::QuotaExceeded,
        ),
        (
            "pods \"vm\" is forbidden: violates PodSecurity \"restricted:latest\": hostNetwork",
            Reason::PolicyRefused,
        ),
        (
            "admission webhook \"w\" denied the request: no",
            Reason::PolicyRefused,
        ),
        (
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            Reason::PolicyRefused,
        ),
        (
            "pods is forbidden: User \"u\" cannot create resource \"pods\" in API group \"\"",
            Reason::NotAuthorized,
        ),
        (
            "pods \"vm\" is forbidden: error looking up service account ns/vm-runner",
            Reason::Rejected,
        ),
    ] {
        let problem = refused(403, message);
        assert_eq!(problem.reason, reason, "{message}");
        assert!(
            problem.to_string().contains(message) && problem.to_string().contains("Pod vm"),
            "{}",
            problem
        );
        let has_step = problem
            .to_string()
            .contains("remove accelerator.privileged");
        assert_eq!(has_step, message.contains("PodSecurity"), "{}", problem);
    }
}

#[test]
fn rejection_by_pod_security_names_the_fields_that_ask_for_more() {
    let step = |violation: &str, spec: Value| {
        let message = format!("violates PodSecurity \"restricted:latest\": {violation}");
        let status =
            json!({"status": "Failure", "code": 403, "message": message, "reason": "Forbidden"});
        let error = Error::Api {
            verb: "create",
            kind: "Pod".into(),
            name: "vm".to_owned(),
            source: kube::Error::Api(serde_json::from_value(status).unwrap()),
        };
        let mut vm = vm(json!({"networks": [{"user": {}}, {"tap": {}}]}));
        if spec.is_object() {
            vm.spec = serde_json::from_value(spec).unwrap();
        }
        let step = rejected(&error, Some(&vm.spec)).next_step;
        assert!(
            !step.contains("privileged)") && !step.starts_with("let"),
            "{step}"
        );
        step
    };
    let tap = step("host namespaces (hostNetwork=true)", Value::Null);
    assert!(
        tap.starts_with("remove spec.vm.networks[1].tap, or"),
        "{tap}"
    );
    let profile = json!({"container.apparmor.security.beta.kubernetes.io/vm": "unconfined"});
    let annotated = json!({"podAnnotations": profile, "vm": {}});
    let apparmor = step("forbidden AppArmor profile (unconfined)", annotated.clone());
    assert!(
        apparmor.starts_with("remove spec.podAnnotations, or"),
        "{apparmor}"
    );
    let other = step("privileged (container must not)", annotated);
    assert!(
        other.starts_with("remove accelerator.privileged"),
        "{other}"
    );
}
