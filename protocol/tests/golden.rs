//! Golden bytes: what every message looks like on the wire, field by field, in files that people read too.
//!
//! A peer written in another language is right when it produces and understands the files in `golden/`. Each holds one
//! frame as hexadecimal digits, a line for each field, with the field's name and value behind `#`. The same lines are made
//! here from the messages in [`samples`], so a change of the format shows as a change of a file in the same commit.
//!
//! # How it works
//! 1. [`fields`] takes a message apart, without `..`, so that a new message or field does not compile until it is shown.
//! 2. The test encodes each sample, compares it with its file byte for byte, and reads the file's bytes back as a message.
//! 3. `UPDATE_GOLDEN=1 cargo test -p peergrad-protocol --test golden` rewrites the files.
//!
//! # Invariants
//! - From 0.1.0 on the files are frozen: other bytes are another [`VERSION`](peergrad_protocol::wire::VERSION). Before
//!   that, a change of a file is a change of the protocol and belongs in the CHANGELOG.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use std::{array, fs};

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::message::{
    Complete, Contact, DataPiece, Departure, Join, Message, Phase, Refusal, Segment, Tally, WantData, Welcome,
};
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::wire::{self, Decode, Encode, PREFIX_BYTES, Prefix, WireError};
use peergrad_protocol::{Buffer, Epoch, Frame, Incarnation, PeerId, RunId, StepNumber, ViewDigest};

/// One message and its payload, with the name of its file.
struct Sample {
    name: &'static str,
    message: Message,
    payload: Option<Vec<u8>>,
}

/// Every message, and every variant within one; numbers are chosen so that each length of a varint occurs.
fn samples() -> Vec<Sample> {
    let mut samples = vec![
        control("join_with_run", Message::Join(join(Some(RunId(bytes(0x00)))))),
        control("join_without_run", Message::Join(Join { addresses: vec![], weight: 0, ..join(None) })),
        control("welcome", Message::Welcome(welcome())),
        control("refer", Message::Refer(contact())),
        control("refuse_other_run", Message::Refuse(Refusal::OtherRun { run: RunId(bytes(0x00)) })),
        control("refuse_started", Message::Refuse(Refusal::Started)),
        control("refuse_full", Message::Refuse(Refusal::Full)),
        control("refuse_not_yet", Message::Refuse(Refusal::NotYet)),
        control(
            "want_data",
            Message::WantData(WantData { digest: ContentDigest(bytes(0x60)), offset: 262_144 }),
        ),
        control("ready", Message::Ready),
        control("install_first_view", Message::Install(first_view())),
        control("install_later_view", Message::Install(later_view())),
        control(
            "complete",
            Message::Complete(Complete { view: ViewDigest(bytes(0xa0)), steps: StepNumber(5_000_000_000) }),
        ),
        control(
            "leave_on_its_own",
            Message::Leave(Departure { lost: None, reason: "stopped by its user".to_owned() }),
        ),
        control(
            "leave_after_a_loss",
            Message::Leave(Departure { lost: Some(PeerId(bytes(0x80))), reason: String::new() }),
        ),
    ];
    let elements: Vec<u8> = [1.0_f32, -0.5, 3.25].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (name, phase, payload) in [
        ("segment_reduce", Phase::Reduce, elements.clone()),
        ("segment_mirror", Phase::Mirror, elements),
        // A gathered segment's payload may be empty where a shard is.
        ("segment_gather_empty", Phase::Gather, vec![]),
    ] {
        samples.push(Sample { name, message: Message::Segment(segment(phase)), payload: Some(payload) });
    }
    // A file's bytes need not fill whole elements.
    for (name, payload) in [("data", b"5.1,3.5,setosa\n".to_vec()), ("data_empty", vec![])] {
        let message = Message::Data(DataPiece { digest: ContentDigest(bytes(0x60)), offset: 250 });
        samples.push(Sample { name, message, payload: Some(payload) });
    }
    samples
}

fn control(name: &'static str, message: Message) -> Sample {
    Sample { name, message, payload: None }
}

fn join(run: Option<RunId>) -> Join {
    Join { run, incarnation: Incarnation(1_700_000_000_000), addresses: addresses(), weight: 16 }
}

fn welcome() -> Welcome {
    Welcome { specification: b"[model]\n".to_vec(), nonce: bytes(0x40), founder: contact() }
}

fn contact() -> Contact {
    Contact { peer: PeerId(bytes(0x20)), addresses: addresses() }
}

fn addresses() -> Vec<String> {
    vec!["/ip4/192.0.2.7/tcp/4747".to_owned(), "/dns/peer.example/tcp/4747".to_owned()]
}

fn first_view() -> View {
    let member = |first: u8, weight| Member {
        peer: PeerId(bytes(first)),
        incarnation: Incarnation(1),
        addresses: vec![format!("/ip4/192.0.2.{first}/tcp/4747")],
        weight,
    };
    View {
        run: RunId(bytes(0x00)),
        epoch: Epoch(1),
        parents: vec![],
        members: vec![member(0x20, 1), member(0x80, 0)],
        recovery: Recovery::Found,
        ledger: Ledger::default(),
    }
}

fn later_view() -> View {
    View {
        epoch: Epoch(251),
        parents: vec![first_view().digest(), ViewDigest(bytes(0xa0))],
        recovery: Recovery::Resume { step: StepNumber(65_536) },
        ledger: Ledger {
            pass: 2,
            position: 65_535,
            given_back: vec![Span { start: 10, end: 20 }, Span { start: 250, end: 300 }],
        },
        ..first_view()
    }
}

fn segment(phase: Phase) -> Segment {
    Segment {
        view: ViewDigest(bytes(0xa0)),
        step: StepNumber(300),
        phase,
        owner: 3,
        index: 70_000,
        tally: Tally { samples: 64, loss: 0.75 },
    }
}

fn invite() -> Invite {
    Invite { run: RunId(bytes(0x00)), secret: Secret(bytes(0xc0)), contacts: vec![contact()] }
}

/// Counting bytes from `first`: a reader sees at once which way round they go.
fn bytes<const N: usize>(first: u8) -> [u8; N] {
    array::from_fn(|index| first + index as u8)
}

/// The lines of one file.
#[derive(Default)]
struct Sheet {
    lines: Vec<(Vec<u8>, String)>,
}

impl Sheet {
    fn raw(&mut self, bytes: &[u8], comment: impl Into<String>) {
        self.lines.push((bytes.to_vec(), comment.into()));
    }

    /// A number, or an option or a variant without fields.
    fn value<T: Encode + Debug>(&mut self, name: &str, value: T) {
        self.raw(&wire::encode_record(&value), format!("{name} = {value:?}"));
    }

    fn array(&mut self, name: &str, bytes: &[u8; 32]) {
        self.raw(bytes, format!("{name}, 32 bytes"));
    }

    fn text(&mut self, name: &str, text: &str) {
        self.length(name, text.len());
        if !text.is_empty() {
            self.raw(text.as_bytes(), format!("{text:?}"));
        }
    }

    fn length(&mut self, name: &str, length: usize) {
        self.raw(&wire::encode_record(&(length as u64)), format!("{name}: length {length}"));
    }

    fn addresses(&mut self, addresses: &[String]) {
        self.length("addresses", addresses.len());
        addresses.iter().for_each(|address| self.text("address", address));
    }

    fn contact(&mut self, name: &str, contact: &Contact) {
        let Contact { peer, addresses } = contact;
        self.array(&format!("{name}.peer"), &peer.0);
        self.addresses(addresses);
    }

    fn option(&mut self, name: &str, value: Option<&[u8; 32]>) {
        match value {
            None => self.raw(&[0], format!("{name} = None")),
            Some(value) => {
                self.raw(&[1], format!("{name} = Some"));
                self.array(name, value);
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|(bytes, _)| bytes).copied().collect()
    }

    fn render(&self, heading: &str) -> String {
        let mut text = heading.lines().fold(String::new(), |text, line| text + "# " + line + "\n");
        for (bytes, comment) in &self.lines {
            let hex: String = bytes.iter().fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("writing to a string succeeds");
                hex
            });
            writeln!(text, "{hex:8}  # {comment}").expect("writing to a string succeeds");
        }
        text
    }
}

/// The frame of a sample, taken apart by hand: what the encoder makes must be these fields end to end.
fn frame_sheet(message: &Message, payload: Option<&[u8]>) -> Sheet {
    let header = fields(message);
    let header_bytes = header.bytes().len();
    let payload_bytes = payload.map_or(0, <[u8]>::len);
    let (kind, kind_name) = match message {
        Message::Segment(_) => (1, "segment"),
        Message::Data(_) => (2, "data"),
        _ => (0, "control"),
    };
    let mut sheet = Sheet::default();
    sheet.raw(&[1], "prefix: version");
    sheet.raw(&[kind], format!("prefix: kind = {kind_name}"));
    sheet.raw(&(header_bytes as u32).to_le_bytes(), format!("prefix: header bytes = {header_bytes}"));
    sheet.raw(&(payload_bytes as u32).to_le_bytes(), format!("prefix: payload bytes = {payload_bytes}"));
    sheet.lines.extend(header.lines);
    if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
        sheet.raw(payload, "payload");
    }
    sheet
}

/// The header of `message`, a line for each field.
///
/// A message that is missing here does not compile: give it an arm, a sample in [`samples`] and a file.
fn fields(message: &Message) -> Sheet {
    let mut sheet = Sheet::default();
    match message {
        Message::Join(Join { run, incarnation, addresses, weight }) => {
            sheet.raw(&[0], "message = Join");
            sheet.option("run", run.as_ref().map(|run| &run.0));
            sheet.value("incarnation", incarnation);
            sheet.addresses(addresses);
            sheet.value("weight", weight);
        }
        Message::Welcome(Welcome { specification, nonce, founder }) => {
            sheet.raw(&[1], "message = Welcome");
            sheet.length("specification", specification.len());
            sheet.raw(specification, format!("{:?}", String::from_utf8_lossy(specification)));
            sheet.array("nonce", nonce);
            sheet.contact("founder", founder);
        }
        Message::Refer(contact) => {
            sheet.raw(&[2], "message = Refer");
            sheet.contact("contact", contact);
        }
        Message::Refuse(refusal) => {
            sheet.raw(&[3], "message = Refuse");
            match refusal {
                Refusal::OtherRun { run } => {
                    sheet.raw(&[0], "refusal = OtherRun");
                    sheet.array("run", &run.0);
                }
                Refusal::Started => sheet.raw(&[1], "refusal = Started"),
                Refusal::Full => sheet.raw(&[2], "refusal = Full"),
                Refusal::NotYet => sheet.raw(&[3], "refusal = NotYet"),
            }
        }
        Message::WantData(WantData { digest, offset }) => {
            sheet.raw(&[4], "message = WantData");
            sheet.array("digest", &digest.0);
            sheet.value("offset", offset);
        }
        Message::Data(DataPiece { digest, offset }) => {
            sheet.raw(&[5], "message = Data");
            sheet.array("digest", &digest.0);
            sheet.value("offset", offset);
        }
        Message::Ready => sheet.raw(&[6], "message = Ready"),
        Message::Install(view) => {
            sheet.raw(&[7], "message = Install");
            view_fields(view, &mut sheet);
        }
        Message::Segment(Segment { view, step, phase, owner, index, tally: Tally { samples, loss } }) => {
            sheet.raw(&[8], "message = Segment");
            sheet.array("view", &view.0);
            sheet.value("step", step);
            match phase {
                Phase::Reduce => sheet.raw(&[0], "phase = Reduce"),
                Phase::Gather => sheet.raw(&[1], "phase = Gather"),
                Phase::Mirror => sheet.raw(&[2], "phase = Mirror"),
            }
            sheet.value("owner", owner);
            sheet.value("index", index);
            sheet.value("tally.samples", samples);
            sheet.raw(&loss.to_le_bytes(), format!("tally.loss = {loss}"));
        }
        Message::Complete(Complete { view, steps }) => {
            sheet.raw(&[9], "message = Complete");
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
        }
        Message::Leave(Departure { lost, reason }) => {
            sheet.raw(&[10], "message = Leave");
            sheet.option("lost", lost.as_ref().map(|lost| &lost.0));
            sheet.text("reason", reason);
        }
    }
    sheet
}

fn view_fields(view: &View, sheet: &mut Sheet) {
    let View { run, epoch, parents, members, recovery, ledger } = view;
    sheet.array("run", &run.0);
    sheet.value("epoch", epoch);
    sheet.length("parents", parents.len());
    parents.iter().for_each(|parent| sheet.array("parent", &parent.0));
    sheet.length("members", members.len());
    for Member { peer, incarnation, addresses, weight } in members {
        sheet.array("member.peer", &peer.0);
        sheet.value("member.incarnation", incarnation);
        sheet.addresses(addresses);
        sheet.value("member.weight", weight);
    }
    match recovery {
        Recovery::Found => sheet.raw(&[0], "recovery = Found"),
        Recovery::Resume { step } => {
            sheet.raw(&[1], "recovery = Resume");
            sheet.value("step", step);
        }
    }
    let Ledger { pass, position, given_back } = ledger;
    sheet.value("ledger.pass", pass);
    sheet.value("ledger.position", position);
    sheet.length("ledger.given_back", given_back.len());
    for Span { start, end } in given_back {
        sheet.value("span.start", start);
        sheet.value("span.end", end);
    }
}

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

/// Names and keys that peers compute on their own and must find alike.
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

/// The match in [`fields`] makes one write down a new message; this makes one show it.
#[test]
fn every_variant_has_a_sample() {
    let mut messages = BTreeSet::new();
    let mut refusals = BTreeSet::new();
    let mut recoveries = BTreeSet::new();
    let mut phases = BTreeSet::new();
    for sample in samples() {
        messages.insert(wire::encode_record(&sample.message)[0]);
        match &sample.message {
            Message::Refuse(refusal) => refusals.insert(wire::encode_record(refusal)[0]),
            Message::Install(view) => recoveries.insert(wire::encode_record(&view.recovery)[0]),
            Message::Segment(segment) => phases.insert(wire::encode_record(&segment.phase)[0]),
            _ => false,
        };
    }
    assert_eq!(messages, variants::<Message>());
    assert_eq!(refusals, variants::<Refusal>());
    assert_eq!(recoveries, variants::<Recovery>());
    assert_eq!(phases, variants::<Phase>());
}

/// The discriminants that an enum knows: with zeros behind one, it decodes and leaves some over.
fn variants<T: Decode<()>>() -> BTreeSet<u8> {
    let is_known = |&tag: &u8| {
        let mut record = [0; 512];
        record[0] = tag;
        matches!(wire::decode_record::<T>(&record), Err(WireError::Length))
    };
    (0..=250).filter(is_known).collect()
}

#[test]
fn every_file_has_a_sample() {
    let mut expected: BTreeSet<String> =
        samples().iter().map(|sample| format!("{}.hex", sample.name)).collect();
    assert_eq!(expected.len(), samples().len(), "two samples share a file");
    expected.extend(["invite.hex", "invite.txt", "derived.txt"].map(String::from));
    for entry in fs::read_dir(folder()).expect("the folder of golden files is there") {
        let name = entry.expect("the folder can be listed").file_name().into_string().expect("a plain name");
        assert!(
            expected.contains(&name),
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

/// Compares a file with what it should hold, or rewrites it if that was asked for.
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
