//! Rekey: another secret for a run that goes on.
//!
//! ```text
//!   whose user asks                every other member
//!   | -- Rekey ------------------------> |   and from each to all, once: whoever began may be gone
//!   | <------------------------ Rekeyed -- |
//! ```

use crate::PeerId;
use crate::invite::Secret;
use crate::wire::{Decode, Encode};

/// The run's secret from now on. Of two the later one holds, whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Rekey {
    /// When it was drawn: Unix time in milliseconds by the clock of whoever began, and later than any that it knew.
    pub at: u64,
    /// Whose user asked for it.
    pub by: PeerId,
    /// The secret.
    pub secret: Secret,
}

impl Rekey {
    /// Whether another one came later.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        (self.at, self.by) < (other.at, other.by)
    }

    /// Whether there can be a later one.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.at <= AT_MAX
    }
}

/// Some hundred million years.
pub(crate) const AT_MAX: u64 = u64::MAX >> 2;
