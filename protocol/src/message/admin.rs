//! What users ask of a run that goes on: let a member go, put one out, change the secret.
//!
//! ```text
//! member                       coordinator               member                every other member
//!   | -- Retire, until it is out --> |                     | -- Rekey ------------> |   each passes it on to all, once:
//!   |                                |                     | <----------- Rekeyed - |   the first sender may be gone
//!   | -- Expel, to every member, until the one named is out
//! ```

use super::{Invalid, in_range};
use crate::PeerId;
use crate::invite::Secret;
use crate::view::Expulsion;
use crate::wire::codec::{Decode, Encode};

/// A message that carries out what a user, or a member's own rules, ask of the run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum AdminMessage {
    /// Member to coordinator: I want to leave the view. Repeated until the member is out.
    Retire,
    /// Member to every member: put this peer out of the run for good. Repeated until the peer is out.
    Expel(Expulsion),
    /// Member to every member: the run has another secret from now on. Repeated until the receiver has confirmed it.
    Rekey(Rekey),
    /// The answer, to the member whose user asked for the new secret: the secret of that time is stored here.
    Rekeyed(u64),
}

/// The run's secret from now on. Of two secrets the later one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Rekey {
    /// When the secret was drawn: Unix time in milliseconds by the clock of `by`, and later than any that `by` knew.
    pub at: u64,
    /// The member whose user asked for the new secret.
    pub by: PeerId,
    /// The new secret.
    pub secret: Secret,
}

impl Rekey {
    /// Whether `other` came later.
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

impl AdminMessage {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Rekey(rekey) => in_range(rekey.is_possible()),
            Self::Rekeyed(at) => in_range(*at <= AT_MAX),
            Self::Retire | Self::Expel(_) => Ok(()),
        }
    }
}

/// Some hundred million years.
const AT_MAX: u64 = u64::MAX >> 2;
