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
//! complete counts, and the other worker need not go on. So a slow worker delays a pass by no more than another one needs for a portion.
//!
//! # Kept portions
//! A method that keeps something for each sample, such as the topics of a document's words, has [portions that are the same in each
//! epoch](Portions::Kept). A worker gets those again that it has completed in the epoch before, so it need not read what it knows. Then it gets
//! portions that nobody keeps, then those of the worker that has most of them left, and from then on keeps these. So a fast worker keeps more
//! than a slow one. No worker gets a copy: each computes other results, and the additions of both would count.
//!
//! # Invariants
//! - A worker that asks again under the same number gets the same lease, even from another owner.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use peergrad_protocol::cursor::{Ending, Span};
use peergrad_protocol::limits::{KEPT_PORTIONS_MAX, LEASES_MAX};
use peergrad_protocol::table::{LastLease, LeaseTable, SampleLease, WorkerId, WorkerLeases};

/// How the samples of an epoch are cut into leases, if the next epoch is leased only when all of them are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portions {
    /// So many for each worker, as many workers as there are when a portion is leased.
    PerWorker(NonZeroU64),
    /// The same in each epoch: so many in all, at most [`KEPT_PORTIONS_MAX`]. Workers keep them from epoch to epoch.
    Kept(NonZeroU64),
}

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
    /// Leases are portions of an epoch; `None`: they have as many samples as a worker asks for.
    pub portions: Option<Portions>,
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
            self.take_returned(lease_table, worker)
        } else if self.is_pass_under_way(lease_table) {
            self.copy_for(lease_table, worker)?
        } else if self.is_exhausted(lease_table) {
            return None;
        } else if let Some(Portions::Kept(count)) = self.portions {
            self.cut_epoch(lease_table, count.get());
            self.take_returned(lease_table, worker)
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

    /// Cuts the next epoch into portions, and returns them to the table.
    fn cut_epoch(&self, lease_table: &mut LeaseTable, count: u64) {
        let (batch, cursor) = lease_table.cursor.next_batch(self.samples.max(1), self.samples);
        lease_table.cursor = cursor;
        let portion = |index: u64| {
            let [start, end] = [index, index + 1].map(|bound| {
                let bound = u128::from(bound) * u128::from(self.samples) / u128::from(count);
                bound as u64
            });
            (start < end).then(|| SampleLease { epoch: batch.epoch, spans: vec![Span { start, end }] })
        };
        lease_table.returned.extend((0..count).filter_map(portion));
    }

    /// Takes the returned lease that suits a worker best. There must be one.
    fn take_returned(&self, lease_table: &mut LeaseTable, worker: WorkerId) -> SampleLease {
        let place = match self.portions {
            Some(Portions::Kept(_)) => place_for(lease_table, worker),
            _ => 0,
        };
        lease_table.returned.remove(place)
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
        match self.portions {
            Some(Portions::PerWorker(portions)) => {
                self.samples.div_ceil(portions.get().saturating_mul(workers.max(1)))
            }
            _ => asked,
        }
    }

    /// A worker has completed its leases up to this number, and so the copies of them that other workers have.
    pub fn complete(&self, lease_table: &mut LeaseTable, worker: WorkerId, number: u64) -> Completed {
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
        if let Some(Portions::Kept(_)) = self.portions {
            completed.changed.extend(keep(lease_table, worker, &done));
        }
        completed
    }

    /// A copy of a lease that another worker has, for a worker that has none; `None` if each of them was copied already, or may not be.
    fn copy_for(&self, lease_table: &LeaseTable, worker: WorkerId) -> Option<SampleLease> {
        let Some(Portions::PerWorker(_)) = self.portions else { return None };
        let all = || lease_table.outstanding.iter().flat_map(|held| &held.leases).map(|(_, lease)| lease);
        let is_idle =
            lease_table.outstanding.iter().all(|held| held.worker != worker || held.leases.is_empty());
        let is_copied = |lease: &SampleLease| all().filter(|other| *other == lease).count() > 1;
        let oldest = |lease: &&SampleLease| (lease.epoch, lease.start());
        all().filter(|lease| is_idle && !is_copied(lease)).min_by_key(oldest).cloned()
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

/// The place of the returned lease that a worker gets first: one that it keeps, then one that nobody keeps, then one of the worker that has
/// most of them left.
fn place_for(lease_table: &LeaseTable, worker: WorkerId) -> usize {
    let keeper = |lease: &SampleLease| {
        let start = lease.start();
        let has_kept = |held: &&WorkerLeases| held.kept.binary_search(&start).is_ok();
        let keeper = lease_table.outstanding.iter().find(has_kept);
        keeper.filter(|keeper| matches!(keeper.last, LastLease::Number(_))).map(|keeper| keeper.worker)
    };
    let keepers: Vec<Option<WorkerId>> = lease_table.returned.iter().map(keeper).collect();
    let left = |of: &Option<WorkerId>| keepers.iter().filter(|keeper| *keeper == of).count();
    let find = |of: Option<WorkerId>| keepers.iter().position(|keeper| *keeper == of);
    // A worker begins with the first of its portions, and others take the last one.
    let of_another = || keepers.iter().enumerate().max_by_key(|(place, of)| (left(of), *place));
    find(Some(worker))
        .or_else(|| find(None))
        .or_else(|| of_another().map(|(place, _)| place))
        .unwrap_or_default()
}

/// No more samples are leased: a user has ended the run. Returns whether this changes the table.
pub fn close(lease_table: &mut LeaseTable) -> bool {
    std::mem::replace(&mut lease_table.cursor.ending, Ending::Over) != Ending::Over
}

/// The worker has completed these leases last: it keeps them, and no other one does. Returns the workers for which this is news.
fn keep(lease_table: &mut LeaseTable, worker: WorkerId, done: &[SampleLease]) -> BTreeSet<WorkerId> {
    let mut changed = BTreeSet::new();
    for start in done.iter().map(SampleLease::start) {
        for held in &mut lease_table.outstanding {
            match (held.kept.binary_search(&start), held.worker == worker) {
                (Ok(place), false) => _ = held.kept.remove(place),
                (Err(place), true) if held.kept.len() < KEPT_PORTIONS_MAX => held.kept.insert(place, start),
                _ => continue,
            }
            changed.insert(held.worker);
        }
    }
    changed
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
        let gone =
            || WorkerLeases { worker: *worker, last: LastLease::Ended, leases: Vec::new(), kept: Vec::new() };
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

/// Whether a worker was the last to complete the samples of this lease, in the epoch before.
#[must_use]
pub fn is_kept(lease_table: &LeaseTable, worker: WorkerId, lease: &SampleLease) -> bool {
    let is_of = |held: &&WorkerLeases| held.worker == worker;
    let held = lease_table.outstanding.iter().find(is_of);
    held.is_some_and(|held| !lease.is_empty() && held.kept.binary_search(&lease.start()).is_ok())
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
                .insert(place, WorkerLeases { worker, last: LastLease::None, leases: vec![], kept: vec![] });
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
        assert_eq!(lease_policy.complete(&mut lease_table, one, 1).changed, BTreeSet::from([one]));
        assert_eq!(lease_policy.complete(&mut lease_table, one, 1), Completed::default());
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
        assert!(!lease_policy.complete(&mut lease_table, one, 4).changed.is_empty());
        assert_eq!(lease_policy.trained(&lease_table), Some(10));
        assert_eq!(lease_policy.grant(&mut lease_table, one, 5, 2), None);
    }

    #[test]
    fn a_pass_is_complete_before_the_next_and_its_last_portions_are_copied() {
        let portions = NonZeroU64::new(2).map(Portions::PerWorker);
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
        assert_eq!(lease_policy.complete(&mut lease_table, one, 2).superseded, [(three, 1)]);
        assert_eq!(lease_policy.complete(&mut lease_table, three, 1), Completed::default());
        assert_eq!(grant(&mut lease_table, one, 3), [(0, 2, 4)]);
        assert_eq!(grant(&mut lease_table, three, 2), [(0, 6, 8)]);
        assert!(end(&mut lease_table, two, 2) && lease_table.returned.is_empty(), "another one has a copy");
        assert_eq!(reclaim(&mut lease_table, |worker| *worker == one), [two, three]);
        assert_eq!(positions(lease_table.returned.first().cloned()), [(0, 6, 8)]);
        assert_eq!(lease_table.returned.len(), 1);
        assert_eq!(grant(&mut lease_table, one, 4), [(0, 6, 8)]);
        assert!(!lease_policy.complete(&mut lease_table, one, 4).changed.is_empty());
        assert_eq!(grant(&mut lease_table, one, 5), [(1, 0, 2)]);
    }

    #[test]
    fn a_worker_gets_the_portions_again_that_it_has_completed() {
        let portions = NonZeroU64::new(4).map(Portions::Kept);
        let lease_policy = LeasePolicy { epochs: 4, samples: 10, portions, ..LeasePolicy::default() };
        let mut lease_table = LeaseTable::default();
        let [one, two, three] = [1, 2, 3].map(worker);
        let grant = |lease_table: &mut LeaseTable, worker, number| {
            let lease = lease_policy.grant(lease_table, worker, number, 99)?;
            Some((is_kept(lease_table, worker, &lease), positions(Some(lease))[0]))
        };
        let [a, b, c, d] = [(0, 2), (2, 5), (5, 7), (7, 10)];
        let of = |epoch, (start, end)| (epoch, start, end);
        for (worker, number, portion) in [(one, 1, a), (one, 2, b), (two, 1, c), (one, 3, d)] {
            assert_eq!(grant(&mut lease_table, worker, number), Some((false, of(0, portion))));
        }
        assert_eq!(
            grant(&mut lease_table, two, 2),
            None,
            "an epoch waits for the one before, and there are no copies"
        );
        assert_eq!(lease_policy.complete(&mut lease_table, one, 3).changed, BTreeSet::from([one]));
        assert_eq!(grant(&mut lease_table, two, 2), None);
        assert_eq!(lease_policy.complete(&mut lease_table, two, 1).changed, BTreeSet::from([two]));
        assert_eq!(grant(&mut lease_table, two, 2), Some((true, of(1, c))));
        assert_eq!(grant(&mut lease_table, one, 4), Some((true, of(1, a))));
        assert_eq!(
            grant(&mut lease_table, two, 3),
            Some((false, of(1, d))),
            "the last one of the other worker"
        );
        assert_eq!(grant(&mut lease_table, one, 5), Some((true, of(1, b))));
        assert_eq!(lease_policy.complete(&mut lease_table, two, 3).changed, BTreeSet::from([one, two]));
        assert_eq!(lease_policy.complete(&mut lease_table, one, 5).changed, BTreeSet::from([one]));
        assert_eq!(grant(&mut lease_table, two, 4), Some((true, of(2, c))));
        assert_eq!(grant(&mut lease_table, three, 1), Some((false, of(2, b))));
        reclaim(&mut lease_table, |worker| *worker != one);
        forget(&mut lease_table, |worker| *worker != one);
        assert_eq!(grant(&mut lease_table, three, 2), Some((false, of(2, a))), "nobody keeps it any more");
        assert_eq!(
            grant(&mut lease_table, three, 3),
            Some((false, of(2, d))),
            "it is of the worker with most left"
        );
        assert!(lease_policy.trained(&lease_table).is_none());
        lease_policy.complete(&mut lease_table, two, 4);
        lease_policy.complete(&mut lease_table, three, 3);
        assert_eq!(grant(&mut lease_table, two, 5), Some((true, of(3, c))));
        close(&mut lease_table);
        lease_policy.complete(&mut lease_table, two, 5);
        assert_eq!(
            lease_policy.trained(&lease_table),
            Some(32),
            "the others of the last epoch were not leased"
        );
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
