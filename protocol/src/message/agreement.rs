//! Messages by which the members of a view agree on the next one: those of Paxos, and the chosen view.
//!
//! ```text
//! proposer                                          every other member of the view
//!   | -- Prepare ----------------------------------> |    freezes: at once, or before the named step
//!   | <--------------------------- Promise / Nack -- |    its progress, its chunks, and the members that it cannot reach
//!   | -- Propose ----------------------------------> |
//!   | <--------------------------------- Accepted -- |
//!   | -- Learn ------------------------------------> |    the next view, as its change from the present one
//! ```
//! [`agreement`](crate::agreement) has the rules.

use std::cmp::Ordering;

use super::{Invalid, SampleStats, bounded, in_range, is_step};
use crate::agreement::Ballot;
use crate::chunk_set::ChunkSet;
use crate::cursor::DataCursor;
use crate::id::{ContentDigest, Rank, StepNumber, ViewDigest};
use crate::limits::{ATTEMPTS_MAX, CAPACITY_MAX, CHECKPOINTS_MAX, MEMBERS_MAX, STEPS_MAX};
use crate::view::{Branch, Complaint, Member, MemberLine, View, ViewChange, are_bounded};
use crate::wire::codec::{Decode, Encode};

/// A message about the successor of a view.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum AgreementMessage {
    /// Proposer to every member: the first phase of an attempt to agree on the next view.
    Prepare(Prepare),
    /// The answer: the sender no longer accepts lower ballots, and reports its progress.
    Promise(Box<Promise>),
    /// The negative answer to `Prepare` and `Propose`: the ballot is too low, or the named step has begun.
    Nack(Nack),
    /// Proposer to every member: the second phase, with the proposed change.
    Propose(Propose),
    /// The answer to `Propose`: the sender has accepted the change.
    Accepted(Accepted),
    /// A member that knows the chosen change, to every member of the present view: the change.
    Learn(ViewChange),
    /// Member to a peer that joins with the view, or that is still in an older one: the whole view.
    Install(View),
    /// Member to every member: a fault of a member of this view, for which the next view may leave that member out.
    Complain {
        /// The view of the three.
        view: ViewDigest,
        /// The complaint.
        complaint: Complaint,
    },
    /// Proposer to every member: it proposes nothing under this ballot, nor under a lower one of its own. A member that has stopped before
    /// a step that it named goes on, unless it has promised another proposer since or has accepted a change.
    Withdraw {
        /// The view whose successor was to be chosen.
        view: ViewDigest,
        /// The ballot of the attempt.
        ballot: Ballot,
    },
    /// Member to the coordinator, every few seconds while the view has another speed or another line of the sender.
    Measured {
        /// The view of both.
        view: ViewDigest,
        /// How many samples a minute the sender computes; 0 if that is not known.
        samples_per_minute: u32,
        /// What the sender's line carries.
        line: MemberLine,
    },
}

/// The request of the first phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Prepare {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The ballot of the attempt.
    pub ballot: Ballot,
    /// The first step that a member no longer takes in that view after its promise; `None`: it stops at once.
    pub before: Option<StepNumber>,
}

/// The promise of a member, with its report.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Promise {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The ballot of the attempt.
    pub ballot: Ballot,
    /// The change that the sender has accepted in an earlier attempt, with its ballot; `None` if there is none.
    pub accepted: Option<(Ballot, ViewChange)>,
    /// The sender's report.
    pub report: MemberReport,
}

/// The progress of a member, and the state that it holds.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct MemberReport {
    /// Whether the member's process was restarted, so that it only votes in the name of the former one.
    pub is_vote_only: bool,
    /// The number of complete steps; `None` if the member has no parameters.
    pub complete: Option<StepNumber>,
    /// The chunks whose optimizer state after those steps it holds.
    pub states: ChunkSet,
    /// The chunks whose state before the newest complete step it still holds; `None` if that step is known to be committed.
    pub states_before: Option<ChunkSet>,
    /// Whether it had no parameters before the newest complete step.
    pub is_entering: bool,
    /// The samples and loss of the newest complete step; `None` if that step is known to be committed.
    pub stats: Option<SampleStats>,
    /// What it holds of the step in progress; `None` if it holds nothing of it.
    pub next: Option<PartialStep>,
    /// The ranks of members that it cannot reach.
    pub lost: Vec<Rank>,
    /// The faults of other members that it has noticed in this view.
    pub complaints: Vec<Complaint>,
    /// What it waits for; `None` if it waits for no member.
    pub awaited: Option<Awaited>,
    /// Whether it has neither computed nor received anything for long.
    pub is_still: bool,
    /// Whether it still has its part of the snapshot that the present view merges.
    pub has_merge_snapshot: bool,
    /// For a process that only votes: how it can rejoin, once it has loaded task and data; otherwise `None`.
    pub rejoin: Option<Box<RejoinCandidate>>,
}

/// The earliest thing that a member waits for, and the members that owe it.
///
/// A member owes something only once it has all earlier things itself. So of all members that wait, one that waits for the earliest thing,
/// or one that owes it, has a fault.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Awaited {
    /// When it is needed.
    pub at: AwaitedAt,
    /// The members that owe it.
    pub from: Vec<Rank>,
}

/// When a thing is needed, relative to others: in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct AwaitedAt {
    /// The step; where there are tables, the clock.
    pub step: StepNumber,
    /// What is needed in that step.
    pub stage: Stage,
    /// How many members it passes on its way here.
    pub hop: u32,
}

/// What members need of each other in a step. They are ordered by when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Stage {
    /// Chunks that move to the member, or that complete an interrupted step.
    Chunks,
    /// With backup workers, at the first owner: the progress of members.
    Progress,
    /// With backup workers: which contributions count.
    Contributors,
    /// Partial sums.
    Reduce,
    /// Sums of replicated chunks.
    Mirror,
    /// Final values.
    Gather,
    /// At an owner of table chunks: the clocks of workers.
    Clocks,
    /// Rows of tables.
    Rows,
    /// Between sums and final values, if gradients are clipped: the norms of shards.
    Norms,
    /// Of tables: that the journal of a worker is kept.
    Journal,
}

impl Stage {
    /// Its place in a step.
    fn place(self) -> u8 {
        match self {
            Self::Chunks => 0,
            Self::Progress => 1,
            Self::Contributors => 2,
            Self::Reduce => 3,
            Self::Mirror => 4,
            Self::Norms => 5,
            Self::Gather => 6,
            Self::Journal => 7,
            Self::Clocks => 8,
            Self::Rows => 9,
        }
    }
}

impl Ord for Stage {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for Stage {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A peer that was a member before its process stopped, and is ready to rejoin.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RejoinCandidate {
    /// Its entry in the next view.
    pub member: Member,
    /// Its checkpoints, newest first.
    pub saved: Vec<SavedCheckpoint>,
}

/// A checkpoint that a peer has on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SavedCheckpoint {
    /// The number of committed steps in it; with tables, the number of the cut.
    pub steps: StepNumber,
    /// The branch of the run that they belong to.
    pub branch: Branch,
    /// The data cursor after them.
    pub cursor: DataCursor,
    /// The digest of the parameters; with local parameters, of the peer's own. With tables, a name that all members give to the cut.
    pub digest: ContentDigest,
    /// The chunks whose optimizer state is in it; with tables, the chunks that are in it.
    pub states: ChunkSet,
}

/// The part that a member holds of a step that is not complete.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct PartialStep {
    /// The chunks whose new values it holds.
    pub values: ChunkSet,
    /// The chunks whose new optimizer state it holds.
    pub states: ChunkSet,
    /// The samples and loss of the step; `None` if the member does not know them.
    pub stats: Option<SampleStats>,
}

/// The rejection of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Nack {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The rejected ballot.
    pub ballot: Ballot,
    /// The higher ballot that the sender has promised; `None` if that is not the reason.
    pub promised: Option<Ballot>,
    /// The step in progress at the sender, for a proposal that named an earlier step.
    pub step: StepNumber,
}

/// The request of the second phase.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Propose {
    /// The ballot of the attempt.
    pub ballot: Ballot,
    /// The proposed change; it names the view that it follows.
    pub change: ViewChange,
}

/// The acceptance of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Accepted {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The ballot of the attempt.
    pub ballot: Ballot,
}

impl AgreementMessage {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let is_ballot = |ballot: &Ballot| ballot.attempt <= ATTEMPTS_MAX;
        match self {
            Self::Prepare(prepare) => {
                in_range(is_ballot(&prepare.ballot) && prepare.before.is_none_or(is_step))
            }
            Self::Promise(promise) => promise.validate(),
            Self::Nack(nack) => in_range(
                is_ballot(&nack.ballot) && nack.promised.as_ref().is_none_or(is_ballot) && is_step(nack.step),
            ),
            Self::Propose(propose) if !is_ballot(&propose.ballot) => Err(Invalid::OutOfRange),
            Self::Propose(Propose { change, .. }) | Self::Learn(change) => bounded(change.is_bounded()),
            Self::Accepted(accepted) => in_range(is_ballot(&accepted.ballot)),
            Self::Install(view) => Ok(view.validate()?),
            Self::Complain { .. } | Self::Measured { .. } => Ok(()),
            Self::Withdraw { ballot, .. } => in_range(is_ballot(ballot)),
        }
    }
}

impl Promise {
    fn validate(&self) -> Result<(), Invalid> {
        let ballots = std::iter::once(&self.ballot).chain(self.accepted.as_ref().map(|(ballot, _)| ballot));
        if !self.report.is_possible() || ballots.into_iter().any(|ballot| ballot.attempt > ATTEMPTS_MAX) {
            return Err(Invalid::OutOfRange);
        }
        let is_bounded = self.accepted.as_ref().is_none_or(|(_, change)| change.is_bounded());
        if is_bounded && self.report.is_bounded() { Ok(()) } else { Err(Invalid::TooLong) }
    }
}

impl MemberReport {
    /// Whether the sender holds a chunk's optimizer state after this number of steps.
    #[must_use]
    pub fn holds_state(&self, chunk: usize, steps: StepNumber) -> bool {
        let Some(complete) = self.complete else { return false };
        let states = match steps.0.checked_sub(complete.0) {
            Some(0) => Some(&self.states),
            Some(1) => self.next.as_ref().map(|next| &next.states),
            Some(_) => None,
            None if steps.next() == complete => self.states_before.as_ref(),
            None => None,
        };
        states.is_some_and(|states| states.contains(chunk))
    }

    /// The samples and loss of the step after `steps`; `None` if the sender does not know them.
    #[must_use]
    pub fn stats_of(&self, steps: StepNumber) -> Option<SampleStats> {
        let complete = self.complete?;
        if complete == steps {
            self.next.as_ref()?.stats
        } else {
            self.stats.filter(|_| complete == steps.next())
        }
    }

    fn is_bounded(&self) -> bool {
        let next = self.next.iter().flat_map(|next| [&next.values, &next.states]);
        let mut sets = next.chain(&self.states_before).chain([&self.states]);
        let is_bounded = |rejoin: &RejoinCandidate| {
            rejoin.saved.len() <= CHECKPOINTS_MAX
                && rejoin.saved.iter().all(|saved| saved.states.is_valid())
                && are_bounded(&rejoin.member.addresses)
        };
        sets.all(ChunkSet::is_valid)
            && self.lost.len() <= MEMBERS_MAX
            && self.complaints.len() <= MEMBERS_MAX
            && self.awaited.as_ref().is_none_or(|awaited| awaited.from.len() <= MEMBERS_MAX)
            && self.rejoin.as_deref().is_none_or(is_bounded)
    }

    fn is_possible(&self) -> bool {
        let next = self.next.as_ref().and_then(|next| next.stats);
        let is_saved = |saved: &SavedCheckpoint| saved.steps.0 <= STEPS_MAX && saved.cursor.is_valid();
        let is_again = |rejoin: &RejoinCandidate| {
            rejoin.member.capacity <= CAPACITY_MAX && rejoin.saved.iter().all(is_saved)
        };
        self.complete.is_none_or(|steps| steps.0 <= STEPS_MAX)
            && self.rejoin.as_deref().is_none_or(is_again)
            && self.awaited.as_ref().is_none_or(|awaited| is_step(awaited.at.step))
            && self.stats.iter().chain(&next).all(SampleStats::is_bounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_lists_the_state_held_of_three_steps() {
        let set = |chunk| [chunk].into_iter().collect::<ChunkSet>();
        let stats = |samples| Some(SampleStats { samples, loss: 0.0 });
        let next = Some(PartialStep { values: ChunkSet::default(), states: set(3), stats: stats(30) });
        let report = MemberReport {
            complete: Some(StepNumber(5)),
            states: set(2),
            states_before: Some(set(1)),
            stats: stats(20),
            next,
            ..MemberReport::default()
        };
        let held = |steps| (0..5).filter(|&chunk| report.holds_state(chunk, StepNumber(steps))).collect();
        let all: Vec<Vec<usize>> = [3, 4, 5, 6, 7].map(held).to_vec();
        assert_eq!(all, [vec![], vec![1], vec![2], vec![3], vec![]]);
        let tallies = [3, 4, 5, 6].map(|steps| report.stats_of(StepNumber(steps)).map(|t| t.samples));
        assert_eq!(tallies, [None, Some(20), Some(30), None]);
        assert!(!MemberReport::default().holds_state(0, StepNumber(0)));
    }
}
