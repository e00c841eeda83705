//! Messages about a cut: the state of all chunks at a moment when no change is under way.

use crate::wire::codec::{Decode, Encode};

/// A message about a cut, which the member of lowest rank asks for. It carries the number of the attempt in this view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CutMessage {
    /// From the member of lowest rank: no new changes are sent to owners until the attempt is over.
    Hold(u64),
    /// To the member of lowest rank: all changes that the sender has sent to owners are safe.
    Held(u64),
    /// All members are held: the receiver copies the chunks that it stores, if it has not done so. The member of lowest rank sends this to all
    /// members; and each member that has copied sends it to all others, before any change that follows.
    Take(u64),
    /// From the member of lowest rank: the attempt is given up, and changes are sent again.
    Release(u64),
}
