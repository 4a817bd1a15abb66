//! Secure Boot with a signed guest: shim, GRUB and the kernel (tests/cluster/guests/secure).

use crate::fixture::Fixture;
use serde_json::json;
use std::fs;
use std::path::Path;

/// The guest's Secure Boot state: 1, 0, or an empty text if it has no Secure Boot.
const STATE: &str = "sh modprobe efivarfs; mount -t efivarfs none /sys/firmware/efi/efivars; cd /sys/firmware/efi/efivars; \
    echo state-$(tail -c 1 SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null | od -An -tu1 | tr -d ' ')-";

fn boots(firmware: &str, unsigned_kernel: &str, state: &str) {
    boots_on(
        &Fixture::with_image("secure"),
        firmware,
        unsigned_kernel,
        state,
    );
}

fn boots_on(fixture: &Fixture, firmware: &str, unsigned_kernel: &str, state: &str) {
    fixture.configure(&json!({}), &json!({"firmware": firmware}));
    let vm = fixture.start(None);
    let mut console = vm.console();
    console.wait(&format!("SECURE unsigned kernel {unsigned_kernel}"));
    console.wait("TINY boot=1");
    console.type_line(STATE);
    console.wait(&format!("TINY sh state-{state}-"));
    console.type_line("sh dmesg | grep -i -c 'secure boot enabled'");
    console.wait(if state == "1" {
        "TINY sh 1"
    } else {
        "TINY sh 0"
    });
}

#[test]
fn a_signed_guest_boots_with_secure_boot_and_its_unsigned_kernel_does_not() {
    boots("secure", "refused", "1");
}

#[test]
fn secure_boot_is_the_same_by_the_name_of_the_larger_firmware() {
    boots("secure-4m", "refused", "1");
}

#[test]
fn disabled_secure_boot_is_visible_to_the_guest_and_an_unsigned_kernel_boots() {
    boots("uefi", "taken", "");
}

/// Variables without enrolled keys, as in the image of the Java VM-Operator.
const WITHOUT_KEYS: &str = ".cache/images/runner-root/usr/share/OVMF/OVMF_VARS_4M.fd";

#[test]
fn variables_without_keys_that_a_vm_has_brought_along_stay_and_enforce_nothing() {
    let fixture = Fixture::with_image("secure");
    let brought = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(WITHOUT_KEYS)).unwrap();
    fs::write(fixture.path("data/fw-vars.fd"), &brought).unwrap();
    fixture.own("data/fw-vars.fd");
    boots_on(&fixture, "secure", "taken", "0");
    // The same variables with the firmware's changes, without the Microsoft keys of this image.
    let now = fs::read(fixture.path("data/fw-vars.fd")).unwrap();
    let has = |text: &str| {
        let text: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        now.windows(text.len()).any(|bytes| bytes == text)
    };
    assert_eq!(
        (now.len(), has("PK\0"), has("BootOrder")),
        (brought.len(), false, true)
    );
    assert_eq!(
        fs::read_dir(fixture.path("data"))
            .unwrap()
            .filter(|file| name(file).starts_with("fw-vars"))
            .count(),
        1
    );
}

fn name(file: &std::io::Result<fs::DirEntry>) -> String {
    file.as_ref()
        .unwrap()
        .file_name()
        .to_string_lossy()
        .into_owned()
}
