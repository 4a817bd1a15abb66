//! (pure) Who should be logged in at the guest's desktop, and what its agent says about it.
//!
//! The agent greets with `220` when it starts, takes `login <user>` and `logout`, answers `201` and `202` when that is done,
//! anything from `400` on when it is not, and says `1xx` in between. What always holds: one request is under way at a time, and
//! not for ever; answers are taken in the order of the requests, also late ones; nobody is logged out whom we have not logged in, and nothing is asked twice (B19); a login is one when the agent has
//! said so, and no earlier (B18).

use std::collections::VecDeque;
use std::time::Duration;

/// Time for the agent to answer a request. A `1xx` gives it that time again.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Pause before a login is tried again that has failed for the moment.
pub const TRY_AGAIN: Duration = Duration::from_secs(60);

/// What is known of the desktop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desktop {
    /// Whether the agent has greeted, and is there.
    pub connected: bool,
    /// Who is logged in, as the agent has confirmed.
    pub user: Option<String>,
    /// Why the wanted user could not be logged in.
    pub problem: Option<String>,
}

/// A request to the agent.
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

/// A conversation with the agent.
#[derive(Clone, Debug, Default)]
pub struct Login {
    desktop: Desktop,
    wanted: Option<String>,
    /// What the agent was asked for and has not answered, the oldest first.
    asked: VecDeque<Request>,
    /// Whether the newest of them is not waited for any more.
    overdue: bool,
    /// The request that has failed, and is not made again by itself.
    failed: Option<Request>,
    /// Whether it may be made again later.
    again: bool,
}

impl Login {
    /// Nothing is known yet, and that user is wanted.
    pub fn new(wanted: Option<String>) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// What is known.
    pub fn desktop(&self) -> &Desktop {
        &self.desktop
    }

    /// Whether a failed request should be tried again after [`TRY_AGAIN`].
    pub fn waits_to_try_again(&self) -> bool {
        self.again && self.desktop.connected && !self.waits_for_answer()
    }

    /// Whether an answer is waited for, which should come within [`ANSWER_TIME`].
    pub fn waits_for_answer(&self) -> bool {
        !self.asked.is_empty() && !self.overdue
    }

    /// No answer has come in time. It is asked for no more, until something else is wanted or the agent comes anew.
    pub fn late(&mut self) {
        let Some(request) = self.asked.back() else {
            return;
        };
        let (what, seconds) = (request.name(), ANSWER_TIME.as_secs());
        self.desktop.problem = Some(format!(
            "the agent in the guest has not answered the request for {what} within {seconds} s; it is asked again when another \
             user is wanted, or when it has started anew: see its log in the guest, and restart it there"
        ));
        self.failed = Some(request.clone());
        (self.overdue, self.again) = (true, false);
    }

    /// Another user is wanted, or none. Gives the line to say, if there is one.
    pub fn want(&mut self, user: Option<String>) -> Option<String> {
        self.wanted = user;
        self.next()
    }

    /// Time has passed since a failure.
    pub fn try_again(&mut self) -> Option<String> {
        if std::mem::take(&mut self.again) {
            self.failed = None;
        }
        self.next()
    }

    /// The agent has gone. Who was logged in may still be.
    pub fn closed(&mut self) {
        self.desktop.connected = false;
        self.asked.clear();
    }

    /// The guest boots anew: nobody is logged in.
    pub fn reset(&mut self) {
        self.closed();
        self.desktop = Desktop::default();
        (self.failed, self.again) = (None, false);
    }

    /// The agent has said something. Gives the line to say, if there is one.
    pub fn heard(&mut self, line: &str) -> Option<String> {
        let code = line.get(..3).and_then(|code| code.parse::<u16>().ok());
        match code {
            Some(220) => {
                self.desktop = Desktop {
                    connected: true,
                    problem: None,
                    user: self.desktop.user.take(),
                };
                self.asked.clear();
                (self.failed, self.again) = (None, false);
            }
            Some(240) => self.closed(),
            Some(201) if matches!(self.asked.front(), Some(Request::Login(_))) => {
                if let Some(Request::Login(user)) = self.asked.pop_front() {
                    self.desktop.user = Some(user);
                }
            }
            Some(202) if self.asked.front() == Some(&Request::Logout) => {
                self.asked.pop_front();
                self.desktop.user = None;
            }
            Some(400..) => self.refused(line),
            Some(201 | 202) => unexpected(line),
            Some(100..400) => {}
            _ => tracing::debug!(line, "the desktop's agent says what nobody understands"),
        }
        self.next()
    }

    fn refused(&mut self, line: &str) {
        let Some(request) = self.asked.pop_front() else {
            return unexpected(line);
        };
        self.desktop.problem = Some(format!(
            "{} has failed in the guest: {}",
            request.name(),
            line.trim()
        ));
        // As in other protocols of lines: 4xx is for now, 5xx for good.
        self.again = line.starts_with('4');
        self.failed = Some(request);
    }

    fn next(&mut self) -> Option<String> {
        if !self.desktop.connected || self.waits_for_answer() {
            return None;
        }
        let request = match (&self.wanted, &self.desktop.user) {
            (Some(wanted), user) if user.as_ref() != Some(wanted) => Request::Login(wanted.clone()),
            (None, Some(_)) => Request::Logout,
            _ => {
                (self.desktop.problem, self.failed) = (None, None);
                return None;
            }
        };
        if self.failed.as_ref() == Some(&request) {
            return None;
        }
        (self.failed, self.desktop.problem) = (None, None);
        let line = request.line();
        self.asked.push_back(request);
        self.overdue = false;
        Some(line)
    }
}

fn unexpected(line: &str) {
    tracing::debug!(line, "nobody has asked the desktop's agent for that");
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
        assert_eq!(login.heard("220 Hello").as_deref(), Some("login anna\n"));
        assert_eq!(login.heard("101 working on it"), None);
        assert!(login.desktop().connected && login.desktop().user.is_none());
        assert_eq!(login.heard("201 done"), None);
        assert_eq!(login.desktop().user, user("anna"));
    }

    #[test]
    fn b19_nobody_is_logged_out_whom_we_did_not_log_in_and_nothing_is_asked_twice() {
        let mut login = Login::new(None);
        assert_eq!(login.heard("220 Hello"), None);
        assert_eq!(login.want(None), None);
        assert_eq!(login.want(user("anna")).as_deref(), Some("login anna\n"));
        assert_eq!(login.want(user("anna")), None);
        assert_eq!(
            login.heard("220 Hello again").as_deref(),
            Some("login anna\n"),
            "it has forgotten the question"
        );
        login.heard("201 done");
        assert_eq!(login.want(user("anna")), None);
        assert_eq!(login.want(None).as_deref(), Some("logout\n"));
        assert_eq!(login.want(user("berta")), None, "one after the other");
        assert_eq!(login.heard("202 done").as_deref(), Some("login berta\n"));
    }

    #[test]
    fn b19_answers_that_nobody_asked_for_change_nothing() {
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
            login.heard(line);
        }
        assert_eq!(
            *login.desktop(),
            Desktop {
                connected: true,
                ..Desktop::default()
            }
        );
        login.want(user("anna"));
        assert_eq!(login.heard("202 out"), None);
        assert_eq!(login.heard("201 in"), None);
        assert_eq!(login.desktop().user, user("anna"));
    }

    #[test]
    fn b25_an_agent_that_goes_is_not_connected_and_a_reboot_logs_everybody_out() {
        let mut login = Login::new(user("anna"));
        login.heard("220");
        login.heard("201");
        login.closed();
        assert_eq!(
            (login.desktop().connected, login.desktop().user.clone()),
            (false, user("anna"))
        );
        assert_eq!(login.heard("220"), None, "the same desktop");
        login.reset();
        assert_eq!(*login.desktop(), Desktop::default());
        assert_eq!(login.heard("220").as_deref(), Some("login anna\n"));
    }

    #[test]
    fn a_failure_is_told_and_tried_again_later_if_that_may_help() {
        let mut login = Login::new(user("root"));
        login.heard("220");
        assert_eq!(login.heard("504 not root"), None);
        assert!(
            login
                .desktop()
                .problem
                .as_ref()
                .unwrap()
                .contains("504 not root")
        );
        assert!(!login.waits_to_try_again());
        assert_eq!(login.want(user("root")), None);
        assert_eq!(login.want(user("anna")).as_deref(), Some("login anna\n"));
        assert_eq!(login.heard("451 gdm"), None);
        assert!(login.waits_to_try_again());
        assert_eq!(login.try_again().as_deref(), Some("login anna\n"));
        login.heard("201");
        assert_eq!(login.desktop().problem, None);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_told_and_asked_again_for_something_else_or_when_it_comes_anew()
     {
        let mut login = Login::new(user("anna"));
        login.heard("220");
        assert!(login.waits_for_answer());
        login.late();
        assert!(!login.waits_for_answer() && !login.waits_to_try_again());
        let problem = login.desktop().problem.clone().unwrap();
        assert!(problem.contains("the login within 30 s"), "{problem}");
        assert_eq!(login.want(user("anna")), None);
        assert_eq!(login.want(user("berta")).as_deref(), Some("login berta\n"));
        assert_eq!(
            (login.desktop().problem.clone(), login.waits_for_answer()),
            (None, true)
        );
        // Late, but in its turn: that was not berta.
        assert_eq!(login.heard("201"), None);
        assert_eq!(login.desktop().user, user("anna"));
        login.heard("201");
        assert_eq!(login.desktop().user, user("berta"));
        login.want(None);
        login.late();
        assert!(
            login
                .desktop()
                .problem
                .as_ref()
                .unwrap()
                .contains("the logout")
        );
        assert_eq!(login.heard("220").as_deref(), Some("logout\n"));
        login.late();
        login.heard("202");
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
                login.heard(line);
                confirmed |= line == "201";
            }
            prop_assert!(login.desktop().user.is_none() || confirmed);
        }
    }
}
