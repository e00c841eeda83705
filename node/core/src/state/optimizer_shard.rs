//! The optimizer shard: the optimizer state of the chunks that a member owns or replicates, committed and pending side by side.
//!
//! Like a form and its carbon copy: an update reads the committed sheet and writes the pending one. The two change places only when the
//! step is known to be complete at all members, so an undone step leaves no trace.
//!
//! # How replicas are kept
//! The owner sends its sums. A replica applies the same rule to them, and discards the new values: it gets those from the all-gather like
//! all members. That is one number for each element on the wire, where Adam's state would be two. Until the replica knows the rule, the
//! sums wait in the memory of the next state.
//!
//! Where every member stores every chunk, all members gather the sums, and each updates all chunks as an owner does.
//!
//! # The master copy
//! Where new parameters travel by a lossy codec, all members compute with the rounded ones, and small updates would never add up. So the
//! exact parameters are part of the state, after the moments: updates start from them, and replicas store them too. Before the first update
//! they equal the parameters that all members have, so a state without updates does not use them.
//!
//! # Invariants
//! - Each chunk has its own count of updates: state that is lost restarts with its own bias correction.
//! - After a commit a chunk is kept only if the committed step updated it: a chunk that has moved away is dropped then.
//! - Memory is 2 x moments x (shard + replicas): it falls as replicas / n.

use std::ops::Range;

use peergrad_collectives::plan::are_finite;
use peergrad_models::optimizer::GroupedUpdate;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::SampleStats;

use crate::state::optimizer_state::OptimizerState;
use crate::state::owner_rule::OwnerRule;

/// The state of the chunks that this member stores.
#[derive(Debug)]
pub(crate) struct OptimizerShard {
    /// How the parameter vector is cut into chunks.
    chunks: Chunks,
    /// Numbers for each element, including the master copy.
    number_count: usize,
    /// Whether the state has a master copy of the parameters.
    has_master: bool,
    /// The state of each chunk; `None` for a chunk that this member does not store. A step looks at every chunk several times, so this is
    /// no map.
    kept: Vec<Option<Box<ChunkState>>>,
    /// The sums of one chunk while a replica is updated.
    scratch: Vec<f32>,
}

/// Which of the two states of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// The state after the newest committed step.
    Committed,
    /// The state after the newest complete step, while that is not committed.
    Pending,
}

/// The state of one chunk.
#[derive(Debug, Default)]
struct ChunkState {
    /// After the newest committed step.
    committed: Option<OptimizerState>,
    /// After the step that is not committed yet; `None` if there is no such update.
    pending: Option<OptimizerState>,
    /// The memory for the next state, where a replica's sums wait.
    room: Room,
}

/// Memory for the next state of a chunk. At a replica the sums wait there until that state is computed from them.
#[derive(Debug)]
enum Room {
    /// Memory with unspecified contents.
    Free(Vec<f32>),
    /// The sums of a replica, at the start of the memory: `count` elements have arrived.
    Sums { memory: Vec<f32>, count: usize },
}

impl Default for Room {
    fn default() -> Self {
        Self::Free(Vec::new())
    }
}

impl Room {
    /// Takes the memory, of `len` numbers, with unspecified contents.
    fn take(&mut self, len: usize) -> Vec<f32> {
        let mut memory = match std::mem::take(self) {
            Self::Free(memory) | Self::Sums { memory, .. } => memory,
        };
        memory.resize(len, 0.0);
        memory
    }

    /// Stores sums of the elements from `offset` on, in memory for `len` numbers.
    fn receive(&mut self, len: usize, offset: usize, sums: &[f32]) {
        let before = if let Self::Sums { count, .. } = self { *count } else { 0 };
        let mut memory = self.take(len);
        memory[offset..offset + sums.len()].copy_from_slice(sums);
        *self = Self::Sums { memory, count: before + sums.len() };
    }

    /// All sums of a chunk of `len` elements.
    ///
    /// # Panics
    /// If some have not arrived.
    fn sums(&self, len: usize) -> &[f32] {
        match self {
            Self::Sums { memory, count } if *count == len => &memory[..len],
            Self::Sums { .. } | Self::Free(_) => panic!("all sums have come in"),
        }
    }

    /// Drops the sums that have arrived.
    fn discard(&mut self) {
        if let Self::Sums { memory, .. } = self {
            *self = Self::Free(std::mem::take(memory));
        }
    }

    fn byte_count(&self) -> usize {
        let (Self::Free(memory) | Self::Sums { memory, .. }) = self;
        size_of_val(&**memory)
    }
}

/// Whether owners keep exact parameters beside those that all members compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// All members compute with the exact parameters.
    Exact,
    /// Parameters are rounded as they travel: owners and replicas keep a master copy, after the moments.
    MasterCopy,
}

impl OptimizerShard {
    /// A shard without chunks, of a vector that is cut into `chunks`, under a rule that keeps `moment_count` moments for each element.
    pub(crate) fn new(chunks: Chunks, moment_count: usize, precision: Precision) -> Self {
        let has_master = precision == Precision::MasterCopy;
        let number_count = moment_count + usize::from(has_master);
        let kept = (0..chunks.count()).map(|_| None).collect();
        Self { chunks, number_count, has_master, kept, scratch: Vec::new() }
    }

    // Contents.

    /// Starts to store a chunk in this version. Without a received `state` it starts as a chunk without updates.
    pub(crate) fn insert(&mut self, version: Version, chunk: usize, state: Option<OptimizerState>) {
        let state =
            state.unwrap_or_else(|| OptimizerState { moments: vec![0.0; self.len_of(chunk)], updates: 0 });
        let kept = self.kept[chunk].get_or_insert_default();
        match version {
            Version::Committed => kept.committed = Some(state),
            Version::Pending => kept.pending = Some(state),
        }
    }

    /// Starts to store a chunk whose rule has no state that another member could send.
    pub(crate) fn ensure(&mut self, chunk: usize) {
        self.kept[chunk].get_or_insert_default().committed.get_or_insert_default();
    }

    /// The number of numbers of a chunk's state.
    pub(crate) fn len_of(&self, chunk: usize) -> usize {
        self.chunks.range(chunk).len() * self.number_count
    }

    /// This version of a chunk's state; `None` if it is not stored here.
    pub(crate) fn state(&self, version: Version, chunk: usize) -> Option<&OptimizerState> {
        let kept = self.kept.get(chunk)?.as_ref()?;
        match version {
            Version::Committed => kept.committed.as_ref(),
            Version::Pending => kept.pending.as_ref(),
        }
    }

    /// The committed states, with their chunks.
    pub(crate) fn committed(&self) -> impl Iterator<Item = (usize, &OptimizerState)> {
        let states = self.kept.iter().map(|kept| kept.as_ref()?.committed.as_ref());
        states.enumerate().filter_map(|(chunk, state)| Some((chunk, state?)))
    }

    /// The chunks whose state is stored here in this version.
    pub(crate) fn held(&self, version: Version) -> ChunkSet {
        (0..self.kept.len()).filter(|&chunk| self.state(version, chunk).is_some()).collect()
    }

    /// Bytes of optimizer state, committed and pending.
    pub(crate) fn byte_count(&self) -> u64 {
        let moments =
            |state: &Option<OptimizerState>| state.as_ref().map_or(0, |state| size_of_val(&*state.moments));
        let bytes =
            |kept: &ChunkState| moments(&kept.committed) + moments(&kept.pending) + kept.room.byte_count();
        self.kept.iter().flatten().map(|kept| bytes(kept)).sum::<usize>() as u64
    }

    // Updates.

    /// Computes new parameters from the summed gradients of these chunks of `vector`, starting from `parameters`. The chunks are those
    /// owned here; in a fully replicated step, all chunks.
    ///
    /// If no sample contributed to a chunk's sums, or they are not finite, the chunk's parameters and state stay as they are: one overflow
    /// must not ruin the parameters of all members.
    ///
    /// # Panics
    /// If the committed state of one of them is not here.
    pub(crate) fn update(
        &mut self,
        rule: &mut OwnerRule,
        stats: SampleStats,
        chunks: impl IntoIterator<Item = usize>,
        parameters: &[f32],
        vector: &mut [f32],
    ) {
        let mut updating = Updating::new(rule, stats, self.has_master);
        for chunk in chunks {
            let elements = self.chunks.range(chunk);
            let kept = self.kept[chunk].as_mut().expect("the state of a chunk that is updated is here");
            let sums = &mut vector[elements.clone()];
            kept.update(&mut updating, (chunk, elements.start), &parameters[elements], sums);
        }
    }

    /// Stores the sums of chunks that are replicated here: `values` belong to `ranges` of the parameter vector, in order.
    pub(crate) fn receive_sums(&mut self, ranges: &[Range<usize>], mut values: &[f32]) {
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let chunk = self.chunks.at(start);
                let elements = self.chunks.range(chunk);
                let count = elements.end.min(range.end) - start;
                let (part, rest) = values.split_at(count);
                let kept = self.kept[chunk].get_or_insert_default();
                kept.room.receive(elements.len() * self.number_count, start - elements.start, part);
                (start, values) = (start + count, rest);
            }
        }
    }

    /// Updates the replicas of the `replicated` chunks with the sums that have arrived.
    ///
    /// # Panics
    /// If the committed state of one of them is not here.
    pub(crate) fn update_replicas(
        &mut self,
        rule: &mut OwnerRule,
        stats: SampleStats,
        replicated: &[usize],
        parameters: &[f32],
    ) {
        let mut updating = Updating::new(rule, stats, self.has_master);
        for &chunk in replicated {
            let elements = self.chunks.range(chunk);
            let kept = self.kept[chunk].as_mut().expect("the state of a replicated chunk is here");
            let sums = &mut self.scratch;
            sums.clear();
            if updating.rule.keeps_state() {
                sums.extend_from_slice(kept.room.sums(elements.len()));
            } else {
                // The rule keeps no state, so no sums were sent and nothing changes.
                sums.resize(elements.len(), f32::NAN);
            }
            kept.update(&mut updating, (chunk, elements.start), &parameters[elements], sums);
        }
    }

    // Commits.

    /// The pending update is committed.
    pub(crate) fn commit(&mut self) {
        for slot in &mut self.kept {
            let Some(kept) = slot else { continue };
            if let Some(pending) = kept.pending.take() {
                if let Some(before) = kept.committed.replace(pending) {
                    kept.room = Room::Free(before.moments);
                }
            } else {
                *slot = None;
            }
        }
    }

    /// The pending update is undone.
    pub(crate) fn undo(&mut self) {
        for slot in &mut self.kept {
            let Some(kept) = slot else { continue };
            match kept.pending.take() {
                Some(pending) => kept.room = Room::Free(pending.moments),
                None => kept.room.discard(),
            }
            if kept.committed.is_none() {
                *slot = None;
            }
        }
    }

    /// Drops the sums of a step that is repeated.
    pub(crate) fn discard_sums(&mut self) {
        self.kept.iter_mut().flatten().for_each(|kept| kept.room.discard());
    }
}

/// An update that applies one rule to chunk after chunk.
struct Updating<'a> {
    /// The rule by which sums become new values.
    rule: &'a mut OwnerRule,
    /// The number of samples in the step, and their summed loss.
    stats: SampleStats,
    /// Whether the state has a master copy of the parameters.
    has_master: bool,
    /// The rule's preparation for this count of updates. Most chunks have the same count, so one preparation serves them all.
    prepared: Option<(u32, GroupedUpdate)>,
}

impl<'a> Updating<'a> {
    fn new(rule: &'a mut OwnerRule, stats: SampleStats, has_master: bool) -> Self {
        Self { rule, stats, has_master, prepared: None }
    }
}

impl ChunkState {
    /// Turns `sums` into new values, and the committed state into the pending one. `first` is the first element of the chunk in the flat
    /// vector.
    fn update(
        &mut self,
        updating: &mut Updating<'_>,
        (chunk, first): (usize, usize),
        parameters: &[f32],
        sums: &mut [f32],
    ) {
        assert!(self.pending.is_none(), "the update before is committed");
        let old = self.committed.as_ref().expect("the committed state is here");
        let mut moments = self.room.take(old.moments.len());
        let Updating { rule, stats, has_master, prepared } = updating;
        // The number of moments, without the master copy.
        let count = moments.len() - if *has_master { parameters.len() } else { 0 };
        let parameters = if *has_master && old.updates > 0 { &old.moments[count..] } else { parameters };
        if let OwnerRule::Blend(blend) = rule
            && let Some(blended) = blend.apply(chunk, old, count, parameters, sums)
        {
            self.pending = Some(blended);
            return;
        }
        let is_passed_by = stats.samples == 0 || !are_finite(sums);
        if is_passed_by {
            sums.copy_from_slice(parameters);
            moments.copy_from_slice(&old.moments);
            self.pending = Some(OptimizerState { moments, updates: old.updates });
            return;
        }
        let updates = match rule {
            OwnerRule::Custom(rule) => {
                rule(*stats, parameters, sums);
                moments.copy_from_slice(&old.moments);
                // No replica gets these sums, and owner and replicas must stay equal.
                old.updates
            }
            // The step has no samples.
            OwnerRule::Blend(_) => old.updates,
            OwnerRule::Mean => panic!("plain means are for programs with local parameters"),
            OwnerRule::Optimizer { optimizer, rate, clip_factor } => {
                if prepared.as_ref().is_none_or(|(updates, _)| *updates != old.updates) {
                    let update = optimizer.update(*rate, old.updates + 1, stats.samples, *clip_factor);
                    *prepared = Some((old.updates, update));
                }
                let (_, update) = prepared.as_ref().expect("just prepared");
                update.apply(first, parameters, sums, &old.moments[..count], &mut moments[..count]);
                if *has_master {
                    moments[count..].copy_from_slice(sums);
                }
                old.updates + 1
            }
        };
        self.pending = Some(OptimizerState { moments, updates });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peergrad_models::optimizer::Optimizer;

    const MOMENTUM: Optimizer = Optimizer::Momentum { momentum: 0.5, nesterov: false, weight_decay: 0.0 };
    const STATS: SampleStats = SampleStats { samples: 2, loss: 0.0 };

    fn optimizer_rule(rule: Optimizer, rate: f64) -> OwnerRule {
        OwnerRule::optimizer(rule.into(), rate)
    }

    /// Two chunks of 16 elements; those in `kept` have new state.
    fn owned(kept: &[usize]) -> OptimizerShard {
        let mut owned = OptimizerShard::new(Chunks::of(32), 1, Precision::Exact);
        kept.iter().for_each(|&chunk| owned.insert(Version::Committed, chunk, None));
        owned
    }

    #[test]
    fn small_updates_add_up_in_the_master_copy() {
        let mut owned = OptimizerShard::new(Chunks::of(32), 0, Precision::MasterCopy);
        owned.insert(Version::Committed, 1, None);
        let mut rule = optimizer_rule(Optimizer::SGD, 0.25);
        let stats = SampleStats { samples: 1, loss: 0.0 };
        // All members see whole numbers only.
        let mut seen = [10.0; 32];
        for step in 0..8 {
            let mut vector = [1.0; 32];
            let is_undone = step == 3;
            owned.update(&mut rule, stats, [1], &seen, &mut vector);
            if is_undone {
                owned.undo();
                owned.update(&mut rule, stats, [1], &seen, vector_of(&mut vector, 1.0));
            }
            seen = vector.map(f32::round);
            owned.commit();
        }
        assert_eq!(seen[16..], [8.0; 16]);
        assert_eq!(
            owned.state(Version::Committed, 1),
            Some(&OptimizerState { moments: vec![8.0; 16], updates: 8 })
        );
        // A lost state restarts from the parameters that all members see, and a step without samples changes nothing.
        owned.insert(Version::Committed, 1, None);
        let mut vector = [1.0; 32];
        owned.update(&mut rule, SampleStats::default(), [1], &[5.0; 32], &mut vector);
        owned.commit();
        assert_eq!(vector[16], 5.0);
        owned.update(&mut rule, stats, [1], &[5.0; 32], vector_of(&mut vector, 1.0));
        assert_eq!(vector[16], 4.75);
    }

    fn vector_of(vector: &mut [f32; 32], element: f32) -> &mut [f32; 32] {
        vector.fill(element);
        vector
    }

    fn update(owned: &mut OptimizerShard, chunks: &[usize], parameters: f32, vector: &mut [f32]) {
        let mut rule = optimizer_rule(MOMENTUM, 1.0);
        owned.update(&mut rule, STATS, chunks.iter().copied(), &[parameters; 32], vector);
    }

    #[test]
    fn an_update_counts_once_it_is_committed() {
        let mut owned = owned(&[1]);
        let mut vector = [2.0; 32];
        update(&mut owned, &[1], 0.0, &mut vector);
        assert_eq!((vector[0], vector[16]), (2.0, -1.0), "only what is owned");
        assert_eq!(owned.state(Version::Committed, 1).unwrap().moments, [0.0; 16]);
        owned.commit();
        assert_eq!(
            owned.state(Version::Committed, 1),
            Some(&OptimizerState { moments: vec![1.0; 16], updates: 1 })
        );
        update(&mut owned, &[1], 0.0, &mut vector);
        owned.undo();
        assert_eq!(
            owned.state(Version::Committed, 1),
            Some(&OptimizerState { moments: vec![1.0; 16], updates: 1 })
        );
        assert!(owned.state(Version::Pending, 1).is_none());
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
    fn a_replica_follows_its_owner() {
        let (mut owner, mut copy) = (owned(&[0]), owned(&[0]));
        for step in 0..3_u8 {
            let mut vector: Vec<f32> = (0..32).map(|i| (i as f32 - 7.0) * f32::from(step)).collect();
            // In two pieces, of which the first ends within the chunk.
            copy.receive_sums(&[0..5], &vector[0..5]);
            copy.receive_sums(&[5..16], &vector[5..16]);
            update(&mut owner, &[0], 3.0, &mut vector);
            let mut rule = optimizer_rule(MOMENTUM, 1.0);
            copy.update_replicas(&mut rule, STATS, &[0], &[3.0; 32]);
            assert_eq!(owner.state(Version::Pending, 0), copy.state(Version::Pending, 0));
            owner.commit();
            copy.commit();
        }
        assert_eq!(copy.held(Version::Committed), ChunkSet::all(1));
    }

    #[test]
    fn a_custom_rule_sees_each_chunk_and_leaves_the_moments() {
        let mut owned = owned(&[0]);
        let mut vector = [4.0; 32];
        let rule = |stats: SampleStats, old: &[f32], sums: &mut [f32]| {
            sums.iter_mut().zip(old).for_each(|(sum, old)| *sum = old + *sum / stats.samples as f32);
        };
        owned.update(&mut OwnerRule::Custom(Box::new(rule)), STATS, [0], &[10.0; 32], &mut vector);
        owned.commit();
        assert_eq!((vector[0], vector[16]), (12.0, 4.0));
        assert_eq!(
            owned.state(Version::Committed, 0),
            Some(&OptimizerState { moments: vec![0.0; 16], updates: 0 })
        );
    }

    #[test]
    fn a_chunk_whose_sum_overflows_is_not_updated() {
        let mut owned = owned(&[0, 1]);
        let mut vector = [2.0; 32];
        vector[3] = f32::INFINITY;
        update(&mut owned, &[0, 1], 7.0, &mut vector);
        assert_eq!((vector[3], vector[0], vector[16]), (7.0, 7.0, 6.0));
        owned.commit();
        assert_eq!(
            owned.state(Version::Committed, 0),
            Some(&OptimizerState { moments: vec![0.0; 16], updates: 0 })
        );
        assert_eq!(
            owned.state(Version::Committed, 1),
            Some(&OptimizerState { moments: vec![1.0; 16], updates: 1 })
        );
    }

    #[test]
    fn a_step_without_samples_changes_nothing() {
        let mut owned = owned(&[0]);
        let mut vector = [5.0; 32];
        let mut rule = optimizer_rule(MOMENTUM, 1.0);
        owned.update(&mut rule, SampleStats::default(), [0], &[1.0; 32], &mut vector);
        owned.commit();
        assert_eq!((vector[0], owned.state(Version::Committed, 0).unwrap().updates), (1.0, 0));
    }

    #[test]
    fn a_chunk_that_a_committed_step_did_not_update_is_dropped() {
        let mut owned = owned(&[0, 1]);
        update(&mut owned, &[1], 0.0, &mut [2.0; 32]);
        assert_eq!(owned.held(Version::Committed).len(), 2);
        owned.commit();
        assert_eq!(owned.held(Version::Committed).iter().collect::<Vec<_>>(), [1]);
    }
}
