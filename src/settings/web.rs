//! (pure) The configuration of the web console: keys of the Java VM-Operator's web console in `config.yaml` of the ConfigMap
//! `vm-operator`.

use crate::settings::{Section, limits};
use http::uri::Authority;
use ipnet::IpNet;
use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Maximum length of a user's name in bytes, as in a `VmAssignment`.
pub const USER_NAME_MAX: usize = 253;

/// Default time in seconds for which the password in a file for SPICE viewers is valid.
const PASSWORD_VALIDITY: u32 = 30;

/// Times in seconds for which such a password can be valid.
const PASSWORD_VALIDITIES: std::ops::RangeInclusive<u64> = 1..=86_400;

/// End of the address of a provider's configuration.
const CONFIGURATION: &str = "/.well-known/openid-configuration";

/// Path to which providers of OpenID Connect send the browser after a login.
pub const CALLBACK: &str = "/oauth/callback";

/// Costs of a bcrypt hash. A login with cost 14 needs about a second of processor time.
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;

/// The configuration of the web console, key `/Manager`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebSettings {
    /// Name of the cluster, which the pages show before the namespace. Default: none.
    pub cluster_name: Option<String>,
    /// The operator's configuration, of which the console reads the namespace.
    #[serde(rename = "/Controller")]
    pub controller: Controller,
    /// The HTTP server and its parts.
    #[serde(rename = "/GuiHttpServer")]
    pub server: Server,
}

/// Key `/Controller`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    /// Namespace of the VMs. Default: the namespace of the console's pod.
    pub namespace: Option<String>,
    /// Key `/Reconciler`.
    #[serde(rename = "/Reconciler")]
    pub reconciler: Reconciler,
}

/// Key `/Reconciler` of `/Controller`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reconciler {
    /// Key `/DisplaySecretReconciler`.
    #[serde(rename = "/DisplaySecretReconciler")]
    pub display_secret: DisplaySecret,
}

/// Key `/DisplaySecretReconciler`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisplaySecret {
    /// Time in seconds for which the password in a file for SPICE viewers is valid, as a number or as text, from 1 to 86400. Default: 30.
    pub password_validity: Option<NumberOrText>,
}

/// A number, which the Java VM-Operator also reads from a text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum NumberOrText {
    Number(u64),
    Text(String),
}

impl NumberOrText {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
        }
    }
}

/// Key `/GuiHttpServer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Server {
    /// Networks and addresses of reverse proxies, such as `10.0.0.0/8`. The header `X-Forwarded-For` of their requests names the
    /// client's address for log lines and for the limits of logins. Default: none.
    pub trusted_proxies: Vec<String>,
    /// Addresses of the console, as browsers show them: `https://HOST[:PORT]`, or host names, with which each port is allowed. Requests to
    /// other hosts are rejected. Default: none, which allows all.
    pub public_addresses: Vec<String>,
    /// Key `/ConsoleWeblet`.
    #[serde(rename = "/ConsoleWeblet")]
    pub weblet: Weblet,
}

/// Key `/ConsoleWeblet`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Weblet {
    /// Key `/WebConsole`.
    #[serde(rename = "/WebConsole")]
    pub console: Console,
}

/// Key `/WebConsole`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Console {
    /// Logins.
    #[serde(rename = "/LoginConlet")]
    pub login: Login,
    /// Logins by providers of OpenID Connect.
    #[serde(rename = "/OidcClient")]
    pub oidc_client: OidcClient,
    /// Roles.
    #[serde(rename = "/RoleConfigurator")]
    pub roles: Roles,
    /// Pages.
    #[serde(rename = "/RoleConletFilter")]
    pub pages: Pages,
    /// Widgets of the Java VM-Operator's web console.
    #[serde(rename = "/ComponentCollector")]
    pub widgets: Widgets,
}

/// Key `/ComponentCollector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Widgets {
    /// Key `/VmAccess`. In earlier versions of the Java VM-Operator, its name is `/VmViewer`.
    #[serde(rename = "/VmAccess", alias = "/VmViewer")]
    pub access: VmAccess,
}

/// Key `/VmAccess`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VmAccess {
    /// Display of VMs.
    pub display_resource: DisplayResource,
    /// Whether a SPICE viewer deletes the file after it has read it. Default: true.
    pub delete_connection_file: Option<BoolOrText>,
    /// Users and roles that begin with the page of own VMs, if they also have that of all VMs. Default: none.
    pub sync_previews_for: Vec<UserOrRole>,
}

/// An item of `syncPreviewsFor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UserOrRole {
    /// Name of a user.
    pub user: Option<String>,
    /// Name of a role.
    pub role: Option<String>,
}

/// Key `displayResource`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisplayResource {
    /// The address of the pod in files for SPICE viewers: `ipv4` (default) or `ipv6`. Without such an address, the file has another.
    pub preferred_ip_version: IpVersion,
}

/// Version of the Internet Protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum IpVersion {
    #[default]
    IpV4,
    IpV6,
}

/// A boolean, which the Java VM-Operator also reads from a text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum BoolOrText {
    Bool(bool),
    Text(String),
}

/// Options of files for SPICE viewers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewerFiles {
    /// Whether they have an IPv6 address of the pod, if it has one.
    pub prefers_ipv6: bool,
    /// Whether a viewer deletes the file after it has read it.
    pub deletes_itself: bool,
}

/// Key `/LoginConlet`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Login {
    /// Users that log in with a password. Default: none.
    pub users: Vec<LocalUser>,
    /// Providers of OpenID Connect. Default: none.
    pub oidc_providers: Vec<OidcProvider>,
}

/// An item of `oidcProviders`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OidcProvider {
    /// Name, of letters, digits, `-` and `_`.
    pub name: String,
    /// Name that the login page shows. Default: `name`.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Address of the provider's configuration, which ends with `/.well-known/openid-configuration`. It begins with `https://`, or with
    /// `http://localhost` or `http://127.0.0.1`.
    pub configuration_endpoint: String,
    /// Name of the console at the provider.
    pub client_id: String,
    /// Secret of the console at the provider. Default: none, for a public client.
    #[serde(default)]
    pub secret: Option<Hidden>,
    /// File with this secret, instead of `secret`. The console reads the file at each login.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// Path of the claim with the user's roles, with dots between its keys. Default: `roles`.
    #[serde(default)]
    pub roles_claim: Option<String>,
    /// Roles of which a user needs one to log in, as the provider names them. An empty text permits users without a role. Default: none, so
    /// that nobody can log in.
    #[serde(default)]
    pub authorized_roles: Vec<String>,
    /// Changes of the user's name. The first one that matches the whole name applies.
    #[serde(default)]
    pub user_mappings: Vec<Mapping>,
    /// Changes of each role. A role that becomes empty is removed.
    #[serde(default)]
    pub role_mappings: Vec<Mapping>,
    /// Size of a window. The console opens none.
    #[serde(default)]
    pub popup: Option<serde_json::Value>,
}

/// A text that is in no log.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

/// A change of a name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct Mapping {
    /// Regular expression for the whole name.
    pub from: String,
    /// New name. `$1` is the first group of the expression.
    pub to: String,
}

impl Mapping {
    fn expression(&self) -> Option<Regex> {
        Regex::new(&format!("^(?:{})$", self.from)).ok()
    }

    /// The new name. In Java, `$1a` is the first group and a letter, and a backslash makes the next letter literal.
    fn replacement(&self) -> String {
        let mut replacement = String::new();
        let mut letters = self.to.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => match letters.next() {
                    Some('$') => replacement.push_str("$$"),
                    next => replacement.extend(next),
                },
                '$' if letters.peek().is_some_and(char::is_ascii_digit) => {
                    let digit = letters.next();
                    replacement.push_str("${");
                    replacement.extend(digit);
                    replacement.push('}');
                }
                letter => replacement.push(letter),
            }
        }
        replacement
    }

    /// The name after the first of these changes that matches.
    fn apply(all: &[Self], name: &str) -> String {
        let changed = all.iter().find_map(|mapping| {
            let expression = mapping.expression()?;
            let matches = expression.is_match(name);
            matches.then(|| expression.replace(name, mapping.replacement()).into_owned())
        });
        changed.unwrap_or_else(|| name.to_owned())
    }
}

impl OidcProvider {
    /// The name that the login page shows.
    #[must_use]
    pub fn title(&self) -> &str {
        self.display_name.as_deref().unwrap_or(&self.name)
    }

    /// The issuer, from which the address of the configuration is derived.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        let issuer = self.configuration_endpoint.strip_suffix(CONFIGURATION)?;
        let is_local = |rest: &str| {
            let host = rest.split('/').next().unwrap_or_default();
            let (name, port) = host.split_once(':').unwrap_or((host, "80"));
            ["localhost", "127.0.0.1"].contains(&name) && port.parse::<u16>().is_ok()
        };
        let is_safe =
            issuer.starts_with("https://") || issuer.strip_prefix("http://").is_some_and(is_local);
        is_safe.then_some(issuer)
    }

    /// Whether a user with these roles of the provider may log in.
    #[must_use]
    pub fn authorizes(&self, roles: &[String]) -> bool {
        let is_authorized = |role: &String| self.authorized_roles.contains(role);
        roles.iter().any(is_authorized)
            || roles.is_empty() && self.authorized_roles.iter().any(String::is_empty)
    }

    /// The name of a user in the console.
    #[must_use]
    pub fn user(&self, name: &str) -> String {
        Mapping::apply(&self.user_mappings, name)
    }

    /// Roles of the provider in the console.
    #[must_use]
    pub fn roles(&self, roles: &[String]) -> Vec<String> {
        let mapped = roles
            .iter()
            .map(|role| Mapping::apply(&self.role_mappings, role));
        mapped.filter(|role| !role.is_empty()).collect()
    }

    /// The first value that is not allowed: its key, and the next step.
    fn violation(&self) -> Option<(&'static str, &'static str)> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if self.name.is_empty() || !self.name.chars().all(is_name) {
            Some(("name", "use letters, digits, - and _"))
        } else if self.issuer().is_none() {
            let next_step = "use the address of the provider's configuration, which begins with https:// and ends with \
                             /.well-known/openid-configuration";
            Some(("configurationEndpoint", next_step))
        } else if self.client_id.is_empty() {
            Some(("clientId", "use the name of the console at the provider"))
        } else {
            let is_wrong = |mapping: &Mapping| mapping.expression().is_none();
            let mappings = [
                ("userMappings", &self.user_mappings),
                ("roleMappings", &self.role_mappings),
            ];
            let wrong = mappings
                .into_iter()
                .find(|(_, all)| all.iter().any(is_wrong));
            let next_step =
                "correct the regular expression; it has no look-around and no backreferences";
            wrong.map(|(key, _)| (key, next_step))
        }
    }
}

/// An item of `users`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalUser {
    /// Name, as in permissions of VMs. At most 253 bytes, without control characters.
    pub name: String,
    /// Name that the pages show. Default: `name`.
    #[serde(default)]
    pub full_name: Option<String>,
    /// Address of the user. The console does not use it.
    #[serde(default)]
    pub email: Option<String>,
    /// Hash of the password by bcrypt with a cost from 4 to 14: the output of `vm-operator hash-password`.
    pub password: String,
}

/// Key `/OidcClient`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OidcClient {
    /// Address to which providers send the browser after a login, as it is registered at the providers. It is the address of the console
    /// followed by `/oauth/callback`.
    pub redirect_uri: Option<String>,
}

/// Key `/RoleConfigurator`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Roles {
    /// Roles of each user, by name. The name `*` stands for all users. Default: none.
    pub roles_by_user: BTreeMap<String, Vec<String>>,
    /// Whether users have only these roles, and none of a provider. Default: no.
    pub replace: bool,
}

/// Key `/RoleConletFilter`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pages {
    /// Widgets of the Java VM-Operator's web console that each role may use: those for own VMs, the one for all VMs, or `*`. Default: each
    /// user may use the page with own VMs.
    pub conlet_types_by_role: Option<BTreeMap<String, Vec<String>>>,
}

impl WebSettings {
    /// The users that log in with a password.
    #[must_use]
    pub fn users(&self) -> &[LocalUser] {
        &self.server.weblet.console.login.users
    }

    /// The configuration with the users of a file, which take precedence over users of the same name.
    #[must_use]
    pub fn with_users(mut self, file: &Users) -> Self {
        let users = &mut self.server.weblet.console.login.users;
        users.retain(|user| file.0.iter().all(|of_file| of_file.name != user.name));
        users.extend(file.0.iter().cloned());
        self
    }

    /// The user of that name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&LocalUser> {
        self.users().iter().find(|user| user.name == name)
    }

    /// The roles of a user, of which a provider has reported these.
    #[must_use]
    pub fn roles<'a>(&'a self, user: &str, reported: &'a [String]) -> BTreeSet<&'a str> {
        let Roles {
            roles_by_user,
            replace,
        } = &self.server.weblet.console.roles;
        let listed = [user, "*"].into_iter();
        let listed = listed.filter_map(|key| roles_by_user.get(key));
        let reported = reported.iter().filter(|_| !replace);
        listed
            .flatten()
            .chain(reported)
            .map(String::as_str)
            .collect()
    }

    /// The providers of OpenID Connect.
    #[must_use]
    pub fn providers(&self) -> &[OidcProvider] {
        &self.server.weblet.console.login.oidc_providers
    }

    /// The provider of that name.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&OidcProvider> {
        self.providers()
            .iter()
            .find(|provider| provider.name == name)
    }

    /// The address to which providers send the browser.
    #[must_use]
    pub fn redirect_uri(&self) -> Option<&str> {
        self.server
            .weblet
            .console
            .oidc_client
            .redirect_uri
            .as_deref()
    }

    /// The widgets that each role may use, if the configuration has the key.
    #[must_use]
    pub fn widgets_by_role(&self) -> Option<&BTreeMap<String, Vec<String>>> {
        self.server
            .weblet
            .console
            .pages
            .conlet_types_by_role
            .as_ref()
    }

    /// Time in seconds for which the password in a file for SPICE viewers is valid.
    #[must_use]
    pub fn password_validity(&self) -> u32 {
        let configured = &self.controller.reconciler.display_secret.password_validity;
        let number = configured.as_ref().and_then(NumberOrText::number);
        number
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(PASSWORD_VALIDITY)
    }

    /// The users and roles that begin with the page of own VMs.
    #[must_use]
    pub fn starts_with_own_vms(&self) -> &[UserOrRole] {
        &self.server.weblet.console.widgets.access.sync_previews_for
    }

    /// Options of files for SPICE viewers.
    #[must_use]
    pub fn viewer_files(&self) -> ViewerFiles {
        let access = &self.server.weblet.console.widgets.access;
        let keeps = match &access.delete_connection_file {
            Some(BoolOrText::Bool(deletes)) => !deletes,
            Some(BoolOrText::Text(text)) => text.trim().eq_ignore_ascii_case("false"),
            None => false,
        };
        ViewerFiles {
            prefers_ipv6: access.display_resource.preferred_ip_version == IpVersion::IpV6,
            deletes_itself: !keeps,
        }
    }

    fn public_addresses(&self) -> impl Iterator<Item = PublicAddress> {
        let addresses = self.server.public_addresses.iter();
        addresses.filter_map(|text| PublicAddress::parse(text))
    }

    /// Whether the console answers requests with this header `Host`.
    #[must_use]
    pub fn accepts_host(&self, host: &str) -> bool {
        let mut addresses = self.public_addresses();
        self.server.public_addresses.is_empty() || addresses.any(|address| address.has(host))
    }

    /// Whether a page of this `Origin` is one of the console, which has received the header `Host`. The console does not know whether
    /// a proxy before it serves HTTPS.
    #[must_use]
    pub fn accepts_origin(&self, origin: &str, host: &str) -> bool {
        let Some((scheme, address)) = origin.split_once("://") else {
            return false;
        };
        let is_own = ["http", "https"].contains(&scheme) && address.eq_ignore_ascii_case(host);
        let mut addresses = self.public_addresses();
        is_own && self.server.public_addresses.is_empty()
            || addresses.any(|public| {
                let is_meant = if public.is_origin {
                    scheme == "https"
                } else {
                    is_own
                };
                is_meant && public.has(address)
            })
    }

    /// The address of the client of a request from `peer`: of `forwarded`, which is the text of the header `X-Forwarded-For`, the
    /// last address that is no trusted proxy.
    #[must_use]
    pub fn client(&self, peer: IpAddr, forwarded: &str) -> IpAddr {
        let proxies = &self.server.trusted_proxies;
        let is_proxy = |address: IpAddr| {
            let mut networks = proxies.iter().filter_map(|text| network(text));
            networks.any(|network| network.contains(&address))
        };
        let mut client = peer.to_canonical();
        for text in forwarded.rsplit(',') {
            if !is_proxy(client) {
                break;
            }
            match text.trim().parse::<IpAddr>() {
                Ok(address) => client = address.to_canonical(),
                Err(_) => break,
            }
        }
        client
    }
}

/// An item of `publicAddresses`.
struct PublicAddress {
    /// Whether the address has a scheme and a port. Else it is a host name.
    is_origin: bool,
    host: Authority,
}

impl PublicAddress {
    fn parse(text: &str) -> Option<Self> {
        let origin = text.strip_prefix("https://");
        let host: Authority = origin.unwrap_or(text).parse().ok()?;
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-.:[]".contains(letter);
        let name = host.host();
        let is_complete = match host.port_u16() {
            Some(port) => origin.is_some() && host.as_str() == format!("{name}:{port}"),
            None => host.as_str() == name,
        };
        let is_address = is_complete && !name.is_empty() && name.chars().all(is_allowed);
        is_address.then_some(Self {
            is_origin: origin.is_some(),
            host,
        })
    }

    fn has(&self, host: &str) -> bool {
        let port = |host: &Authority| host.port_u16().unwrap_or(443);
        host.parse::<Authority>().is_ok_and(|host| {
            host.host().eq_ignore_ascii_case(self.host.host())
                && (!self.is_origin || port(&host) == port(&self.host))
        })
    }
}

/// A network, or the network of one address.
fn network(text: &str) -> Option<IpNet> {
    let of_address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().ok().or_else(|| of_address().ok())
}

impl LocalUser {
    /// The cost of the password's hash. None if it is no hash of bcrypt.
    #[must_use]
    pub fn cost(&self) -> Option<u32> {
        let parts = self.password.parse::<bcrypt::HashParts>().ok()?;
        Some(parts.get_cost())
    }
}

impl Section for WebSettings {
    const PATH: &'static [&'static str] = &["/Manager"];

    fn namespace(&self) -> Option<&str> {
        self.controller.namespace.as_deref()
    }

    fn is_of_others(key: &str) -> bool {
        let of_others = ["/Manager./Controller.", "/Manager./GuiSocketServer"];
        of_others.iter().any(|prefix| key.starts_with(prefix))
    }

    fn violation(&self) -> Option<(String, &'static str)> {
        const USERS: &str = "/GuiHttpServer./ConsoleWeblet./WebConsole./LoginConlet.users";
        if !self.namespace().is_none_or(limits::is_namespace) {
            let key = "/Controller.namespace".to_owned();
            return Some((key, "use the name of a namespace"));
        }
        let is_network = |text: &String| network(text).is_some();
        if !self.server.trusted_proxies.iter().all(is_network) {
            let key = "/GuiHttpServer.trustedProxies".to_owned();
            return Some((key, "use networks such as 10.0.0.0/8, or addresses"));
        }
        let is_address = |text: &String| PublicAddress::parse(text).is_some();
        if !self.server.public_addresses.iter().all(is_address) {
            let key = "/GuiHttpServer.publicAddresses".to_owned();
            let next_step = "use addresses such as https://vms.example.org or https://vms.example.org:8443 without a path, \
                             or host names without a port";
            return Some((key, next_step));
        }
        let validity = &self.controller.reconciler.display_secret.password_validity;
        let is_allowed = |validity: &NumberOrText| {
            let number = validity.number();
            number.is_some_and(|number| PASSWORD_VALIDITIES.contains(&number))
        };
        if !validity.as_ref().is_none_or(is_allowed) {
            let key =
                "/Controller./Reconciler./DisplaySecretReconciler.passwordValidity".to_owned();
            return Some((key, "use seconds from 1 to 86400"));
        }
        if let Some(violation) = self.violation_of_providers() {
            return Some(violation);
        }
        let violation = first_violation(self.users());
        violation.map(|(key, next_step)| (format!("{USERS}{key}"), next_step))
    }
}

impl WebSettings {
    fn violation_of_providers(&self) -> Option<(String, &'static str)> {
        const CONSOLE: &str = "/GuiHttpServer./ConsoleWeblet./WebConsole";
        let providers = self.providers();
        let mut names = BTreeSet::new();
        let of_provider = providers.iter().enumerate().find_map(|(n, provider)| {
            let is_other = names.insert(&provider.name);
            let twice = (!is_other).then_some(("name", "list each provider once"));
            let (field, next_step) = provider.violation().or(twice)?;
            let key = format!("{CONSOLE}./LoginConlet.oidcProviders[{n}].{field}");
            Some((key, next_step))
        });
        let is_callback = |uri: &str| uri.starts_with("http") && uri.ends_with(CALLBACK);
        let is_complete = providers.is_empty() || self.redirect_uri().is_some_and(is_callback);
        let key = || format!("{CONSOLE}./OidcClient.redirectUri");
        let next_step = "use the address of the console, followed by /oauth/callback, as it is registered at the providers";
        of_provider.or_else(|| (!is_complete).then(|| (key(), next_step)))
    }
}

/// The first value that is not allowed: its key below the list, and the next step.
fn first_violation(users: &[LocalUser]) -> Option<(String, &'static str)> {
    let mut names = BTreeSet::new();
    users.iter().enumerate().find_map(|(n, user)| {
        let is_name = !user.name.is_empty()
            && user.name.len() <= USER_NAME_MAX
            && !user.name.contains(char::is_control);
        let (field, next_step) = if !is_name {
            ("name", "use 1 to 253 bytes without control characters")
        } else if !names.insert(&user.name) {
            ("name", "list each user once")
        } else if !user.cost().is_some_and(|cost| COSTS.contains(&cost)) {
            let next_step = "use a bcrypt hash with a cost from 4 to 14, such as the output of vm-operator hash-password";
            ("password", next_step)
        } else {
            return None;
        };
        Some((format!("[{n}].{field}"), next_step))
    })
}

/// The file `users.yaml` of the Secret `vm-web-users`: a list of users that log in with a password.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<Vec<LocalUser>>")]
pub struct Users(Vec<LocalUser>);

impl From<Option<Vec<LocalUser>>> for Users {
    /// An empty file is null.
    fn from(users: Option<Vec<LocalUser>>) -> Self {
        Self(users.unwrap_or_default())
    }
}

impl Section for Users {
    const PATH: &'static [&'static str] = &[];

    fn violation(&self) -> Option<(String, &'static str)> {
        first_violation(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of `secret`.
    const HASH: &str = "$2y$04$H3Klq0Jrf5swL7aAgAqSeOnsRcbsAepJMs8AWLGkpBMF5Zjr9KEFG";

    fn parse(users: &str, more: &str) -> Result<(WebSettings, Vec<String>), String> {
        let text = format!(
            "\"/Manager\":\n  \"/Controller\": {{namespace: vms, \"/Reconciler\": {{cpuOvercommit: 3, \
             \"/DisplaySecretReconciler\": {{passwordValidity: \"20\"}}}}}}\n  \
             \"/GuiSocketServer\": {{port: 8888}}\n  \"/GuiHttpServer\":\n    {more}\n    \"/ConsoleWeblet\":\n      \
             \"/WebConsole\":\n        \"/LoginConlet\": {{users: {users}}}\n        \"/ComponentCollector\": \
             {{\"/VmViewer\": {{deleteConnectionFile: \"false\", displayResource: {{preferredIpVersion: ipv6}}, syncPreviewsFor: [{{role: user}}]}}, \"/VmMgmt\": {{}}}}\n        \
             \"/RoleConfigurator\": {{rolesByUser: {{alice: [admin], \"*\": [other]}}}}\n"
        );
        WebSettings::parse(&text, "config.yaml").map_err(|error| error.to_string())
    }

    fn user(name: &str, password: &str) -> String {
        format!("[{{name: \"{name}\", password: \"{password}\"}}]")
    }

    #[test]
    fn keys_of_the_java_vm_operator_have_their_meaning() {
        let (settings, warnings) = parse(&user("alice", HASH), "object: 1").unwrap();
        assert_eq!(settings.namespace(), Some("vms"));
        assert!(settings.user("alice").is_some() && settings.user("Alice").is_none());
        assert_eq!(
            settings.roles("alice", &[]),
            BTreeSet::from(["admin", "other"])
        );
        assert_eq!(settings.roles("bob", &[]), BTreeSet::from(["other"]));
        assert_eq!(settings.password_validity(), 20);
        let expected = ViewerFiles {
            prefers_ipv6: true,
            deletes_itself: false,
        };
        assert_eq!(settings.viewer_files(), expected);
        let warned = ["/VmMgmt", "/GuiHttpServer.object"];
        let has = |text: &str| warnings.iter().any(|warning| warning.contains(text));
        assert!(
            warnings.len() == 2 && warned.into_iter().all(has),
            "{warnings:?}"
        );
        assert!(
            has("does not support this key yet") && has("unknown"),
            "{warnings:?}"
        );
    }

    #[test]
    fn wrong_values_are_rejected_with_key_and_next_step() {
        let twice = user("a", HASH).replace('}', &format!("}}, {{name: a, password: \"{HASH}\"}}"));
        for (users, more, expected) in [
            (
                user("", HASH),
                "",
                "users[0].name: the value is not allowed; use 1 to 253",
            ),
            (user(&"x".repeat(254), HASH), "", "users[0].name"),
            (
                twice,
                "",
                "users[1].name: the value is not allowed; list each user once",
            ),
            (user("a", "secret"), "", "vm-operator hash-password"),
            (
                user("a", &HASH.replace("$04$", "$15$")),
                "",
                "a cost from 4 to 14",
            ),
            (user("a", &HASH[..50]), "", "users[0].password"),
            ("[]".into(), "trustedProxies: [10.0.0.0/40]", "10.0.0.0/8"),
            (
                "[]".into(),
                "publicAddresses: [vms.example, \"https://vms.example/\"]",
                "/GuiHttpServer.publicAddresses: the value is not allowed; use addresses such as https://",
            ),
        ] {
            let error = parse(&users, more).unwrap_err();
            assert!(
                error.contains(expected) && error.contains("line "),
                "{error}"
            );
        }
    }

    #[test]
    fn public_addresses_are_the_hosts_and_origins_of_requests() {
        let (any, _) = parse("[]", "publicAddresses: []").unwrap();
        let addresses =
            "publicAddresses: [\"https://vms.example\", \"https://[fd00::1]:8443\", localhost]";
        let (some, _) = parse("[]", addresses).unwrap();
        for (host, is_public) in [
            ("vms.example", true),
            ("VMS.example:443", true),
            ("vms.example:8443", false),
            ("[fd00::1]:8443", true),
            ("[fd00::1]", false),
            ("localhost:8080", true),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(some.accepts_host(host), is_public, "{host}");
            assert!(any.accepts_host(host), "{host}");
        }
        for (origin, host, by_any, by_some) in [
            ("https://vms.example", "vms.example", true, true),
            ("http://vms.example", "vms.example", true, false),
            ("https://vms.example", "10.0.0.1:8080", false, true),
            ("https://vms.example:8443", "vms.example", false, false),
            ("http://localhost:8080", "localhost:8080", true, true),
            ("http://localhost:9090", "localhost:8080", false, false),
            ("https://evil.example", "vms.example", false, false),
            ("https://evil.example", "evil.example", true, false),
            ("ftp://localhost", "localhost", false, false),
            ("null", "null", false, false),
        ] {
            let found = [&any, &some].map(|it| it.accepts_origin(origin, host));
            assert_eq!(found, [by_any, by_some], "{origin} {host}");
        }
        for wrong in [
            "",
            "https://",
            "http://vms.example",
            "vms.example:443",
            "https://a@b",
            "*.example",
            "https://a:",
            "::1",
        ] {
            assert!(PublicAddress::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn client_is_the_last_address_that_is_no_trusted_proxy() {
        let proxies = "trustedProxies: [10.0.0.0/8, \"fd00::1\"]";
        let (settings, _) = parse("[]", proxies).unwrap();
        for (peer, forwarded, client) in [
            ("192.0.2.1", "198.51.100.7", "192.0.2.1"),
            (
                "10.1.1.1",
                "203.0.113.9, 198.51.100.7, 10.2.2.2",
                "198.51.100.7",
            ),
            ("::ffff:10.1.1.1", "198.51.100.7", "198.51.100.7"),
            ("fd00::1", "", "fd00::1"),
            ("10.1.1.1", "nonsense", "10.1.1.1"),
        ] {
            let found = settings.client(peer.parse().unwrap(), forwarded);
            assert_eq!(found, client.parse::<IpAddr>().unwrap(), "{peer}");
        }
    }

    #[test]
    fn names_and_roles_of_providers_are_mapped_as_in_java() {
        let mapping = |from: &str, to: &str| Mapping {
            from: from.to_owned(),
            to: to.to_owned(),
        };
        for (from, to, name, expected) in [
            ("(.*)@example.com", "$1", "alice@example.com", "alice"),
            (
                "(.*)@example",
                "$1",
                "alice@example.com",
                "alice@example.com",
            ),
            ("(a)(b)", "$2a$1", "ab", "baa"),
            ("a|b", "\\$1", "b", "$1"),
            ("old", "", "old", ""),
        ] {
            let all = [mapping(from, to), mapping(".*z", "no")];
            assert_eq!(Mapping::apply(&all, name), expected, "{from} {to}");
        }
    }

    #[test]
    fn provider_needs_a_safe_address_a_callback_and_roles() {
        let parse = |endpoint: &str, uri: &str, more: &str| {
            let provider =
                format!("{{name: kc, clientId: c, configurationEndpoint: \"{endpoint}\"{more}}}");
            let console = format!(
                "{{\"/OidcClient\": {{redirectUri: \"{uri}\"}}, \"/LoginConlet\": {{oidcProviders: [{provider}]}}}}"
            );
            let weblet = format!("{{\"/ConsoleWeblet\": {{\"/WebConsole\": {console}}}}}");
            let text = format!("\"/Manager\": {{\"/GuiHttpServer\": {weblet}}}");
            WebSettings::parse(&text, "config.yaml").map_err(|error| error.to_string())
        };
        let (endpoint, uri) = (
            "https://kc.example/.well-known/openid-configuration",
            "https://vms.example/oauth/callback",
        );
        let (settings, warnings) =
            parse(endpoint, uri, ", secret: geheim, popup: {factor: 0.5}").unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        assert!(!format!("{settings:?}").contains("geheim"));
        let provider = settings.provider("kc").unwrap();
        let roles = |roles: &[&str]| {
            roles
                .iter()
                .map(|role| (*role).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(!provider.authorizes(&roles(&["a"])) && !provider.authorizes(&[]));
        let (settings, _) = parse(endpoint, uri, ", authorizedRoles: [a, \"\"]").unwrap();
        let provider = settings.provider("kc").unwrap();
        assert!(provider.authorizes(&roles(&["a", "b"])) && provider.authorizes(&[]));
        assert!(!provider.authorizes(&roles(&["b"])));
        let local = "http://localhost:8080/.well-known/openid-configuration";
        assert!(parse(local, uri, "").is_ok());
        for (endpoint, uri, more, expected) in [
            (
                "http://kc.example/.well-known/openid-configuration",
                uri,
                "",
                "configurationEndpoint",
            ),
            (
                "http://localhost:x@kc.example/.well-known/openid-configuration",
                uri,
                "",
                "configurationEndpoint",
            ),
            (
                "http://localhost.example/.well-known/openid-configuration",
                uri,
                "",
                "configurationEndpoint",
            ),
            ("https://kc.example", uri, "", "configurationEndpoint"),
            (
                endpoint,
                "https://vms.example/",
                "",
                "/OidcClient.redirectUri",
            ),
            (
                endpoint,
                uri,
                ", userMappings: [{from: \"(\", to: a}]",
                "userMappings",
            ),
        ] {
            let error = parse(endpoint, uri, more).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn users_of_the_secret_take_precedence_and_are_checked() {
        let (settings, _) = parse(&user("alice", HASH), "").unwrap();
        let other = HASH.replace("$2y$", "$2b$");
        let text =
            format!("- {{name: alice, password: {other}}}\n- {{name: bob, password: {HASH}}}\n");
        let (users, warnings) = Users::parse(&text, "users.yaml").unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        let settings = settings.with_users(&users);
        let hash = |name: &str| settings.user(name).unwrap().password.clone();
        assert_eq!((hash("alice"), hash("bob")), (other, HASH.to_owned()));
        assert_eq!(settings.users().len(), 2);
        let error = Users::parse("- {name: bob, password: secret}", "users.yaml").unwrap_err();
        let error = error.to_string();
        let expected = ["users.yaml, line 1", "[0].password", "hash-password"];
        assert!(expected.iter().all(|text| error.contains(text)), "{error}");
        for text in ["", "[]"] {
            assert_eq!(
                Users::parse(text, "users.yaml").unwrap().0,
                Users::default(),
                "{text}"
            );
        }
    }
}
