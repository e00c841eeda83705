//! Clocks, at an owner: how far each worker is, and what waits for the slowest.

use std::collections::BTreeMap;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::PER_CLOCK_STALENESS_MAX;
use peergrad_protocol::table::{Operation, Request, TableChange, WorkerClock};

use super::super::ApplyMode;
use super::{Author, ChunkDelta, Outbox, ReplicaMap, TableError, TableServer};

/// The clocks of all workers in one view.
#[derive(Default)]
pub(super) struct WorkerClocks {
    /// The clock of each worker, as far as this owner knows.
    known: BTreeMap<Rank, KnownClock>,
    /// The clock of all workers while none of them has one.
    initial: u64,
}

/// What an owner knows of a worker's clock.
#[derive(Clone, Copy, Debug)]
enum KnownClock {
    /// The worker is new, and has no clock yet.
    New,
    /// The clock that the worker has sent.
    Sent(WorkerClock),
    /// The worker is new and behind the others: it counts as if it had completed so many clocks.
    Raised(u64),
}

impl KnownClock {
    /// How far the worker has come; `None` for one without a clock.
    fn reached(self) -> Option<WorkerClock> {
        match self {
            Self::New => None,
            Self::Sent(clock) => Some(clock),
            Self::Raised(clock) => Some(WorkerClock::At(clock)),
        }
    }
}

/// Whether the clock that a worker has sent is its first one in this view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstClock {
    Yes,
    No,
}

impl WorkerClocks {
    /// How far the slowest worker has come, as far as this owner knows; `None` while a worker has not sent its clock.
    pub(super) fn least(&self, replica_map: &ReplicaMap) -> Option<WorkerClock> {
        if self.are_all_new(replica_map) {
            return Some(WorkerClock::At(self.initial));
        }
        let known = replica_map.ranks().filter_map(|rank| match self.known.get(&rank) {
            Some(known) => known.reached().map(Some),
            None if replica_map.newcomers.contains(&rank) => None,
            None => Some(None),
        });
        let mut known = known.peekable();
        known.peek()?;
        known.try_fold(WorkerClock::Ended, |least, clock| Some(least.min(clock?)))
    }

    /// Whether no worker has a clock, because all that had one are gone.
    fn are_all_new(&self, replica_map: &ReplicaMap) -> bool {
        let has_none = |clock: &KnownClock| matches!(clock, KnownClock::New);
        self.known.len() == replica_map.members.len() && self.known.values().all(has_none)
    }

    /// Whether all members that were in the view before have sent their clocks, and with that all that comes before them.
    pub(super) fn are_sent(&self, replica_map: &ReplicaMap) -> bool {
        replica_map
            .ranks()
            .all(|rank| self.known.contains_key(&rank) || replica_map.newcomers.contains(&rank))
    }

    /// Whether others than this worker may still be waited for.
    pub(super) fn has_others_running(&self, worker: Rank) -> bool {
        let is_running = |clock: &KnownClock| matches!(clock.reached(), Some(WorkerClock::At(_)));
        self.known.iter().any(|(rank, clock)| *rank != worker && is_running(clock))
    }

    /// A worker sends its clock. `least` is that of the slowest worker.
    fn note(
        &mut self,
        worker: Rank,
        clock: WorkerClock,
        least: Option<WorkerClock>,
    ) -> Result<FirstClock, TableError> {
        let now = match self.known.get(&worker) {
            Some(KnownClock::Sent(known)) if clock < *known => {
                return Err(TableError::ClockBackwards { sent: clock, known: *known });
            }
            Some(KnownClock::Raised(known)) if clock < WorkerClock::At(*known) => KnownClock::Raised(*known),
            Some(KnownClock::Sent(_) | KnownClock::Raised(_)) => KnownClock::Sent(clock),
            // A worker that has not ended is not raised to the end, even if all others have ended.
            Some(KnownClock::New) | None => match least {
                Some(WorkerClock::At(least)) if clock < WorkerClock::At(least) => KnownClock::Raised(least),
                _ => KnownClock::Sent(clock),
            },
        };
        match self.known.insert(worker, now) {
            Some(KnownClock::Sent(_) | KnownClock::Raised(_)) => Ok(FirstClock::No),
            Some(KnownClock::New) | None => Ok(FirstClock::Yes),
        }
    }
}

impl TableServer {
    /// The donors of chunks that have not arrived.
    pub fn awaited_donors(&self) -> impl Iterator<Item = Rank> {
        self.awaiting_chunk.keys().filter_map(|chunk| self.replica_map.donor(*chunk))
    }

    /// The progress that the next waiting read needs of all workers, and the workers that have not made it. `None` if no read waits.
    #[must_use]
    pub fn awaited_clocks(&self) -> Option<(WorkerClock, Vec<Rank>)> {
        let needed = self.waiting.iter().filter_map(|(_, request)| match request {
            Request::Get { min_clock, .. } | Request::Reduce { min_clock, .. } => Some(*min_clock),
            _ => None,
        });
        let needed = needed.min()?;
        let is_behind = |rank: &Rank| match self.clocks.known.get(rank) {
            Some(known) => known.reached().is_some_and(|clock| clock < needed),
            None => !self.replica_map.newcomers.contains(rank),
        };
        Some((needed, self.replica_map.ranks().filter(is_behind).collect()))
    }

    /// How far the slowest worker has come, as far as this owner knows; `None` while a worker has not sent its clock.
    #[must_use]
    pub fn clock(&self) -> Option<WorkerClock> {
        self.clocks.least(&self.replica_map)
    }

    /// A worker says that it has no clock.
    pub(super) fn on_new_worker(&mut self, from: Rank, out: &mut Outbox) {
        let clocks = &mut self.clocks;
        clocks.known.entry(from).or_insert(KnownClock::New);
        if clocks.are_all_new(&self.replica_map) {
            // The additions of the workers that are gone are complete.
            let chunks = 0..self.replica_map.holders.len();
            let last = chunks.filter_map(|chunk| self.store.last_pending(chunk)).max();
            clocks.initial = clocks.initial.max(last.map_or(0, |last| last + 1));
        }
        self.on_clock_change(None, out);
        self.settle_departed(out);
    }

    /// Whether a change has to wait: it adds in a clock so far ahead that its chunk has no room for the addition until that clock is complete,
    /// or an earlier change waits for that. This may be so only from this owner's view: ticks of other workers may be on their way.
    pub(super) fn is_early(&self, from: Rank, request: &Request) -> bool {
        let Some(TableChange { chunk, operation, .. }) = request.change() else { return false };
        let (chunk, author) = (*chunk as usize, Author::of(from, request));
        let is_its = |(sender, before): &(Rank, Request)| Author::of(*sender, before) == author;
        let waits = self.early.get(&chunk).is_some_and(|early| early.iter().any(is_its));
        if waits {
            // A later change must not be applied before an earlier one: the earlier one would then count as included.
            return true;
        }
        let Operation::Add { clock, .. } = operation else { return false };
        if self.store.layout().table_of(chunk).apply_mode != ApplyMode::PerClock {
            return false;
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
        let first = self.clocks.note(from, clock, before)?;
        self.on_clock_change(before, out);
        if first == FirstClock::Yes {
            self.settle_departed(out);
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
        self.settle_departed(out);
    }

    /// Applies the additions to a chunk in clocks that all workers have completed.
    pub(super) fn apply_completed(&mut self, chunk: usize) {
        let has_some = self.store.has_pending(chunk) && self.owns(chunk) && self.is_here(chunk);
        if let Some(clock) = has_some.then(|| self.clock()).flatten() {
            let rows = self.store.apply_completed(chunk, clock);
            if !rows.is_empty() {
                self.replication.mark_dirty(chunk, &ChunkDelta { rows, ..ChunkDelta::default() });
            }
        }
    }
}
