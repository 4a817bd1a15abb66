//! (io) Keeps one resource registered with the kubelet, whatever becomes of device, kubelet and other plugins.
//!
//! Looks once a second at three files by `stat`: the device, our socket, the kubelet's. That costs microseconds, and one
//! way of noticing works for everything that changes, also below `/dev/net`, which may not be there yet.

use crate::device_plugin::device::Offer;
use crate::device_plugin::grpc::call;
use crate::device_plugin::protocol::{
    Empty, KUBELET_SOCKET, Options, REGISTER, RegisterRequest, VERSION,
};
use crate::device_plugin::service::Service;
use crate::device_plugin::socket::{Mark, Owner, Socket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pause between looks, and the first one between attempts to register. Default: 1 s.
    pub look: Duration,
    /// Longest pause between attempts to register. Default: 16 s.
    pub longest: Duration,
    /// The kubelet gives itself 10 s to connect to the plugin before it answers. Default: 15 s.
    pub registering: Duration,
    /// When a stream ends, the kubelet puts the resource away; a registration meanwhile would be put away too.
    /// Default: 1 s.
    pub puts_away: Duration,
    /// The kubelet begins its stream right after a registration. Default: 10 s.
    pub stream_begins: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        let (longest, registering, stream_begins) = (second * 16, second * 15, second * 10);
        Self {
            look: second,
            longest,
            registering,
            puts_away: second,
            stream_begins,
        }
    }
}

/// Looks between questions whether the other plugin, which has taken our name, is alive.
const ALIVE: u32 = 10;

/// One resource.
pub struct Keeper {
    offer: Offer,
    dir: PathBuf,
    pace: Pace,
    service: Service,
    socket: Option<Socket>,
    registered: Option<Registered>,
    /// When to try again, and the pause after that.
    again: Option<(Instant, Duration)>,
    /// Looks since another plugin has our name.
    another_since: u32,
    /// What was complained about last.
    complaint: Option<String>,
}

/// The kubelet knows us.
struct Registered {
    with: Mark,
    at: Instant,
}

/// Keeps the resource registered until it is dropped, and then leaves no socket.
pub async fn keep(offer: Offer, dir: PathBuf, pace: Pace) {
    let mut keeper = Keeper::new(offer, dir, pace);
    let mut ticks = interval(pace.look);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        keeper.look().await;
    }
}

impl Keeper {
    fn new(offer: Offer, dir: PathBuf, pace: Pace) -> Self {
        let service = Service::new(offer.clone());
        let state = if offer.is_there() { "there" } else { "missing" };
        tracing::info!(
            resource = offer.device.resource(),
            slots = offer.slots,
            device = state,
            "offering"
        );
        let (socket, registered, again, another_since, complaint) = (None, None, None, 0, None);
        Self {
            offer,
            dir,
            pace,
            service,
            socket,
            registered,
            again,
            another_since,
            complaint,
        }
    }

    async fn look(&mut self) {
        self.service.look();
        if !self.has_socket().await {
            return;
        }
        let kubelet = self.dir.join(KUBELET_SOCKET);
        let Some(mark) = Mark::of(&kubelet) else {
            self.registered = None;
            self.complain(format!(
                "{} is not there; waiting for the kubelet",
                kubelet.display()
            ));
            return;
        };
        if self.is_registered(mark) {
            return;
        }
        if self
            .registered
            .take()
            .is_some_and(|registered| registered.with != mark)
        {
            // Another kubelet: what the last one has refused need not be refused by it.
            self.again = None;
        }
        if self.again.is_none_or(|(at, _)| at <= Instant::now()) {
            self.register(&kubelet, mark).await;
        }
    }

    /// Whether the kubelet is to be told that we answer.
    async fn has_socket(&mut self) -> bool {
        let path = self.dir.join(socket_name(&self.offer));
        match self.socket.as_ref().map(|socket| (socket.owner(), socket)) {
            Some((Owner::Us, _)) => return true,
            Some((Owner::Another, socket)) => {
                let first = self.another_since == 0;
                self.another_since += 1;
                if first {
                    let resource = self.offer.device.resource();
                    tracing::info!(resource, "another plugin has taken over; standing by");
                }
                if !self.another_since.is_multiple_of(ALIVE) || socket.is_answered().await {
                    return false;
                }
            }
            Some((Owner::Nobody, _)) | None => {}
        }
        self.another_since = 0;
        (self.socket, self.registered) = (None, None);
        match Socket::bind(&path, self.service.clone()) {
            Ok(socket) => self.socket = Some(socket),
            Err(error) => self.complain(format!(
                "{}: {error}; is this the kubelet's directory?",
                path.display()
            )),
        }
        self.socket.is_some()
    }

    fn is_registered(&self, kubelet: Mark) -> bool {
        let Some(registered) = self
            .registered
            .as_ref()
            .filter(|registered| registered.with == kubelet)
        else {
            return false;
        };
        let streams = self.service.streams();
        if streams.live() > 0 {
            return true;
        }
        match streams.ended().filter(|ended| *ended > registered.at) {
            Some(ended) => ended.elapsed() < self.pace.puts_away,
            None => registered.at.elapsed() < self.pace.stream_begins,
        }
    }

    async fn register(&mut self, kubelet: &Path, mark: Mark) {
        let resource = self.offer.device.resource();
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: socket_name(&self.offer),
            resource_name: resource.to_owned(),
            options: Some(Options::default()),
        };
        let at = Instant::now();
        let answer = timeout(
            self.pace.registering,
            call::<_, Empty>(kubelet, REGISTER, request),
        )
        .await;
        let refusal = match answer {
            Ok(Ok(Empty {})) => {
                tracing::info!(resource, "registered");
                (self.registered, self.again, self.complaint) =
                    (Some(Registered { with: mark, at }), None, None);
                return;
            }
            Ok(Err(status)) => format!("{}: {}", status.code(), status.message()),
            Err(_) => format!("no answer within {} s", self.pace.registering.as_secs_f32()),
        };
        let pause = self.again.map_or(self.pace.look, |(_, pause)| pause);
        self.again = Some((Instant::now() + pause, (pause * 2).min(self.pace.longest)));
        self.complain(format!(
            "the kubelet does not take the registration: {refusal}"
        ));
    }

    /// Once, however long it lasts.
    fn complain(&mut self, complaint: String) {
        if self.complaint.as_ref() != Some(&complaint) {
            tracing::warn!(resource = self.offer.device.resource(), "{complaint}");
            self.complaint = Some(complaint);
        }
    }
}

/// The same in each plugin for the resource.
fn socket_name(offer: &Offer) -> String {
    format!("vmoperator-{}.sock", offer.device.name())
}
