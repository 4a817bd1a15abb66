//! The definition of VMs with another group and other names, so that a test can change it without effect on other
//! tests.

use crate::apiserver::world::{World, eventually};
use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use std::path::Path;

pub struct Definition<'a> {
    world: &'a World,
    group: String,
    names: Names,
}

/// The names of its resources.
struct Names {
    plural: &'static str,
    singular: &'static str,
    short: &'static [&'static str],
}

/// Names that no other test uses.
const COPIES: Names = Names {
    plural: "copies",
    singular: "copy",
    short: &[],
};
const KUBEVIRTS: Names = Names {
    plural: "virtualmachines",
    singular: "virtualmachine",
    short: &["vm", "vms"],
};

/// The definition in `crds/`.
fn ours() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds/vms.vmoperator.jdrupes.org.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Removes rules and limits.
fn remove_rules(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        for key in [
            "x-kubernetes-validations",
            "maxItems",
            "maxLength",
            "maxProperties",
        ] {
            fields.remove(key);
        }
        fields.values_mut().for_each(remove_rules);
    }
}

impl<'a> Definition<'a> {
    fn named(names: Names, world: &'a World) -> Self {
        Self {
            world,
            group: format!("{}.vmop.test", world.namespace),
            names,
        }
    }

    /// Installs a definition with the resource names of KubeVirt.
    pub async fn with_the_names_of_kubevirt(world: &'a World) -> Self {
        let definition = Self::named(KUBEVIRTS, world);
        definition.install(ours()).await;
        definition
    }

    /// Installs the definition unchanged.
    pub async fn new(world: &'a World) -> Self {
        let definition = Self::named(COPIES, world);
        definition.install(ours()).await;
        definition
    }

    /// Installs it without rules.
    pub async fn without_rules(world: &'a World) -> Self {
        let definition = Self::named(COPIES, world);
        let mut crd = ours();
        remove_rules(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
        definition.install(crd).await;
        definition
    }

    /// Installs it with the conditions of the Java VM-Operator: an atomic list, which each writer replaces as a whole.
    pub async fn with_a_list_of_conditions(world: &'a World) -> Self {
        let definition = Self::named(COPIES, world);
        let mut crd = ours();
        let status =
            "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions";
        let conditions = crd.pointer_mut(status).unwrap().as_object_mut().unwrap();
        assert_eq!(
            conditions.remove("x-kubernetes-list-type"),
            Some("map".into())
        );
        conditions.remove("x-kubernetes-list-map-keys");
        definition.install(crd).await;
        definition
    }

    /// Replaces it by this project's schema, under the existing objects. The schema is in force a moment later.
    pub async fn replace(&self) {
        self.install(ours()).await;
    }

    /// Adds the rules.
    pub async fn add_rules(&self) {
        self.install(ours()).await;
        eventually("the rules are in force", || async {
            self.create("bad", &json!({"vm": {"rtcClock": "x"}}), true)
                .await
                .is_err()
        })
        .await;
    }

    fn name(&self) -> String {
        format!("{}.{}", self.names.plural, self.group)
    }

    async fn install(&self, mut crd: Value) {
        crd["metadata"]["name"] = self.name().into();
        crd["spec"]["group"] = self.group.clone().into();
        let names = &mut crd["spec"]["names"];
        names["plural"] = self.names.plural.into();
        names["singular"] = self.names.singular.into();
        names["shortNames"] = self.names.short.into();
        let crds = Api::<CustomResourceDefinition>::all(self.world.client.clone());
        crds.patch(
            &self.name(),
            &PatchParams::apply("test").force(),
            &Patch::Apply(&crd),
        )
        .await
        .unwrap();
        eventually("objects can be created", || async {
            self.create("ready", &json!({"vm": {}}), true).await.is_ok()
        })
        .await;
    }

    async fn send(
        &self,
        request: http::request::Builder,
        path: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let (namespace, plural) = (&self.world.namespace, self.names.plural);
        let path = format!(
            "/apis/{}/v1/namespaces/{namespace}/{plural}{path}",
            self.group
        );
        let request = request
            .uri(path)
            .body(serde_json::to_vec(body).unwrap())
            .unwrap();
        self.world.client.request(request).await
    }

    /// Creates a VM with that spec, or dry-runs its creation. The spec is sent as a user wrote it, because the typed
    /// one would already have the defaults.
    pub async fn create(&self, name: &str, spec: &Value, dry: bool) -> Result<Value, kube::Error> {
        let version = format!("{}/v1", self.group);
        let object = json!({"apiVersion": version, "kind": "VirtualMachine", "metadata": {"name": name}, "spec": spec});
        let request = Request::builder()
            .method("POST")
            .header("Content-Type", "application/json");
        self.send(request, if dry { "?dryRun=All" } else { "" }, &object)
            .await
    }

    /// A VM's status.
    pub async fn status(&self, name: &str) -> Value {
        let vm = self
            .send(Request::builder(), &format!("/{name}"), &Value::Null)
            .await
            .unwrap();
        vm["status"].clone()
    }

    /// Replaces a VM's whole status, as the runner of the Java VM-Operator does.
    pub async fn replace_status(&self, name: &str, status: &Value) {
        let patch = json!([{"op": "replace", "path": "/status", "value": status}]);
        let request = Request::builder()
            .method("PATCH")
            .header("Content-Type", "application/json-patch+json");
        let path = format!("/{name}/status?fieldManager=kubernetes-java-kubectl-apply");
        self.send(request, &path, &patch).await.unwrap();
    }

    /// Applies a part of a VM's status.
    pub async fn apply_status(
        &self,
        name: &str,
        manager: &str,
        status: &Value,
    ) -> Result<Value, kube::Error> {
        let version = format!("{}/v1", self.group);
        let body = json!({"apiVersion": version, "kind": "VirtualMachine", "metadata": {"name": name}, "status": status});
        let request = Request::builder()
            .method("PATCH")
            .header("Content-Type", "application/apply-patch+yaml");
        self.send(
            request,
            &format!("/{name}/status?force=true&fieldManager={manager}"),
            &body,
        )
        .await
    }

    /// Patches a VM, or one of its subresources (`/status`).
    pub async fn merge(
        &self,
        name: &str,
        subresource: &str,
        patch: &Value,
    ) -> Result<Value, kube::Error> {
        let request = Request::builder()
            .method("PATCH")
            .header("Content-Type", "application/merge-patch+json");
        self.send(request, &format!("/{name}{subresource}"), patch)
            .await
    }
}
