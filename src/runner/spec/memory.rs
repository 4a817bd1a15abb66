//! (pure) What the machine's memory is made of, and what to say where the node has too little of that.

use super::super::failure::Invalid;
use crate::api::outcome::{EndReason, Outcome};
use crate::api::quantity::Bytes;
use crate::api::runner_config::VmConfig;
use crate::api::virtual_machine::PageSize;

/// The sizes that huge pages have on x86.
const SIZES: [Bytes; 2] = [Bytes(PageSize::Large.bytes()), Bytes(PageSize::Huge.bytes())];
/// What QEMU says where the kernel does not give it the memory.
const NO_MEMORY: &str = "backing store for guest RAM";
/// What it says where the node has not that much.
const NOT_GIVEN: &str = "cannot set up guest memory";
/// What it says where its CPUs cannot address that much.
const BEYOND_ADDRESSES: &str = "phys-bits too low";
/// Minus the signal by which the kernel tells that there is no huge page left for a program that was to have one.
const BUS_ERROR: i32 = -7;

/// What the machine's memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The size of its pages, where they are huge ones.
    pub page: Option<Bytes>,
    /// Whether QEMU can share it with other programs.
    pub shared: bool,
}

/// What is configured.
pub fn memory(vm: &VmConfig, ram: Bytes) -> Result<Memory, Invalid> {
    let key = "vm.hugepages";
    let page = |text: &String| match super::size(key, text)? {
        size if SIZES.contains(&size) => Ok(size),
        _ => Err(Invalid::value(key, text, "2Mi or 1Gi")),
    };
    let page = vm.hugepages.as_ref().map(page).transpose()?;
    if let Some(page) = page.filter(|page| !ram.0.is_multiple_of(page.0)) {
        let next = Bytes(ram.0.next_multiple_of(page.0));
        let problem =
            format!("{ram} is no whole number of huge pages of {page} ({key}); use a multiple, such as {next}");
        return Err(Invalid::new("vm.maximumRam", problem));
    }
    Ok(Memory { page, shared: vm.shared_memory })
}

impl Memory {
    /// The outcome, which says what to do where the memory cannot be had: it is too much for the machine or for the node, or there
    /// are too few huge pages.
    pub fn explain(self, outcome: Outcome, ram: Bytes) -> Outcome {
        if outcome.reason == EndReason::StartFailed && outcome.message.contains(BEYOND_ADDRESSES) {
            let message = format!(
                "vm.maximumRam: {ram} is more than the machine's CPUs can address: {}; use less, or with KVM a cpuModel with \
                 more phys-bits",
                outcome.message
            );
            return Outcome { reason: EndReason::InvalidConfig, message, ..outcome };
        }
        let Some(page) = self.page else {
            if outcome.reason == EndReason::StartFailed && outcome.message.contains(NOT_GIVEN) {
                let message = format!("vm.maximumRam: the node does not give {ram}: {}; use less", outcome.message);
                return Outcome { message, ..outcome };
            }
            return outcome;
        };
        let message = match (outcome.reason, outcome.qemu_exit) {
            (EndReason::StartFailed, _) if outcome.message.contains(NO_MEMORY) => format!(
                "vm.hugepages: the machine's {ram} cannot be had in huge pages of {page}: {}; let the node set more of them \
                 aside (vm.nr_hugepages, hugepages= of its kernel), or leave out spec.vm.memory.hugepages",
                outcome.message
            ),
            (EndReason::QemuCrashed, Some(BUS_ERROR)) => format!(
                "{}; the memory is made of huge pages of {page}, and the pod has got less of them than the machine's {ram}",
                outcome.message
            ),
            _ => return outcome,
        };
        Outcome { message, ..outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(hugepages: &str) -> VmConfig {
        VmConfig { hugepages: Some(hugepages.to_owned()), ..VmConfig::default() }
    }

    #[test]
    fn huge_pages_have_one_of_two_sizes_and_the_memory_is_a_whole_number_of_them() {
        assert_eq!(memory(&VmConfig::default(), Bytes(5 << 20)), Ok(Memory::default()));
        for text in ["2Mi", "2 MiB", "2097152"] {
            assert_eq!(memory(&vm(text), Bytes(4 << 20)).unwrap().page, Some(Bytes(2 << 20)), "{text}");
        }
        assert_eq!(memory(&vm("1Gi"), Bytes(2 << 30)).unwrap().page, Some(Bytes(1 << 30)));
        let refused = memory(&vm("4Mi"), Bytes(4 << 20)).unwrap_err().to_string();
        assert_eq!(refused, "vm.hugepages: \"4Mi\" is not allowed; use 2Mi or 1Gi");
        let refused = memory(&vm("1Gi"), Bytes(1536 << 20)).unwrap_err().to_string();
        let expected =
            "1536 MiB is no whole number of huge pages of 1 GiB (vm.hugepages); use a multiple, such as 2 GiB";
        assert_eq!(refused, format!("vm.maximumRam: {expected}"));
    }

    #[test]
    fn what_ends_for_want_of_huge_pages_says_so_and_all_else_stays_as_it_is() {
        let outcome = |reason, message: &str, exit| Outcome {
            reason,
            message: message.to_owned(),
            qemu_exit: Some(exit),
            by_guest: false,
        };
        let none =
            outcome(EndReason::StartFailed, "unable to map backing store for guest RAM: Cannot allocate memory", 1);
        let killed = outcome(EndReason::QemuCrashed, "QEMU ended by itself with signal 7", -7);
        let other = outcome(EndReason::StartFailed, "no such disk", 1);
        let huge = Memory { page: Some(Bytes(2 << 20)), shared: false };
        let told = |outcome: &Outcome| huge.explain(outcome.clone(), Bytes(1 << 30)).message;
        assert!(told(&none).starts_with("vm.hugepages: the machine's 1 GiB cannot be had in huge pages of 2 MiB"));
        assert!(told(&killed).ends_with("less of them than the machine's 1 GiB"));
        assert_eq!(told(&other), other.message);
        // In QEMU's own words (10.0).
        let beyond = outcome(
            EndReason::StartFailed,
            "Address space limit 0xffffffffff < 0x3077fffffff phys-bits too low (40)",
            1,
        );
        let not_given =
            outcome(EndReason::StartFailed, "cannot set up guest memory 'pc.ram': Cannot allocate memory", 1);
        for memory in [huge, Memory::default()] {
            let told = memory.explain(beyond.clone(), Bytes(2 << 40));
            assert_eq!((told.reason, told.qemu_exit), (EndReason::InvalidConfig, Some(1)));
            assert!(told.message.starts_with("vm.maximumRam: 2 TiB is more than"), "{told:?}");
        }
        let told = Memory::default().explain(not_given, Bytes(60 << 40));
        assert_eq!(told.reason, EndReason::StartFailed);
        assert!(told.message.starts_with("vm.maximumRam: the node does not give 60 TiB: "), "{told:?}");
        for outcome in [none, killed] {
            assert_eq!(Memory::default().explain(outcome.clone(), Bytes(1 << 30)), outcome);
        }
    }
}
