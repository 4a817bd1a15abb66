//! (pure) The content of a `VmReport`, within the limits of its definition. The API server would reject a report beyond them as a
//! whole.

use crate::api::VmReportStatus;
use crate::api::report::{
    CONSOLES_MAX, GUEST_IPS_MAX, HOST_MAX, MESSAGE_MAX, OSINFO_ENTRIES_MAX, OSINFO_NAME_MAX,
    OSINFO_TEXT_MAX, TEXTS_MAX, USER_MAX, plain_text,
};
use crate::api::vm::ConsoleConnection;
use crate::runner::state::Phase;
use crate::runner::status::Observed;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Maximum length of all texts of `osinfo` together, in bytes. The rest of [`TEXTS_MAX`] is for messages of conditions.
const OSINFO_TEXTS_MAX: usize = 600;

impl Observed {
    /// The report at `now`. `present` are the conditions of the previous one.
    pub fn report(&self, present: &[Condition], now: Timestamp) -> VmReportStatus {
        let runs = self.is_running();
        let is_stopped = self.phase == Phase::Stopped;
        let osinfo = self.osinfo.as_ref().filter(|_| runs);
        let osinfo = osinfo.map(short_osinfo).unwrap_or_default();
        let user = self
            .desktop
            .user
            .as_deref()
            .filter(|_| runs && self.desktop.connected)
            .map(|user| plain_text(user, USER_MAX));
        let conditions: Vec<Condition> = self
            .conditions()
            .iter()
            .map(|wanted| wanted.at(present, self.generation, now))
            .collect();
        let host = self.client().filter(|_| runs);
        let short = |console: ConsoleConnection| ConsoleConnection {
            user: plain_text(&console.user, USER_MAX),
            client: plain_host(&console.client),
            ..console
        };
        let consoles = self.consoles().into_iter().filter(|_| runs);
        let consoles: Vec<_> = consoles.take(CONSOLES_MAX).map(short).collect();
        let users = consoles.iter().map(|console| &console.user).chain(&user);
        let used: usize = osinfo.values().chain(users).map(String::len).sum();
        VmReportStatus {
            observed_reset_request: self.reset_request,
            runner_version: env!("CARGO_PKG_VERSION").to_owned(),
            cpus: if is_stopped {
                0
            } else {
                self.guest_cpus.unwrap_or(self.cpus).into()
            },
            ram: if is_stopped {
                "0".to_owned()
            } else {
                self.ram.to_quantity()
            },
            guest_ips: self
                .addresses
                .iter()
                .filter(|_| runs)
                .take(GUEST_IPS_MAX)
                .cloned()
                .collect(),
            console_client: host.map(plain_host).unwrap_or_default(),
            logged_in_user: user,
            display_password_serial: self.password_serial,
            osinfo,
            boots: self.boots,
            resets: self.resets,
            console_connections: self.console_connections,
            consoles,
            console_key: self.console_key.clone(),
            conditions: with_short_messages(conditions, TEXTS_MAX.saturating_sub(used)),
        }
    }
}

/// The letters that an address or the name of a host can have.
fn plain_host(host: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || ".:%_-".contains(*letter);
    host.chars().filter(is_plain).take(HOST_MAX).collect()
}

/// The entries with short names and texts, up to the maximum number.
fn short_osinfo(osinfo: &Map<String, Value>) -> BTreeMap<String, String> {
    let entries = osinfo
        .iter()
        .filter(|(name, _)| name.len() <= OSINFO_NAME_MAX)
        .filter_map(|(name, text)| Some((name, plain_text(text.as_str()?, OSINFO_TEXT_MAX))));
    let mut short = BTreeMap::new();
    let mut used = 0;
    for (name, text) in entries.take(OSINFO_ENTRIES_MAX) {
        used += text.len();
        if used <= OSINFO_TEXTS_MAX {
            short.insert(name.clone(), text);
        }
    }
    short
}

/// The conditions with messages of at most `room` bytes together. The longest messages are cut.
fn with_short_messages(mut conditions: Vec<Condition>, room: usize) -> Vec<Condition> {
    let fits = |limit: &usize| {
        let sizes = conditions.iter().map(|c| c.message.len().min(*limit));
        sizes.sum::<usize>() <= room
    };
    let limit = (0..=MESSAGE_MAX).rev().find(fits).unwrap_or_default();
    for condition in &mut conditions {
        condition.message = plain_text(&condition.message, limit);
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::vm::ConsoleProtocol;
    use crate::api::vm::conditions::ConditionReason;
    use crate::runner::failure::Problem;
    use crate::runner::status::tests::observed;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    fn texts(report: &VmReportStatus) -> usize {
        let messages = report.conditions.iter().map(|c| c.message.len());
        let consoles = report.consoles.iter().map(|console| console.user.len());
        let user = report
            .logged_in_user
            .iter()
            .map(String::len)
            .chain(consoles);
        messages
            .chain(report.osinfo.values().map(String::len))
            .chain(user)
            .sum()
    }

    #[test]
    fn a_report_is_within_the_limits_of_its_definition_whatever_the_guest_says() {
        let mut observed = observed(Phase::Booted);
        let long = "ä\n".repeat(1000);
        observed.osinfo = (0..40)
            .map(|n| (format!("name-{n}"), json!(long)))
            .chain([("n".repeat(100), json!("x"))])
            .collect::<Map<_, _>>()
            .into();
        observed.desktop.connected = true;
        observed.desktop.user = Some(long.clone());
        observed.addresses = (0..100).map(|n| format!("10.0.0.{n}")).collect();
        observed.console = Some((format!("fe80::1%eth0 {}", "x".repeat(100)), String::new()));
        let viewer = ConsoleConnection {
            user: long.clone(),
            client: "x y".repeat(40),
            protocol: ConsoleProtocol::Serial,
            since: Time(Timestamp::UNIX_EPOCH),
        };
        observed.viewers = vec![viewer; 9];
        observed.memory_problem = Some(long.clone());
        observed.cpu_problem = Some(Problem::new(ConditionReason::NotFollowed, long.clone()));
        observed.stalled = Some(Problem::new(ConditionReason::DiskFull, long.clone()));
        observed.login_wanted = Some(long);
        let report = observed.report(&[], Timestamp::UNIX_EPOCH);
        assert!(
            (TEXTS_MAX - 100..=TEXTS_MAX).contains(&texts(&report)),
            "{}",
            texts(&report)
        );
        assert_eq!(report.guest_ips.len(), GUEST_IPS_MAX);
        let console = &report.consoles[1];
        let lengths = (console.user.len(), console.client.len());
        assert_eq!(
            (report.consoles.len(), lengths),
            (CONSOLES_MAX, (252, HOST_MAX))
        );
        assert!(report.osinfo.len() <= OSINFO_ENTRIES_MAX && !report.osinfo.is_empty());
        assert!(report.console_client.starts_with("fe80::1%eth0x"));
        assert_eq!(report.console_client.len(), HOST_MAX);
        assert!(!json!(report).to_string().contains("\\n"));
    }

    #[test]
    fn reported_cpus_are_those_that_the_guest_uses() {
        let mut observed = observed(Phase::Booted);
        observed.cpus = 4;
        let cpus = |observed: &Observed| observed.report(&[], Timestamp::UNIX_EPOCH).cpus;
        assert_eq!(cpus(&observed), 4);
        observed.guest_cpus = Some(3);
        assert_eq!(cpus(&observed), 3);
    }

    #[test]
    fn short_messages_are_not_cut_and_counters_are_reported() {
        let mut observed = observed(Phase::Booted);
        observed.memory_problem = Some("no driver".to_owned());
        (
            observed.boots,
            observed.resets,
            observed.console_connections,
        ) = (2, 1, 3);
        let report = observed.report(&[], Timestamp::UNIX_EPOCH);
        let wanted = observed.conditions();
        let messages: Vec<_> = wanted.iter().map(|wanted| &wanted.message).collect();
        let reported: Vec<_> = report.conditions.iter().map(|c| &c.message).collect();
        assert_eq!(reported, messages);
        assert_eq!(
            (report.boots, report.resets, report.console_connections),
            (2, 1, 3)
        );
    }
}
