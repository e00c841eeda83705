//! Decoding of arbitrary bytes: it gives a valid message or an error, and uses no more memory than it may.
//!
//! A decoder is the door to a house: everyone can knock, with anything in hand. So these tests knock with noise, with correct frames that
//! were changed on the way, and with frames that announce far more than they contain. A counting allocator notes the largest amount of
//! memory that was in use during each decoding.
//!
//! # Invariants
//! - No bytes make a decoder panic.
//! - Decoding a frame or record uses at most [`CONTROL_LIVE_BYTES_MAX`] bytes at once; a chunk batch's header,
//!   [`CHUNK_BATCH_LIVE_BYTES_MAX`]; a segment's or data piece's, [`SMALL_LIVE_BYTES_MAX`].
//! - A decoded message is valid, and is the same after it is encoded and decoded again.

// Only a global allocator can measure what a decoder allocates, and its implementation is unsafe.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::{DurableRecord, RunDefinition};
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::limits::{
    CHUNK_BATCH_HEADER_BYTES_MAX, CHUNK_BYTES_MAX, CONTROL_HEADER_BYTES_MAX, DURABLE_BYTES_MAX,
    REASON_BYTES_MAX, SMALL_HEADER_BYTES_MAX,
};
use peergrad_protocol::message::{Complete, Departure, Message, TrainingMessage};
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::wire::{self, DecodeError, PREFIX_BYTES, Prefix, VERSION, WireError};
use peergrad_protocol::{Buffer, Frame, Incarnation, RunId, StepNumber, ViewDigest};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use messages::{array, ballot, change, contact, may_carry, message, number, view};

mod largest;
mod messages;

/// Memory that may be in use while a control frame or a record is decoded, besides the bytes themselves. The decoder's budget is four times
/// the header's limit, and the worst use of the budget takes three times its price.
const CONTROL_LIVE_BYTES_MAX: usize = 3 * 4 * CONTROL_HEADER_BYTES_MAX + LISTS_BYTES;
/// The same for the record on a member's disk.
const DURABLE_LIVE_BYTES_MAX: usize = 3 * 4 * DURABLE_BYTES_MAX + LISTS_BYTES;
/// The same for a chunk batch.
const CHUNK_BATCH_LIVE_BYTES_MAX: usize = 3 * 4 * CHUNK_BATCH_HEADER_BYTES_MAX + SLACK_BYTES;
/// The same for a frame whose header is small.
const SMALL_LIVE_BYTES_MAX: usize = 3 * 4 * SMALL_HEADER_BYTES_MAX + SLACK_BYTES;
/// Memory for the checks of a decoded message.
const SLACK_BYTES: usize = 4096;
/// Memory for the checks of a view: sorted lists of its samples and chunks.
const LISTS_BYTES: usize = 1 << 19;

/// The system's allocator, and for each thread the bytes in use and their maximum.
struct Counting;

thread_local! {
    // Constant and without a destructor, so that access allocates nothing.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    let live = LIVE_BYTES.get() + change;
    LIVE_BYTES.set(live);
    PEAK_BYTES.set(PEAK_BYTES.get().max(live));
}

// SAFETY: every call goes to `System` with the same arguments, so `System` keeps the contract; counting only changes two numbers of the
// calling thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`, and `block` came from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The result of `work`, and the most bytes that were in use during it in addition to those before it.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    let result = work();
    (result, (PEAK_BYTES.get() - before).unsigned_abs())
}

/// Decodes a frame, checks all guarantees for the result, and returns it.
fn knock(frame: &Frame) -> Result<Message, WireError> {
    let (outcome, live_bytes) = measured(|| frame.decode());
    let limit = match frame.head.get(1) {
        Some(1 | 2) => SMALL_LIVE_BYTES_MAX,
        Some(3) => CHUNK_BATCH_LIVE_BYTES_MAX,
        _ => CONTROL_LIVE_BYTES_MAX,
    };
    assert!(live_bytes <= limit, "{live_bytes} bytes were alive, {outcome:?}");
    if let Ok(message) = &outcome {
        assert_eq!(message.validate(), Ok(()));
        let again = Frame::encode(message, None);
        assert_eq!(again.head[PREFIX_BYTES..], frame.head[PREFIX_BYTES..], "two encodings of {message:?}");
    }
    outcome
}

/// A frame of `kind` with this header and a valid prefix.
fn frame_of(kind: u8, header: &[u8], payload: Option<&[u8]>) -> Frame {
    let payload_bytes = payload.map_or(0, <[u8]>::len);
    let mut head = vec![VERSION, kind];
    head.extend((header.len() as u32).to_le_bytes());
    head.extend((payload_bytes as u32).to_le_bytes());
    head.extend([0; 4]);
    head.extend(header);
    wire::seal(&mut head, payload.unwrap_or_default());
    Frame { head, payload: payload.map(Buffer::from_bytes) }
}

/// How a header may be changed on its way.
#[derive(Clone, Debug)]
enum Mutation {
    Flip {
        at: prop::sample::Index,
        bit: u8,
    },
    Truncate {
        at: prop::sample::Index,
    },
    Extend {
        with: Vec<u8>,
    },
    /// A number replaces the byte that was there: a short list becomes a long one.
    Splice {
        at: prop::sample::Index,
        number: u64,
    },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), 0_u8..8).prop_map(|(at, bit)| Mutation::Flip { at, bit }),
        at().prop_map(|at| Mutation::Truncate { at }),
        prop::collection::vec(any::<u8>(), 1..20).prop_map(|with| Mutation::Extend { with }),
        (at(), number()).prop_map(|(at, number)| Mutation::Splice { at, number }),
    ]
}

impl Mutation {
    fn apply(&self, header: &mut Vec<u8>) {
        let length = header.len();
        match self {
            Self::Extend { with } => header.extend(with),
            _ if length == 0 => (),
            Self::Flip { at, bit } => header[at.index(length)] ^= 1 << bit,
            Self::Truncate { at } => header.truncate(at.index(length)),
            Self::Splice { at, number } => {
                let at = at.index(length);
                header.splice(at..=at, wire::encode_record(number));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        // Failures are stored beside this file, and tried first from then on.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_message_survives_encoding_and_decoding(message in message(), payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let frame = Frame::encode(&message, may_carry(&message).then(|| Buffer::from_bytes(&payload)));
        let prefix = Prefix::decode(*frame.head.first_chunk().expect("a prefix")).expect("our own prefix");
        prop_assert_eq!(PREFIX_BYTES + prefix.header_bytes + prefix.payload_bytes, frame.byte_count());
        prop_assert_eq!(knock(&frame), Ok(message));
    }

    #[test]
    fn a_mutated_frame_is_a_message_or_an_error(
        message in message(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let honest = Frame::encode(&message, None);
        let mut header = honest.head[PREFIX_BYTES..].to_vec();
        mutations.iter().for_each(|mutation| mutation.apply(&mut header));
        // With a valid prefix, so that the header itself is decoded; as its own kind and as the others.
        for kind in 0..4 {
            let _ = knock(&frame_of(kind, &header, None));
        }
    }

    #[test]
    fn a_frame_that_was_changed_on_its_way_is_an_error(message in message(), mutation in mutation()) {
        let honest = Frame::encode(&message, None);
        let mut frame = Frame::encode(&message, None);
        mutation.apply(&mut frame.head);
        prop_assume!(frame.head != honest.head);
        prop_assert!(knock(&frame).is_err());
    }

    #[test]
    fn random_bytes_are_decoded_in_bounded_memory(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_u8..4) {
        let _ = knock(&frame_of(kind, &bytes, None));
        let _ = knock(&Frame { head: bytes.clone(), payload: None });
        let (_, live_bytes) = measured(|| wire::decode_record::<View>(&bytes));
        prop_assert!(live_bytes <= CONTROL_LIVE_BYTES_MAX, "{} bytes were alive", live_bytes);
    }

    #[test]
    fn a_prefix_announces_no_more_than_its_kind_allows(bytes in any::<[u8; PREFIX_BYTES]>(), is_ours in any::<bool>()) {
        let mut bytes = bytes;
        if is_ours {
            (bytes[0], bytes[1]) = (VERSION, bytes[1] % 4);
            // Otherwise nearly all lengths are too large.
            (bytes[5], bytes[9]) = (0, 0);
        }
        let (prefix, live_bytes) = measured(|| Prefix::decode(bytes));
        prop_assert_eq!(live_bytes, 0);
        if let Ok(prefix) = prefix {
            prop_assert!(prefix.header_bytes <= CONTROL_HEADER_BYTES_MAX);
            prop_assert!(prefix.payload_bytes <= CHUNK_BYTES_MAX);
        }
    }

    #[test]
    fn trailing_bytes_are_an_error(message in message(), trailing in prop::collection::vec(any::<u8>(), 1..9)) {
        let honest = Frame::encode(&message, None);
        let kind = honest.head[1];
        let longer = [&honest.head[PREFIX_BYTES..], &trailing].concat();
        prop_assert!(knock(&frame_of(kind, &longer, None)).is_err());
        let unannounced = Frame { head: [&honest.head[..], &trailing].concat(), payload: None };
        prop_assert_eq!(knock(&unannounced), Err(WireError::Length));
    }

    #[test]
    fn a_control_frame_has_no_payload(message in message()) {
        prop_assume!(!may_carry(&message));
        let honest = Frame::encode(&message, None);
        let laden = frame_of(0, &honest.head[PREFIX_BYTES..], Some(&[0]));
        prop_assert_eq!(knock(&laden), Err(WireError::TooLarge));
    }

    #[test]
    fn a_record_survives_encoding_and_decoding(view in view()) {
        let record = wire::encode_record(&view);
        prop_assert_eq!(wire::decode_record::<View>(&record), Ok(view));
        let longer = [&record[..], &[0]].concat();
        prop_assert_eq!(wire::decode_record::<View>(&longer), Err(DecodeError::Length));
    }

    #[test]
    fn a_durable_record_survives_encoding_and_mutations_are_detected(
        durable in (view(), number(), prop::option::of((ballot(), change())), ballot()),
        definition in (prop::collection::vec(any::<u8>(), 0..300), any::<[u8; 32]>()),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let (view, incarnation, accepted, promised) = durable;
        let mut acceptor = Acceptor::default();
        if let Some((ballot, change)) = accepted {
            acceptor.accept(ballot, change).expect("nothing was promised before");
        }
        let _ = acceptor.promise(promised);
        let definition = RunDefinition { specification: definition.0, nonce: definition.1 };
        let durable = DurableRecord { view, incarnation: Incarnation(incarnation), acceptor, definition };
        let mut record = durable.to_bytes().to_vec();
        prop_assert_eq!(DurableRecord::from_bytes(&record), Some(durable.clone()));
        mutations.iter().for_each(|mutation| mutation.apply(&mut record));
        prop_assert!(DurableRecord::from_bytes(&record).is_none_or(|read| read == durable));
        // As if its checksum were right.
        let (_, live_bytes) = measured(|| wire::decode_durable::<DurableRecord>(&record));
        prop_assert!(live_bytes <= DURABLE_LIVE_BYTES_MAX, "{} bytes were alive", live_bytes);
    }

    #[test]
    fn a_change_of_a_view_makes_a_valid_view_or_none(view in view(), change in change()) {
        let digest = view.digest();
        let change = ViewChange { parent: digest, ..change };
        if let Ok(next) = view.apply(digest, &change) {
            prop_assert_eq!(next.validate(), Ok(()));
            let merged = change.resume.merge.map(|merge| merge.view);
            let parents: Vec<ViewDigest> = std::iter::once(digest).chain(merged).collect();
            prop_assert_eq!(next.parents, parents);
        }
    }

    #[test]
    fn an_invite_is_read_or_refused(
        invite in (array(), array(), prop::collection::vec(contact(), 0..3)),
        mutation in mutation(),
        noise in ".{0,60}",
    ) {
        let (run, secret, contacts) = invite;
        let invite = Invite { run: RunId(run), secret: Secret(secret), contacts };
        let text = invite.to_string();
        prop_assert_eq!(text.parse(), Ok(invite));
        let mut bent = text.into_bytes();
        mutation.apply(&mut bent);
        for text in [String::from_utf8_lossy(&bent).into_owned(), format!("pg1{noise}"), noise] {
            let (_, live_bytes) = measured(|| text.parse::<Invite>());
            prop_assert!(live_bytes <= CONTROL_LIVE_BYTES_MAX, "{} bytes were alive", live_bytes);
        }
    }
}

/// Parts of hostile headers, written by hand.
struct Header(Vec<u8>);

impl Header {
    fn new(tag: u8) -> Self {
        Self(vec![tag])
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn number(mut self, number: u64) -> Self {
        self.0.extend(wire::encode_record(&number));
        self
    }
}

const JOIN: u8 = 0;
const WELCOME: u8 = 1;
const REDIRECT: u8 = 2;
const CANDIDATE: u8 = 7;
const INSTALL: u8 = 9;
const PROMISE: u8 = 12;
const LEARN: u8 = 16;
const SEGMENT: u8 = 17;
const CHUNK_BATCH: u8 = 19;
const LEAVE: u8 = 22;
/// Number of messages.
const MESSAGE_COUNT: u8 = 23;

#[test]
fn a_list_that_announces_more_than_it_contains_takes_no_memory() {
    for length in [1 << 16, 1 << 20, 1 << 24, u64::from(u32::MAX), 1 << 60, u64::MAX / 24, u64::MAX] {
        for header in [
            Header::new(JOIN).zeros(2).number(length),
            Header::new(JOIN).zeros(2).number(1).number(length),
            Header::new(WELCOME).number(length),
            // The members in a joiner's welcome.
            Header::new(WELCOME).zeros(33).number(length),
            Header::new(REDIRECT).zeros(32).number(length),
            Header::new(CANDIDATE).zeros(33).number(length),
            // The parents, the members, the addresses of one, the speeds, the spans of the cursor, the moves and what restarts.
            Header::new(INSTALL).zeros(33).number(length),
            Header::new(INSTALL).zeros(34).number(length),
            Header::new(INSTALL).zeros(34).number(1).zeros(33).number(length),
            Header::new(INSTALL).zeros(35).number(length),
            Header::new(INSTALL).zeros(39).number(length),
            Header::new(INSTALL).zeros(40).number(length),
            Header::new(INSTALL).zeros(42).number(length),
            // Of a change: removed and added members, capacities, speeds, newcomers, parts and the spans of one, donors, moves and their holders.
            Header::new(LEARN).zeros(32).number(length),
            Header::new(LEARN).zeros(33).number(length),
            Header::new(LEARN).zeros(34).number(length),
            Header::new(LEARN).zeros(35).number(length),
            Header::new(LEARN).zeros(37).number(length),
            Header::new(LEARN).zeros(38).number(1).zeros(1).number(length),
            Header::new(LEARN).zeros(38).number(1).zeros(1).number(1).number(length),
            Header::new(LEARN).zeros(39).number(1).zeros(9).number(length),
            Header::new(LEARN).zeros(43).number(length),
            Header::new(LEARN).zeros(43).number(1).zeros(1).number(length),
            // Of a report: what the member holds of three steps, the lost members, and the complaints.
            Header::new(PROMISE).zeros(37).number(length),
            Header::new(PROMISE).zeros(38).number(1).number(length),
            Header::new(PROMISE).zeros(40).number(1).number(length),
            Header::new(PROMISE).zeros(40).number(1).zeros(1).number(length),
            Header::new(PROMISE).zeros(41).number(length),
            Header::new(PROMISE).zeros(42).number(length),
            Header::new(LEAVE).number(length),
        ] {
            for filling in [0, 100, 70_000] {
                let Header(header) = Header(header.0.clone()).zeros(filling);
                let outcome = knock(&frame_of(0, &header, None));
                assert!(outcome.is_err(), "a length of {length} before {filling} bytes: {outcome:?}");
            }
        }
    }
}

#[test]
fn a_chunk_batch_that_announces_more_than_it_contains_takes_no_memory() {
    for length in [1 << 10, 1 << 16, 1 << 24, u64::from(u32::MAX), u64::MAX / 8, u64::MAX] {
        for filling in [0, 100, 16_000] {
            let Header(header) = Header::new(CHUNK_BATCH).zeros(34).number(length).zeros(filling);
            assert!(knock(&frame_of(3, &header, None)).is_err(), "{length} pieces before {filling} bytes");
        }
    }
}

/// No value needs more memory, relative to its bytes on the wire, than an empty string.
#[test]
fn lists_of_empty_strings_stay_within_the_memory_limit() {
    for (member_count, address_count) in
        [(4_u64, 130_000), (10, 50_000), (1000, 500), (4096, 100), (20_000, 16)]
    {
        let mut header = Header::new(INSTALL).zeros(34).number(member_count);
        for _ in 0..member_count {
            header = header.zeros(33).number(address_count).zeros(address_count as usize + 1);
        }
        let Header(mut header) = header.zeros(7);
        header.truncate(CONTROL_HEADER_BYTES_MAX);
        assert!(knock(&frame_of(0, &header, None)).is_err(), "{member_count} x {address_count}");
        let (_, live_bytes) = measured(|| wire::decode_record::<View>(&header[1..]));
        assert!(live_bytes <= CONTROL_LIVE_BYTES_MAX, "{live_bytes} bytes were alive");
    }
}

#[test]
fn a_number_has_one_encoding() {
    let complete = Complete { steps: StepNumber(0), left_out: 5 };
    let honest = Frame::encode(&TrainingMessage::Complete(complete).in_view(ViewDigest([1; 32])), None);
    let header = &honest.head[PREFIX_BYTES..];
    let (before, number) = header.split_at(header.len() - 1);
    assert_eq!(number, [5]);
    for longer in [&[251, 5, 0][..], &[252, 5, 0, 0, 0], &[253, 5, 0, 0, 0, 0, 0, 0, 0]] {
        let outcome = knock(&frame_of(0, &[before, longer].concat(), None));
        assert_eq!(outcome, Err(WireError::Header), "{longer:?}");
    }
}

#[test]
fn unknown_variants_are_refused() {
    for tag in MESSAGE_COUNT..=255 {
        for filling in [0, 16, 64] {
            let Header(header) = Header::new(tag).zeros(filling);
            assert_eq!(knock(&frame_of(0, &header, None)), Err(WireError::Header), "message {tag}");
        }
    }
    let Header(phase) = Header::new(SEGMENT).zeros(33).number(2).zeros(12);
    assert_eq!(knock(&frame_of(1, &phase, None)), Err(WireError::Header));
}

#[test]
fn a_record_over_the_limit_is_refused_without_decoding() {
    let record = vec![0; CONTROL_HEADER_BYTES_MAX + 1];
    let (outcome, live_bytes) = measured(|| wire::decode_record::<View>(&record));
    assert_eq!((outcome, live_bytes), (Err(DecodeError::TooLarge), 0));
}

#[test]
fn a_reason_is_bounded() {
    let reason = |length| Message::Leave(Departure { reason: "x".repeat(length) });
    assert!(knock(&Frame::encode(&reason(REASON_BYTES_MAX), None)).is_ok());
    assert!(knock(&Frame::encode(&reason(REASON_BYTES_MAX + 1), None)).is_err());
}
