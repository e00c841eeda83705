//! Identifiers: newtypes, so that a rank is never mistaken for a view number.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::wire::codec::{Decode, Encode};

/// An ed25519 public key: the identity of a peer, on every connection and in every run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct PeerId(pub [u8; 32]);

impl PeerId {
    /// The last six characters of the full text form: enough to tell peers apart on a screen.
    #[must_use]
    pub fn short(&self) -> String {
        let full = self.to_string();
        full[full.len() - SHORT_CHARS..].to_owned()
    }
}

/// The text form that libp2p uses (`12D3KooW...`): base 58 of the identity multihash of the public key.
impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut multihash = [0; MULTIHASH_BYTES];
        multihash[..6].copy_from_slice(&ED25519_IDENTITY_PREFIX);
        multihash[6..].copy_from_slice(&self.0);
        f.write_str(&bs58::encode(multihash).into_string())
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for PeerId {
    type Err = NotAPeerId;

    fn from_str(text: &str) -> Result<Self, NotAPeerId> {
        // Into a buffer of that size: a vector would follow the text, and decoding is quadratic.
        let mut multihash = [0; MULTIHASH_BYTES];
        let length = bs58::decode(text).onto(&mut multihash).map_err(|_| NotAPeerId)?;
        let key = multihash[..length].strip_prefix(&ED25519_IDENTITY_PREFIX).ok_or(NotAPeerId)?;
        Ok(Self(key.try_into().map_err(|_| NotAPeerId)?))
    }
}

/// The text is not the base 58 form of an ed25519 peer id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a peer id: expected something like 12D3KooW..., from an invite or a peer's first line")]
pub struct NotAPeerId;

/// Identity multihash (code 0, length 36) of a protobuf key message (type ed25519, 32 bytes).
const ED25519_IDENTITY_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
const MULTIHASH_BYTES: usize = 38;
const SHORT_CHARS: usize = 6;

macro_rules! digest_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
        pub struct $name(pub [u8; 32]);

        /// Lower-case hexadecimal, all 64 digits.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    };
}

digest_id! {
    /// The hash of a run's specification and of 32 random bytes drawn when the run was founded.
    RunId
}
digest_id! {
    /// The hash of a view record. It names the view everywhere.
    ViewDigest
}
digest_id! {
    /// The hash of a block of content: a data file, a parameter vector.
    ContentDigest
}

impl ContentDigest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The digest of all that `reader` gives.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn of_reader(reader: impl io::Read) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok(Self(*hasher.finalize().as_bytes()))
    }
}

impl RunId {
    /// The id of the run founded with this `specification` and `nonce`.
    #[must_use]
    pub fn derive(specification: &[u8], nonce: &[u8; 32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 run id");
        hasher.update(nonce).update(specification);
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight hexadecimal digits: the name of the run on a screen and in folder names.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

/// The number of a view: one more than its parent's. The first view of a run is number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct ViewNumber(pub u64);

/// A number that grows with each start of a peer, so that a restarted peer is not mistaken for its past self.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The first incarnation of the `start`-th start of a peer. The random `draw` tells apart two starts with the same count: one
    /// from the peer's directory, and one from a copy of it.
    #[must_use]
    pub fn of_start(start: u64, draw: u8) -> Self {
        Self(start << RETURNS_BITS | u64::from(draw) << (RETURNS_BITS - u8::BITS))
    }

    /// The next incarnation of the same start: the peer was removed from the view and rejoins.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether this is a later incarnation than `earlier` of the same start.
    #[must_use]
    pub fn is_rejoin_of(self, earlier: Self) -> bool {
        self > earlier && self.start() == earlier.start()
    }

    fn start(self) -> u64 {
        self.0 >> (RETURNS_BITS - u8::BITS)
    }
}

/// Bits for the incarnations of one start: more than any process uses up.
const RETURNS_BITS: u32 = 24;

/// A member's index in its view; meaningless without the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-member arrays.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank of the member at `index`.
    ///
    /// # Panics
    /// If `index` does not fit: views are far smaller.
    #[must_use]
    pub fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a view has fewer than 2^32 members"))
    }
}

/// The number of an optimizer step of the run; the first is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct StepNumber(pub u64);

impl StepNumber {
    /// The step after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_id_reads_back_from_its_text() {
        let peer = PeerId([7; 32]);
        assert!(peer.to_string().starts_with("12D3KooW"), "{peer}");
        assert_eq!(peer.to_string().parse(), Ok(peer));
        assert_eq!(peer.short().len(), 6);
    }

    #[test]
    fn other_text_is_no_peer_id() {
        for text in ["", "12D3KooW", "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", "l0O", "日本"] {
            assert_eq!(text.parse::<PeerId>(), Err(NotAPeerId), "{text}");
        }
        // Would take hours if all of it were decoded.
        assert_eq!("z".repeat(1 << 22).parse::<PeerId>(), Err(NotAPeerId));
    }

    #[test]
    fn a_run_id_depends_on_both_parts() {
        let id = RunId::derive(b"a", &[0; 32]);
        assert_ne!(id, RunId::derive(b"b", &[0; 32]));
        assert_ne!(id, RunId::derive(b"a", &[1; 32]));
    }
}
