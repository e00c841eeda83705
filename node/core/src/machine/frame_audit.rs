//! Frame audit: whether all frames of a peer arrive, and in time.
//!
//! A link delivers frames once, and those of one priority in order. So nothing is lost between two healthy peers while their link is up. A
//! faulty program or memory may still lose or repeat frames on their way through a process, without a word, and a run would wait for them
//! for good. So each heartbeat says how many urgent frames the sender has sent before it, and a normal message that follows it says how many
//! normal ones. The receiver compares that with what has arrived. The second message also names the sender's view: being in order with other
//! normal frames, it shows that none of an earlier view follows. So it is also sent after this peer has entered a view, over all links that
//! carried normal frames in the view before. A peer that skipped that view keeps its frames, and their credit, until then.
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
    /// The view that this peer has just entered, and those to whom normal frames went in the view before, until they are told.
    entered: Option<(ViewDigest, Vec<PeerId>)>,
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
    /// Whether a normal frame, other than such a number, was sent since this peer last entered a view.
    is_used: bool,
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
        let link = AuditedLink {
            urgent: none(),
            normal: none(),
            heard: SentFrames::default(),
            reported: None,
            is_used: false,
        };
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
        let used = self
            .links
            .iter_mut()
            .filter_map(|(peer, link)| std::mem::take(&mut link.is_used).then_some(*peer));
        let before = self.entered.take().map(|(_, before)| before).unwrap_or_default();
        self.entered = Some((view, used.chain(before).collect()));
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
        Heartbeat { sent, heard, is_uplink_busy: self.is_busy, ..heartbeat }
    }

    /// What follows a heartbeat to this peer in this view, or an entry into it: how many normal frames were sent, if it was told of another
    /// view or number before.
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

    /// What is due after this peer has entered a view: the numbers of normal frames, for those to whom some went in the view before.
    pub(super) fn counts_on_entry(&mut self) -> Vec<(PeerId, Message)> {
        let Some((view, peers)) = self.entered.take() else { return Vec::new() };
        peers.into_iter().filter_map(|to| Some((to, self.count_to(&to, view)?))).collect()
    }

    /// A frame is sent that belongs to no audit.
    pub(super) fn note_used(&mut self, to: &PeerId, priority: Priority) {
        self.note_sent(to, priority);
        if let Some(link) = self.links.get_mut(to).filter(|_| priority == Priority::Normal) {
            link.is_used = true;
        }
    }

    /// A heartbeat or a number of frames is sent.
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
                let is_busy = heartbeat.is_uplink_busy || self.is_busy;
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
            is_uplink_busy: false,
            window_bytes: 0,
            disk_fails: false,
            busy_milliseconds: 0,
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
    fn an_entered_view_is_told_once_over_links_that_carried_frames_before() {
        let (mut sender, _) = linked();
        for other in [3, 4] {
            sender.link_up(peer(other));
        }
        let next = ViewDigest([1; 32]);
        let told = |sender: &mut FrameAudit, in_view| {
            let counts = sender.counts_on_entry();
            let is_it =
                |message: &Message| matches!(message, Message::FrameCount { view, .. } if *view == in_view);
            assert!(counts.iter().all(|(_, message)| is_it(message)));
            counts.iter().for_each(|(to, message)| sender.note_sent(to, message.priority()));
            counts.iter().map(|(to, _)| *to).collect::<Vec<_>>()
        };
        assert!(told(&mut sender, next).is_empty(), "no view was entered");
        sender.note_used(&peer(2), Priority::Normal);
        sender.note_used(&peer(4), Priority::Urgent);
        sender.view_entered(next, Duration::from_secs(1));
        // It goes with the entry, before that is told.
        sender.note_used(&peer(3), Priority::Normal);
        assert_eq!(told(&mut sender, next), [peer(2)]);
        assert!(told(&mut sender, next).is_empty());
        // A heartbeat has told how many frames went in the view that is left now, and the receiver keeps them.
        assert!(sender.count_to(&peer(3), next).is_some());
        sender.note_sent(&peer(3), Priority::Normal);
        sender.view_entered(VIEW, Duration::from_secs(1));
        assert_eq!(told(&mut sender, VIEW), [peer(3)]);
        sender.view_entered(next, Duration::from_secs(1));
        assert!(told(&mut sender, next).is_empty(), "nothing went since");
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
