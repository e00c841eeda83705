//! Invariant 2, single owner: in one view and step the new values of a chunk come from one owner, and so do the sums from which replicas
//! are updated; and the state of a chunk that moves comes from a member that holds it until then.
//!
//! The invariant computes the owners itself: from the record of the view, and from the number of moves that have been made. A member that
//! forwards values forwards the same bits, and all shards of a view and step together have each chunk once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_core::program::loader::Loaded;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{ChunkBatch, ChunkContent, Message, Phase, Segment, TrainingMessage};
use peergrad_protocol::placement::{Placement, Replicas};
use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, Rank, ViewDigest};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The invariant's name.
pub const SINGLE_OWNER: &str = "single owner (invariant 2)";

/// What owners have sent.
pub struct SingleOwner {
    chunks: Chunks,
    replicas: Replicas,
    /// The installed views.
    views: BTreeMap<ViewDigest, Installed>,
    /// By step, view and owner: what has been sent of its shard.
    shards: BTreeMap<(u64, ViewDigest, u32), Shard>,
}

/// A view and its owners.
struct Installed {
    view: Arc<View>,
    /// The placement after all moves.
    target: Placement,
    /// By rank: number of elements that the member owns then.
    shares: Vec<usize>,
    /// Number of elements that the members which have installed it own at first.
    owned: usize,
    members: BTreeSet<HostId>,
}

/// One owner's shard in one step.
struct Shard {
    /// Number of elements that it has by the invariant's placement.
    elements: usize,
    /// By segment: its number of elements, and a checksum that changes with any bit of them.
    segments: BTreeMap<u32, (usize, u64)>,
}

impl SingleOwner {
    /// The invariant for a run of this task and configuration.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        // A rule without state has no replicas.
        let has_state = loaded.state_count() > 0;
        let replicas = if has_state { loaded.config.replicas } else { Replicas::Number(1) };
        Self { chunks: loaded.manifest.chunks(), replicas, views: BTreeMap::new(), shards: BTreeMap::new() }
    }

    /// The shards with which members begin a view must cover everything once.
    fn installed(
        &mut self,
        host: HostId,
        digest: ViewDigest,
        view: &Arc<View>,
        (peer, shard, share): (&PeerId, usize, usize),
    ) -> Result<(), String> {
        let chunks = self.chunks;
        let installed = self.views.entry(digest).or_insert_with(|| {
            let target = Placement::compute(&view.run, &view.members, chunks.count(), self.replicas);
            let mut shares = vec![0; view.members.len()];
            (0..chunks.count()).for_each(|it| shares[target.owner(it).index()] += chunks.range(it).len());
            Installed { view: Arc::clone(view), target, shares, owned: 0, members: BTreeSet::new() }
        });
        if installed.members.insert(host) {
            installed.owned += shard;
        }
        let expected = view.rank(peer).map(|rank| installed.shares[rank.index()]);
        if expected != Some(share) {
            return Err(format!(
                "{host} reports a wrong share of {share} elements in view {}",
                view.number.0
            ));
        }
        let (owned, all) = (installed.owned, self.chunks.parameter_count());
        let is_whole = installed.members.len() == view.members.len();
        if owned > all || (is_whole && owned != all) {
            return Err(format!("the members of view {} own {owned} of {all} elements", view.number.0));
        }
        Ok(())
    }

    /// New values must be the owner's, also if another member forwards them.
    fn gathered(
        &mut self,
        from: HostId,
        digest: ViewDigest,
        segment: &Segment,
        payload: &[f32],
    ) -> Result<(), String> {
        let (step, owner) = (segment.step.0, segment.owner);
        self.forget_before(step.saturating_sub(STEPS_ALIVE));
        let key = (step, digest, owner);
        if !self.shards.contains_key(&key) {
            // Messages of a view that was not installed are checked by another invariant.
            let Some(elements) = self.elements_of(&digest, segment) else { return Ok(()) };
            self.shards.insert(key, Shard { elements, segments: BTreeMap::new() });
        }
        let shard = self.shards.get_mut(&key).expect("it was just there");
        let sent = (payload.len(), fold(payload));
        let known = *shard.segments.entry(segment.index).or_insert(sent);
        if known != sent {
            return Err(format!(
                "{from} sends values of segment {} of rank {owner}'s shard in step {step} that differ from those sent before",
                segment.index
            ));
        }
        let sum: usize = shard.segments.values().map(|(elements, _)| elements).sum();
        if sum <= shard.elements {
            return Ok(());
        }
        Err(format!(
            "{from} sends {sum} elements of rank {owner}'s shard in step {step}, which has {}",
            shard.elements
        ))
    }

    /// Number of elements of an owner's shard in a step, by the record of the view.
    fn elements_of(&self, digest: &ViewDigest, segment: &Segment) -> Option<usize> {
        let Installed { view, target, .. } = self.views.get(digest)?;
        let moved = view.moves.moved(segment.step.0.saturating_sub(view.first_step().0));
        let placement = target.after(&view.moves, moved);
        let is_its = |chunk: &usize| placement.owner(*chunk) == Rank(segment.owner);
        Some((0..self.chunks.count()).filter(is_its).map(|chunk| self.chunks.range(chunk).len()).sum())
    }

    /// Sums for replicas must come from the owner itself.
    fn mirrored(
        &self,
        (from, peer): (HostId, &PeerId),
        digest: &ViewDigest,
        segment: &Segment,
    ) -> Result<(), String> {
        let Some(installed) = self.views.get(digest) else { return Ok(()) };
        if installed.view.rank(peer) == Some(Rank(segment.owner)) {
            return Ok(());
        }
        Err(format!(
            "{from} sends sums of rank {}'s shard in step {}, which it does not own",
            segment.owner, segment.step.0
        ))
    }

    /// State that moves must come from a member that holds it: one that the record names, until the move is made.
    fn moves(
        &self,
        (from, peer): (HostId, &PeerId),
        digest: &ViewDigest,
        chunk_batch: &ChunkBatch,
        chunk: u32,
    ) -> Result<(), String> {
        let Some(Installed { view, .. }) = self.views.get(digest) else { return Ok(()) };
        let rank = view.rank(peer);
        let mut list = view.moves.list.iter();
        let Some(index) = list.position(|moved| moved.chunk == chunk) else {
            return Err(format!("{from} sends the state of chunk {chunk}, which does not move"));
        };
        let (first, steps) = (view.first_step().0, chunk_batch.steps.0);
        // Its move is made before the step with the number `steps`.
        let turn = view.moves.moved(steps.saturating_sub(first));
        let is_its_turn = index < turn && view.moves.moved(steps.saturating_sub(first + 1)) <= index;
        if rank.is_some_and(|rank| view.moves.list[index].from.contains(&rank)) && is_its_turn {
            return Ok(());
        }
        Err(format!(
            "{from} sends the state of chunk {chunk} after {steps} steps, which it does not hold then"
        ))
    }

    fn forget_before(&mut self, step: u64) {
        while let Some(first) = self.shards.first_entry() {
            if first.key().0 >= step {
                return;
            }
            first.remove();
        }
    }
}

impl Invariant for SingleOwner {
    fn name(&self) -> &'static str {
        SINGLE_OWNER
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { host, event: Event::ViewInstalled { view, digest, shard, share, .. } } => {
                self.installed(*host, *digest, view, (&world.peer(*host), *shard, *share))
            }
            Observation::Sent {
                from,
                message: Message::InView { view, message: TrainingMessage::Segment(segment) },
                payload: Some(payload),
                ..
            } => match segment.phase {
                Phase::Gather => self.gathered(*from, *view, segment, payload),
                Phase::Mirror => self.mirrored((*from, &world.peer(*from)), view, segment),
                Phase::Reduce => Ok(()),
            },
            Observation::Sent {
                from,
                message: Message::InView { view, message: TrainingMessage::ChunkBatch(chunk_batch) },
                ..
            } if chunk_batch.content == ChunkContent::State => {
                let peer = world.peer(*from);
                chunk_batch
                    .entries
                    .iter()
                    .try_for_each(|piece| self.moves((*from, &peer), view, chunk_batch, piece.chunk))
            }
            _ => Ok(()),
        }
    }
}

/// A checksum that changes with any bit.
pub(super) fn fold(values: &[f32]) -> u64 {
    let mix = |sum: u64, value: &f32| (sum ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    values.iter().fold(values.len() as u64, mix)
}

/// Members are at most one step apart; one more for frames that a cut held back.
const STEPS_ALIVE: u64 = 3;
