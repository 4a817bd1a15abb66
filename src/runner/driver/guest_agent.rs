//! (io) Requests to the guest agent. Each is a task that sends its results to the driver.

use crate::runner::driver::{Driver, TaskResult};
use crate::runner::state::Event;

impl Driver {
    pub(super) fn ask_agent(&mut self) {
        let (agent, task_results) = (self.agent.clone(), self.task_results.clone());
        let present_cpus = self.present_cpus.subscribe();
        self.start_agent_request(async move {
            let send = |result| drop(task_results.send(result));
            match agent.osinfo().await {
                Ok(osinfo) => {
                    send(TaskResult::Osinfo(osinfo));
                    tokio::join!(
                        agent.follow_addresses(|it| send(TaskResult::Addresses(it))),
                        agent.follow_cpus(present_cpus, |it| send(TaskResult::GuestCpus(it))),
                    );
                }
                Err(error) => {
                    tracing::info!(%error, "the guest agent (qemu-guest-agent) does not answer yet");
                    let _ = task_results.send(TaskResult::Event(Event::AgentSilent));
                }
            }
        });
    }

    pub(super) fn shut_down_by_agent(&mut self) {
        let (agent, task_results) = (self.agent.clone(), self.task_results.clone());
        self.start_agent_request(async move {
            if let Err(error) = agent.shutdown().await {
                tracing::warn!(%error, "the guest agent has rejected the shutdown of the guest; the runner presses the VM's \
                    power button instead");
                let _ = task_results.send(TaskResult::Event(Event::AgentSilent));
            }
        });
    }

    /// Starts a request to the guest agent. It replaces the previous one, because its answer is not needed any more.
    fn start_agent_request(&mut self, agent_request: impl Future<Output = ()> + Send + 'static) {
        if let Some(before) = self.agent_request.replace(tokio::spawn(agent_request)) {
            before.abort();
        }
    }

    /// Discards the agent's answers. They would become stale, because a disconnected agent reports
    /// no change.
    pub(super) fn forget_agent(&mut self) {
        if let Some(agent_request) = self.agent_request.take() {
            agent_request.abort();
        }
        self.observed.osinfo = None;
        self.observed.guest_cpus = None;
        self.observed.addresses.clear();
    }
}
