//! (pure) The settings of how CD images given by URL are fetched.

use super::ours::size;
use super::tree::{Node, Section};
use super::{Note, SettingsError};
use crate::api::fetch::SCHEMES;
use crate::api::quantity::Bytes;
use std::time::Duration;

/// How CD images given by URL are fetched. A change takes effect for fetches that begin, and for those that have failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSettings {
    /// Schemes of URLs that are allowed. Default: `https` and `http`.
    pub schemes: Vec<String>,
    /// The largest image. Default: 20 GiB.
    pub max_size: Bytes,
    /// How long one fetch may take. Default: an hour.
    pub deadline: Duration,
    /// How long the start of a VM waits for the image that it boots from. Default: 10 minutes.
    pub start_deadline: Duration,
    /// Through whom servers are asked. Default: nobody.
    pub proxies: Proxies,
    /// Whom to trust besides the authorities of the runner's image. Default: nobody.
    pub authorities: Option<Authorities>,
}

/// Proxies, as variables of the fetch pods' environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For URLs of http: `HTTP_PROXY`.
    pub http: Option<String>,
    /// For URLs of https: `HTTPS_PROXY`.
    pub https: Option<String>,
    /// Hosts that are asked without one: `NO_PROXY`.
    pub except: Option<String>,
    /// A Secret whose keys are variables, too: a proxy with a password stands there, and nowhere else.
    pub secret: Option<String>,
}

/// Certificate authorities in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// The ConfigMap that has them.
    pub config_map: String,
    /// Under which key. Default: `ca.crt`.
    pub key: String,
}

impl Default for FetchSettings {
    fn default() -> Self {
        Self {
            schemes: SCHEMES.map(str::to_owned).into(),
            max_size: Bytes(20 << 30),
            deadline: Duration::from_secs(3600),
            start_deadline: Duration::from_secs(600),
            proxies: Proxies::default(),
            authorities: None,
        }
    }
}

pub(super) fn settings(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<FetchSettings, SettingsError> {
    let default = FetchSettings::default();
    let schemes = section.take("schemes").map(schemes).transpose()?.unwrap_or(default.schemes);
    let max_size = section.take("maxSize").map(|node| size(&node)).transpose()?;
    let max_size = max_size.and_then(|text| text.parse().ok()).unwrap_or(default.max_size);
    let deadline = section.take("deadline").map(|node| seconds(&node, 1)).transpose()?;
    let start_deadline = section.take("startDeadline").map(|node| seconds(&node, 0)).transpose()?;
    let proxies = Proxies {
        http: section.take("httpProxy").map(|node| proxy(&node)).transpose()?,
        https: section.take("httpsProxy").map(|node| proxy(&node)).transpose()?,
        except: section.take("noProxy").map(|node| node.text()).transpose()?,
        secret: section.take("proxySecret").map(|node| name(&node, "a Secret")).transpose()?,
    };
    let authorities = authorities(section.section("authorities")?, notes)?;
    section.note_rest(notes);
    Ok(FetchSettings {
        schemes,
        max_size,
        deadline: deadline.unwrap_or(default.deadline),
        start_deadline: start_deadline.unwrap_or(default.start_deadline),
        proxies,
        authorities,
    })
}

/// None at all is a way to say that no image is fetched.
fn schemes(node: Node<'_>) -> Result<Vec<String>, SettingsError> {
    let scheme = |node: &Node<'_>| match node.text() {
        Ok(scheme) if SCHEMES.contains(&scheme.as_str()) => Ok(scheme),
        _ => node.refuse(format!("give {}", SCHEMES.join(" or "))),
    };
    node.items()?.iter().map(scheme).collect()
}

/// Whole seconds, up to a week.
fn seconds(node: &Node<'_>, least: u32) -> Result<Duration, SettingsError> {
    const MOST: u32 = 7 * 24 * 3600;
    let seconds = node.number().filter(|n| n.fract() == 0.0 && *n >= f64::from(least) && *n <= f64::from(MOST));
    seconds.map_or_else(|| node.refuse(format!("give {least} to {MOST} seconds")), |n| Ok(Duration::from_secs_f64(n)))
}

/// A proxy is spoken to without TLS. A password would stand in the ConfigMap and in pods, for all who may read them.
fn proxy(node: &Node<'_>) -> Result<String, SettingsError> {
    let text = node.text().unwrap_or_default();
    let legal = text.parse::<http::Uri>().is_ok_and(|uri| {
        uri.scheme_str() == Some("http")
            && uri.host().is_some_and(|host| !host.is_empty())
            && !uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
            && uri.path() == "/"
            && uri.query().is_none()
    });
    if legal {
        return Ok(text);
    }
    // What is refused is shown, and must not be if it has a password.
    let allowed = "give an address such as http://proxy.example.org:3128; one with a user and password belongs into the \
                   Secret of proxySecret, as HTTP_PROXY or HTTPS_PROXY";
    if text.contains('@') { node.refuse_unseen(allowed) } else { node.refuse(allowed) }
}

fn authorities(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<Option<Authorities>, SettingsError> {
    let config_map = section.take("configMap").map(|node| name(&node, "a ConfigMap")).transpose()?;
    let key = section.take("key");
    let authorities = match (config_map, key) {
        (Some(config_map), None) => Some(Authorities { config_map, key: "ca.crt".to_owned() }),
        (Some(config_map), Some(key)) => Some(Authorities { config_map, key: name(&key, "a key of the ConfigMap")? }),
        (None, Some(key)) => return key.refuse("give configMap too, which has the key"),
        (None, None) => None,
    };
    section.note_rest(notes);
    Ok(authorities)
}

/// The name of an object, or a key of one.
fn name(node: &Node<'_>, what: &str) -> Result<String, SettingsError> {
    let legal = |text: &String| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    node.text().ok().filter(legal).map_or_else(|| node.refuse(format!("give the name of {what}")), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::settings::Settings;

    fn parse(text: &str) -> Result<FetchSettings, String> {
        let file =
            format!("\"/Manager\": {{\"/Controller\": {{\"/Reconciler\": {{imageRepository: {{fetch: {text}}}}}}}}}\n");
        let parsed = Settings::parse(&file, "config.yaml").map_err(|error| error.to_string())?;
        assert_eq!(parsed.1.len(), 0, "{text}");
        Ok(parsed.0.reconciler.image_repository.fetch)
    }

    #[test]
    fn fetching_can_be_limited_and_switched_off() {
        let fetch = parse("{schemes: [https], maxSize: 5Gi, deadline: 60, startDeadline: 0}").unwrap();
        assert_eq!((fetch.schemes.as_slice(), fetch.max_size), (&["https".to_owned()][..], Bytes(5 << 30)));
        assert_eq!((fetch.deadline, fetch.start_deadline), (Duration::from_mins(1), Duration::ZERO));
        assert_eq!(parse("{schemes: []}").unwrap().schemes, Vec::<String>::new());
        assert_eq!(parse("{}").unwrap(), FetchSettings::default());
    }

    #[test]
    fn a_companys_proxies_and_authorities_can_be_named() {
        let fetch = parse(
            "{httpProxy: \"http://p:3128\", httpsProxy: \"http://[fd00::1]:3129/\", noProxy: \".example.org,10.0.0.0/8\", \
             proxySecret: proxy, authorities: {configMap: company, key: root.pem}}",
        )
        .unwrap();
        let text = |text: &str| Some(text.to_owned());
        let (http, https) = (text("http://p:3128"), text("http://[fd00::1]:3129/"));
        let (except, secret) = (text(".example.org,10.0.0.0/8"), text("proxy"));
        assert_eq!(fetch.proxies, Proxies { http, https, except, secret });
        let authorities = Authorities { config_map: "company".to_owned(), key: "root.pem".to_owned() };
        assert_eq!(fetch.authorities, Some(authorities));
        assert_eq!(parse("{authorities: {configMap: company}}").unwrap().authorities.unwrap().key, "ca.crt");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_says_what_is_allowed() {
        for (text, words) in [
            ("{schemes: [ftp]}", "fetch.schemes[0]: \"ftp\" is not allowed; give https or http"),
            ("{schemes: https}", "give a list"),
            ("{maxSize: lots}", "give a size"),
            ("{deadline: 0}", "give 1 to 604800 seconds"),
            ("{startDeadline: -1}", "give 0 to 604800 seconds"),
            (
                "{httpProxy: \"https://p:3128\"}",
                "fetch.httpProxy: \"https://p:3128\" is not allowed; give an address such as",
            ),
            ("{httpsProxy: p}", "such as http://proxy.example.org:3128"),
            ("{httpsProxy: \"http://p/?a\"}", "such as http://proxy.example.org:3128"),
            ("{proxySecret: \"a b\"}", "give the name of a Secret"),
            ("{authorities: {configMap: \"\"}}", "give the name of a ConfigMap"),
            ("{authorities: {key: ca.crt}}", "give configMap too"),
            ("{authorities: {configMap: a, key: a/b}}", "give the name of a key"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn a_password_of_a_proxy_is_refused_and_not_shown() {
        let message = parse("{httpsProxy: \"http://anna:geheim@p:3128\"}").unwrap_err();
        assert!(message.contains("proxySecret") && !message.contains("geheim"), "{message}");
    }
}
