//! The sample counter: which samples each step trains, counted position by position.
//!
//! It resembles a second player who keeps score with another deck: there is no cursor and there are no ranges, only cards that lie face up
//! or face down. It follows what the records say of a batch, and compares it with what the cards require.
//!
//! # How it works
//! 1. A batch has the lowest positions of the epoch that no step was assigned, at most as many as the batch size, which may follow from the
//!    speeds in the view; when there are none left, a new epoch begins. The positions of a departed member are free again and, being low, come next.
//! 2. A batch is assigned in order of rank to the members that have parameters: in equal parts, or in proportion to the speeds in the view.
//!    If another branch may train the rest of the epoch as well, some positions are deferred to its end, as the record says.
//! 3. If the view changes in the middle of a step, a member that remains keeps its part, and the other parts are free again; so is the part
//!    of a member that has lost its parameters.
//!
//! # Not here
//! The data cursor and all other code of the nodes: both sides would have the same mistake.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_core::program::loader::{Loaded, TrainingConfig};
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::limits::LOCAL_STEPS_MAX;
use peergrad_protocol::view::{BatchParts, Member, Merge, Recovery, View};
use peergrad_protocol::{Incarnation, PeerId, Rank};

use super::view_chain::{Installed, ViewChain};

/// A run's epochs, up to the last counted step.
#[derive(Clone, Debug)]
pub struct SampleCounter {
    batch_size: u64,
    /// Where rounds have a duration: that, and the samples of a local step. Then the batch size is that of views without speeds.
    timing: Option<(Duration, u64)>,
    sample_count: u64,
    /// The epoch of the last step.
    epoch: u64,
    /// Positions in it that no step was assigned.
    free: BTreeSet<u64>,
    /// Those of them that come last, since another branch may train them meanwhile.
    deferred: BTreeSet<u64>,
    steps: u64,
    /// Whether the last step was the last one of a run that its user has ended.
    has_ended: bool,
    /// By epoch: how often each position was trained.
    trained: BTreeMap<u64, Vec<u32>>,
    /// By step with which another branch is merged: the count of that branch.
    merged: BTreeMap<u64, SampleCounter>,
    /// Number of samples that only merged branches have trained.
    merged_samples: u64,
    /// By epoch: how many samples were trained both by a merged branch and by this one.
    twice: BTreeMap<u64, u64>,
}

/// The batch of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedBatch {
    /// The epoch that it belongs to.
    pub epoch: u64,
    /// The members' parts, by rank in the view in which the step was trained.
    pub parts: Vec<Part>,
    /// How the record differs from what it must say; `None` if it is right.
    pub objection: Option<String>,
}

/// What one member trains in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    peer: PeerId,
    incarnation: Incarnation,
    /// Positions in the epoch's permutation.
    pub positions: Vec<u64>,
}

/// How often the samples of one epoch were trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochCount {
    /// The epoch's number.
    pub epoch: u64,
    /// Samples that were trained at least once, or left out because their gradient was not finite.
    pub trained: u64,
    /// How often a sample was trained that had been trained before.
    pub repeated: u64,
}

/// A batch as it is assigned: its epoch and its parts.
type EpochBatch = (u64, Vec<Part>);

impl SampleCounter {
    /// A counter at the start of a run.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let TrainingConfig { batch_size, round_duration, .. } = loaded.config;
        let timing = round_duration.map(|duration| (duration, batch_size));
        let counter = Self::of(loaded.config.step_samples(), u64::from(loaded.task.sample_count()));
        Self { timing, ..counter }
    }

    /// As [`SampleCounter::new`], with these numbers of samples in all and in a batch.
    #[must_use]
    pub fn of(batch_size: u64, sample_count: u64) -> Self {
        let free = (0..sample_count).collect();
        Self {
            batch_size,
            timing: None,
            sample_count,
            epoch: 0,
            free,
            deferred: BTreeSet::new(),
            steps: 0,
            has_ended: false,
            trained: BTreeMap::new(),
            merged: BTreeMap::new(),
            merged_samples: 0,
            twice: BTreeMap::new(),
        }
    }

    /// Another branch, whose epochs were counted in `other`, is merged with this step.
    pub fn merge(&mut self, step: u64, other: Self) {
        self.merged.insert(step, other);
    }

    /// Number of samples that only merged branches have trained.
    #[must_use]
    pub fn merged_samples(&self) -> u64 {
        self.merged_samples
    }

    /// Counts what another branch has trained as trained: if both are in one epoch, the positions that neither has trained are left.
    fn merge_counts(&mut self, merge: &Merge) {
        let Some(other) = self.merged.get(&self.steps).cloned() else { return };
        let before = self.taken();
        match self.epoch.cmp(&other.epoch) {
            Ordering::Less => {
                (self.epoch, self.free, self.deferred) = (other.epoch, other.free, other.deferred);
            }
            Ordering::Equal => {
                self.free = self.free.intersection(&other.free).copied().collect();
                self.deferred = self.deferred.intersection(&self.free).copied().collect();
            }
            Ordering::Greater => {}
        }
        let merged_samples = self.taken() - before;
        self.merged_samples += merged_samples;
        *self.twice.entry(self.epoch).or_default() += merge.theirs.saturating_sub(merged_samples);
        for (epoch, theirs) in other.trained {
            let ours = self.trained.entry(epoch).or_insert_with(|| vec![0; theirs.len()]);
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours = (*ours).max(theirs));
        }
    }

    fn taken(&self) -> u64 {
        (self.epoch + 1) * self.sample_count - self.free.len() as u64
    }

    /// The run goes back to a checkpoint: only the steps before this one count, and are counted again.
    pub fn rewind(&mut self, view_chain: &ViewChain, step: u64) {
        let merged = std::mem::take(&mut self.merged);
        *self = Self { merged, timing: self.timing, ..Self::of(self.batch_size, self.sample_count) };
        while self.steps < step && self.count(view_chain).is_some() {}
    }

    /// Number of steps counted.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts one more step, which must be committed: before that, its view can change. `None` if there is no view for it.
    pub fn count(&mut self, view_chain: &ViewChain) -> Option<CountedBatch> {
        let view = &view_chain.of_step(self.steps)?.view;
        let is_first = view.first_step().0 == self.steps;
        let free = std::mem::take(&mut self.free);
        if free.is_empty() {
            self.deferred.clear();
        }
        (self.epoch, self.free) = self.turned(self.epoch, free);
        let mut objections = Vec::new();
        if is_first && recorded_assignment(view).is_none() {
            objections.extend(self.object_to_cursor(view, "before"));
            let (epoch, free) = self.left_of(&view.cursor);
            self.deferred = positions(&view.cursor.deferred).into_iter().collect();
            (self.epoch, self.free) = self.turned(epoch, free);
        }
        let (mut epoch, mut parts) = self.due(view, view_chain);
        if let Some(batch) = recorded_assignment(view).filter(|_| is_first) {
            let said: Vec<Part> = recorded_parts(view, batch);
            if batch.epoch != epoch || !are_same(&said, &parts) {
                objections.push(format!(
                    "view {} assigns {} samples of epoch {} in step {}, but members do not keep their earlier parts: {}",
                    view.number.0, batch.len(), batch.epoch, self.steps, difference(view, &said, &parts)
                ));
            }
            (epoch, parts) = (batch.epoch, said);
        }
        self.take(epoch, &parts);
        if is_first && recorded_assignment(view).is_some() {
            objections.extend(self.object_to_cursor(view, "after"));
            (self.epoch, self.free) = self.left_of(&view.cursor);
            self.deferred = positions(&view.cursor.deferred).into_iter().collect();
        }
        if let Some(merge) = view.merge().filter(|_| is_first) {
            self.merge_counts(merge);
        }
        let is_merging = is_first && view.merge().is_some();
        let agreed = view_chain.parent(view).is_some_and(|before| before.view.cursor.ending != Ending::None);
        if is_first && agreed && view.cursor.ending == Ending::None {
            objections
                .push(format!("view {} forgets that members have agreed to end the run", view.number.0));
        }
        if self.has_ended {
            objections
                .push(format!("step {} is committed, although the run has ended before it", self.steps));
        }
        // A batch that the view has recorded, or a merge, comes before the cursor: the batch after it is the last one.
        let is_before = is_first && (is_merging || recorded_assignment(view).is_some());
        self.has_ended = match view.cursor.ending {
            Ending::None => false,
            Ending::NextBatch => !is_before,
            Ending::Over => true,
        };
        self.steps += 1;
        Some(CountedBatch { epoch, parts, objection: objections.into_iter().next() })
    }

    /// Counts the parts of a step as trained.
    fn take(&mut self, epoch: u64, parts: &[Part]) {
        let sample_count = self.sample_count as usize;
        let trained = self.trained.entry(epoch).or_insert_with(|| vec![0; sample_count]);
        for &position in parts.iter().flat_map(|part| &part.positions) {
            self.free.remove(&position);
            // A position that does not exist is missed later: one sample will be too few.
            if let Some(times) = trained.get_mut(position as usize) {
                *times += 1;
            }
        }
    }

    /// The count of each epoch so far.
    #[must_use]
    pub fn counts(&self) -> Vec<EpochCount> {
        let count = |(&epoch, times): (&u64, &Vec<u32>)| EpochCount {
            epoch,
            trained: times.iter().map(|&times| u64::from(times.min(1))).sum(),
            repeated: times.iter().map(|&times| u64::from(times.saturating_sub(1))).sum::<u64>()
                + self.twice.get(&epoch).copied().unwrap_or_default(),
        };
        self.trained.iter().map(count).collect()
    }

    /// Number of samples that were missing at the end of an epoch.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let ended = self.counts().into_iter().filter(|count| count.epoch < self.epoch);
        ended.map(|count| self.sample_count - count.trained).sum()
    }

    /// Number of samples of the present epoch that no step was assigned.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.free.len() as u64
    }

    /// Whether the last of `epochs` epochs is over, or the run was ended before.
    #[must_use]
    pub fn are_over(&self, epochs: u64) -> bool {
        self.has_ended || (self.epoch + 1 == epochs && self.free.is_empty())
    }

    /// The batch of the next step, as its view must assign it.
    fn due(&self, view: &View, view_chain: &ViewChain) -> EpochBatch {
        let first = view.first_step().0;
        if first == self.steps && view.merge().is_some() {
            // No member trains: in this step the other branch is merged.
            let parts = view.members.iter().map(|member| Part::of(member, vec![]));
            return (view.cursor.epoch, parts.collect());
        }
        let is_kept = first > self.steps || (first == self.steps && recorded_assignment(view).is_some());
        let Some(Installed { view: before, .. }) = view_chain.parent(view).filter(|_| is_kept) else {
            return self.fresh(view);
        };
        // A member that remains has the part that it had in the view before, or in an earlier one.
        let (epoch, before) = self.due(before, view_chain);
        let part = |(index, member): (usize, &Member)| {
            let theirs = before.iter().find(|part| part.is_of(member) && !self.is_idle(view, index));
            theirs.cloned().unwrap_or_else(|| Part::of(member, vec![]))
        };
        (epoch, view.members.iter().enumerate().map(part).collect())
    }

    /// The next batch, in parts for the members that have parameters.
    fn fresh(&self, view: &View) -> EpochBatch {
        let (last, soon): (Vec<u64>, Vec<u64>) =
            self.free.iter().partition(|free| self.deferred.contains(free));
        let speeds: Vec<u128> = (0..view.members.len()).map(|index| self.speed(view, index)).collect();
        let all: u128 = speeds.iter().sum();
        let batch_size = self.batch_size_at(view, all);
        let batch: Vec<u64> = soon.into_iter().chain(last).take(batch_size as usize).collect();
        let busy = || speeds.iter().filter(|speed| **speed > 0);
        // Unlike speeds are rounded differently in each batch: by a lot that its epoch and first position decide.
        let is_even = busy().min() == busy().max();
        let turn = batch.first().filter(|_| !is_even).map_or(0, |first| lot(lot(self.epoch) ^ first));
        let rounding = (u128::from(turn) * all) >> 64;
        let mut before = 0;
        let mut part = |(index, member): (usize, &Member)| {
            let bound = |speed: u128| ((batch.len() as u128 * speed + rounding) / all) as usize;
            let positions = &batch[bound(before)..bound(before + speeds[index])];
            before += speeds[index];
            Part::of(member, positions.to_vec())
        };
        (self.epoch, view.members.iter().enumerate().map(&mut part).collect())
    }

    /// The samples of a batch where members compute so many samples a minute together: as many local steps as come closest to the duration
    /// of a round.
    fn batch_size_at(&self, view: &View, samples_per_minute: u128) -> u64 {
        let Some((duration, of_each)) = self.timing.filter(|_| view.speeds.iter().any(|speed| *speed > 0))
        else {
            return self.batch_size;
        };
        let in_time = duration.as_nanos() * samples_per_minute;
        let for_each = u128::from(of_each) * 60_000_000_000;
        let (whole, rest) = (in_time / for_each, in_time % for_each);
        let steps = whole + u128::from(rest >= for_each - rest);
        of_each * (steps as u64).clamp(1, LOCAL_STEPS_MAX)
    }

    /// How fast a member computes; 0 if it cannot train the next step, and the mean of the known speeds if its own is not known.
    fn speed(&self, view: &View, index: usize) -> u128 {
        if self.is_idle(view, index) {
            return 0;
        }
        let known = || view.speeds.iter().filter(|speed| **speed > 0).map(|speed| u128::from(*speed));
        let own = view.speeds.get(index).filter(|speed| **speed > 0);
        own.map_or_else(
            || known().sum::<u128>().checked_div(known().count() as u128).unwrap_or(1),
            |own| (*own).into(),
        )
    }

    /// Whether a member does not have parameters yet, and so cannot train the next step.
    fn is_idle(&self, view: &View, index: usize) -> bool {
        view.first_step().0 == self.steps && view.newcomers().contains(&Rank::from_index(index))
    }

    /// The epoch and its free positions; the next epoch with all positions if none is left.
    fn turned(&self, epoch: u64, free: BTreeSet<u64>) -> (u64, BTreeSet<u64>) {
        if free.is_empty() { (epoch + 1, (0..self.sample_count).collect()) } else { (epoch, free) }
    }

    /// A description of how the cursor of a view differs from what is left `when` its first step is assigned; `None` if it does not.
    fn object_to_cursor(&self, view: &View, when: &str) -> Option<String> {
        let (epoch, free) = self.left_of(&view.cursor);
        if self.turned(self.epoch, self.free.clone()) == self.turned(epoch, free.clone()) {
            return None;
        }
        Some(format!(
            "the cursor of view {} leaves {} samples of epoch {epoch} {when} step {}; {} of epoch {} are left",
            view.number.0,
            free.len(),
            self.steps,
            self.free.len(),
            self.epoch
        ))
    }

    /// A cursor's epoch, and the positions that it has not passed, or that were returned or deferred.
    fn left_of(&self, cursor: &DataCursor) -> (u64, BTreeSet<u64>) {
        let untrained = [positions(&cursor.returned), positions(&cursor.deferred)].concat();
        (cursor.epoch, untrained.into_iter().chain(cursor.position..self.sample_count).collect())
    }
}

impl CountedBatch {
    /// Number of samples in it.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        sample_count(&self.parts)
    }

    /// The samples in the order in which they are assigned, where `order` is the epoch's permutation.
    #[must_use]
    pub fn samples(&self, order: &[u32]) -> Vec<u32> {
        self.samples_but_for(&[], order)
    }

    /// As [`CountedBatch::samples`], without the parts of these ranks.
    #[must_use]
    pub fn samples_but_for(&self, late: &[Rank], order: &[u32]) -> Vec<u32> {
        let parts =
            self.parts.iter().enumerate().filter(|(rank, _)| !late.contains(&Rank::from_index(*rank)));
        let positions = parts.flat_map(|(_, part)| &part.positions);
        positions.filter_map(|&position| order.get(position as usize).copied()).collect()
    }
}

impl Part {
    fn of(member: &Member, positions: Vec<u64>) -> Self {
        Self { peer: member.peer, incarnation: member.incarnation, positions }
    }

    fn sorted(&self) -> Vec<u64> {
        let mut positions = self.positions.clone();
        positions.sort_unstable();
        positions
    }

    fn is_of(&self, member: &Member) -> bool {
        (self.peer, self.incarnation) == (member.peer, member.incarnation)
    }
}

/// How a view's record assigns its first step; `None` if it does not say.
fn recorded_assignment(view: &View) -> Option<&BatchParts> {
    match &view.recovery {
        Recovery::Initialize => None,
        Recovery::Resume(resume) => resume.batch.as_ref(),
    }
}

/// What `SplitMix64` draws in this state.
fn lot(state: u64) -> u64 {
    let mut number = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// The parts of a batch that a record assigns, by rank.
fn recorded_parts(view: &View, batch: &BatchParts) -> Vec<Part> {
    let parts = view.members.iter().zip(&batch.parts);
    parts.map(|(member, spans)| Part::of(member, positions(spans))).collect()
}

fn sample_count(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.positions.len() as u64).sum()
}

fn positions(spans: &[Span]) -> Vec<u64> {
    spans.iter().flat_map(|span| span.start..span.end).collect()
}

/// Whether parts are equal; neighbouring ranges may be joined, and in another order.
fn are_same(ours: &[Part], theirs: &[Part]) -> bool {
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(ours, theirs)| ours.sorted() == theirs.sorted())
}

/// A description of the first part that differs.
fn difference(view: &View, said: &[Part], due: &[Part]) -> String {
    let is_other = |rank: &usize| said[*rank].sorted() != due[*rank].sorted();
    let Some(rank) = (0..said.len().min(due.len())).find(is_other) else {
        return format!("{} samples", sample_count(due));
    };
    let (said, due) = (said[rank].positions.len(), due[rank].positions.len());
    let is_new = view.newcomers().contains(&Rank::from_index(rank));
    let why = if is_new { ", since it has no parameters" } else { "" };
    format!("rank {rank} is assigned {said} samples, but {due} are due{why}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peergrad_protocol::view::Resume;
    use peergrad_protocol::{RunId, StepNumber, ViewNumber};

    use super::*;

    fn member(byte: u8) -> Member {
        Member { peer: PeerId([byte; 32]), incarnation: Incarnation(1), addresses: vec![], capacity: 1 }
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    /// A chain of views. Batches have 6 of 20 samples.
    struct Chain {
        view_chain: ViewChain,
        newest: View,
    }

    impl Chain {
        fn new(peers: &[u8]) -> Self {
            Self::with_speeds(peers, &[])
        }

        fn with_speeds(peers: &[u8], speeds: &[u32]) -> Self {
            let members = peers.iter().copied().map(member).collect();
            let newest = View { speeds: speeds.to_vec(), ..View::first(RunId([1; 32]), members) };
            let mut view_chain = ViewChain::default();
            view_chain.install(&Arc::new(newest.clone()), newest.digest());
            Self { view_chain, newest }
        }

        fn follow(&mut self, peers: &[u8], resume: Resume, cursor: DataCursor) {
            let before = &self.newest;
            self.newest = View {
                number: ViewNumber(before.number.0 + 1),
                parents: vec![before.digest()],
                members: peers.iter().copied().map(member).collect(),
                recovery: Recovery::Resume(resume),
                cursor,
                ..before.clone()
            };
            self.view_chain.install(&Arc::new(self.newest.clone()), self.newest.digest());
        }

        /// The batches of `steps` steps.
        fn count(&self, steps: usize) -> Vec<CountedBatch> {
            let mut epochs = SampleCounter::of(6, 20);
            (0..steps).map(|_| epochs.count(&self.view_chain).unwrap()).collect()
        }

        /// Checks, by step and rank, the first position of each part and its length.
        #[track_caller]
        fn assert_parts(&self, expected: &[&[(u64, usize)]]) {
            let counted = self.count(expected.len());
            for (step, (counted, expected)) in counted.iter().zip(expected).enumerate() {
                assert_eq!(counted.objection, None, "step {step}");
                let part = |part: &Part| (part.positions.first().copied().unwrap_or(0), part.positions.len());
                assert_eq!(counted.parts.iter().map(part).collect::<Vec<_>>(), *expected, "step {step}");
            }
        }

        #[track_caller]
        fn assert_objection(&self, step: usize, words: &str) {
            let objection = self.count(step + 1).pop().unwrap().objection.unwrap();
            assert!(objection.contains(words), "{objection}");
        }
    }

    fn cursor(position: u64, returned: &[Span]) -> DataCursor {
        DataCursor { position, returned: returned.to_vec(), ..DataCursor::default() }
    }

    fn resume(step: u64, newcomers: &[u32], parts: Option<&[&[Span]]>) -> Resume {
        let batch_of = |parts: &[&[Span]]| BatchParts {
            epoch: 0,
            parts: parts.iter().map(|part| part.to_vec()).collect(),
        };
        Resume {
            newcomers: newcomers.iter().map(|&rank| Rank(rank)).collect(),
            batch: parts.map(batch_of),
            ..Resume::at(StepNumber(step))
        }
    }

    #[test]
    fn remaining_members_keep_their_parts_and_the_other_samples_come_next() {
        let mut chain = Chain::new(&[1, 2, 3]);
        let kept: &[&[Span]] = &[&[span(6, 8)], &[span(10, 12)]];
        chain.follow(&[1, 3], resume(1, &[], Some(kept)), cursor(12, &[span(8, 10)]));
        chain.assert_parts(&[
            &[(0, 2), (2, 2), (4, 2)],
            &[(6, 2), (10, 2)],
            &[(8, 3), (13, 3)],
            &[(16, 2), (18, 2)],
            &[(0, 3), (3, 3)],
        ]);
    }

    #[test]
    fn a_view_abandoned_before_its_first_step_is_over_is_skipped() {
        let mut chain = Chain::new(&[1, 2, 3]);
        // This view was to begin with step 5; but a member departs in step 1, and another one in the view after that.
        chain.follow(&[1, 2, 3, 4], resume(5, &[3], None), cursor(20, &[]));
        let kept: &[&[Span]] = &[&[span(6, 8)], &[span(10, 12)], &[]];
        chain.follow(&[1, 3, 4], resume(1, &[2], Some(kept)), cursor(12, &[span(8, 10)]));
        chain.follow(&[3, 4], resume(1, &[1], Some(&kept[1..])), cursor(12, &[span(6, 10)]));
        chain.assert_parts(&[&[(0, 2), (2, 2), (4, 2)], &[(10, 2), (0, 0)], &[(6, 3), (9, 3)]]);
    }

    #[test]
    fn newcomers_have_no_part_of_their_first_step() {
        let mut chain = Chain::new(&[1, 3]);
        chain.follow(&[1, 2, 3], resume(1, &[1], None), cursor(6, &[]));
        chain.assert_parts(&[&[(0, 3), (3, 3)], &[(6, 3), (0, 0), (9, 3)], &[(12, 2), (14, 2), (16, 2)]]);
    }

    #[test]
    fn records_that_assign_other_samples_are_objected_to() {
        let kept: &[&[Span]] = &[&[span(6, 8)], &[span(10, 12)]];
        let chain = |newcomers: &[u32], parts: &[&[Span]], cursor: DataCursor| {
            let mut chain = Chain::new(&[1, 2, 3]);
            chain.follow(&[1, 3], resume(1, newcomers, Some(parts)), cursor);
            chain
        };
        // In turn: new parts for all, lost samples of the departed member, its samples assigned twice, and a part for a member that cannot
        // train it.
        let reassigned: &[&[Span]] = &[&[span(6, 9)], &[span(9, 12)]];
        chain(&[], reassigned, cursor(12, &[]))
            .assert_objection(1, "rank 0 is assigned 3 samples, but 2 are due");
        chain(&[], kept, cursor(12, &[])).assert_objection(1, "leaves 8 samples of epoch 0 after step 1; 10");
        chain(&[], kept, cursor(10, &[span(4, 6)])).assert_objection(1, "the cursor of view 2");
        let returned = cursor(12, &[span(8, 10)]);
        chain(&[1], kept, returned)
            .assert_objection(1, "rank 1 is assigned 2 samples, but 0 are due, since it has no");
        let mut planned = Chain::new(&[1, 2, 3]);
        planned.follow(&[1, 2], resume(1, &[], None), cursor(12, &[]));
        planned.assert_objection(1, "before step 1");
    }

    #[test]
    fn assigned_samples_are_counted_even_if_they_are_objected_to() {
        let mut chain = Chain::new(&[1, 2]);
        chain.follow(&[1, 2], resume(2, &[], None), cursor(3, &[]));
        chain.follow(&[1, 2], resume(3, &[], None), cursor(18, &[]));
        let mut epochs = SampleCounter::of(6, 20);
        while epochs.steps() < 5 {
            epochs.count(&chain.view_chain).unwrap();
        }
        assert_eq!(epochs.counts()[0], EpochCount { epoch: 0, trained: 14, repeated: 6 });
        assert_eq!((epochs.lost(), epochs.are_over(2)), (6, false));
    }

    #[test]
    fn without_view_changes_the_parts_are_those_of_the_data_cursor() {
        for (batch_size, sample_count, peers, speeds) in [
            (1, 1, &[1][..], &[][..]),
            (30, 740, &[1, 2, 3], &[]),
            (64, 640, &[1, 2, 3, 4, 5], &[]),
            (640, 640, &[1], &[]),
            (7, 5, &[1, 2], &[]),
            (30, 740, &[1, 2, 3], &[500, 500, 500]),
            (30, 740, &[1, 2, 3], &[500, 1500, 7]),
            (64, 640, &[1, 2, 3, 4, 5], &[0, 4_000_000_000, 300, 0, 7_000_000]),
        ] {
            let mut epochs = SampleCounter::of(batch_size, sample_count);
            let (chain, mut cursor) = (Chain::with_speeds(peers, speeds), DataCursor::default());
            let weights = chain.newest.batch_weights(|_| true);
            for _ in 0..60 {
                let (batch, after) = cursor.next_batch(batch_size, sample_count);
                let counted = epochs.count(&chain.view_chain).unwrap();
                assert_eq!((counted.epoch, counted.objection), (batch.epoch, None));
                for (index, part) in counted.parts.iter().enumerate() {
                    assert_eq!(part.positions, positions(&batch.part(index, &weights, 1)));
                }
                cursor = after;
            }
        }
    }
}
