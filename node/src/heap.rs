//! The heap of the C library, set up for a process that runs for weeks.
//!
//! What a peer needs does not grow while others come and go, and what the heap takes for it should not either. Left to itself the
//! C library gives each thread an arena of its own, which fills with holes where one thread allocates and another frees; and once
//! a large buffer was freed, others of that size are no longer mapped by themselves but cut from an arena too.

#![allow(unsafe_code, reason = "the C library's settings are set by calling it")]

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

/// One for all threads: most of what is allocated often is small, and each thread keeps some of that for itself.
const ARENAS: c_int = 1;
/// A buffer from here on is mapped by itself, and goes back to the system when it is freed. Those of direct lanes and of large
/// segments are; they come from pools, but for robust means, which pay for a mapping each.
const MAPPED_FROM_BYTES: c_int = 64 << 10;
/// More free memory than this at the end of the heap goes back at once.
const FREE_AT_END_MAX_BYTES: c_int = 1 << 20;
/// How often free pages within the heap are given back.
const TRIM_EVERY: Duration = Duration::from_secs(10);
/// The thread that does so calls one function.
const STACK_BYTES: usize = 64 << 10;

/// Sets the heap up, before any other thread is there. A setting that a C library does not know stays as it is.
pub(super) fn keep_small() {
    // SAFETY: each call takes two numbers, and changes nothing but the allocator's own settings.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_AT_END_MAX_BYTES);
    }
    // Where there is no thread left for it, nothing is given back, and that is all.
    let _ = thread::Builder::new().name("heap".into()).stack_size(STACK_BYTES).spawn(|| {
        loop {
            thread::sleep(TRIM_EVERY);
            // SAFETY: it takes a number, and frees only what the allocator has free. Others wait while it does, if they need more
            // than their thread has kept.
            unsafe { libc::malloc_trim(0) };
        }
    });
}
