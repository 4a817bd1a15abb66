//! (io) A seccomp filter for this process and its children. It also applies if the container
//! runtime's own filter is disabled.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, sock_filter};

/// System calls that no program of the VM needs: mounts, access to other processes, kernel modules,
/// clocks and namespaces.
const DENIED_SYSCALLS: [libc::c_long; 42] = [
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

/// Installs the filter. It cannot be removed.
pub fn install() -> Result<(), seccompiler::Error> {
    /// From linux/audit.h.
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    /// First number of the x32 calling convention, which the library does not handle. Each denied
    /// call is also available under such a number.
    const X32_SYSCALL_BIT: u32 = 0x4000_0000;
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let rules = DENIED_SYSCALLS.map(|number| (number, Vec::new())).into();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        deny.clone(),
        TargetArch::x86_64,
    )?;
    let statement = |code: u32, k: u32, jt: u8, jf: u8| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let denied = statement(libc::BPF_RET | libc::BPF_K, deny.into(), 0, 0);
    // Offsets in the kernel's `seccomp_data`: the number, then the architecture. The library alone
    // would kill a program of another architecture.
    let mut program = vec![
        load(4),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            AUDIT_ARCH_X86_64,
            1,
            0,
        ),
        denied.clone(),
        load(0),
        statement(
            libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
            X32_SYSCALL_BIT,
            0,
            1,
        ),
        denied,
    ];
    program.extend(BpfProgram::try_from(filter)?);
    seccompiler::apply_filter(&program)
}

/// Denies this thread and its children new sockets, and io_uring, which creates sockets without a system call, in addition to the filter of the process. It cannot be removed.
///
/// # Errors
/// The kernel does not accept the filter.
pub fn deny_sockets() -> Result<(), seccompiler::Error> {
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let calls = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_io_uring_setup,
    ];
    let rules = calls.map(|number| (number, Vec::new())).into();
    // The first filter denies the calls of other architectures.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, deny, TargetArch::x86_64)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::syscall;

    #[test]
    fn denied_system_calls_fail_and_other_calls_succeed() {
        // In a separate thread, because the filter cannot be removed from a thread.
        let denied = std::thread::spawn(|| {
            install().unwrap();
            assert!(std::fs::read_dir("/").unwrap().count() > 0);
            let host = std::process::Command::new("true").status().unwrap();
            assert!(host.success());
            // A call of `unshare` without flags changes nothing and needs no privilege. The second number is that of x32.
            [libc::SYS_unshare, libc::SYS_unshare | 0x4000_0000].map(syscall)
        });
        assert_eq!(denied.join().unwrap(), [(-1, Some(libc::EPERM)); 2]);
    }

    #[test]
    fn sockets_and_io_uring_can_be_denied() {
        let denied = std::thread::spawn(|| {
            deny_sockets().unwrap();
            let failure = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(failure.raw_os_error(), Some(libc::EPERM));
            syscall(libc::SYS_io_uring_setup)
        });
        assert_eq!(denied.join().unwrap(), (-1, Some(libc::EPERM)));
    }
}
