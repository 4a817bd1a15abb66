//! (pure) Which screen a machine has: the reference's, but where that can stop QEMU for good.
//!
//! Emulated, QEMU (10.0) comes to a standstill about once in ten boots when the guest's driver resets a virtio-vga: the guest's
//! CPU waits for the main loop, which is drawing what the firmware left and waits for that CPU. So an emulated machine has a
//! plain VGA, and keeps that: a guest whose first start was emulated finds the same screen when KVM runs it one day. One
//! that began with a virtio-vga gets it back as soon as it is not emulated any more.

use crate::runner::machine::Acceleration;
use crate::runner::machine::record::{Record, Screen};

/// The machine's screen. What it has at its first start is recorded; a machine of the reference had the reference's. One that
/// has started before (`is_old`) without that being recorded had what its acceleration gave it each time, and goes on so while
/// it is emulated for want of KVM: that may be this node's alone.
pub fn settle(
    record: &mut Record,
    is_old: bool,
    acceleration: &Acceleration,
    heads: u32,
    warnings: &mut Vec<String>,
) -> Screen {
    let emulated = acceleration.is_emulation();
    let for_now = is_old
        && record.screen.is_none()
        && matches!(acceleration, Acceleration::TcgForWantOfKvm(_));
    if for_now && heads == 1 {
        return Screen::Vga;
    }
    let first = if emulated && heads == 1 && !record.of_reference {
        Screen::Vga
    } else {
        Screen::VirtioVga
    };
    let own = *record.screen.get_or_insert(first);
    match own {
        _ if heads > 1 => Screen::VirtioVga,
        Screen::VirtioVga if emulated => {
            let why = "the guest is emulated, and finds a plain VGA for a screen instead of its virtio-vga, whose reset could \
                       stop it for good; with KVM it has its own again";
            warnings.push(why.to_owned());
            Screen::Vga
        }
        own => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::ConditionReason;
    use crate::runner::problem::Problem;

    /// The screens of a machine that is started with each of these in turn.
    fn screens_from(
        is_old: bool,
        of_reference: bool,
        starts: &[(Acceleration, u32)],
    ) -> Vec<(Screen, usize)> {
        let mut record = Record::new("q35", of_reference);
        let start = |(acceleration, heads): &(Acceleration, u32)| {
            let mut warnings = Vec::new();
            let screen = settle(&mut record, is_old, acceleration, *heads, &mut warnings);
            record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            (screen, warnings.len())
        };
        starts.iter().map(start).collect()
    }

    fn screens(of_reference: bool, starts: &[(Acceleration, u32)]) -> Vec<(Screen, usize)> {
        screens_from(false, of_reference, starts)
    }

    #[test]
    fn a_machine_from_before_screens_were_recorded_loses_its_own_to_no_node_without_kvm() {
        let for_want = || {
            (
                Acceleration::TcgForWantOfKvm(Problem::new(ConditionReason::KvmNotAvailable, "")),
                1,
            )
        };
        let (tcg, kvm) = (|| (Acceleration::Tcg, 1), || (Acceleration::Kvm, 1));
        use Screen::{Vga, VirtioVga};
        let old = |starts: &[(Acceleration, u32)]| screens_from(true, false, starts);
        assert_eq!(
            old(&[for_want(), kvm(), for_want()]),
            [(Vga, 0), (VirtioVga, 0), (Vga, 1)]
        );
        assert_eq!(old(&[tcg(), kvm()]), [(Vga, 0), (Vga, 0)]);
    }

    #[test]
    fn an_emulated_machine_has_no_screen_whose_reset_can_stop_it_for_good() {
        let for_want =
            || Acceleration::TcgForWantOfKvm(Problem::new(ConditionReason::KvmNotAvailable, ""));
        let (tcg, kvm) = (|| (Acceleration::Tcg, 1), || (Acceleration::Kvm, 1));
        use Screen::{Vga, VirtioVga};
        assert_eq!(screens(false, &[tcg()]), [(Vga, 0)]);
        assert_eq!(screens(false, &[(for_want(), 1)]), [(Vga, 0)]);
        // Only this one has more than one head.
        assert_eq!(screens(false, &[(Acceleration::Tcg, 2)]), [(VirtioVga, 0)]);
        assert_eq!(
            screens(false, &[(Acceleration::Unset, 1)]),
            [(VirtioVga, 0)]
        );
        assert_eq!(
            screens(true, &[tcg(), kvm()]),
            [(Vga, 1), (VirtioVga, 0)],
            "a machine of the reference"
        );
        // Another node, and back.
        assert_eq!(
            screens(false, &[tcg(), kvm(), tcg()]),
            [(Vga, 0), (Vga, 0), (Vga, 0)]
        );
        assert_eq!(
            screens(false, &[kvm(), (for_want(), 1), kvm()]),
            [(VirtioVga, 0), (Vga, 1), (VirtioVga, 0)]
        );
        // Another head, and back.
        assert_eq!(
            screens(false, &[tcg(), (Acceleration::Kvm, 2), kvm()]),
            [(Vga, 0), (VirtioVga, 0), (Vga, 0)]
        );
    }
}
