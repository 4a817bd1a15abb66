//! The console's key pair for connections to runners. The private key is in the Secret `vm-web-keys`, and the public one in the
//! ConfigMap `vm-web`, from which the kubelet gives it to the pods of VMs.

use crate::api::vm::names;
use crate::k8s::cluster::Cluster;
use crate::pinned_tls::KeyPair;
use crate::web::MANAGER;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::PostParams;
use std::time::Duration;
use tokio::sync::watch;

/// Secret with the private key. Its manifest has no data.
const SECRET: &str = "vm-web-keys";

/// Key of the Secret: a PKCS #8 document in DER.
const PRIVATE_KEY: &str = "console-key";

/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// Time after a failed check.
const RETRY_DELAY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}; apply deploy/web, which has this object and the rights to it")]
    Api(#[from] kube::Error),
    #[error(
        "the value of {PRIVATE_KEY} in the Secret {SECRET} is no private key ({0}); delete this value, so that the console creates another one"
    )]
    Key(#[from] rustls::Error),
}

/// Creates the key pair if there is none, and sends it. Runs forever, so that a deleted key is replaced.
pub async fn follow(cluster: Cluster, namespace: String, keys: watch::Sender<Option<KeyPair>>) {
    loop {
        let pause = match prepare(&cluster, &namespace).await {
            Ok(key) => {
                keys.send_replace(Some(key));
                CHECK_INTERVAL
            }
            Err(error) => {
                tracing::warn!(
                    "the console cannot show screens of VMs, because it has no key: {error}"
                );
                RETRY_DELAY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Writes have the resource version of what was read, so that two consoles agree on one key.
async fn prepare(cluster: &Cluster, namespace: &str) -> Result<KeyPair, Error> {
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let params = PostParams {
        field_manager: Some(MANAGER.field_manager.to_owned()),
        ..PostParams::default()
    };
    let mut secret = secrets.get(SECRET).await?;
    let stored = secret.data.get_or_insert_default().get(PRIVATE_KEY);
    let key = match stored {
        Some(ByteString(document)) => KeyPair::from_pkcs8(document)?,
        None => {
            let key = KeyPair::generate()?;
            let document = ByteString(key.pkcs8().to_vec());
            let data = secret.data.get_or_insert_default();
            data.insert(PRIVATE_KEY.to_owned(), document);
            secrets.replace(SECRET, &params, &secret).await?;
            tracing::info!("the console has created its key for connections to VMs");
            key
        }
    };
    let mut config_map = config_maps.get(names::WEB_CONFIG_MAP).await?;
    let data = config_map.data.get_or_insert_default();
    let public = key.public().to_string();
    if data.get(names::CONSOLE_KEYS) != Some(&public) {
        data.insert(names::CONSOLE_KEYS.to_owned(), public);
        let written = config_maps.replace(names::WEB_CONFIG_MAP, &params, &config_map);
        written.await?;
    }
    Ok(key)
}
