//! Which edges of the program a run has taken, where the compiler has it counted (tests/fuzz/rustc).
#![allow(unsafe_code)] // The compiler's counters are bare memory.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static COUNTERS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// What a program that is compiled so calls before `main`: one byte for each edge.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(begin: *mut u8, end: *mut u8) {
    COUNTERS.store(begin, Ordering::SeqCst);
    LENGTH.store(end as usize - begin as usize, Ordering::SeqCst);
}

fn counters() -> &'static mut [u8] {
    let (begin, length) = (COUNTERS.load(Ordering::SeqCst), LENGTH.load(Ordering::SeqCst));
    if length == 0 {
        return &mut [];
    }
    // SAFETY: the memory that the program has announced, there as long as the program; counts that other threads
    // change meanwhile are as good as any.
    unsafe { std::slice::from_raw_parts_mut(begin, length) }
}

/// What all runs together have taken: for each edge, a bit for each magnitude of how often.
#[derive(Default)]
pub struct Coverage(Vec<u8>);

impl Coverage {
    /// A run begins.
    pub fn forget_run(&mut self) {
        counters().fill(0);
    }

    /// Whether the run has taken an edge that none before has, or one by another order of magnitude.
    pub fn is_new(&mut self) -> bool {
        let counters = counters();
        self.0.resize(counters.len(), 0);
        let mut new = false;
        // Most of the program is not run: that is passed over by whole words.
        for (seen, counts) in self.0.chunks_mut(64).zip(counters.chunks(64)) {
            if counts != [0; 64].get(..counts.len()).unwrap_or_default() {
                new |= seen.iter_mut().zip(counts).fold(false, |new, (seen, count)| see(seen, *count) || new);
            }
        }
        new
    }

    /// How many edges were taken.
    pub fn edges(&self) -> usize {
        self.0.iter().filter(|seen| **seen > 0).count()
    }
}

/// Notes how often an edge was taken; whether it never was that often.
fn see(seen: &mut u8, count: u8) -> bool {
    let magnitude = match count {
        0 => return false,
        1..=3 => 1 << (count - 1),
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        _ => 128,
    };
    let new = *seen & magnitude == 0;
    *seen |= magnitude;
    new
}
