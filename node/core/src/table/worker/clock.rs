//! A worker's clock: how far it has come, and what owners know of it.

use peergrad_protocol::limits::{PER_CLOCK_STALENESS_MAX, STEPS_MAX};
use peergrad_protocol::table::{Operation, Request, TableMessage, WorkerClock};

use super::{ReadPolicy, ReadSchedule, TableWorker};
use crate::table::server::Outbox;
use crate::table::{ApplyMode, Atomicity};

/// What owners know of a worker's clock, in the present view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// They may not be told yet: this member has to send changes of workers that are gone first.
    Waits,
    /// Nothing.
    Nothing,
    /// The worker is new and has no clock.
    New,
    /// The worker has come as far as this.
    Clock(WorkerClock),
}

impl TableWorker {
    /// The number of clocks that it has completed.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock.unwrap_or(0)
    }

    /// How far the worker has come.
    pub(super) fn progress(&self) -> WorkerClock {
        if self.has_finished() { WorkerClock::Ended } else { WorkerClock::At(self.clock()) }
    }

    /// Whether it has no clock yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.clock.is_none()
    }

    /// Whether the worker has ended.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.leases.are_returned()
    }

    /// Whether no worker ever waits for another one's clock.
    #[must_use]
    pub fn never_waits(&self) -> bool {
        self.read_schedule.never_waits()
    }

    /// Whether this worker may be further ahead of the slowest, as far as it knows, than owners can keep additions that are applied by
    /// clock.
    #[must_use]
    pub fn is_far_ahead(&self) -> bool {
        self.owners.layout.tables().any(|table| table.apply_mode == ApplyMode::PerClock)
            && self.clock() > self.completed_by_all.saturating_add(PER_CLOCK_STALENESS_MAX)
    }

    pub(super) fn read_policy(&self) -> ReadPolicy {
        self.read_schedule.at(self.clock())
    }

    /// Tells owners this worker's clock. In each view, this member first sends what it has kept of workers that are gone.
    pub fn announce_clock(&mut self, out: &mut Outbox) {
        if self.announced == Announced::Waits {
            self.announced = Announced::Nothing;
        }
        self.send_clock(out);
    }

    /// The number of clocks of which owners have all changes; `None` for a new worker, which has no clock.
    #[must_use]
    pub fn announced_clock(&self) -> Option<u64> {
        self.clock.map(|clock| clock.min(self.changes.queue.held_since().unwrap_or(clock)))
    }

    /// Sends the clock if owners do not know it. It follows all changes that were made before it.
    pub(super) fn send_clock(&mut self, out: &mut Outbox) {
        let held_since = self.changes.queue.held_since().map(WorkerClock::At);
        let now = match self.is_new() {
            true => Announced::New,
            false => Announced::Clock(held_since.unwrap_or(WorkerClock::Ended).min(self.progress())),
        };
        if self.announced == Announced::Waits || self.announced == now {
            return;
        }
        self.announced = now;
        let request = || match now {
            Announced::Clock(clock) => Request::Tick { clock },
            _ => Request::NewWorker,
        };
        let ranks = self.owners.replica_map.ranks();
        out.extend(ranks.map(|rank| (rank, TableMessage::Request(request()))));
    }

    /// Ends the clock. If the additions of a clock are atomic, they are sent now, as one transaction that also completes the clock's lease.
    pub fn tick(&mut self, out: &mut Outbox) {
        let (clock, lease) = (self.clock(), self.leases.end_clock());
        if self.atomicity == Atomicity::Clock {
            let completion = lease.map(|last_lease| (0, Operation::Complete { last_lease }));
            let mut transaction = self.changes.take_coalesced(clock, &self.owners.layout);
            transaction.extend(completion);
            self.send_transaction(clock, transaction, out);
        }
        self.clock = Some((clock + 1).min(STEPS_MAX));
        if self.changes.is_pushed() {
            self.close_leases(out);
        }
        self.send_clock(out);
    }

    /// Ends the clock without its samples: another worker has completed a copy of them.
    pub fn abandon_clock(&mut self, out: &mut Outbox) {
        if self.atomicity == Atomicity::Clock {
            self.changes.discard();
        }
        self.tick(out);
    }

    /// A clock begins. A worker that is behind all others takes the clock of the slowest of them.
    pub fn catch_up(&mut self, out: &mut Outbox) {
        let is_behind = self.clock.is_none_or(|clock| clock < self.completed_by_all);
        if is_behind && !self.has_finished() {
            self.clock = Some(self.completed_by_all);
            self.send_clock(out);
        }
    }

    /// The worker has ended: no other worker waits for it any more, and others compute the samples that it has not computed. Its later
    /// reads are answered when all workers have ended.
    pub fn finish(&mut self, out: &mut Outbox) {
        if self.leases.drop_unfinished() && self.atomicity == Atomicity::Clock {
            // Another worker computes the samples of this clock.
            self.changes.discard();
        }
        self.leases.send_returned(&self.owners, out);
        self.push(out);
        self.clock.get_or_insert(0);
        self.read_schedule = ReadSchedule::constant(ReadPolicy::Staleness(0));
        self.send_clock(out);
    }

    /// An owner has sent how far the slowest worker has come. Returns the clock that counts: if all others have ended, the clock that this
    /// worker had when it sent the request.
    pub(super) fn observe_clock(&mut self, clock: WorkerClock, asked_at: WorkerClock) -> WorkerClock {
        let clock = if clock == WorkerClock::Ended && !self.has_finished() { asked_at } else { clock };
        if let WorkerClock::At(clock) = clock {
            self.completed_by_all = self.completed_by_all.max(clock);
        }
        clock
    }
}
