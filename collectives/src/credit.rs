//! Credit: how many segments may still be sent on each link.
//!
//! Like returnable trays in a canteen: a link has a fixed number of them, each segment travels on one, and the receiver
//! returns the tray once the segment has been used up or has left again. A slow member simply keeps its trays, so its
//! neighbours wait instead of piling up dishes.
//!
//! # Why a ring does not deadlock
//! If every tray of a ring carried a segment that has to be passed on, nobody could move. So a member starts a segment of
//! its own only if that leaves a tray free on the link; passing on may use the last one. A relay frees the tray that it
//! came on, so from then on there is always a free tray somewhere, and the segment behind it can move. Segments leave for
//! good at their last hop, so the ring empties and everybody gets to start.
//!
//! Rounds of a ring and rounds without relays may follow each other over the same links, as long as nothing of a round is sent
//! before all of the one before has left: then nobody who still passes on waits for a tray behind what came later.
//!
//! A segment that goes one hop only is used up where it arrives, at the latest when its step begins there. So it may take the
//! last tray as well: that one comes back whatever others do. That holds as long as no step waits for a tray to begin: whatever
//! a member needs to complete a step has to be sent before segments of the next one.
//!
//! # When the view changes
//! Trays belong to the two ends, not to a view: some are still under way. So the next view's links begin with the credit
//! that is left here, and the rest comes back as the other end lets go of segments that it has no more use for.
//!
//! # Reading
//! Puente et al., *The adaptive bubble router*, 2001: the same rule in hardware.

/// The credit of every link of one member, by rank of the other end.
#[derive(Clone, Debug)]
pub struct LinkCredits {
    credit: Vec<u32>,
    window: u32,
    reserve: u32,
}

impl LinkCredits {
    /// Links to `rank_count` ranks with `window` segments each, of which those that begin here leave [`RELAY_RESERVE`] to those
    /// that are passed on, in rounds where any are.
    #[must_use]
    pub fn new(rank_count: usize, window: u32) -> Self {
        Self::with_reserve(rank_count, window, RELAY_RESERVE)
    }

    /// As [`LinkCredits::new`], with a `reserve` that the caller chooses. With a smaller reserve than the default, a ring can get stuck.
    #[must_use]
    pub fn with_reserve(rank_count: usize, window: u32, reserve: u32) -> Self {
        Self { credit: vec![window; rank_count], window, reserve }
    }

    /// Takes credit for passing on a segment to `rank`, if there is any.
    #[must_use]
    pub fn take_for_relay(&mut self, rank: usize) -> bool {
        let has_credit = self.credit[rank] > 0;
        self.credit[rank] -= u32::from(has_credit);
        has_credit
    }

    /// Takes credit for a segment that begins here and that others pass on, if relays still have room after it.
    ///
    /// # Panics
    /// If the window has no room beside what relays need.
    #[must_use]
    pub fn take_for_start(&mut self, rank: usize) -> bool {
        assert!(self.window > self.reserve, "a window of {} has no room for a start", self.window);
        let has_room = self.credit[rank] > self.reserve;
        self.credit[rank] -= u32::from(has_room);
        has_room
    }

    /// Takes credit for a segment that begins here and ends at `rank`, where it waits for nothing, if there is any.
    #[must_use]
    pub fn take_for_one_hop(&mut self, rank: usize) -> bool {
        self.take_for_relay(rank)
    }

    /// Gives back `segments` of credit that `rank` returned. False, and nothing changes, if it returned more than it had.
    #[must_use]
    pub fn return_credit(&mut self, rank: usize, segments: u32) -> bool {
        let is_owed = segments <= self.window - self.credit[rank];
        if is_owed {
            self.credit[rank] += segments;
        }
        is_owed
    }

    /// Segments that may still be sent to `rank`, relays and starts together.
    #[must_use]
    pub fn credit(&self, rank: usize) -> u32 {
        self.credit[rank]
    }

    /// Takes over the `credit` that was left on a link when the view changed; 0 where nothing may be sent, for want of a
    /// link for example.
    ///
    /// # Panics
    /// If it is more than the window.
    pub fn set_credit(&mut self, rank: usize, credit: u32) {
        assert!(credit <= self.window, "credit of {credit} on a link with a window of {}", self.window);
        self.credit[rank] = credit;
    }

    /// Takes out the link to `rank`: those behind it have one rank less.
    pub fn remove(&mut self, rank: usize) {
        self.credit.remove(rank);
    }

    /// Puts in a link to `rank`, with `credit` as in [`LinkCredits::set_credit`]: those from there on have one rank more.
    pub fn insert(&mut self, rank: usize, credit: u32) {
        self.credit.insert(rank, 0);
        self.set_credit(rank, credit);
    }

    /// Segments that each link can have on its way.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window
    }
}

/// Enough for a ring: whoever passes a segment on frees the place that it came on.
pub const RELAY_RESERVE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tray_is_for_relays() {
        let mut links = LinkCredits::new(3, 2);
        assert!(links.take_for_start(1));
        assert!(!links.take_for_start(1));
        assert!(links.take_for_relay(1));
        assert!(!links.take_for_relay(1));
        assert!(links.take_for_one_hop(2) && links.take_for_one_hop(2), "nobody passes on");
    }

    #[test]
    fn nobody_returns_more_than_they_got() {
        let mut links = LinkCredits::new(1, 2);
        assert!(!links.return_credit(0, 1));
        assert!(links.take_for_start(0));
        assert!(!links.return_credit(0, 2));
        assert!(links.return_credit(0, 1));
    }

    #[test]
    fn credit_goes_on_where_it_stopped() {
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
    fn ranks_come_and_go() {
        let mut links = LinkCredits::new(3, 2);
        links.set_credit(2, 1);
        links.remove(0);
        links.insert(1, 0);
        assert_eq!([0, 1, 2].map(|rank| links.credit(rank)), [2, 0, 1]);
        assert!(!links.take_for_start(2));
        assert!(links.take_for_one_hop(2));
    }

    #[test]
    fn nothing_goes_where_there_is_no_credit() {
        let mut links = LinkCredits::new(2, 2);
        links.set_credit(1, 0);
        assert!(!links.take_for_one_hop(1) && !links.take_for_relay(1));
    }

    #[test]
    #[should_panic(expected = "credit of 3 on a link with a window of 2")]
    fn credit_above_the_window_is_noticed() {
        LinkCredits::new(1, 2).set_credit(0, 3);
    }
}
