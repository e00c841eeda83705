//! Looking: what a member thinks of each of the others, for whoever asks.

use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::{Membership, TrainingSnapshot};
use crate::node_report::Condition;

/// What a member knows of another one, or of itself.
pub(crate) struct MemberHealth {
    pub(crate) condition: Condition,
    /// Steps that are complete there, as it said last.
    pub(crate) complete: Option<StepNumber>,
    pub(crate) silence: Option<std::time::Duration>,
}

impl Membership {
    /// By rank: what this member thinks of each.
    pub(crate) fn member_health(&self, now: Instant, snapshot: &TrainingSnapshot<'_>) -> Vec<MemberHealth> {
        let (hanging, neighbors) = (self.hanging(now, snapshot), self.neighbors());
        let of = |rank: Rank| {
            let peer = &self.place.view.member(rank).peer;
            let is_me = rank == self.place.rank;
            let is_watched = is_me || neighbors.contains(peer);
            let condition = match (self.trouble_with(now, rank, &hanging), is_watched) {
                (Some(trouble), _) => trouble,
                (None, _) if !is_me && is_watched && !self.links.is_linked(peer) => Condition::Connecting,
                (None, _) if self.departures.retiring.contains(peer) => Condition::HandingOver,
                (None, _) if is_me && !snapshot.has_parameters => Condition::CatchingUp,
                (None, _) if !is_me && self.is_newcomer(rank) => Condition::CatchingUp,
                (None, true) => Condition::Working,
                (None, false) => Condition::Unwatched,
            };
            MemberHealth {
                condition,
                complete: self.view_state.reported_progress.get(&rank).map(|seen| seen.complete),
                silence: self.detection.detector.silence(now, peer).filter(|_| !is_me),
            }
        };
        (0..self.place.view.members.len()).map(Rank::from_index).map(of).collect()
    }

    fn trouble_with(&self, now: Instant, rank: Rank, hanging: &[Rank]) -> Option<Condition> {
        let peer = &self.place.view.member(rank).peer;
        if rank == self.place.rank {
            return self.is_paused().then_some(Condition::Paused);
        }
        if self.view_state.departed.contains(&rank) {
            Some(Condition::Stopped)
        } else if self.view_state.broken.contains(&rank) && self.links.unlinked.contains(peer) {
            Some(Condition::Unreachable)
        } else if self.detection.detector.is_suspected(now, peer) {
            Some(Condition::Suspected)
        } else if hanging.contains(&rank) {
            Some(Condition::Hanging)
        } else {
            None
        }
    }

    /// Peers that want to come in, and whether they are ready.
    pub(crate) fn joiners(&self) -> Vec<(PeerId, bool)> {
        let preparing = self.admission.preparing.keys().map(|peer| (*peer, false));
        preparing.chain(self.admission.candidates.keys().map(|peer| (*peer, true))).collect()
    }

    /// When this view was entered.
    pub(crate) fn entered_at(&self) -> Instant {
        self.view_state.entered_at
    }

    /// Chunks of tables that nobody has who can be reached, if this member would see to the next view and waits for them.
    pub(crate) fn missing_chunks(&self) -> usize {
        self.view_state.missing_chunks.len()
    }

    /// How many members can be reached, this one included, and how many are needed, while those are too few.
    pub(crate) fn paused(&self) -> Option<(usize, usize)> {
        let reached = self.view_state.paused?;
        Some((reached, self.needed(reached)))
    }

    /// Whether all who have parameters are lost.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.view_state.is_orphaned
    }
}
