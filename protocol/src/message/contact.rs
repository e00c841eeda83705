//! Contacts: peers, and the addresses at which they can be dialled.

use crate::id::PeerId;
use crate::wire::codec::{Decode, Encode};

/// A peer and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Contact {
    /// The peer's id.
    pub peer: PeerId,
    /// The addresses at which it can be dialled, best first.
    pub addresses: Vec<String>,
}
