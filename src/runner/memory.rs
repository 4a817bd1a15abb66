//! (io) Memory of the program's own that is needed for a moment only.
//!
//! Whoever talks to the API server goes through megabytes of the program, TLS and JSON among them, once; the kernel would keep
//! all of that mapped, while a runner that waits needs a tenth.
#![allow(unsafe_code)]

use std::fs;

/// Lets go of the program's text and constants. What is needed again comes back page by page from the page cache, which
/// all runners of a node share, or from the image.
pub fn let_go_of_program() {
    let Ok(maps) = fs::read_to_string("/proc/self/smaps") else { return };
    let Ok(program) = fs::read_link("/proc/self/exe") else { return };
    for (from, size) in unchanged(&maps, &program.to_string_lossy()) {
        let Ok(size) = usize::try_from(size) else { continue };
        // SAFETY: the range is one mapping of the program's file, which is private and which nobody has written to and nobody
        // can write to: what is read there next is what was read before.
        let result = unsafe { libc::madvise(from as *mut libc::c_void, size, libc::MADV_DONTNEED) };
        if result != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "memory is not given back");
        }
    }
}

/// Places and sizes of the file's mappings that are as in the file: not writable, and without a page of this process' own, in
/// memory or swapped out. (What the linker has adjusted at the start has such pages, and is not writable any more.)
fn unchanged(maps: &str, program: &str) -> Vec<(u64, u64)> {
    let (mut found, mut candidate) = (Vec::new(), None);
    for line in maps.lines() {
        if let Some(mapping) = mapping(line) {
            let (from, to, is_unwritten, path) = mapping;
            candidate = (is_unwritten && path == program).then_some((from, to - from));
            continue;
        }
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["Anonymous:", "0", "kB"] => {}
            ["Anonymous:", ..] => candidate = None,
            // Comes later; a kernel without swap has the line as well.
            ["Swap:", "0", "kB"] => found.extend(candidate.take()),
            _ => {}
        }
    }
    found
}

/// `from-to rights offset device inode path`: from, to, whether it is the process' own and not writable, path.
fn mapping(line: &str) -> Option<(u64, u64, bool, &str)> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let [from, to] = [from, to].map(|number| u64::from_str_radix(number, 16).ok());
    let is_unwritten = matches!(words.next()?, "r-xp" | "r--p");
    let path = words.nth(3).unwrap_or_default();
    Some((from?, to.filter(|to| Some(*to) >= from)?, is_unwritten, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000002000 r--p 00000000 fd:00 42   /usr/bin/vm-runner
Size:                  8 kB
Anonymous:             0 kB
Swap:                  0 kB
7f0000002000-7f0000009000 r-xp 00002000 fd:00 42   /usr/bin/vm-runner
Anonymous:             0 kB
AnonHugePages:         0 kB
Swap:                  0 kB
7f0000009000-7f000000a000 r--p 00009000 fd:00 42   /usr/bin/vm-runner
Anonymous:             4 kB
Swap:                  0 kB
7f000000a000-7f000000b000 rw-p 0000a000 fd:00 42   /usr/bin/vm-runner
Anonymous:             0 kB
Swap:                  0 kB
7f000000b000-7f000000c000 r--p 0000b000 fd:00 42   /usr/bin/vm-runner
Anonymous:             0 kB
Swap:                  4 kB
7f000000c000-7f000000d000 r-xp 00000000 fd:00 43   /lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
7f000000d000-7f000000e000 rw-p 00000000 00:00 0    [heap]
Anonymous:             4 kB
Swap:                  0 kB
7f000000e000-7f000000f000 rw-p 00000000 00:00 0
";

    #[test]
    fn only_what_is_as_in_the_programs_file_is_let_go() {
        assert_eq!(unchanged(MAPS, "/usr/bin/vm-runner"), [(0x7f00_0000_0000, 0x2000), (0x7f00_0000_2000, 0x7000)]);
        assert_eq!(unchanged("", "/usr/bin/vm-runner"), []);
    }

    #[test]
    fn a_program_goes_on_without_what_it_has_let_go() {
        let before: String = (0..1000).map(|n| n.to_string()).collect();
        let_go_of_program();
        assert_eq!(before, (0..1000).map(|n| n.to_string()).collect::<String>());
    }
}
