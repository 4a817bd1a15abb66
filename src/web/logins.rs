//! Logins: passwords, their limits, and the logins in use. The encrypted cookie of a login has all that a replica has to know about it,
//! so a login survives the end of replicas.

use crate::api::hex;
use crate::settings::web::{LocalUser, Mapping, OidcProvider, USER_NAME_MAX, WebSettings};
use crate::web::LIVE_OF_LOGIN_MAX;
use crate::web::oidc::Identity;
use crate::web::rights::Viewer;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// A login ends after this time in seconds.
pub const LOGIN_MAX: i64 = 9 * 3600;

/// A login ends after this time in seconds without input by the user.
const IDLE_MAX: i64 = 30 * 60;

/// Maximum length of the content of a cookie in bytes. The encryption adds a third, and many proxies accept 4,096 bytes for all headers of
/// a response.
const CLAIMS_MAX: usize = 2000;

/// Maximum difference of the clocks of two replicas in seconds.
const CLOCKS_MAX: i64 = 5 * 60;

/// Logins of one user in an hour: each can need a place in the list of logouts, which is limited.
const LOGINS_OF_USER: NonZeroU32 = NonZeroU32::new(60).unwrap();

/// Attempts of one address in a minute.
const ATTEMPTS_OF_ADDRESS: NonZeroU32 = NonZeroU32::new(50).unwrap();

/// Attempts with one name from one address, before each further attempt waits.
const ATTEMPTS_OF_NAME: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// The wait for each further attempt.
const NEXT_ATTEMPT: Duration = Duration::from_secs(10);

/// Lines of the log in a minute about an address with too many attempts.
const LOGGED: NonZeroU32 = NonZeroU32::new(1).unwrap();

/// Passwords that are checked at the same time. A check keeps one processor busy.
const CHECKS: usize = 2;

/// Passwords that wait for a check.
const WAITING: usize = 16;

/// Maximum length of a password, in bytes. Bcrypt ignores what follows.
pub const PASSWORD_MAX: usize = 72;

/// The cost of hashes that this program makes.
pub const COST: u32 = 10;

/// Limiters forget addresses and names without recent attempts when there are more than these.
const REMEMBERED: usize = 10_000;

/// A login in use.
#[derive(Clone, Debug)]
pub struct Login {
    /// Random identifier.
    pub id: Arc<str>,
    /// Name of the user.
    pub user: Arc<str>,
    /// Name that pages show, and roles, of a provider of OpenID Connect.
    pub full_name: Option<Arc<str>>,
    pub roles: Arc<[String]>,
    /// Is cancelled when the login ends.
    pub ended: CancellationToken,
    /// Pages with a live list.
    pub live: Arc<Semaphore>,
    /// Pages with a screen or a serial console.
    pub consoles: Arc<Semaphore>,
}

impl Login {
    /// The user with the rights of the present configuration.
    #[must_use]
    pub fn viewer<'a>(&'a self, settings: &'a WebSettings) -> Viewer<'a> {
        Viewer::new(settings, &self.user, &self.roles)
    }
}

/// The places of a page among those of all pages and of its login.
pub type Places = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// Places for a page, if there are any.
#[must_use]
pub fn places(of_all: &Arc<Semaphore>, of_login: &Arc<Semaphore>) -> Option<Places> {
    let place = |places: &Arc<Semaphore>| places.clone().try_acquire_owned().ok();
    place(of_all).zip(place(of_login))
}

/// The content of the encrypted cookie of a login.
#[derive(Clone, Serialize, Deserialize)]
pub struct Claims {
    /// Random identifier.
    pub id: String,
    user: String,
    full_name: Option<String>,
    roles: Vec<String>,
    proof: Proof,
    /// Times in seconds since 1970: the login, and the last input of the user that this replica knows.
    begun: i64,
    used: i64,
}

/// How the user has logged in. A login ends when this is not possible any more.
#[derive(Clone, Serialize, Deserialize)]
enum Proof {
    /// By a password with a hash of this digest.
    Password(String),
    /// By the provider of this name, with a configuration of this digest.
    Provider(String, String),
}

impl Claims {
    fn new(identity: Identity, proof: Proof, now: i64) -> Self {
        let mut random = [0; 16];
        // Without random numbers, no process of the node works.
        #[allow(clippy::expect_used)]
        getrandom::fill(&mut random).expect("the kernel has random numbers");
        Self {
            id: hex(&random),
            user: identity.user,
            full_name: identity.full_name,
            roles: identity.roles,
            proof,
            begun: now,
            used: now,
        }
    }

    /// The user that a provider has identified. None if a cookie has no place for the roles.
    #[must_use]
    pub fn by_provider(identity: Identity, provider: &OidcProvider, now: i64) -> Option<Self> {
        let proof = Proof::Provider(provider.name.clone(), digest_of(provider));
        let claims = Self::new(identity, proof, now);
        (claims.to_json().len() <= CLAIMS_MAX).then_some(claims)
    }

    /// Name of the user.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The content of the cookie.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain data can always be serialized.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the time of the login has not ended.
    #[must_use]
    pub fn is_open(&self, now: i64) -> bool {
        let is_begun = self.begun <= now + CLOCKS_MAX;
        is_begun && now - self.begun < LOGIN_MAX && now - self.used < IDLE_MAX
    }

    fn is_valid(&self, settings: &WebSettings, now: i64) -> bool {
        let is_possible = match &self.proof {
            Proof::Password(hash) => {
                let user = settings.user(&self.user);
                user.is_some_and(|user| digest(&user.password) == *hash)
            }
            Proof::Provider(name, configuration) => {
                let provider = settings.provider(name);
                provider.is_some_and(|provider| digest_of(provider) == *configuration)
            }
        };
        is_possible && self.is_open(now)
    }
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// The digest of the keys that decide who logs in, and with which roles.
fn digest_of(provider: &OidcProvider) -> String {
    let mappings = |all: &[Mapping]| -> Vec<_> {
        let texts = |it: &Mapping| json!([it.from, it.to]);
        all.iter().map(texts).collect()
    };
    let keys = json!([
        provider.configuration_endpoint,
        provider.client_id,
        provider.secret.as_ref().map(|secret| &secret.0),
        provider.secret_file,
        provider.roles_claim,
        provider.authorized_roles,
        mappings(&provider.user_mappings),
        mappings(&provider.role_mappings),
    ]);
    digest(&keys.to_string())
}

/// A login that this replica has seen.
struct Entry {
    login: Login,
    claims: Claims,
}

impl Entry {
    fn new(claims: Claims) -> Self {
        let login = Login {
            id: claims.id.as_str().into(),
            user: claims.user.as_str().into(),
            full_name: claims.full_name.as_deref().map(Arc::from),
            roles: claims.roles.as_slice().into(),
            ended: CancellationToken::new(),
            live: Arc::new(Semaphore::new(LIVE_OF_LOGIN_MAX)),
            consoles: Arc::new(Semaphore::new(LIVE_OF_LOGIN_MAX)),
        };
        Self { login, claims }
    }
}

#[derive(Default)]
struct InUse {
    entries: HashMap<String, Entry>,
    /// Identifiers of logins that have ended before their time.
    logouts: BTreeMap<String, i64>,
}

impl InUse {
    fn end(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            entry.login.ended.cancel();
        }
    }

    fn retain(&mut self, is_valid: impl Fn(&Claims) -> bool) {
        self.entries.retain(|_, entry| {
            let is_valid = is_valid(&entry.claims);
            if !is_valid {
                entry.login.ended.cancel();
            }
            is_valid
        });
    }
}

/// The reason that a login is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Name or password is wrong.
    #[error("name or password is wrong")]
    Wrong,
    /// There were too many attempts. The next one is possible after this time.
    #[error("too many attempts; the next one is possible after {} s", .0.as_secs() + 1)]
    Limited(Duration),
    /// Too many passwords wait for a check.
    #[error("too many passwords wait for a check")]
    Busy,
}

/// The logins that this replica has seen, and the limits of attempts, which each replica has for itself.
pub struct Logins {
    in_use: Mutex<InUse>,
    by_address: DefaultKeyedRateLimiter<IpAddr>,
    by_name: DefaultKeyedRateLimiter<(String, IpAddr)>,
    by_provider: DefaultKeyedRateLimiter<IpAddr>,
    by_user: DefaultKeyedRateLimiter<String>,
    logged: DefaultKeyedRateLimiter<IpAddr>,
    checks: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Logins {
    fn default() -> Self {
        let of_name =
            Quota::with_period(NEXT_ATTEMPT).unwrap_or(Quota::per_minute(ATTEMPTS_OF_NAME));
        Self {
            in_use: Mutex::default(),
            by_address: RateLimiter::keyed(Quota::per_minute(ATTEMPTS_OF_ADDRESS)),
            by_provider: RateLimiter::keyed(Quota::per_minute(ATTEMPTS_OF_ADDRESS)),
            by_user: RateLimiter::keyed(Quota::per_hour(LOGINS_OF_USER)),
            by_name: RateLimiter::keyed(of_name.allow_burst(ATTEMPTS_OF_NAME)),
            logged: RateLimiter::keyed(Quota::per_minute(LOGGED)),
            checks: Arc::new(Semaphore::new(CHECKS)),
            waiting: Arc::new(Semaphore::new(WAITING + CHECKS)),
        }
    }
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the password of a user. Returns the content of the cookie of a new login.
    ///
    /// # Errors
    /// Name or password is wrong, or there are too many attempts.
    pub async fn begin(
        &self,
        settings: &watch::Receiver<Arc<WebSettings>>,
        name: &str,
        password: String,
        client: IpAddr,
        now: i64,
    ) -> Result<Claims, Rejected> {
        self.limit(name, client)?;
        let hashes = hashes(&settings.borrow(), name);
        let hash = hashes.first().cloned().unwrap_or_default();
        let is_short = password.len() <= PASSWORD_MAX;
        let is_right = self.verify(password, hashes).await?;
        // The configuration may have changed while the password waited.
        let settings = settings.borrow().clone();
        let is_present = settings
            .user(name)
            .is_some_and(|user| user.password == hash);
        if !(is_right && is_short && is_present) {
            return Err(Rejected::Wrong);
        }
        self.limit_user(name)?;
        let identity = Identity {
            user: name.to_owned(),
            full_name: None,
            roles: Vec::new(),
        };
        let proof = Proof::Password(digest(&hash));
        Ok(Claims::new(identity, proof, now))
    }

    /// Counts a request of a login by a provider.
    ///
    /// # Errors
    /// There were too many.
    pub fn limit_provider(&self, client: IpAddr) -> Result<(), Rejected> {
        check(&self.by_provider, &network_of(client))
    }

    /// Counts a login of a user who has proved to be that user.
    ///
    /// # Errors
    /// There were too many.
    pub fn limit_user(&self, name: &str) -> Result<(), Rejected> {
        check(&self.by_user, &name.to_owned())
    }

    /// Whether the log gets a line about a rejected login: a client with too many attempts must not fill it.
    pub fn is_logged(&self, rejected: Rejected, client: IpAddr) -> bool {
        !matches!(rejected, Rejected::Limited(_))
            || check(&self.logged, &network_of(client)).is_ok()
    }

    fn limit(&self, name: &str, client: IpAddr) -> Result<(), Rejected> {
        let client = network_of(client);
        check(&self.by_address, &client)?;
        if name.len() > USER_NAME_MAX {
            return Err(Rejected::Wrong);
        }
        check(&self.by_name, &(name.to_owned(), client))
    }

    /// Whether the password is that of the first hash. The others cost time only.
    async fn verify(&self, password: String, hashes: Vec<String>) -> Result<bool, Rejected> {
        let waiting = self.waiting.clone().try_acquire_owned();
        let waiting = waiting.map_err(|_| Rejected::Busy)?;
        let check = self.checks.clone().acquire_owned().await;
        let check = check.map_err(|_| Rejected::Busy)?;
        // The permits belong to the check, which continues if the client closes its connection.
        let verified = tokio::task::spawn_blocking(move || {
            let verify = |hash: &String| bcrypt::verify(&password, hash).unwrap_or(false);
            let verified: Vec<bool> = hashes.iter().map(verify).collect();
            drop((waiting, check));
            verified.first() == Some(&true)
        });
        verified.await.map_err(|_| Rejected::Busy)
    }

    /// The login with this cookie, if it is valid. It can have begun at another replica.
    #[must_use]
    pub fn find(&self, claims: Claims, settings: &WebSettings, now: i64) -> Option<Login> {
        let mut in_use = self.lock();
        if in_use.logouts.contains_key(&claims.id) {
            return None;
        }
        let (id, used) = (claims.id.clone(), claims.used);
        if !in_use.entries.contains_key(&id) {
            in_use.retain(|claims| claims.is_valid(settings, now));
        }
        let new = || Entry::new(claims);
        let entry = in_use.entries.entry(id.clone()).or_insert_with(new);
        entry.claims.used = used.max(entry.claims.used);
        if entry.claims.is_valid(settings, now) {
            return Some(entry.login.clone());
        }
        in_use.end(&id);
        None
    }

    /// The roles that a provider has reported for a user with a login that this replica has seen. None for other users.
    #[must_use]
    pub fn roles(&self, user: &str, now: i64) -> Option<Arc<[String]>> {
        let in_use = self.lock();
        let of_user = in_use
            .entries
            .values()
            .filter(|entry| &*entry.login.user == user && entry.claims.is_open(now));
        let newest = of_user.max_by_key(|entry| entry.claims.begun)?;
        Some(newest.login.roles.clone())
    }

    /// Whether a login that this replica has seen is valid.
    pub fn has(&self, id: &str, settings: &WebSettings, now: i64) -> bool {
        let mut in_use = self.lock();
        let entry = in_use.entries.get(id);
        let is_valid = entry.is_some_and(|entry| entry.claims.is_valid(settings, now));
        if !is_valid {
            in_use.end(id);
        }
        is_valid
    }

    /// The user of the login has used the keyboard or a pointer. Returns the content of the next cookie.
    pub fn used(&self, id: &str, now: i64) -> Option<Claims> {
        let mut in_use = self.lock();
        let entry = in_use.entries.get_mut(id)?;
        entry.claims.used = now;
        Some(entry.claims.clone())
    }

    /// Whether the login has ended before its time.
    pub fn is_logged_out(&self, id: &str) -> bool {
        self.lock().logouts.contains_key(id)
    }

    /// Ends the logins with these identifiers. Their cookies are invalid until the next call.
    pub fn replace_logouts(&self, logouts: BTreeMap<String, i64>) {
        let mut in_use = self.lock();
        in_use.retain(|claims| !logouts.contains_key(&claims.id));
        in_use.logouts = logouts;
    }

    /// Ends all logins.
    pub fn end_all(&self) {
        self.lock().retain(|_| false);
    }

    /// Ends the logins that have had their time, and those of users whose password has changed.
    pub fn end_invalid(&self, settings: &WebSettings, now: i64) {
        self.lock().retain(|claims| claims.is_valid(settings, now));
    }
}

/// Counts an attempt.
///
/// # Errors
/// There were too many.
pub fn check<K: Clone + Eq + Hash>(
    limiter: &DefaultKeyedRateLimiter<K>,
    key: &K,
) -> Result<(), Rejected> {
    if limiter.len() > REMEMBERED {
        limiter.retain_recent();
    }
    let checked = limiter.check_key(key);
    checked.map_err(|until| Rejected::Limited(until.wait_time_from(DefaultClock::default().now())))
}

/// The hash of the user, if there is one, and hashes that no password has. The check of all takes the same time for each name: that of
/// the highest cost among the users' hashes, because a step of the cost doubles the time.
fn hashes(settings: &WebSettings, name: &str) -> Vec<String> {
    let cost = |user: &LocalUser| user.cost().unwrap_or(COST);
    let max = settings.users().iter().map(cost).max().unwrap_or(COST);
    let decoy = |cost| format!("$2b${cost:02}${}", ".".repeat(53));
    match settings.user(name) {
        Some(user) => {
            let rest = (cost(user)..max).map(decoy);
            std::iter::once(user.password.clone()).chain(rest).collect()
        }
        None => vec![decoy(max)],
    }
}

/// One customer of a provider has a whole network of 64 bits.
fn network_of(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The time of logins.
    const START: i64 = 1_000_000;

    const HASH: &str = "$2y$04$H3Klq0Jrf5swL7aAgAqSeOnsRcbsAepJMs8AWLGkpBMF5Zjr9KEFG";

    fn settings(hash: &str) -> WebSettings {
        let users = json!({"/LoginConlet": {"users": [{"name": "alice", "password": hash}]}});
        let server = json!({"/ConsoleWeblet": {"/WebConsole": users}});
        serde_json::from_value(json!({"/GuiHttpServer": server})).unwrap()
    }

    fn receiver(hash: &str) -> watch::Receiver<Arc<WebSettings>> {
        watch::Sender::new(Arc::new(settings(hash))).subscribe()
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    async fn begin(logins: &Logins, name: &str, password: &str, n: u8) -> Result<Claims, Rejected> {
        let (settings, password) = (receiver(HASH), password.to_owned());
        logins
            .begin(&settings, name, password, address(n), START)
            .await
    }

    /// The error of a login.
    async fn rejected(logins: &Logins, name: &str, password: &str, n: u8) -> Rejected {
        begin(logins, name, password, n).await.err().unwrap()
    }

    #[tokio::test]
    async fn login_needs_the_password_and_ends_with_it() {
        let (logins, used) = (Logins::default(), settings(HASH));
        let long = format!("secret{}", "x".repeat(PASSWORD_MAX));
        for (name, password) in [
            ("alice", "wrong"),
            ("alice", ""),
            ("bob", "secret"),
            ("Alice", "secret"),
            ("alice", &long),
        ] {
            assert_eq!(rejected(&logins, name, password, 1).await, Rejected::Wrong);
        }
        let claims = begin(&logins, "alice", "secret", 2).await.unwrap();
        let other = begin(&logins, "alice", "secret", 2).await.unwrap();
        assert_ne!(other.id, claims.id);
        let find = |claims: &Claims| logins.find(claims.clone(), &used, START);
        let login = find(&claims).unwrap();
        assert_eq!(&*login.user, "alice");
        let changed = settings(&HASH.replace("$2y$", "$2b$"));
        logins.end_invalid(&changed, START);
        assert!(login.ended.is_cancelled());
        assert!(logins.find(claims, &changed, START).is_none());
    }

    #[tokio::test]
    async fn cookie_is_valid_at_all_replicas_until_a_logout_or_its_time() {
        let (here, there, used) = (Logins::default(), Logins::default(), settings(HASH));
        let claims = begin(&here, "alice", "secret", 1).await.unwrap();
        let read = |claims: &Claims| -> Claims { serde_json::from_str(&claims.to_json()).unwrap() };
        let (id, idle) = (claims.id.clone(), START + IDLE_MAX);
        let first = here.find(read(&claims), &used, START).unwrap();
        let second = there.find(read(&claims), &used, idle - 1).unwrap();
        assert_eq!((&second.id, &second.user), (&first.id, &first.user));

        // Input that only one replica knows counts at the other one with the next cookie.
        let next = here.used(&id, idle - 1).unwrap();
        assert!(here.has(&id, &used, idle) && !there.has(&id, &used, idle));
        assert!(second.ended.is_cancelled());
        assert!(there.find(read(&claims), &used, idle).is_none());
        let second = there.find(read(&next), &used, idle).unwrap();
        let end = START + LOGIN_MAX;
        let last = here.used(&id, end - 1).unwrap();
        assert!(last.is_open(end - 1) && !last.is_open(end));

        let logouts = BTreeMap::from([(id.clone(), end)]);
        there.replace_logouts(logouts);
        assert!(second.ended.is_cancelled() && there.is_logged_out(&id));
        assert!(there.find(next, &used, idle).is_none());
        here.end_all();
        assert!(first.ended.is_cancelled());
    }

    #[test]
    fn login_by_a_provider_ends_with_its_configuration_and_fits_into_a_cookie() {
        let provider = |roles: Value| {
            json!({"name": "a", "configurationEndpoint": "https://a/.well-known/openid-configuration",
            "clientId": "b", "authorizedRoles": roles})
        };
        let settings = |provider: &Value| -> WebSettings {
            let login = json!({"/LoginConlet": {"oidcProviders": [provider]}});
            let server = json!({"/ConsoleWeblet": {"/WebConsole": login}});
            serde_json::from_value(json!({"/GuiHttpServer": server})).unwrap()
        };
        let begun = settings(&provider(json!(["c"])));
        let identity = |roles| Identity {
            user: "alice".to_owned(),
            full_name: None,
            roles: vec!["role".to_owned(); roles],
        };
        let claims =
            |roles| Claims::by_provider(identity(roles), begun.provider("a").unwrap(), START);
        assert!(claims(1000).is_none());
        let (logins, claims) = (Logins::default(), claims(100).unwrap());
        assert!(logins.find(claims.clone(), &begun, START).is_some());
        let changed = settings(&provider(json!(["d"])));
        assert!(logins.find(claims, &changed, START).is_none());
    }

    #[tokio::test]
    async fn attempts_with_one_name_and_from_one_address_are_limited() {
        let logins = Logins::default();
        for _ in 0..5 {
            assert_eq!(
                rejected(&logins, "alice", "wrong", 1).await,
                Rejected::Wrong
            );
        }
        let Err(Rejected::Limited(wait)) = begin(&logins, "alice", "secret", 1).await else {
            panic!("the sixth attempt is not limited");
        };
        assert!(wait <= NEXT_ATTEMPT, "{wait:?}");
        assert!(
            begin(&logins, "alice", "secret", 2).await.is_ok(),
            "another address"
        );
        let long = "x".repeat(USER_NAME_MAX + 1);
        for _ in 0..50 {
            assert_eq!(rejected(&logins, &long, "", 3).await, Rejected::Wrong);
        }
        let last = rejected(&logins, "alice", "secret", 3).await;
        assert!(matches!(last, Rejected::Limited(_)), "{last:?}");
    }

    #[test]
    fn check_takes_the_same_time_for_each_name() {
        let user = |name, cost| json!({"name": name, "password": HASH.replace("$04$", cost)});
        let users = json!([user("low", "$05$"), user("high", "$08$")]);
        let console = json!({"/WebConsole": {"/LoginConlet": {"users": users}}});
        let settings = json!({"/GuiHttpServer": {"/ConsoleWeblet": console}});
        let settings: WebSettings = serde_json::from_value(settings).unwrap();
        for name in ["low", "high", "unknown"] {
            let hashes = hashes(&settings, name);
            let cost = |hash: &String| hash.parse::<bcrypt::HashParts>().unwrap().get_cost();
            let steps: u32 = hashes.iter().map(|hash| 1 << cost(hash)).sum();
            assert_eq!(steps, 1 << 8, "{name}");
            let decoys = &hashes[usize::from(name != "unknown")..];
            let matches = |hash: &String| bcrypt::verify("", hash).unwrap();
            assert!(!decoys.iter().any(matches), "{name}");
        }
    }

    #[tokio::test]
    async fn password_that_changes_during_the_check_is_rejected() {
        let logins = Logins::default();
        let settings_of = watch::Sender::new(Arc::new(settings(HASH)));
        let used = settings_of.subscribe();
        let login = logins.begin(&used, "alice", "secret".to_owned(), address(1), START);
        let mut login = std::pin::pin!(login);
        assert!(futures::poll!(&mut login).is_pending());
        let changed = settings(&HASH.replace("$2y$", "$2b$"));
        settings_of.send_replace(Arc::new(changed));
        assert_eq!(login.await.err(), Some(Rejected::Wrong));
    }
}
