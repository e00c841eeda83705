//! Allocations: an allocator that counts what this thread requests.
//!
//! It is the global allocator of every program that links this crate.

#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What a thread has requested since [`reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// The largest single request, in bytes.
    pub largest_bytes: usize,
    /// All requests together, in bytes; memory that was freed since counts too.
    pub total_bytes: usize,
}

/// Forgets what this thread has requested so far.
pub fn reset() {
    REQUESTED.set(Requested { largest_bytes: 0, total_bytes: 0 });
}

/// What this thread has requested since the last [`reset`].
#[must_use]
pub fn requested() -> Requested {
    REQUESTED.get()
}

thread_local! {
    static REQUESTED: Cell<Requested> = const { Cell::new(Requested { largest_bytes: 0, total_bytes: 0 }) };
}

fn count(bytes: usize) {
    let Requested { largest_bytes, total_bytes } = REQUESTED.get();
    let total_bytes = total_bytes.saturating_add(bytes);
    REQUESTED.set(Requested { largest_bytes: largest_bytes.max(bytes), total_bytes });
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to `System` with the same arguments, so `System` keeps the contract; counting only changes a thread's numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: the caller keeps the contract of `realloc`, and `block` came from `System`.
        unsafe { System.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `block` came from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_this_thread_are_counted() {
        reset();
        let small = vec![1_u8; 1000];
        let large = vec![0_u8; 5000];
        assert_eq!(requested(), Requested { largest_bytes: 5000, total_bytes: 6000 });
        std::thread::spawn(|| drop(vec![1_u8; 100_000])).join().expect("the thread only allocates");
        assert!(requested().largest_bytes < 100_000, "another thread");
        drop((small, large));
        reset();
        assert_eq!(requested(), Requested::default());
    }
}
