//! (io) Gives memory back that the operator does not use.
//!
//! The C library's allocator keeps what was freed, in pages between others that are used. After many reconciles, and after a
//! list of everything, that is megabytes, which would count against the pod's limit for good.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// How often.
const EVERY: Duration = Duration::from_secs(30);

/// Gives back what is not used: after the first lists, and then again and again.
pub async fn give_back_forever(listed: impl Future<Output = ()>) {
    listed.await;
    loop {
        let began = Instant::now();
        give_back();
        tracing::trace!(took = ?began.elapsed(), "gave memory back");
        tokio::time::sleep(EVERY).await;
    }
}

/// Gives the pages back that hold nothing that is used. It takes a millisecond for some tens of MiB, in which nobody can
/// allocate.
fn give_back() {
    // SAFETY: it looks at nothing but the allocator's own lists, with their locks held.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[test]
    fn what_is_freed_between_what_is_used_goes_back() {
        let mut pieces: Vec<Option<Box<[u8; 1024]>>> = (0..65_536).map(|n| Some(Box::new([n as u8; 1024]))).collect();
        // One of 64 stays, so that no end of the heap is free.
        for (n, piece) in pieces.iter_mut().enumerate().filter(|(n, _)| n % 64 != 0) {
            assert_eq!(piece.take().unwrap()[0], n as u8);
        }
        let kept = resident();
        give_back();
        let left = resident();
        assert!(left + 32 * 1024 < kept, "{kept} KiB before, {left} KiB after");
        assert_eq!(pieces.iter().flatten().count(), 1024);
    }
}
