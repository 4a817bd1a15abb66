//! One VM that is changed and changed back, while it runs and with a restart. It is compared with VMs that were created
//! with the same specs.

use crate::changes::compare::{compare, compare_live};
use crate::changes::pick::Change;
use crate::changes::reconciles::Reconciles;
use crate::changes::rest::{Rest, rest};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use support::components::{Cluster, api};

/// The namespaces of the changed VM, of one that is created with the new spec, and of one that is created with the old
/// spec.
pub const NAMESPACES: [&str; 3] = ["changed", "as-changed", "as-before"];

/// The number of comparisons before a difference counts. Both VMs are settled at each of them.
const COMPARISONS: usize = 20;

/// The result of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The changed VM equals the created one, and the undone change equals the start.
    Same,
    /// The API server rejects the change and the creation with the same spec, and names the field.
    Rejected,
    /// The VM reports a blocking condition, and so does the created one.
    Explained(String, String),
    Wrong(String),
}

pub struct Case<'a> {
    pub cluster: &'a Cluster,
    pub reconciles: &'a Reconciles,
    pub name: String,
    pub change: Change,
}

impl Case<'_> {
    pub async fn run(&self) -> Verdict {
        let verdict = self.lives().await.unwrap_or_else(|verdict| verdict);
        for namespace in NAMESPACES {
            let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
            let _ = vms.delete(&self.name, &DeleteParams::default()).await;
            for (kind, name) in self.cluster.of_vm(namespace, &self.name) {
                if kind == "PersistentVolumeClaim" {
                    let claims = api(&self.cluster.client, kind, Some(namespace));
                    let _ = claims.delete(&name, &DeleteParams::default()).await;
                }
            }
        }
        self.cluster.clear_history();
        verdict
    }

    async fn lives(&self) -> Result<Verdict, Verdict> {
        let Change { before, after, .. } = &self.change;
        let [here, as_changed, as_before] = NAMESPACES;
        if let Err(verdict) = self.make(here, before, 0).await {
            return Err(Verdict::Wrong(format!(
                "what it is to be changed from is not admitted: {verdict:?}"
            )));
        }
        let made = self.make(as_changed, after, 1).await;
        self.make(as_before, before, 2).await?;
        let mut was = self.rest(as_before).await?;
        let equal = |was: &Rest, found: &Rest| compare_live("created", was, found, found, found);
        let first = self.becomes(&mut was, as_before, equal).await?;
        match (self.replace(here, after, 0).await, made) {
            (Ok(()), Ok(())) => {}
            (Err(verdict), _) => return Err(verdict),
            (Ok(()), Err(verdict)) => {
                return Err(Verdict::Wrong(format!(
                    "it is taken as a change and not from the beginning: {verdict:?}"
                )));
            }
        }
        let mut made = self.rest(as_changed).await?;
        let equal = |made: &Rest, found: &Rest| {
            compare_live("changed while it runs", made, found, &first, &first)
        };
        let live = self.becomes(&mut made, as_changed, equal).await?;
        self.replace(here, before, 0).await?;
        let equal = |was: &Rest, found: &Rest| {
            compare_live("changed back while it runs", was, found, &live, &first)
        };
        self.becomes(&mut was, as_before, equal).await?;
        // The running VM cannot follow some changes. They take effect at the next start.
        self.replace(here, after, 1).await?;
        let equal = |made: &Rest, found: &Rest| compare("changed", made, found, &first);
        let changed = self.becomes(&mut made, as_changed, equal).await?;
        self.replace(here, before, 1).await?;
        let equal = |was: &Rest, found: &Rest| {
            compare_live("undone while it runs", was, found, &changed, &first)
        };
        self.becomes(&mut was, as_before, equal).await?;
        self.replace(here, before, 2).await?;
        self.becomes(&mut was, as_before, |was, found| {
            compare("undone", was, found, &first)
        })
        .await?;
        Ok(if changed.is_well() {
            Verdict::Same
        } else {
            Verdict::Explained(changed.reason, changed.message)
        })
    }

    /// Waits until the changed VM is settled and equals the settled model in that namespace. While they differ, it
    /// reads both again, because on a slow machine a VM can look settled too early.
    async fn becomes(
        &self,
        model: &mut Rest,
        namespace: &str,
        equal: impl Fn(&Rest, &Rest) -> Result<(), Verdict>,
    ) -> Result<Rest, Verdict> {
        let mut looks = 0;
        loop {
            let found = self.rest(NAMESPACES[0]).await?;
            looks += 1;
            match equal(model, &found) {
                Ok(()) => return Ok(found),
                Err(verdict) if looks == COMPARISONS => return Err(verdict),
                Err(_) => *model = self.rest(namespace).await?,
            }
        }
    }

    async fn rest(&self, namespace: &str) -> Result<Rest, Verdict> {
        rest(self.cluster, self.reconciles, namespace, &self.name).await
    }

    fn vm(&self, spec: &Value, restart: u8) -> Value {
        let mut spec = spec.clone();
        // A mutated spec may be no object.
        if let Some(machine) = spec
            .pointer_mut("/vm")
            .and_then(Value::as_object_mut)
            .filter(|_| restart > 0)
        {
            machine.insert("restartRequest".to_owned(), restart.into());
        }
        let version = "vmoperator.jdrupes.org/v1";
        json!({"apiVersion": version, "kind": "VirtualMachine", "metadata": {"name": self.name}, "spec": spec})
    }

    async fn make(&self, namespace: &str, spec: &Value, restart: u8) -> Result<(), Verdict> {
        let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
        let vm = serde_json::from_value(self.vm(spec, restart)).unwrap();
        vms.create(&PostParams::default(), &vm)
            .await
            .map(drop)
            .map_err(|error| rejection(&error))
    }

    async fn replace(&self, namespace: &str, spec: &Value, restart: u8) -> Result<(), Verdict> {
        let vms = api(&self.cluster.client, "VirtualMachine", Some(namespace));
        for _ in 0..20 {
            let mut vm = self.vm(spec, restart);
            let present = vms
                .get(&self.name)
                .await
                .map_err(|error| Verdict::Wrong(error.to_string()))?;
            vm["metadata"]["resourceVersion"] = json!(present.metadata.resource_version);
            match vms
                .replace(
                    &self.name,
                    &PostParams::default(),
                    &serde_json::from_value(vm).unwrap(),
                )
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                answer => return answer.map(drop).map_err(|error| rejection(&error)),
            }
        }
        Err(Verdict::Wrong("it changes without an end".to_owned()))
    }
}

/// A rejection must name the field.
fn rejection(error: &kube::Error) -> Verdict {
    match error {
        kube::Error::Api(status)
            if matches!(status.code, 400 | 422) && status.message.contains("spec") =>
        {
            Verdict::Rejected
        }
        other => Verdict::Wrong(format!("it is rejected without a reason: {other}")),
    }
}
