//! A round: one reduce-scatter and one all-gather over the same vector, overlapping, seen from one member.
//!
//! Between the halves, the owner of a shard updates it with the sum (an optimizer step). Other shards do not wait for that, so
//! segments of both halves share the links.
//!
//! # How it works
//! 1. [`Round::new`] takes the member's contribution and never changes what is known of it, so that an interrupted round can be repeated.
//! 2. [`Round::receive`] takes segments in; [`Round::pump`] sends what the links' credit allows.
//! 3. As far as the own shard is [`summed`](Round::summed), the caller replaces the sums by final values in [`Round::own_shard`], and
//!    calls [`Round::gather`] with the number of final elements. Final segments are sent without waiting for the rest.
//! 4. When [`Round::is_complete`], [`Round::complete`] hands out the vector; the round is needed until
//!    [`Round::is_drained`], to send what others still wait for.
//!
//! If every member can compute the update of all shards, the sums themselves may be gathered: in step 3 the own shard is final as it
//! is, and before step 4 each member updates the whole vector in [`Round::gathered`].
//!
//! If a member leaves, the round cannot end: [`Round::interrupt`] returns its vectors.
//!
//! A round may begin when only the first elements of the contribution are known: [`Round::extend`] adds more of them. A segment with unknown
//! elements is not sent, and its sum [is not taken in](Round::can_receive).
//!
//! # Memory
//! The contribution, the result, and the received segments that wait for credit: at most a window per link. A segment that starts
//! here is copied out of the vector only when there is credit for it.
//!
//! # Invariants
//! - The buffer for the result is requested when the first finished sum arrives. Every member contributed to that sum, so by then all
//!   members have the result of the previous round, and the caller may drop what it kept for undoing it.

use std::sync::Arc;

use peergrad_protocol::message::{Phase, SampleStats};
use peergrad_protocol::{Buffer, Pool};

use crate::all_gather::AllGather;
use crate::payload::decoded;
use crate::plan::{Plan, Topology};
use crate::reduce_scatter::{Arrival, ReduceScatter};

mod contribution;
mod interrupted;
mod own_shard;
mod relays;
mod sending;

pub use contribution::RoundContribution;
pub use interrupted::InterruptedRound;
use relays::Relays;

/// The identity of a segment, and the samples and loss behind its sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentLabel {
    /// The half of the round that it belongs to, or the mirror beside it.
    pub phase: Phase,
    /// The shard's owner, by its rank in the plan.
    pub owner: usize,
    /// Index of the segment in that shard.
    pub index: usize,
    /// The samples and loss of the contributions in the payload.
    pub stats: SampleStats,
}

/// An action for the caller.
#[derive(Debug)]
pub enum Action {
    /// Send a segment.
    Send {
        /// The receiver, by its rank on the links.
        to: usize,
        /// The segment's label.
        label: SegmentLabel,
        /// The segment's elements.
        payload: Buffer,
    },
    /// Return credit for one segment.
    Grant {
        /// The segment's sender, by its rank on the links.
        to: usize,
        /// Whether the credit may be kept instead, so that the link has less of it: see [`crate::credit`].
        may_keep: bool,
    },
}

/// The plan does not expect this segment; the round is unchanged, and the payload was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a segment that the plan does not foresee")]
pub struct UnexpectedSegment;

/// One member's part in one round.
#[derive(Debug)]
pub struct Round {
    plan: Arc<Plan>,
    contribution: Option<Buffer>,
    contribution_stats: SampleStats,
    /// How many elements of the contribution are known; they are the first ones.
    known: usize,
    result: ResultVector,
    /// The summed stats of the own shard, and of the shard whose stats all members report.
    own_stats: SampleStats,
    reported_stats: SampleStats,
    reduce: ReduceScatter,
    gather: AllGather,
    /// The number of segments of the own shard that were rounded by the codec; they are the first ones.
    quantized: usize,
    relays: Relays,
}

/// The vector of results.
#[derive(Debug)]
enum ResultVector {
    /// No finished sum has arrived.
    Unseen,
    /// Some shards have arrived.
    Filling(Buffer),
    /// All shards have arrived. The vector may be shared with readers.
    Complete(Arc<Buffer>),
}

impl Round {
    /// Begins a round with this member's contribution, which is ignored if the member is not a contributor of the plan. `room` is as for
    /// [`Round::receive`].
    ///
    /// # Panics
    /// If the contribution has another length than the plan's vector, or if a ring would encode sums again at each hop with a lossy codec.
    pub fn new(plan: Arc<Plan>, contribution: RoundContribution, room: impl FnOnce() -> Buffer) -> Self {
        let RoundContribution { vector, stats, known } = contribution;
        assert_eq!(vector.len(), contribution::len(&plan), "a contribution to every element, or none");
        let is_encoded_once = plan.topology == Topology::Direct || plan.codecs.reduce.is_exact();
        assert!(is_encoded_once, "a ring would round sums at each hop");
        let mut round = Self {
            reduce: ReduceScatter::new(&plan),
            gather: AllGather::new(&plan),
            plan,
            contribution: Some(vector),
            contribution_stats: stats,
            known,
            result: ResultVector::Unseen,
            own_stats: stats,
            reported_stats: stats,
            quantized: 0,
            relays: Relays::default(),
        };
        round.sum_if_alone(room);
        round
    }

    /// With a single contributor, its contribution is the sum, once all of it is known.
    fn sum_if_alone(&mut self, room: impl FnOnce() -> Buffer) {
        let is_alone = self.plan.contribution_count(self.plan.rank) == 0;
        if !is_alone || !self.is_known() || (self.plan.rank_count() > 1 && self.plan.own().is_empty()) {
            return;
        }
        let mut room = room();
        room.copy_from_slice(self.contribution.as_ref().expect("kept until complete"));
        self.result = ResultVector::Filling(room);
        for _ in self.plan.own().segments() {
            self.reduce.finish_segment();
        }
    }

    /// Takes a segment from the member with rank `from` on the links.
    ///
    /// `room` provides the buffer for the result; it is called once per round, when the first finished sum arrives. Encoded elements are
    /// decoded into buffers from `segments`.
    ///
    /// # Errors
    /// The plan does not expect the segment, or not [yet](Round::can_receive). The round is unchanged, and the payload was dropped.
    pub fn receive(
        &mut self,
        from: usize,
        label: SegmentLabel,
        payload: Buffer,
        room: impl FnOnce() -> Buffer,
        segments: &Pool,
        out: &mut Vec<Action>,
    ) -> Result<(), UnexpectedSegment> {
        let SegmentLabel { phase, owner, index, stats } = label;
        let from = self.plan.rank_behind(from).ok_or(UnexpectedSegment)?;
        let segment = if owner < self.plan.rank_count() {
            self.plan.layout.shard(owner).segments().get(index)
        } else {
            None
        };
        let segment = segment.ok_or(UnexpectedSegment)?;
        let codec = self.plan.codec(phase);
        let elements = decoded(codec, segment.len(), &payload, segments).map_err(|_| UnexpectedSegment)?;
        let expects = |round: &mut Self| match phase {
            Phase::Reduce => round.reduce.admit(&round.plan, from, owner, index),
            Phase::Gather => round.gather.admit(&round.plan, from, owner, index),
            // Beside the round, by a machine of its own.
            Phase::Mirror => false,
        };
        if self.contribution.is_none() || !self.can_receive(phase, owner, index) || !expects(self) {
            return Err(UnexpectedSegment);
        }
        match phase {
            Phase::Reduce => {
                let payload = elements.unwrap_or(payload);
                let arrival = self.reduce.arrive(&Arc::clone(&self.plan), from, owner, payload, stats);
                self.reduce_arrival(from, owner, index, arrival, room, out);
            }
            Phase::Gather => {
                let segment = &self.plan.layout.shard(owner).segments()[index];
                segment.copy_in(elements.as_ref().unwrap_or(&payload), self.result.filling(room));
                self.gather_arrival(from, label, payload, out);
            }
            Phase::Mirror => unreachable!("a round expects none"),
        }
        Ok(())
    }

    fn reduce_arrival(
        &mut self,
        from: usize,
        owner: usize,
        index: usize,
        arrival: Arrival,
        room: impl FnOnce() -> Buffer,
        out: &mut Vec<Action>,
    ) {
        match arrival {
            Arrival::Relay(mut sum, mut stats) => {
                let segment = &self.plan.layout.shard(owner).segments()[index];
                segment.add_out(self.contribution.as_ref().expect("checked on receipt"), &mut sum);
                stats += self.contribution_stats;
                self.relays.push(SegmentLabel { phase: Phase::Reduce, owner, index, stats }, sum);
            }
            Arrival::Last(sum, stats) => {
                self.add_own_contribution(sum, stats, room);
                out.push(self.grant(from));
            }
            Arrival::Waiting | Arrival::Absorbed if self.plan.combine.is_robust() => {
                self.combine_rows(room, out)
            }
            Arrival::Waiting | Arrival::Absorbed => self.add_in_order(room, out),
        }
    }

    /// Direct topology: adds the contributions that are next in the plan's order.
    fn add_in_order(&mut self, room: impl FnOnce() -> Buffer, out: &mut Vec<Action>) {
        let mut room = Some(room);
        let plan = Arc::clone(&self.plan);
        while let Some((source, arrival)) = self.reduce.next_in_order(&plan) {
            match arrival {
                Arrival::Last(sum, stats) => {
                    // Asked at most once: after it, the result is there.
                    self.add_own_contribution(sum, stats, || room.take().expect("asked once")());
                    // The accumulator came on the first contributor's link, the last contribution on its own.
                    let first = plan.contributor(plan.rank, 0);
                    out.push(self.grant(first));
                    if source != first {
                        out.push(self.grant(source));
                    }
                }
                Arrival::Absorbed => out.push(self.grant(source)),
                Arrival::Waiting | Arrival::Relay(..) => {}
            }
        }
    }

    /// Direct topology: combines the contributions to segments for which all have arrived.
    fn combine_rows(&mut self, room: impl FnOnce() -> Buffer, out: &mut Vec<Action>) {
        let mut room = Some(room);
        let plan = Arc::clone(&self.plan);
        while let Some(row) = self.reduce.next_row(&plan) {
            let segment = &plan.own().segments()[self.reduce.finish_segment()];
            let mut own = Vec::new();
            if plan.contributes(plan.rank) {
                own.resize(segment.len(), 0.0);
                segment.copy_out(self.contribution.as_ref().expect("kept until complete"), &mut own);
            }
            let others = row.iter().map(|(_, part, stats)| (&part[..], stats.samples));
            let own = Some((&own[..], self.contribution_stats.samples)).filter(|(own, _)| !own.is_empty());
            let all: Vec<_> = others.chain(own).collect();
            let mut combined = vec![0.0; segment.len()];
            plan.combine.combine(&all, &mut combined);
            let mut stats = row[0].2;
            row[1..].iter().for_each(|(_, _, other)| stats += *other);
            self.record_stats(stats);
            // Asked at most once: after it, the result is there.
            segment.copy_in(&combined, self.result.filling(|| room.take().expect("asked once")()));
            out.extend(row.iter().map(|(source, ..)| self.grant(*source)));
        }
    }

    /// Returns credit for a segment of the member with this rank that goes no further, or keeps it.
    fn grant(&self, source: usize) -> Action {
        Action::Grant { to: self.plan.link(source), may_keep: true }
    }

    /// Adds the own contribution, if there is one, to the next summed segment of the own shard, and stores the sum.
    fn add_own_contribution(&mut self, sum: Buffer, stats: SampleStats, room: impl FnOnce() -> Buffer) {
        let index = self.reduce.finish_segment();
        let segment = &self.plan.own().segments()[index];
        let vector = self.result.filling(room);
        if self.plan.contributes(self.plan.rank) {
            segment.sum_in(&sum, self.contribution.as_ref().expect("kept until complete"), vector);
        } else {
            segment.copy_in(&sum, vector);
        }
        self.record_stats(stats);
    }

    /// Sets the stats of the own shard to those of `others` plus those of the own contribution.
    fn record_stats(&mut self, others: SampleStats) {
        let mut stats = others;
        stats += self.contribution_stats;
        self.own_stats = stats;
        if self.plan.layout.first_owner() == Some(self.plan.rank) {
            self.reported_stats = stats;
        }
    }

    fn gather_arrival(&mut self, from: usize, label: SegmentLabel, payload: Buffer, out: &mut Vec<Action>) {
        if self.plan.layout.first_owner() == Some(label.owner) {
            self.reported_stats = label.stats;
        }
        if self.gather.is_relayed(&self.plan, label.owner) {
            self.relays.push(label, payload);
        } else {
            out.push(self.grant(from));
        }
    }

    /// The earliest segments that this member waits for: their half of the round, how many ranks they pass on their way here, and the
    /// senders by their ranks on the links. `None` if it waits for none.
    #[must_use]
    pub fn awaited(&self) -> Option<(Phase, usize, Vec<usize>)> {
        let in_phase = |phase| {
            move |(hop, senders): (usize, Vec<usize>)| {
                let links = senders.into_iter().map(|rank| self.plan.link(rank)).collect();
                (phase, hop, links)
            }
        };
        let reduce = self.reduce.awaited(&self.plan).map(in_phase(Phase::Reduce));
        reduce.or_else(|| self.gather.awaited(&self.plan).map(in_phase(Phase::Gather)))
    }

    /// Whether every shard has arrived and is final.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.gather.is_open() && self.gather.is_gathered() && self.reduce.is_started()
    }

    /// Whether the own shard was sent to all receivers, so that the vector is no longer read.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.gather.is_started()
    }

    /// The gathered vector, which all members update in the same way before they take it with [`Round::complete`].
    ///
    /// # Panics
    /// Unless [`Round::is_complete`] and [`Round::is_sent`], or if the vector was taken before.
    pub fn gathered(&mut self) -> &mut [f32] {
        assert!(self.is_complete() && self.is_sent(), "others still wait for the own shard as it was");
        match &mut self.result {
            ResultVector::Filling(vector) => vector,
            ResultVector::Unseen => &mut [],
            ResultVector::Complete(_) => unreachable!("a vector is not changed once it is handed out"),
        }
    }

    /// Whether a finished sum has arrived. All members contributed to it, so all have the result of the previous round.
    #[must_use]
    pub fn first_sum_seen(&self) -> bool {
        !matches!(self.result, ResultVector::Unseen)
    }

    /// Returns the finished vector and frees the contribution. `room` is called only for a vector without elements.
    ///
    /// # Panics
    /// Unless [`Round::is_complete`].
    pub fn complete(&mut self, room: impl FnOnce() -> Buffer) -> Arc<Buffer> {
        assert!(self.is_complete(), "not every shard is here");
        self.contribution = None;
        let vector = match std::mem::replace(&mut self.result, ResultVector::Unseen) {
            ResultVector::Unseen => Arc::new(room()),
            ResultVector::Filling(vector) => Arc::new(vector),
            ResultVector::Complete(vector) => vector,
        };
        self.result = ResultVector::Complete(Arc::clone(&vector));
        vector
    }

    /// The samples and loss of the whole round: the same bits at every member. Final once the round is complete.
    #[must_use]
    pub fn stats(&self) -> SampleStats {
        self.reported_stats
    }

    /// Whether nothing is left to send. The round can be dropped once it is also complete.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.relays.is_empty() && self.is_sent()
    }
}

impl ResultVector {
    fn filling(&mut self, room: impl FnOnce() -> Buffer) -> &mut Buffer {
        if let Self::Unseen = self {
            *self = Self::Filling(room());
        }
        match self {
            Self::Filling(vector) => vector,
            Self::Unseen | Self::Complete(_) => unreachable!("a complete round receives nothing"),
        }
    }

    fn seen(&self) -> &[f32] {
        match self {
            Self::Filling(vector) => vector,
            Self::Complete(vector) => vector,
            Self::Unseen => unreachable!("a shard that is gathered was summed up"),
        }
    }
}
