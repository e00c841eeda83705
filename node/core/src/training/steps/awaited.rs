//! What a member waits for in the step in progress: the earliest thing that others owe it.
//!
//! A member sends what it owes once it has all earlier things itself. If no member advances, the reports of all of them tell which one
//! holds up the others: see [`Awaited`].

use std::collections::BTreeSet;

use peergrad_collectives::plan::Topology;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{Awaited, AwaitedAt, Phase, Stage};
use peergrad_protocol::{Rank, StepNumber};

use super::StepEngine;

impl StepEngine {
    /// The earliest thing that this member waits for, and the members that owe it. `None` if it waits for no member.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        let step = self.state.step;
        let chunks = self.transfer.awaited(&self.state);
        if !chunks.is_empty() {
            return Some(awaited(step, Stage::Chunks, 0, chunks));
        }
        if !self.rounds.has_begun(step) {
            let (stage, from) = self.backup_workers.awaited(&self.state)?;
            return Some(awaited(step, stage, 0, from));
        }
        // A member whose contribution is still being computed waits for no other.
        let live = self.rounds.live.back().filter(|live| live.round.is_known())?;
        let rank = |index: usize| Rank::from_index(index);
        // In a ring with long shards, members also wait for room on the links, which hides who waits for whom.
        let is_hidden =
            live.plan.topology == Topology::Ring && live.plan.has_long_shards(LINK_SEGMENTS as usize);
        let segments = live.round.awaited().filter(|_| !is_hidden);
        let is_reducing = matches!(segments, Some((Phase::Reduce, ..)));
        let mirrors: BTreeSet<Rank> = live.mirror.awaited().filter(|_| live.is_mirrored).map(rank).collect();
        if !is_reducing && !mirrors.is_empty() {
            return Some(awaited(step, Stage::Mirror, 0, mirrors));
        }
        let norms = self.awaited_norms().filter(|_| !is_reducing && !is_hidden);
        if let Some(norms) = norms {
            return Some(awaited(step, Stage::Norms, 0, norms));
        }
        let (_, hop, from) = segments?;
        let stage = if is_reducing { Stage::Reduce } else { Stage::Gather };
        Some(awaited(step, stage, hop as u32, from.into_iter().map(rank).collect()))
    }
}

impl StepEngine {
    /// The owners whose norms this member waits for, if it waits for some.
    fn awaited_norms(&self) -> Option<BTreeSet<Rank>> {
        let (state, live) = (&self.state, self.rounds.live.back()?);
        let current = self.program.current.as_ref()?;
        // The round of a member that is behind its view belongs to the view before.
        if self.gate.is_behind_view || !live.needs_norms(current) {
            return None;
        }
        let norms = self.norms.awaited(state, &state.base.shards(state.step));
        (!norms.is_empty()).then_some(norms)
    }
}

fn awaited(step: StepNumber, stage: Stage, hop: u32, from: BTreeSet<Rank>) -> Awaited {
    Awaited { at: AwaitedAt { step, stage, hop }, from: from.into_iter().collect() }
}
