//! Randomness of the operating system, for values that must not be guessed or repeated: secrets, nonces, session numbers.
//!
//! Training never uses it: its choices follow from a seed.

#![allow(clippy::disallowed_types, reason = "these numbers must not be predictable")]

use rand::TryRng;
use rand::rngs::SysRng;

/// Random bytes that cannot be predicted.
///
/// # Panics
/// If the operating system provides no randomness: nothing safe can be done without it.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
