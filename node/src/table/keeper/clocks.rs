//! Clocks, at an owner: how far all workers are, and what waits for that.

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{STALENESS_BY_CLOCK_MAX, STEPS_MAX};
use peergrad_protocol::table::Asked;

use super::super::When;
use super::{Keeper, Outbox, Part, TableError};

/// Where a worker is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// It is new, and has not said.
    None,
    /// It has completed so many.
    At(u64),
    /// It is new, and behind the others: as if it had completed so many.
    Raised(u64),
}

impl Keeper {
    /// So many clocks all workers have completed, as far as is known here; `None`: somebody has not said yet.
    #[must_use]
    pub fn clock(&self) -> Option<u64> {
        if self.are_all_new() {
            return Some(self.begins_at);
        }
        let known = self.places.ranks().filter_map(|rank| match self.clocks.get(&rank) {
            Some(Clock::At(clock) | Clock::Raised(clock)) => Some(Some(*clock)),
            Some(Clock::None) => None,
            None if self.places.newcomers.contains(&rank) => None,
            None => Some(None),
        });
        let mut known = known.peekable();
        known.peek()?;
        known.try_fold(u64::MAX, |least, clock| Some(least.min(clock?)))
    }

    /// Whether nobody has a clock: all who had one are gone.
    fn are_all_new(&self) -> bool {
        let has_none = |clock: &Clock| matches!(clock, Clock::None);
        self.clocks.len() == self.places.members.len() && self.clocks.values().all(has_none)
    }

    /// A worker has no clock.
    pub(super) fn entered(&mut self, from: Rank, out: &mut Outbox) {
        self.clocks.entry(from).or_insert(Clock::None);
        if self.are_all_new() {
            // What those have added who are gone is complete.
            let chunks = 0..self.places.holders.len();
            let last = chunks.filter_map(|chunk| self.store.last_pending(chunk)).max();
            self.begins_at = self.begins_at.max(last.map_or(0, |last| last + 1));
        }
        self.look_at_clock(None, out);
    }

    /// Whether something is added in a clock so far ahead that it could not be kept with its chunk until that is complete. It may be so
    /// only as seen from here: ticks of others may be on their way.
    pub(super) fn is_early(&self, from: Rank, asked: &Asked) -> bool {
        let Asked::Add { chunk, clock, .. } = asked else { return false };
        let chunk = *chunk as usize;
        if self.store.layout().table_of(chunk).when != When::ByClock {
            return false;
        }
        let waits =
            self.early.get(&chunk).is_some_and(|early| early.iter().any(|(worker, _)| *worker == from));
        if waits {
            // What comes after it is not put in before it: it would count as in already.
            return true;
        }
        let least = self.clock().unwrap_or(*clock);
        let is_far = *clock > least.saturating_add(STALENESS_BY_CLOCK_MAX);
        *clock >= least && (is_far || !self.store.has_room(chunk, *clock))
    }

    /// A worker says that so many clocks are complete.
    pub(super) fn ticked(&mut self, from: Rank, clock: u64, out: &mut Outbox) -> Result<(), TableError> {
        let before = self.clock();
        let now = match self.clocks.get(&from) {
            Some(Clock::At(known)) if clock < *known => {
                return Err(TableError::Backwards { told: clock, known: *known });
            }
            Some(Clock::At(_)) => Clock::At(clock),
            Some(Clock::Raised(known)) if clock < *known => Clock::Raised(*known),
            Some(Clock::Raised(_)) => Clock::At(clock),
            // Nobody is put at the end who has not come to it.
            Some(Clock::None) | None => match before.filter(|least| (clock + 1..STEPS_MAX).contains(least)) {
                Some(least) => Clock::Raised(least),
                None => Clock::At(clock),
            },
        };
        let before_that = self.clocks.insert(from, now);
        self.look_at_clock(before, out);
        if !matches!(before_that, Some(Clock::At(_) | Clock::Raised(_))) {
            // Of the others, somebody may have waited for samples as nobody waited for it.
            self.deal_to_those_who_wait(out);
        }
        Ok(())
    }

    /// If all workers are further than before, does what waits for that.
    pub(super) fn look_at_clock(&mut self, before: Option<u64>, out: &mut Outbox) {
        if self.clock() == before {
            return;
        }
        for chunk in 0..self.places.holders.len() {
            match self.early.remove(&chunk) {
                Some(early) => self.put_in(chunk, early, out),
                None => self.complete(chunk),
            }
        }
        let least = self.clock();
        for (worker, asked) in std::mem::take(&mut self.waiting) {
            if least.is_some() && asked.at_least() <= least {
                self.ready.entry(worker).or_default().push_back(asked);
            } else {
                self.waiting.push((worker, asked));
            }
        }
    }

    /// What was added to a chunk in clocks that all have completed is applied.
    pub(super) fn complete(&mut self, chunk: usize) {
        let has_some = self.store.has_pending(chunk) && self.owns(chunk) && self.is_here(chunk);
        if let Some(clock) = has_some.then(|| self.clock()).flatten() {
            let rows = self.store.complete(chunk, clock);
            if !rows.is_empty() {
                self.mark(chunk, &Part { rows, ..Part::default() });
            }
        }
    }
}
