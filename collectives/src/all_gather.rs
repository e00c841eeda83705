//! The all-gather: every member ends with every owner's shard.
//!
//! # How it works
//! ```text
//! ring, shard of rank 0 of 4:   0 --> 1 --> 2 --> 3     each copies it into its vector and passes the same buffer on
//! direct:                       0 --> 1,  0 --> 2,  0 --> 3
//! ```

use crate::plan::{Plan, Topology};

/// Where one member is in an all-gather.
#[derive(Debug)]
pub struct AllGather {
    /// Segments of the own shard that are final, and may be sent: the first ones.
    ready: usize,
    /// Whether all of them are.
    is_open: bool,
    /// By destination: segments of the own shard that were sent.
    started: Vec<usize>,
    /// Of all destinations together: segments of the own shard that were not sent yet.
    unstarted: usize,
    /// By owner: segments of its shard that have arrived.
    received: Vec<usize>,
    /// Of all owners together: segments that have not arrived yet.
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

    /// The next segment of the own shard is final: from now on it is sent.
    pub fn finish_segment(&mut self) {
        self.ready += 1;
    }

    /// All of the own shard is final.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// How many segments of the own shard are final: the first ones.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Whether all of the own shard is final.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The next segment of the own shard to be sent to `destination`, one of the plan's.
    #[must_use]
    pub fn next_start(&self, destination: usize) -> Option<usize> {
        let index = self.started[destination];
        (index < self.ready).then_some(index)
    }

    /// Whether anything that is final has not been sent yet.
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

    /// Whether the own shard has been sent wherever it begins.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.is_open && self.unstarted == 0
    }

    /// Checks an arriving segment against the plan and counts it. False: the plan does not foresee it, nothing changed.
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

    /// Whether a segment of `owner` goes on to the next rank.
    #[must_use]
    pub fn is_relayed(&self, plan: &Plan, owner: usize) -> bool {
        plan.topology == Topology::Ring && plan.next() != owner
    }

    /// Segments of `owner`'s shard that have arrived: in order, so these are the first ones.
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
