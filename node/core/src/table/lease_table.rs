//! The lease table: which worker computes which samples, where workers go at their own pace.
//!
//! It uses a [cursor](peergrad_protocol::cursor) as steps do, but samples are not assigned to all members at once. A worker with nothing to
//! compute asks for a *lease*. It holds the lease until it reports that the lease is complete, which it does once the resulting additions
//! would survive its loss. If the worker is lost before, its leases are returned and granted next. So every sample of every epoch is done,
//! and the run is over when no worker holds a lease.
//!
//! The report is a [change](peergrad_protocol::table::Operation::Complete) as additions are. Where the additions of a clock are
//! [atomic](super::Atomicity::Clock), the report is part of their transaction, so every sample counts exactly once. Otherwise a worker sends
//! it when its additions are safe. If the worker is lost in between, its lease is granted once more, and the samples of its last leases may
//! count twice. A worker that leaves in good order waits until its report is safe.
//!
//! # Passes
//! A method that needs the sum over *all* samples, for example of their gradients, uses [portions](LeasePolicy::portions). The samples of an
//! epoch are leased once all those of the epoch before are done, in portions much smaller than a worker's share, so that a fast worker computes
//! more of them. A worker for which no portion is left gets a copy of one that another worker still computes. The first of the two that is
//! complete counts, and the other worker need not go on. So a slow worker delays a pass by no more than a fast one needs for a portion.
//!
//! # Invariants
//! - A worker that asks again under the same number gets the same lease, even from another owner.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use peergrad_protocol::cursor::{Ending, Span};
use peergrad_protocol::limits::LEASES_MAX;
use peergrad_protocol::table::{LastLease, LeaseTable, SampleLease, WorkerId, WorkerLeases};

/// How many samples are leased in a run, and how many workers may have leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasePolicy {
    /// The number of epochs of the run.
    pub epochs: u64,
    /// The number of samples of an epoch.
    pub samples: u64,
    /// Samples that only the first worker computes, at the start of the run.
    pub warm_up: u64,
    /// Samples after the warm-up that are leased before one more worker is admitted; `None`: all are admitted at once.
    pub wave: Option<NonZeroU64>,
    /// Leases are portions of a pass, so many for each worker; `None`: they have as many samples as a worker asks for.
    pub portions: Option<NonZeroU64>,
}

/// What a worker's completion changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// The workers whose leases have changed.
    pub changed: BTreeSet<WorkerId>,
    /// Copies of the completed leases: their workers, and these workers' numbers for them.
    pub superseded: Vec<(WorkerId, u64)>,
}

impl LeasePolicy {
    /// Grants the lease that a worker asks for, of `samples` samples, or fewer at the end of an epoch. `None` if there is none for it at
    /// present.
    pub fn grant(
        &self,
        lease_table: &mut LeaseTable,
        worker: WorkerId,
        number: u64,
        samples: u64,
    ) -> Option<SampleLease> {
        let is_closed = lease_table.cursor.ending == Ending::Over;
        let known = leases_of(lease_table, worker);
        if LastLease::Number(number) <= known.last {
            return known.leases.iter().find(|(of, _)| *of == number).map(|(_, lease)| lease.clone());
        }
        if is_closed || known.leases.len() == LEASES_MAX || !self.is_admitted(lease_table, worker) {
            return None;
        }
        let lease = if !lease_table.returned.is_empty() {
            lease_table.returned.remove(0)
        } else if self.is_pass_under_way(lease_table) {
            copy_for(lease_table, worker)?
        } else if self.is_exhausted(lease_table) {
            return None;
        } else {
            let (batch, cursor) = lease_table.cursor.next_batch(samples.max(1), self.samples);
            lease_table.cursor = cursor;
            SampleLease { epoch: batch.epoch, spans: batch.spans }
        };
        let known = leases_of(lease_table, worker);
        known.last = LastLease::Number(number);
        known.leases.push((number, lease.clone()));
        Some(lease)
    }

    /// Whether a worker may have leases by now.
    fn is_admitted(&self, lease_table: &LeaseTable, worker: WorkerId) -> bool {
        // A worker that has ended makes room for another.
        let is_active = |held: &&WorkerLeases| matches!(held.last, LastLease::Number(_));
        let mut others = lease_table.outstanding.iter().filter(is_active);
        let is_in = others.clone().any(|held| held.worker == worker);
        let taken = lease_table.cursor.taken(self.samples);
        let room = match (taken.checked_sub(self.warm_up), self.wave) {
            (None, _) => 1,
            (Some(_), None) => return true,
            (Some(after), Some(wave)) => 2 + after / wave,
        };
        is_in || room > others.by_ref().count() as u64
    }

    /// The samples of a lease if a worker asks for so many, and there are `workers`.
    #[must_use]
    pub fn lease_samples(&self, asked: u64, workers: u64) -> u64 {
        self.portions
            .map_or(asked, |portions| self.samples.div_ceil(portions.get().saturating_mul(workers.max(1))))
    }

    /// Whether all samples of an epoch are leased but not done, and those of the next one wait for that.
    fn is_pass_under_way(&self, lease_table: &LeaseTable) -> bool {
        let (next, _) = lease_table.cursor.next_batch(1, self.samples.max(1));
        let is_before = |(_, lease): &(u64, SampleLease)| lease.epoch < next.epoch;
        self.portions.is_some()
            && lease_table.outstanding.iter().any(|held| held.leases.iter().any(is_before))
    }

    /// Whether no sample is left to lease.
    fn is_exhausted(&self, lease_table: &LeaseTable) -> bool {
        let all = self.epochs.saturating_mul(self.samples);
        let is_all = lease_table.returned.is_empty() && lease_table.cursor.taken(self.samples) >= all;
        is_all || lease_table.cursor.ending == Ending::Over
    }

    /// Once no sample is left to lease, and no worker holds any: how many were trained.
    #[must_use]
    pub fn trained(&self, lease_table: &LeaseTable) -> Option<u64> {
        let is_over = self.is_exhausted(lease_table)
            && lease_table.outstanding.iter().all(|held| held.leases.is_empty());
        let returned = lease_table.returned.iter().flat_map(|lease| &lease.spans).map(Span::len).sum();
        is_over.then(|| lease_table.cursor.taken(self.samples).saturating_sub(returned))
    }
}

/// No more samples are leased: a user has ended the run. Returns whether this changes the table.
pub fn close(lease_table: &mut LeaseTable) -> bool {
    std::mem::replace(&mut lease_table.cursor.ending, Ending::Over) != Ending::Over
}

/// A worker has completed its leases up to this number, and so the copies of them that other workers have.
pub fn complete(lease_table: &mut LeaseTable, worker: WorkerId, number: u64) -> Completed {
    let mut completed = Completed::default();
    let Some(known) = lease_table.outstanding.iter_mut().find(|held| held.worker == worker) else {
        return completed;
    };
    let done: Vec<SampleLease> =
        known.leases.extract_if(.., |(of, _)| *of <= number).map(|(_, lease)| lease).collect();
    if done.is_empty() {
        return completed;
    }
    completed.changed.insert(worker);
    for other in &mut lease_table.outstanding {
        for (of, _) in other.leases.extract_if(.., |(_, lease)| done.contains(lease)) {
            completed.changed.insert(other.worker);
            completed.superseded.push((other.worker, of));
        }
    }
    completed
}

/// A copy of a lease that another worker has, for a worker that has none; `None` if each of them was copied already.
fn copy_for(lease_table: &LeaseTable, worker: WorkerId) -> Option<SampleLease> {
    let all = || lease_table.outstanding.iter().flat_map(|held| &held.leases).map(|(_, lease)| lease);
    let is_idle = lease_table.outstanding.iter().all(|held| held.worker != worker || held.leases.is_empty());
    let is_copied = |lease: &SampleLease| all().filter(|other| *other == lease).count() > 1;
    let oldest = |lease: &&SampleLease| (lease.epoch, lease.spans.first().map(|span| span.start));
    all().filter(|lease| is_idle && !is_copied(lease)).min_by_key(oldest).cloned()
}

/// Returns a lease that its worker does not compute, unless another one has a copy of it.
fn return_lease(lease_table: &mut LeaseTable, lease: SampleLease) {
    let has_copy = |held: &WorkerLeases| held.leases.iter().any(|(_, other)| *other == lease);
    if !lease_table.outstanding.iter().any(has_copy) {
        lease_table.returned.push(lease);
    }
}

/// A worker has ended, and computes no leases from this number on: they are returned, and it gets no more. Returns whether this changes the
/// table.
pub fn end(lease_table: &mut LeaseTable, worker: WorkerId, number: u64) -> bool {
    let known = leases_of(lease_table, worker);
    let is_news = std::mem::replace(&mut known.last, LastLease::Ended) != LastLease::Ended;
    let (held, unused) = std::mem::take(&mut known.leases).into_iter().partition(|(of, _)| *of < number);
    known.leases = held;
    let unused: Vec<(u64, SampleLease)> = unused;
    unused.into_iter().for_each(|(_, lease)| return_lease(lease_table, lease));
    is_news
}

/// The update of a replica in which the leases of these workers have changed. A worker that is not in the table any more holds none.
#[must_use]
pub fn update(lease_table: &LeaseTable, workers: &BTreeSet<WorkerId>) -> LeaseTable {
    let leases = |worker: &WorkerId| {
        let held = lease_table.outstanding.iter().find(|held| held.worker == *worker);
        let gone = || WorkerLeases { worker: *worker, last: LastLease::Ended, leases: Vec::new() };
        held.cloned().unwrap_or_else(gone)
    };
    LeaseTable {
        cursor: lease_table.cursor.clone(),
        returned: lease_table.returned.clone(),
        outstanding: workers.iter().map(leases).collect(),
    }
}

/// Applies the owner's update of the table. It lists all workers, or those that have changed.
pub fn apply_update(lease_table: &mut LeaseTable, update: &LeaseTable) {
    lease_table.cursor = update.cursor.clone();
    lease_table.returned.clone_from(&update.returned);
    update.outstanding.iter().for_each(|held| leases_of(lease_table, held.worker).clone_from(held));
}

/// Takes the leases of workers that are gone, to grant them to others. Returns these workers.
pub fn reclaim(lease_table: &mut LeaseTable, is_there: impl Fn(&WorkerId) -> bool) -> Vec<WorkerId> {
    let (mut reclaimed, mut lost) = (Vec::new(), Vec::new());
    let holds_some = |held: &WorkerLeases| held.last != LastLease::Ended || !held.leases.is_empty();
    let is_gone = |held: &&mut WorkerLeases| !is_there(&held.worker) && holds_some(held);
    for held in lease_table.outstanding.iter_mut().filter(is_gone) {
        held.last = LastLease::Ended;
        let leases = std::mem::take(&mut held.leases).into_iter().map(|(_, lease)| lease);
        for lease in leases {
            if !lost.contains(&lease) {
                lost.push(lease);
            }
        }
        reclaimed.push(held.worker);
    }
    lost.into_iter().for_each(|lease| return_lease(lease_table, lease));
    reclaimed
}

/// Forgets the workers that are gone and hold no leases.
pub fn forget(lease_table: &mut LeaseTable, is_there: impl Fn(&WorkerId) -> bool) {
    lease_table.outstanding.retain(|held| is_there(&held.worker) || !held.leases.is_empty());
}

fn leases_of(lease_table: &mut LeaseTable, worker: WorkerId) -> &mut WorkerLeases {
    let place =
        lease_table.outstanding.binary_search_by(|held| held.worker.cmp(&worker)).unwrap_or_else(|place| {
            lease_table
                .outstanding
                .insert(place, WorkerLeases { worker, last: LastLease::None, leases: vec![] });
            place
        });
    &mut lease_table.outstanding[place]
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::{Incarnation, PeerId};

    use super::*;

    fn worker(byte: u8) -> WorkerId {
        WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) }
    }

    /// The positions of a lease's samples.
    fn positions(lease: Option<SampleLease>) -> Vec<(u64, u64, u64)> {
        let lease = lease.unwrap_or_default();
        lease.spans.iter().map(|span| (lease.epoch, span.start, span.end)).collect()
    }

    #[test]
    fn every_sample_is_leased_once_and_leases_of_lost_workers_once_more() {
        let (lease_policy, mut lease_table) =
            (LeasePolicy { epochs: 2, samples: 5, ..LeasePolicy::default() }, LeaseTable::default());
        let (one, two) = (worker(1), worker(2));
        assert_eq!(positions(lease_policy.grant(&mut lease_table, one, 1, 2)), [(0, 0, 2)]);
        assert_eq!(positions(lease_policy.grant(&mut lease_table, two, 1, 2)), [(0, 2, 4)]);
        assert_eq!(positions(lease_policy.grant(&mut lease_table, two, 1, 2)), [(0, 2, 4)], "asked again");
        assert_eq!(
            positions(lease_policy.grant(&mut lease_table, one, 2, 2)),
            [(0, 4, 5)],
            "no lease is of two epochs"
        );
        assert_eq!(complete(&mut lease_table, one, 1).changed, BTreeSet::from([one]));
        assert_eq!(complete(&mut lease_table, one, 1), Completed::default());
        assert_eq!(positions(lease_policy.grant(&mut lease_table, two, 2, 9)), [(1, 0, 5)]);
        assert_eq!(lease_policy.grant(&mut lease_table, one, 3, 2), None);
        assert!(lease_policy.trained(&lease_table).is_none());
        assert_eq!(reclaim(&mut lease_table, |worker| *worker == one), [two]);
        assert_eq!(positions(lease_policy.grant(&mut lease_table, one, 3, 2)), [(0, 2, 4)]);
        assert_eq!(
            positions(lease_policy.grant(&mut lease_table, one, 4, 2)),
            [(1, 0, 5)],
            "of another epoch than the cursor's"
        );
        assert!(!complete(&mut lease_table, one, 4).changed.is_empty());
        assert_eq!(lease_policy.trained(&lease_table), Some(10));
        assert_eq!(lease_policy.grant(&mut lease_table, one, 5, 2), None);
    }

    #[test]
    fn a_pass_is_complete_before_the_next_and_its_last_portions_are_copied() {
        let portions = NonZeroU64::new(2);
        let lease_policy = LeasePolicy { epochs: 2, samples: 8, portions, ..LeasePolicy::default() };
        let mut lease_table = LeaseTable::default();
        let [one, two, three] = [1, 2, 3].map(worker);
        assert_eq!((lease_policy.lease_samples(99, 2), lease_policy.lease_samples(99, 3)), (2, 2));
        let grant = |lease_table: &mut LeaseTable, worker, number| {
            positions(lease_policy.grant(lease_table, worker, number, 2))
        };
        for (worker, number, start) in [(one, 1, 0), (two, 1, 2), (one, 2, 4), (two, 2, 6)] {
            assert_eq!(grant(&mut lease_table, worker, number), [(0, start, start + 2)]);
        }
        assert_eq!(grant(&mut lease_table, one, 3), [], "it has portions that are not done");
        assert_eq!(grant(&mut lease_table, three, 1), [(0, 0, 2)], "a copy of the oldest");
        assert_eq!(complete(&mut lease_table, one, 2).superseded, [(three, 1)]);
        assert_eq!(complete(&mut lease_table, three, 1), Completed::default());
        assert_eq!(grant(&mut lease_table, one, 3), [(0, 2, 4)]);
        assert_eq!(grant(&mut lease_table, three, 2), [(0, 6, 8)]);
        assert!(end(&mut lease_table, two, 2) && lease_table.returned.is_empty(), "another one has a copy");
        assert_eq!(reclaim(&mut lease_table, |worker| *worker == one), [two, three]);
        assert_eq!(positions(lease_table.returned.first().cloned()), [(0, 6, 8)]);
        assert_eq!(lease_table.returned.len(), 1);
        assert_eq!(grant(&mut lease_table, one, 4), [(0, 6, 8)]);
        assert!(!complete(&mut lease_table, one, 4).changed.is_empty());
        assert_eq!(grant(&mut lease_table, one, 5), [(1, 0, 2)]);
    }

    #[test]
    fn workers_get_leases_in_waves_after_the_first_has_warmed_up() {
        let wave = NonZeroU64::new(6);
        let lease_policy = LeasePolicy { epochs: 1, samples: 100, warm_up: 4, wave, portions: None };
        let mut lease_table = LeaseTable::default();
        let mut next = |byte, number| lease_policy.grant(&mut lease_table, worker(byte), number, 2).is_some();
        assert!(next(1, 1) && !next(2, 1) && next(1, 2));
        assert!(next(2, 1) && !next(3, 1), "4 are dealt, then 6");
        assert!(next(1, 3) && next(2, 2));
        assert!(next(3, 1) && !next(4, 1), "10 are dealt, then 12");
        assert!(next(1, 4) && next(2, 3) && next(4, 1));
    }
}
