//! The replica map: which members of a view store which chunks of tables, and which keep the journals of workers.

use std::collections::BTreeSet;

use peergrad_protocol::Rank;
use peergrad_protocol::table::WorkerId;

/// The holders of each chunk, and the workers, in one view.
#[derive(Clone, Debug, Default)]
pub struct ReplicaMap {
    /// The members, by rank.
    pub members: Vec<WorkerId>,
    /// The holders of each chunk, the owner first.
    pub holders: Vec<Vec<Rank>>,
    /// The members that are new in this view.
    pub newcomers: BTreeSet<Rank>,
    /// The members that have the present state of each chunk. If the owner is not one of them, the first of them sends it the chunk.
    pub up_to_date: Vec<Vec<Rank>>,
    /// The number of the view.
    pub view_number: u64,
}

impl ReplicaMap {
    /// The owner of this chunk.
    #[must_use]
    pub fn owner(&self, chunk: usize) -> Rank {
        self.holders[chunk][0]
    }

    /// The holders of this chunk except its owner.
    pub(super) fn other_holders(&self, chunk: usize) -> &[Rank] {
        &self.holders[chunk][1..]
    }

    /// The member that sends this chunk to its owner; `None` if the owner has its present state already.
    pub(super) fn donor(&self, chunk: usize) -> Option<Rank> {
        let up_to_date = &self.up_to_date[chunk];
        up_to_date.first().copied().filter(|_| !up_to_date.contains(&self.owner(chunk)))
    }

    pub(super) fn worker_id(&self, rank: Rank) -> WorkerId {
        self.members[rank.index()]
    }

    /// The rank of a worker's member; `None` if it is not in the view.
    pub(super) fn rank_of(&self, worker: &WorkerId) -> Option<Rank> {
        self.members.iter().position(|member| member == worker).map(Rank::from_index)
    }

    /// The members that keep the journal of a worker: as many as a chunk has replicas besides its owner, chosen by hash.
    pub(super) fn journal_keepers(&self, worker: WorkerId) -> Vec<Rank> {
        let ticket = |rank: &Rank| {
            let keeper = self.worker_id(*rank).peer;
            *blake3::hash(&[worker.peer.0, keeper.0].concat()).as_bytes()
        };
        let mut ranks: Vec<Rank> = self.ranks().filter(|rank| self.worker_id(*rank) != worker).collect();
        ranks.sort_by_cached_key(ticket);
        ranks.truncate(self.holders.first().map_or(0, |holders| holders.len() - 1));
        ranks
    }

    /// The ranks of all members.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.members.len()).map(Rank::from_index)
    }
}
