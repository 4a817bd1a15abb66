//! How much memory a thread has allocated. The tests' allocator is the system's, with a count.
#![allow(unsafe_code)] // There is no other way to be an allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// What the thread has allocated and not freed, and the most of that.
    static COUNT: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    // A thread that ends has none any more.
    let _ = COUNT.try_with(|count| {
        let (now, most) = count.get();
        count.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: all is done by the system's allocator; the count allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most that was allocated at the same time by it, besides what was before.
pub fn most_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
    COUNT.set((0, 0));
    let result = work();
    let (_, most) = COUNT.get();
    (result, most.max(0) as usize)
}
