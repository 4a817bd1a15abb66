//! The rate at which the operator turns VMs into pods, compared with a client that only creates the same objects. Both
//! use the same proxy in turns, each round in its own namespaces, so that other load affects both equally.

use super::operator::Operator;
use super::{Bench, CLIENTS, proxy, row, vm_name};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use std::time::{Duration, Instant};

/// The number of VMs that are created at once.
const BURST: usize = 500;
const ROUNDS: usize = 7;

impl Bench {
    pub(super) async fn bursts(&self) {
        let mut ratios = Vec::new();
        for round in 0..ROUNDS {
            let (of_operator, of_client) = (format!("burst-{round}"), format!("bare-{round}"));
            self.namespace(&of_operator).await;
            self.namespace(&of_client).await;
            let by_operator = self.by_operator(&of_operator).await;
            let by_client = self.by_client(&of_operator, &of_client).await;
            let ratio = by_operator / by_client;
            row(
                &format!("round {} of {BURST} VMs: VMs per second to pods", round + 1),
                &format!("{by_operator:.0}; a bare client {by_client:.0}: × {ratio:.2}"),
            );
            ratios.push(ratio);
        }
        // Not the ratio of two medians: the rates of one round were measured under the same conditions, those of two
        // rounds were not.
        let [low, median, high] = quartiles(&mut ratios);
        row(
            &format!("median of the {ROUNDS} rounds' ratios"),
            &format!("× {median:.2} (quartiles {low:.2} and {high:.2})"),
        );
    }

    /// VMs per second, from the first request for one to the last pod. The VMs exist before the operator starts.
    async fn by_operator(&self, namespace: &str) -> f64 {
        self.create(namespace, 0..BURST).await;
        self.record.forget();
        let operator = Operator::start(&proxy::kubeconfig(self.proxy), namespace).await;
        let began = Instant::now();
        let seen = loop {
            let seen = self.record.vms();
            if seen.iter().filter(|seen| seen.pod.is_some()).count() == BURST {
                break seen;
            }
            assert!(
                began.elapsed() < Duration::from_secs(300),
                "the VMs have no pods"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let first = seen
            .iter()
            .flat_map(proxy::Times::first_request)
            .min()
            .unwrap();
        let last = seen
            .iter()
            .filter_map(|seen| Some(seen.pod?.1))
            .max()
            .unwrap();
        self.wait_until_idle().await;
        operator.stop().await;
        BURST as f64 / last.duration_since(first).as_secs_f64()
    }

    /// Sets of objects per second. A set equals the objects that the operator creates for a VM.
    async fn by_client(&self, of_operator: &str, namespace: &str) -> f64 {
        let config = kube::Config::new(format!("http://127.0.0.1:{}", self.proxy).parse().unwrap());
        let client = &Client::try_from(config).unwrap();
        let name = vm_name(0);
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/instance={name}"));
        let claims = self
            .api::<PersistentVolumeClaim>(of_operator)
            .list(&ours)
            .await
            .unwrap()
            .items;
        let secrets = self
            .api::<Secret>(of_operator)
            .list(&ours)
            .await
            .unwrap()
            .items;
        let config_map = self.api::<ConfigMap>(of_operator).get(&name).await.unwrap();
        let pod = self.api::<Pod>(of_operator).get(&name).await.unwrap();
        let objects = &(config_map, claims, secrets, pod);
        let began = Instant::now();
        let made = futures::stream::iter(0..BURST).for_each_concurrent(CLIENTS, |n| async move {
            create_copy(client, namespace, &objects.0, n).await;
            for claim in &objects.1 {
                create_copy(client, namespace, claim, n).await;
            }
            for secret in &objects.2 {
                create_copy(client, namespace, secret, n).await;
            }
            create_copy(client, namespace, &objects.3, n).await;
        });
        made.await;
        BURST as f64 / began.elapsed().as_secs_f64()
    }
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// Creates a copy of that object in the namespace.
async fn create_copy<K>(client: &Client, namespace: &str, object: &K, n: usize)
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let mut copy = object.clone();
    let name = format!("bare-{n}-{}", object.name_any());
    let meta = copy.meta_mut();
    (meta.name, meta.namespace, meta.uid, meta.resource_version) =
        (Some(name), Some(namespace.to_owned()), None, None);
    (meta.managed_fields, meta.creation_timestamp) = (None, None);
    Api::<K>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &copy)
        .await
        .unwrap();
}
