//! Frame audit: whether all frames of a peer arrive, and in time.
//!
//! A link delivers frames once, and those of one priority in order. So nothing is lost between two healthy peers while their link is up. A
//! faulty program or memory may still lose or repeat frames on their way through a process, without a word, and a run would wait for them
//! for good. So each heartbeat says how many urgent frames the sender has sent before it, and a normal message that follows it says how many
//! normal ones. The receiver compares that with what has arrived. The second message also names the sender's view: being in order with other
//! normal frames, it shows that none of an earlier view follows. So it is also sent after this peer has entered a view, over all links over which
//! something went before: who has skipped the view before keeps frames of it, and their credit, until then.
//!
//! # How it works
//! The first such message over a link sets what the receiver counts from. From then on both count all frames of that priority, these messages
//! included. `round_trips.rs` measures how long heartbeats take.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::{Heartbeat, Message, Priority, SentFrames};
use peergrad_protocol::view::MemberFault;
use peergrad_protocol::{Instant, PeerId, ViewDigest};

use round_trips::RoundTrips;

mod round_trips;

/// The frames that this peer exchanges over its links.
#[derive(Default)]
pub(super) struct FrameAudit {
    /// The number of links so far.
    link_count: u32,
    /// What is exchanged with each linked peer.
    links: BTreeMap<PeerId, AuditedLink>,
    /// The view that this peer has entered, until that was told.
    entered: Option<ViewDigest>,
    /// Whether much that was sent, to whatever peers, has not arrived yet.
    is_busy: bool,
    /// How long frames take.
    round_trips: RoundTrips,
}

/// The frames of one link.
struct AuditedLink {
    urgent: CountedFrames,
    normal: CountedFrames,
    /// What the newest heartbeat has said.
    heard: SentFrames,
    /// The view in which the number of normal ones was last sent, and that number with the message itself; `None` before the first one.
    reported: Option<(ViewDigest, u64)>,
}

/// The frames of one priority on one link.
struct CountedFrames {
    /// What was sent.
    sent: SentFrames,
    /// What has arrived, as its sender would count it. It begins with the sender's first count.
    received: Option<SentFrames>,
}

impl CountedFrames {
    /// The sender says how many it had sent. Returns whether as many have arrived since its last count. The next comparison begins here.
    fn compare(&mut self, sent: SentFrames) -> bool {
        let received = self.received.replace(sent);
        received.is_none_or(|received| received.link != sent.link || received == sent)
    }
}

impl AuditedLink {
    fn of(&mut self, priority: Priority) -> &mut CountedFrames {
        match priority {
            Priority::Urgent => &mut self.urgent,
            Priority::Normal => &mut self.normal,
        }
    }
}

impl FrameAudit {
    /// There is a new link to this peer.
    pub(super) fn link_up(&mut self, peer: PeerId) {
        self.link_count = self.link_count.wrapping_add(1);
        let none = || CountedFrames { sent: SentFrames { link: self.link_count, count: 0 }, received: None };
        let link =
            AuditedLink { urgent: none(), normal: none(), heard: SentFrames::default(), reported: None };
        self.links.insert(peer, link);
        self.round_trips.link_up(peer);
    }

    /// The link to this peer is down.
    pub(super) fn link_down(&mut self, peer: &PeerId) {
        self.links.remove(peer);
        self.round_trips.link_down(peer);
    }

    /// This peer has entered this view, whose members send a heartbeat in each such interval. What it waited for until now has another
    /// cause.
    pub(super) fn view_entered(&mut self, view: ViewDigest, heartbeat_interval: Duration) {
        self.entered = Some(view);
        self.round_trips.restart(heartbeat_interval);
    }

    /// Whether much that was sent, to whatever peers, has not arrived yet.
    pub(super) fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    /// The heartbeat as it is sent to this peer now.
    pub(super) fn heartbeat_to(&mut self, now: Instant, to: &PeerId, heartbeat: Heartbeat) -> Heartbeat {
        let link = self.links.get(to);
        let sent = link.map_or_else(SentFrames::default, |link| link.urgent.sent);
        let heard = link.map_or_else(SentFrames::default, |link| link.heard);
        self.round_trips.note_sent(now, to, sent, self.is_busy);
        Heartbeat { sent, heard, is_busy: self.is_busy, ..heartbeat }
    }

    /// What follows a heartbeat to this peer in this view: how many normal frames were sent, if it was told of another view or number before.
    pub(super) fn count_to(&mut self, to: &PeerId, view: ViewDigest) -> Option<Message> {
        let link = self.links.get_mut(to)?;
        let sent = link.normal.sent;
        if link.reported == Some((view, sent.count)) {
            return None;
        }
        // The message that says so is one of them.
        link.reported = Some((view, sent.count + 1));
        Some(Message::FrameCount { view, sent })
    }

    /// What is due after this peer has entered a view: the numbers of normal frames, for those to whom some went since the last number.
    pub(super) fn counts_on_entry(&mut self) -> Vec<(PeerId, Message)> {
        let Some(view) = self.entered.take() else { return Vec::new() };
        let has_news =
            |link: &AuditedLink| link.reported.map_or(0, |(_, count)| count) != link.normal.sent.count;
        let peers: Vec<PeerId> =
            self.links.iter().filter(|(_, link)| has_news(link)).map(|(peer, _)| *peer).collect();
        peers.into_iter().filter_map(|to| Some((to, self.count_to(&to, view)?))).collect()
    }

    /// A frame is sent.
    pub(super) fn note_sent(&mut self, to: &PeerId, priority: Priority) {
        if let Some(link) = self.links.get_mut(to) {
            link.of(priority).sent.count += 1;
        }
    }

    /// A frame has arrived.
    pub(super) fn note_received(&mut self, from: &PeerId, priority: Priority) {
        let link = self.links.get_mut(from);
        if let Some(received) = link.and_then(|link| link.of(priority).received.as_mut()) {
            // A sender may have claimed any number.
            received.count = received.count.wrapping_add(1);
        }
    }

    /// A message has arrived that may say what was sent before it, and what its sender has heard. Returns the fault that this shows: other
    /// frames have arrived, or they are late.
    pub(super) fn compare(&mut self, now: Instant, from: PeerId, message: &Message) -> Option<MemberFault> {
        let link = self.links.get_mut(&from)?;
        let is_intact = match message {
            Message::Heartbeat(heartbeat) => {
                link.heard = heartbeat.sent;
                let is_busy = heartbeat.is_busy || self.is_busy;
                self.round_trips.note_heard(now, &from, heartbeat.heard, is_busy);
                link.urgent.compare(heartbeat.sent)
            }
            Message::FrameCount { sent, .. } => link.normal.compare(*sent),
            _ => return None,
        };
        if !is_intact {
            return Some(MemberFault::Frames);
        }
        self.round_trips.is_late(now, &from).then_some(MemberFault::Late)
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::{StepNumber, ViewNumber};

    use super::*;
    use crate::fixtures::peer;

    const VIEW: ViewDigest = ViewDigest([0; 32]);

    /// The first peer sends to the second, over a link on which both kinds of frames have been counted.
    fn linked() -> (FrameAudit, FrameAudit) {
        let (mut sender, mut receiver) = (FrameAudit::default(), FrameAudit::default());
        sender.link_up(peer(2));
        receiver.link_up(peer(1));
        sender.note_sent(&peer(2), Priority::Normal);
        sender.note_sent(&peer(2), Priority::Urgent);
        assert!(count(&mut sender, &mut receiver));
        (sender, receiver)
    }

    /// Sends a heartbeat, and what follows it. Returns whether the receiver finds that all frames before have arrived.
    fn count(sender: &mut FrameAudit, receiver: &mut FrameAudit) -> bool {
        let heartbeat = Heartbeat {
            view: VIEW,
            view_number: ViewNumber(0),
            complete: StepNumber(0),
            computing: None,
            sent: SentFrames::default(),
            heard: SentFrames::default(),
            is_busy: false,
            window_bytes: 0,
            disk_fails: false,
        };
        let heartbeat = Message::Heartbeat(sender.heartbeat_to(Instant(0), &peer(2), heartbeat));
        let frame_count = sender.count_to(&peer(2), VIEW);
        let mut messages = vec![heartbeat];
        messages.extend(frame_count);
        let faults = messages.iter().map(|message| {
            sender.note_sent(&peer(2), message.priority());
            let fault = receiver.compare(Instant(0), peer(1), message);
            receiver.note_received(&peer(1), message.priority());
            fault
        });
        faults.collect::<Vec<_>>().iter().all(Option::is_none)
    }

    #[test]
    fn a_lost_and_a_repeated_frame_are_each_noticed_once() {
        for priority in Priority::ALL {
            for (arrived, is_intact) in [(1, true), (0, false), (2, false)] {
                let (mut sender, mut receiver) = linked();
                sender.note_sent(&peer(2), priority);
                (0..arrived).for_each(|_| receiver.note_received(&peer(1), priority));
                assert_eq!(count(&mut sender, &mut receiver), is_intact, "{arrived} of 1, {priority:?}");
                assert!(count(&mut sender, &mut receiver));
            }
        }
    }

    #[test]
    fn those_to_whom_something_went_hear_once_of_a_view_that_was_entered() {
        let (mut sender, _) = linked();
        for other in [3, 4] {
            sender.link_up(peer(other));
        }
        let next = ViewDigest([1; 32]);
        assert!(sender.counts_on_entry().is_empty(), "no view was entered");
        sender.note_sent(&peer(2), Priority::Normal);
        sender.note_sent(&peer(3), Priority::Normal);
        sender.view_entered(next, Duration::from_secs(1));
        let counts = sender.counts_on_entry();
        assert!(counts.iter().all(|(_, it)| matches!(it, Message::FrameCount { view, .. } if *view == next)));
        assert_eq!(counts.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [peer(2), peer(3)]);
        counts.iter().for_each(|(to, message)| sender.note_sent(to, message.priority()));
        assert!(sender.counts_on_entry().is_empty());
        sender.view_entered(VIEW, Duration::from_secs(1));
        assert!(sender.counts_on_entry().is_empty(), "nothing went since");
    }

    #[test]
    fn frames_that_an_urgent_one_has_overtaken_are_not_missed() {
        let (mut sender, mut receiver) = linked();
        sender.note_sent(&peer(2), Priority::Normal);
        sender.note_sent(&peer(2), Priority::Urgent);
        receiver.note_received(&peer(1), Priority::Urgent);
        assert!(sender.count_to(&peer(2), VIEW).is_some(), "it waits behind the first frame");
        sender.note_sent(&peer(2), Priority::Normal);
        assert!(count(&mut sender, &mut receiver));
        assert!(sender.count_to(&peer(2), VIEW).is_none(), "nothing was sent since");
        let next = ViewDigest([1; 32]);
        let news = sender.count_to(&peer(2), next);
        assert!(matches!(news, Some(Message::FrameCount { view, .. }) if view == next), "the view is news");
        sender.note_sent(&peer(2), Priority::Normal);
        assert!(sender.count_to(&peer(2), next).is_none());
    }

    #[test]
    fn what_a_broken_link_lost_is_not_held_against_the_sender() {
        let (mut sender, mut receiver) = linked();
        sender.note_sent(&peer(2), Priority::Normal);
        // Only the sender has noticed.
        sender.link_down(&peer(2));
        sender.link_up(peer(2));
        sender.note_sent(&peer(2), Priority::Normal);
        assert!(count(&mut sender, &mut receiver));
        assert!(count(&mut sender, &mut receiver));
        // Only the receiver has noticed.
        sender.note_sent(&peer(2), Priority::Normal);
        receiver.link_down(&peer(1));
        receiver.link_up(peer(1));
        assert!(count(&mut sender, &mut receiver));
    }
}
