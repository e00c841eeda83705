//! Merge snapshots: what one lineage leaves to another one that goes on for both, on either side.
//!
//! Like two halves of an orchestra that have gone on rehearsing in different towns: before they play together again, one half
//! sends its scores, with all that was pencilled in. The other goes through them part by part, and weighs each marking by how
//! long either half has rehearsed.
//!
//! # How it works
//! - *The lineage that yields* keeps what it has after a step that its coordinator names, and trains on: whoever wants some of it
//!   is given it ([`KeptSnapshot`]). Every member has all parameters; states are with those who keep them.
//! - *The one that leads* trains on too, while its members fetch what belongs to the chunks that each keeps ([`SnapshotImport`]).
//!   When all have that, they agree on a view whose first step trains nothing: in it owners, and those who keep replicas, blend
//!   both states, and the all-gather takes it to everybody. Like any other step it can be undone and begun again; it is never
//!   rolled forward, since what was not merged by all can still be given up.
//!
//! # Invariants
//! - An import is kept as long as a view that merges it may be entered, or its first step be begun again: what was
//!   accepted on the strength of it is not taken back ([`StepEngine::begin_import`]).
//! - Who does not have what its view merges does not begin there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::plan::are_finite;
use peergrad_models::task::Task;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::CHUNK_BATCH_BYTES;
use peergrad_protocol::message::{
    ChunkBatch, ChunkContent, ChunkEntry, MergeOffer, Message, SavedCheckpoint, SnapshotDonor, WantSnapshot,
};
use peergrad_protocol::view::{Member, Merge};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Pool, Rank, StepNumber, ViewDigest};

use super::super::base::EngineBase;
use super::StepEngine;
use super::chunk_batch::{ChunkBatchBuilder, unpack};
use crate::io::{Event, MergeEvaluation, Output, Reject};
use crate::state::blend::{Blend, RemoteState};
use crate::state::checkpoint::Checkpoint;
use crate::state::optimizer_shard::OptimizerState;
use crate::state::shard_map::ShardMap;

/// A lineage's state that is left to another one: that of a view, after so many steps.
pub(crate) type SnapshotId = (ViewDigest, StepNumber);

/// What a member keeps for another lineage.
pub(super) struct KeptSnapshot {
    /// The view in which it was kept.
    view: ViewDigest,
    checkpoint: Arc<Checkpoint>,
    /// Since when nobody has asked for it, as far as that was noticed.
    idle_since: Option<Instant>,
}

/// What a member has of another lineage's state so far.
pub(super) struct SnapshotImport {
    will: MergeOffer,
    /// What a step that blends it in holds as well, as long as that lasts.
    remote: Arc<RemoteState>,
    /// Chunks of which something is lacking that is needed in the present view, and whether their state is.
    missing: BTreeMap<usize, bool>,
    /// By donor: what it was asked for, and has not given yet.
    asked: BTreeMap<PeerId, ChunkRequest>,
    /// How often a donor did not answer: others are asked then.
    timeouts: usize,
    /// By donor: how much is asked of it at once, if that is not the least.
    windows: BTreeMap<PeerId, usize>,
    /// When the coordinator spoke of it last.
    renewed_at: Instant,
}

/// What one donor was asked for.
struct ChunkRequest {
    chunks: BTreeSet<usize>,
    since: Instant,
    /// When it is given up, unless something comes.
    until: Instant,
}

/// How well the parameters of two lineages do, and those that came of them.
pub(crate) struct MergeComparison {
    ours: Arc<Buffer>,
    remote: Arc<RemoteState>,
    merged: Arc<Buffer>,
}

/// What a session has to do with other lineages.
#[derive(Default)]
pub(super) struct MergeSnapshots {
    /// As soon as so many steps are committed, what is here is kept for another lineage.
    due: Option<StepNumber>,
    kept: Option<KeptSnapshot>,
    import: Option<SnapshotImport>,
    /// What was merged with the newest complete step, until that is committed.
    merged: Option<(Merge, Option<MergeComparison>)>,
    comparison: Option<MergeComparison>,
}

impl MergeSnapshots {
    /// What was to be kept in the view that is left was for another lineage to hear of in that view.
    pub(super) fn leave_view(&mut self) {
        self.due = None;
    }

    /// The newest complete step is undone.
    pub(super) fn undo(&mut self) {
        self.merged = None;
    }
}

impl StepEngine {
    // Leaving.

    /// What is here after so many steps is kept for another lineage; if it is already, for a while longer.
    pub(in crate::training) fn snapshot_after(&mut self, steps: StepNumber) {
        let view = self.base.digest();
        if let Some(snapshot) = &mut self.merge_snapshots.kept
            && (snapshot.view, snapshot.checkpoint.saved.steps) == (view, steps)
        {
            snapshot.idle_since = None;
        } else if steps.0 > self.committed_steps() {
            self.merge_snapshots.due = Some(steps);
        }
    }

    /// A step was committed: perhaps that one.
    pub(super) fn snapshot_if_due(&mut self) {
        let steps = self.committed_steps();
        if self.merge_snapshots.due.take_if(|at| at.0 <= steps).is_some_and(|at| at.0 == steps) {
            let view = self.base.digest();
            self.merge_snapshots.kept = self.checkpoint().map(|checkpoint| KeptSnapshot {
                view,
                checkpoint: Arc::new(checkpoint),
                idle_since: None,
            });
        }
    }

    /// What this lineage leaves to another one, once it is kept; this member speaks for it.
    pub(in crate::training) fn merge_offer(&self, question: u64) -> Option<MergeOffer> {
        let KeptSnapshot { view, checkpoint, .. } =
            self.merge_snapshots.kept.as_ref().filter(|snapshot| snapshot.view == self.base.digest())?;
        let SavedCheckpoint { steps, cursor, .. } = checkpoint.saved.clone();
        let view_record = self.base.view();
        // Where each chunk was in the last of these steps.
        let moved = self.base.shard_map.moved(StepNumber(steps.0.saturating_sub(1)));
        let placement = self.base.shard_map.target.after(&view_record.moves, moved);
        let donor = |(index, member): (usize, &Member)| {
            let rank = Rank::from_index(index);
            let is_its = |chunk: &usize| placement.replica_holders(*chunk).contains(&rank);
            let chunks = 0..self.base.shard_map.sharding.chunks.count();
            let states = chunks.filter(|_| self.base.shard_map.sharding.has_state).filter(is_its).collect();
            SnapshotDonor { contact: member.contact(), states }
        };
        let donors = view_record.members.iter().enumerate().map(donor).collect();
        let trained = cursor.taken(u64::from(self.base.loaded.task.sample_count()));
        let (view, ancestors, coordinator) = (*view, view_record.ancestors_at(steps), self.base.me.peer);
        Some(MergeOffer { view, steps, cursor, trained, ancestors, donors, coordinator, question })
    }

    /// The next chunk batches of what somebody asks for, if it is kept here.
    pub(in crate::training) fn snapshot_frames(&mut self, want: &WantSnapshot) -> Vec<Frame> {
        let Some(snapshot) = &mut self.merge_snapshots.kept else { return vec![] };
        let checkpoint = &snapshot.checkpoint;
        if (snapshot.view, checkpoint.saved.steps) != (want.view, want.steps) {
            return vec![];
        }
        snapshot.idle_since = None;
        let chunks = self.base.shard_map.sharding.chunks;
        let part = |chunk: usize| match want.content {
            ChunkContent::Values => Some((&checkpoint.parameters[chunks.range(chunk)], 0)),
            ChunkContent::State => checkpoint.state(chunk).map(|state| (&state.moments[..], state.updates)),
        };
        let known = want.chunks.iter().filter(|chunk| *chunk < chunks.count());
        let (mut frames, mut batch, mut bytes) = (Vec::new(), ChunkBatchBuilder::default(), 0);
        let seal = |batch: ChunkBatchBuilder| {
            let (chunk_batch, payload) =
                batch.seal(want.view, want.steps, want.content, &self.base.segments)?;
            Some(Frame::encode(&Message::SnapshotChunks(chunk_batch), Some(payload)))
        };
        for (chunk, (part, updates)) in known.filter_map(|chunk| Some((chunk, part(chunk)?))) {
            batch.add(chunk, part, updates);
            bytes += size_of_val(part);
            if batch.is_full() {
                frames.extend(seal(std::mem::take(&mut batch)));
                if bytes >= WINDOW_BYTES {
                    break;
                }
            }
        }
        frames.extend(seal(batch));
        frames
    }

    // Taking over.

    /// Another lineage has left this to the present one. What is `pinned` stays: a view that merges it may come, or is there.
    pub(in crate::training) fn begin_import(
        &mut self,
        now: Instant,
        will: MergeOffer,
        pinned: Option<SnapshotId>,
    ) {
        if let Some(it) = &mut self.merge_snapshots.import {
            if it.id() == (will.view, will.steps) {
                (it.will, it.renewed_at) = (will, now);
                return;
            }
            if Some(it.id()) == pinned {
                return;
            }
        }
        self.merge_snapshots.import = Some(SnapshotImport {
            will,
            remote: Arc::default(),
            missing: BTreeMap::new(),
            asked: BTreeMap::new(),
            timeouts: 0,
            windows: BTreeMap::new(),
            renewed_at: now,
        });
        self.update_missing_chunks();
    }

    /// What nobody speaks of any more is not needed, nor what was kept for others long ago.
    pub(in crate::training) fn expire_snapshots(&mut self, now: Instant, pinned: Option<SnapshotId>) {
        let MergeSnapshots { import, kept, .. } = &mut self.merge_snapshots;
        import.take_if(|it| Some(it.id()) != pinned && now.since(it.renewed_at) > SNAPSHOT_LIFETIME);
        kept.take_if(|snapshot| now.since(*snapshot.idle_since.get_or_insert(now)) > SNAPSHOT_LIFETIME);
    }

    /// That cannot be had.
    pub(in crate::training) fn cancel_import(&mut self, left: SnapshotId) {
        self.merge_snapshots.import.take_if(|it| it.id() == left);
    }

    /// Whether what is here was kept for another lineage in the present view.
    pub(in crate::training) fn has_snapshot(&self) -> bool {
        self.merge_snapshots.kept.as_ref().is_some_and(|snapshot| snapshot.view == self.base.digest())
    }

    /// Steps that this lineage has committed since it kept what is left to another one: they are not merged.
    pub(in crate::training) fn steps_since_snapshot(&self) -> u64 {
        let kept = self.merge_snapshots.kept.as_ref().filter(|snapshot| snapshot.view == self.base.digest());
        kept.map_or(0, |snapshot| self.committed_steps().saturating_sub(snapshot.checkpoint.saved.steps.0))
    }

    /// The will of what is being inherited, and of how many chunks something is lacking.
    pub(in crate::training) fn importing(&self) -> Option<(&MergeOffer, usize)> {
        self.merge_snapshots.import.as_ref().map(|it| (&it.will, it.missing.len()))
    }

    /// What was left to this lineage, if all that this member needs of it in the present view is here.
    pub(in crate::training) fn imported(&self) -> Option<SnapshotId> {
        let it = self.merge_snapshots.import.as_ref().filter(|it| it.missing.is_empty())?;
        Some(it.id())
    }

    /// What the present view is still to merge.
    pub(in crate::training) fn pending_merge(&self) -> Option<&Merge> {
        self.base.view().merge().filter(|_| self.committed_steps() <= self.base.view().first_step().0)
    }

    /// Whether this member has its part of that.
    pub(super) fn has_merge_snapshot(&self) -> bool {
        let merge = self.pending_merge();
        merge.is_some_and(|merge| self.imported() == Some((merge.view, merge.steps)))
    }

    /// Whether this is the one who weighs both lineages: the first who owns anything, so that it can be reached.
    fn evaluates_merge(&self) -> bool {
        let owner = self.base.view().members.iter().position(|member| member.capacity > 0);
        owner == Some(self.base.rank.index())
    }

    /// Looks through what is needed: of the chunks that this member keeps, or may keep when the next view begins, values and
    /// state; of the others the values, if it is the one who weighs.
    pub(super) fn update_missing_chunks(&mut self) {
        let shard_map: &ShardMap = &self.base.shard_map;
        let now = shard_map.target.after(&shard_map.view.moves, shard_map.moved(self.step));
        let is_merging = self.pending_merge().is_some();
        let is_mine = |chunk: usize| {
            // What is merged is merged where chunks are at the beginning.
            let placements = if is_merging { &[&now][..] } else { &[&now, &shard_map.target] };
            placements.iter().any(|placement| placement.replica_holders(chunk).contains(&self.base.rank))
        };
        let (evaluates_merge, has_state) =
            (self.evaluates_merge() && !is_merging, shard_map.sharding.has_state);
        let Some(it) = &mut self.merge_snapshots.import else { return };
        if shard_map.view.descends_from(it.will.view) {
            self.merge_snapshots.import = None;
            return;
        }
        let wants = |chunk| match is_mine(chunk) {
            true => Some((chunk, has_state)),
            false => evaluates_merge.then_some((chunk, false)),
        };
        let wanted = (0..shard_map.sharding.chunks.count()).filter_map(wants);
        it.missing = wanted.filter(|(chunk, wants_state)| !it.has(*chunk, *wants_state)).collect();
    }

    /// Asks for what is lacking, a window of each donor that is linked and not asked already. The others are dialed.
    pub(in crate::training) fn fetch(
        &mut self,
        now: Instant,
        is_linked: impl Fn(&PeerId) -> bool,
        out: &mut Vec<Output>,
    ) {
        let Self { base: EngineBase { shard_map, rank, .. }, optimizer: owned, merge_snapshots, .. } = self;
        let Some(it) = merge_snapshots.import.as_mut().filter(|it| !it.missing.is_empty()) else { return };
        let len_of = |chunk: usize, content| match content {
            ChunkContent::Values => shard_map.sharding.chunks.range(chunk).len(),
            ChunkContent::State => owned.len_of(chunk),
        };
        let before = it.asked.len();
        it.asked.retain(|peer, asked| asked.until > now && is_linked(peer));
        it.timeouts += before - it.asked.len();
        it.windows.retain(|peer, _| is_linked(peer));
        for donor in it.will.donors.iter().filter(|donor| !is_linked(&donor.contact.peer)) {
            out.push(Output::Dial(donor.contact.clone()));
        }
        for (peer, WantedChunks { content, chunks, bytes }) in it.wanted(rank.index(), is_linked, len_of) {
            let MergeOffer { view, steps, .. } = it.will;
            let listed: ChunkSet = chunks.iter().copied().collect();
            let until = now.after(timeout_for(bytes));
            it.asked.insert(peer, ChunkRequest { chunks, since: now, until });
            let want = WantSnapshot { view, steps, content, chunks: listed };
            out.push(Output::Send { to: peer, frame: Frame::encode(&Message::WantSnapshot(want), None) });
        }
    }

    /// Chunks of another lineage have come.
    ///
    /// # Errors
    /// They are damaged, or nothing that anybody can have come to.
    pub(in crate::training) fn receive_snapshot_chunks(
        &mut self,
        now: Instant,
        from: PeerId,
        chunk_batch: &ChunkBatch,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        let is_it = |it: &&mut SnapshotImport| {
            let donors = it.will.donors.iter().map(|donor| donor.contact.peer);
            it.id() == (chunk_batch.view, chunk_batch.steps) && donors.into_iter().any(|donor| donor == from)
        };
        if self.merge_snapshots.import.as_mut().filter(is_it).is_none() {
            // Of an earlier will.
            return Ok(());
        }
        let parts = unpack(chunk_batch, payload, |chunk| self.len_of(chunk, chunk_batch.content))?;
        if !are_finite(payload) {
            return Err(Reject::Chunk);
        }
        let it = self.merge_snapshots.import.as_mut().expect("just looked at");
        // Nothing is lacking any more while a step blends it in.
        let Some(remote) = Arc::get_mut(&mut it.remote) else { return Ok(()) };
        for (ChunkEntry { chunk, updates }, part) in parts {
            let (chunk, part) = (chunk as usize, part.to_vec());
            let Some(wants_state) = it.missing.get(&chunk).copied() else { continue };
            match chunk_batch.content {
                ChunkContent::Values => _ = remote.values.insert(chunk, part),
                ChunkContent::State => {
                    _ = remote.states.insert(chunk, OptimizerState { moments: part, updates })
                }
            }
            if remote.has(chunk, wants_state) {
                it.missing.remove(&chunk);
            }
            if let Some(asked) = it.asked.get_mut(&from) {
                asked.chunks.remove(&chunk);
                asked.until = asked.until.max(now.after(timeout_for(CHUNK_BATCH_BYTES)));
            }
        }
        if let Some(asked) = it.asked.get(&from).filter(|asked| asked.chunks.is_empty()) {
            it.adapt_window(from, now.since(asked.since));
            it.asked.remove(&from);
        }
        Ok(())
    }

    // Merging.

    /// What the present view merges with its first step, if that is the step in progress.
    pub(super) fn merging(&self) -> Option<&Merge> {
        let is_first = self.step == self.base.view().first_step() && self.commit.complete.is_some();
        self.base.view().merge().filter(|_| is_first)
    }

    /// What owners do in the step in progress, if it is the one that merges another lineage.
    pub(super) fn blend(&self) -> Option<Blend> {
        let share = self.merging()?.share();
        let it = self.merge_snapshots.import.as_ref().expect("who has no part of it does not begin");
        let updates_max = u32::try_from(self.step.0 + 1).unwrap_or(u32::MAX);
        Some(Blend { remote: Arc::clone(&it.remote), share, updates_max })
    }

    /// The step that has merged another lineage is complete.
    pub(super) fn note_merge(&mut self, merge: Merge) {
        let (Some(ours), Some(merged), Some(it)) =
            (&self.commit.previous, &self.commit.complete, &self.merge_snapshots.import)
        else {
            return;
        };
        // One member weighs: all values are there only.
        let has_all = it.remote.values.len() == self.base.shard_map.sharding.chunks.count();
        let comparison = (self.evaluates_merge() && has_all).then(|| MergeComparison {
            ours: Arc::clone(ours),
            remote: Arc::clone(&it.remote),
            merged: Arc::clone(merged),
        });
        self.merge_snapshots.merged = Some((merge, comparison));
    }

    /// A step was committed: perhaps the one that has merged another lineage.
    pub(super) fn end_merge(&mut self, out: &mut Vec<Output>) {
        if let Some((merge, comparison)) = self.merge_snapshots.merged.take() {
            self.merge_snapshots.import = None;
            self.merge_snapshots.comparison = comparison;
            out.push(Output::Event(Event::Merged(merge)));
        }
    }

    /// What is to be weighed, if this member is the one that does it.
    pub(in crate::training) fn take_comparison(&mut self) -> Option<(MergeComparison, Arc<dyn Task>)> {
        let comparison = self.merge_snapshots.comparison.take()?;
        Some((comparison, Arc::clone(&self.base.loaded.task)))
    }
}

/// What is asked of one donor.
struct WantedChunks {
    content: ChunkContent,
    chunks: BTreeSet<usize>,
    bytes: usize,
}

impl SnapshotImport {
    fn id(&self) -> SnapshotId {
        (self.will.view, self.will.steps)
    }

    fn has(&self, chunk: usize, wants_state: bool) -> bool {
        self.remote.has(chunk, wants_state)
    }

    fn window(&self, donor: &PeerId) -> usize {
        self.windows.get(donor).copied().unwrap_or(CHUNK_BATCH_BYTES)
    }

    /// A donor has given all that it was asked for, which took so long: what waits in a line holds up all that comes after.
    fn adapt_window(&mut self, donor: PeerId, took: Duration) {
        let window = match took {
            _ if took < WINDOW_TIME / 2 => self.window(&donor) * 2,
            _ if took > WINDOW_TIME => self.window(&donor) / 2,
            _ => return,
        };
        self.windows.insert(donor, window.clamp(CHUNK_BATCH_BYTES, WINDOW_BYTES));
    }

    /// By donor: what is asked of it now. `len_of`: elements of a chunk's values, or of its state.
    fn wanted(
        &self,
        rank: usize,
        is_linked: impl Fn(&PeerId) -> bool,
        len_of: impl Fn(usize, ChunkContent) -> usize,
    ) -> BTreeMap<PeerId, WantedChunks> {
        let linked: Vec<&SnapshotDonor> =
            self.will.donors.iter().filter(|donor| is_linked(&donor.contact.peer)).collect();
        let on_their_way: BTreeSet<usize> =
            self.asked.values().flat_map(|asked| asked.chunks.iter().copied()).collect();
        let mut wanted: BTreeMap<PeerId, WantedChunks> = BTreeMap::new();
        for &chunk in self.missing.keys().filter(|chunk| !on_their_way.contains(chunk)) {
            let has_values = self.remote.values.contains_key(&chunk);
            let content = if has_values { ChunkContent::State } else { ChunkContent::Values };
            let can_give = |donor: &&&SnapshotDonor| !has_values || donor.states.contains(chunk);
            let able: Vec<&&SnapshotDonor> = linked.iter().filter(can_give).collect();
            // In longer runs, so that all of them give.
            let turn = chunk / DONOR_RUN + rank + self.timeouts;
            let Some(donor) = able.get(turn % able.len().max(1)).map(|donor| donor.contact.peer) else {
                continue;
            };
            if self.asked.contains_key(&donor) {
                continue;
            }
            let (chunks, bytes) = (BTreeSet::new(), 0);
            let wanted = wanted.entry(donor).or_insert(WantedChunks { content, chunks, bytes });
            if wanted.content == content && wanted.bytes < self.window(&donor) {
                wanted.chunks.insert(chunk);
                wanted.bytes += len_of(chunk, content) * size_of::<f32>();
            }
        }
        wanted
    }
}

impl MergeComparison {
    /// How well each of the three does: this lineage before, the other one, and both together; and how far apart they were.
    pub(crate) fn evaluate(&self, task: &dyn Task) -> MergeEvaluation {
        let pool = Pool::new(1);
        let mut theirs = pool.take(self.ours.len());
        // All chunks are there, and they follow each other.
        let mut rest = &mut theirs[..];
        for values in self.remote.values.values() {
            let (part, after) = rest.split_at_mut(values.len());
            part.copy_from_slice(values);
            rest = after;
        }
        let squares = |ours: f32, theirs: f32| f64::from(ours - theirs) * f64::from(ours - theirs);
        let distance: f64 = self.ours.iter().zip(theirs.iter()).map(|(o, t)| squares(*o, *t)).sum();
        let norm: f64 = self.ours.iter().map(|ours| squares(*ours, 0.0)).sum();
        let [ours, theirs, merged] =
            [&*self.ours, &theirs, &*self.merged].map(|parameters| task.evaluate(parameters));
        MergeEvaluation { ours, theirs, merged, distance: distance.sqrt(), norm: norm.sqrt() }
    }
}

/// How long a donor has for so many bytes.
fn timeout_for(bytes: usize) -> Duration {
    REQUEST_TIMEOUT + BYTE_TIME_MAX * u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A donor of which nothing has come for so long is given up, for the time being.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// And no line is expected to give less than this to one heir beside all else: a quarter of a megabit a second.
const BYTE_TIME_MAX: Duration = Duration::from_micros(32);
/// At most so much is asked of a donor at once, and at first a chunk batch: a line across the world is kept busy with it.
const WINDOW_BYTES: usize = 1 << 20;
/// What is asked of it is to be here after so long.
const WINDOW_TIME: Duration = Duration::from_secs(1);
/// What was kept, or inherited, is forgotten after so long without a word of it.
const SNAPSHOT_LIFETIME: Duration = Duration::from_secs(60);
/// So many neighbouring chunks are asked of one donor.
const DONOR_RUN: usize = 16;

#[cfg(test)]
mod tests {
    use peergrad_protocol::cursor::DataCursor;

    use super::*;
    use crate::fixtures::{member, peer};

    const LEN: usize = 1 << 12;

    /// Two donors; the first has the states of even chunks, the second those of odd ones. `missing` is lacking.
    fn import(missing: impl Iterator<Item = usize>) -> SnapshotImport {
        let donation = |byte, parity| {
            let states = (0..128).filter(|chunk| chunk % 2 == parity).collect();
            SnapshotDonor { contact: member(byte).contact(), states }
        };
        let will = MergeOffer {
            view: ViewDigest([9; 32]),
            steps: StepNumber(7),
            cursor: DataCursor::default(),
            trained: 1,
            ancestors: vec![],
            donors: vec![donation(1, 0), donation(2, 1)],
            coordinator: peer(1),
            question: 0,
        };
        SnapshotImport {
            will,
            remote: Arc::default(),
            missing: missing.map(|chunk| (chunk, true)).collect(),
            asked: BTreeMap::new(),
            timeouts: 0,
            windows: BTreeMap::new(),
            renewed_at: Instant(0),
        }
    }

    /// By donor: what is asked of it.
    fn wanted(it: &SnapshotImport) -> Vec<(PeerId, ChunkContent, Vec<usize>)> {
        let wanted = it.wanted(0, |_| true, |_, _| LEN).into_iter();
        wanted.map(|(peer, it)| (peer, it.content, it.chunks.into_iter().collect())).collect()
    }

    #[test]
    fn a_window_is_asked_of_each_donor_in_runs() {
        let asked = wanted(&import(0..64));
        let window = CHUNK_BATCH_BYTES / (LEN * size_of::<f32>());
        let of = |start: usize| (start..start + window).collect::<Vec<_>>();
        assert_eq!(
            asked,
            [(peer(1), ChunkContent::Values, of(0)), (peer(2), ChunkContent::Values, of(DONOR_RUN))]
        );
    }

    #[test]
    fn more_is_asked_of_who_gives_fast_and_less_of_who_does_not() {
        let mut it = import(0..1);
        let mut windows = |took| {
            it.adapt_window(peer(1), took);
            it.window(&peer(1)) / CHUNK_BATCH_BYTES
        };
        assert_eq!([0, 100, 499, 700].map(|ms| windows(Duration::from_millis(ms))), [2, 4, 8, 8]);
        assert_eq!(
            [10, 1001, 3000, 9000, 9000].map(|ms| windows(Duration::from_millis(ms))),
            [8, 4, 2, 1, 1]
        );
    }

    #[test]
    fn states_are_asked_of_those_who_keep_them() {
        let mut it = import(0..6);
        let values = (0..6).map(|chunk| (chunk, vec![0.0; LEN])).collect();
        it.remote = Arc::new(RemoteState { values, states: BTreeMap::new() });
        let (even, odd) = (vec![0, 2, 4], vec![1, 3, 5]);
        assert_eq!(wanted(&it), [(peer(1), ChunkContent::State, even), (peer(2), ChunkContent::State, odd)]);
    }

    #[test]
    fn what_one_does_not_give_is_asked_of_another() {
        let mut it = import(0..4);
        let all: Vec<usize> = (0..4).collect();
        assert_eq!(wanted(&it), [(peer(1), ChunkContent::Values, all.clone())]);
        // While it may still come, nobody is asked for it.
        let (since, until) = (Instant(0), Instant(9));
        it.asked.insert(peer(1), ChunkRequest { chunks: (0..4).collect(), since, until });
        assert_eq!(wanted(&it), []);
        (it.asked, it.timeouts) = (BTreeMap::new(), 1);
        assert_eq!(wanted(&it), [(peer(2), ChunkContent::Values, all)]);
    }
}
