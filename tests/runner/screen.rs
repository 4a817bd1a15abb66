//! The screen by VNC: a client at the standard input and output of `vm-runner vnc`.

use crate::fixture::{Fixture, Vm};
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A VNC client, RFC 6143.
struct Client {
    child: Child,
    sending: Option<ChildStdin>,
    received: ChildStdout,
    /// Width and height of the screen.
    size: (u16, u16),
    name: String,
}

impl Client {
    /// Connects without a password. Other clients remain connected.
    fn connect(vm: &Vm<'_>) -> Self {
        let mut command = vm.exec_command(&["vnc"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut client = Self {
            sending: child.stdin.take(),
            received: child.stdout.take().unwrap(),
            child,
            size: (0, 0),
            name: String::new(),
        };
        let version: [u8; 12] = client.receive();
        assert_eq!(&version, b"RFB 003.008\n");
        client.send(&version);
        let security: [u8; 2] = client.receive();
        assert_eq!(security, [1, 1], "one type, which is None");
        client.send(&[1]);
        assert_eq!(client.receive(), [0; 4], "no password");
        let shared = 1;
        client.send(&[shared]);
        let [w1, w2, h1, h2] = client.receive();
        client.size = (u16::from_be_bytes([w1, w2]), u16::from_be_bytes([h1, h2]));
        let _format: [u8; 16] = client.receive();
        let length = u32::from_be_bytes(client.receive());
        let mut name = vec![0; length as usize];
        client.received.read_exact(&mut name).unwrap();
        client.name = String::from_utf8(name).unwrap();
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        let sending = self.sending.as_mut().unwrap();
        sending.write_all(bytes).unwrap();
        sending.flush().unwrap();
    }

    fn receive<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.received.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The pixels of the whole screen: 4 bytes each, in the format of the server.
    fn picture(&mut self) -> Vec<u8> {
        let (w, h) = self.size;
        let request = [&[3, 0, 0, 0, 0, 0][..], &w.to_be_bytes(), &h.to_be_bytes()];
        self.send(&request.concat());
        let [message, _, n1, n2] = self.receive();
        assert_eq!(message, 0, "an update of the picture");
        let mut picture = Vec::new();
        for _ in 0..u16::from_be_bytes([n1, n2]) {
            let rectangle: [u8; 12] = self.receive();
            let side =
                |at: usize| usize::from(u16::from_be_bytes([rectangle[at], rectangle[at + 1]]));
            assert_eq!(rectangle[8..], [0; 4], "raw pixels");
            let mut pixels = vec![0; side(4) * side(6) * 4];
            self.received.read_exact(&mut pixels).unwrap();
            picture.extend(pixels);
        }
        picture
    }
}

#[test]
fn screen_is_shown_to_vnc_clients_without_a_port_and_a_password() {
    let fixture = Fixture::new();
    let runtime = &json!({"namespace": "ns"});
    fixture.configure(runtime, &json!({"drives": [], "powerdownTimeout": 0}));
    let vm = fixture.start(None);
    vm.reaches("Booting");
    let mut first = Client::connect(&vm);
    let (w, h) = first.size;
    assert!(
        w >= 320 && h >= 200 && first.name.contains("test-vm"),
        "{w} {h} {}",
        first.name
    );
    assert!(!first.picture().is_empty());
    let mut second = Client::connect(&vm);
    assert!(!second.picture().is_empty() && !first.picture().is_empty());

    // The firmware finds no disk and shows it.
    vm.until("the text of the firmware", || {
        second.picture().iter().any(|byte| *byte != 0).then_some(())
    });

    // The end of the input ends the connection, and that of the VM.
    drop(second.sending.take());
    assert!(second.child.wait().unwrap().success());
    assert!(!first.picture().is_empty());
    vm.signal("-TERM");
    assert!(first.child.wait().unwrap().success());
}
