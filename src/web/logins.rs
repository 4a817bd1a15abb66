//! Logins: passwords, their limits, and the logins in use. They are lost when the process exits.

use crate::settings::web::{USER_NAME_MAX, WebSettings};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
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
    /// Is cancelled when the login ends.
    pub ended: CancellationToken,
}

struct Entry {
    login: Login,
    /// The hash with which the user logged in: another one ends the login.
    hash: String,
    begun: Instant,
    used: Instant,
}

impl Entry {
    fn is_valid(&self, settings: &WebSettings) -> bool {
        let user = settings.user(&self.login.user);
        user.is_some_and(|user| user.password == self.hash)
            && self.begun.elapsed() < LOGIN_MAX
            && self.used.elapsed() < IDLE_MAX
    }
}

/// The reason that a login is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Name or password is wrong.
    Wrong,
    /// There were too many attempts. The next one is possible after this time.
    Limited(Duration),
    /// Too many passwords wait for a check.
    Busy,
}

/// All logins of the process.
pub struct Logins {
    entries: Mutex<HashMap<Arc<str>, Entry>>,
    by_address: DefaultKeyedRateLimiter<IpAddr>,
    by_name: DefaultKeyedRateLimiter<(String, IpAddr)>,
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
            by_name: RateLimiter::keyed(of_name.allow_burst(ATTEMPTS_OF_NAME)),
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
        settings: &WebSettings,
        name: &str,
        password: String,
        client: IpAddr,
        previous: Option<&str>,
    ) -> Result<Login, Rejected> {
        self.limit(name, client)?;
        let known = settings.user(name);
        // An unknown name costs as much time as the most expensive hash of a user.
        let hash = known.map_or_else(|| decoy(settings), |user| user.password.clone());
        let is_short = password.len() <= PASSWORD_MAX;
        let is_right = self.verify(password, hash.clone()).await?;
        if !(is_right && is_short && known.is_some()) {
            return Err(Rejected::Wrong);
        }
        if let Some(previous) = previous {
            self.end(previous);
        }
        Ok(self.insert(name, hash, settings))
    }

    fn limit(&self, name: &str, client: IpAddr) -> Result<(), Rejected> {
        let client = network_of(client);
        let wait = |until: governor::NotUntil<_>| {
            Rejected::Limited(until.wait_time_from(DefaultClock::default().now()))
        };
        if self.by_address.len() > REMEMBERED {
            self.by_address.retain_recent();
        }
        self.by_address.check_key(&client).map_err(wait)?;
        if name.len() > USER_NAME_MAX {
            return Err(Rejected::Wrong);
        }
        if self.by_name.len() > REMEMBERED {
            self.by_name.retain_recent();
        }
        let key = (name.to_owned(), client);
        self.by_name.check_key(&key).map_err(wait)
    }

    async fn verify(&self, password: String, hash: String) -> Result<bool, Rejected> {
        let waiting = self.waiting.clone().try_acquire_owned();
        let waiting = waiting.map_err(|_| Rejected::Busy)?;
        let check = self.checks.clone().acquire_owned().await;
        let check = check.map_err(|_| Rejected::Busy)?;
        // The permits belong to the check, which continues if the client closes its connection.
        let verified = tokio::task::spawn_blocking(move || {
            let is_right = bcrypt::verify(password, &hash).unwrap_or(false);
            drop((waiting, check));
            is_right
        });
        verified.await.map_err(|_| Rejected::Busy)
    }

    fn insert(&self, name: &str, hash: String, settings: &WebSettings) -> Login {
        let mut random = [0; 16];
        // Without random numbers, no process of the node works.
        #[allow(clippy::expect_used)]
        getrandom::fill(&mut random).expect("the kernel has random numbers");
        let id: Arc<str> = format!("{:032x}", u128::from_ne_bytes(random)).into();
        let login = Login {
            id: id.clone(),
            user: name.into(),
            ended: CancellationToken::new(),
        };
        let now = Instant::now();
        let entry = Entry {
            login: login.clone(),
            hash,
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

/// A hash that no password has, with the highest cost among the users' hashes.
fn decoy(settings: &WebSettings) -> String {
    let cost = |password: &String| Some(password.parse::<bcrypt::HashParts>().ok()?.get_cost());
    let costs = settings
        .users()
        .iter()
        .filter_map(|user| cost(&user.password));
    let cost = costs.max().unwrap_or(COST);
    format!("$2b${cost:02}${}", ".".repeat(53))
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

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    async fn begin(logins: &Logins, name: &str, password: &str, n: u8) -> Result<Login, Rejected> {
        let (settings, password) = (settings(HASH), password.to_owned());
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
        let (logins, used) = (Logins::default(), settings(HASH));
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
    fn unknown_names_cost_as_much_as_known_ones() {
        let costly = settings(&HASH.replace("$04$", "$11$"));
        let parts: bcrypt::HashParts = decoy(&costly).parse().unwrap();
        assert_eq!(parts.get_cost(), 11);
        assert!(!bcrypt::verify("", &decoy(&settings(HASH))).unwrap());
    }
}
