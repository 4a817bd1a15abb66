//! Instances of EC2: the controller with its account on a real API server, and moto with IAM in place of AWS.

mod check;
mod definition;
mod policy;
mod rights;
mod scale;
mod secrets;
mod sweep;

use crate::apiserver::peerpods::life::{AHEAD, Life, SEEN, instant};
use crate::apiserver::world::{eventually, root};
use reqsign_aws_v4::{Credential, RequestSigner, StaticCredentialProvider};
use reqsign_core::{Context, Signer};
use serde_json::{Value, json};
use std::ops::Deref;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use vm_operator::api::peerpod::names;
use vm_operator::controllers::peerpod::PeerPodController;
use vm_operator::https::HttpsClient;
use vm_operator::settings::peerpod::{AwsProvider, PeerPodSettings, Providers, Sweep};

const REGION: &str = "eu-central-1";

/// The actions that the controller needs, as the page about PeerPods lists them.
const ACTIONS: [&str; 7] = [
    "ec2:DescribeInstances",
    "ec2:TerminateInstances",
    "ec2:DescribeAddresses",
    "ec2:DisassociateAddress",
    "ec2:ReleaseAddress",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DeleteNetworkInterface",
];

/// A server with the API of AWS, and the controller.
struct Cloud {
    life: Life,
    url: String,
    admin: Option<(String, String)>,
    _server: Child,
}

impl Deref for Cloud {
    type Target = Life;

    fn deref(&self) -> &Life {
        &self.life
    }
}

/// The text of the first element with that name.
fn element<'a>(body: &'a str, name: &str) -> &'a str {
    let start = body
        .split_once(&format!("<{name}>"))
        .unwrap_or_else(|| panic!("{name}: {body}"));
    start.1.split_once(&format!("</{name}>")).unwrap().0
}

/// A policy that permits these actions.
fn policy(actions: &[&str]) -> String {
    let statement = json!({"Effect": "Allow", "Action": actions, "Resource": "*"});
    json!({"Version": "2012-10-17", "Statement": [statement]}).to_string()
}

impl Cloud {
    async fn start(name: &str) -> Self {
        Self::of(Life::start(name, "aws").await).await
    }

    /// The same for that namespace.
    async fn of(life: Life) -> Self {
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let server = Command::new(root().join("tests/moto"))
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}");
        eventually("moto listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_ok()
        })
        .await;
        let mut cloud = Self {
            life,
            url,
            admin: None,
            _server: server,
        };
        let admin = cloud.user("admin", &["*"]).await;
        cloud.admin = Some(admin);
        cloud
    }

    /// A user of IAM who may do that. Returns the keys.
    async fn user(&self, name: &str, actions: &[&str]) -> (String, String) {
        self.iam(&[("Action", "CreateUser"), ("UserName", name)])
            .await;
        self.permit(name, actions).await;
        let keys = self
            .iam(&[("Action", "CreateAccessKey"), ("UserName", name)])
            .await;
        let key = |name| element(&keys, name).to_owned();
        (key("AccessKeyId"), key("SecretAccessKey"))
    }

    async fn permit(&self, name: &str, actions: &[&str]) {
        let parameters = [
            ("Action", "PutUserPolicy"),
            ("UserName", name),
            ("PolicyName", "p"),
            ("PolicyDocument", &policy(actions)),
        ];
        self.iam(&parameters).await;
    }

    async fn iam(&self, parameters: &[(&str, &str)]) -> String {
        self.send("iam", "us-east-1", "2010-05-08", parameters)
            .await
    }

    async fn ec2(&self, parameters: &[(&str, &str)]) -> String {
        self.send("ec2", REGION, "2016-11-15", parameters).await
    }

    /// Sends a request as the administrator. There is none at first, and IAM is not on.
    async fn send(
        &self,
        service: &str,
        region: &str,
        version: &str,
        parameters: &[(&str, &str)],
    ) -> String {
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(parameters)
            .append_pair("Version", version);
        let body = body.finish().into_bytes();
        let request = http::Request::post(format!("{}/", self.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let (mut head, body) = request.body(body).unwrap().into_parts();
        let (key, secret) = self
            .admin
            .clone()
            .unwrap_or_else(|| ("none".to_owned(), "none".to_owned()));
        let source = StaticCredentialProvider::new(&key, &secret);
        let signer: Signer<Credential> =
            Signer::new(Context::new(), source, RequestSigner::new(service, region));
        head.headers
            .insert("x-amz-content-sha256", sha256(&body).parse().unwrap());
        signer.sign(&mut head, None).await.unwrap();
        let client = HttpsClient::new(b"").unwrap();
        let answer = client
            .send(
                http::Request::from_parts(head, body),
                Duration::from_secs(30),
            )
            .await
            .unwrap();
        let (status, body) = (
            answer.status(),
            String::from_utf8(answer.into_body()).unwrap(),
        );
        assert!(status.is_success(), "{parameters:?}: {body}");
        body
    }

    /// From now on, each request needs valid keys and the permission.
    async fn enforce(&self) {
        let request = http::Request::post(format!("{}/moto-api/reset-auth", self.url))
            .header("content-type", "text/plain");
        let client = HttpsClient::new(b"").unwrap();
        let request = request.body(b"0".to_vec()).unwrap();
        client.send(request, Duration::from_secs(30)).await.unwrap();
    }

    async fn run_instance(&self, name: &str) -> String {
        self.run_tagged(&[("Name", name)]).await
    }

    async fn run_tagged(&self, tags: &[(&str, &str)]) -> String {
        let tags = (1..).zip(tags).flat_map(|(n, (key, value))| {
            let tag = format!("TagSpecification.1.Tag.{n}");
            [
                (format!("{tag}.Key"), *key),
                (format!("{tag}.Value"), *value),
            ]
        });
        let tags: Vec<_> = tags.collect();
        let mut parameters = vec![
            ("Action", "RunInstances"),
            ("ImageId", "ami-12c6146b"),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("TagSpecification.1.ResourceType", "instance"),
        ];
        parameters.extend(tags.iter().map(|(key, value)| (&**key, *value)));
        let body = self.ec2(&parameters).await;
        element(&body, "instanceId").to_owned()
    }

    async fn state(&self, id: &str) -> String {
        let body = self
            .ec2(&[("Action", "DescribeInstances"), ("InstanceId.1", id)])
            .await;
        element(element(&body, "instanceState"), "name").to_owned()
    }

    /// Allocates an address with that name. Returns its identifier.
    async fn address(&self, name: &str, instance: Option<&str>) -> String {
        let tag = "TagSpecification.1.Tag.1";
        let body = self
            .ec2(&[
                ("Action", "AllocateAddress"),
                ("Domain", "vpc"),
                ("TagSpecification.1.ResourceType", "elastic-ip"),
                (&format!("{tag}.Key"), "Name"),
                (&format!("{tag}.Value"), name),
            ])
            .await;
        let id = element(&body, "allocationId").to_owned();
        if let Some(instance) = instance {
            let parameters = [
                ("Action", "AssociateAddress"),
                ("AllocationId", &id),
                ("InstanceId", instance),
            ];
            self.ec2(&parameters).await;
        }
        id
    }

    /// Creates a network interface with that name.
    async fn interface(&self, name: &str) -> String {
        let subnets = self.ec2(&[("Action", "DescribeSubnets")]).await;
        let subnet = element(&subnets, "subnetId");
        let body = self
            .ec2(&[("Action", "CreateNetworkInterface"), ("SubnetId", subnet)])
            .await;
        let id = element(&body, "networkInterfaceId").to_owned();
        let parameters = [
            ("Action", "CreateTags"),
            ("ResourceId.1", &id),
            ("Tag.1.Key", "Name"),
            ("Tag.1.Value", name),
        ];
        self.ec2(&parameters).await;
        id
    }

    /// Whether the list of the action has the text.
    async fn has(&self, action: &str, id: &str) -> bool {
        self.ec2(&[("Action", action)]).await.contains(id)
    }

    /// Writes the objects of the cloud-api-adaptor.
    async fn configure(&self, config: Value, keys: &(String, String)) {
        let keys = json!({"AWS_ACCESS_KEY_ID": keys.0, "AWS_SECRET_ACCESS_KEY": keys.1});
        self.life
            .write("ConfigMap", "peer-pods-cm", "data", config)
            .await;
        self.life
            .write("Secret", "peer-pods-secret", "stringData", keys)
            .await;
    }

    /// Starts the controller.
    async fn operate(&mut self) {
        self.operate_with(Sweep::Off, instant).await;
    }

    async fn operate_with(&mut self, sweep: Sweep, instant: fn() -> Instant) {
        let controller = self.controller(sweep, instant).await;
        self.life.run(controller);
    }

    async fn controller(&self, sweep: Sweep, instant: fn() -> Instant) -> Arc<PeerPodController> {
        let endpoint = Some(self.url.clone());
        let aws = AwsProvider {
            endpoint: endpoint.clone(),
            sts_endpoint: endpoint,
        };
        let settings = PeerPodSettings {
            providers: Providers { aws },
            sweep,
            ..PeerPodSettings::default()
        };
        self.life.controller(settings, instant).await
    }
}

fn sha256(body: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(body)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ec2_instance_is_terminated_with_its_pod_and_others_remain() {
    let mut cloud = Cloud::start("aws-life").await;
    let keys = cloud.user("controller", &ACTIONS).await;
    cloud.enforce().await;
    let own = cloud.run_instance("podvm-a-0123abcd").await;
    let (foreign, database) = (
        cloud.run_instance("podvm-other-0123abcd").await,
        cloud.run_instance("database").await,
    );
    let address = cloud.address(&format!("eip-{own}"), Some(&own)).await;
    let of_user = cloud.address("of-user", None).await;
    let of_foreign = cloud
        .address(&format!("eip-{foreign}"), Some(&foreign))
        .await;
    let interface = cloud.interface(&format!("nic-{own}")).await;
    let other_interface = cloud.interface("nic-of-user").await;
    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    cloud.operate().await;

    cloud.pod("a", &own, json!({})).await;
    cloud.noted("a").await;
    assert_eq!(cloud.state(&own).await, "running");
    // The PeerPods of other instances have a forged note.
    let note = json!({SEEN: json!({"place": format!("123456789012/{REGION}"), "name": "podvm-b-0123abcd"}).to_string()});
    cloud.pod("b", &foreign, note.clone()).await;
    cloud.pod("c", &database, note).await;
    for pod in ["a", "b", "c"] {
        cloud.end(pod).await;
    }
    cloud.released("a").await;
    assert_eq!(cloud.state(&own).await, "terminated");
    assert!(!cloud.has("DescribeAddresses", &address).await);
    assert!(!cloud.has("DescribeNetworkInterfaces", &interface).await);

    cloud.reports("b", "InstanceNotOurs", "podvm-b-").await;
    cloud.reports("c", "InstanceNotOurs", "podvm-c-").await;
    for id in [&foreign, &database] {
        assert_eq!(cloud.state(id).await, "running");
    }
    assert!(cloud.has("DescribeAddresses", &of_user).await);
    assert!(cloud.has("DescribeAddresses", &of_foreign).await);
    assert!(
        cloud
            .has("DescribeNetworkInterfaces", &other_interface)
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_and_permissions_of_ec2_are_used_as_soon_as_they_are_corrected() {
    let mut cloud = Cloud::start("aws-denied").await;
    let permitted: Vec<_> = ACTIONS
        .into_iter()
        .filter(|action| *action != "ec2:TerminateInstances")
        .collect();
    let keys = cloud.user("controller", &permitted).await;
    cloud.enforce().await;
    let id = cloud.run_instance("podvm-a-0123abcd").await;
    let wrong = (keys.0.clone(), "planted".to_owned());
    cloud.configure(json!({"AWS_REGION": REGION}), &wrong).await;
    cloud.operate().await;
    cloud.pod("a", &id, json!({})).await;
    cloud.end("a").await;
    cloud
        .reports("a", "CredentialsRejected", "correct the credentials")
        .await;
    let peerpod = json!(cloud.peerpods.get("a").await.unwrap()).to_string();
    assert!(!peerpod.contains("planted"), "{peerpod}");

    let began = Instant::now();
    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    cloud.noted("a").await;
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "{:?}",
        began.elapsed()
    );
    cloud
        .reports("a", "PermissionDenied", "ec2:TerminateInstances")
        .await;
    assert_eq!(cloud.state(&id).await, "running");
    cloud.permit("controller", &ACTIONS).await;
    cloud.released("a").await;
    assert_eq!(cloud.state(&id).await, "terminated");
}

#[tokio::test(flavor = "multi_thread")]
async fn instance_that_ec2_does_not_have_is_gone_only_if_it_was_seen_there() {
    let mut cloud = Cloud::start("aws-absent").await;
    let keys = cloud.user("controller", &ACTIONS).await;
    cloud.enforce().await;
    let kept = cloud.run_instance("podvm-kept-0123abcd").await;
    cloud
        .configure(json!({"PEERPODS_DEVELOPER_MODE": "true"}), &keys)
        .await;
    cloud.operate().await;
    let note = |region: &str| {
        let note = json!({"place": format!("123456789012/{region}"), "name": "podvm-a-0123abcd"});
        json!({SEEN: note.to_string()})
    };
    cloud.pod("never", "i-00000001", json!({})).await;
    cloud
        .pod("elsewhere", "i-00000002", note("us-east-1"))
        .await;
    cloud.pod("here", "i-00000003", note(REGION)).await;
    cloud.pod("kept", &kept, json!({})).await;
    for pod in ["never", "elsewhere", "here", "kept"] {
        cloud.end(pod).await;
    }
    cloud.reports("here", "ConfigMissing", "AWS_REGION").await;
    let config = json!({"AWS_REGION": REGION, "PEERPODS_DEVELOPER_MODE": "true"});
    cloud.configure(config, &keys).await;
    cloud
        .reports("here", "Deleting", "asks again after 5 min")
        .await;
    cloud.reports("never", "InstanceNeverSeen", REGION).await;
    cloud
        .reports("elsewhere", "ScopeChanged", "us-east-1")
        .await;
    cloud
        .reports("kept", "DeveloperMode", "PEERPODS_DEVELOPER_MODE")
        .await;
    assert_eq!(cloud.state(&kept).await, "running");

    AHEAD.fetch_add(300, Ordering::Relaxed);
    // A change begins the reconcile before its time.
    for pod in ["never", "elsewhere", "here", "kept"] {
        cloud.annotate(pod, "test", "later").await;
    }
    cloud.released("here").await;
    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    cloud.annotate("kept", "test", "again").await;
    cloud.released("kept").await;
    assert_eq!(cloud.state(&kept).await, "terminated");
    for pod in ["never", "elsewhere"] {
        assert!(!cloud.is_released(pod).await, "{pod}");
        let id = cloud.peerpods.get(pod).await.unwrap().spec.instance_id;
        cloud.annotate(pod, names::ANNOTATION_ABANDON, &id).await;
        cloud.released(pod).await;
    }
}
