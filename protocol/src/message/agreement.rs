//! How the members of a view agree on the next one: the messages of Paxos, and the view that comes of them.
//!
//! ```text
//! proposer                                          every other member of the view
//!   | -- Prepare ----------------------------------> |    freezes: at once, or before the step that is named
//!   | <------------------------- Promise / Nack -- |    where it is, what it holds, whom it has lost
//!   | -- Propose ----------------------------------> |
//!   | <--------------------------------- Accepted -- |
//!   | -- Learn ----------------------------------> |    the next view, as what changes
//! ```
//! [`agreement`](crate::agreement) has the rules.

use super::{Invalid, SampleStats, bounded, in_range, is_step};
use crate::agreement::Ballot;
use crate::chunk_set::ChunkSet;
use crate::cursor::DataCursor;
use crate::id::{ContentDigest, Rank, StepNumber, ViewDigest};
use crate::limits::{ATTEMPTS_MAX, CAPACITY_MAX, CHECKPOINTS_MAX, MEMBERS_MAX, STEPS_MAX};
use crate::view::{Branch, Member, View, ViewChange, are_bounded};
use crate::wire::codec::{Decode, Encode};

/// A message about which view follows another one.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum AgreementMessage {
    /// Proposer to every member: let us agree on the next view.
    Prepare(Prepare),
    /// The answer: the sender hears no lower ballot any more, and says where it is.
    Promise(Box<Promise>),
    /// The other answer to `Prepare` and `Propose`: not under that ballot, or not before that step.
    Nack(Nack),
    /// Proposer to every member: let the next view be this.
    Propose(Propose),
    /// The answer.
    Accepted(Accepted),
    /// A member that knows which change is chosen, to every member of the view before: this is what changes.
    Learn(ViewChange),
    /// Member to a peer that has just come into the view, or to one that is in an older view: this is the view.
    Install(View),
}

/// A proposer's first question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Prepare {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The attempt.
    pub ballot: Ballot,
    /// The first step that whoever promises does not take in that view any more; `None`: it stops at once.
    pub before: Option<StepNumber>,
}

/// A promise.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Promise {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The attempt.
    pub ballot: Ballot,
    /// What the sender has accepted before, and under which ballot.
    pub accepted: Option<(Ballot, ViewChange)>,
    /// Where the sender is.
    pub report: MemberReport,
}

/// Where a member is, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct MemberReport {
    /// The member's process is another one by now, which only votes for it.
    pub is_vote_only: bool,
    /// Steps that are complete; `None`: it has no parameters.
    pub complete: Option<StepNumber>,
    /// Chunks whose optimizer state after those steps it holds.
    pub states: ChunkSet,
    /// Chunks whose state after one step less it still holds, as long as the newest step is not known to be committed.
    pub states_before: Option<ChunkSet>,
    /// It had no parameters before the newest of those steps.
    pub is_entering: bool,
    /// What the sums of the newest complete step are worth, as long as it is not known to be committed.
    pub stats: Option<SampleStats>,
    /// What it holds of the step after.
    pub next: Option<PartialStep>,
    /// Members that it cannot reach, by rank.
    pub lost: Vec<Rank>,
    /// It still has its part of what the present view merges.
    pub has_merge_snapshot: bool,
    /// As what a process that only votes would come in again, once it has task and data.
    pub rejoin: Option<Box<RejoinCandidate>>,
}

/// A peer that was a member before its process stopped, and is ready to be one again.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RejoinCandidate {
    /// What it would be in the next view.
    pub member: Member,
    /// What it has saved, newest first.
    pub saved: Vec<SavedCheckpoint>,
}

/// A checkpoint that a peer has on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SavedCheckpoint {
    /// Committed steps behind it.
    pub steps: StepNumber,
    /// The branch of the run that they belong to.
    pub branch: Branch,
    /// The bookmark after them.
    pub cursor: DataCursor,
    /// Digest of the parameters: where members drift, of the peer's own.
    pub digest: ContentDigest,
    /// Chunks whose optimizer state is in it.
    pub states: ChunkSet,
}

/// What a member holds of a step that is not complete.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct PartialStep {
    /// Chunks whose new values it holds.
    pub values: ChunkSet,
    /// Chunks whose new optimizer state it holds.
    pub states: ChunkSet,
    /// What the step's sums are worth, if it knows.
    pub stats: Option<SampleStats>,
}

/// A refusal of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Nack {
    /// The view whose successor is to be chosen.
    pub view: ViewDigest,
    /// The ballot that is refused.
    pub ballot: Ballot,
    /// The higher ballot that was promised, if that is the reason.
    pub promised: Option<Ballot>,
    /// The step that the sender is in, if the one named is too early.
    pub step: StepNumber,
}

/// A proposer's second question.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Propose {
    /// The attempt.
    pub ballot: Ballot,
    /// What is to be chosen; it names the view that it follows.
    pub change: ViewChange,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Accepted {
    /// The view whose successor is chosen.
    pub view: ViewDigest,
    /// The attempt.
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
    /// Whether the sender holds a chunk's optimizer state after so many steps.
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

    /// What the sums of the step after `steps` are worth, if the sender knows.
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
            && self.stats.iter().chain(&next).all(SampleStats::is_bounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_is_held_of_three_steps() {
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
