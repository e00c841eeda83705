//! Admission: the peers that ask to join, as one member knows them.
//!
//! A peer that asks this member is *preparing* until it has task and data, then a *candidate* until it is in a view. A candidate that
//! another member announces counts as one for as long as that member repeats it.
//!
//! A peer that was lost is admitted again after a delay that doubles with each loss, so that a peer that flaps costs little. The penalty
//! halves with time, so that a peer that is lost now and then hardly waits, however long the run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::message::{Join, Refusal};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Instant, PeerId};

use super::departures::Departures;
use super::members::Members;

/// The peers that ask to join.
#[derive(Default)]
pub(crate) struct Admission {
    /// Peers that this member has welcomed and that still prepare.
    pub(super) preparing: BTreeMap<PeerId, Member>,
    /// Peers that are ready to join.
    pub(super) candidates: BTreeMap<PeerId, Candidate>,
    /// The candidates that have asked this member.
    pub(super) sponsored: BTreeSet<PeerId>,
    /// Peers that were lost and have to wait.
    pub(super) bans: BTreeMap<PeerId, Ban>,
}

/// A peer that is ready to join.
pub(super) struct Candidate {
    /// The peer, as the next view would list it.
    pub(super) member: Member,
    /// When the peer, or the member that it has asked, last announced it.
    announced_at: Instant,
}

/// A peer that was lost, and must wait before it is admitted again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ban {
    /// When the peer was last lost.
    lost_at: Instant,
    /// The penalty at that time: [`BAN_DECAY`] for each loss, less the time that had passed; at least zero.
    penalty: Duration,
}

/// Whether this member still trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    Training,
    /// The program has ended, or would end at once.
    Closing,
}

/// What a peer that asks to join is answered.
#[derive(Debug, PartialEq)]
pub(crate) enum JoinAnswer {
    /// It is welcome.
    Welcome,
    /// It is welcome. An earlier incarnation of it is in the view, and may have a vote there without knowing the view.
    WelcomeBack,
    /// It is a member already and does not know it.
    IsMember,
    /// It may not join.
    Refuse(Refusal),
}

impl Ban {
    /// The ban of a peer that is lost now, with the penalty that remains from before.
    fn new(lost_at: Instant, before: Duration) -> Self {
        Self { lost_at, penalty: (before + BAN_DECAY).min(BAN_DECAY * (1 + BAN_DOUBLINGS_MAX)) }
    }

    /// The penalty that remains.
    fn remaining(&self, now: Instant) -> Duration {
        self.penalty.saturating_sub(now.since(self.lost_at))
    }

    pub(super) fn ends_at(&self) -> Instant {
        let losses = self.penalty.as_micros().div_ceil(BAN_DECAY.as_micros());
        self.lost_at.after(BAN * (1 << (losses - 1)))
    }
}

impl Admission {
    /// A peer asks to join.
    pub(super) fn on_join(
        &mut self,
        members: &mut Members,
        from: PeerId,
        join: &Join,
        phase: RunPhase,
    ) -> JoinAnswer {
        if let Some(refusal) = refusal(members, from, join, phase) {
            return JoinAnswer::Refuse(refusal);
        }
        let view = &members.place.view;
        let rank = view.rank(&from);
        if let Some(rank) = rank {
            let known = view.member(rank).incarnation;
            if join.incarnation == known && !members.observed.reported_progress.contains_key(&rank) {
                return JoinAnswer::IsMember;
            }
            if known.is_rejoin_of(join.incarnation) {
                // It asked long ago, before it was admitted again.
                return JoinAnswer::IsMember;
            }
            // A peer that has sent heartbeats as a member does not ask to join under that incarnation.
            if join.incarnation <= known {
                return JoinAnswer::Refuse(Refusal::DuplicateIdentity);
            }
            // The incarnation that is in the view is gone.
            members.observed.mark_restarted(rank);
        }
        let welcome = if rank.is_some() { JoinAnswer::WelcomeBack } else { JoinAnswer::Welcome };
        // Of two incarnations the later one is the peer; the other is outdated, or uses a copy of its key.
        let waiting = self.asking(&from).map(|known| known.incarnation);
        if let Some(known) = waiting.filter(|known| *known > join.incarnation) {
            return if known.is_rejoin_of(join.incarnation) {
                welcome
            } else {
                JoinAnswer::Refuse(Refusal::DuplicateIdentity)
            };
        }
        if members.place.view.members.len() + self.candidates.len() >= MEMBERS_MAX {
            return JoinAnswer::Refuse(Refusal::Full);
        }
        let Join { incarnation, addresses, capacity, .. } = join.clone();
        self.prepare(Member { peer: from, incarnation, addresses, capacity });
        welcome
    }

    /// The peer as it asked to join, whether it still prepares or is ready; `None` if it has not asked.
    pub(super) fn asking(&self, peer: &PeerId) -> Option<&Member> {
        self.preparing.get(peer).or(self.candidates.get(peer).map(|known| &known.member))
    }

    /// All peers that ask to join.
    pub(super) fn all_asking(&self) -> impl Iterator<Item = &PeerId> {
        self.preparing.keys().chain(self.candidates.keys())
    }

    /// A peer is welcomed. While it prepares, it is no candidate, unless another member has announced that it is ready: a peer that waits
    /// asks one member after the other.
    fn prepare(&mut self, member: Member) {
        let is_earlier = |known: &Candidate| known.member.incarnation != member.incarnation;
        if self.candidates.get(&member.peer).is_some_and(is_earlier) {
            self.candidates.remove(&member.peer);
        }
        self.preparing.insert(member.peer, member);
    }

    /// A peer that was welcomed here is ready. Returns false if it was not welcomed, or is a member already.
    pub(super) fn ready(&mut self, now: Instant, from: PeerId, view: &View) -> bool {
        if let Some(member) = self.preparing.remove(&from).filter(|member| !is_in(view, member)) {
            self.candidates.insert(from, Candidate { member, announced_at: now });
            self.sponsored.insert(from);
            return true;
        }
        let known = self.candidates.get_mut(&from);
        known.map(|candidate| candidate.announced_at = now).is_some()
    }

    /// A member announces a peer that is ready to join.
    pub(super) fn announce(&mut self, now: Instant, member: Member, view: &View) {
        let known = self.candidates.get(&member.peer);
        let is_older = known.is_some_and(|known| known.member.incarnation > member.incarnation);
        if !is_older && !is_in(view, &member) && self.candidates.len() < MEMBERS_MAX {
            self.candidates.insert(member.peer, Candidate { member, announced_at: now });
        }
    }

    /// Forgets candidates that are no longer announced.
    pub(super) fn forget_stale(&mut self, now: Instant) {
        self.candidates.retain(|_, candidate| now.since(candidate.announced_at) < CANDIDATE_MEMORY);
        self.sponsored.retain(|peer| self.candidates.contains_key(peer));
    }

    /// A peer does not ask to join any more.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.preparing.remove(peer);
        self.candidates.remove(peer);
        self.sponsored.remove(peer);
    }

    /// A view has begun: its members wait no longer.
    pub(super) fn view_changed(&mut self, view: &View) {
        self.preparing.retain(|_, member| !is_in(view, member));
        self.candidates.retain(|_, candidate| !is_in(view, &candidate.member));
        self.sponsored.retain(|peer| self.candidates.contains_key(peer));
    }

    /// Whether any peer is ready to join.
    pub(super) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// The peers that may join now, in the order of their ids.
    pub(super) fn candidates(&self, now: Instant, view: &View) -> impl Iterator<Item = &Member> {
        let is_admitted = move |peer: &PeerId| self.bans.get(peer).is_none_or(|ban| ban.ends_at() <= now);
        let members = self.candidates.values().map(|candidate| &candidate.member);
        members.filter(move |member| is_admitted(&member.peer) && view.rank(&member.peer).is_none())
    }

    /// The candidates that have asked this member.
    pub(crate) fn sponsored(&self) -> impl Iterator<Item = &PeerId> {
        self.sponsored.iter()
    }

    /// The candidates that have asked this member, as members.
    pub(super) fn sponsored_candidates(&self) -> impl Iterator<Item = &Member> {
        self.sponsored.iter().filter_map(|peer| self.candidates.get(peer)).map(|candidate| &candidate.member)
    }

    /// The peers that have asked this member and are not members yet.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &PeerId> {
        self.preparing.keys().filter(|peer| !self.sponsored.contains(peer)).chain(&self.sponsored)
    }

    /// The members of a new view that have asked this one, or ask it again: this member sends them the view.
    pub(crate) fn sponsored_in(&self, view: &View) -> Vec<PeerId> {
        let is_asking = |peer: &PeerId| self.preparing.get(peer).is_some_and(|member| is_in(view, member));
        let is_sponsored = |peer: &PeerId| self.sponsored.contains(peer) && view.rank(peer).is_some();
        self.waiting().filter(|peer| is_sponsored(peer) || is_asking(peer)).copied().collect()
    }

    /// The peers that ask to join, and whether each is ready.
    pub(super) fn joiners(&self) -> Vec<(PeerId, bool)> {
        let preparing = self.preparing.keys().filter(|peer| !self.candidates.contains_key(peer));
        preparing.map(|peer| (*peer, false)).chain(self.candidates.keys().map(|peer| (*peer, true))).collect()
    }

    /// The peers in `left` have left for `view`. Those that were lost must wait before they join again.
    pub(super) fn ban_lost(&mut self, now: Instant, left: &[PeerId], view: &View, departures: &Departures) {
        let is_lost = |peer: &&PeerId| view.rank(peer).is_none() && !departures.retiring.contains(peer);
        self.bans.retain(|_, ban| !ban.remaining(now).is_zero());
        for peer in left.iter().filter(is_lost) {
            let before = self.bans.get(peer).map_or(Duration::ZERO, |ban| ban.remaining(now));
            self.bans.insert(*peer, Ban::new(now, before));
        }
    }
}

/// Why a peer may not ask to join now, whatever it is known as; `None` if it may.
fn refusal(members: &Members, from: PeerId, join: &Join, phase: RunPhase) -> Option<Refusal> {
    let view = &members.place.view;
    if join.run.is_some_and(|run| run != view.run) {
        return Some(Refusal::OtherRun { run: view.run });
    }
    if phase == RunPhase::Closing {
        return Some(Refusal::RunComplete);
    }
    if let Some(expulsion) = members.departures.expulsion_of(view, &from) {
        return Some(Refusal::Expelled(*expulsion));
    }
    // No peer can join here now, and perhaps other members train.
    (members.is_paused() && !members.is_member(&from)).then_some(Refusal::NotReady)
}

/// Whether a member is in a view, in this incarnation or a later one.
fn is_in(view: &View, member: &Member) -> bool {
    view.rank(&member.peer).is_some_and(|rank| view.member(rank).incarnation >= member.incarnation)
}

/// How long a peer stays a candidate after it was last announced, which happens every [`JOIN_RETRY`].
///
/// [`JOIN_RETRY`]: peergrad_protocol::limits::JOIN_RETRY
const CANDIDATE_MEMORY: Duration = Duration::from_secs(5);
/// How long the first ban lasts.
pub(super) const BAN: Duration = Duration::from_millis(500);
/// How often it can double: up to half a minute.
pub(super) const BAN_DOUBLINGS_MAX: u32 = 6;
/// The time in which the penalty halves: only a peer that is lost more often than that waits ever longer.
pub(super) const BAN_DECAY: Duration = Duration::from_secs(30);
