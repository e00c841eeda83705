//! Randomness of the operating system, for what must not be guessed or repeated: secrets, nonces, session numbers.
//!
//! Training never comes here: its choices follow from a seed.

#![allow(clippy::disallowed_types, reason = "what is drawn here must not be replayed by anybody")]

use rand::TryRng;
use rand::rngs::SysRng;

/// Bytes that nobody can predict.
///
/// # Panics
/// If the operating system has no randomness to give; nothing safe can be done without it.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
