//! Digest audit: whether all members have the same parameters.
//!
//! All members compute with the same parameters, bit for bit. A faulty memory or processor, or a task that draws or computes differently on
//! one machine, would break that without a word: losses still fall, and each member ends with a model of its own.
//!
//! # How it works
//! Each member sends the first members the digest of its parameters after the first step of a view, after each `digest_every` steps, and
//! before the closing barrier. These compare it with their own. If any differ, all report again after each of the next steps, then with a
//! digest of each owner's shard.
//! - A member may have other values of a shard than its owner and than the member that sent them: the owner itself, or in a ring the
//!   previous member. Then one of the two has changed them. The receiver complains about the sender, and the next view is without one of
//!   them. Where members compute the values from sums, this holds only for a shard that they had alike after the step before.
//! - Other differences come from earlier steps. Most are overwritten by the next step. What differs twice in a row stays. If more than half
//!   of the members of the view have the same digest, those with another one are at fault: the next view is without them, and they come
//!   back as newcomers, with the parameters of the others.
//! - If no digest is that of more than half, nobody can say which parameters are right, and the run fails. So it does if two members
//!   differ that are alone.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use peergrad_collectives::plan::Topology;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::SMALL_VIEW_MEMBERS_MAX;
use peergrad_protocol::message::{ParametersDigest, ShardDigest, TrainingMessage};
use peergrad_protocol::view::MemberFault;
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, StepNumber};

use super::state::{StepKind, StepState};
use crate::io::{Failure, Output, Reject};
use crate::state::shard_map::{ShardMap, StepShards};

/// The digests that one member of a view has received, with its own.
#[derive(Default)]
pub(super) struct DigestAudit {
    /// By the number of steps: the newest ones in this view.
    rounds: BTreeMap<StepNumber, Round>,
    /// The newest steps after which digests differed, in any view; `None` if they never did.
    differed: Option<StepNumber>,
    /// Why the run cannot be continued, once nobody could say whose parameters are right. No later view mends that.
    failure: Option<Failure>,
}

/// The digests after the same number of steps.
#[derive(Default)]
struct Round {
    /// By the member's rank.
    by_rank: BTreeMap<Rank, ContentDigest>,
    /// How many members have each digest.
    counts: BTreeMap<ContentDigest, usize>,
    /// By the member's rank: the digests of the owners' shards as it has them, if it has reported them.
    shards: BTreeMap<Rank, Vec<ShardDigest>>,
    /// How the values of the owners came to the others; `None` if there are no owners, or this member has not said what it has.
    way: Option<ValueWay>,
}

/// How the values of the owners come to the other members in a step.
#[derive(Clone, Copy, Debug)]
struct ValueWay {
    /// Whether members get sums, with which they change the values that they had before.
    is_whole: bool,
    /// Over which edges they travel.
    topology: Topology,
}

/// What digests that differ show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// These members have other parameters than this one and most others.
    Differing(Vec<Rank>),
    /// Most members have other parameters than this one, after so many steps.
    Alone(StepNumber),
    /// After so many steps no parameters are those of more than half of the members. These members have others than this one.
    Undecided(StepNumber, Vec<Rank>),
}

impl DigestAudit {
    /// The parameters of the member at `rank` after `steps` steps, and the shards in them, have these digests.
    pub(super) fn note(
        &mut self,
        rank: Rank,
        steps: StepNumber,
        digest: ContentDigest,
        shards: Vec<ShardDigest>,
    ) {
        let round = self.rounds.entry(steps).or_default();
        // What a member says first counts.
        if let Entry::Vacant(place) = round.by_rank.entry(rank) {
            place.insert(digest);
            *round.counts.entry(digest).or_default() += 1;
            if !shards.is_empty() {
                round.shards.insert(rank, shards);
            }
        }
        if round.counts.len() > 1 {
            self.differed = self.differed.max(Some(steps));
        }
        if self.rounds.len() > ROUNDS_KEPT {
            self.rounds.pop_first();
        }
    }

    /// Whether the member at `rank` has reported a digest in this view.
    pub(super) fn has_heard(&self, rank: Rank) -> bool {
        self.rounds.values().any(|round| round.by_rank.contains_key(&rank))
    }

    /// Another view begins.
    pub(super) fn leave_view(&mut self) {
        self.rounds.clear();
    }

    /// Whether digests differ after a step that was so many steps ago at most, so that members report again.
    pub(super) fn is_in_doubt(&self, steps: StepNumber) -> bool {
        self.differed.is_some_and(|differed| steps.0 <= differed.0 + DOUBT_STEPS)
    }

    /// The members from which the one at `rank` got other values than they have themselves, of `member_count` members.
    fn altered_by(&self, rank: Rank, member_count: usize) -> BTreeSet<Rank> {
        self.rounds.keys().flat_map(|steps| self.altered(*steps, rank, member_count)).collect()
    }

    /// The same for the step before `steps`.
    fn altered(&self, steps: StepNumber, rank: Rank, member_count: usize) -> BTreeSet<Rank> {
        let round = &self.rounds[&steps];
        let Some(ValueWay { is_whole, topology }) = round.way else { return BTreeSet::new() };
        let before = steps.0.checked_sub(1).and_then(|before| self.rounds.get(&StepNumber(before)));
        let is_new = |owner| !is_whole || before.is_some_and(|before| before.has_same_shard(rank, owner));
        let senders = round.shards.keys().copied().filter(|owner| *owner != rank).filter_map(|owner| {
            let sender = match topology {
                Topology::Direct => owner,
                Topology::Ring => Rank::from_index((rank.index() + member_count - 1) % member_count),
            };
            let is_here = round.differs_in(rank, owner) && round.has_same_shard(sender, owner);
            (is_here && is_new(owner)).then_some(sender)
        });
        senders.collect()
    }

    /// What the newest digests show to the member at `rank`, of `member_count` members.
    pub(super) fn newest(&self, rank: Rank, member_count: usize) -> Option<Finding> {
        self.findings(rank, member_count).next()?
    }

    /// The same, if the digests before have shown it as well, and it does not come from values that were sent in that step.
    pub(super) fn confirmed(&self, rank: Rank, member_count: usize) -> Option<Finding> {
        let mut findings = self.decided(rank, member_count).map(|(steps, round)| {
            let is_lasting = |rank: &Rank| self.is_lasting(steps, *rank, member_count);
            match round.finding(steps, rank, member_count)? {
                Finding::Differing(mut ranks) => {
                    ranks.retain(is_lasting);
                    (!ranks.is_empty()).then_some(Finding::Differing(ranks))
                }
                Finding::Undecided(_, ranks) if !ranks.iter().chain([&rank]).all(is_lasting) => None,
                finding => Some(finding),
            }
        });
        match (findings.next()??, findings.next()??) {
            (Finding::Differing(mut ranks), Finding::Differing(before)) => {
                ranks.retain(|rank| before.contains(rank));
                (!ranks.is_empty()).then_some(Finding::Differing(ranks))
            }
            (Finding::Undecided(steps, ranks), Finding::Undecided(..)) => {
                Some(Finding::Undecided(steps, ranks))
            }
            (Finding::Alone(steps), Finding::Alone(_)) => Some(Finding::Alone(steps)),
            _ => None,
        }
    }

    /// Whether other parameters of the member at `rank` come from an earlier step than the one before `steps`. In a small view all members
    /// report their shards, which show that.
    fn is_lasting(&self, steps: StepNumber, rank: Rank, member_count: usize) -> bool {
        let round = &self.rounds[&steps];
        let has_shards = round.shards.len() == member_count;
        match member_count {
            _ if round.way.is_none() => true,
            // Nobody can say which of the two is at fault.
            0..=2 => true,
            3..=SMALL_VIEW_MEMBERS_MAX => has_shards && self.altered(steps, rank, member_count).is_empty(),
            _ => true,
        }
    }

    /// For each step after which enough members have reported, the newest first: what it shows, if digests differ.
    fn findings(&self, rank: Rank, member_count: usize) -> impl Iterator<Item = Option<Finding>> {
        self.decided(rank, member_count).map(move |(steps, round)| round.finding(steps, rank, member_count))
    }

    /// The digests after each step after which enough members have reported, the newest first.
    fn decided(&self, rank: Rank, member_count: usize) -> impl Iterator<Item = (StepNumber, &Round)> {
        let decided = self.rounds.iter().rev().filter(move |(_, round)| round.is_decided(rank, member_count));
        decided.map(|(steps, round)| (*steps, round))
    }
}

impl Round {
    /// Whether the member at `rank` has the shard of `owner` as its owner has it. No if one of the two has not said so.
    fn has_same_shard(&self, rank: Rank, owner: Rank) -> bool {
        self.two_shards(rank, owner).is_some_and(|(one, other)| one == other)
    }

    /// Whether the member at `rank` has other values of the shard than its owner. No if one of the two has not said so.
    fn differs_in(&self, rank: Rank, owner: Rank) -> bool {
        self.two_shards(rank, owner).is_some_and(|(one, other)| one != other)
    }

    /// The shard of `owner` at the member at `rank`, and at the owner.
    fn two_shards(&self, rank: Rank, owner: Rank) -> Option<(ShardDigest, ShardDigest)> {
        let shard = |rank| self.shards.get(&rank)?.get(owner.index()).copied();
        Some((shard(rank)?, shard(owner)?))
    }

    /// Whether the member at `rank` has reported, and so have all others, or digests differ and more than half of the members have the same.
    fn is_decided(&self, rank: Rank, member_count: usize) -> bool {
        let has_most = || self.counts.values().any(|count| count * 2 > member_count);
        let is_clear = self.by_rank.len() == member_count || (self.counts.len() > 1 && has_most());
        self.by_rank.contains_key(&rank) && is_clear
    }

    /// What the digests show if they differ. They are [decided](Self::is_decided).
    fn finding(&self, steps: StepNumber, rank: Rank, member_count: usize) -> Option<Finding> {
        let own = self.by_rank.get(&rank).filter(|_| self.counts.len() > 1)?;
        let differing = || {
            let others = self.by_rank.iter().filter(|(_, digest)| *digest != own);
            others.map(|(rank, _)| *rank).collect()
        };
        Some(match self.counts.iter().find(|(_, count)| **count * 2 > member_count) {
            Some((most, _)) if most == own => Finding::Differing(differing()),
            Some(_) => Finding::Alone(steps),
            None => Finding::Undecided(steps, differing()),
        })
    }
}

impl StepState {
    /// Tells the first members the digest of this member's parameters, which are complete after `steps` steps. Returns the digest.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn report_digest(&mut self, steps: StepNumber, out: &mut Vec<Output>) -> ContentDigest {
        let digest = ContentDigest::of(self.complete().bytes());
        // What was completed in the view before came from other owners.
        let has_owners =
            self.kind != StepKind::LocalParameters && last_step(steps) >= self.base.view().first_step();
        let shards = if has_owners && self.is_in_doubt(steps) { self.shard_digests(steps) } else { vec![] };
        self.audit.note(self.base.rank, steps, digest, shards.clone());
        if self.kind != StepKind::LocalParameters
            && let Some(round) = self.audit.rounds.get_mut(&steps)
        {
            let StepShards { is_fully_replicated: is_whole, layout, .. } =
                &*self.base.shards(last_step(steps));
            let ShardMap { view, ring, .. } = &*self.base.shard_map;
            let topology = self.base.loaded.config.topology(layout, *ring, &view.lines);
            round.way = Some(ValueWay { is_whole: *is_whole, topology });
        }
        self.note_failure();
        let base = &self.base;
        let message = ParametersDigest { steps, digest, shards };
        let message = TrainingMessage::ParametersDigest(message).in_view(base.digest());
        let auditors = base.view().members.iter().take(AUDITORS_MAX).map(|member| member.peer);
        for to in auditors.filter(|peer| *peer != base.me.peer) {
            out.push(Output::Send { to, frame: Frame::encode(&message, None) });
        }
        digest
    }

    /// Whether members report after each step, since digests have differed. Doubts are settled among the members that learn of them.
    pub(super) fn is_in_doubt(&self, steps: StepNumber) -> bool {
        !self.base.view().is_large() && self.audit.is_in_doubt(steps)
    }

    /// For each member, by rank: the digest of its shard in this member's parameters.
    fn shard_digests(&self, steps: StepNumber) -> Vec<ShardDigest> {
        let (bytes, chunks) = (self.complete().bytes(), self.base.shard_map.sharding.chunks);
        let bytes_of = |chunk: &usize| {
            let elements = chunks.range(*chunk);
            &bytes[elements.start * BYTES_PER_ELEMENT..elements.end * BYTES_PER_ELEMENT]
        };
        let owned = &self.base.shards(last_step(steps)).owned;
        owned.iter().map(|chunks| ShardDigest::of(chunks.iter().map(bytes_of))).collect()
    }

    fn complete(&self) -> &Buffer {
        self.commit.complete.as_ref().expect("a complete step has parameters")
    }

    /// A member reports the digest of its parameters.
    ///
    /// # Errors
    /// The sender is no member of the view, or names more shards than there are.
    pub(super) fn receive_digest(
        &mut self,
        from: PeerId,
        parameters: ParametersDigest,
    ) -> Result<(), Reject> {
        let ParametersDigest { steps, digest, shards } = parameters;
        let rank = self.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if !shards.is_empty() && shards.len() != self.base.view().members.len() {
            return Err(Reject::OutOfPlace);
        }
        if steps.0 <= self.step.0 + STEPS_AHEAD_MAX {
            self.audit.note(rank, steps, digest, shards);
            self.note_failure();
        }
        Ok(())
    }

    fn note_failure(&mut self) {
        if let (None, Some(Finding::Undecided(steps, ranks))) = (&self.audit.failure, self.confirmed()) {
            self.audit.failure = Some(Failure::ParametersDiffer { steps, peers: self.peers(&ranks) });
        }
    }

    fn confirmed(&self) -> Option<Finding> {
        self.audit.confirmed(self.base.rank, self.base.view().members.len())
    }

    fn peers(&self, ranks: &[Rank]) -> Vec<PeerId> {
        ranks.iter().map(|rank| self.base.view().member(*rank).peer).collect()
    }

    /// The members whose parameters are not those of this one and most others, and those that sent this one other values than they have.
    pub(crate) fn at_fault(&self) -> Vec<(PeerId, MemberFault)> {
        let view = self.base.view();
        let differing = match self.confirmed() {
            Some(Finding::Differing(ranks)) => ranks,
            _ => vec![],
        };
        // If two members are alone, nobody can say which of them is at fault.
        let altered = match view.members.len() {
            0..=2 => BTreeSet::new(),
            member_count => self.audit.altered_by(self.base.rank, member_count),
        };
        let differing = differing.into_iter().map(|rank| (rank, MemberFault::Parameters));
        let faults = altered.into_iter().map(|rank| (rank, MemberFault::Values)).chain(differing);
        faults.map(|(rank, fault)| (view.member(rank).peer, fault)).collect()
    }

    /// Why the run cannot be continued: nobody can say which parameters are right.
    pub(in crate::training) fn undecided(&self) -> Option<Failure> {
        self.audit.failure.clone()
    }

    /// Why the run has failed at this member if it ends now: its parameters are not those of most members, or no parameters are.
    pub(in crate::training) fn differs_at_end(&self) -> Option<Failure> {
        let newest = || match self.audit.newest(self.base.rank, self.base.view().members.len())? {
            Finding::Alone(steps) => Some(Failure::ParametersDiffer { steps, peers: vec![] }),
            Finding::Undecided(steps, ranks) => {
                Some(Failure::ParametersDiffer { steps, peers: self.peers(&ranks) })
            }
            Finding::Differing(_) => None,
        };
        self.undecided().or_else(newest)
    }
}

/// The step that is complete once `steps` steps are.
fn last_step(steps: StepNumber) -> StepNumber {
    StepNumber(steps.0.saturating_sub(1))
}

/// Bytes of an element of the parameter vector.
const BYTES_PER_ELEMENT: usize = size_of::<f32>();
/// To how many members, those of the lowest ranks, each one sends its digest.
pub(super) const AUDITORS_MAX: usize = 32;
/// How many steps further than this member another one may be when it sends a digest.
pub(super) const STEPS_AHEAD_MAX: u64 = 2;
/// After how many different steps digests are kept.
const ROUNDS_KEPT: usize = 16;
/// For how many steps members report after each one once digests have differed: long enough for another wrong value of a member that
/// seldom sends one.
const DOUBT_STEPS: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// How values travel in the tests in which it does not matter: a difference in the first step is from an earlier one.
    const WHOLE: ValueWay = ValueWay { is_whole: true, topology: Topology::Direct };

    /// The audit of a view of as many members as each text has letters: each letter is a digest, and a dot none; a text for each step.
    fn audit(rounds: &[&str]) -> DigestAudit {
        let mut audit = DigestAudit::default();
        for (steps, digests) in rounds.iter().enumerate() {
            let rows: Vec<String> =
                digests.chars().map(|letter| letter.to_string().repeat(digests.len())).collect();
            let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
            note_shards(&mut audit, steps as u64, WHOLE, &rows);
        }
        audit
    }

    /// What members report after a step: for each one a text with a letter for each owner's shard, or a dot for none at all.
    fn note_shards(audit: &mut DigestAudit, steps: u64, way: ValueWay, members: &[&str]) {
        for (index, shards) in members.iter().enumerate().filter(|(_, shards)| !shards.starts_with('.')) {
            let digest = ContentDigest::of(shards.as_bytes());
            let shards = shards.bytes().map(|letter| ShardDigest([letter; 8])).collect();
            audit.note(Rank::from_index(index), StepNumber(steps), digest, shards);
        }
        audit.rounds.get_mut(&StepNumber(steps)).expect("it is new").way = Some(way);
    }

    fn altered(audit: &DigestAudit, rank: u32, member_count: usize) -> Vec<u32> {
        audit.altered_by(Rank(rank), member_count).into_iter().map(|rank| rank.0).collect()
    }

    /// The newest finding of the member at rank 0.
    fn newest(digests: &str) -> Option<Finding> {
        audit(&[digests]).newest(Rank(0), digests.len())
    }

    fn ranks(ranks: &[u32]) -> Vec<Rank> {
        ranks.iter().copied().map(Rank).collect()
    }

    #[test]
    fn the_members_that_differ_from_most_are_at_fault() {
        let steps = StepNumber(0);
        for equal in ["a", "aa", "aaaaa", "a.a", ".bb", "a...."] {
            assert_eq!(newest(equal), None, "{equal}");
        }
        assert_eq!(newest("aab"), Some(Finding::Differing(ranks(&[2]))));
        assert_eq!(newest("abaca"), Some(Finding::Differing(ranks(&[1, 3]))));
        assert_eq!(newest("aab.."), None, "two of five are not most");
        assert_eq!(newest("aaab."), Some(Finding::Differing(ranks(&[3]))));
        assert_eq!(newest("abbb."), Some(Finding::Alone(steps)));
        assert_eq!(newest("ab"), Some(Finding::Undecided(steps, ranks(&[1]))));
        assert_eq!(newest("abab"), Some(Finding::Undecided(steps, ranks(&[1, 3]))));
        assert_eq!(newest("ab.."), None, "not all have reported");
    }

    #[test]
    fn what_differs_once_is_overwritten_and_what_differs_twice_stays() {
        let confirmed = |rounds: &[&str]| audit(rounds).confirmed(Rank(0), rounds[0].len());
        assert_eq!(confirmed(&["aab"]), None);
        assert_eq!(confirmed(&["aab", "aaa"]), None);
        assert_eq!(confirmed(&["aab", "aba"]), None, "another member each time");
        assert_eq!(confirmed(&["aab", "ccb"]), Some(Finding::Differing(ranks(&[2]))));
        assert_eq!(confirmed(&["aab", "c..", "ccb"]), Some(Finding::Differing(ranks(&[2]))), "not decided");
        assert_eq!(confirmed(&["aab", "ccb", "dd."]), Some(Finding::Differing(ranks(&[2]))), "not all");
        assert_eq!(confirmed(&["ab", "aa"]), None);
        assert_eq!(confirmed(&["ab", "cd"]), Some(Finding::Undecided(StepNumber(1), ranks(&[1]))));
        assert_eq!(confirmed(&["abb", "cdd"]), Some(Finding::Alone(StepNumber(1))));
        let doubtful = audit(&["aaa", "aab", "aaa"]);
        assert!(doubtful.is_in_doubt(StepNumber(2)) && doubtful.is_in_doubt(StepNumber(1 + DOUBT_STEPS)));
        assert!(
            !doubtful.is_in_doubt(StepNumber(2 + DOUBT_STEPS)) && !audit(&["aaa"]).is_in_doubt(StepNumber(0))
        );
    }

    #[test]
    fn the_owner_that_sent_other_values_than_it_has_is_found() {
        let direct = ValueWay { is_whole: false, topology: Topology::Direct };
        let mut audit = DigestAudit::default();
        // Ranks 1 and 2 have another shard of rank 0 than rank 0 itself.
        note_shards(&mut audit, 7, direct, &["aaaa", "baaa", "caaa", "aaaa"]);
        assert_eq!((altered(&audit, 1, 4), altered(&audit, 2, 4)), (vec![0], vec![0]));
        assert_eq!((altered(&audit, 0, 4), altered(&audit, 3, 4)), (vec![], vec![]));
        note_shards(&mut audit, 8, direct, &["aaaa", "baaa", "caaa", "aaaa"]);
        assert_eq!(audit.confirmed(Rank(3), 4), None, "those that got them are not at fault");
    }

    #[test]
    fn in_a_ring_the_member_that_passed_on_other_values_is_found() {
        let ring = ValueWay { is_whole: false, topology: Topology::Ring };
        let mut audit = DigestAudit::default();
        // The shard of rank 0 travels over ranks 1 and 2 to rank 3. Rank 1 changes it, and keeps the right one.
        note_shards(&mut audit, 7, ring, &["aaaa", "aaaa", "baaa", "baaa"]);
        assert_eq!((altered(&audit, 2, 4), altered(&audit, 3, 4)), (vec![1], vec![]));
    }

    #[test]
    fn what_members_compute_themselves_is_a_fault_of_the_step_in_which_it_begins_to_differ() {
        let mut audit = DigestAudit::default();
        note_shards(&mut audit, 7, WHOLE, &["aaa", "aaa", "aba"]);
        assert_eq!(altered(&audit, 2, 3), [], "nothing is known of the step before");
        note_shards(&mut audit, 8, WHOLE, &["aaa", "aaa", "bba"]);
        assert_eq!(altered(&audit, 2, 3), [0], "the shard of rank 0 is new, that of rank 1 is not");
        note_shards(&mut audit, 9, WHOLE, &["aaa", "aaa", "bba"]);
        note_shards(&mut audit, 10, WHOLE, &["aaa", "aaa", "bba"]);
        assert_eq!(audit.confirmed(Rank(0), 3), Some(Finding::Differing(ranks(&[2]))));
    }

    #[test]
    fn a_member_that_claims_many_steps_uses_up_no_memory() {
        let mut audit = DigestAudit::default();
        for steps in 0..100 {
            audit.note(Rank(1), StepNumber(steps), ContentDigest([1; 32]), vec![]);
        }
        assert_eq!(audit.rounds.len(), ROUNDS_KEPT);
        assert!(audit.has_heard(Rank(1)) && !audit.has_heard(Rank(0)));
        audit.leave_view();
        assert!(!audit.has_heard(Rank(1)));
    }
}
