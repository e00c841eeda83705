//! Peer links: which peers are linked, over which route and line, and how many segments may be in flight on each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::PeerId;
use peergrad_protocol::limits::{LINK_SEGMENTS, LINK_SEGMENTS_MAX, LONG_LINES_BYTES_MAX, SEGMENT_BYTES_MAX};
use peergrad_protocol::view::MemberLine;

/// The way in which frames reach a linked peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Over a connection between the two peers.
    Direct,
    /// Through another peer, which carries control messages only.
    Relayed,
}

/// The flow control of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkFlow {
    /// How many more segments may be sent.
    pub(crate) credit: u32,
    /// How many segments the other end may have in flight to this peer, and waiting here.
    pub(crate) window: u32,
}

impl LinkFlow {
    /// A new link, with nothing on its way yet.
    pub(crate) const NEW: Self = Self { credit: LINK_SEGMENTS, window: LINK_SEGMENTS };
}

/// The line to a peer, as its frames and their acknowledgements show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The shortest recent time from sending a frame to its acknowledgement.
    pub round_trip: Duration,
    /// How long a frame takes beside an empty queue, as pings show it. That is longer than the round trip where lost packets are sent again.
    pub frame_time: Duration,
    /// The most bytes that have recently been acknowledged in a second.
    pub bytes_per_second: u64,
}

impl Line {
    /// A line that loses no packets.
    #[must_use]
    pub fn without_losses(round_trip: Duration, bytes_per_second: u64) -> Self {
        Self { round_trip, frame_time: round_trip, bytes_per_second }
    }

    /// Whether frames take so much longer than a round trip that they probably wait for packets that are sent again.
    #[must_use]
    pub fn resends_packets(&self) -> bool {
        self.frame_time > self.round_trip * 3 / 2
    }

    /// How many bytes it carries while a frame is on its way: so many have to be in flight to fill it.
    #[must_use]
    pub fn bytes_to_fill(&self) -> u64 {
        let bytes = u128::from(self.bytes_per_second) * self.frame_time.as_micros() / 1_000_000;
        bytes.try_into().unwrap_or(u64::MAX)
    }

    /// How many bytes of segments may be at the other end or on their way there: twice what has to be in flight, so that a measurement shows
    /// that the line carries more. Over a long line as much again, because in a ring segments wait at the other end until the next line
    /// takes them. Over a short one that would only be memory that no cache holds.
    fn window_bytes(&self) -> u64 {
        let factor = if self.round_trip < LONG_ROUND_TRIP { 2 } else { 4 };
        let most = u64::from(LINK_SEGMENTS_MAX) * SEGMENT_BYTES_MAX as u64;
        self.bytes_to_fill().saturating_mul(factor).min(most)
    }
}

/// The links of this peer.
#[derive(Default)]
pub(crate) struct PeerLinks {
    /// The linked peers, and their flow control. Once this peer is in a view, the training does that of members.
    pub(crate) flows: BTreeMap<PeerId, LinkFlow>,
    /// The lines to linked peers that have been measured.
    lines: BTreeMap<PeerId, Line>,
    /// How many bytes a second the long ones among them carry together; `None` before the first measurement.
    uplink: Option<u64>,
    /// The peers that are reached through another peer.
    relayed: BTreeSet<PeerId>,
}

impl PeerLinks {
    /// There is a new link to this peer, with nothing on its way yet.
    pub(crate) fn up(&mut self, peer: PeerId) {
        self.flows.insert(peer, LinkFlow::NEW);
    }

    /// The link to this peer is down.
    pub(crate) fn down(&mut self, peer: &PeerId) {
        self.flows.remove(peer);
        self.lines.remove(peer);
        self.relayed.remove(peer);
    }

    /// This peer is reached over this route from now on. The driver may say so before the link is up.
    pub(crate) fn set_route(&mut self, peer: PeerId, route: Route) {
        match route {
            Route::Direct => self.relayed.remove(&peer),
            Route::Relayed => self.relayed.insert(peer),
        };
    }

    /// This peer has processed segments that were sent to it.
    pub(crate) fn give_back(&mut self, peer: &PeerId, segments: u32) {
        if let Some(flow) = self.flows.get_mut(peer) {
            flow.credit = flow.credit.saturating_add(segments).min(LINK_SEGMENTS_MAX);
        }
    }

    /// The line to a peer has been measured again.
    pub(crate) fn note_line(&mut self, peer: PeerId, line: Line) {
        if self.flows.contains_key(&peer) {
            self.lines.insert(peer, line);
        }
    }

    /// All long lines together carry so many bytes a second.
    pub(crate) fn note_uplink(&mut self, bytes_per_second: u64) {
        self.uplink = Some(bytes_per_second);
    }

    /// This peer's line, as members agree on it. Unknown if none of its lines is long now. The mean is over all long lines, and so does not
    /// depend on the topology in use.
    pub(crate) fn member_line(&self) -> MemberLine {
        let trips = self.lines.values().map(|line| line.round_trip).filter(|trip| *trip >= LONG_ROUND_TRIP);
        let (count, sum) = trips.fold((0, Duration::ZERO), |(count, sum), trip| (count + 1, sum + trip));
        let Some(bytes_per_second) = self.uplink.filter(|_| count > 0) else { return MemberLine::default() };
        let within = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
        MemberLine {
            kilobytes_per_second: within(u128::from(bytes_per_second / 1000)),
            round_trip_milliseconds: within((sum / count).as_millis()),
        }
    }

    /// How many bytes of segments this peer wants to have at another one or on their way there. 0 if the line has not been measured. If all
    /// lines together would need more than [`LONG_LINES_BYTES_MAX`], each gets its part of that: what is in flight is kept here.
    pub(crate) fn window_bytes(&self, peer: &PeerId) -> u64 {
        let Some(line) = self.lines.get(peer) else { return 0 };
        let all: u64 = self.lines.values().map(Line::window_bytes).sum();
        let (bytes, most) = (line.window_bytes(), LONG_LINES_BYTES_MAX as u64);
        if all <= most { bytes } else { bytes * most / all }
    }

    /// Whether frames can be sent to this peer.
    pub(crate) fn is_linked(&self, peer: &PeerId) -> bool {
        self.flows.contains_key(peer)
    }

    /// Whether tensors can be sent to this peer.
    pub(crate) fn is_direct(&self, peer: &PeerId) -> bool {
        self.is_linked(peer) && !self.relayed.contains(peer)
    }

    /// The linked peers.
    pub(crate) fn linked(&self) -> impl Iterator<Item = PeerId> {
        self.flows.keys().copied()
    }

    /// The peers that are reached through another peer.
    pub(crate) fn relayed(&self) -> impl Iterator<Item = PeerId> {
        self.relayed.iter().copied()
    }
}

/// The round trip of a long line, at least. Machines in one room, and busy processes of one machine, are closer.
pub const LONG_ROUND_TRIP: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::peer;

    #[test]
    fn a_route_may_be_known_before_the_link_and_ends_with_it() {
        let mut links = PeerLinks::default();
        links.set_route(peer(1), Route::Relayed);
        assert!(!links.is_linked(&peer(1)));
        links.up(peer(1));
        assert!(links.is_linked(&peer(1)) && !links.is_direct(&peer(1)));
        links.set_route(peer(1), Route::Direct);
        assert!(links.is_direct(&peer(1)));
        links.set_route(peer(1), Route::Relayed);
        links.down(&peer(1));
        links.up(peer(1));
        assert!(links.is_direct(&peer(1)));
    }

    #[test]
    fn credit_never_exceeds_the_largest_window() {
        let mut links = PeerLinks::default();
        links.up(peer(1));
        links.give_back(&peer(1), u32::MAX);
        links.give_back(&peer(2), 1);
        let flow = LinkFlow { credit: LINK_SEGMENTS_MAX, window: LINK_SEGMENTS };
        assert_eq!(links.flows, BTreeMap::from([(peer(1), flow)]));
    }

    #[test]
    fn a_window_is_four_times_what_a_long_line_carries_while_a_frame_is_on_its_way() {
        let mut links = PeerLinks::default();
        let line = |milliseconds, rate| Line::without_losses(Duration::from_millis(milliseconds), rate);
        links.note_line(peer(1), line(100, 20_000_000));
        assert_eq!(links.window_bytes(&peer(1)), 0, "there is no link");
        links.up(peer(1));
        links.note_line(peer(1), line(100, 20_000_000));
        assert_eq!(links.window_bytes(&peer(1)), 8_000_000);
        links.note_line(peer(1), line(1, 1_000_000_000));
        assert_eq!(links.window_bytes(&peer(1)), 2_000_000, "a short one");
        links.note_line(peer(1), Line { frame_time: Duration::from_millis(150), ..line(100, 20_000_000) });
        assert_eq!(links.window_bytes(&peer(1)), 12_000_000, "packets are lost");
        links.note_line(peer(1), line(100, 20_000_000));
        links.up(peer(2));
        links.note_line(peer(2), line(100, 20_000_000));
        assert_eq!(links.window_bytes(&peer(1)), 8_000_000);
        for other in 3..=5 {
            links.up(peer(other));
            links.note_line(peer(other), line(60_000, u64::MAX));
        }
        let all: u64 = (1..=5).map(|other| links.window_bytes(&peer(other))).sum();
        assert!(links.window_bytes(&peer(1)) > 1_000_000 && all.abs_diff(32 << 20) < 5, "{all}");
    }

    #[test]
    fn a_members_line_is_known_while_one_of_its_lines_is_long() {
        let mut links = PeerLinks::default();
        let line = |milliseconds| Line::without_losses(Duration::from_millis(milliseconds), 1_000_000);
        (1..=3).for_each(|byte| links.up(peer(byte)));
        links.note_line(peer(1), line(1));
        assert_eq!(links.member_line(), MemberLine::default());
        links.note_uplink(5_000_000);
        assert_eq!(links.member_line(), MemberLine::default(), "its line is short");
        links.note_line(peer(2), line(100));
        links.note_line(peer(3), line(50));
        let known = MemberLine { kilobytes_per_second: 5000, round_trip_milliseconds: 75 };
        assert_eq!(links.member_line(), known);
        links.down(&peer(2));
        assert_eq!(links.member_line().round_trip_milliseconds, 50);
        links.down(&peer(3));
        assert_eq!(links.member_line(), MemberLine::default(), "those far away have left");
    }
}
