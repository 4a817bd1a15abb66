//! Logins: passwords, their limits, and the logins in use. They are lost when the process exits.

use crate::settings::web::{LocalUser, OidcProvider, USER_NAME_MAX, WebSettings};
use crate::web::LIVE_OF_LOGIN_MAX;
use crate::web::oidc::Identity;
use crate::web::rights::Viewer;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// A login ends after this time.
const LOGIN_MAX: Duration = Duration::from_secs(9 * 3600);

/// A login ends after this time without input by the user.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

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
    /// Random identifier, which the cookie has.
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

struct Entry {
    login: Login,
    proof: Proof,
    begun: Instant,
    used: Instant,
}

/// How the user has logged in. A login ends when this is not possible any more.
enum Proof {
    /// By a password with this hash.
    Password(String),
    /// By this provider.
    Provider(Box<OidcProvider>),
}

impl Entry {
    fn is_valid(&self, settings: &WebSettings) -> bool {
        let is_possible = match &self.proof {
            Proof::Password(hash) => {
                let user = settings.user(&self.login.user);
                user.is_some_and(|user| user.password == *hash)
            }
            Proof::Provider(provider) => settings.provider(&provider.name) == Some(provider),
        };
        is_possible && self.begun.elapsed() < LOGIN_MAX && self.used.elapsed() < IDLE_MAX
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

/// All logins of the process.
pub struct Logins {
    entries: Mutex<HashMap<Arc<str>, Entry>>,
    by_address: DefaultKeyedRateLimiter<IpAddr>,
    by_name: DefaultKeyedRateLimiter<(String, IpAddr)>,
    by_provider: DefaultKeyedRateLimiter<IpAddr>,
    logged: DefaultKeyedRateLimiter<IpAddr>,
    checks: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Logins {
    fn default() -> Self {
        let of_name =
            Quota::with_period(NEXT_ATTEMPT).unwrap_or(Quota::per_minute(ATTEMPTS_OF_NAME));
        Self {
            entries: Mutex::default(),
            by_address: RateLimiter::keyed(Quota::per_minute(ATTEMPTS_OF_ADDRESS)),
            by_provider: RateLimiter::keyed(Quota::per_minute(ATTEMPTS_OF_ADDRESS)),
            by_name: RateLimiter::keyed(of_name.allow_burst(ATTEMPTS_OF_NAME)),
            logged: RateLimiter::keyed(Quota::per_minute(LOGGED)),
            checks: Arc::new(Semaphore::new(CHECKS)),
            waiting: Arc::new(Semaphore::new(WAITING + CHECKS)),
        }
    }
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the password of a user, and begins a login. The login `previous` ends.
    ///
    /// # Errors
    /// Name or password is wrong, or there are too many attempts.
    pub async fn begin(
        &self,
        settings: &watch::Receiver<Arc<WebSettings>>,
        name: &str,
        password: String,
        client: IpAddr,
        previous: Option<&str>,
    ) -> Result<Login, Rejected> {
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
        let identity = Identity {
            user: name.to_owned(),
            full_name: None,
            roles: Vec::new(),
        };
        Ok(self.insert(identity, Proof::Password(hash), previous, &settings))
    }

    /// Begins the login of a user that a provider has identified. The login `previous` ends.
    #[must_use]
    pub fn begin_by_provider(
        &self,
        settings: &WebSettings,
        identity: Identity,
        provider: OidcProvider,
        previous: Option<&str>,
    ) -> Login {
        self.insert(
            identity,
            Proof::Provider(Box::new(provider)),
            previous,
            settings,
        )
    }

    /// Counts a request of a login by a provider.
    ///
    /// # Errors
    /// There were too many.
    pub fn limit_provider(&self, client: IpAddr) -> Result<(), Rejected> {
        check(&self.by_provider, &network_of(client))
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

    fn insert(
        &self,
        identity: Identity,
        proof: Proof,
        previous: Option<&str>,
        settings: &WebSettings,
    ) -> Login {
        if let Some(previous) = previous {
            self.end(previous);
        }
        let mut random = [0; 16];
        // Without random numbers, no process of the node works.
        #[allow(clippy::expect_used)]
        getrandom::fill(&mut random).expect("the kernel has random numbers");
        let id: Arc<str> = format!("{:032x}", u128::from_ne_bytes(random)).into();
        let login = Login {
            id: id.clone(),
            user: identity.user.into(),
            full_name: identity.full_name.map(Arc::from),
            roles: identity.roles.into(),
            ended: CancellationToken::new(),
            live: Arc::new(Semaphore::new(LIVE_OF_LOGIN_MAX)),
            consoles: Arc::new(Semaphore::new(LIVE_OF_LOGIN_MAX)),
        };
        let now = Instant::now();
        let entry = Entry {
            login: login.clone(),
            proof,
            begun: now,
            used: now,
        };
        self.end_invalid(settings);
        self.lock().insert(id, entry);
        login
    }

    /// The login with that identifier, if it is valid.
    #[must_use]
    pub fn find(&self, id: &str, settings: &WebSettings) -> Option<Login> {
        let mut entries = self.lock();
        let entry = entries.get(id)?;
        if entry.is_valid(settings) {
            return Some(entry.login.clone());
        }
        entry.login.ended.cancel();
        entries.remove(id);
        None
    }

    /// The roles that a provider has reported for a user who is logged in. None for other users.
    #[must_use]
    pub fn roles(&self, user: &str) -> Option<Arc<[String]>> {
        let entries = self.lock();
        let of_user = entries.values().filter(|entry| &*entry.login.user == user);
        let newest = of_user.max_by_key(|entry| entry.begun)?;
        Some(newest.login.roles.clone())
    }

    /// The user of the login has used the keyboard or a pointer.
    pub fn used(&self, id: &str) {
        if let Some(entry) = self.lock().get_mut(id) {
            entry.used = Instant::now();
        }
    }

    /// Ends a login. Returns it, if it was in use.
    pub fn end(&self, id: &str) -> Option<Login> {
        let entry = self.lock().remove(id)?;
        entry.login.ended.cancel();
        Some(entry.login)
    }

    /// Ends the logins that have had their time, and those of users whose password has changed.
    pub fn end_invalid(&self, settings: &WebSettings) {
        self.lock().retain(|_, entry| {
            let is_valid = entry.is_valid(settings);
            if !is_valid {
                entry.login.ended.cancel();
            }
            is_valid
        });
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
    use serde_json::json;

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

    async fn begin(logins: &Logins, name: &str, password: &str, n: u8) -> Result<Login, Rejected> {
        let (settings, password) = (receiver(HASH), password.to_owned());
        logins
            .begin(&settings, name, password, address(n), None)
            .await
    }

    #[tokio::test]
    async fn login_needs_the_password_and_ends_with_it() {
        let (logins, used) = (Logins::default(), settings(HASH));
        for (name, password) in [
            ("alice", "wrong"),
            ("alice", ""),
            ("bob", "secret"),
            ("Alice", "secret"),
        ] {
            assert_eq!(
                begin(&logins, name, password, 1).await.unwrap_err(),
                Rejected::Wrong
            );
        }
        let long = format!("secret{}", "x".repeat(PASSWORD_MAX));
        assert_eq!(
            begin(&logins, "alice", &long, 1).await.unwrap_err(),
            Rejected::Wrong
        );
        let login = begin(&logins, "alice", "secret", 2).await.unwrap();
        assert_eq!(&*logins.find(&login.id, &used).unwrap().user, "alice");
        let other = begin(&logins, "alice", "secret", 2).await.unwrap();
        assert_ne!(other.id, login.id);
        assert!(logins.end(&other.id).is_some() && logins.find(&other.id, &used).is_none());
        assert!(other.ended.is_cancelled() && !login.ended.is_cancelled());
        logins.end_invalid(&settings(&HASH.replace("$2y$", "$2b$")));
        assert!(login.ended.is_cancelled() && logins.find(&login.id, &used).is_none());
    }

    #[tokio::test]
    async fn new_login_of_a_browser_ends_the_previous_one() {
        let (logins, used) = (Logins::default(), receiver(HASH));
        let first = begin(&logins, "alice", "secret", 1).await.unwrap();
        let attempt = |password: &str| {
            let password = password.to_owned();
            logins.begin(&used, "alice", password, address(1), Some(&first.id))
        };
        assert!(attempt("wrong").await.is_err() && !first.ended.is_cancelled());
        assert!(attempt("secret").await.is_ok() && first.ended.is_cancelled());
    }

    #[tokio::test]
    async fn attempts_with_one_name_and_from_one_address_are_limited() {
        let logins = Logins::default();
        for _ in 0..5 {
            assert_eq!(
                begin(&logins, "alice", "wrong", 1).await.unwrap_err(),
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
        let mut rejected = Vec::new();
        for _ in 0..50 {
            rejected.push(begin(&logins, &long, "", 3).await.unwrap_err());
        }
        assert_eq!(rejected, [Rejected::Wrong; 50]);
        let last = begin(&logins, "alice", "secret", 3).await;
        assert!(matches!(last, Err(Rejected::Limited(_))), "{last:?}");
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
        let login = logins.begin(&used, "alice", "secret".to_owned(), address(1), None);
        let mut login = std::pin::pin!(login);
        assert!(futures::poll!(&mut login).is_pending());
        let changed = settings(&HASH.replace("$2y$", "$2b$"));
        settings_of.send_replace(Arc::new(changed));
        assert_eq!(login.await.unwrap_err(), Rejected::Wrong);
    }
}
