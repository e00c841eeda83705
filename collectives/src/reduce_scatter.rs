//! The reduce-scatter: each owner ends with the sum of everyone's contribution to its shard.
//!
//! # How it works
//! ```text
//! ring, shard of rank 0 of 4:   1 --g1--> 2 --g1+g2--> 3 --g1+g2+g3--> 0   adds g0
//! direct:                       1 --g1--> 0,  2 --g2--> 0,  3 --g3--> 0    adds in the order 1, 2, 3, 0
//! ```
//! In the ring the buffer that arrives is added into and goes out again. In the direct topology the first contributor's
//! buffer is the accumulator; one that arrives out of turn waits, within its link's window.
//!
//! # Invariants
//! - Segments of a shard arrive in order on each link; anything else is refused.
//! - The sum of a shard has one order under both topologies, hence one value.

use std::collections::VecDeque;

use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use crate::plan::{Plan, Topology};

/// Where one member is in a reduce-scatter.
#[derive(Debug)]
pub struct ReduceScatter {
    /// By owner: segments of its shard that were started here.
    started: Vec<usize>,
    /// Of all owners together: segments that begin here and were not started yet.
    unstarted: usize,
    /// By edge (source in the direct topology, owner in the ring): segments received.
    received: Vec<usize>,
    /// Segments of the own shard that are summed up: the first ones.
    reduced: usize,
    /// Direct topology, by source: contributions that wait for their turn.
    waiting: Vec<VecDeque<(Buffer, SampleStats)>>,
    /// Direct topology: the sum so far of the next own segment, and how many contributions are in it.
    accumulator: Option<(Buffer, SampleStats, usize)>,
}

/// What to do with a partial sum that arrived.
#[derive(Debug)]
pub enum Arrival {
    /// Nothing yet: it waits for others, or became part of an accumulator.
    Waiting,
    /// It was added into an accumulator: its link gets its credit back.
    Absorbed,
    /// Pass the sum on to the next rank; the credit goes back when it leaves.
    Relay(Buffer, SampleStats),
    /// A segment of the own shard is summed up but for the own contribution.
    Last(Buffer, SampleStats),
}

impl ReduceScatter {
    /// The start of a reduce-scatter under `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let rank_count = plan.rank_count();
        let unstarted = match plan.topology {
            Topology::Ring if rank_count == 1 => 0,
            Topology::Ring => plan.layout.shard(plan.previous()).segments().len(),
            Topology::Direct if plan.contributes(plan.rank) => {
                plan.layout.segment_count() - plan.own().segments().len()
            }
            Topology::Direct => 0,
        };
        // Nothing comes to those who own nothing.
        let is_waiting = plan.topology == Topology::Direct && !plan.own().is_empty();
        let waiting_count = if is_waiting { rank_count } else { 0 };
        Self {
            started: vec![0; rank_count],
            unstarted,
            received: vec![0; rank_count],
            reduced: 0,
            waiting: (0..waiting_count).map(|_| VecDeque::new()).collect(),
            accumulator: None,
        }
    }

    /// Whether the own shard is summed up.
    #[must_use]
    pub fn is_reduced(&self, plan: &Plan) -> bool {
        self.reduced == plan.own().segments().len()
    }

    /// Segments of the own shard that are summed up: the first ones.
    #[must_use]
    pub fn reduced(&self) -> usize {
        self.reduced
    }

    /// The next segment (owner, index) that begins here and goes to `destination`, one of the plan's.
    #[must_use]
    pub fn next_start(&self, plan: &Plan, destination: usize) -> Option<(usize, usize)> {
        let owner = owner_toward(plan, destination);
        let index = self.started[owner];
        let is_left = index < plan.layout.shard(owner).segments().len() && plan.contributes(plan.rank);
        is_left.then_some((owner, index))
    }

    /// Notes that the next segment of `owner` was started.
    pub fn start(&mut self, owner: usize) {
        self.started[owner] += 1;
        self.unstarted -= 1;
    }

    /// Whether every segment that begins here has been started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.unstarted == 0
    }

    /// Checks an arriving segment against the plan and counts it. False: the plan does not foresee it, nothing changed.
    #[must_use]
    pub fn admit(&mut self, plan: &Plan, from: usize, owner: usize, index: usize) -> bool {
        let (edge, is_on_plan) = match plan.topology {
            Topology::Ring => (owner, from == plan.previous() && owner != from),
            Topology::Direct => (from, owner == plan.rank && from != plan.rank && plan.contributes(from)),
        };
        let is_next =
            is_on_plan && index == self.received[edge] && index < plan.layout.shard(owner).segments().len();
        if is_next {
            self.received[edge] += 1;
        }
        is_next
    }

    /// Takes in a segment that was expected.
    pub fn arrive(
        &mut self,
        plan: &Plan,
        from: usize,
        owner: usize,
        buffer: Buffer,
        stats: SampleStats,
    ) -> Arrival {
        match plan.topology {
            Topology::Ring if owner == plan.rank => Arrival::Last(buffer, stats),
            Topology::Ring => Arrival::Relay(buffer, stats),
            Topology::Direct => {
                self.waiting[from].push_back((buffer, stats));
                Arrival::Waiting
            }
        }
    }

    /// Direct topology: takes one waiting contribution whose turn it is, if there is one. With the arrival comes the rank
    /// whose contribution it was.
    pub fn next_in_order(&mut self, plan: &Plan) -> Option<(usize, Arrival)> {
        let position = self.accumulator.as_ref().map_or(0, |(_, _, count)| *count);
        let source = plan.contributor(plan.rank, position);
        let (buffer, stats) = self.waiting[source].pop_front()?;
        let is_last = position + 1 == plan.contribution_count(plan.rank);
        let Some((mut sum, mut total, count)) = self.accumulator.take() else {
            if is_last {
                return Some((source, Arrival::Last(buffer, stats)));
            }
            self.accumulator = Some((buffer, stats, 1));
            return Some((source, Arrival::Waiting));
        };
        crate::plan::add(&mut sum, &buffer);
        total += stats;
        if is_last {
            return Some((source, Arrival::Last(sum, total)));
        }
        self.accumulator = Some((sum, total, count + 1));
        Some((source, Arrival::Absorbed))
    }

    /// Direct topology: takes everyone's contribution to the next own segment, in the order of sums, if all are here.
    pub fn next_row(&mut self, plan: &Plan) -> Option<Vec<(usize, Buffer, SampleStats)>> {
        let others =
            || (0..plan.contribution_count(plan.rank)).map(|position| plan.contributor(plan.rank, position));
        if self.waiting.is_empty() || others().any(|source| self.waiting[source].is_empty()) {
            return None;
        }
        let take = |source: usize| {
            let (buffer, stats) = self.waiting[source].pop_front().expect("just seen");
            (source, buffer, stats)
        };
        Some(others().map(take).collect())
    }

    /// The index of the own segment whose sum is due next; counts it as done.
    pub fn finish_segment(&mut self) -> usize {
        self.reduced += 1;
        self.reduced - 1
    }
}

/// Whose shard it is that begins here and goes to `destination`.
fn owner_toward(plan: &Plan, destination: usize) -> usize {
    match plan.topology {
        // The chain of a shard begins behind its owner, so what begins here is the previous rank's.
        Topology::Ring => plan.previous(),
        Topology::Direct => destination,
    }
}
