//! Arrivals: segments and credit from other members, and links that come up or break.
//!
//! A segment of the step in progress goes into its round. A segment of the next step, from a member that is ahead, is held within its
//! link's window until this member begins that step.

use peergrad_collectives::payload::decoded;
use peergrad_collectives::round::{Action, SegmentLabel};
use peergrad_protocol::message::{Phase, Segment};
use peergrad_protocol::{Buffer, PeerId, Rank};

use super::StepEngine;
use crate::io::{Output, Reject};

impl StepEngine {
    /// Takes in a segment of this view, or holds it until this member has begun its step.
    pub(in crate::training) fn receive_segment(
        &mut self,
        from: PeerId,
        segment: Segment,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let from = self.base.flow_control.rank_of(&from, self.base.view()).ok_or(Reject::NotAMember)?;
        self.base.flow_control.hold(from)?;
        // A step that is being filled has no round at this member.
        let first = if self.transfer.is_filling() { self.step.next() } else { self.step };
        let first = self.rounds.live.back().map_or(first, |live| live.step.next());
        // With local parameters, members may be ahead by more than one step.
        let is_ahead = first == segment.step || (first < segment.step && self.has_local_parameters());
        if is_ahead || self.is_suspended() {
            self.rounds.early.push_back((from, segment, payload));
            return Ok(());
        }
        self.deliver_segment(from, segment, payload, out)?;
        self.make_progress(out);
        Ok(())
    }

    fn deliver_segment(
        &mut self,
        from: Rank,
        segment: Segment,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let (owner, index) = (segment.owner as usize, segment.index as usize);
        let label = SegmentLabel { phase: segment.phase, owner, index, stats: segment.stats };
        let len = self.base.shard_map.sharding.chunks.parameter_count();
        let live =
            self.rounds.live.iter_mut().find(|live| live.step == segment.step).ok_or(Reject::Segment)?;
        if segment.phase == Phase::Mirror {
            if !live.mirror.admit(from.index(), owner, index, payload.byte_count()) {
                return Err(Reject::Segment);
            }
            let ranges = live.mirror.segment_ranges(owner, index).to_vec();
            // A finished sum, like one of a round.
            self.commit.first_sum_seen();
            self.commit_if_confirmed(out);
            // This member replicates these chunks, so it gets their sums.
            let (codec, len) =
                (self.base.loaded.config.sum_codec(), ranges.iter().map(ExactSizeIterator::len).sum());
            let sums = decoded(codec, len, &payload, &self.base.segments).map_err(|_| Reject::Segment)?;
            self.optimizer.receive_sums(&ranges, sums.as_ref().unwrap_or(&payload));
            self.rounds.actions.push(Action::Grant { to: from.index() });
        } else {
            let (commit, vectors) = (&mut self.commit, &self.base.vectors);
            let room = || commit.take_result_buffer(vectors, len);
            let (segments, actions) = (&self.base.segments, &mut self.rounds.actions);
            let received = live.round.receive(from.index(), label, payload, room, segments, actions);
            received.map_err(|_| Reject::Segment)?;
            if live.step == self.step && live.round.first_sum_seen() {
                self.commit.first_sum_seen();
            }
        }
        self.rounds.carry_out(segment.step, &mut self.base, out);
        Ok(())
    }

    /// Takes in the held segments whose step this member has begun.
    pub(super) fn take_early(&mut self, out: &mut Vec<Output>) -> Result<(), (PeerId, Reject)> {
        if self.is_suspended() {
            return Ok(());
        }
        for (from, segment, payload) in std::mem::take(&mut self.rounds.early) {
            if !self.rounds.live.iter().any(|live| live.step == segment.step) {
                self.rounds.early.push_back((from, segment, payload));
                continue;
            }
            let taken = self.deliver_segment(from, segment, payload, out);
            taken.map_err(|reject| (self.base.view().member(from).peer, reject))?;
        }
        Ok(())
    }

    /// There is a new link to a member, with nothing on its way yet.
    pub(in crate::training) fn link_up(&mut self, peer: &PeerId, rank: Rank, out: &mut Vec<Output>) {
        self.base.flow_control.link_up(rank);
        self.rounds.early.retain(|(from, ..)| *from != rank);
        self.transfer.ask(&self.base, self.step, rank, out);
        self.resend(peer, out);
        self.make_progress(out);
    }

    /// A link to a member is down.
    pub(in crate::training) fn link_down(&mut self, rank: Rank) {
        self.base.flow_control.link_down(rank);
        self.rounds.early.retain(|(from, ..)| *from != rank);
    }
}
