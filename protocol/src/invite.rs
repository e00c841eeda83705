//! The invite: one line of text with all that a joiner needs.
//!
//! `pg1` and base 58 of (run id, secret, contacts), closed by four bytes of checksum, so that a line that lost its end in
//! a chat window is told apart from a wrong one. It contains the run's secret: treat it like a password.

use std::fmt;
use std::str::FromStr;

use crate::id::RunId;
use crate::message::Contact;
use crate::view::are_bounded;
use crate::wire::codec::{self, Decode, Encode};

/// The random bytes that every peer of a run proves to know in the handshake of each connection.
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// The bytes that are mixed into the Noise handshake. A peer without the secret fails there, before any protocol starts.
    #[must_use]
    pub fn handshake_prologue(&self) -> [u8; 32] {
        blake3::derive_key("peergrad 1 noise prologue", &self.0)
    }

    /// The key for the proofs of both ends of a direct lane.
    #[must_use]
    pub fn lane_key(&self) -> [u8; 32] {
        blake3::derive_key("peergrad 1 direct lane", &self.0)
    }

    /// The key for the proofs of both ends of a QUIC connection.
    #[must_use]
    pub fn quic_key(&self) -> [u8; 32] {
        blake3::derive_key("peergrad 1 quic", &self.0)
    }
}

/// The secret is never shown: logs are copied into bug reports.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What a joiner needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Invite {
    /// The run to join.
    pub run: RunId,
    /// The run's secret.
    pub secret: Secret,
    /// Peers to ask, any one of which is enough.
    pub contacts: Vec<Contact>,
}

/// The text is not an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnInvite {
    /// The text does not start like an invite.
    #[error(
        "an invite begins with `{PREFIX}`; copy the whole line that `peer start` or `peer invite` printed"
    )]
    Prefix,
    /// The text was cut or altered.
    #[error(
        "the invite is incomplete or altered; copy the whole line that `peer start` or `peer invite` printed"
    )]
    Damaged,
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = codec::encode_record(self);
        bytes.extend(checksum(&bytes));
        write!(f, "{PREFIX}{}", bs58::encode(bytes).into_string())
    }
}

impl FromStr for Invite {
    type Err = NotAnInvite;

    fn from_str(text: &str) -> Result<Self, NotAnInvite> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(NotAnInvite::Prefix)?;
        if encoded.len() > TEXT_BYTES_MAX {
            return Err(NotAnInvite::Damaged);
        }
        let bytes = bs58::decode(encoded).into_vec().map_err(|_| NotAnInvite::Damaged)?;
        let (record, sum) = bytes.split_last_chunk::<4>().ok_or(NotAnInvite::Damaged)?;
        if *sum != checksum(record) {
            return Err(NotAnInvite::Damaged);
        }
        let invite: Self = codec::decode_record(record).map_err(|_| NotAnInvite::Damaged)?;
        if !invite.contacts.iter().all(|contact| are_bounded(&contact.addresses)) {
            return Err(NotAnInvite::Damaged);
        }
        Ok(invite)
    }
}

fn checksum(record: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = *blake3::hash(record).as_bytes();
    [a, b, c, d]
}

const PREFIX: &str = "pg1";
/// Base 58 decoding is quadratic; an honest invite is a few hundred characters.
const TEXT_BYTES_MAX: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PeerId;

    fn invite() -> Invite {
        let contact = Contact { peer: PeerId([4; 32]), addresses: vec!["/ip4/10.0.0.7/tcp/4747".to_owned()] };
        Invite { run: RunId([1; 32]), secret: Secret([2; 32]), contacts: vec![contact] }
    }

    #[test]
    fn an_invite_reads_back() {
        let text = invite().to_string();
        assert_eq!(format!("  {text}\n").parse(), Ok(invite()));
    }

    #[test]
    fn a_cut_or_altered_invite_is_rejected_as_damaged() {
        let text = invite().to_string();
        for cut in 3..text.len() {
            assert_eq!(text[..cut].parse::<Invite>(), Err(NotAnInvite::Damaged), "cut at {cut}");
        }
        assert_eq!("/ip4/10.0.0.7/tcp/4747".parse::<Invite>(), Err(NotAnInvite::Prefix));
        assert_eq!(text.replace('A', "B").parse::<Invite>().is_ok(), !text.contains('A'));
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", invite()).contains('2'), "{:?}", invite().secret);
    }
}
