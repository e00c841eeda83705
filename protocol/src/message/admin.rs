//! Messages for requests of users to a running swarm: to let a member leave, to expel a peer, to end the run, and to change
//! the run's secret.
//!
//! ```text
//! member                       coordinator               member                every other member
//!   | -- Retire, until it has left --> |                   | -- Rekey ------------> |   each member forwards it to all once,
//!   |                                  |                   | <----------- Rekeyed - |   in case the first sender fails
//!   | -- Expel, to every member, until the peer is expelled
//!   | -- EndRun, to every member, and to the coordinator until the end is agreed
//! ```

use super::{Invalid, in_range};
use crate::PeerId;
use crate::invite::Secret;
use crate::view::Expulsion;
use crate::wire::codec::{Decode, Encode};

/// A message that carries out a request of a user, or of a member's own rules.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum AdminMessage {
    /// Member to coordinator: the sender wants to leave the view. Repeated until it has left.
    Retire,
    /// Member to every member: expel this peer. Repeated until the peer is expelled.
    Expel(Expulsion),
    /// Member to every member: the run has a new secret. Repeated until the receiver has confirmed it.
    Rekey(Rekey),
    /// The answer, to the member whose user asked for the new secret: the secret with this [`Rekey::at`] is stored.
    Rekeyed(u64),
    /// Member to every member, and again to the coordinator until the members have agreed on it: end the run after the next step.
    EndRun,
}

/// A new secret of the run. Of two secrets, the later one is valid.
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
    /// Whether `other` is later.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        (self.at, self.by) < (other.at, other.by)
    }

    /// Whether its time is in the possible range, so that a later secret can exist.
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
            Self::Retire | Self::EndRun | Self::Expel(_) => Ok(()),
        }
    }
}

/// The latest possible time, in milliseconds: some hundred million years.
const AT_MAX: u64 = u64::MAX >> 2;
