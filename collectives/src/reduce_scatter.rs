//! The reduce-scatter: every owner gets the sum of all contributions to its shard.
//!
//! # How it works
//! ```text
//! ring, shard of rank 0 of 4:   1 --g1--> 2 --g1+g2--> 3 --g1+g2+g3--> 0   adds g0
//! direct:                       1 --g1--> 0,  2 --g2--> 0,  3 --g3--> 0    adds in the order 1, 2, 3, 0
//! ```
//! In a ring, a member adds its contribution into the arriving buffer and sends the buffer on. In the direct topology, the buffer of the
//! first contributor is the accumulator. Contributions that arrive before their turn wait, at most a window of them per link.
//!
//! # Cost
//! For n ranks and a vector of s bytes in equal shards, each member sends (n - 1) / n x s bytes, in n - 1 hops in a ring and in one hop in
//! the direct topology.
//!
//! # Invariants
//! - On each link, segments of a shard arrive in order; others are refused.
//! - The sum of a shard has the same order in both topologies, hence the same bits.
//!
//! # Reading
//! Patarasuk & Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009, section 4: the ring.

use std::collections::VecDeque;

use peergrad_protocol::Buffer;
use peergrad_protocol::message::SampleStats;

use crate::plan::{Plan, Topology};

/// The progress of one member in a reduce-scatter.
#[derive(Debug)]
pub struct ReduceScatter {
    /// By owner: the number of segments of its shard that were started here.
    started: Vec<usize>,
    /// The number of segments that begin here and were not started, of all owners together.
    unstarted: usize,
    /// By edge (source in the direct topology, owner in the ring): the number of segments received.
    received: Vec<usize>,
    /// The number of summed segments of the own shard; they are the first ones.
    reduced: usize,
    /// Direct topology, by source: contributions that wait for their turn.
    waiting: Vec<VecDeque<(Buffer, SampleStats)>>,
    /// Direct topology: the partial sum of the next own segment, and the number of contributions in it.
    accumulator: Option<(Buffer, SampleStats, usize)>,
}

/// What to do with a partial sum that has arrived.
#[derive(Debug)]
pub enum Arrival {
    /// Nothing yet: it waits for others, or became the accumulator.
    Waiting,
    /// It was added into the accumulator: return the credit of its link.
    Absorbed,
    /// Send the sum on to the next rank, and return the credit when it has been sent.
    Relay(Buffer, SampleStats),
    /// A segment of the own shard is summed, except for the own contribution.
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

    /// Whether the own shard is summed.
    #[must_use]
    pub fn is_reduced(&self, plan: &Plan) -> bool {
        self.reduced == plan.own().segments().len()
    }

    /// The number of summed segments of the own shard; they are the first ones.
    #[must_use]
    pub fn reduced(&self) -> usize {
        self.reduced
    }

    /// The next segment (owner, index) that begins here and goes to `destination`, one of the plan's; `None` if all were started.
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

    /// The earliest partial sums that have not arrived: how many ranks they pass on their way here, and which ranks send them. `None` if
    /// all have arrived.
    #[must_use]
    pub fn awaited(&self, plan: &Plan) -> Option<(usize, Vec<usize>)> {
        match plan.topology {
            Topology::Ring => {
                let count = plan.rank_count();
                let is_missing =
                    |owner: &usize| self.received[*owner] < plan.layout.shard(*owner).segments().len();
                let owners = (0..count).filter(|owner| *owner != plan.previous()).filter(is_missing);
                let hop = owners.map(|owner| (plan.rank + count - owner - 1) % count).min()?;
                Some((hop, vec![plan.previous()]))
            }
            Topology::Direct if self.is_reduced(plan) => None,
            Topology::Direct => {
                let position = self.accumulator.as_ref().map_or(0, |(_, _, count)| *count);
                let others = plan.contribution_count(plan.rank);
                // Without a fixed order, all contributions are combined at once.
                let end = if plan.combine.is_robust() { others } else { others.min(position + 1) };
                let sources = (position..end).map(|position| plan.contributor(plan.rank, position));
                let senders: Vec<usize> = sources.filter(|source| self.waiting[*source].is_empty()).collect();
                (!senders.is_empty()).then_some((0, senders))
            }
        }
    }

    /// Checks an arriving segment against the plan and counts it. Returns false, and changes nothing, if it is not expected.
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

    /// Takes a segment that [`ReduceScatter::admit`] has accepted.
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

    /// Direct topology: takes a waiting contribution if it is next in the order of sums. Returns its contributor's rank, and what to do.
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

    /// Direct topology: takes all contributions to the next own segment, in the order of sums; `None` unless all have arrived.
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

    /// The index of the own segment that is summed next; counts it as summed.
    pub fn finish_segment(&mut self) -> usize {
        self.reduced += 1;
        self.reduced - 1
    }
}

/// The owner of the shard whose segments begin here and go to `destination`.
fn owner_toward(plan: &Plan, destination: usize) -> usize {
    match plan.topology {
        // The chain of a shard begins behind its owner, so what begins here is the previous rank's.
        Topology::Ring => plan.previous(),
        Topology::Direct => destination,
    }
}
