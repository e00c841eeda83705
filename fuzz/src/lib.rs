//! Fuzzing: every decoder is given changed inputs, and must read or refuse them.
//!
//! A decoder reads what others wrote: a peer's frame, a user's file, a file that a disk has damaged. Whatever the bytes are, it may
//! neither panic nor hang nor take memory without bound. Random bytes would be refused at once. So valid examples are changed a little:
//! the result is wrong somewhere inside.
//!
//! ```text
//! examples of a target --.
//! accepted inputs -------+--> mutation --> mend lengths and checksums --> decoder --> accepted, refused
//!                        |                                                   |          '--> or a failure: panic, allocation
//!                        '---------------------------------------------------'
//! ```
//! # How it works
//! - A [`Target`](target::Target) is a decoder with its examples. [`targets`] lists all.
//! - A [`Session`](session::Session) makes inputs from a seed and runs them. Inputs that are accepted become examples, so changes add up.
//! - [`allocations`] counts what each execution allocates. A target has a bound on the largest allocation and on their sum.
//! - A failing input is made shorter and written to a file. `--replay FILE` runs it again. Files in `fuzz/regressions/` are run first by
//!   each session, and by `cargo test`.
//! - The command runs each target in a process of its own ([`worker`]), which keeps its current input in a file. So an input that
//!   overflows the stack, exhausts memory or never ends is found too.
//!
//! # Not here
//! Coverage: the compiler's instrumentation needs a nightly toolchain.

pub mod allocations;
pub mod inputs;
pub mod mutation;
pub mod session;
pub mod target;
pub mod targets;
pub mod worker;
