//! (io) What a change of the followed files makes of the running machine.

use crate::runner::agent::vmop;
use crate::runner::config::{self, RunnerConfig};
use crate::runner::driver::Driver;
use crate::runner::failure::Failure;
use crate::runner::resolved::{self, Spec};
use crate::runner::state::Event;
use crate::runner::status::ConfigProblem;
use crate::runner::watch::Files;

impl Driver {
    /// Takes a change of the followed files.
    pub(super) fn files_changed(&mut self, files: Files) {
        let password = match &files.password {
            Ok(password) => password.clone().filter(|_| self.ticketing),
            Err(failure) if self.spec.vm.display.spice.is_some() => {
                return self.reject(failure.message.clone());
            }
            Err(_) => None,
        };
        self.wish(|desired| desired.password = password.or(desired.password.take()));
        let display = self.display_waits_with(&files);
        match files
            .config
            .and_then(|text| self.checked(&text.unwrap_or_default()))
        {
            Ok((spec, config)) => self.reconfigure(spec, &config, display),
            Err(failure) => self.reject(failure.message),
        }
    }

    fn checked(&self, text: &str) -> Result<(Spec, RunnerConfig), Failure> {
        let checked = config::parse(text)
            .and_then(|parsed| Ok((Spec::from_config(&parsed.config)?, parsed.config)));
        checked.map_err(|invalid| config::in_file(&self.config, &invalid))
    }

    /// What QEMU can give no display that it has: whether it asks for a password, and its certificate.
    fn display_waits_with(&self, files: &Files) -> Option<&'static str> {
        self.spec.vm.display.spice.as_ref()?;
        if files.certificate != self.certificate {
            return Some(
                "the display's certificate has changed, and is used from the next start of the VM on",
            );
        }
        let is_open = matches!(files.password, Ok(Some(_))) && !self.ticketing;
        is_open
            .then_some("the display was started without a password; it asks for one from the next start of the VM on")
    }

    fn reject(&mut self, why: String) {
        tracing::error!("the configuration stays as it is: {why}");
        self.observed.config_problem = Some(ConfigProblem::Invalid(why));
        self.reporter.publish(&self.observed);
    }

    fn reconfigure(&mut self, spec: Spec, config: &RunnerConfig, display: Option<&'static str>) {
        resolved::remark(config)
            .iter()
            .for_each(|remark| tracing::warn!("{}: {remark}", self.config.display()));
        let mut live = spec.live.clone();
        if spec.cds.len() != self.spec.cds.len() {
            // Which image was meant for which drive, the next start knows.
            live.media = self.wishes.borrow().live.media.clone();
        }
        let of_machine = (!self.spec.differs_in_live_only(&spec))
            .then_some("the configuration has changed, and some of it takes effect at the next start of the VM");
        let others = config::other_keys(&self.configured, config);
        let others = (!others.is_empty()).then(|| {
            format!(
                "changed, and used from the next start of the VM on: {}",
                others.join(", ")
            )
        });
        let waiting: Vec<&str> = [of_machine, others.as_deref(), display]
            .into_iter()
            .flatten()
            .collect();
        let before = self.observed.config_problem.take();
        self.observed.config_problem = (!waiting.is_empty()).then(|| {
            let why = waiting.join("; ");
            tracing::warn!("{why}");
            ConfigProblem::RestartNeeded(why)
        });
        self.observed.login_wanted.clone_from(&live.logged_in_user);
        let _ = self
            .desktop
            .send(vmop::Input::Want(live.logged_in_user.clone()));
        let timeout = live.powerdown_timeout;
        let sizes = self.sizes(&spec);
        let wished = self.wishes.borrow().clone();
        self.wish(|desired| {
            desired.generation = config.generation;
            desired.take(live);
            desired.reset = config.reset_counter;
            desired.grow(&sizes);
        });
        // What is followed is told once it is done.
        if *self.wishes.borrow() == wished && self.observed.config_problem != before {
            self.reporter.publish(&self.observed);
        }
        self.step(Event::PowerdownTimeout(timeout));
    }
}
