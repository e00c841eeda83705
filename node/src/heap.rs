//! The heap of the C library, set up for a process that runs for weeks.
//!
//! What a peer needs does not grow while others come and go, and what the heap takes for it should not either. Left to itself the
//! C library gives each thread an arena of its own, which fills with holes where one thread allocates and another frees; and once
//! a large buffer was freed, others of that size are no longer mapped by themselves but cut from an arena too.

#![allow(unsafe_code, reason = "the C library is configured by calls")]

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

/// All threads share one arena. Most frequent allocations are small, and each thread caches some small blocks for itself.
const ARENAS: c_int = 1;
/// The smallest buffer that gets its own mapping, which returns to the system when the buffer is freed. Buffers of direct lanes and of
/// large segments are that large. They come from pools, except for robust means, which pay for one mapping each.
const MAPPED_FROM_BYTES: c_int = 64 << 10;
/// If the end of the heap has more free memory than this, it returns to the system at once.
const FREE_AT_END_MAX_BYTES: c_int = 1 << 20;
/// How often free pages within the heap return to the system.
const TRIM_EVERY: Duration = Duration::from_secs(10);
/// The stack of the thread that returns pages; it calls one function.
const STACK_BYTES: usize = 64 << 10;

/// Configures the heap, before any other thread starts. A C library ignores the settings that it does not know.
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
