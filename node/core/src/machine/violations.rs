//! Violations: how many wrong messages each peer has sent, and what follows from one more.

use std::collections::BTreeMap;

use peergrad_protocol::PeerId;
use peergrad_protocol::limits::REJECTS_MAX;

use crate::io::{Event, Output, Reject};

/// The number of violations of each peer.
#[derive(Default)]
pub(super) struct Violations {
    /// The peers that have sent a wrong message. They are few: each had a link.
    counts: BTreeMap<PeerId, u32>,
}

/// What follows from a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// It is counted, and nothing else.
    Counted,
    /// The link is closed at once: a round cannot end without the segment that should have come.
    LinkClosed,
    /// The peer has sent [`REJECTS_MAX`] wrong messages: it is expelled, if this peer is a member, and the link is closed.
    Expelled,
}

impl Violations {
    /// Counts a violation, and reports it to the user, unless it is a bad stream: the driver has reported that.
    pub(super) fn note(&mut self, peer: PeerId, reject: Reject, out: &mut Vec<Output>) -> Consequence {
        if reject != Reject::Stream {
            out.push(Output::Event(Event::Violation { peer, reject }));
        }
        let count = self.counts.entry(peer).or_default();
        *count += 1;
        if *count >= REJECTS_MAX {
            return Consequence::Expelled;
        }
        match reject {
            Reject::Segment | Reject::OverCredit | Reject::MalformedTableMessage => Consequence::LinkClosed,
            _ => Consequence::Counted,
        }
    }

    /// The reason, for the user, why the link to this peer was closed after its last violation.
    pub(super) fn words(&self, peer: &PeerId, last: Reject) -> String {
        let count = self.counts.get(peer).copied().unwrap_or_default();
        let violations = if count == 1 { "violation" } else { "violations" };
        format!("closed its link after {count} {violations}, the last: {last}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::peer;

    #[test]
    fn each_violation_counts_and_the_last_one_expels() {
        let (mut violations, mut out) = (Violations::default(), Vec::new());
        for _ in 1..REJECTS_MAX {
            assert_eq!(violations.note(peer(1), Reject::OutOfPlace, &mut out), Consequence::Counted);
        }
        assert_eq!(violations.note(peer(2), Reject::OutOfPlace, &mut out), Consequence::Counted);
        assert_eq!(violations.note(peer(1), Reject::OutOfPlace, &mut out), Consequence::Expelled);
        assert_eq!(out.len(), REJECTS_MAX as usize + 1, "each is reported");
    }

    #[test]
    fn a_bad_segment_closes_the_link_at_once() {
        let mut violations = Violations::default();
        assert_eq!(violations.note(peer(1), Reject::Segment, &mut Vec::new()), Consequence::LinkClosed);
        let words = violations.words(&peer(1), Reject::Segment);
        assert!(words.starts_with("closed its link after 1 violation, the last"), "{words}");
    }
}
