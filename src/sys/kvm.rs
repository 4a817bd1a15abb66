//! (io) A VM of KVM with one vCPU and a few pages of memory, by the crate `kvm-ioctls`.
//!
//! The crate leaves two things to its users that the compiler cannot check: the memory of a VM must outlive the VM, and an
//! open file must be KVM's. Both are here.
#![allow(unsafe_code)]

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};

/// An error of a system call.
pub type Errno = kvm_ioctls::Error;

/// The version of the interface, which is the only one since Linux 2.6.22.
pub const API_VERSION: i32 = 12;

const PAGE: usize = 0x1000;
/// Pages of memory: tables of the long mode (1 to 3), code (4), data (6), stack (below 8).
const PAGES: usize = 8;
/// Address of the first instruction.
const CODE: usize = 4 * PAGE;
/// Address of the data that the instructions read and write.
pub const DATA: u32 = 6 * PAGE as u32;
const STACK: usize = 8 * PAGE;

/// The page tables of the long mode map the first 2 MiB: address of the entry, entry. The flags are present (1), writable (2)
/// and large page (0x80).
const PAGE_TABLES: [(usize, u64); 3] = [(0x1000, 0x2003), (0x2000, 0x3003), (0x3000, 0x83)];

/// A mode of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 16 bits, without paging.
    Real,
    /// 64 bits, with paging.
    Long,
}

/// A file that is open and is the device of KVM.
pub fn kvm(device: File) -> Kvm {
    // SAFETY: the descriptor is open, and nothing else owns it.
    unsafe { Kvm::from_raw_fd(device.into_raw_fd()) }
}

/// A page as KVM requires it.
#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE]);

/// A VM without devices. The fields are dropped in this order, so the memory outlives the VM.
pub struct Guest {
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: Vec<Page>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The instruction `hlt`.
    Halt,
    /// KVM cannot continue.
    InternalError {
        /// 1: KVM has to emulate an instruction that it does not know.
        suberror: u32,
    },
    /// Anything else, as `kvm-ioctls` describes it.
    Other(String),
}

impl Guest {
    /// Adds memory with the code and one vCPU to a new VM.
    ///
    /// # Errors
    /// If KVM rejects one of the calls.
    pub fn new(kvm: &Kvm, vm: VmFd, mode: Mode, code: &[u8]) -> Result<Self, Errno> {
        let memory = memory(code);
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: (PAGES * PAGE) as u64,
            userspace_addr: memory.as_ptr() as u64,
        };
        // SAFETY: the pages are aligned, are as many as the region says, and are not moved or freed before the VM is closed.
        // Nothing in this process reads or writes them any more.
        unsafe { vm.set_user_memory_region(region) }?;
        let vcpu = vm.create_vcpu(0)?;
        let guest = Self {
            vcpu,
            _vm: vm,
            _memory: memory,
        };
        // The processor has the features that the node has, as with QEMU's model `host`.
        let features = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)?;
        guest.vcpu.set_cpuid2(&features)?;
        let mut registers = guest.vcpu.get_sregs()?;
        enter(mode, &mut registers);
        guest.vcpu.set_sregs(&registers)?;
        guest.vcpu.set_regs(&kvm_regs {
            rip: CODE as u64,
            rsp: STACK as u64,
            // The bit that is always set.
            rflags: 2,
            ..kvm_regs::default()
        })?;
        Ok(guest)
    }

    /// Runs the vCPU until it leaves the guest.
    ///
    /// # Errors
    /// If the call fails. EINTR and EAGAIN mean that it can be repeated.
    pub fn run(&mut self) -> Result<Exit, Errno> {
        Ok(match self.vcpu.run()? {
            VcpuExit::Hlt => Exit::Halt,
            VcpuExit::InternalError => {
                // SAFETY: the kernel has filled this member, and it is plain data.
                let internal = unsafe { self.vcpu.get_kvm_run().__bindgen_anon_1.internal };
                Exit::InternalError {
                    suberror: internal.suberror,
                }
            }
            other => Exit::Other(format!("{other:?}")),
        })
    }
}

/// Memory with the page tables and the code.
fn memory(code: &[u8]) -> Vec<Page> {
    let mut memory = vec![Page([0; PAGE]); PAGES];
    let entries = PAGE_TABLES.map(|(at, entry)| (at, entry.to_le_bytes().to_vec()));
    for (at, content) in entries.into_iter().chain([(CODE, code.to_vec())]) {
        let page = memory.get_mut(at / PAGE).map(|page| &mut page.0);
        for (byte, value) in page.into_iter().flatten().zip(content) {
            *byte = value;
        }
    }
    memory
}

/// Sets the registers for that mode. They are those of a processor after its reset.
fn enter(mode: Mode, registers: &mut kvm_sregs) {
    let Mode::Long = mode else {
        // Segments that begin at 0, so that addresses are those of the memory.
        for segment in [&mut registers.cs, &mut registers.ds, &mut registers.ss] {
            (segment.base, segment.selector) = (0, 0);
        }
        return;
    };
    let data = kvm_segment {
        limit: u32::MAX,
        selector: 0x10,
        type_: 3,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    };
    registers.cs = kvm_segment {
        selector: 8,
        type_: 11,
        db: 0,
        l: 1,
        ..data
    };
    (registers.ds, registers.es, registers.ss) = (data, data, data);
    (registers.fs, registers.gs) = (data, data);
    registers.cr3 = PAGE_TABLES[0].0 as u64;
    // Physical address extension; SSE and XSAVE, as operating systems enable them.
    registers.cr4 = 1 << 5 | 1 << 9 | 1 << 10 | 1 << 18;
    // Protected mode, coprocessor, its type and its errors, paging.
    registers.cr0 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 31;
    // Long mode, enabled and active.
    registers.efer = 1 << 8 | 1 << 10;
}

#[cfg(test)]
pub mod fake;
