//! Secure Boot, as a guest sees it that is signed for it: shim, GRUB and the kernel (tests/cluster/guests/secure).

use crate::rig::Rig;
use serde_json::json;

/// What the firmware tells the guest: 1, 0, or nothing where it has no Secure Boot at all.
const STATE: &str = "sh modprobe efivarfs; mount -t efivarfs none /sys/firmware/efi/efivars; cd /sys/firmware/efi/efivars; \
    echo state-$(tail -c 1 SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null | od -An -tu1 | tr -d ' ')-";

fn boots(firmware: &str, unsigned_kernel: &str, state: &str) {
    let rig = Rig::with_image("secure");
    rig.configure(&json!({}), &json!({"firmware": firmware}));
    let vm = rig.start(None);
    let mut console = vm.console();
    console.wait(&format!("SECURE unsigned kernel {unsigned_kernel}"));
    console.wait("TINY boot=1");
    console.type_line(STATE);
    console.wait(&format!("TINY sh state-{state}-"));
    console.type_line("sh dmesg | grep -i -c 'secure boot enabled'");
    console.wait(if state == "1" { "TINY sh 1" } else { "TINY sh 0" });
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
fn without_secure_boot_the_guest_is_told_so_and_the_unsigned_kernel_boots() {
    boots("uefi", "taken", "");
}
