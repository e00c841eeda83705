//! Clocks, at an owner: how far each worker is, and what waits for the slowest.

use peergrad_protocol::Rank;
use peergrad_protocol::limits::PER_CLOCK_STALENESS_MAX;
use peergrad_protocol::table::{Request, WorkerClock};

use super::super::ApplyMode;
use super::{ChunkDelta, Outbox, TableError, TableServer};

/// What an owner knows of a worker's clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownClock {
    /// The worker is new, and has no clock yet.
    New,
    /// The clock that the worker has told.
    Told(WorkerClock),
    /// The worker is new and behind the others: it counts as if it had completed so many clocks.
    Raised(u64),
}

impl KnownClock {
    /// How far the worker has come; `None` for one without a clock.
    fn reached(self) -> Option<WorkerClock> {
        match self {
            Self::New => None,
            Self::Told(clock) => Some(clock),
            Self::Raised(clock) => Some(WorkerClock::At(clock)),
        }
    }

    /// Whether others may wait for the worker.
    pub(super) fn is_running(self) -> bool {
        matches!(self.reached(), Some(WorkerClock::At(_)))
    }
}

impl TableServer {
    /// How far the slowest worker has come, as far as this owner knows; `None` while a worker has not told its clock.
    #[must_use]
    pub fn clock(&self) -> Option<WorkerClock> {
        if self.are_all_new() {
            return Some(WorkerClock::At(self.initial_clock));
        }
        let known = self.replica_map.ranks().filter_map(|rank| match self.clocks.get(&rank) {
            Some(known) => known.reached().map(Some),
            None if self.replica_map.newcomers.contains(&rank) => None,
            None => Some(None),
        });
        let mut known = known.peekable();
        known.peek()?;
        known.try_fold(WorkerClock::Ended, |least, clock| Some(least.min(clock?)))
    }

    /// Whether no worker has a clock, because all that had one are gone.
    fn are_all_new(&self) -> bool {
        let has_none = |clock: &KnownClock| matches!(clock, KnownClock::New);
        self.clocks.len() == self.replica_map.members.len() && self.clocks.values().all(has_none)
    }

    /// A worker says that it has no clock.
    pub(super) fn on_new_worker(&mut self, from: Rank, out: &mut Outbox) {
        self.clocks.entry(from).or_insert(KnownClock::New);
        if self.are_all_new() {
            // The additions of the workers that are gone are complete.
            let chunks = 0..self.replica_map.holders.len();
            let last = chunks.filter_map(|chunk| self.store.last_pending(chunk)).max();
            self.initial_clock = self.initial_clock.max(last.map_or(0, |last| last + 1));
        }
        self.on_clock_change(None, out);
    }

    /// Whether a request adds in a clock so far ahead that its chunk has no room for the addition until that clock is complete. This may be
    /// so only from this owner's view: ticks of other workers may be on their way.
    pub(super) fn is_early(&self, from: Rank, request: &Request) -> bool {
        let Request::Add { chunk, clock, .. } = request else { return false };
        let chunk = *chunk as usize;
        if self.store.layout().table_of(chunk).apply_mode != ApplyMode::PerClock {
            return false;
        }
        let waits =
            self.early.get(&chunk).is_some_and(|early| early.iter().any(|(worker, _)| *worker == from));
        if waits {
            // A later addition must not be applied before an earlier one: the earlier one would then count as included.
            return true;
        }
        let least = match self.clock() {
            None => *clock,
            Some(WorkerClock::At(least)) => least,
            Some(WorkerClock::Ended) => return false,
        };
        let is_far = *clock > least.saturating_add(PER_CLOCK_STALENESS_MAX);
        *clock >= least && (is_far || !self.store.has_pending_room(chunk, *clock))
    }

    /// A worker sends its clock.
    pub(super) fn on_tick(
        &mut self,
        from: Rank,
        clock: WorkerClock,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let before = self.clock();
        let now = match self.clocks.get(&from) {
            Some(KnownClock::Told(known)) if clock < *known => {
                return Err(TableError::ClockBackwards { told: clock, known: *known });
            }
            Some(KnownClock::Raised(known)) if clock < WorkerClock::At(*known) => KnownClock::Raised(*known),
            Some(KnownClock::Told(_) | KnownClock::Raised(_)) => KnownClock::Told(clock),
            // A worker that has not ended is not raised to the end, even if all others have ended.
            Some(KnownClock::New) | None => match before {
                Some(WorkerClock::At(least)) if clock < WorkerClock::At(least) => KnownClock::Raised(least),
                _ => KnownClock::Told(clock),
            },
        };
        let before_that = self.clocks.insert(from, now);
        self.on_clock_change(before, out);
        if !matches!(before_that, Some(KnownClock::Told(_) | KnownClock::Raised(_))) {
            // Another worker may wait for samples because no worker waited for it; now this one may.
            self.retry_lease_requests(out);
        }
        Ok(())
    }

    /// If the slowest worker has advanced, carries out the requests that waited for that.
    pub(super) fn on_clock_change(&mut self, before: Option<WorkerClock>, out: &mut Outbox) {
        if self.clock() == before {
            return;
        }
        for chunk in 0..self.replica_map.holders.len() {
            match self.early.remove(&chunk) {
                Some(early) => self.apply_waiting(chunk, early, out),
                None => self.apply_completed(chunk),
            }
        }
        let least = self.clock();
        for (worker, request) in std::mem::take(&mut self.waiting) {
            if least.is_some() && request.min_clock() <= least {
                self.ready.entry(worker).or_default().push_back(request);
            } else {
                self.waiting.push((worker, request));
            }
        }
    }

    /// Applies the additions to a chunk in clocks that all workers have completed.
    pub(super) fn apply_completed(&mut self, chunk: usize) {
        let has_some = self.store.has_pending(chunk) && self.owns(chunk) && self.is_here(chunk);
        if let Some(clock) = has_some.then(|| self.clock()).flatten() {
            let rows = self.store.apply_completed(chunk, clock);
            if !rows.is_empty() {
                self.mark_dirty(chunk, &ChunkDelta { rows, ..ChunkDelta::default() });
            }
        }
    }
}
