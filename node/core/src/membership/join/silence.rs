//! Silence: what the user learns while no member answers a joiner.

use std::collections::BTreeSet;

use peergrad_protocol::PeerId;

use crate::io::{Event, Output};

/// How a joiner was answered while no member has welcomed it.
#[derive(Default)]
pub(super) struct Silence {
    /// The peers that have answered that they are in no view.
    idle: BTreeSet<PeerId>,
    /// How often this peer has asked again since the first such answer.
    idle_count: u32,
    /// How many times in a row this peer had no linked peer to ask.
    isolated_count: u32,
    /// Whether any peer was linked so far.
    was_linked: bool,
}

impl Silence {
    /// A peer has answered that it is in no view.
    pub(super) fn add_idle(&mut self, peer: PeerId) {
        self.idle.insert(peer);
    }

    /// A link to a peer came up.
    pub(super) fn linked(&mut self) {
        self.was_linked = true;
    }

    /// A member has answered.
    pub(super) fn answered(&mut self) {
        self.idle.clear();
        self.idle_count = 0;
    }

    /// This peer asks again, and is linked to so many peers. Tells the user, once, that other peers answer and none of them trains, or that
    /// no peer is linked, or none any more.
    pub(super) fn note_retry(&mut self, linked: usize, out: &mut Vec<Output>) {
        self.idle_count += u32::from(!self.idle.is_empty());
        if self.idle_count == IDLE_REPORTED_AT {
            out.push(Output::Event(Event::NoActiveMember { peers: self.idle.iter().copied().collect() }));
        }
        self.isolated_count = if linked == 0 { self.isolated_count.saturating_add(1) } else { 0 };
        let reported_at = if self.was_linked { ISOLATED_REPORTED_AT } else { UNANSWERED_REPORTED_AT };
        if self.isolated_count == reported_at {
            out.push(Output::Event(Event::NoPeerAnswers));
        }
    }
}

/// Peers that are still in no view after this peer has asked so often are not about to enter one.
pub(super) const IDLE_REPORTED_AT: u32 = 5;
/// A peer that nobody has ever answered learns of it sooner: its invite may be old, and the user is still there.
pub(super) const UNANSWERED_REPORTED_AT: u32 = 5;
/// Members that are cut off for a moment are back before this peer has tried so often.
pub(super) const ISOLATED_REPORTED_AT: u32 = 10;
