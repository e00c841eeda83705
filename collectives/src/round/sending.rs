//! What a member sends in a round, and in which order.
//!
//! A round ends with the last segment that arrives. In a ring, a partial sum that begins here has the most hops to go, and a final segment
//! that is passed on has the fewest. So what has the most hops to go is sent first, as far as credit allows.

use peergrad_protocol::Pool;
use peergrad_protocol::message::Phase;

use super::{Action, Round, SegmentLabel};
use crate::credit::LinkCredits;
use crate::payload::payload_of;
use crate::residual::Residual;

impl Round {
    /// Sends as many segments as the links' credit allows: relays of partial sums, relays of final values, and then segments that begin
    /// here. Where there is [plenty](LinkCredits::has_plenty) of credit, those that begin here go before relays of the same half: they have
    /// the most hops to go, and the round ends with the last of them. What a lossy codec leaves out of the contribution is stored in the
    /// `residual`, in which this step has been begun; without one it is lost.
    pub fn pump(
        &mut self,
        links: &mut LinkCredits,
        segments: &Pool,
        mut residual: Option<&mut Residual>,
        out: &mut Vec<Action>,
    ) {
        if self.plan.has_relays() {
            let next = self.plan.link(self.plan.next());
            self.pump_relays(next, links, segments, residual.as_deref_mut(), out);
            if !self.relays.is_empty() {
                return;
            }
        }
        if self.reduce.is_started() && !self.gather.has_start(&self.plan) {
            return;
        }
        let take_credit =
            if self.plan.has_relays() { LinkCredits::take_for_start } else { LinkCredits::take_for_one_hop };
        for position in 0..self.plan.destination_count() {
            let destination = self.plan.destination(position);
            let to = self.plan.link(destination);
            while self.next_start(destination).is_some() && take_credit(links, to) {
                self.start_reduce(destination, segments, residual.as_deref_mut(), out);
            }
            if self.next_start(destination).is_some() {
                continue;
            }
            while self.gather.next_start(destination).is_some() && take_credit(links, to) {
                self.start_gather(destination, segments, out);
            }
        }
    }

    /// Sends relays in a ring, and before them segments that begin here, if there is plenty of credit.
    fn pump_relays(
        &mut self,
        next: usize,
        links: &mut LinkCredits,
        segments: &Pool,
        mut residual: Option<&mut Residual>,
        out: &mut Vec<Action>,
    ) {
        let destination = self.plan.next();
        for phase in [Phase::Reduce, Phase::Gather] {
            while links.has_plenty(next) {
                match phase {
                    Phase::Reduce if self.next_start(destination).is_some() => {
                        self.start_reduce(destination, segments, residual.as_deref_mut(), out);
                    }
                    Phase::Gather if self.gather.next_start(destination).is_some() => {
                        self.start_gather(destination, segments, out);
                    }
                    _ => break,
                }
                assert!(links.take_for_start(next), "there is plenty");
            }
            let previous = self.plan.link(self.plan.previous());
            while self.relays.has(phase) && links.take_for_relay(next) {
                let (label, payload) = self.relays.take(phase).expect("just seen");
                out.push(Action::Send { to: next, label, payload });
                out.push(Action::Grant { to: previous, may_keep: false });
            }
        }
    }

    /// The next segment (owner, index) that begins here and goes to `destination`; `None` if all were sent, or if it is not known yet.
    fn next_start(&self, destination: usize) -> Option<(usize, usize)> {
        let next = self.reduce.next_start(&self.plan, destination);
        next.filter(|&(owner, index)| self.knows(&self.plan.layout.shard(owner).segments()[index]))
    }

    /// Sends the next segment of the contribution to `destination`, for which credit was taken.
    fn start_reduce(
        &mut self,
        destination: usize,
        segments: &Pool,
        residual: Option<&mut Residual>,
        out: &mut Vec<Action>,
    ) {
        let (owner, index) = self.next_start(destination).expect("the caller has looked");
        self.reduce.start(owner);
        let contribution = self.contribution.as_ref().expect("kept until every start has left");
        let segment = &self.plan.layout.shard(owner).segments()[index];
        let codec = self.plan.codecs.reduce;
        let payload = match residual {
            Some(residual) => {
                let mut packed = segments.take(segment.len());
                let mut payload = segments.take_bytes(codec.encoded_len(segment.len()));
                residual.encode(codec, segment, contribution, &mut packed, payload.bytes_mut());
                payload
            }
            None => payload_of(codec, segment, contribution, segments),
        };
        let label = SegmentLabel { phase: Phase::Reduce, owner, index, stats: self.contribution_stats };
        out.push(Action::Send { to: self.plan.link(destination), label, payload });
    }

    /// Sends the next final segment of the own shard to `destination`, for which credit was taken.
    fn start_gather(&mut self, destination: usize, segments: &Pool, out: &mut Vec<Action>) {
        let index = self.gather.next_start(destination).expect("the caller has looked");
        self.gather.start(destination);
        let segment = &self.plan.own().segments()[index];
        let payload = payload_of(self.plan.codecs.gather, segment, self.result.seen(), segments);
        let label =
            SegmentLabel { phase: Phase::Gather, owner: self.plan.rank, index, stats: self.own_stats };
        out.push(Action::Send { to: self.plan.link(destination), label, payload });
    }
}
