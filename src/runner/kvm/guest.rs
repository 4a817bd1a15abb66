//! (io) The guest that tests KVM. Like every operating system, it changes from real mode to protected mode, returns from an
//! interrupt, and enables paging and 64 bits. It ends QEMU with a unique exit code.
//!
//! A processor executes all of these instructions. A KVM that emulates some of them, for example in a nested VM, may fail at
//! the return from the interrupt.

use std::io;
use std::path::Path;

/// QEMU's exit code after success: `isa-debug-exit` doubles the value that the guest writes, and adds one.
pub const SUCCESS_EXIT_CODE: i32 = 2 * 0x2a + 1;

/// QEMU takes a BIOS of whole 64 KiB. It ends at 1 MiB, and at 4 GiB, where the processor begins 16 bytes before.
const SIZE: usize = 0x10000;
const CODE: usize = 0xff00;
const DESCRIPTORS: usize = 0xffc0;
const FIRST: usize = 0xfff0;

/// `jmp CODE`
const JUMP: [u8; 3] = [0xe9, 0x0d, 0xff];

#[rustfmt::skip]
const PROGRAM: [u8; 155] = [
    // 16 bits, real mode
    0xfa,                                           // cli
    0x2e, 0x66, 0x0f, 0x01, 0x16, 0xe0, 0xff,       // lgdtl %cs:0xffe0
    0x0f, 0x20, 0xc0,                               // mov %cr0,%eax
    0x0c, 0x01,                                     // or $1,%al                    protected mode
    0x0f, 0x22, 0xc0,                               // mov %eax,%cr0
    0x66, 0xea, 0x18, 0xff, 0x0f, 0x00, 0x08, 0x00, // ljmpl $0x08,$0xfff18         the next instruction
    // 32 bits
    0x66, 0xb8, 0x10, 0x00,                         // mov $0x10,%ax
    0x8e, 0xd8,                                     // mov %eax,%ds
    0x8e, 0xd0,                                     // mov %eax,%ss
    0xbc, 0x00, 0x70, 0x00, 0x00,                   // mov $0x7000,%esp
    0x9c,                                           // pushf
    0x6a, 0x08,                                     // push $0x08
    0x68, 0x2e, 0xff, 0x0f, 0x00,                   // push $0xfff2e                behind the iret
    0xcf,                                           // iret
    0xb8, 0x00, 0x00, 0x00, 0x80,                   // mov $0x80000000,%eax
    0x0f, 0xa2,                                     // cpuid
    0x3d, 0x01, 0x00, 0x00, 0x80,                   // cmp $0x80000001,%eax
    0x72, 0x58,                                     // jb done                      an old model
    0xb8, 0x01, 0x00, 0x00, 0x80,                   // mov $0x80000001,%eax
    0x0f, 0xa2,                                     // cpuid
    0x0f, 0xba, 0xe2, 0x1d,                         // bt $29,%edx
    0x73, 0x4b,                                     // jae done                     one without 64 bits
    0xc7, 0x05, 0x00, 0x10, 0x00, 0x00, 0x03, 0x20, 0x00, 0x00, // movl $0x2003,0x1000   page tables: the first 2 MiB
    0xc7, 0x05, 0x00, 0x20, 0x00, 0x00, 0x03, 0x30, 0x00, 0x00, // movl $0x3003,0x2000
    0xc7, 0x05, 0x00, 0x30, 0x00, 0x00, 0x83, 0x00, 0x00, 0x00, // movl $0x83,0x3000
    0xb0, 0x20,                                     // mov $0x20,%al
    0x0f, 0xb6, 0xc0,                               // movzbl %al,%eax
    0x0f, 0x22, 0xe0,                               // mov %eax,%cr4                physical address extension
    0xb8, 0x00, 0x10, 0x00, 0x00,                   // mov $0x1000,%eax
    0x0f, 0x22, 0xd8,                               // mov %eax,%cr3
    0xb9, 0x80, 0x00, 0x00, 0xc0,                   // mov $0xc0000080,%ecx
    0x0f, 0x32,                                     // rdmsr
    0x80, 0xcc, 0x01,                               // or $1,%ah                    long mode
    0x0f, 0x30,                                     // wrmsr
    0x0f, 0x20, 0xc0,                               // mov %cr0,%eax
    0x0f, 0xba, 0xe8, 0x1f,                         // bts $31,%eax                 pages
    0x0f, 0x22, 0xc0,                               // mov %eax,%cr0
    0xea, 0x94, 0xff, 0x0f, 0x00, 0x18, 0x00,       // ljmp $0x18,$0xfff94          the next instruction
    // 64 bits, or 32
    0xb0, 0x2a,                                     // done: mov $0x2a,%al
    0xe6, 0xf4,                                     // out %al,$0xf4
    0xf4,                                           // hlt
    0xeb, 0xfd,                                     // jmp hlt
];

/// Segments, all of 4 GiB: none, code of 32 bits, data, code of 64 bits; then where they are, for `lgdt`.
#[rustfmt::skip]
const SEGMENTS: [u8; 38] = [
    0, 0, 0, 0, 0, 0, 0, 0,
    0xff, 0xff, 0, 0, 0, 0x9b, 0xcf, 0,
    0xff, 0xff, 0, 0, 0, 0x93, 0xcf, 0,
    0xff, 0xff, 0, 0, 0, 0x9b, 0xaf, 0,
    31, 0, 0xc0, 0xff, 0x0f, 0,
];

/// The guest as a BIOS.
pub fn bios() -> Vec<u8> {
    let parts = [
        (CODE, &PROGRAM[..]),
        (DESCRIPTORS, &SEGMENTS),
        (FIRST, &JUMP),
    ];
    let mut bios = vec![0; SIZE];
    for (at, part) in parts {
        for (byte, value) in bios.iter_mut().skip(at).zip(part) {
            *byte = *value;
        }
    }
    bios
}

pub fn write(path: &Path) -> io::Result<()> {
    std::fs::write(path, bios())
}
