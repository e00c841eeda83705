//! Health: what a member knows about the condition of each member, for status reports.

use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::{Membership, TrainingSnapshot};
use crate::node_report::Condition;

/// What a member knows about another one, or about itself.
pub(crate) struct MemberHealth {
    pub(crate) condition: Condition,
    /// How many steps that member has completed, by its last report; `None` before the first.
    pub(crate) complete: Option<StepNumber>,
    pub(crate) silence: Option<std::time::Duration>,
}

impl Membership {
    /// For each rank, what this member knows about that member.
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

    /// The peers that ask to join, and whether each is ready.
    pub(crate) fn joiners(&self) -> Vec<(PeerId, bool)> {
        let preparing = self.admission.preparing.keys().map(|peer| (*peer, false));
        preparing.chain(self.admission.candidates.keys().map(|peer| (*peer, true))).collect()
    }

    /// When this view was entered.
    pub(crate) fn entered_at(&self) -> Instant {
        self.view_state.entered_at
    }

    /// How many chunks of tables no reachable member stores, if this member leads the next view change and waits for them; else 0.
    pub(crate) fn missing_chunks(&self) -> usize {
        self.view_state.missing_chunks.len()
    }

    /// How many members can be reached, this one included, and how many are needed; `None` unless too few can be reached.
    pub(crate) fn paused(&self) -> Option<(usize, usize)> {
        let reached = self.view_state.paused?;
        Some((reached, self.needed(reached)))
    }

    /// Whether all members with parameters are lost.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.view_state.is_orphaned
    }
}
