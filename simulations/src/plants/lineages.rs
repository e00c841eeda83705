//! Bugs in how two lineages become one: what one leaves to the other, and when it gives itself up.

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Content, Message, Yield};
use peergrad_protocol::{Buffer, Frame};

use crate::rules::{Envelope, Verdict};

/// What a lineage has come to is another than it was, with the right digest.
pub(super) fn bend_bequest(envelope: &Envelope<'_>) -> Verdict {
    let (Some(Message::Bequest(mut parcel)), Some(payload)) = (envelope.message(), &envelope.frame.payload)
    else {
        return Verdict::Pass;
    };
    if parcel.content != Content::Values {
        return Verdict::Pass;
    }
    let mut values = payload.to_vec();
    values[0] += 1.0;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    parcel.digest = ContentDigest::of(&bytes);
    Verdict::Replace(vec![Frame::encode(&Message::Bequest(parcel), Some(Buffer::from_bytes(&bytes)))])
}

/// A lineage that leaves something does not say of some samples that it has trained them.
pub(super) fn forget_samples(envelope: &Envelope<'_>) -> Verdict {
    let Some(Message::Will(mut will)) = envelope.message() else { return Verdict::Pass };
    let forgotten = will.ledger.position.min(FORGOTTEN);
    will.ledger.position -= forgotten;
    will.trained -= forgotten;
    if !will.ledger.is_valid() {
        return Verdict::Pass;
    }
    Verdict::Replace(vec![Frame::encode(&Message::Will(will), None)])
}

/// So many.
const FORGOTTEN: u64 = 64;

/// A lineage is told that it is merged when the other one has only heard of it.
pub(super) fn end_early(envelope: &Envelope<'_>) -> Verdict {
    match envelope.message() {
        Some(Message::Meet(meeting)) if meeting.answers != 0 && meeting.yields.is_some() => {
            let view = meeting.yields.expect("just looked at");
            let contacts = vec![meeting.convener];
            let words = Yield { view, question: meeting.answers, is_merged: true, contacts };
            Verdict::Replace(vec![Frame::encode(&Message::Yield(words), None)])
        }
        _ => Verdict::Pass,
    }
}
