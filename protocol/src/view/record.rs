//! The record of a view: its members, where training resumes, and what can be read from it.

use crate::cursor::DataCursor;
use crate::id::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
use crate::limits::SMALL_VIEW_MEMBERS_MAX;
use crate::message::Contact;
use crate::wire::codec::{self, Decode, Encode};

use super::{Branch, Merge, Moves, Quarantine, Recovery, Resume, ViewHistory};

/// An agreed record of membership.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct View {
    /// The run that the view belongs to.
    pub run: RunId,
    /// The number of the view: one more than its first parent's, from 1.
    pub number: ViewNumber,
    /// Digests of the views that this one follows. Empty for the first view of a run; after a merge, the view of the other side
    /// comes second.
    pub parents: Vec<ViewDigest>,
    /// The members, sorted by peer id.
    pub members: Vec<Member>,
    /// By rank: how many samples a minute the member computes; 0 if that is not known. Batches are divided in proportion to it, see
    /// [`View::batch_weights`]. Empty while no speed is known.
    pub speeds: Vec<u32>,
    /// By rank: the line of the member. Empty while no line is known.
    pub lines: Vec<MemberLine>,
    /// The views and branches that led to this view.
    pub history: ViewHistory,
    /// Where training resumes.
    pub recovery: Recovery,
    /// The data cursor from which this view takes its batches, after the one in [`Resume::batch`].
    pub cursor: DataCursor,
    /// Chunks that are not yet where the placement among these members puts them.
    pub moves: Moves,
    /// Peers that the members have expelled, the newest last; at most [`EXPELLED_MAX`](crate::limits::EXPELLED_MAX), the oldest are
    /// forgotten.
    pub expelled: Vec<Expulsion>,
    /// Members that this view or an earlier one has excluded because of complaints, the newest last; at most
    /// [`QUARANTINES_MAX`](crate::limits::QUARANTINES_MAX), the oldest are forgotten.
    pub quarantined: Vec<Quarantine>,
}

/// A peer in one incarnation, as a view names it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Member {
    /// The peer's id.
    pub peer: PeerId,
    /// The peer's incarnation.
    pub incarnation: Incarnation,
    /// Addresses where others dial the peer, best first; opaque text in this crate.
    pub addresses: Vec<String>,
    /// The share of the parameters that the member owns relative to others, 0 to [`CAPACITY_MAX`](crate::limits::CAPACITY_MAX).
    pub capacity: u8,
}

/// The line of a member, as its own frames show it: what it sends in all, and how far the others are. Only long lines count, those with a
/// round trip of some milliseconds or more. All zero if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct MemberLine {
    /// How many thousand bytes a second the member has sent over its long lines together, at most.
    pub kilobytes_per_second: u32,
    /// Their mean round trip.
    pub round_trip_milliseconds: u32,
}

impl MemberLine {
    /// Whether the line was measured.
    #[must_use]
    pub fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

/// A peer that the members have removed from the run for good. The expulsion is bound to the peer's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Expulsion {
    /// The expelled peer.
    pub peer: PeerId,
    /// The member that asked for the expulsion.
    pub by: PeerId,
    /// The reason.
    pub cause: ExpulsionCause,
}

/// Why a peer is expelled from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ExpulsionCause {
    /// A user asked for it. The peer first hands over what it owns.
    Request,
    /// The peer repeatedly sent what no correct peer sends.
    Violations,
    /// The peer was quarantined [too often](crate::limits::QUARANTINE_TIMES_MAX).
    Faults,
}

impl View {
    /// The first view of a run, in which all members initialize the parameters.
    #[must_use]
    pub fn first(run: RunId, members: Vec<Member>) -> Self {
        Self {
            run,
            number: ViewNumber(1),
            parents: vec![],
            members,
            speeds: vec![],
            lines: vec![],
            history: ViewHistory::starting_with(Branch {
                view_number: ViewNumber(1),
                step: StepNumber(0),
                fork: None,
            }),
            recovery: Recovery::Initialize,
            cursor: DataCursor::default(),
            moves: Moves::default(),
            expelled: vec![],
            quarantined: vec![],
        }
    }

    /// The first view of a run that a founder starts alone, from its checkpoint of another run.
    #[must_use]
    pub fn first_from_checkpoint(run: RunId, founder: Member, step: StepNumber, cursor: DataCursor) -> Self {
        let resume = Resume { is_restored: true, ..Resume::at(step) };
        let history = ViewHistory::starting_with(Branch { view_number: ViewNumber(1), step, fork: None });
        Self { history, recovery: Recovery::Resume(resume), cursor, ..Self::first(run, vec![founder]) }
    }

    /// Whether the view has too many members for each to exchange control messages with every other.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.members.len() > SMALL_VIEW_MEMBERS_MAX
    }

    /// By rank: whether the member holds chunks in this view or may come to. It does if it has capacity, or if chunks have yet to
    /// move away from it.
    ///
    /// Two members that hold no chunks exchange control messages only.
    #[must_use]
    pub fn replica_holders(&self) -> Vec<bool> {
        let mut holders: Vec<bool> = self.members.iter().map(|member| member.capacity > 0).collect();
        self.moves.list.iter().flat_map(|moved| &moved.from).for_each(|rank| holders[rank.index()] = true);
        holders
    }

    /// By rank: the weights in proportion to which a batch is divided, with 0 for those that compute nothing. A member of unknown speed counts
    /// as one of average speed.
    ///
    /// # Panics
    /// If no member computes.
    #[must_use]
    pub fn batch_weights(&self, computes: impl Fn(Rank) -> bool) -> Vec<u32> {
        let mut weights = weights_of(&self.speeds, self.members.len());
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight *= u32::from(computes(Rank::from_index(index)));
        }
        assert!(weights.iter().any(|weight| *weight > 0), "a member computes");
        weights
    }

    /// The digest that names this view.
    #[must_use]
    pub fn digest(&self) -> ViewDigest {
        let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 view");
        hasher.update(&codec::encode_record(self));
        ViewDigest(*hasher.finalize().as_bytes())
    }

    /// The rank of `peer`; `None` if it is not a member.
    #[must_use]
    pub fn rank(&self, peer: &PeerId) -> Option<Rank> {
        self.members.binary_search_by(|member| member.peer.cmp(peer)).ok().map(Rank::from_index)
    }

    /// The member at `rank`.
    ///
    /// # Panics
    /// If the view has no such rank.
    #[must_use]
    pub fn member(&self, rank: Rank) -> &Member {
        &self.members[rank.index()]
    }

    /// The expulsion of `peer`; `None` if the peer may join.
    #[must_use]
    pub fn expulsion(&self, peer: &PeerId) -> Option<&Expulsion> {
        self.expelled.iter().rfind(|expelled| expelled.peer == *peer)
    }

    /// The first step that is trained in this view.
    #[must_use]
    pub fn first_step(&self) -> StepNumber {
        match &self.recovery {
            Recovery::Initialize => StepNumber(0),
            Recovery::Resume(resume) => resume.step,
        }
    }

    /// The state of another branch that the first step of this view merges; `None` if it merges none.
    #[must_use]
    pub fn merge(&self) -> Option<&Merge> {
        match &self.recovery {
            Recovery::Initialize => None,
            Recovery::Resume(resume) => resume.merge.as_deref(),
        }
    }

    /// Members that have no parameters before the first step.
    #[must_use]
    pub fn newcomers(&self) -> &[Rank] {
        match &self.recovery {
            Recovery::Initialize => &[],
            Recovery::Resume(resume) => &resume.newcomers,
        }
    }
}

impl Member {
    /// The member's id and addresses.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { peer: self.peer, addresses: self.addresses.clone() }
    }
}

/// By rank: the weights of `count` members with these speeds. A member of unknown speed counts as one of average speed.
#[must_use]
pub fn weights_of(speeds: &[u32], count: usize) -> Vec<u32> {
    let speed = |index: usize| speeds.get(index).copied().filter(|speed| *speed > 0);
    let known: Vec<u64> = (0..count).filter_map(speed).map(u64::from).collect();
    let average =
        known.iter().sum::<u64>().checked_div(known.len() as u64).map_or(1, |average| average as u32);
    (0..count).map(|index| speed(index).unwrap_or(average)).collect()
}
