//! (pure) Selects the graphics device: virtio-vga as in the Java VM-Operator, except where it can
//! hang QEMU.
//!
//! Under emulation, QEMU 10.0 hangs in about one of ten boots when the guest's driver resets a
//! virtio-vga. The guest's CPU waits for the main loop, which draws the firmware's picture and
//! waits for that CPU. An emulated VM therefore gets a plain VGA. The choice of the first start is
//! recorded: a VM that is configured to start emulated keeps VGA even if KVM works later. A VM that
//! starts with virtio-vga gets it back when it is not emulated any more.

use crate::runner::machine::Acceleration;
use crate::runner::machine::record::{Record, Screen};

/// The graphics device. The choice of the first start is recorded, and VMs of the Java VM-Operator
/// have virtio-vga. An emulation for lack of KVM is never recorded, because it may apply to this
/// node or this start only.
pub fn select(
    record: &mut Record,
    acceleration: &Acceleration,
    heads: u32,
    warnings: &mut Vec<String>,
) -> Screen {
    let emulated = acceleration.is_emulation();
    let is_fallback = matches!(acceleration, Acceleration::TcgFallback(_));
    if is_fallback && record.screen.is_none() && !record.is_legacy {
        return if heads == 1 {
            Screen::Vga
        } else {
            Screen::VirtioVga
        };
    }
    let first = if emulated && heads == 1 && !record.is_legacy {
        Screen::Vga
    } else {
        Screen::VirtioVga
    };
    let own = *record.screen.get_or_insert(first);
    match own {
        _ if heads > 1 => Screen::VirtioVga,
        Screen::VirtioVga if emulated => {
            let why = "the guest is emulated and gets the display device VGA, because virtio-vga can hang under emulation; with \
                KVM, the guest gets virtio-vga again";
            warnings.push(why.to_owned());
            Screen::Vga
        }
        own => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::vm::conditions::ConditionReason;
    use crate::runner::failure::Problem;

    /// The screens of a machine that is started with each of these in turn.
    fn screens(is_legacy: bool, starts: &[(Acceleration, u32)]) -> Vec<(Screen, usize)> {
        let mut record = Record::new("q35", is_legacy);
        let start = |(acceleration, heads): &(Acceleration, u32)| {
            let mut warnings = Vec::new();
            let screen = select(&mut record, acceleration, *heads, &mut warnings);
            record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            (screen, warnings.len())
        };
        starts.iter().map(start).collect()
    }

    #[test]
    fn a_machine_from_before_screens_were_recorded_loses_its_own_to_no_node_without_kvm() {
        let for_want = || {
            (
                Acceleration::TcgFallback(Problem::new(ConditionReason::KvmNotAvailable, "")),
                1,
            )
        };
        let (tcg, kvm) = (|| (Acceleration::Tcg, 1), || (Acceleration::Kvm, 1));
        use Screen::{Vga, VirtioVga};
        let old = |starts: &[(Acceleration, u32)]| screens(false, starts);
        assert_eq!(
            old(&[for_want(), kvm(), for_want()]),
            [(Vga, 0), (VirtioVga, 0), (Vga, 1)]
        );
        assert_eq!(old(&[tcg(), kvm()]), [(Vga, 0), (Vga, 0)]);
    }

    #[test]
    fn a_fallback_to_emulation_records_no_screen() {
        let fallback =
            || Acceleration::TcgFallback(Problem::new(ConditionReason::KvmFailed, "aborted"));
        let starts = |heads: u32| [(fallback(), heads), (Acceleration::Kvm, heads)];
        assert_eq!(
            screens(false, &starts(1)),
            [(Screen::Vga, 0), (Screen::VirtioVga, 0)]
        );
        assert_eq!(
            screens(false, &starts(2)),
            [(Screen::VirtioVga, 0), (Screen::VirtioVga, 0)]
        );
        let mut record = Record::new("q35", false);
        select(&mut record, &fallback(), 1, &mut Vec::new());
        assert_eq!(record, Record::new("q35", false));
    }

    #[test]
    fn emulated_machine_uses_no_screen_that_hangs_at_reset() {
        let for_want =
            || Acceleration::TcgFallback(Problem::new(ConditionReason::KvmNotAvailable, ""));
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
            "a VM that the Java VM-Operator has created"
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
