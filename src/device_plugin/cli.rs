//! The command line: `vm-operator device-plugin`.

use crate::device_plugin::host::{Device, Host};
use crate::device_plugin::offer::{Offer, offers};
use crate::device_plugin::plugin::{Stopped, Timing, serve};
use crate::telemetry::logs;
use clap::ValueEnum;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

/// The kernel's list of devices such as `/dev/kvm`, which is the same in each container.
const SYS_MISC: &str = "/sys/class/misc";

/// The options.
#[derive(clap::Args, Debug)]
pub struct DevicePlugin {
    /// Device that the plugin offers to pods; repeat the option for each device [default: kvm and tun]
    #[arg(long = "device", value_name = "NAME")]
    devices: Vec<Device>,
    /// Directory with the kubelet's sockets for device plugins
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    plugin_dir: PathBuf,
    /// Directory in which the node's /dev is mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev")]
    host_dev: PathBuf,
    /// Directory on the node for the device files that the plugin creates for pods; mount the directory at the same path in
    /// the plugin's container
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "/run/vm-device-plugin"
    )]
    device_dir: PathBuf,
    /// Log level: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    log_level: LevelFilter,
    /// Log format: plain text, or one JSON object per line
    #[arg(long, value_enum, default_value = "text")]
    log_format: logs::Format,
}

/// An error with which the plugin exits.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The directory of the kubelet cannot be read.
    #[error(
        "cannot use {0} as the kubelet's directory for device plugins: {1}; name the directory with --plugin-dir, and mount \
         the directory if the device plugin runs in a container"
    )]
    Directory(PathBuf, std::io::Error),
    /// The plugin has to register again.
    #[error("{0}")]
    Stopped(#[from] Stopped),
    /// No runtime or no signals.
    #[error("cannot start the device plugin: {0}")]
    System(#[from] std::io::Error),
}

impl DevicePlugin {
    fn offers(&self) -> Vec<Offer> {
        if self.devices.is_empty() {
            offers(Device::value_variants())
        } else {
            offers(&self.devices)
        }
    }

    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// The plugin cannot start, or has to start again.
    pub fn run(self) -> Result<(), Fatal> {
        let offers = self.offers();
        let _level = logs::begin(self.log_format, self.log_level);
        std::fs::read_dir(&self.plugin_dir)
            .map_err(|error| Fatal::Directory(self.plugin_dir.clone(), error))?;
        let host = Host {
            dev: self.host_dev,
            sys_misc: SYS_MISC.into(),
            own: self.device_dir,
        };
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async {
                let mut terminate = signal(SignalKind::terminate())?;
                let mut interrupt = signal(SignalKind::interrupt())?;
                tokio::select! {
                    stopped = serve(&offers, &host, &self.plugin_dir, Timing::default()) => return Err(stopped.into()),
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tracing::info!("stopping");
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

    fn parse(options: &str) -> Result<DevicePlugin, String> {
        let parsed = Cli::try_parse_from(["x"].into_iter().chain(options.split_whitespace()));
        parsed.map(|cli| cli.plugin).map_err(|e| e.to_string())
    }

    /// The resources, each with "without device", or the error.
    fn offered(options: &str) -> Result<Vec<(&'static str, bool)>, String> {
        let offers = parse(options)?.offers();
        Ok(offers
            .iter()
            .map(|offer| (offer.resource, offer.without_device))
            .collect())
    }

    const KVM: &str = "vmoperator.jdrupes.org/kvm";
    const KVM_IF_PRESENT: &str = "vmoperator.jdrupes.org/kvm-if-present";
    const TUN: &str = "vmoperator.jdrupes.org/tun";

    #[test]
    fn every_device_is_offered_once_unless_some_are_named() {
        let all = vec![(KVM, false), (KVM_IF_PRESENT, true), (TUN, false)];
        assert_eq!(offered(""), Ok(all.clone()));
        assert_eq!(offered("--device tun --device kvm --device tun"), Ok(all));
        assert_eq!(offered("--device tun"), Ok(vec![(TUN, false)]));
    }

    #[test]
    fn invalid_option_is_rejected_with_the_allowed_values() {
        for (options, allowed) in [
            ("--device disk", "[possible values: kvm, tun]"),
            ("--device vhost-net", "[possible values: kvm, tun]"),
        ] {
            let complaint = offered(options).unwrap_err();
            assert!(complaint.contains(allowed), "{options}: {complaint}");
        }
    }
}
