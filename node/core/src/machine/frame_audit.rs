//! Frame audit: whether all frames of a peer arrive.
//!
//! A link delivers frames once and in order, so nothing is lost between two healthy peers while their link is up. A faulty program or
//! memory may still lose or repeat frames on their way through a process, without a word, and a run would wait for them for good. Each
//! heartbeat says how many frames the sender has sent before it. The receiver compares that with what has arrived.
//!
//! # How it works
//! The first heartbeat over a link sets what the receiver counts from. From then on both count all frames, heartbeats included.

use std::collections::BTreeMap;

use peergrad_protocol::PeerId;
use peergrad_protocol::message::SentFrames;

/// The frames that this peer exchanges over its links.
#[derive(Default)]
pub(super) struct FrameAudit {
    /// The number of links so far.
    links: u32,
    /// What was sent over each link.
    sent: BTreeMap<PeerId, SentFrames>,
    /// What has arrived over each link, as its sender would count it. It begins with the sender's first heartbeat.
    received: BTreeMap<PeerId, SentFrames>,
}

impl FrameAudit {
    /// There is a new link to this peer.
    pub(super) fn link_up(&mut self, peer: PeerId) {
        self.links = self.links.wrapping_add(1);
        self.sent.insert(peer, SentFrames { link: self.links, count: 0 });
        self.received.remove(&peer);
    }

    /// The link to this peer is down.
    pub(super) fn link_down(&mut self, peer: &PeerId) {
        self.sent.remove(peer);
        self.received.remove(peer);
    }

    /// What was sent to this peer so far.
    pub(super) fn sent_to(&self, peer: &PeerId) -> SentFrames {
        self.sent.get(peer).copied().unwrap_or_default()
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

    /// A heartbeat says what was sent before it. Returns whether exactly that has arrived. The next comparison begins here.
    pub(super) fn compare(&mut self, from: PeerId, sent: SentFrames) -> bool {
        let received = self.received.insert(from, sent);
        received.is_none_or(|received| received.link != sent.link || received == sent)
    }
}

#[cfg(test)]
mod tests {
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
        let is_intact = receiver.compare(peer(1), sender.sent_to(&peer(2)));
        sender.note_sent(&peer(2));
        receiver.note_received(&peer(1));
        is_intact
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
