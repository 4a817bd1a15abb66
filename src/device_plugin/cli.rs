//! The command line: `vm-operator device-plugin`.

use crate::device_plugin::device::{Device, Offer};
use crate::device_plugin::keep::{Pace, keep};
use crate::telemetry::logs;
use clap::ValueEnum;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tracing::level_filters::LevelFilter;

/// The options, as typed.
#[derive(clap::Args, Debug)]
pub struct DevicePlugin {
    /// A device to offer; may be given several times [default: all]
    #[arg(long = "device", value_name = "NAME")]
    devices: Vec<Device>,
    /// Number of containers of this node that can have each device at a time
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: u32,
    /// Offer the slots of kvm also on a node without /dev/kvm: VMs that request it are emulated there
    #[arg(long, value_name = "NAME")]
    offer_without_device: Vec<Device>,
    /// Directory in which the kubelet looks for plugins
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    plugin_dir: PathBuf,
    /// Directory in which the node's /dev is mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev")]
    host_dev: PathBuf,
    /// Level of the log: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    log_level: LevelFilter,
    /// Format of the log: lines for people, or a JSON object in each line
    #[arg(long, value_enum, default_value = "text")]
    log_format: logs::Format,
}

/// Why the plugin does not start.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// An option that the parser does not know to be wrong.
    #[error("--offer-without-device {0}: a VM cannot do without it; only kvm is allowed")]
    Needed(&'static str),
    /// Likewise.
    #[error("--offer-without-device {0}: it is not offered; give --device {0} too")]
    NotOffered(&'static str),
    /// There is no kubelet.
    #[error(
        "{0}: {1}; give the kubelet's directory of plugins by --plugin-dir, and mount it if this is a container"
    )]
    Directory(PathBuf, std::io::Error),
    /// The system refuses a runtime or signals.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl DevicePlugin {
    /// What is to be offered, each device once.
    ///
    /// # Errors
    /// If an option makes no sense.
    fn offers(&self) -> Result<Vec<Offer>, Fatal> {
        let mut devices = self.devices.clone();
        if devices.is_empty() {
            devices = Device::value_variants().to_vec();
        }
        devices.sort_unstable();
        devices.dedup();
        for device in &self.offer_without_device {
            if *device != Device::Kvm {
                return Err(Fatal::Needed(device.name()));
            }
            if !devices.contains(device) {
                return Err(Fatal::NotOffered(device.name()));
            }
        }
        let offer = |device| Offer {
            device,
            slots: self.slots,
            without_device: self.offer_without_device.contains(&device),
            host_dev: self.host_dev.clone(),
        };
        Ok(devices.into_iter().map(offer).collect())
    }

    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If it cannot start. What goes wrong later is in the log, and tried again.
    pub fn run(self) -> Result<(), Fatal> {
        let offers = self.offers()?;
        let _level = logs::begin(self.log_format, self.log_level);
        std::fs::read_dir(&self.plugin_dir)
            .map_err(|error| Fatal::Directory(self.plugin_dir.clone(), error))?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async {
                let mut terminate = signal(SignalKind::terminate())?;
                let mut interrupt = signal(SignalKind::interrupt())?;
                let mut resources = JoinSet::new();
                for offer in offers {
                    resources.spawn(keep(offer, self.plugin_dir.clone(), Pace::default()));
                }
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                tracing::info!("ending");
                resources.shutdown().await;
                Ok(())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        plugin: DevicePlugin,
    }

    /// What is offered (name, slots, without device), or the complaint.
    fn offers(options: &str) -> Result<Vec<(&'static str, u32, bool)>, String> {
        let cli = Cli::try_parse_from(["x"].into_iter().chain(options.split_whitespace()))
            .map_err(|e| e.to_string())?;
        let offers = cli.plugin.offers().map_err(|fatal| fatal.to_string())?;
        Ok(offers
            .iter()
            .map(|offer| (offer.device.name(), offer.slots, offer.without_device))
            .collect())
    }

    #[test]
    fn every_device_is_offered_once_unless_some_are_named() {
        assert_eq!(
            offers(""),
            Ok(vec![
                ("kvm", 1000, false),
                ("tun", 1000, false),
                ("vhost-net", 1000, false)
            ])
        );
        let some =
            offers("--device tun --device kvm --device tun --slots 5 --offer-without-device kvm");
        assert_eq!(some, Ok(vec![("kvm", 5, true), ("tun", 5, false)]));
    }

    #[test]
    fn an_option_that_is_wrong_is_answered_with_what_is_allowed() {
        for (options, allowed) in [
            ("--device disk", "[possible values: kvm, tun, vhost-net]"),
            ("--slots 0", "1..=10000"),
            ("--slots 10001", "1..=10000"),
            ("--offer-without-device vhost-net", "only kvm is allowed"),
            (
                "--device tun --offer-without-device kvm",
                "give --device kvm too",
            ),
        ] {
            let complaint = offers(options).unwrap_err();
            assert!(complaint.contains(allowed), "{options}: {complaint}");
        }
    }
}
