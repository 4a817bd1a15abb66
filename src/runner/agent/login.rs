//! (pure) Who should be logged in at the guest's desktop, and what its agent says about it.
//!
//! The agent greets with `220` when it starts, takes `login <user>` and `logout`, answers `201` and `202` when that is done,
//! anything from `400` on when it is not, and says `1xx` in between. What always holds: one request is under way at a time;
//! nobody is logged out whom we have not logged in, and nothing is asked twice (B19); a login is one when the agent has
//! said so, and no earlier (B18).

use std::time::Duration;

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
}

/// A conversation with the agent.
#[derive(Clone, Debug, Default)]
pub struct Login {
    desktop: Desktop,
    wanted: Option<String>,
    pending: Option<Request>,
    /// The request that has failed, and is not made again by itself.
    failed: Option<Request>,
    /// Whether it may be made again later.
    again: bool,
}

impl Login {
    /// Nothing is known yet, and that user is wanted.
    pub fn new(wanted: Option<String>) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// What is known.
    pub fn desktop(&self) -> &Desktop {
        &self.desktop
    }

    /// Whether a failed request should be tried again after [`TRY_AGAIN`].
    pub fn waits_to_try_again(&self) -> bool {
        self.again && self.desktop.connected && self.pending.is_none()
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
        self.pending = None;
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
                self.desktop = Desktop { connected: true, problem: None, user: self.desktop.user.take() };
                (self.pending, self.failed, self.again) = (None, None, false);
            }
            Some(240) => self.closed(),
            Some(201) => match self.pending.take() {
                Some(Request::Login(user)) => self.desktop.user = Some(user),
                other => self.unexpected(line, other),
            },
            Some(202) => match self.pending.take() {
                Some(Request::Logout) => self.desktop.user = None,
                other => self.unexpected(line, other),
            },
            Some(400..) => self.refused(line),
            Some(100..400) => {}
            _ => tracing::debug!(line, "the desktop's agent says what nobody understands"),
        }
        self.next()
    }

    fn unexpected(&mut self, line: &str, pending: Option<Request>) {
        tracing::debug!(line, "nobody has asked the desktop's agent for that");
        self.pending = pending;
    }

    fn refused(&mut self, line: &str) {
        let Some(request) = self.pending.take() else { return self.unexpected(line, None) };
        let what = if request == Request::Logout { "the logout" } else { "the login" };
        self.desktop.problem = Some(format!("{what} has failed in the guest: {}", line.trim()));
        // As in other protocols of lines: 4xx is for now, 5xx for good.
        self.again = line.starts_with('4');
        self.failed = Some(request);
    }

    fn next(&mut self) -> Option<String> {
        if !self.desktop.connected || self.pending.is_some() {
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
        self.pending = Some(request);
        Some(line)
    }
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
        assert_eq!(login.heard("220 Hello again").as_deref(), Some("login anna\n"), "it has forgotten the question");
        login.heard("201 done");
        assert_eq!(login.want(user("anna")), None);
        assert_eq!(login.want(None).as_deref(), Some("logout\n"));
        assert_eq!(login.want(user("berta")), None, "one after the other");
        assert_eq!(login.heard("202 done").as_deref(), Some("login berta\n"));
    }

    #[test]
    fn b19_answers_that_nobody_asked_for_change_nothing() {
        let mut login = Login::new(None);
        for line in ["201 done", "451 failed", "202 done", "", "x", "ä", "999", "220"] {
            login.heard(line);
        }
        assert_eq!(*login.desktop(), Desktop { connected: true, ..Desktop::default() });
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
        assert_eq!((login.desktop().connected, login.desktop().user.clone()), (false, user("anna")));
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
        assert!(login.desktop().problem.as_ref().unwrap().contains("504 not root"));
        assert!(!login.waits_to_try_again());
        assert_eq!(login.want(user("root")), None);
        assert_eq!(login.want(user("anna")).as_deref(), Some("login anna\n"));
        assert_eq!(login.heard("451 gdm"), None);
        assert!(login.waits_to_try_again());
        assert_eq!(login.try_again().as_deref(), Some("login anna\n"));
        login.heard("201");
        assert_eq!(login.desktop().problem, None);
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
