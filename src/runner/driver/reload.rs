//! (io) Applies changes of the watched files to the running VM.

use crate::runner::agent::vmop;
use crate::runner::config::{self, RunnerConfig};
use crate::runner::driver::Driver;
use crate::runner::failure::Failure;
use crate::runner::spec::{self, Spec};
use crate::runner::state::Event;
use crate::runner::status::ConfigProblem;
use crate::runner::watch::ConfigFiles;

impl Driver {
    pub(super) fn files_changed(&mut self, files: ConfigFiles) {
        self.console_keys.send_if_modified(|present| {
            let is_changed = *present != files.console_keys;
            present.clone_from(&files.console_keys);
            is_changed
        });
        let password = match &files.password {
            Ok(password) => password.clone().filter(|_| self.ticketing),
            Err(failure) if self.spec.vm.display.spice.is_some() => {
                return self.reject(failure.message.clone());
            }
            Err(_) => None,
        };
        self.change_desired(|desired| desired.password = password.or(desired.password.take()));
        let display = self.display_restart_reason(&files);
        match files
            .config
            .and_then(|text| self.parse_and_check(&text.unwrap_or_default()))
        {
            Ok((spec, config)) => self.reconfigure(spec, &config, display),
            Err(failure) => self.reject(failure.message),
        }
    }

    fn parse_and_check(&self, text: &str) -> Result<(Spec, RunnerConfig), Failure> {
        let checked = config::parse(text)
            .and_then(|parsed| Ok((Spec::from_config(&parsed.config)?, parsed.config)));
        checked.map_err(|invalid| config::failure_in_file(&self.config, &invalid))
    }

    /// A change of the display that needs a restart. QEMU cannot enable a password or replace the
    /// certificate of a running display.
    fn display_restart_reason(&self, files: &ConfigFiles) -> Option<&'static str> {
        self.spec.vm.display.spice.as_ref()?;
        if files.certificate != self.certificate {
            return Some(
                "the TLS certificate of the display has changed; restart the VM to use the new certificate",
            );
        }
        let is_open = matches!(files.password, Ok(Some(_))) && !self.ticketing;
        is_open
            .then_some("the display was started without a password, and now a password is configured; restart the VM to require the password")
    }

    fn reject(&mut self, why: String) {
        tracing::error!("the new configuration is invalid and is not applied: {why}");
        self.observed.config_problem = Some(ConfigProblem::Invalid(why));
        self.reporter.publish(&self.observed);
    }

    fn reconfigure(&mut self, spec: Spec, config: &RunnerConfig, display: Option<&'static str>) {
        spec::warning(config)
            .iter()
            .for_each(|warning| tracing::warn!("{}: {warning}", self.config.display()));
        let mut live = spec.live.clone();
        if spec.cds.len() != self.spec.cds.len() {
            // The images cannot be assigned to the drives of the running VM. The next start uses
            // the new drives.
            live.media = self.desired_state.borrow().live.media.clone();
        }
        let of_machine = (!self.spec.differs_in_live_only(&spec))
            .then_some("the configuration has changes that take effect after a restart of the VM");
        let others = config::changed_keys(&self.configured, config);
        let others = (!others.is_empty()).then(|| {
            format!(
                "restart the VM to apply the changes of these configuration keys: {}",
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
            .send(vmop::Input::SetUser(live.logged_in_user.clone()));
        let is_reassigned = self
            .assignment
            .send_if_modified(|assignment| assignment.change(config.assignment.as_ref()));
        let own = self.spice_assignment.as_deref();
        if is_reassigned && self.assignment.borrow().excludes(own) {
            tracing::info!(
                "the VM belongs to another user of the pool, so the runner closes the consoles of the previous user"
            );
            self.disconnect_spice();
        }
        let timeout = live.powerdown_timeout;
        let sizes = self.sizes(&spec);
        let wished = self.desired_state.borrow().clone();
        self.change_desired(|desired| {
            desired.generation = config.generation;
            desired.set_live(live);
            desired.reset = config.reset_counter;
            desired.set_disk_sizes(&sizes);
        });
        // A change of the desired state is reported after it is applied.
        if *self.desired_state.borrow() == wished && self.observed.config_problem != before {
            self.reporter.publish(&self.observed);
        }
        self.step(Event::PowerdownTimeout(timeout));
    }
}
