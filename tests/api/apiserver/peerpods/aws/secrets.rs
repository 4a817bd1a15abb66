//! Credentials are in requests to AWS and nowhere else.

use super::{ACTIONS, Cloud, REGION, element, policy};
use crate::apiserver::peerpods::log::Log;
use serde_json::json;

const ROLE: &str = "arn:aws:iam::123456789012:role/controller";

async fn permit_role(cloud: &Cloud, actions: &[&str]) {
    let parameters = [
        ("Action", "PutRolePolicy"),
        ("RoleName", "controller"),
        ("PolicyName", "p"),
        ("PolicyDocument", &policy(actions)),
    ];
    cloud.iam(&parameters).await;
}

#[tokio::test]
async fn credentials_of_ec2_are_in_no_log_metric_event_and_peerpod() {
    let mut cloud = Cloud::start("aws-secrets").await;
    let trust = json!({"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"});
    let trust = json!({"Version": "2012-10-17", "Statement": [trust]}).to_string();
    let role = [
        ("Action", "CreateRole"),
        ("RoleName", "controller"),
        ("AssumeRolePolicyDocument", &trust),
    ];
    cloud.iam(&role).await;
    permit_role(&cloud, &ACTIONS[..1]).await;
    let session = [
        ("Action", "AssumeRole"),
        ("RoleArn", ROLE),
        ("RoleSessionName", "s"),
    ];
    let session = cloud.send("sts", REGION, "2011-06-15", &session).await;
    let valid = ["AccessKeyId", "SecretAccessKey", "SessionToken"].map(|it| element(&session, it));
    cloud.enforce().await;
    let id = cloud.run_instance("podvm-a-0123abcd").await;
    let planted = ["ASIAPLANTED00000000A", "planted-secret", "planted-token"];
    let secrets = [planted, valid].concat();
    let log = Log::start();
    cloud.operate().await;
    let configure = async |[key, secret, token]: [&str; 3]| {
        let config = json!({"AWS_REGION": REGION});
        cloud
            .write("ConfigMap", "peer-pods-cm", "data", config)
            .await;
        let keys = json!({"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token});
        cloud
            .write("Secret", "peer-pods-secret", "stringData", keys)
            .await;
    };
    configure(planted).await;
    cloud.pod("a", &id, json!({})).await;
    cloud.end("a").await;
    let wrong = "CredentialsRejected";
    cloud.reports("a", wrong, "correct the credentials").await;
    cloud.hides(&log, wrong, &secrets).await;

    configure(valid).await;
    let (denied, next) = ("PermissionDenied", "permit ec2:DescribeAddresses");
    cloud.reports("a", denied, next).await;
    cloud.hides(&log, denied, &secrets).await;
    permit_role(&cloud, &ACTIONS).await;
    cloud.annotate("a", "test", "permitted").await;
    cloud.released("a").await;
    assert_eq!(cloud.state(&id).await, "terminated");
    cloud.hides(&log, denied, &secrets).await;
}
