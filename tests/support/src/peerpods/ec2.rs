//! EC2 and STS, as far as the controller calls them. Instances and elastic addresses are ConfigMaps, so that the history of a run has their
//! states.

use crate::components;
use crate::fault::Fault;
use crate::timings;
use http::{Request, Response};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

/// The region with all instances.
pub const REGION: &str = "eu-central-1";
/// Key of a ConfigMap: who has ended the instance.
pub const ENDED_BY: &str = "endedBy";
/// The value of [`ENDED_BY`] for calls of the controller.
pub const CONTROLLER: &str = "controller";

/// Time for an answer.
const LATENCY: Duration = Duration::from_millis(500);
/// Time for the end of an instance.
const SHUTDOWN: Duration = Duration::from_secs(4);

/// Both services.
#[derive(Clone)]
pub struct Ec2(Api<DynamicObject>);

impl Ec2 {
    /// The services, with the objects of that namespace.
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self(components::api(client, "ConfigMap", Some(namespace)))
    }

    /// Answers a request, after the call has taken effect.
    pub async fn answer(&self, request: &Request<Vec<u8>>) -> Response<Vec<u8>> {
        tokio::time::sleep(LATENCY).await;
        let is_here = request.uri().host().unwrap().contains(REGION);
        let body = std::str::from_utf8(request.body()).unwrap();
        let parameters = body.split('&').filter_map(|it| it.split_once('='));
        let values = parameters.filter(|(key, _)| key.contains("Value.") || key.contains("Id"));
        let values: Vec<&str> = values.map(|(_, value)| value).collect();
        let all = config_maps(&self.0).await.into_iter();
        let found = all.filter(|(id, data)| {
            let names = [&data["cluster"], &data["name"], &data["association"]];
            let mut names = names
                .into_iter()
                .filter_map(Value::as_str)
                .chain([id.as_str()]);
            is_here && data["isHidden"] != "true" && names.any(|name| values.contains(&name))
        });
        let found: Vec<_> = found.collect();
        let items: String = found.iter().map(item).collect();
        let action = action(request);
        let content = match &*action {
            "GetCallerIdentity" => {
                "<GetCallerIdentityResult><Account>1234</Account></GetCallerIdentityResult>"
                    .to_owned()
            }
            "DescribeInstances" if !found.is_empty() || body.contains("Filter.") => {
                format!(
                    "<reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet>"
                )
            }
            "DescribeAddresses" => format!("<addressesSet>{items}</addressesSet>"),
            "DescribeNetworkInterfaces" => "<networkInterfaceSet/>".to_owned(),
            // The request names something that does not exist.
            _ if found.is_empty() => {
                let kind = if values[0].starts_with("i-") {
                    "Instance"
                } else {
                    "Allocation"
                };
                return error(400, &format!("Invalid{kind}ID.NotFound"), values[0]);
            }
            _ => {
                self.act(&action, &found).await;
                "<return>true</return>".to_owned()
            }
        };
        response(
            200,
            format!("<{action}Response>{content}</{action}Response>"),
        )
    }

    async fn act(&self, action: &str, found: &[(String, Value)]) {
        for (id, data) in found {
            match action {
                "TerminateInstances" if data["state"] == "running" => {
                    let time = timings::now().to_string();
                    let ends =
                        json!({"state": "shutting-down", ENDED_BY: CONTROLLER, "time": time});
                    change(&self.0, id, ends).await;
                    let (ec2, id) = (self.0.clone(), id.clone());
                    tokio::spawn(async move {
                        tokio::time::sleep(SHUTDOWN).await;
                        change(&ec2, &id, json!({"state": "terminated"})).await;
                    });
                }
                "TerminateInstances" => {}
                "DisassociateAddress" => {
                    change(&self.0, id, json!({"association": "", "instance": ""})).await;
                }
                "ReleaseAddress" => {
                    assert_eq!(data["association"], "", "{id} is in use");
                    self.0.delete(id, &DeleteParams::default()).await.unwrap();
                }
                _ => panic!("{action}"),
            }
        }
    }
}

/// Names and data of the ConfigMaps.
pub async fn config_maps(objects: &Api<DynamicObject>) -> Vec<(String, Value)> {
    let all = objects.list(&ListParams::default()).await.unwrap().items;
    let all = all.into_iter();
    all.map(|it| (it.metadata.name.unwrap(), it.data["data"].clone()))
        .collect()
}

/// Changes data of a ConfigMap.
pub async fn change(objects: &Api<DynamicObject>, id: &str, data: Value) {
    let params = PatchParams {
        field_manager: Some("test".to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"data": data}));
    objects.patch(id, &params, &patch).await.unwrap();
}

/// The action of a request.
pub fn action(request: &Request<Vec<u8>>) -> String {
    let body = std::str::from_utf8(request.body()).unwrap();
    body.split(['=', '&']).nth(1).unwrap().to_owned()
}

/// The answer with a fault.
pub fn rejection(fault: Fault) -> Response<Vec<u8>> {
    match fault {
        Fault::Refused(401) => error(401, "AuthFailure", ""),
        Fault::Refused(403) => error(403, "UnauthorizedOperation", ""),
        Fault::Refused(code @ (429 | 503)) => error(code, "RequestLimitExceeded", ""),
        Fault::Refused(code) => error(code, "InternalError", ""),
        _ => response(200, "<html>sign in</html>".to_owned()),
    }
}

fn error(status: u16, code: &str, message: &str) -> Response<Vec<u8>> {
    let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    response(
        status,
        format!("<Response><Errors>{error}</Errors></Response>"),
    )
}

fn response(status: u16, body: String) -> Response<Vec<u8>> {
    let response = Response::builder().status(status);
    response.body(body.into_bytes()).unwrap()
}

/// An instance or an address.
fn item((id, data): &(String, Value)) -> String {
    let [instance, association, state, name, cluster] =
        ["instance", "association", "state", "name", "cluster"]
            .map(|key| data[key].as_str().unwrap_or_default());
    let ids = match instance {
        "" if id.starts_with("i-") => format!("<instanceId>{id}</instanceId>"),
        _ => format!("<allocationId>{id}</allocationId><instanceId>{instance}</instanceId>"),
    };
    format!(
        "<item>{ids}<associationId>{association}</associationId><instanceState><name>{state}</name></instanceState><tagSet>\
         <item><key>Name</key><value>{name}</value></item>\
         <item><key>caa-cluster-uid</key><value>{cluster}</value></item></tagSet></item>"
    )
}
