use super::*;
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::decide::InstanceState;
use crate::controllers::peerpod::facts::Owner;
use crate::https::HttpsClient;
use crate::k8s::leader::Leadership;
use axum::response::IntoResponse;
use http::{HeaderMap, StatusCode};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ID: &str = "i-0123456789abcdef0";
const OTHER: &str = "i-0123456789abcdef1";

/// An answer of the double of EC2.
#[derive(Clone)]
enum Says {
    Answer(u16, String),
    /// The connection closes after the request.
    Lost,
    Late,
}

/// A request: headers and body.
type Requests = Arc<Mutex<Vec<(HeaderMap, String)>>>;

/// A double of EC2 and STS: it gives these answers to the actions, in order. The last one of an action is repeated.
async fn service(answers: &[(&str, Says)]) -> (Ec2, Requests) {
    let mut script = HashMap::<String, VecDeque<Says>>::new();
    for (action, says) in answers {
        script
            .entry((*action).to_owned())
            .or_default()
            .push_back(says.clone());
    }
    let (script, requests) = (Arc::new(Mutex::new(script)), Requests::default());
    let seen = requests.clone();
    let answer = async move |headers: HeaderMap, body: String| {
        let action = body
            .split('&')
            .next()
            .unwrap()
            .trim_start_matches("Action=")
            .to_owned();
        seen.lock().unwrap().push((headers, body));
        let says = {
            let mut script = script.lock().unwrap();
            let queue = script.get_mut(&action);
            queue.map(|queue| {
                if queue.len() > 1 {
                    queue.pop_front().unwrap()
                } else {
                    queue[0].clone()
                }
            })
        };
        match says {
            Some(Says::Answer(status, body)) => {
                (StatusCode::from_u16(status).unwrap(), body).into_response()
            }
            Some(Says::Lost) => panic!("the connection is closed"),
            Some(Says::Late) => std::future::pending().await,
            None => (StatusCode::OK, empty(&action)).into_response(),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    let settings = AwsProvider {
        endpoint: Some(url.clone()),
        sts_endpoint: Some(url),
    };
    // A late answer ends with the leadership.
    let leadership = match answers.iter().any(|(_, says)| matches!(says, Says::Late)) {
        true => Leadership::leading_for(Duration::from_millis(500)),
        false => Leadership::alone(),
    };
    let gate = Gate::new(HttpsClient::new(b"").unwrap(), leadership);
    (Ec2::new(&config().unwrap(), &settings, gate), requests)
}

fn adaptor(values: &[(&str, &str)]) -> AdaptorConfig {
    let values = values
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    AdaptorConfig::new(("cm", values.collect()), ("secret", BTreeMap::new()))
}

fn config() -> Result<AwsConfig, Failure> {
    let keys = [
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "AKIA"),
        ("AWS_SECRET_ACCESS_KEY", "planted"),
    ];
    AwsConfig::of(&adaptor(&keys), &HashMap::new())
}

fn empty(action: &str) -> String {
    let set = match action {
        "DescribeInstances" => "<reservationSet/>",
        "DescribeAddresses" => "<addressesSet/>",
        "DescribeNetworkInterfaces" => "<networkInterfaceSet/>",
        "GetCallerIdentity" => {
            "<GetCallerIdentityResult><Account>1234</Account></GetCallerIdentityResult>"
        }
        _ => "<return>true</return>",
    };
    format!("<{action}Response><requestId>r</requestId>{set}</{action}Response>")
}

fn error(code: &str, message: &str) -> String {
    format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
    )
}

fn tags(tags: &[(&str, &str)]) -> String {
    let tag = |(key, value): &(&str, &str)| {
        format!("<item><key>{key}</key><value>{value}</value></item>")
    };
    format!(
        "<tagSet>{}</tagSet>",
        tags.iter().map(tag).collect::<String>()
    )
}

fn instances(id: &str, state: &str, of: &[(&str, &str)], next: &str) -> Says {
    let tags = tags(of);
    Says::Answer(
        200,
        format!(
            "<DescribeInstancesResponse><requestId>r</requestId><reservationSet><item><instancesSet><item><instanceId>{id}</instanceId>\
         <instanceState><code>16</code><name>{state}</name></instanceState>{tags}</item></instancesSet></item></reservationSet>\
         <nextToken>{next}</nextToken></DescribeInstancesResponse>"
        ),
    )
}

fn ids(ids: &[&str]) -> Vec<AwsId> {
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

async fn found(ec2: &mut Ec2, id: &str) -> Result<Found, Failure> {
    let id: AwsId = id.parse().unwrap();
    ec2.find(&[&id])
        .await
        .map(|mut found| found.remove(&id).unwrap())
}

fn actions(requests: &Requests) -> Vec<String> {
    let requests = requests.lock().unwrap();
    let action = |body: &str| {
        body.split('&')
            .next()
            .unwrap()
            .trim_start_matches("Action=")
            .to_owned()
    };
    requests.iter().map(|(_, body)| action(body)).collect()
}

#[tokio::test]
async fn requests_are_signed_with_their_body() {
    let (mut ec2, requests) = service(&[]).await;
    assert_eq!(ec2.begin_round().await.unwrap(), "1234/eu-central-1");
    found(&mut ec2, ID).await.unwrap();
    for (headers, body) in &*requests.lock().unwrap() {
        let header = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(header("x-amz-content-sha256"), sha256(body.as_bytes()));
        let authorization = header("authorization");
        assert!(
            authorization.contains("x-amz-content-sha256"),
            "{authorization}"
        );
        assert!(authorization.contains("/eu-central-1/"), "{authorization}");
        assert!(!format!("{headers:?}").contains("planted"));
    }
}

#[tokio::test]
async fn each_round_asks_for_the_account() {
    let account = |id: &str| {
        let body = empty("GetCallerIdentity").replace("1234", id);
        ("GetCallerIdentity", Says::Answer(200, body))
    };
    let (mut ec2, _) = service(&[account("1"), account("2")]).await;
    for expected in ["1/eu-central-1", "2/eu-central-1"] {
        assert_eq!(ec2.begin_round().await.unwrap(), expected);
    }
}

#[test]
fn configuration_selects_one_source_of_credentials() {
    let keys = [
        ("AWS_SECRET_ACCESS_KEY", CredentialSource::Keys),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", CredentialSource::WebIdentity),
        (
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            CredentialSource::Container,
        ),
    ];
    let mut config = config().unwrap();
    config.variables = HashMap::new();
    assert_eq!(CredentialSource::of(&config), CredentialSource::Node);
    // The sources are in the reverse order of their precedence.
    for (key, source) in keys.into_iter().rev() {
        config.variables.insert(key.to_owned(), "x".to_owned());
        assert_eq!(CredentialSource::of(&config), source);
    }
}

#[tokio::test]
async fn failed_source_of_credentials_selects_no_other_source() {
    let gate = Gate::new(HttpsClient::new(b"").unwrap(), Leadership::waiting());
    let mut config = config().unwrap();
    config.variables.remove("AWS_SECRET_ACCESS_KEY");
    let mut ec2 = Ec2::new(&config, &AwsProvider::default(), gate);
    let failure = ec2.begin_round().await.unwrap_err();
    assert_eq!(failure.reason, PeerPodReason::CredentialsRejected);
    assert!(
        failure.message.contains("no valid credentials"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn instance_is_that_of_the_pod_by_its_name_and_not_of_another_cluster() {
    let owner = Owner {
        namespace: "ns".to_owned(),
        name: "a".to_owned(),
        uid: "u".to_owned(),
    };
    for (state, of, expected) in [
        (
            "running",
            &[("Name", "podvm-a-0123abcd")][..],
            "Ours { is_ending: false }",
        ),
        (
            "pending",
            &[("Name", "podvm-a-0123abcd"), ("caa-cluster-uid", "cluster")],
            "Ours { is_ending: false }",
        ),
        (
            "shutting-down",
            &[("Name", "podvm-a-0123abcd")],
            "Ours { is_ending: true }",
        ),
        ("terminated", &[("Name", "podvm-a-0123abcd")], "Gone"),
        ("terminated", &[("Name", "database")], "Gone"),
        (
            "running",
            &[("Name", "podvm-a-0123abcd"), ("caa-cluster-uid", "other")],
            "NotOurs",
        ),
        (
            "running",
            &[("Name", "podvm-b-0123abcd"), ("caa-cluster-uid", "cluster")],
            "NotOurs",
        ),
        ("running", &[], "NotOurs"),
    ] {
        let (mut ec2, _) = service(&[("DescribeInstances", instances(ID, state, of, ""))]).await;
        let answer = found(&mut ec2, ID)
            .await
            .unwrap()
            .answer(&owner, "cluster", "place");
        assert!(
            format!("{:?}", answer.state).starts_with(expected),
            "{state} {of:?} {answer:?}"
        );
        assert_eq!(
            answer.seen.is_some(),
            expected.starts_with("Ours"),
            "{answer:?}"
        );
    }
    // EC2 has answered about another instance.
    let answer = instances(OTHER, "running", &[("Name", "podvm-a-0123abcd")], "");
    let (mut ec2, _) = service(&[("DescribeInstances", answer)]).await;
    let found = found(&mut ec2, ID).await.unwrap();
    let answer = found.answer(&owner, "cluster", "place");
    assert_eq!(answer.state, InstanceState::Absent);
    // Resources that are named after an instance that EC2 does not have remain.
    let (mut ec2, _) = service(&remains(ID)).await;
    let id: AwsId = ID.parse().unwrap();
    let found = ec2.find(&[&id]).await.unwrap();
    let answer = found[&id].answer(&owner, "cluster", "place");
    assert_eq!(answer.state, InstanceState::Absent);
    assert_eq!(answer.remains.len(), 2, "{answer:?}");
}

#[tokio::test]
async fn all_pages_are_read() {
    let pages = [
        (
            "DescribeInstances",
            instances(OTHER, "running", &[], "more"),
        ),
        ("DescribeInstances", instances(ID, "running", &[], "")),
    ];
    let (mut ec2, requests) = service(&pages).await;
    assert!(found(&mut ec2, ID).await.unwrap().instance.is_some());
    assert!(requests.lock().unwrap()[1].1.contains("NextToken=more"));
    // A list without an end is no answer.
    let (mut ec2, _) = service(&pages[..1]).await;
    tokio::time::pause();
    found(&mut ec2, ID).await.unwrap_err();
}

#[tokio::test]
async fn instances_of_the_cluster_are_those_with_its_tag_and_a_name_of_the_adaptor() {
    let named = ("Name", "podvm-a-0123abcd");
    let ours = ("caa-cluster-uid", "cluster");
    for (tags, state, is_tagged) in [
        (&[named, ours][..], "running", true),
        (&[named, ours], "stopped", true),
        (&[named, ours], "shutting-down", false),
        (&[named, ours], "terminated", false),
        (&[named, ("caa-cluster-uid", "other")], "running", false),
        (&[named, ("caa-cluster-uid", "")], "running", false),
        (&[named], "running", false),
        (&[ours], "running", false),
        (&[("Name", "database"), ours], "running", false),
        (&[("Name", "podvm-0123abcd"), ours], "running", false),
    ] {
        let answer = instances(ID, state, tags, "");
        let (mut ec2, requests) = service(&[("DescribeInstances", answer)]).await;
        // The double ignores the filter.
        let [item] = &*ec2.of_cluster("cluster").await.unwrap() else {
            panic!("one instance")
        };
        let found = orphans::Tagged::of(item, "cluster");
        assert_eq!(found.is_some(), is_tagged, "{tags:?} {state}");
        let body = &requests.lock().unwrap()[0].1;
        assert!(
            body.contains("tag%3Acaa-cluster-uid&Filter.1.Value.1=cluster"),
            "{body}"
        );
    }
    // A part of the list is no list.
    let pages = [
        ("DescribeInstances", instances(ID, "running", &[], "more")),
        ("DescribeInstances", Says::Answer(503, String::new())),
    ];
    let (mut ec2, _) = service(&pages).await;
    ec2.of_cluster("cluster").await.unwrap_err();
}

/// The remains of the instance that the double of EC2 describes.
fn remains(name: &str) -> [(&'static str, Says); 2] {
    let tags = |prefix: &str| tags(&[("Name", &format!("{prefix}-{name}"))]);
    let addresses = format!(
        "<DescribeAddressesResponse><addressesSet><item><allocationId>eipalloc-1</allocationId><associationId>eipassoc-1</associationId><instanceId>{name}</instanceId>{}\
         </item></addressesSet></DescribeAddressesResponse>",
        tags("eip")
    );
    let interfaces = format!(
        "<DescribeNetworkInterfacesResponse><networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId>{}</item>\
         </networkInterfaceSet></DescribeNetworkInterfacesResponse>",
        tags("nic")
    );
    [
        ("DescribeAddresses", Says::Answer(200, addresses)),
        ("DescribeNetworkInterfaces", Says::Answer(200, interfaces)),
    ]
}

#[tokio::test]
async fn p22_only_addresses_and_interfaces_named_after_the_instance_are_removed() {
    let gone = error("InvalidAssociationID.NotFound", "gone");
    let mut answers = remains(ID).to_vec();
    answers.push(("DisassociateAddress", Says::Answer(400, gone)));
    let (mut ec2, requests) = service(&answers).await;
    let of = found(&mut ec2, ID).await.unwrap();
    ec2.release(&of).await.unwrap();
    assert_eq!(
        actions(&requests)[3..],
        [
            "DisassociateAddress",
            "ReleaseAddress",
            "DeleteNetworkInterface"
        ]
    );
    // The filter of the service has not worked.
    for name in [OTHER, "x", ""] {
        let (mut ec2, requests) = service(&remains(name)).await;
        let of = found(&mut ec2, ID).await.unwrap();
        ec2.release(&of).await.unwrap();
        assert_eq!(actions(&requests).len(), 3, "{name}");
    }
    let refused = Says::Answer(400, error("InvalidIPAddress.InUse", "in use"));
    let mut answers = remains(ID).to_vec();
    answers.push(("ReleaseAddress", refused));
    let (mut ec2, _) = service(&answers).await;
    let of = found(&mut ec2, ID).await.unwrap();
    assert_eq!(
        ec2.release(&of).await.unwrap_err().reason,
        PeerPodReason::DeletionFailed
    );
}

#[tokio::test]
async fn p22_address_that_something_else_uses_remains_and_is_reported() {
    let owner = Owner {
        namespace: "ns".to_owned(),
        name: "a".to_owned(),
        uid: "u".to_owned(),
    };
    for (user, is_used) in [
        (format!("<instanceId>{OTHER}</instanceId>"), true),
        (
            "<instanceId/><networkInterfaceId>eni-2</networkInterfaceId>".to_owned(),
            true,
        ),
        (String::new(), true),
        (
            "<networkInterfaceId>eni-1</networkInterfaceId>".to_owned(),
            false,
        ),
    ] {
        let mut answers = remains(ID).to_vec();
        if let (_, Says::Answer(_, body)) = &mut answers[0] {
            *body = body.replace(&format!("<instanceId>{ID}</instanceId>"), &user);
        }
        let terminated = instances(ID, "terminated", &[("Name", "podvm-a-0123abcd")], "");
        answers.push(("DescribeInstances", terminated));
        let (mut ec2, requests) = service(&answers).await;
        let of = found(&mut ec2, ID).await.unwrap();
        let answer = of.answer(&owner, "cluster", "place");
        assert_eq!(answer.remains.len(), usize::from(is_used), "{answer:?}");
        ec2.release(&of).await.unwrap();
        let is_released = actions(&requests).contains(&"ReleaseAddress".to_owned());
        assert_eq!(is_released, !is_used, "{user}");
    }
}

#[tokio::test]
async fn denied_description_of_interfaces_is_no_failure() {
    let denied = Says::Answer(403, error("UnauthorizedOperation", "no"));
    let (mut ec2, _) = service(&[("DescribeNetworkInterfaces", denied.clone())]).await;
    found(&mut ec2, ID).await.unwrap();
    let (mut ec2, _) = service(&[("DescribeAddresses", denied)]).await;
    let failure = found(&mut ec2, ID).await.unwrap_err();
    assert_eq!(failure.reason, PeerPodReason::PermissionDenied);
    assert!(
        failure.message.contains("ec2:DescribeAddresses"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn protected_instance_does_not_hold_up_the_others() {
    let protected = || {
        (
            "TerminateInstances",
            Says::Answer(400, error("OperationNotPermitted", "protected")),
        )
    };
    let done = || {
        (
            "TerminateInstances",
            Says::Answer(200, empty("TerminateInstances")),
        )
    };
    let (mut ec2, requests) = service(&[protected(), protected(), done(), done()]).await;
    // The second half is first: {1, 0}, {1} protected, and then {0}.
    let failures = ec2.terminate(&ids(&[ID, OTHER])).await;
    assert_eq!(
        failures.keys().map(AwsId::as_str).collect::<Vec<_>>(),
        [OTHER]
    );
    assert_eq!(
        failures.values().next().unwrap().reason,
        PeerPodReason::InstanceProtected
    );
    assert_eq!(actions(&requests).len(), 3);
    // A failure of all calls is not repeated.
    let throttled = Says::Answer(503, error("RequestLimitExceeded", "slow down"));
    let (mut ec2, requests) = service(&[("TerminateInstances", throttled)]).await;
    let failures = ec2.terminate(&ids(&[ID, OTHER])).await;
    assert!(failures.len() == 2 && failures.values().all(|it| it.is_of_provider()));
    assert_eq!(actions(&requests).len(), 1);
}

#[tokio::test]
async fn absence_is_an_answer_that_names_the_instance() {
    let not_found = |id: &str| {
        Says::Answer(
            400,
            error(
                "InvalidInstanceID.NotFound",
                &format!("The instance ID '{id}' does not exist"),
            ),
        )
    };
    let id: AwsId = ID.parse().unwrap();
    for (says, is_absent) in [
        (not_found(ID), true),
        (not_found(OTHER), false),
        (instances(ID, "running", &[], ""), false),
        (Says::Answer(200, empty("DescribeInstances")), false),
        (Says::Answer(404, "not found".to_owned()), false),
        (Says::Answer(400, error("InvalidParameterValue", ID)), false),
    ] {
        let (mut ec2, _) = service(&[("DescribeInstances", says)]).await;
        assert_eq!(ec2.confirm_absence(&id).await.is_ok(), is_absent);
    }
}

#[tokio::test]
async fn each_failure_has_a_reason_and_is_never_an_absent_instance() {
    use PeerPodReason::{CredentialsRejected, PermissionDenied, ProviderUnreachable, Throttled};
    let answer = |status, code: &str| Says::Answer(status, error(code, "AKIA planted"));
    for (says, reason, is_of_provider) in [
        (Says::Lost, ProviderUnreachable, true),
        (Says::Late, ProviderUnreachable, true),
        (answer(500, "InternalError"), ProviderUnreachable, true),
        (
            Says::Answer(502, "bad gateway".to_owned()),
            ProviderUnreachable,
            true,
        ),
        (Says::Answer(200, String::new()), ProviderUnreachable, true),
        (
            Says::Answer(200, "<html>login</html>".to_owned()),
            ProviderUnreachable,
            true,
        ),
        (
            Says::Answer(
                200,
                "<DescribeInstancesResponse><requestId>r</requestId></DescribeInstancesResponse>"
                    .to_owned(),
            ),
            ProviderUnreachable,
            true,
        ),
        (
            Says::Answer(200, empty("DescribeAddresses")),
            ProviderUnreachable,
            true,
        ),
        (answer(503, "RequestLimitExceeded"), Throttled, true),
        (answer(429, ""), Throttled, true),
        (answer(401, "AuthFailure"), CredentialsRejected, true),
        (answer(400, "RequestExpired"), CredentialsRejected, true),
        (
            answer(403, "SignatureDoesNotMatch"),
            CredentialsRejected,
            true,
        ),
        (
            answer(403, "UnauthorizedOperation"),
            PermissionDenied,
            false,
        ),
        (answer(400, "Other"), PeerPodReason::DeletionFailed, false),
        (answer(403, "Other"), PeerPodReason::DeletionFailed, false),
    ] {
        let (mut ec2, _) = service(&[("DescribeInstances", says)]).await;
        let failure = found(&mut ec2, ID).await.unwrap_err();
        assert_eq!(
            (failure.reason, failure.is_of_provider()),
            (reason, is_of_provider),
            "{failure:?}"
        );
        assert!(
            reason != CredentialsRejected || !failure.message.contains("planted"),
            "{failure:?}"
        );
    }
}

#[test]
fn configuration_of_the_adaptor_is_complete_or_names_the_key() {
    let region = ("AWS_REGION", "eu-central-1");
    for (values, expected) in [
        (&[region][..], Ok(())),
        (&[], Err((PeerPodReason::ConfigMissing, "AWS_REGION"))),
        (
            &[("AWS_REGION", "")],
            Err((PeerPodReason::ConfigMissing, "AWS_REGION")),
        ),
        (
            &[("AWS_REGION", "a.example.org/")],
            Err((PeerPodReason::ConfigInvalid, "AWS_REGION")),
        ),
        (
            &[region, ("AWS_ACCESS_KEY_ID", "a")],
            Err((PeerPodReason::ConfigMissing, "AWS_SECRET_ACCESS_KEY")),
        ),
        (
            &[region, ("AWS_SECRET_ACCESS_KEY", "a")],
            Err((PeerPodReason::ConfigMissing, "AWS_ACCESS_KEY_ID")),
        ),
    ] {
        let found = AwsConfig::of(&adaptor(values), &HashMap::new());
        let found = found
            .map(drop)
            .map_err(|failure| (failure.reason, failure.message));
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err((reason, message)), Err((expected, key))) => {
                assert!(reason == expected && message.contains(key), "{message}");
            }
            (found, _) => panic!("{values:?}: {found:?}"),
        }
    }
}

#[test]
fn objects_of_the_adaptor_name_no_file_and_no_service() {
    let planted = [
        ("AWS_REGION", "cn-north-1"),
        ("AWS_ACCESS_KEY_ID", "new"),
        ("AWS_SECRET_ACCESS_KEY", "new"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.org"),
    ];
    let own = [("AWS_SESSION_TOKEN", "old"), ("AWS_ROLE_ARN", "role")];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let config = AwsConfig::of(&adaptor(&planted), &HashMap::from(own)).unwrap();
    let keys: std::collections::BTreeSet<_> = config.variables.keys().map(String::as_str).collect();
    let expected = [
        "AWS_ACCESS_KEY_ID",
        "AWS_REGION",
        "AWS_ROLE_ARN",
        "AWS_SECRET_ACCESS_KEY",
    ];
    assert_eq!(keys, expected.into());
    assert_eq!(
        config.endpoint("ec2"),
        "https://ec2.cn-north-1.amazonaws.com.cn"
    );
}
