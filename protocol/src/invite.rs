//! The invite: one line of text with all that a joiner needs.
//!
//! `pg1` and base 58 of (run id, secret, contacts), closed by four bytes of checksum, so that a line that lost its end in
//! a chat window is told apart from a wrong one. It contains the run's secret: treat it like a password.
//!
//! Mail and chat programs, shells and people change such a line on its way: they wrap and quote it, put brackets or quotation marks around
//! it, and leave the command before it. All of that is accepted. The checksum decides which pieces belong to the invite.

use std::borrow::Cow;
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
    /// The prefix is there, but in capitals.
    #[error(
        "this invite has lost the difference between small letters and capitals; copy it again, or send it as a file"
    )]
    Capitals,
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
        let begins_word = |at: &usize| !text[..*at].chars().next_back().is_some_and(char::is_alphanumeric);
        let mut starts = text.match_indices(PREFIX).map(|(at, _)| at).filter(begins_word).peekable();
        if starts.peek().is_none() {
            return Err(match without_invites(text) {
                Cow::Owned(_) if text.contains("PG1") => NotAnInvite::Capitals,
                Cow::Owned(_) => NotAnInvite::Damaged,
                Cow::Borrowed(_) => NotAnInvite::Prefix,
            });
        }
        let mut candidates = starts.take(STARTS_MAX).map(|at| first_in(&text[at + PREFIX.len()..]));
        candidates.find_map(|invite| invite).ok_or(NotAnInvite::Damaged)
    }
}

/// The invite that the text after a prefix begins with, wherever its line was broken.
fn first_in(text: &str) -> Option<Invite> {
    let is_gap = |letter: char| letter.is_whitespace() || GAPS.contains(letter);
    let is_base58 = |letter: char| letter.is_ascii_alphanumeric() && !"0OIl".contains(letter);
    let end = text.find(|letter| !is_gap(letter) && !is_base58(letter)).unwrap_or(text.len());
    let mut encoded = String::new();
    for piece in text[..end].split(is_gap).filter(|piece| !piece.is_empty()).take(PIECES_MAX) {
        encoded.push_str(piece);
        if encoded.len() > TEXT_BYTES_MAX {
            return None;
        }
        if encoded.len() >= TEXT_BYTES_MIN
            && let Some(invite) = decoded(&encoded)
        {
            return Some(invite);
        }
    }
    None
}

/// The invite of these characters without the prefix.
fn decoded(encoded: &str) -> Option<Invite> {
    let bytes = bs58::decode(encoded).into_vec().ok()?;
    let (record, sum) = bytes.split_last_chunk::<4>()?;
    if *sum != checksum(record) {
        return None;
    }
    let invite: Invite = codec::decode_small_record(record).ok()?;
    invite.contacts.iter().all(|contact| are_bounded(&contact.addresses)).then_some(invite)
}

/// The text without what may be an invite, whole or damaged: error messages repeat what users typed, and end up in bug reports.
///
/// That is each run of more than 64 letters and digits. Digests and ids of peers are not longer.
#[must_use]
pub fn without_invites(text: &str) -> Cow<'_, str> {
    let is_long = |word: &str| word.len() > WORD_BYTES_MAX;
    let is_outside = |letter: char| !letter.is_ascii_alphanumeric();
    if !text.split(is_outside).any(is_long) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for part in text.split_inclusive(is_outside) {
        let word = part.trim_end_matches(is_outside);
        if is_long(word) {
            shown.push_str(&word[..PREFIX.len()]);
            shown.push_str("...");
            shown.push_str(&part[word.len()..]);
        } else {
            shown.push_str(part);
        }
    }
    Cow::Owned(shown)
}

fn checksum(record: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = *blake3::hash(record).as_bytes();
    [a, b, c, d]
}

const PREFIX: &str = "pg1";
/// Base 58 decoding is quadratic; an honest invite is a few hundred characters.
const TEXT_BYTES_MAX: usize = 8 * 1024;
/// No invite is shorter: a run id and a secret alone have 64 bytes.
const TEXT_BYTES_MIN: usize = 80;
/// In how many pieces an invite may be broken.
const PIECES_MAX: usize = 128;
/// How many prefixes are tried: a text may mention them.
const STARTS_MAX: usize = 4;
/// What may stand inside an invite besides white space: the marks of quotes and of soft line ends, and characters without width.
const GAPS: &str =
    "><|\"'`\u{201c}\u{201d}\u{2018}\u{2019}\\=*_~\u{ad}\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}";
/// The longest run of letters and digits in a text that is certainly no invite.
const WORD_BYTES_MAX: usize = 64;

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
        assert_eq!(text[3..].parse::<Invite>(), Err(NotAnInvite::Damaged), "without its prefix");
        assert_eq!(text.to_uppercase().parse::<Invite>(), Err(NotAnInvite::Capitals));
        assert_eq!("pg1".repeat(100_000).parse::<Invite>(), Err(NotAnInvite::Damaged));
        assert_eq!("pg1 ".repeat(100_000).parse::<Invite>(), Err(NotAnInvite::Damaged));
        assert_eq!(text.replace('A', "B").parse::<Invite>().is_ok(), !text.contains('A'));
    }

    #[test]
    fn an_invite_is_read_as_mail_chat_and_shells_pass_it_on() {
        let text = invite().to_string();
        let lines: Vec<&str> =
            (0..text.len()).step_by(72).map(|at| &text[at..text.len().min(at + 72)]).collect();
        let quoted: Vec<String> = lines.iter().map(|line| format!("> > {line}")).collect();
        for passed_on in [
            lines.join("\n"),
            lines.join("\r\n    "),
            lines.join("=\r\n"),
            lines.join(" \\\n"),
            quoted.join("\n"),
            format!("<{text}>"),
            format!("\u{201c}{text}\u{201d}"),
            format!("`{text}`"),
            format!("peer join {text}"),
            format!("$ peer join '{text}' --port 4748"),
            format!("\u{feff}{text}\u{200b}\n"),
            format!("Join with pg1 as follows:\n\n    peer join {}\n\nSee you soon.", lines.join("\n    ")),
            format!("{text}."),
            format!("({text}), and thanks"),
        ] {
            assert_eq!(passed_on.parse(), Ok(invite()), "{passed_on}");
        }
    }

    #[test]
    fn texts_are_shown_without_invites() {
        let text = invite().to_string();
        assert_eq!(without_invites(&format!("`{text}` is no file, {text}")), "`pg1...` is no file, pg1...");
        assert_eq!(without_invites(&text.to_uppercase()), "PG1...");
        let digest = "f".repeat(64);
        assert!(matches!(without_invites(&digest), Cow::Borrowed(_)), "a digest");
        assert!(matches!(without_invites("ü".repeat(100).as_str()), Cow::Borrowed(_)));
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", invite()).contains('2'), "{:?}", invite().secret);
    }
}
