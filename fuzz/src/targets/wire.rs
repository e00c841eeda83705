//! Bytes of other peers: frames, table messages and invites.

use peergrad_protocol::invite::{Invite, without_invites};
use peergrad_protocol::limits::{CONTROL_HEADER_BYTES_MAX, TABLE_MESSAGE_BYTES_MAX};
use peergrad_protocol::wire::{self, PREFIX_BYTES, Prefix, decode_table_message, encode_table_message};
use peergrad_protocol::{Buffer, Frame};

use super::{repository_file, repository_files};
use crate::target::{Bound, Form, Target, Verdict};

/// The bytes of a golden file: hexadecimal digits, and comments after `#`.
pub(super) fn golden_bytes(text: &str) -> Vec<u8> {
    let digits = text.lines().filter_map(|line| line.split('#').next());
    let digits: Vec<u8> = digits.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

pub(super) const GOLDEN: &str = "protocol/tests/golden";

/// The golden frames, each with its name.
fn golden_frames() -> Vec<(String, Vec<u8>)> {
    let is_frame = |name: &str| !["durable.hex", "invite.hex"].contains(&name);
    let files = repository_files(GOLDEN, ".hex").into_iter().filter(|(name, _)| is_frame(name));
    files.map(|(name, text)| (name, golden_bytes(&text))).collect()
}

/// Cuts bytes into the parts of a frame, as a reader does.
fn split(bytes: &[u8]) -> Option<Frame> {
    let prefix = Prefix::decode(*bytes.first_chunk::<PREFIX_BYTES>()?).ok()?;
    let (head, payload) = bytes.split_at_checked(PREFIX_BYTES + prefix.header_bytes)?;
    (payload.len() == prefix.payload_bytes).then(|| {
        let payload = (!payload.is_empty()).then(|| Buffer::from_bytes(payload));
        Frame { head: head.to_vec(), payload }
    })
}

/// Frames.
pub(super) struct FrameTarget;

impl Target for FrameTarget {
    fn name(&self) -> &'static str {
        "frame"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        golden_frames().into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Keeps the payload's length where that is possible, and gives the rest to the header.
    fn mend(&self, input: &mut Vec<u8>) {
        let Some(prefix) = input.first_chunk_mut::<PREFIX_BYTES>() else { return };
        let [.., a, b, c, d, _, _, _, _] = *prefix;
        let announced = u32::from_le_bytes([a, b, c, d]) as usize;
        let rest = input.len() - PREFIX_BYTES;
        let payload_bytes = if announced <= rest { announced } else { 0 };
        let header_bytes = rest - payload_bytes;
        input[2..6].copy_from_slice(&(header_bytes as u32).to_le_bytes());
        input[6..10].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        let (head, payload) = input.split_at_mut(PREFIX_BYTES + header_bytes);
        wire::seal(head, payload);
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Some(frame) = split(input) else { return Verdict::Refused };
        let Ok(message) = frame.decode() else { return Verdict::Refused };
        let again = Frame::encode(&message, frame.payload);
        assert_eq!(again.head, frame.head, "a message has one encoding");
        Verdict::Accepted
    }

    fn bound(&self, _input_bytes: usize) -> Bound {
        // The decoder's own bound, for the largest header.
        Bound { largest_bytes: 12 * CONTROL_HEADER_BYTES_MAX, total_bytes: 24 * CONTROL_HEADER_BYTES_MAX }
    }
}

/// Table messages.
pub(super) struct WordTarget;

impl Target for WordTarget {
    fn name(&self) -> &'static str {
        "word"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let tables = golden_frames().into_iter().filter(|(name, _)| name.starts_with("table_"));
        let mut examples = Vec::new();
        for (name, bytes) in tables {
            let frame = split(&bytes).unwrap_or_else(|| panic!("{name} is no frame"));
            let payload = frame.payload.unwrap_or_else(|| panic!("{name} has no table messages"));
            let mut stream = payload.bytes();
            while let Some((length, rest)) = stream.split_first_chunk() {
                let (message, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
                examples.push(message.to_vec());
                stream = rest;
            }
        }
        examples
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Ok(message) = decode_table_message(input) else { return Verdict::Refused };
        let mut stream = Vec::new();
        encode_table_message(&message, &mut stream);
        assert!(decode_table_message(&stream[4..]).is_ok(), "what was accepted is accepted again");
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        // The decoder's budgets follow the number of bytes in steps.
        let largest_bytes = match input_bytes.div_ceil(8 << 10) {
            0..=1 => 1 << 20,
            2..=32 => 24 << 20,
            _ => 4 * TABLE_MESSAGE_BYTES_MAX,
        };
        Bound { largest_bytes, total_bytes: 2 * largest_bytes }
    }
}

/// Invites: `T` and a text, or `R` and the bytes of a record, to which the checksum is added.
pub(super) struct InviteTarget;

impl Target for InviteTarget {
    fn name(&self) -> &'static str {
        "invite"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let text = repository_file(&format!("{GOLDEN}/invite.txt"));
        let text = text.trim();
        let wrapped: Vec<&str> =
            (0..text.len()).step_by(60).map(|at| &text[at..text.len().min(at + 60)]).collect();
        let texts = [
            text.to_owned(),
            format!("> {}", wrapped.join("\n> ")),
            format!("$ peer join '{text}' --port 4748"),
            format!("Join with pg1 as follows:\n\n    <{}=\r\n>\n", wrapped.join("=\r\n")),
        ];
        let mut record = golden_bytes(&repository_file(&format!("{GOLDEN}/invite.hex")));
        record.truncate(record.len() - 4);
        let texts = texts.into_iter().map(|text| [b"T", text.as_bytes()].concat());
        texts.chain([[b"R", &record[..]].concat()]).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let text = match input.split_first() {
            Some((b'R', record)) => {
                // Encoding is quadratic, and no record is longer.
                let record = &record[..record.len().min(RECORD_BYTES_MAX)];
                let digest = blake3::hash(record);
                format!("pg1{}", bs58::encode([record, &digest.as_bytes()[..4]].concat()).into_string())
            }
            Some((_, text)) => String::from_utf8_lossy(text).into_owned(),
            None => return Verdict::Refused,
        };
        let shown = without_invites(&text);
        let Ok(invite) = text.parse::<Invite>() else { return Verdict::Refused };
        assert_eq!(invite.to_string().parse(), Ok(invite.clone()), "an invite reads back");
        assert!(!shown.contains(&invite.to_string()), "an invite is not shown");
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        Bound { largest_bytes: (1 << 20) + 16 * input_bytes, total_bytes: (64 << 20) + 64 * input_bytes }
    }
}

/// More than any invite's record has.
const RECORD_BYTES_MAX: usize = 8 << 10;
