//! The replay: the commit log computed once more, in a plain loop, bit for bit.
//!
//! From only the view records and the order of commits it computes what members must hold after each step: which member computes which
//! samples, in which order an owner's sum is added up, and what the owner's rule makes of it. It includes rounding, and with a codec also
//! the error of what is sent, and the residuals that are added to a later step.
//!
//! # How it works
//! A step is replayed when the first member reports that it is committed, in the view in which its sums were made (see [`ViewChain`]). A
//! view that ended before its step was complete has no effect, except for the state that it restarted.
//!
//! # Not here
//! Rounds, segments, credit, links, freezing, undoing, filling in: whatever they do, the result must be this one.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::plan::ShardLayout;
use peergrad_core::io::Event;
use peergrad_core::program::loader::Loaded;
use peergrad_models::task::StepInfo;
use peergrad_protocol::cursor::{DataCursor, Span};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::placement::Placement;
use peergrad_protocol::view::{Recovery, Resume, View};
use peergrad_protocol::{Incarnation, PeerId, Rank, ViewDigest};

use super::view_chain::{Installed, ViewChain};
use crate::invariants::Invariant;
use crate::observation::Observation;
use crate::world::World;

/// The replay's name among what is checked.
pub const REPLAY: &str = "replay of the commit log";

/// The state of the whole run after the last replayed step.
#[derive(Clone)]
pub struct Replay {
    loaded: Loaded,
    chunks: Chunks,
    view_chain: ViewChain,
    parameters: Vec<f32>,
    /// By chunk: its moments, one after the other, and how many updates it has had.
    moments: Vec<(Vec<f32>, u32)>,
    /// The parameters before any codec; zeros for chunks without an update.
    master: Vec<f32>,
    /// By member: its residual, which is what codecs have left out of its contributions.
    residuals: BTreeMap<(PeerId, Incarnation), Vec<f32>>,
    cursor: DataCursor,
    order: Option<(u64, Vec<u32>)>,
    /// Number of steps replayed.
    steps: u64,
    /// Samples and loss of the last of them; the loss is a sum in one of several orders.
    stats: SampleStats,
    placement: Option<ChunkPlacement>,
    /// By step with which another branch is merged: that branch's state and its share.
    merged_branches: BTreeMap<u64, MergedBranch>,
}

/// The state of another branch that is merged, and its share in the average.
#[derive(Clone)]
struct MergedBranch {
    share: f32,
    parameters: Vec<f32>,
    master: Vec<f32>,
    moments: Vec<(Vec<f32>, u32)>,
}

/// Where the chunks are in one view.
#[derive(Clone)]
struct ChunkPlacement {
    digest: ViewDigest,
    /// The placement after all moves.
    target: Placement,
    /// The number of moves that are done, and the placement after these.
    now: (usize, Placement),
}

impl Replay {
    /// The state at the start of a run.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let chunks = loaded.manifest.chunks();
        let mut parameters = vec![0.0; chunks.parameter_count()];
        loaded.initial(&mut parameters);
        let mut replay = Self {
            moments: vec![],
            master: vec![0.0; chunks.parameter_count()],
            residuals: BTreeMap::new(),
            loaded: loaded.clone(),
            chunks,
            view_chain: ViewChain::default(),
            parameters,
            cursor: DataCursor::default(),
            order: None,
            steps: 0,
            stats: SampleStats::default(),
            placement: None,
            merged_branches: BTreeMap::new(),
        };
        replay.moments = (0..chunks.count()).map(|chunk| replay.fresh(chunk)).collect();
        replay
    }

    /// The run goes back to a checkpoint: replays it again up to this step.
    fn rewind(&mut self, step: u64) {
        let (view_chain, merged_branches) =
            (std::mem::take(&mut self.view_chain), std::mem::take(&mut self.merged_branches));
        *self = Self { view_chain, merged_branches, ..Self::new(&self.loaded) };
        while self.steps < step && self.step() {}
    }

    /// The optimizer state of a chunk that has had no update.
    fn fresh(&self, chunk: usize) -> (Vec<f32>, u32) {
        let moment_count = self.loaded.owner_moments();
        (vec![0.0; self.chunks.range(chunk).len() * moment_count], 0)
    }

    /// Replays one step, as the members of the view compute it in which its sums are made. Returns false if that view is not known.
    fn step(&mut self) -> bool {
        let Some(Installed { view, digest }) = self.view_chain.of_step(self.steps).cloned() else {
            return false;
        };
        self.restart_states();
        let (epoch, parts) = self.assign_samples(&view);
        let sample_count = self.loaded.task.sample_count();
        let training = &self.loaded.config;
        if self.order.as_ref().is_none_or(|(known, _)| *known != epoch) {
            self.order = Some((epoch, training.order(epoch, sample_count)));
        }
        let info = StepInfo::alone(self.steps, epoch, training.schedule.rate(self.steps));
        let contributions = self.contributions(&info, &parts);
        let rate = training.schedule.rate(self.steps);
        let placed = self.placement(&view, digest);
        let layout = self.layout(&placed.now.1, view.members.len());
        let sums = if self.sends_sums(&placed) { self.loaded.config.sum_codec() } else { Codec::F32 };
        let received = self.received(&view, &layout, &contributions);
        let mut updated = self.parameters.clone();
        for chunk in 0..self.chunks.count() {
            let owner = placed.now.1.owner(chunk);
            let range = self.chunks.range(chunk);
            let parts: Vec<_> = contributions
                .iter()
                .zip(&received)
                .enumerate()
                .map(|(rank, (own, received))| {
                    let is_own = rank == owner.index();
                    (if is_own { &own.0[..] } else { &received[..] }, own.1)
                })
                .collect();
            let (sum, stats) = sum_for(owner, &parts, range.clone());
            updated[range.clone()].copy_from_slice(&sum);
            round(sums, &mut updated[range]);
            self.stats = stats;
        }
        let clip_factor = self.clip_factor(&placed.now.1, view.members.len(), &updated);
        for chunk in 0..self.chunks.count() {
            self.update(chunk, rate, clip_factor, &mut updated);
        }
        if !self.gathers_sums(&view, &placed) {
            round_segments(self.loaded.config.parameters, &layout, &mut updated);
        }
        self.parameters = updated;
        self.placement = Some(placed);
        self.steps += 1;
        true
    }

    /// How the vector is divided among the members.
    fn layout(&self, placement: &Placement, member_count: usize) -> ShardLayout {
        let mut owned = vec![Vec::new(); member_count];
        for chunk in 0..self.chunks.count() {
            owned[placement.owner(chunk).index()].push(self.chunks.range(chunk));
        }
        ShardLayout::new(self.chunks.parameter_count(), owned, self.loaded.config.segment_elements)
    }

    /// Contributions as other members receive them: each includes its member's residual. A member does not send its own shard, so that part
    /// is exact for its owner.
    fn received(
        &mut self,
        view: &View,
        layout: &ShardLayout,
        contributions: &[(Vec<f32>, SampleStats)],
    ) -> Vec<Vec<f32>> {
        let codec = self.loaded.config.gradients;
        // No member uses the sums of a step that merges, so its residual remains for the next step.
        if codec.is_exact() || self.view_chain.merge_of(self.steps).is_some() {
            return contributions.iter().map(|(contribution, _)| contribution.clone()).collect();
        }
        let mut received = Vec::new();
        for (rank, (contribution, _)) in contributions.iter().enumerate() {
            let member = &view.members[rank];
            let fresh = || vec![0.0; contribution.len()];
            let residual = self.residuals.entry((member.peer, member.incarnation)).or_insert_with(fresh);
            let mut total: Vec<f32> =
                contribution.iter().zip(&*residual).map(|(contribution, left)| contribution + left).collect();
            let mut seen = total.clone();
            round_segments(codec, layout, &mut seen);
            for range in (0..contributions.len())
                .filter(|owner| *owner != rank)
                .flat_map(|owner| layout.shard(owner).ranges())
            {
                for element in range.clone() {
                    total[element] -= seen[element];
                    if total[element].is_finite() {
                        residual[element] = total[element];
                    }
                }
            }
            received.push(seen);
        }
        received
    }

    /// Whether sums are sent to other members: those that store replicas, or all.
    fn sends_sums(&self, placed: &ChunkPlacement) -> bool {
        let is_replicated = |chunk| placed.now.1.replica_holders(chunk).len() > 1;
        self.loaded.state_count() > 0 && (0..self.chunks.count()).any(is_replicated)
    }

    /// Whether members gather sums, and each computes all new parameters from them; then no values are sent.
    fn gathers_sums(&self, view: &View, placed: &ChunkPlacement) -> bool {
        let is_settled = placed.now.0 > 0 || view.newcomers().is_empty();
        let has_state = self.loaded.state_count() > 0;
        let is_everywhere = |chunk| placed.now.1.replica_holders(chunk).len() == view.members.len();
        has_state && is_settled && (0..self.chunks.count()).all(is_everywhere)
    }

    /// Resets the optimizer state of chunks that no member held when a view began with this step.
    fn restart_states(&mut self) {
        let restarted = self.view_chain.restarted_with(self.steps);
        for chunk in restarted.into_iter().filter(|&chunk| chunk < self.chunks.count()) {
            self.moments[chunk] = self.fresh(chunk);
        }
    }

    /// The epoch of the step, and by rank the samples that each member is assigned: for a view's first step as its record says, for the
    /// others in equal parts.
    fn assign_samples(&mut self, view: &View) -> (u64, Vec<Vec<Span>>) {
        let is_first = self.steps == view.first_step().0;
        let sample_count = u64::from(self.loaded.task.sample_count());
        if is_first {
            self.cursor = view.cursor.clone();
            if let Some(merge) = view.merge() {
                let epoch = self.cursor.epoch;
                self.cursor = self.cursor.union(&merge.cursor, sample_count);
                return (epoch, vec![vec![]; view.members.len()]);
            }
            if let Recovery::Resume(Resume { batch: Some(deal), .. }) = &view.recovery {
                return (deal.epoch, deal.parts.clone());
            }
        }
        let (batch, after) = self.cursor.next_batch(self.loaded.config.step_samples(), sample_count);
        self.cursor = after;
        let is_idle = |rank: Rank| is_first && view.newcomers().contains(&rank);
        let weights = view.batch_weights(|rank| !is_idle(rank));
        let block = self.loaded.config.dealing.block;
        (batch.epoch, (0..weights.len()).map(|index| batch.part(index, &weights, block)).collect())
    }

    /// Where the chunks are in this step: chunks that have not moved yet are still at the members that the record names.
    fn placement(&mut self, view: &View, digest: ViewDigest) -> ChunkPlacement {
        let moved = view.moves.moved(self.steps - view.first_step().0);
        let mut placed = match self.placement.take() {
            Some(placed) if placed.digest == digest => placed,
            _ => {
                let count = self.chunks.count();
                let target = Placement::compute(&view.run, &view.members, count, self.loaded.config.replicas);
                ChunkPlacement { digest, now: (moved, target.after(&view.moves, moved)), target }
            }
        };
        if placed.now.0 != moved {
            placed.now = (moved, placed.target.after(&view.moves, moved));
        }
        placed
    }

    /// By rank: the gradient of the member's part of the batch, and its number of samples and loss.
    fn contributions(&self, info: &StepInfo, parts: &[Vec<Span>]) -> Vec<(Vec<f32>, SampleStats)> {
        let order = &self.order.as_ref().expect("drawn before").1;
        let contribution = |spans: &Vec<Span>| {
            let samples: Vec<u32> =
                spans.iter().flat_map(|s| &order[s.start as usize..s.end as usize]).copied().collect();
            let mut gradient = vec![0.0; self.parameters.len()];
            let loss = self.loaded.task.contribute(info, &self.parameters, &samples, &mut gradient);
            if !loss.is_finite() || !gradient.iter().all(|element| element.is_finite()) {
                return (vec![0.0; self.parameters.len()], SampleStats::default());
            }
            (gradient, SampleStats { samples: samples.len() as u64, loss })
        };
        parts.iter().map(contribution).collect()
    }

    /// The factor that clips the gradient to the greatest norm, from all sums: each owner adds up the squares of its chunks in order, and all
    /// members add up what the owners tell, by rank. A chunk whose sums are not finite is not updated, and has no part in it.
    fn clip_factor(&self, placement: &Placement, member_count: usize, sums: &[f32]) -> f32 {
        let optimizer = self.loaded.config.optimizer();
        let mut squares = vec![0.0; member_count];
        for chunk in 0..self.chunks.count() {
            let range = self.chunks.range(chunk);
            let chunk_sums = &sums[range.clone()];
            if chunk_sums.iter().all(|sum| sum.is_finite()) {
                squares[placement.owner(chunk).index()] += optimizer.squares(range.start, chunk_sums);
            }
        }
        optimizer.clip_factor(squares.into_iter().sum(), self.stats.samples)
    }

    /// Computes an owner's update of a chunk from its sum, which is in `updated`.
    fn update(&mut self, chunk: usize, rate: f64, clip_factor: f32, updated: &mut [f32]) {
        let (range, stats) = (self.chunks.range(chunk), self.stats);
        let has_master = self.loaded.keeps_master() && self.moments[chunk].1 > 0;
        let old = if has_master { &self.master[range.clone()] } else { &self.parameters[range.clone()] };
        let sum = &mut updated[range.clone()];
        let merges = self.view_chain.merge_of(self.steps).is_some();
        if let Some(other) = self.merged_branches.get(&self.steps).filter(|_| merges) {
            let (theirs, their_updates) = &other.moments[chunk];
            let has_master = self.loaded.keeps_master() && *their_updates > 0;
            let exact =
                if has_master { &other.master[range.clone()] } else { &other.parameters[range.clone()] };
            let mix = |ours: f32, theirs: f32| ours + (theirs - ours) * other.share;
            sum.iter_mut()
                .zip(old.iter().zip(exact))
                .for_each(|(new, (ours, theirs))| *new = mix(*ours, *theirs));
            let (moments, updates) = &mut self.moments[chunk];
            moments.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours = mix(*ours, *theirs));
            *updates = (*updates).max(*their_updates).min(self.steps as u32 + 1);
            self.master[range].copy_from_slice(sum);
            return;
        }
        if stats.samples == 0 || !sum.iter().all(|element| element.is_finite()) {
            sum.copy_from_slice(old);
            return;
        }
        let (moments, updates) = &mut self.moments[chunk];
        *updates += 1;
        let before = moments.clone();
        let update = self.loaded.config.optimizer().update(rate, *updates, stats.samples, clip_factor);
        update.apply(range.start, old, sum, &before, moments);
        self.master[range].copy_from_slice(sum);
    }
}

/// The sum as an owner receives it: the member after the owner comes first, the owner last.
fn sum_for(
    owner: Rank,
    contributions: &[(&[f32], SampleStats)],
    range: Range<usize>,
) -> (Vec<f32>, SampleStats) {
    let count = contributions.len();
    let in_order = (1..=count).map(|distance| &contributions[(owner.index() + distance) % count]);
    let mut sum: Option<(Vec<f32>, SampleStats)> = None;
    for (gradient, stats) in in_order {
        let part = &gradient[range.clone()];
        match &mut sum {
            None => sum = Some((part.to_vec(), *stats)),
            Some((sum, total)) => {
                sum.iter_mut().zip(part).for_each(|(sum, element)| *sum += element);
                *total += *stats;
            }
        }
    }
    sum.expect("a view has members")
}

/// Rounds elements as sending them together does.
fn round(codec: Codec, elements: &mut [f32]) {
    let mut bytes = vec![0; codec.encoded_len(elements.len())];
    codec.encode(elements, &mut bytes);
    codec.decode(&bytes, elements).expect("what was just encoded");
}

/// As [`round`], segment by segment.
fn round_segments(codec: Codec, layout: &ShardLayout, vector: &mut [f32]) {
    for segment in (0..layout.rank_count()).flat_map(|rank| layout.shard(rank).segments()) {
        let mut packed = vec![0.0; segment.len()];
        segment.copy_out(vector, &mut packed);
        round(codec, &mut packed);
        segment.copy_in(&packed, vector);
    }
}

/// Observes commits like an invariant: it compares what the first member reports of a step; [`crate::invariants::same_bits`] checks the
/// others.
impl Invariant for Replay {
    fn name(&self) -> &'static str {
        REPLAY
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn merge(&mut self, other: &dyn Invariant, view: &View) {
        let other = other.as_any().and_then(|other| other.downcast_ref::<Self>());
        if let (Some(other), Some(merge)) = (other, view.merge()) {
            let mut other = other.clone();
            other.rewind(merge.steps.0);
            let Self { parameters, master, moments, .. } = other;
            let merged_branches = MergedBranch { share: merge.share(), parameters, master, moments };
            self.merged_branches.insert(view.first_step().0, merged_branches);
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        if let Some(step) = self.view_chain.observe(observation) {
            self.rewind(step);
        }
        let Observation::Emitted { host, event: Event::Committed(committed) } = observation else {
            return Ok(());
        };
        if committed.step.0 < self.steps {
            return Ok(());
        }
        // After a gap no step can be compared.
        if committed.step.0 > self.steps {
            return Err(format!(
                "{host} commits step {}, but no host has committed step {}",
                committed.step.0, self.steps
            ));
        }
        if !self.step() {
            return Err(format!("{host} commits step {} without having installed a view", committed.step.0));
        }
        let SampleStats { samples, loss } = self.stats;
        let mean = loss / samples as f64;
        let is_near = |loss: f64| (loss - mean).abs() <= LOSS_APART_MAX * mean.abs().max(1.0);
        if committed.samples != samples || (mean.is_finite() && !is_near(committed.loss)) {
            return Err(format!(
                "{host} reports that step {} trained {} samples with loss {}; the commit log gives {samples} and {mean}",
                committed.step.0, committed.samples, committed.loss
            ));
        }
        let digest = ContentDigest::of(bytemuck::cast_slice(&self.parameters));
        if committed.digest.is_none_or(|committed| committed == digest) {
            return Ok(());
        }
        Err(format!(
            "after step {} the parameters of {host} differ from those of the replay",
            committed.step.0
        ))
    }
}

/// Sums of the same losses in two orders differ by no more than this, relatively.
const LOSS_APART_MAX: f64 = 1e-9;
