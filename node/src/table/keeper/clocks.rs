//! Clocks, at an owner: how far all workers are, and what waits for that.

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{QUESTIONS_MAX, STALENESS_BY_CLOCK_MAX};
use peergrad_protocol::table::Asked;

use super::super::When;
use super::{Change, Keeper, Outbox, Part, TableError};

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

    /// Whether something is added in a clock so far ahead that it could not be kept with its chunk until that is complete. It may be so
    /// only as seen from here: ticks of others may be on their way.
    pub(super) fn is_early(&self, from: Rank, asked: &Asked) -> bool {
        let Asked::Add { chunk, clock, .. } = asked else { return false };
        let is_before = |(worker, held): &(Rank, Asked)| {
            *worker == from && matches!(held, Asked::Add { chunk: of, .. } if of == chunk)
        };
        if self.early.iter().any(is_before) {
            // What comes after it is not put in before it: it would count as in already.
            return true;
        }
        let is_kept = self.store.layout().table_of(*chunk as usize).when == When::ByClock;
        let least = self.clock().unwrap_or(*clock);
        let is_far = *clock > least.saturating_add(STALENESS_BY_CLOCK_MAX);
        is_kept && (is_far || !self.store.has_room(*chunk as usize, *clock))
    }

    /// Keeps it until its time has come; it is not acknowledged before.
    pub(super) fn hold_early(&mut self, from: Rank, asked: Asked) -> Result<(), TableError> {
        if self.early.iter().filter(|(worker, _)| *worker == from).count() == QUESTIONS_MAX {
            return Err(TableError::Flood(QUESTIONS_MAX));
        }
        if let Asked::Add { sequence, chunk, .. } = &asked {
            let change = Change::Added(*sequence, *chunk as usize);
            self.workers.entry(from).or_default().note(change, 1);
        }
        self.early.push((from, asked));
        Ok(())
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
            Some(Clock::None) | None => match before.filter(|least| clock < *least) {
                Some(least) => Clock::Raised(least),
                None => Clock::At(clock),
            },
        };
        self.clocks.insert(from, now);
        self.look_at_clock(before, out);
        Ok(())
    }

    /// If all workers are further than before, does what waits for that.
    pub(super) fn look_at_clock(&mut self, before: Option<u64>, out: &mut Outbox) {
        if self.clock() == before {
            return;
        }
        (0..self.places.holders.len()).for_each(|chunk| self.complete(chunk));
        for (worker, asked) in std::mem::take(&mut self.early) {
            let Asked::Add { chunk, .. } = &asked else { continue };
            let chunk = Some(*chunk as usize);
            self.take_in(worker, chunk, asked, out)
                .expect("there is room for what there was room for before");
        }
        for (worker, asked) in std::mem::take(&mut self.waiting) {
            match self.tell(worker, asked, out) {
                Some(asked) => self.waiting.push((worker, asked)),
                None => self.workers.entry(worker).or_default().questions -= 1,
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
