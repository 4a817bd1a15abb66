//! (pure) Devices other than drives: serial line, agents' channels, input, graphics, sound,
//! networks, SPICE.

use crate::api::runner::config::{ForwardConfig, NetworkConfig, NetworkType, Protocol};
use crate::runner::machine::{Certificate, Machine, Screen, StandardDevice};
use crate::runner::qemu::args::{Args, escape};
use crate::runner::qemu::{Descriptors, listener, tap_descriptor};
use serde_json::{Value, json};

/// Video memory of one output, in bytes.
const SCREEN_MEMORY_SIZE: u64 = 256 << 20;

/// Id of the guest agent's channel.
pub const GUEST_AGENT_CHANNEL: &str = "channel0";
/// Id of the desktop agent's channel.
pub const VMOP_AGENT_CHANNEL: &str = "channel1";
/// QEMU's name for the guest agent's socket.
const GUEST_AGENT_SOCKET: &str = "guest-agent-socket";
/// QEMU's name for the desktop agent's socket.
const VMOP_AGENT_SOCKET: &str = "vmop-agent-socket";

/// The serial line. The runner's console is at its other end.
pub fn serial(args: &mut Args, descriptors: Descriptors) {
    args.plain(
        "-chardev",
        &format!("socket,id=serial0-socket,fd={}", descriptors.serial),
    );
    args.device(
        &json!({"driver": "isa-serial", "chardev": "serial0-socket", "id": "serial0", "index": 0}),
    );
}

/// Channels between agents in the guest and the runner.
pub fn agents(args: &mut Args, machine: &Machine, descriptors: Descriptors) {
    let bus = json!({"driver": "virtio-serial-pci", "id": "virtio-serial0"});
    args.pci_device(machine.pci_slots.standard(StandardDevice::Serial), bus);
    let channels = [
        (
            GUEST_AGENT_CHANNEL,
            "org.qemu.guest_agent.0",
            GUEST_AGENT_SOCKET,
            descriptors.guest_agent,
        ),
        (
            VMOP_AGENT_CHANNEL,
            "org.jdrupes.vmop_agent.0",
            VMOP_AGENT_SOCKET,
            descriptors.vmop_agent,
        ),
    ];
    for (id, name, chardev, descriptor) in channels {
        args.plain("-chardev", &listener(chardev, descriptor));
        args.device(
            &json!({"driver": "virtserialport", "id": id, "name": name, "chardev": chardev}),
        );
    }
}

/// USB with a tablet, and a random number generator.
pub fn input_and_entropy(args: &mut Args, machine: &Machine) {
    let usb = json!({"driver": "qemu-xhci", "p2": 15, "p3": 15, "id": "usb"});
    args.pci_device(machine.pci_slots.standard(StandardDevice::Usb), usb);
    args.device(&json!({"driver": "usb-tablet"}));
    args.json(
        "-object",
        &json!({"qom-type": "rng-random", "id": "objrng0", "filename": "/dev/urandom"}),
    );
    let entropy = json!({"driver": "virtio-rng-pci", "rng": "objrng0", "id": "rng0"});
    args.pci_device(machine.pci_slots.standard(StandardDevice::Entropy), entropy);
}

pub fn screen_and_sound(args: &mut Args, machine: &Machine) {
    args.pci_device(
        machine.pci_slots.standard(StandardDevice::Screen),
        screen(machine),
    );
    let sound = json!({"driver": "ich9-intel-hda", "id": "sound0"});
    args.pci_device(machine.pci_slots.standard(StandardDevice::Sound), sound);
}

fn screen(machine: &Machine) -> Value {
    let outputs = machine.spec.vm.display.outputs;
    match machine.screen {
        Screen::Vga => json!({"driver": "VGA", "id": "video0"}),
        Screen::VirtioVga => json!({
            "driver": "virtio-vga", "id": "video0", "max_outputs": outputs,
            "max_hostmem": u64::from(outputs) * SCREEN_MEMORY_SIZE,
        }),
    }
}

pub fn networks(args: &mut Args, machine: &Machine) {
    let networks = machine
        .spec
        .vm
        .network
        .iter()
        .zip(&machine.macs)
        .zip(&machine.pci_slots.networks);
    for (n, ((network, mac), slot)) in networks.enumerate() {
        let id = format!("hostnet{n}");
        args.json("-netdev", &backend(&id, n, network));
        let device = nic(network, &id, mac);
        if is_on_pci(&network.device) {
            args.pci_device(*slot, device);
        } else {
            args.device(&device);
        }
    }
}

/// QEMU's names of its virtio network cards.
const VIRTIO_MODELS: [&str; 4] = [
    "virtio-net",
    "virtio-net-pci",
    "virtio-net-pci-transitional",
    "virtio-net-pci-non-transitional",
];
/// Descriptors in each queue: the default of QEMU 10.0 and of the Java VM-Operator. The value is
/// explicit, so that a new default does not change the guest's hardware.
const QUEUE_SIZE: u16 = 256;
/// Interrupts of the card: one for each of the two queues, the control queue, and the
/// configuration.
const INTERRUPT_VECTORS: u16 = 4;

fn nic(network: &NetworkConfig, id: &str, mac: &str) -> Value {
    let mut device = json!({"driver": network.device, "netdev": id, "mac": mac});
    if let Some(fields) = device
        .as_object_mut()
        .filter(|_| VIRTIO_MODELS.contains(&network.device.as_str()))
    {
        let own = json!({"mq": false, "rx_queue_size": QUEUE_SIZE, "tx_queue_size": QUEUE_SIZE, "vectors": INTERRUPT_VECTORS});
        fields.extend(own.as_object().cloned().unwrap_or_default());
    }
    device
}

/// Whether QEMU's network card is a PCI device.
fn is_on_pci(model: &str) -> bool {
    !model.starts_with("usb-") && !model.contains("isa")
}

fn backend(id: &str, n: usize, network: &NetworkConfig) -> Value {
    match network.type_ {
        NetworkType::User => user_backend(id, network),
        // The runner has created the tap and attached it to its bridge.
        NetworkType::Tap => {
            json!({"type": "tap", "id": id, "fd": tap_descriptor(n).to_string(), "vhost": false})
        }
    }
}

fn user_backend(id: &str, network: &NetworkConfig) -> Value {
    let mut backend = json!({"type": "user", "id": id});
    if let Some(fields) = backend.as_object_mut() {
        if let Some(net) = &network.net {
            fields.insert("net".to_owned(), json!(net));
        }
        let forward = |forward: &ForwardConfig| {
            let protocol = if forward.protocol == Protocol::Udp {
                "udp"
            } else {
                "tcp"
            };
            json!({"str": format!("{protocol}::{}-:{}", forward.port, forward.guest_port)})
        };
        if !network.forward.is_empty() {
            fields.insert(
                "hostfwd".to_owned(),
                network.forward.iter().map(forward).collect(),
            );
        }
    }
    backend
}

/// The SPICE server, its agent's channel, sound and USB redirection. The runner sends the password
/// over QMP. With a certificate, the only port is encrypted.
pub fn spice(args: &mut Args, machine: &Machine) {
    let Some(spice) = &machine.spec.vm.display.spice else {
        return;
    };
    let ticketing = if machine.ticketing { "off" } else { "on" };
    let secure = if machine.certificate.is_some() {
        "tls-"
    } else {
        ""
    };
    let mut options = format!(
        "{secure}port={},disable-ticketing={ticketing},seamless-migration=on",
        spice.port
    );
    if let Some(Certificate {
        chain,
        key,
        authority,
    }) = &machine.certificate
    {
        for (option, path) in [("key", key), ("cert", chain), ("cacert", authority)] {
            options.push_str(&format!(
                ",x509-{option}-file={}",
                escape(&path.display().to_string())
            ));
        }
    }
    if let Some(address) = &spice.address {
        options.push_str(&format!(",addr={address}"));
    }
    if let Some(video) = spice.streaming_video {
        options.push_str(&format!(",streaming-video={}", video.as_str()));
    }
    args.plain("-spice", &options);
    args.plain("-chardev", "spicevmc,id=vdagentdev,name=vdagent");
    args.device(
        &json!({"driver": "virtserialport", "name": "com.redhat.spice.0", "chardev": "vdagentdev"}),
    );
    args.json("-audiodev", &json!({"driver": "spice", "id": "audio1"}));
    args.device(&json!({"driver": "hda-duplex", "audiodev": "audio1"}));
    for n in 0..spice.usb_redirects {
        args.plain(
            "-chardev",
            &format!("spicevmc,id=charredir{n},name=usbredir"),
        );
        args.device(&json!({"driver": "usb-redir", "id": format!("redir{n}"), "chardev": format!("charredir{n}")}));
    }
}
