//! The all-gather: every member gets the shards of all owners.
//!
//! # How it works
//! ```text
//! ring, shard of rank 0 of 4:   0 --> 1 --> 2 --> 3     each copies it into its vector and sends the same buffer on
//! direct:                       0 --> 1,  0 --> 2,  0 --> 3
//! ```
//!
//! # Cost
//! For n ranks and a vector of s bytes in equal shards, each member sends (n - 1) / n x s bytes, in n - 1 hops in a ring and in one hop in
//! the direct topology.
//!
//! # Reading
//! Patarasuk & Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009, section 4: the ring.

use crate::plan::{Plan, Topology};

/// The progress of one member in an all-gather.
#[derive(Debug)]
pub struct AllGather {
    /// The number of final segments of the own shard, which may be sent; they are the first ones.
    ready: usize,
    /// Whether all of them are final.
    is_open: bool,
    /// By destination: the number of segments of the own shard that were sent.
    started: Vec<usize>,
    /// The number of segments of the own shard that were not sent, for all destinations together.
    unstarted: usize,
    /// By owner: the number of segments of its shard that have arrived.
    received: Vec<usize>,
    /// The number of segments that have not arrived, of all owners together.
    missing: usize,
}

impl AllGather {
    /// The start of an all-gather under `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let rank_count = plan.rank_count();
        let own_count = plan.own().segments().len();
        Self {
            ready: 0,
            is_open: false,
            started: vec![0; rank_count],
            unstarted: own_count * plan.destination_count(),
            received: vec![0; rank_count],
            missing: plan.layout.segment_count() - own_count,
        }
    }

    /// Notes that the next segment of the own shard is final, so that it is sent.
    pub fn finish_segment(&mut self) {
        self.ready += 1;
    }

    /// Notes that the whole own shard is final.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// The number of final segments of the own shard; they are the first ones.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Whether the whole own shard is final.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The next segment of the own shard to send to `destination`, one of the plan's; `None` if none is final and unsent.
    #[must_use]
    pub fn next_start(&self, destination: usize) -> Option<usize> {
        let index = self.started[destination];
        (index < self.ready).then_some(index)
    }

    /// Whether a final segment has not been sent to all its destinations.
    #[must_use]
    pub fn has_start(&self, plan: &Plan) -> bool {
        let still_to_come = (plan.own().segments().len() - self.ready) * plan.destination_count();
        self.unstarted > still_to_come
    }

    /// Notes that the next segment was sent to `destination`.
    pub fn start(&mut self, destination: usize) {
        self.started[destination] += 1;
        self.unstarted -= 1;
    }

    /// Whether the whole own shard has been sent to all destinations.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.is_open && self.unstarted == 0
    }

    /// The earliest final segments that have not arrived: how many ranks they pass on their way here, and which ranks send them. `None` if
    /// all have arrived.
    #[must_use]
    pub fn awaited(&self, plan: &Plan) -> Option<(usize, Vec<usize>)> {
        let count = plan.rank_count();
        let is_missing = |owner: &usize| {
            *owner != plan.rank && self.received[*owner] < plan.layout.shard(*owner).segments().len()
        };
        let missing = || (0..count).filter(is_missing);
        match plan.topology {
            Topology::Ring => {
                let hop = missing().map(|owner| (plan.rank + count - owner) % count).min()?;
                Some((hop, vec![plan.previous()]))
            }
            Topology::Direct => {
                let senders: Vec<usize> = missing().collect();
                (!senders.is_empty()).then_some((0, senders))
            }
        }
    }

    /// Checks an arriving segment against the plan and counts it. Returns false, and changes nothing, if it is not expected.
    #[must_use]
    pub fn admit(&mut self, plan: &Plan, from: usize, owner: usize, index: usize) -> bool {
        let is_on_plan = owner != plan.rank
            && match plan.topology {
                Topology::Ring => from == plan.previous(),
                Topology::Direct => from == owner,
            };
        let is_next =
            is_on_plan && index == self.received[owner] && index < plan.layout.shard(owner).segments().len();
        if is_next {
            self.received[owner] += 1;
            self.missing -= 1;
        }
        is_next
    }

    /// Whether a segment of `owner` is sent on to the next rank.
    #[must_use]
    pub fn is_relayed(&self, plan: &Plan, owner: usize) -> bool {
        plan.topology == Topology::Ring && plan.next() != owner
    }

    /// The number of segments of `owner`'s shard that have arrived; they are the first ones, because segments arrive in order.
    #[must_use]
    pub fn received(&self, owner: usize) -> usize {
        self.received[owner]
    }

    /// Whether every other shard has arrived.
    #[must_use]
    pub fn is_gathered(&self) -> bool {
        self.missing == 0
    }
}
