//! Frame audit: whether all frames of a peer arrive, and in time.
//!
//! A link delivers frames once and in order, so nothing is lost between two healthy peers while their link is up. A faulty program or
//! memory may still lose or repeat frames on their way through a process, without a word, and a run would wait for them for good. Each
//! heartbeat says how many frames the sender has sent before it. The receiver compares that with what has arrived.
//!
//! # How it works
//! The first heartbeat over a link sets what the receiver counts from. From then on both count all frames, heartbeats included.
//! `round_trips.rs` measures how long they take.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::message::{Heartbeat, SentFrames};
use peergrad_protocol::view::MemberFault;
use peergrad_protocol::{Instant, PeerId};

use round_trips::RoundTrips;

mod round_trips;

/// The frames that this peer exchanges over its links.
#[derive(Default)]
pub(super) struct FrameAudit {
    /// The number of links so far.
    links: u32,
    /// What was sent over each link.
    sent: BTreeMap<PeerId, SentFrames>,
    /// What has arrived over each link, as its sender would count it. It begins with the sender's first heartbeat.
    received: BTreeMap<PeerId, SentFrames>,
    /// What the newest heartbeat over each link said.
    heard: BTreeMap<PeerId, SentFrames>,
    /// The peers to which much has been sent that has not arrived yet.
    busy: BTreeSet<PeerId>,
    /// How long frames take.
    round_trips: RoundTrips,
}

impl FrameAudit {
    /// There is a new link to this peer.
    pub(super) fn link_up(&mut self, peer: PeerId) {
        self.links = self.links.wrapping_add(1);
        self.sent.insert(peer, SentFrames { link: self.links, count: 0 });
        self.received.remove(&peer);
        self.heard.remove(&peer);
        self.busy.remove(&peer);
        self.round_trips.link_up(peer);
    }

    /// The link to this peer is down.
    pub(super) fn link_down(&mut self, peer: &PeerId) {
        self.sent.remove(peer);
        self.received.remove(peer);
        self.heard.remove(peer);
        self.busy.remove(peer);
        self.round_trips.link_down(peer);
    }

    /// This peer has entered another view, whose members send a heartbeat in each such interval. What it waited for until now has another
    /// cause.
    pub(super) fn view_entered(&mut self, heartbeat_interval: Duration) {
        self.round_trips.restart(heartbeat_interval);
    }

    /// Whether much that was sent to this peer has not arrived yet.
    pub(super) fn set_busy(&mut self, peer: PeerId, is_busy: bool) {
        if is_busy {
            self.busy.insert(peer)
        } else {
            self.busy.remove(&peer)
        };
    }

    /// The heartbeat as it is sent to this peer now.
    pub(super) fn heartbeat_to(&mut self, now: Instant, to: &PeerId, heartbeat: Heartbeat) -> Heartbeat {
        let sent = self.sent.get(to).copied().unwrap_or_default();
        let heard = self.heard.get(to).copied().unwrap_or_default();
        self.round_trips.note_sent(now, to, sent, !self.busy.is_empty());
        Heartbeat { sent, heard, is_busy: !self.busy.is_empty(), ..heartbeat }
    }

    /// A frame is sent.
    pub(super) fn note_sent(&mut self, to: &PeerId) {
        if let Some(sent) = self.sent.get_mut(to) {
            sent.count += 1;
        }
    }

    /// A frame has arrived.
    pub(super) fn note_received(&mut self, from: &PeerId) {
        if let Some(received) = self.received.get_mut(from) {
            // A sender may have claimed any number.
            received.count = received.count.wrapping_add(1);
        }
    }

    /// A heartbeat says what was sent before it, and what its sender has heard. Returns the fault that this shows: other frames have
    /// arrived, or they are late. The next comparison begins here.
    pub(super) fn compare(
        &mut self,
        now: Instant,
        from: PeerId,
        heartbeat: &Heartbeat,
    ) -> Option<MemberFault> {
        let sent = heartbeat.sent;
        self.heard.insert(from, sent);
        let is_busy = heartbeat.is_busy || !self.busy.is_empty();
        self.round_trips.note_heard(now, &from, heartbeat.heard, is_busy);
        let received = self.received.insert(from, sent);
        if received.is_some_and(|received| received.link == sent.link && received != sent) {
            return Some(MemberFault::Frames);
        }
        self.round_trips.is_late(now, &from).then_some(MemberFault::Late)
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::{StepNumber, ViewDigest, ViewNumber};

    use super::*;
    use crate::fixtures::peer;

    /// Two peers with a link from the first to the second, on which the first heartbeat has arrived.
    fn linked() -> (FrameAudit, FrameAudit) {
        let (mut sender, mut receiver) = (FrameAudit::default(), FrameAudit::default());
        sender.link_up(peer(2));
        receiver.link_up(peer(1));
        sender.note_sent(&peer(2));
        assert!(heartbeat(&mut sender, &mut receiver));
        (sender, receiver)
    }

    /// Sends a heartbeat. Returns whether the receiver finds that all frames before it have arrived.
    fn heartbeat(sender: &mut FrameAudit, receiver: &mut FrameAudit) -> bool {
        let heartbeat = Heartbeat {
            view: ViewDigest([0; 32]),
            view_number: ViewNumber(0),
            complete: StepNumber(0),
            computing: None,
            sent: SentFrames::default(),
            heard: SentFrames::default(),
            is_busy: false,
            line_bytes: 0,
            disk_fails: false,
        };
        let heartbeat = sender.heartbeat_to(Instant(0), &peer(2), heartbeat);
        let fault = receiver.compare(Instant(0), peer(1), &heartbeat);
        sender.note_sent(&peer(2));
        receiver.note_received(&peer(1));
        fault.is_none()
    }

    #[test]
    fn a_lost_and_a_repeated_frame_are_each_noticed_once() {
        for (arrived, is_intact) in [(1, true), (0, false), (2, false)] {
            let (mut sender, mut receiver) = linked();
            sender.note_sent(&peer(2));
            (0..arrived).for_each(|_| receiver.note_received(&peer(1)));
            assert_eq!(heartbeat(&mut sender, &mut receiver), is_intact, "{arrived} of 1");
            assert!(heartbeat(&mut sender, &mut receiver));
        }
    }

    #[test]
    fn what_a_broken_link_lost_is_not_held_against_the_sender() {
        let (mut sender, mut receiver) = linked();
        sender.note_sent(&peer(2));
        // Only the sender has noticed.
        sender.link_down(&peer(2));
        sender.link_up(peer(2));
        assert!(heartbeat(&mut sender, &mut receiver));
        assert!(heartbeat(&mut sender, &mut receiver));
        // Only the receiver has noticed.
        sender.note_sent(&peer(2));
        receiver.link_down(&peer(1));
        receiver.link_up(peer(1));
        assert!(heartbeat(&mut sender, &mut receiver));
    }
}
