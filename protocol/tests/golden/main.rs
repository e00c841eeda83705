//! Golden bytes: every message on the wire, field by field, in files that people can read.
//!
//! A peer written in another language is correct if it produces and understands the files in `golden/`. Each has one frame as hexadecimal
//! digits, a line for each field, with the field's name and value after `#`. The tests make the same lines from the messages in
//! `samples.rs`, so a change of the format appears as a change of a file in the same commit.
//! # How it works
//! 1. `fields.rs` lists the fields of a message, without `..`, so that a new message or field does not compile until it is listed.
//! 2. The test encodes each sample, compares it with its file byte for byte, and decodes the file's bytes to the same message.
//! 3. `UPDATE_GOLDEN=1 cargo test -p peergrad-protocol --test golden` rewrites the files.
//!
//! # Invariants
//! - From 0.1.0 on the files are frozen: other bytes need another [`VERSION`](peergrad_protocol::wire::VERSION). Before that, a change of a
//!   file is a change of the protocol and must be in the CHANGELOG.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use peergrad_protocol::durable::{DurableRecord, RunDefinition};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::message::{
    AdminMessage, AgreementMessage, JoinMessage, MergeMessage, Message, Phase, Refusal, TrainingMessage,
};
use peergrad_protocol::view::Recovery;
use peergrad_protocol::wire::{self, Decode, DecodeError, PREFIX_BYTES, Prefix};
use peergrad_protocol::{Buffer, Frame, PeerId, RunId};

use fields::{change_fields, frame_sheet, view_fields};
use samples::{Sample, bytes, durable, first_view, invite, later_view, samples};
use sheet::Sheet;

mod fields;
mod samples;
mod sheet;

#[test]
fn every_message_has_its_golden_bytes() {
    for Sample { name, message, payload } in samples() {
        let frame = Frame::encode(&message, payload.as_deref().map(Buffer::from_bytes));
        let sheet = frame_sheet(&message, payload.as_deref());
        let encoded = [&frame.head, payload.as_deref().unwrap_or_default()].concat();
        assert_eq!(encoded, sheet.bytes(), "{name}: the encoder and the list of fields in this test differ");
        compare(&format!("{name}.hex"), &sheet.render(&format!("One frame: {name}.")));

        let decoded = split(&parse(&read(&format!("{name}.hex")))).decode();
        assert_eq!(decoded, Ok(message), "{name}: the file decodes to another message");
    }
}

#[test]
fn an_invite_has_its_golden_text() {
    let Invite { run, secret, contacts } = &invite();
    let mut sheet = Sheet::default();
    sheet.array("run", &run.0);
    sheet.array("secret", &secret.0);
    sheet.length("contacts", contacts.len());
    contacts.iter().for_each(|contact| sheet.contact("contact", contact));
    let record = sheet.bytes();
    assert_eq!(
        wire::encode_record(&invite()),
        record,
        "the encoder and the list of fields in this test differ"
    );
    let checksum = ContentDigest::of(&record).0;
    sheet.raw(&checksum[..4], "checksum: the first bytes of blake3 of all above");

    let heading = "The bytes of an invite. Its text, in `invite.txt`, is `pg1` and these in base 58.";
    compare("invite.hex", &sheet.render(heading));
    compare("invite.txt", &format!("{}\n", invite()));
    assert_eq!(read("invite.txt").parse(), Ok(invite()));
}

#[test]
fn a_durable_record_has_its_golden_bytes() {
    let DurableRecord { view, incarnation, acceptor, definition } = &durable();
    let mut sheet = Sheet::default();
    view_fields(view, &mut sheet);
    sheet.value("incarnation", incarnation);
    sheet.some("promised", acceptor.promised().as_ref(), |sheet, ballot| sheet.ballot("promised", ballot));
    sheet.some("accepted", acceptor.accepted(), |sheet, (ballot, change)| {
        sheet.ballot("accepted.ballot", ballot);
        change_fields(change, sheet);
    });
    let RunDefinition { specification, nonce } = definition;
    sheet.length("specification", specification.len());
    sheet.raw(specification, format!("{:?}", String::from_utf8_lossy(specification)));
    sheet.array("nonce", nonce);
    let checksum = blake3::hash(&sheet.bytes());
    sheet.raw(&checksum.as_bytes()[..16], "checksum");
    assert_eq!(
        *durable().to_bytes(),
        sheet.bytes(),
        "the encoder and the list of fields in this test differ"
    );
    assert_eq!(durable().to_durable_bytes().to_bytes(), *durable().to_bytes(), "its entries are the whole");
    compare(
        "durable.hex",
        &sheet.render("What a member keeps on its disk, to know after a crash what it has promised."),
    );
    assert_eq!(DurableRecord::from_bytes(&parse(&read("durable.hex"))), Some(durable()));
}

/// Names and keys that peers compute independently and that must be equal.
#[test]
fn derived_values_are_pinned() {
    let Secret(prologue) = Secret(Secret(bytes(0xc0)).handshake_prologue());
    let run = RunId::derive(b"[model]\n", &bytes(0x40));
    let text = format!(
        "{}  # text form of the peer id 20 21 .. 3f\n\
         {run}  # run id of the specification and nonce in welcome.hex\n\
         {}  # digest of the view in install_first_view.hex\n\
         {}  # digest of the view in install_later_view.hex\n\
         {}  # handshake prologue of the secret in invite.hex\n",
        PeerId(bytes(0x20)),
        first_view().digest(),
        later_view().digest(),
        RunId(prologue),
    );
    compare("derived.txt", &text);
}

/// The match in `fields.rs` requires that a new message is listed; this test requires a sample of it.
#[test]
fn every_variant_has_a_sample() {
    let mut messages = BTreeSet::new();
    let mut refusals = BTreeSet::new();
    let mut recoveries = BTreeSet::new();
    let mut phases = BTreeSet::new();
    for sample in samples() {
        let record = wire::encode_record(&sample.message);
        messages.insert((record[0], record[conversation_at(&sample.message)]));
        match &sample.message {
            Message::Join(JoinMessage::Refuse(refusal)) => refusals.insert(wire::encode_record(refusal)[0]),
            Message::Agreement(AgreementMessage::Install(view)) => {
                recoveries.insert(wire::encode_record(&view.recovery)[0])
            }
            Message::InView { message: TrainingMessage::Segment(segment), .. } => {
                phases.insert(wire::encode_record(&segment.phase)[0])
            }
            _ => false,
        };
    }
    assert_eq!(
        messages.iter().map(|(conversation, _)| *conversation).collect::<BTreeSet<_>>(),
        variants::<Message>()
    );
    let known = |conversation: u8| -> BTreeSet<u8> {
        messages.iter().filter(|(of, _)| *of == conversation).map(|(_, message)| *message).collect()
    };
    assert_eq!(known(0), variants::<JoinMessage>());
    assert_eq!(known(1), variants::<AgreementMessage>());
    assert_eq!(known(2), variants::<TrainingMessage>());
    assert_eq!(known(3), variants::<MergeMessage>());
    assert_eq!(known(4), variants::<AdminMessage>());
    assert_eq!(refusals, variants::<Refusal>());
    assert_eq!(recoveries, variants::<Recovery>());
    assert_eq!(phases, variants::<Phase>());
}

/// The position in a record of the message's number within its conversation: a message of a view has the view first.
fn conversation_at(message: &Message) -> usize {
    if let Message::InView { view, .. } = message { 1 + view.0.len() } else { 1 }
}

/// The valid discriminants of an enum: followed by zeros, a valid one decodes and leaves some zeros over.
fn variants<T: Decode<()>>() -> BTreeSet<u8> {
    let is_known = |&tag: &u8| {
        let mut record = [0; 512];
        record[0] = tag;
        matches!(wire::decode_record::<T>(&record), Err(DecodeError::Length))
    };
    (0..=250).filter(is_known).collect()
}

#[test]
fn every_file_has_a_sample() {
    let mut expected: BTreeSet<String> =
        samples().iter().map(|sample| format!("{}.hex", sample.name)).collect();
    assert_eq!(expected.len(), samples().len(), "two samples share a file");
    expected.extend(["durable.hex", "invite.hex", "invite.txt", "derived.txt"].map(String::from));
    for entry in fs::read_dir(folder()).expect("the folder of golden files is there") {
        let name = entry.expect("the folder can be listed").file_name().into_string().expect("a plain name");
        assert!(
            name.ends_with(".rs") || expected.contains(&name),
            "golden/{name} belongs to no sample: delete it or bring its sample back"
        );
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name))
        .unwrap_or_else(|error| panic!("golden/{name}: {error}; {HOW_TO_UPDATE}"))
}

/// Compares a file with the expected text, or rewrites it if that was requested.
fn compare(name: &str, expected: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(folder().join(name), expected).expect("golden files can be written");
    }
    // A checkout may have changed the line ends.
    let found = read(name).replace("\r\n", "\n");
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "golden/{name}, line {}; {HOW_TO_UPDATE}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "lines of golden/{name}; {HOW_TO_UPDATE}");
}

const HOW_TO_UPDATE: &str = "if the protocol was meant to change, rewrite the files with \
    `UPDATE_GOLDEN=1 cargo test -p peergrad-protocol --test golden` and say so in the CHANGELOG";

/// The bytes of a golden file: hexadecimal digits up to `#` on each line.
fn parse(text: &str) -> Vec<u8> {
    let digits = text.lines().filter_map(|line| line.split('#').next());
    let digits: Vec<u8> = digits.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Cuts a stream's bytes into the parts of a frame, as a reader does.
fn split(stream: &[u8]) -> Frame {
    let prefix = *stream.first_chunk::<PREFIX_BYTES>().expect("a frame begins with a prefix");
    let prefix = Prefix::decode(prefix).expect("a golden prefix is within the limits");
    let (head, payload) = stream.split_at(PREFIX_BYTES + prefix.header_bytes);
    assert_eq!(payload.len(), prefix.payload_bytes, "the file has another length than its prefix says");
    let payload = (!payload.is_empty()).then(|| Buffer::from_bytes(payload));
    Frame { head: head.to_vec(), payload }
}
