//! (io) A filter of system calls, for this process and all that it starts. Container runtimes have one of their own; this
//! one is there also where it is switched off.
#![allow(unsafe_code)]

use std::io;

/// Nobody here changes what is mounted, looks into other processes, loads code into the kernel, sets clocks or leaves
/// a namespace.
#[cfg(target_arch = "x86_64")]
const REFUSED: [libc::c_long; 42] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_iopl,
    libc::SYS_ioperm,
];

/// Installs it for good. Needs that no privilege can be gained any more.
#[cfg(target_arch = "x86_64")]
pub fn install() -> io::Result<()> {
    /// From linux/audit.h.
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    /// Numbers from here on are those of the x32 calling convention, by which the list could be passed by.
    const X32: u32 = 0x4000_0000;
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let answer = |k: u32| statement(libc::BPF_RET | libc::BPF_K, k, 0, 0);
    let refuse = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    // The kernel's `seccomp_data`: the number, then the architecture.
    let mut program = vec![
        load(4),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        refuse,
        load(0),
        statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, X32, 0, 1),
        refuse,
    ];
    for number in REFUSED {
        program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 0, 1));
        program.push(refuse);
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the program, which outlives the call.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Other processors have other numbers.
#[cfg(not(target_arch = "x86_64"))]
pub fn install() -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_fails_and_everything_else_goes_on() {
        // A thread of its own, as the filter stays with it.
        let refused = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            install().unwrap();
            assert!(std::fs::read_dir("/").unwrap().count() > 0);
            let host = std::process::Command::new("true").status().unwrap();
            assert!(host.success());
            // SAFETY: changes nothing: unsharing nothing is allowed to everybody.
            let result = unsafe { libc::syscall(libc::SYS_unshare, 0) };
            (result, io::Error::last_os_error().raw_os_error())
        });
        assert_eq!(refused.join().unwrap(), (-1, Some(libc::EPERM)));
    }
}
