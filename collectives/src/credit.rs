//! Credit: the number of segments that may still be sent on each link.
//!
//! It works like returnable trays in a canteen: a link has a number of them, and each segment travels on one. The receiver returns
//! the tray once it has used the segment or sent it on. A slow member keeps its trays, so its neighbours wait and its memory stays bounded.
//!
//! # Why a ring does not deadlock
//! If all credit of a ring were used by segments that must be passed on, no member could send. So a member starts a segment of its own
//! only if that leaves some credit on the link; passing on may use the last credit. Which of the two goes first does not matter. A relay
//! returns the credit of the link on which the segment arrived. So there is always credit on some link, and the segment before that link
//! can move. Segments leave the ring at their last hop. So the ring empties, and all members can start theirs.
//!
//! Rounds in a ring and rounds without relays may follow each other on the same links, if no segment of a round is sent before all
//! segments of the previous round have been sent. Then no relay waits for credit behind segments of a later round.
//!
//! A segment that goes one hop is used where it arrives, at the latest when its step begins there. So it may take the last credit too: its
//! return depends on no other member. This holds because no step waits for credit before it begins: all that a member needs to complete a
//! step is sent before segments of the next step.
//!
//! # Fewer trays
//! A member that wants to get less may keep a tray. It must return the tray of a segment that it has passed on: a ring may have only one
//! free tray. It must also return the tray of a mirrored segment, which may have taken that one. It may keep the tray of a last hop. It may
//! keep that of a round without relays: a member begins to send such a round only when it has sent all of its ring.
//!
//! # View changes
//! Credit belongs to the two ends of a link, not to a view, because some of it is in flight. The links of the next view begin with the
//! remaining credit. The rest returns when the other end drops segments that it no longer needs.
//!
//! # Reading
//! Puente et al., *The adaptive bubble router*, 2001: the same rule in hardware.

use peergrad_protocol::limits::LINK_SEGMENTS;

/// The credit of every link of one member, by rank of the other end.
#[derive(Clone, Debug)]
pub struct LinkCredits {
    credit: Vec<u32>,
    window: u32,
    reserve: u32,
}

impl LinkCredits {
    /// Links to `rank_count` ranks with credit for `window` segments each. In a ring, segments that begin here leave [`RELAY_RESERVE`] of
    /// it to relays.
    #[must_use]
    pub fn new(rank_count: usize, window: u32) -> Self {
        Self::with_reserve(rank_count, window, RELAY_RESERVE)
    }

    /// As [`LinkCredits::new`], with a `reserve` that the caller chooses. With a smaller reserve than the default, a ring can get stuck.
    #[must_use]
    pub fn with_reserve(rank_count: usize, window: u32, reserve: u32) -> Self {
        Self { credit: vec![window; rank_count], window, reserve }
    }

    /// Takes credit for passing on a segment to `rank`. Returns false if all credit for that is in use.
    #[must_use]
    pub fn take_for_relay(&mut self, rank: usize) -> bool {
        let has_credit = self.credit[rank] > 0;
        self.credit[rank] -= u32::from(has_credit);
        has_credit
    }

    /// Takes credit for a segment that begins here and that others pass on. Returns false if that would not leave the reserve for relays.
    ///
    /// # Panics
    /// If the window is not larger than the reserve.
    #[must_use]
    pub fn take_for_start(&mut self, rank: usize) -> bool {
        assert!(self.window > self.reserve, "a window of {} has no room for a start", self.window);
        let has_room = self.credit[rank] > self.reserve;
        self.credit[rank] -= u32::from(has_room);
        has_room
    }

    /// Whether there is so much credit that segments that begin here may go before relays: some is left for those.
    #[must_use]
    pub fn has_plenty(&self, rank: usize) -> bool {
        self.credit[rank] > PLENTY.max(self.reserve)
    }

    /// Takes credit for a segment that begins here and ends at `rank`, where it waits for nothing. Returns false if all credit for that is
    /// in use.
    #[must_use]
    pub fn take_for_one_hop(&mut self, rank: usize) -> bool {
        self.take_for_relay(rank)
    }

    /// Adds the credit for `segments` that `rank` returned. Returns false, and changes nothing, if that exceeds the credit in use.
    #[must_use]
    pub fn return_credit(&mut self, rank: usize, segments: u32) -> bool {
        let is_owed = segments <= self.window - self.credit[rank];
        if is_owed {
            self.credit[rank] += segments;
        }
        is_owed
    }

    /// The number of segments that may still be sent to `rank`.
    #[must_use]
    pub fn credit(&self, rank: usize) -> u32 {
        self.credit[rank]
    }

    /// Sets the credit of a link to what remained when the view changed; 0 if nothing may be sent, for example because there is no link.
    ///
    /// # Panics
    /// If it exceeds the window.
    pub fn set_credit(&mut self, rank: usize, credit: u32) {
        assert!(credit <= self.window, "credit of {credit} on a link with a window of {}", self.window);
        self.credit[rank] = credit;
    }

    /// Removes the link to `rank`; ranks after it become one less.
    pub fn remove(&mut self, rank: usize) {
        self.credit.remove(rank);
    }

    /// Inserts a link to `rank` with `credit` as in [`LinkCredits::set_credit`]; ranks from there on become one more.
    pub fn insert(&mut self, rank: usize, credit: u32) {
        self.credit.insert(rank, 0);
        self.set_credit(rank, credit);
    }

    /// Most segments in flight on a link.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window
    }
}

/// More credit than a link has at first: the window is wide.
const PLENTY: u32 = 2 * LINK_SEGMENTS;
/// The reserve that a ring needs: a relay returns the credit of the link on which the segment arrived.
pub const RELAY_RESERVE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_starts_in_a_ring_leaves_the_last_credit_to_relays() {
        let mut links = LinkCredits::new(3, 2);
        assert!(links.take_for_start(1));
        assert!(!links.take_for_start(1));
        assert!(links.take_for_relay(1));
        assert!(!links.take_for_relay(1));
        assert!(links.take_for_one_hop(2) && links.take_for_one_hop(2), "nobody passes on");
    }

    #[test]
    fn a_peer_cannot_return_more_credit_than_it_received() {
        let mut links = LinkCredits::new(1, 2);
        assert!(!links.return_credit(0, 1));
        assert!(links.take_for_start(0));
        assert!(!links.return_credit(0, 2));
        assert!(links.return_credit(0, 1));
    }

    #[test]
    fn used_credit_stays_used_after_a_view_change() {
        let mut before = LinkCredits::new(2, 3);
        assert!(before.take_for_start(1));
        assert_eq!(before.credit(1), 2);
        let mut after = LinkCredits::new(3, 3);
        after.set_credit(2, before.credit(1));
        assert!(after.take_for_start(2));
        assert!(!after.take_for_start(2));
        assert!(after.return_credit(2, 2), "what was taken before the change is owed after it");
        assert!(!after.return_credit(2, 1));
    }

    #[test]
    fn credit_follows_ranks_that_are_inserted_and_removed() {
        let mut links = LinkCredits::new(3, 2);
        links.set_credit(2, 1);
        links.remove(0);
        links.insert(1, 0);
        assert_eq!([0, 1, 2].map(|rank| links.credit(rank)), [2, 0, 1]);
        assert!(!links.take_for_start(2));
        assert!(links.take_for_one_hop(2));
    }

    #[test]
    fn no_segment_is_sent_without_credit() {
        let mut links = LinkCredits::new(2, 2);
        links.set_credit(1, 0);
        assert!(!links.take_for_one_hop(1) && !links.take_for_relay(1));
    }

    #[test]
    #[should_panic(expected = "credit of 3 on a link with a window of 2")]
    fn credit_above_the_window_panics() {
        LinkCredits::new(1, 2).set_credit(0, 3);
    }
}
