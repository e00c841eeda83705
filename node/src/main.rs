//! The `peer` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    heap::keep_small();
    peergrad::cli::main()
}

/// The heap of the C library, set up for a process that runs for weeks.
///
/// What a peer holds does not grow while others come and go, and what the heap takes for it should not either. Left to itself the
/// C library's heap has an arena for every thread, which fill with holes as one thread allocates and another frees; and once a large buffer
/// was freed, others of that size are no longer mapped by themselves but cut from there too.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap {
    #![allow(unsafe_code, reason = "the C library's settings are set by calling it")]

    use std::ffi::c_int;
    use std::thread;
    use std::time::Duration;

    /// One for all threads: most of what is allocated often is small, and each thread keeps some of that for itself.
    const ARENAS: c_int = 1;
    /// A buffer from here on is mapped by itself and goes back to the system when it is freed. There are few, and they are used again.
    const MAPPED_FROM_BYTES: c_int = 64 << 10;
    /// Free memory at the end of the heap that is kept in any case.
    const FREE_BYTES_MAX: c_int = 1 << 20;
    /// Free pages within the heap are given back as often.
    const TRIM_EVERY: Duration = Duration::from_secs(10);

    /// Before any other thread is there.
    pub(super) fn keep_small() {
        // SAFETY: takes two numbers and changes only the allocator's own settings.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, ARENAS);
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_BYTES_MAX);
        }
        // A system that has no thread left for it goes without.
        let _ = thread::Builder::new().name("heap".into()).stack_size(64 << 10).spawn(|| {
            loop {
                thread::sleep(TRIM_EVERY);
                // SAFETY: takes a number; it holds the arena's lock meanwhile, as an allocation does.
                unsafe { libc::malloc_trim(0) };
            }
        });
    }
}
