//! (pure) State of the desktop agent's protocol: the configured user, the logged-in user, and pending
//! requests.
//!
//! The agent sends `220` when it starts. It accepts `login <user>` and `logout`, and answers `201`
//! and `202` on success, `400` and above on failure, and `1xx` for progress.
//!
//! Invariants: at most one request is waited for, with a timeout. Answers are matched to requests
//! in their order, late ones included. Only a user that this runner has logged in is logged out.
//! A request is repeated only after a change or a failure, because the agent restarts the desktop
//! for each request. A user counts as logged in only after the agent has confirmed it.

use std::collections::VecDeque;
use std::time::Duration;

/// Time for the agent to answer a request. A `1xx` answer restarts it.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before a login that failed temporarily is repeated.
pub const LOGIN_RETRY_DELAY: Duration = Duration::from_secs(60);

/// State of the desktop as the agent has reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desktop {
    /// Whether the agent has sent its greeting and is connected.
    pub connected: bool,
    /// The logged-in user, confirmed by the agent.
    pub user: Option<String>,
    /// The reason why the wanted user could not be logged in.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    Login(String),
    Logout,
}

impl Request {
    fn line(&self) -> String {
        match self {
            Self::Login(user) => format!("login {user}\n"),
            Self::Logout => "logout\n".to_owned(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Login(_) => "the login",
            Self::Logout => "the logout",
        }
    }
}

/// State of the conversation with the agent.
#[derive(Clone, Debug, Default)]
pub struct Login {
    desktop: Desktop,
    wanted: Option<String>,
    /// Requests without an answer, the oldest first.
    pending: VecDeque<Request>,
    /// Whether the newest of them has timed out.
    is_overdue: bool,
    /// The request that has failed. It is not repeated automatically.
    failed_request: Option<Request>,
    /// Whether the failed request is repeated after a delay.
    is_retryable: bool,
}

impl Login {
    /// The state before the agent has sent anything.
    pub fn new(wanted: Option<String>) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    pub fn desktop(&self) -> &Desktop {
        &self.desktop
    }

    /// Whether a failed request is to be repeated after [`LOGIN_RETRY_DELAY`].
    pub fn is_waiting_for_retry(&self) -> bool {
        self.is_retryable && self.desktop.connected && !self.is_waiting_for_answer()
    }

    /// Whether an answer is expected within [`ANSWER_TIMEOUT`].
    pub fn is_waiting_for_answer(&self) -> bool {
        !self.pending.is_empty() && !self.is_overdue
    }

    /// The answer has timed out. The request is not repeated before another user is wanted or the
    /// agent restarts.
    pub fn answer_timed_out(&mut self) {
        let Some(request) = self.pending.back() else {
            return;
        };
        let (what, seconds) = (request.name(), ANSWER_TIMEOUT.as_secs());
        self.desktop.problem = Some(format!(
            "the desktop agent in the guest has not answered the request for {what} within {seconds} s; read the agent's \
                log in the guest and restart the agent. The runner repeats the request when the agent starts"
        ));
        self.failed_request = Some(request.clone());
        (self.is_overdue, self.is_retryable) = (true, false);
    }

    /// Sets the wanted user. Returns the line to send.
    pub fn set_wanted_user(&mut self, user: Option<String>) -> Option<String> {
        self.wanted = user;
        self.next_request()
    }

    /// The delay after a failure is over. Returns the line to send.
    pub fn retry(&mut self) -> Option<String> {
        if std::mem::take(&mut self.is_retryable) {
            self.failed_request = None;
        }
        self.next_request()
    }

    /// The agent has disconnected. The user may still be logged in.
    pub fn agent_closed(&mut self) {
        self.desktop.connected = false;
        self.pending.clear();
    }

    /// The guest reboots: no user is logged in.
    pub fn reset(&mut self) {
        self.agent_closed();
        self.desktop = Desktop::default();
        (self.failed_request, self.is_retryable) = (None, false);
    }

    /// Handles a line from the agent. Returns the line to send.
    pub fn receive_line(&mut self, line: &str) -> Option<String> {
        let code = line.get(..3).and_then(|code| code.parse::<u16>().ok());
        match code {
            Some(220) => {
                self.desktop = Desktop {
                    connected: true,
                    problem: None,
                    user: self.desktop.user.take(),
                };
                self.pending.clear();
                (self.failed_request, self.is_retryable) = (None, false);
            }
            Some(240) => self.agent_closed(),
            Some(201) if matches!(self.pending.front(), Some(Request::Login(_))) => {
                if let Some(Request::Login(user)) = self.pending.pop_front() {
                    self.desktop.user = Some(user);
                }
            }
            Some(202) if self.pending.front() == Some(&Request::Logout) => {
                self.pending.pop_front();
                self.desktop.user = None;
            }
            Some(400..) => self.request_failed(line),
            Some(201 | 202) => log_unexpected(line),
            Some(100..400) => {}
            _ => tracing::debug!(
                line,
                "ignoring an unknown message of the desktop agent in the guest"
            ),
        }
        self.next_request()
    }

    fn request_failed(&mut self, line: &str) {
        let Some(request) = self.pending.pop_front() else {
            return log_unexpected(line);
        };
        self.desktop.problem = Some(format!(
            "the desktop agent in the guest reports that {} has failed: {}",
            request.name(),
            line.trim()
        ));
        // As in SMTP, 4xx is a temporary and 5xx a permanent failure.
        self.is_retryable = line.starts_with('4');
        self.failed_request = Some(request);
    }

    fn next_request(&mut self) -> Option<String> {
        if !self.desktop.connected || self.is_waiting_for_answer() {
            return None;
        }
        let request = match (&self.wanted, &self.desktop.user) {
            (Some(wanted), user) if user.as_ref() != Some(wanted) => Request::Login(wanted.clone()),
            (None, Some(_)) => Request::Logout,
            _ => {
                (self.desktop.problem, self.failed_request) = (None, None);
                return None;
            }
        };
        if self.failed_request.as_ref() == Some(&request) {
            return None;
        }
        (self.failed_request, self.desktop.problem) = (None, None);
        let line = request.line();
        self.pending.push_back(request);
        self.is_overdue = false;
        Some(line)
    }
}

fn log_unexpected(line: &str) {
    tracing::debug!(
        line,
        "the runner ignores an answer of the desktop agent in the guest, because the answer belongs to no request"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn user(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn b18_a_user_is_logged_in_when_the_agent_has_said_so() {
        let mut login = Login::new(user("anna"));
        assert_eq!(
            login.receive_line("220 Hello").as_deref(),
            Some("login anna\n")
        );
        assert_eq!(login.receive_line("101 working on it"), None);
        assert!(login.desktop().connected && login.desktop().user.is_none());
        assert_eq!(login.receive_line("201 done"), None);
        assert_eq!(login.desktop().user, user("anna"));
    }

    #[test]
    fn b19_only_own_logins_are_ended_and_no_command_is_repeated() {
        let mut login = Login::new(None);
        assert_eq!(login.receive_line("220 Hello"), None);
        assert_eq!(login.set_wanted_user(None), None);
        assert_eq!(
            login.set_wanted_user(user("anna")).as_deref(),
            Some("login anna\n")
        );
        assert_eq!(login.set_wanted_user(user("anna")), None);
        assert_eq!(
            login.receive_line("220 Hello again").as_deref(),
            Some("login anna\n"),
            "it has forgotten the question"
        );
        login.receive_line("201 done");
        assert_eq!(login.set_wanted_user(user("anna")), None);
        assert_eq!(login.set_wanted_user(None).as_deref(), Some("logout\n"));
        assert_eq!(
            login.set_wanted_user(user("berta")),
            None,
            "one after the other"
        );
        assert_eq!(
            login.receive_line("202 done").as_deref(),
            Some("login berta\n")
        );
    }

    #[test]
    fn b19_unrequested_responses_are_ignored() {
        let mut login = Login::new(None);
        for line in [
            "201 done",
            "451 failed",
            "202 done",
            "",
            "x",
            "ä",
            "999",
            "220",
        ] {
            login.receive_line(line);
        }
        assert_eq!(
            *login.desktop(),
            Desktop {
                connected: true,
                ..Desktop::default()
            }
        );
        login.set_wanted_user(user("anna"));
        assert_eq!(login.receive_line("202 out"), None);
        assert_eq!(login.receive_line("201 in"), None);
        assert_eq!(login.desktop().user, user("anna"));
    }

    #[test]
    fn b25_closed_agent_is_disconnected_and_a_reboot_ends_all_logins() {
        let mut login = Login::new(user("anna"));
        login.receive_line("220");
        login.receive_line("201");
        login.agent_closed();
        assert_eq!(
            (login.desktop().connected, login.desktop().user.clone()),
            (false, user("anna"))
        );
        assert_eq!(login.receive_line("220"), None, "the same desktop");
        login.reset();
        assert_eq!(*login.desktop(), Desktop::default());
        assert_eq!(login.receive_line("220").as_deref(), Some("login anna\n"));
    }

    #[test]
    fn login_failure_is_reported_and_retried_if_it_is_temporary() {
        let mut login = Login::new(user("root"));
        login.receive_line("220");
        assert_eq!(login.receive_line("504 not root"), None);
        assert!(
            login
                .desktop()
                .problem
                .as_ref()
                .unwrap()
                .contains("504 not root")
        );
        assert!(!login.is_waiting_for_retry());
        assert_eq!(login.set_wanted_user(user("root")), None);
        assert_eq!(
            login.set_wanted_user(user("anna")).as_deref(),
            Some("login anna\n")
        );
        assert_eq!(login.receive_line("451 gdm"), None);
        assert!(login.is_waiting_for_retry());
        assert_eq!(login.retry().as_deref(), Some("login anna\n"));
        login.receive_line("201");
        assert_eq!(login.desktop().problem, None);
    }

    #[test]
    fn unresponsive_agent_is_reported_and_retried_for_another_user_or_connection() {
        let mut login = Login::new(user("anna"));
        login.receive_line("220");
        assert!(login.is_waiting_for_answer());
        login.answer_timed_out();
        assert!(!login.is_waiting_for_answer() && !login.is_waiting_for_retry());
        let problem = login.desktop().problem.clone().unwrap();
        assert!(problem.contains("the login within 30 s"), "{problem}");
        assert_eq!(login.set_wanted_user(user("anna")), None);
        assert_eq!(
            login.set_wanted_user(user("berta")).as_deref(),
            Some("login berta\n")
        );
        assert_eq!(
            (
                login.desktop().problem.clone(),
                login.is_waiting_for_answer()
            ),
            (None, true)
        );
        // A late answer to the earlier request, not to that for berta.
        assert_eq!(login.receive_line("201"), None);
        assert_eq!(login.desktop().user, user("anna"));
        login.receive_line("201");
        assert_eq!(login.desktop().user, user("berta"));
        login.set_wanted_user(None);
        login.answer_timed_out();
        assert!(
            login
                .desktop()
                .problem
                .as_ref()
                .unwrap()
                .contains("the logout")
        );
        assert_eq!(login.receive_line("220").as_deref(), Some("logout\n"));
        login.answer_timed_out();
        login.receive_line("202");
        assert_eq!(
            *login.desktop(),
            Desktop {
                connected: true,
                ..Desktop::default()
            }
        );
    }

    proptest! {
        #[test]
        fn a_user_is_only_ever_one_that_was_confirmed(lines in prop::collection::vec("(201|202|220|240|451|504|1..)", 0..30)) {
            let mut login = Login::new(user("anna"));
            let mut confirmed = false;
            for line in &lines {
                login.receive_line(line);
                confirmed |= line == "201";
            }
            prop_assert!(login.desktop().user.is_none() || confirmed);
        }
    }
}
