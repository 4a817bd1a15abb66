//! The keys that all replicas of the console share, and the logouts. Private keys and logouts are in the Secret `vm-web-keys`. The public
//! key for connections to runners is in the ConfigMap `vm-web`, from which the kubelet gives it to the pods of VMs.

use crate::api::vm::names;
use crate::k8s::cluster::Cluster;
use crate::k8s::watch::{Namespaces, listed_in};
use crate::pinned_tls::KeyPair;
use crate::web::logins::LOGIN_MAX;
use crate::web::{Console, MANAGER};
use axum_extra::extract::cookie::Key;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::PostParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

/// Secret with keys and logouts. Its manifest has no data.
const SECRET: &str = "vm-web-keys";

/// Key of the Secret: a PKCS #8 document in DER.
const PRIVATE_KEY: &str = "console-key";

/// Key of the Secret: random bytes for the encryption of cookies.
const COOKIE_KEY: &str = "cookie-key";

/// Key of the Secret: a JSON object of the logins that have ended before their time, with the times in seconds since 1970 until which
/// their cookies can be valid.
const LOGOUTS: &str = "logouts";

/// Maximum number of logouts, so that the Secret remains below 1 MiB.
const LOGOUTS_MAX: usize = 8192;

/// Writes of a logout before the user gets an error. Only other replicas cause conflicts.
const WRITES_MAX: usize = 5;

/// Interval of the checks. The watch reports changes earlier.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// Time after a failed check.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// The keys of all replicas.
#[derive(Clone)]
pub struct Keys {
    /// For connections to runners.
    pub runners: KeyPair,
    /// For the encryption of cookies.
    pub cookies: Key,
}

/// The reason that keys or logouts cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejects a request or does not answer.
    #[error("{0}; apply deploy/web, which has this object and the rights to it")]
    Api(#[from] kube::Error),
    /// The private key is invalid.
    #[error(
        "the value of {PRIVATE_KEY} in the Secret {SECRET} is no private key ({0}); delete this value, so that the console creates another one"
    )]
    Key(#[from] rustls::Error),
    /// Another value is invalid.
    #[error(
        "the value of {0} in the Secret {SECRET} is not one of the console; delete this value, so that the console creates another one"
    )]
    Invalid(&'static str),
    /// There are too many logouts.
    #[error("{LOGOUTS_MAX} logouts of the last 9 h are stored")]
    Full,
}

/// Runs forever, so that other replicas' logouts take effect, and a deleted key is replaced.
pub async fn follow(console: Arc<Console>) {
    let selected = watcher::Config::default().fields(&format!("metadata.name={SECRET}"));
    let namespaces = Namespaces::Only(vec![console.namespace.clone()]);
    let events = listed_in::<PartialObjectMeta<Secret>>(&console.cluster, &namespaces, &selected);
    let is_change =
        |event: &watcher::Result<_>| ready(!matches!(event, Ok(Event::Init | Event::InitApply(_))));
    let mut changes = std::pin::pin!(events.filter(is_change));
    loop {
        let pause = match check(&console).await {
            Ok(()) => CHECK_INTERVAL,
            Err(error) => {
                tracing::warn!("the console cannot read or write its keys and logouts: {error}");
                RETRY_DELAY
            }
        };
        tokio::select! {
            Some(event) = changes.next() => if let Err(error) = event {
                tracing::warn!(%error, "the watch of the Secret {SECRET} has failed; logouts at other replicas take effect later");
            },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn check(console: &Console) -> Result<(), Error> {
    synchronize(console, None).await?;
    publish(&console.cluster, &console.namespace, console.keys()).await
}

/// Ends a login at all replicas, until its cookies have expired.
///
/// # Errors
/// The logout is not stored, and the login has not ended.
pub async fn end_login(console: &Console, id: &str) -> Result<(), Error> {
    synchronize(console, Some(id)).await
}

/// Reads the Secret, and adds the logout and the keys that it lacks. Writes have the resource version of what was read, so that all
/// replicas agree on the keys, and no logout is lost.
async fn synchronize(console: &Console, logout: Option<&str>) -> Result<(), Error> {
    let _turn = console.secret.lock().await;
    let client = console.cluster.client.clone();
    let secrets: Api<Secret> = Api::namespaced(client, &console.namespace);
    let mut writes = 0;
    loop {
        let mut secret = secrets.get(SECRET).await?;
        let (stored, is_changed) = complete(&mut secret, logout, console.now())?;
        if is_changed {
            writes += 1;
            match secrets.replace(SECRET, &params(), &secret).await {
                Err(kube::Error::Api(status)) if status.code == 409 && writes < WRITES_MAX => {
                    continue;
                }
                written => drop(written?),
            }
        }
        let keys = stored.keys;
        let previous = console.keys.send_replace(Some(keys.clone()));
        if previous.is_some_and(|previous| previous.cookies != keys.cookies) {
            console.logins.end_all();
        }
        console.logins.replace_logouts(stored.logouts);
        return Ok(());
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.field_manager.to_owned()),
        ..PostParams::default()
    }
}

/// The content of the Secret.
struct Stored {
    keys: Keys,
    logouts: BTreeMap<String, i64>,
}

/// Adds the keys that the Secret lacks, and the logout. Returns the content, and whether the Secret has changed.
fn complete(secret: &mut Secret, logout: Option<&str>, now: i64) -> Result<(Stored, bool), Error> {
    let data = secret.data.get_or_insert_default();
    let mut is_changed = false;
    let runners = match data.get(PRIVATE_KEY) {
        Some(ByteString(document)) => KeyPair::from_pkcs8(document)?,
        None => {
            let key = KeyPair::generate()?;
            data.insert(PRIVATE_KEY.to_owned(), ByteString(key.pkcs8().to_vec()));
            is_changed = true;
            key
        }
    };
    let cookies = match data.get(COOKIE_KEY) {
        Some(ByteString(bytes)) => {
            Key::try_from(&**bytes).map_err(|_| Error::Invalid(COOKIE_KEY))?
        }
        None => {
            let key = Key::try_generate().ok_or(rustls::Error::FailedToGetRandomBytes)?;
            data.insert(COOKIE_KEY.to_owned(), ByteString(key.master().to_vec()));
            is_changed = true;
            key
        }
    };
    let mut logouts: BTreeMap<String, i64> = match data.get(LOGOUTS) {
        Some(ByteString(json)) => {
            serde_json::from_slice(json).map_err(|_| Error::Invalid(LOGOUTS))?
        }
        None => BTreeMap::new(),
    };
    logouts.retain(|_, until| *until > now);
    if let Some(id) = logout.filter(|id| !logouts.contains_key(*id)) {
        if logouts.len() >= LOGOUTS_MAX {
            return Err(Error::Full);
        }
        logouts.insert(id.to_owned(), now + LOGIN_MAX);
        // Plain data can always be serialized.
        let json = serde_json::to_vec(&logouts).unwrap_or_default();
        data.insert(LOGOUTS.to_owned(), ByteString(json));
        is_changed = true;
    }
    let keys = Keys { runners, cookies };
    Ok((Stored { keys, logouts }, is_changed))
}

/// Writes the public key to the ConfigMap.
async fn publish(cluster: &Cluster, namespace: &str, keys: Option<Keys>) -> Result<(), Error> {
    let Some(Keys { runners, .. }) = keys else {
        return Ok(());
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let mut config_map = config_maps.get(names::WEB_CONFIG_MAP).await?;
    let data = config_map.data.get_or_insert_default();
    let public = runners.public().to_string();
    if data.get(names::CONSOLE_KEYS) != Some(&public) {
        data.insert(names::CONSOLE_KEYS.to_owned(), public);
        config_maps
            .replace(names::WEB_CONFIG_MAP, &params(), &config_map)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_share_keys_and_logouts_until_the_cookies_have_expired() {
        let mut secret = Secret::default();
        let (first, is_changed) = complete(&mut secret, None, 100).unwrap();
        assert!(is_changed && first.logouts.is_empty());
        let (second, is_changed) = complete(&mut secret, None, 100).unwrap();
        assert!(!is_changed && first.keys.cookies == second.keys.cookies);
        assert_eq!(first.keys.runners.public(), second.keys.runners.public());

        assert!(complete(&mut secret, Some("a"), 100).unwrap().1);
        assert!(!complete(&mut secret, Some("a"), 101).unwrap().1);
        let (both, _) = complete(&mut secret, Some("b"), 200).unwrap();
        let until = |start| start + LOGIN_MAX;
        let expected = [("a", until(100)), ("b", until(200))];
        assert!(
            both.logouts
                .iter()
                .map(|(id, time)| (&**id, *time))
                .eq(expected)
        );
        let (later, is_changed) = complete(&mut secret, None, until(100)).unwrap();
        assert!(!is_changed && later.logouts.keys().eq(["b"]));
    }

    #[test]
    fn logouts_are_limited_and_a_wrong_value_is_named() {
        let mut secret = Secret::default();
        let full: BTreeMap<String, i64> = (0..LOGOUTS_MAX)
            .map(|n| (format!("{n:032x}"), 200))
            .collect();
        let data = secret.data.get_or_insert_default();
        let json = serde_json::to_vec(&full).unwrap();
        assert!(json.len() < 500_000, "{}", json.len());
        data.insert(LOGOUTS.to_owned(), ByteString(json));
        let rejected = complete(&mut secret, Some("a"), 100);
        assert!(matches!(rejected, Err(Error::Full)));
        let (stored, _) = complete(&mut secret, Some("a"), 200).unwrap();
        assert!(stored.logouts.keys().eq(["a"]));
        for key in [COOKIE_KEY, LOGOUTS] {
            let mut secret = secret.clone();
            secret
                .data
                .get_or_insert_default()
                .insert(key.to_owned(), ByteString(b"x".to_vec()));
            let error = complete(&mut secret, None, 200).err().unwrap().to_string();
            assert!(
                error.contains(&format!("the value of {key} in the Secret vm-web-keys")),
                "{error}"
            );
        }
    }
}
