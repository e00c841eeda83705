//! Meeting: where all parts of a swarm that is cut in two go on, members look for those whom they have lost.
//!
//! What they say to each other when they have found them: `machine/healing.rs`.

use std::time::Duration;

use peergrad_protocol::message::Contact;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, Rank, ViewDigest};

use super::Membership;
use crate::io::Output;
use crate::session::Left;

impl Membership {
    /// Whether all parts go on.
    pub(crate) fn forks(&self) -> bool {
        self.forks
    }

    /// Whether that is what half of the members of this view or fewer have gone on with, for want of this one and the others: no
    /// reason to leave those, who go on as well.
    pub(crate) fn is_splinter(&self, view: &View) -> bool {
        let is_in = |member: &&Member| view.rank(&member.peer).is_some();
        let kept = self.view.members.iter().filter(is_in).count();
        let me = view.rank(&self.me.peer).map(|rank| view.member(rank).incarnation);
        let is_loss = match &view.recovery {
            Recovery::Resume(resume) => {
                resume.is_interruption() || view.parents.first() != Some(&self.digest)
            }
            Recovery::Found => false,
        };
        let is_out = me != Some(self.me.incarnation) && view.expulsion(&self.me.peer).is_none();
        self.forks && is_out && is_loss && 2 * kept <= self.view.members.len()
    }

    /// Members that were lost and may be in another lineage: who asks to be let in is in none.
    pub(crate) fn estranged(&self) -> impl Iterator<Item = &Contact> {
        let is_away = |contact: &&Contact| {
            !self.asking.contains_key(&contact.peer) && !self.candidates.contains_key(&contact.peer)
        };
        self.view.estranged.iter().filter(is_away)
    }

    /// Some of the members that were lost and can be reached again; others of them are dialed. One after the other has its turn.
    pub(crate) fn find_estranged(&mut self, out: &mut Vec<Output>) -> Vec<PeerId> {
        let turn = self.estranged_turn;
        self.estranged_turn = turn.wrapping_add(ESTRANGED_AT_ONCE);
        let away: Vec<&Contact> = self.estranged().collect();
        let ranks = (0..away.len().min(ESTRANGED_AT_ONCE)).map(|index| turn.wrapping_add(index) % away.len());
        let (found, missing): (Vec<&Contact>, Vec<&Contact>) =
            ranks.map(|index| away[index]).partition(|contact| self.linked.contains(&contact.peer));
        out.extend(missing.into_iter().cloned().map(Output::Dial));
        found.into_iter().map(|contact| contact.peer).collect()
    }

    /// Somebody speaks in another view than this one. Perhaps one of the two is about to hear of the other's.
    pub(crate) fn note_elsewhere(&mut self, now: Instant, peer: &PeerId, view: ViewDigest) {
        let is_next = self.next.as_ref().is_some_and(|next| next.digest == view);
        let is_before = self.view.parents.first() == Some(&view);
        if let Some(rank) = self.view.rank(peer).filter(|_| self.forks && !is_next && !is_before) {
            self.term.elsewhere.entry(rank).or_insert(now);
        }
    }

    /// The state of another lineage that a view merges which may follow this one.
    pub(crate) fn may_merge(&self) -> Option<Left> {
        let accepted =
            || self.term.acceptor.accepted().and_then(|(_, change)| change.resume.merge.as_deref());
        let merge = match &self.next {
            Some(next) => next.view.merge(),
            None => accepted(),
        };
        merge.map(|merge| (merge.view, merge.steps))
    }

    /// Members that have been in another lineage for a while.
    pub(super) fn elsewhere(&self, now: Instant) -> impl Iterator<Item = Rank> {
        let is_gone = move |since: &Instant| now.since(*since) > ELSEWHERE;
        self.term.elsewhere.iter().filter(move |(_, since)| is_gone(since)).map(|(rank, _)| *rank)
    }

    /// Who speaks for this lineage.
    pub(crate) fn convener_contact(&self, now: Instant) -> Option<Contact> {
        Some(self.view.member(self.convener(now)?).contact())
    }

    /// How long it may take until another lineage has said what it leaves, and all have their part of it.
    pub(crate) fn patience_with_others(&self) -> Duration {
        GIVEN_UP_AFTER + GIVEN_UP_STEPS * self.pace.usual()
    }

    /// How many steps ahead members are told of one, so that none is beyond it when they hear of it.
    pub(crate) fn steps_ahead(&self) -> u64 {
        let usual = self.pace.usual().as_micros();
        if usual == 0 {
            // Nobody knows yet.
            return AHEAD_UNKNOWN;
        }
        let steps = AHEAD.as_micros().div_ceil(usual);
        u64::try_from(steps).unwrap_or(AHEAD_MAX).clamp(AHEAD_MIN, AHEAD_MAX)
    }
}

/// So many of those who were lost are told where a member's lineage is, each time.
const ESTRANGED_AT_ONCE: usize = 4;
/// What has come to nothing by then is given up; where steps are slow, it takes some of them longer.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);
const GIVEN_UP_STEPS: u32 = 8;
/// Who is heard of in other views only is not in this one any more; before that, views are on their way.
const ELSEWHERE: Duration = Duration::from_secs(3);
/// A step is named so long ahead.
const AHEAD: Duration = Duration::from_secs(1);
/// And at least one after that which others may have completed already.
const AHEAD_MIN: u64 = 2;
const AHEAD_MAX: u64 = 4096;
/// As long as a member has taken no step in this run.
const AHEAD_UNKNOWN: u64 = 8;
