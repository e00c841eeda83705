//! Arrivals: segments from other members, and links that come up or break.
//!
//! A segment of the step in progress goes into its round. A segment of the next step, from a member that is ahead, is held within its
//! link's window until this member begins that step. So is a sum to which this member cannot add its part, because that is still being
//! computed.

use peergrad_collectives::payload::decoded;
use peergrad_collectives::round::{Action, SegmentLabel};
use peergrad_protocol::message::{Phase, Segment};
use peergrad_protocol::{Buffer, PeerId, Rank};

use super::StepEngine;
use super::commit::commit_if_confirmed;
use super::merge_snapshot::MergeSnapshots;
use super::rounds::{ActiveRound, Rounds};
use super::state::{StepKind, StepState};
use crate::io::{Output, Reject};

/// A segment on its way into its round, with all that its arrival may change: the first finished sum of a step commits the one before.
struct Delivery<'a> {
    /// The step in progress, which says where the segment belongs.
    state: &'a mut StepState,
    /// The rounds, one of which takes the segment in.
    rounds: &'a mut Rounds,
    /// The snapshots: a commit may take one, or end a merge.
    merge_snapshots: &'a mut MergeSnapshots,
}

impl Delivery<'_> {
    fn deliver(
        &mut self,
        from: Rank,
        segment: Segment,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        match segment.phase {
            Phase::Mirror => self.deliver_to_mirror(from, segment, &payload, out)?,
            Phase::Reduce | Phase::Gather => self.deliver_to_round(from, segment, payload)?,
        }
        self.rounds.carry_out(segment.step, &mut self.state.base, out);
        Ok(())
    }

    /// Takes in the held segments that can be taken in now.
    ///
    /// # Errors
    /// The first member that has sent one which the plan does not contain. Those of all others were taken in.
    fn deliver_early(&mut self, out: &mut Vec<Output>) -> Result<(), (PeerId, Reject)> {
        let mut outcome = Ok(());
        for (from, segment, payload) in std::mem::take(&mut self.rounds.early) {
            let mut live = self.rounds.live.iter();
            if !live.any(|live| live.step == segment.step && live.can_receive(&segment)) {
                self.rounds.early.push_back((from, segment, payload));
                continue;
            }
            if let Err(reject) = self.deliver(from, segment, payload, out) {
                outcome = outcome.and(Err((self.state.base.view().member(from).peer, reject)));
            }
        }
        outcome
    }

    /// This member replicates chunks whose sums their owner sends.
    fn deliver_to_mirror(
        &mut self,
        from: Rank,
        segment: Segment,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let (owner, index) = (segment.owner as usize, segment.index as usize);
        let live =
            self.rounds.live.iter_mut().find(|live| live.step == segment.step).ok_or(Reject::Segment)?;
        if !live.mirror.admit(from.index(), owner, index, payload.byte_count()) {
            return Err(Reject::Segment);
        }
        let ranges = live.mirror.segment_ranges(owner, index).to_vec();
        // The first finished sum of this step: every member has completed the step before.
        self.state.commit.confirm();
        commit_if_confirmed(self.state, self.merge_snapshots, out);
        let StepState { base, optimizer, .. } = &mut *self.state;
        let (codec, len) = (base.loaded.config.sum_codec(), ranges.iter().map(ExactSizeIterator::len).sum());
        let sums = decoded(codec, len, payload, &base.segments).map_err(|_| Reject::Segment)?;
        optimizer.receive_sums(&ranges, sums.as_ref().unwrap_or(payload));
        self.rounds.actions.push(Action::Grant { to: from.index(), may_keep: false });
        Ok(())
    }

    fn deliver_to_round(&mut self, from: Rank, segment: Segment, payload: Buffer) -> Result<(), Reject> {
        let (owner, index) = (segment.owner as usize, segment.index as usize);
        let label = SegmentLabel { phase: segment.phase, owner, index, stats: segment.stats };
        let Rounds { live, actions, .. } = &mut *self.rounds;
        let StepState { base, commit, step, .. } = &mut *self.state;
        let live = live.iter_mut().find(|live| live.step == segment.step).ok_or(Reject::Segment)?;
        let (vectors, len) = (&base.vectors, base.shard_map.sharding.chunks.parameter_count());
        let result = || commit.take_result_buffer(vectors, len);
        let received = live.round.receive(from.index(), label, payload, result, &base.segments, actions);
        received.map_err(|_| Reject::Segment)?;
        if live.step == *step && live.round.first_sum_seen() {
            commit.confirm();
        }
        Ok(())
    }
}

impl StepEngine {
    /// Takes in a segment of this view, or holds it until this member has begun its step and knows its own part of the sum.
    pub(super) fn receive_segment(
        &mut self,
        from: PeerId,
        segment: Segment,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let base = &mut self.state.base;
        let from = base.flow_control.rank_of(&from, &base.shard_map.view).ok_or(Reject::NotAMember)?;
        base.flow_control.hold(from)?;
        // A step that is being filled has no round at this member.
        let step = self.state.step;
        let first = if self.transfer.is_filling() { step.next() } else { step };
        let first = self.rounds.live.back().map_or(first, |live| live.step.next());
        // With local parameters, members may be ahead by more than one step.
        let may_be_far_ahead = self.state.kind == StepKind::LocalParameters;
        let is_ahead = first == segment.step || (first < segment.step && may_be_far_ahead);
        let is_known = |live: &ActiveRound| live.step != segment.step || live.can_receive(&segment);
        if is_ahead || self.is_suspended() || !self.rounds.live.iter().all(is_known) {
            self.rounds.early.push_back((from, segment, payload));
            return Ok(());
        }
        self.delivery().deliver(from, segment, payload, out)?;
        self.make_progress(out);
        Ok(())
    }

    fn delivery(&mut self) -> Delivery<'_> {
        let Self { state, rounds, merge_snapshots, .. } = self;
        Delivery { state, rounds, merge_snapshots }
    }

    /// Takes in the held segments that can be taken in now, unless no segment is.
    pub(super) fn take_early(&mut self, out: &mut Vec<Output>) -> Result<(), (PeerId, Reject)> {
        if self.is_suspended() {
            return Ok(());
        }
        self.delivery().deliver_early(out)
    }

    /// There is a new link to a member, with nothing on its way yet.
    pub(in crate::training) fn link_up(&mut self, peer: &PeerId, rank: Rank, out: &mut Vec<Output>) {
        self.state.base.flow_control.link_up(rank);
        self.rounds.drop_early(rank);
        self.transfer.ask_again(&self.state, rank, out);
        self.backup_workers.resend(&self.state, peer, out);
        self.make_progress(out);
    }

    /// A link to a member is down.
    pub(in crate::training) fn link_down(&mut self, rank: Rank) {
        self.state.base.flow_control.link_down(rank);
        self.rounds.drop_early(rank);
    }
}
