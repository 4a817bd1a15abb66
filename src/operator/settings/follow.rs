//! (client) The settings while the operator runs: each version of its ConfigMap is taken in, or refused and told of.
//!
//! ```text
//!  mounted file ──start──► Context::settings ◄──took_in── ConfigMap vm-operator (watch)
//!                                └─ what is wrong: a log line, a figure, an event on the Deployment
//! ```

use super::Settings;
use crate::api::names;
use crate::operator::context::Context;
use crate::operator::events;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::Resource;
use kube::api::Api;
use kube::runtime::events::EventType;

/// Reason of the event where a version is taken in.
pub const REASON_CHANGED: &str = "SettingsChanged";
/// Reason of the event where a version is refused.
pub const REASON_REFUSED: &str = "SettingsRefused";

/// Takes in the versions of the ConfigMap, one after another.
#[derive(Default)]
pub struct Follower {
    /// The text that was refused last: a watch that begins anew shows it again.
    refused: Option<String>,
}

impl Follower {
    /// Takes in a version of the ConfigMap, `None` if it is gone. Says whether the settings have changed.
    pub async fn saw(&mut self, config_map: Option<&ConfigMap>, ctx: &Context) -> bool {
        let data = config_map.and_then(|map| map.data.as_ref());
        ctx.log_level.follow(data.and_then(|data| data.get(names::LOGGING_FILE)).map(String::as_str));
        let Some(text) = data.and_then(|data| data.get(names::CONFIG_FILE)) else {
            tracing::warn!("ConfigMap vm-operator has no config.yaml, or is gone; the settings stay as they are");
            return false;
        };
        let current = ctx.settings();
        match Settings::parse_and_tell(text, names::OPERATOR_CONFIG_MAP) {
            Ok(settings) if settings == *current => {
                self.refused = None;
                ctx.metrics.settings_valid.set(1);
                false
            }
            Ok(settings) => {
                self.refused = None;
                ctx.metrics.settings_valid.set(1);
                let mut note = "the settings of ConfigMap vm-operator are in force".to_owned();
                if settings.namespace != current.namespace {
                    note += "; its namespace is that from the operator's next start on";
                }
                ctx.set_settings(settings);
                tracing::info!("{note}");
                tell(ctx, EventType::Normal, REASON_CHANGED, &note).await;
                true
            }
            Err(_) if self.refused.as_ref() == Some(text) => false,
            Err(error) => {
                self.refused = Some(text.clone());
                ctx.metrics.settings_valid.set(0);
                let note = format!("ConfigMap {error}; the settings before it stay in force");
                tracing::error!("{note}");
                tell(ctx, EventType::Warning, REASON_REFUSED, &note).await;
                false
            }
        }
    }
}

/// Publishes an event on the operator's Deployment.
async fn tell(ctx: &Context, type_: EventType, reason: &str, note: &str) {
    let Some(home) = &ctx.home else { return };
    let deployments = Api::<Deployment>::namespaced(ctx.client.clone(), home);
    // With its UID, without which `kubectl describe` does not show the event.
    let reference = match deployments.get_metadata(names::OPERATOR_DEPLOYMENT).await {
        Ok(deployment) => ObjectReference {
            api_version: Some(Deployment::api_version(&()).into_owned()),
            kind: Some(Deployment::kind(&()).into_owned()),
            name: deployment.metadata.name,
            namespace: Some(home.clone()),
            uid: deployment.metadata.uid,
            ..ObjectReference::default()
        },
        Err(error) => {
            tracing::warn!(%error, "cannot publish an event on the operator's Deployment");
            return;
        }
    };
    events::publish(ctx, &reference, type_, reason, note).await;
}
