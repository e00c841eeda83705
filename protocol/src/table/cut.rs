//! Messages about a cut: the state of all chunks at a moment when no change is under way.

use crate::limits::STEPS_MAX;
use crate::wire::codec::{Decode, Encode};

/// A message between the member of lowest rank, which asks for a cut, and another member. Each attempt has a number of its own in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CutMessage {
    /// From the member of lowest rank: no new changes are sent to owners until the attempt is over.
    Hold {
        /// The attempt.
        attempt: u64,
    },
    /// To the member of lowest rank: all changes that the sender has sent to owners are safe.
    Held {
        /// The attempt.
        attempt: u64,
        /// The number that the sender would give to the cut: at least its worker's clock, and larger than that of the last cut.
        number: u64,
    },
    /// From the member of lowest rank: all members are held, so each now copies the chunks that it stores.
    Take {
        /// The attempt.
        attempt: u64,
        /// The number of the cut: the largest that a member has named.
        number: u64,
    },
    /// To the member of lowest rank: the chunks are copied.
    Taken {
        /// The attempt.
        attempt: u64,
    },
    /// From the member of lowest rank: the attempt is over, and changes are sent again.
    Release {
        /// The attempt.
        attempt: u64,
    },
}

impl CutMessage {
    pub(super) fn is_valid(self) -> bool {
        match self {
            Self::Held { number, .. } | Self::Take { number, .. } => (1..=STEPS_MAX).contains(&number),
            Self::Hold { .. } | Self::Taken { .. } | Self::Release { .. } => true,
        }
    }
}
