//! Partition probe: where both parts of a partitioned swarm go on, members look for those that they have lost.
//!
//! The messages that they exchange once they have found each other: `crate::merge`.

use std::time::Duration;

use peergrad_protocol::message::Contact;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, Rank, ViewDigest};

use super::Membership;
use crate::io::Output;
use crate::state::snapshot_id::SnapshotId;

/// The search for lost members that may be in another branch.
pub(super) struct PartitionProbe {
    /// Whether all parts of a partitioned swarm go on.
    pub(super) allows_forks: bool,
    /// The index of the lost member that is probed next. It grows without bound and is taken modulo their number.
    pub(super) turn: usize,
}

impl Membership {
    /// Whether all parts of a partitioned swarm go on.
    pub(crate) fn allows_forks(&self) -> bool {
        self.probe.allows_forks
    }

    /// Whether `view` is that of half of the members of this view or fewer, which have gone on because they lost this member and the
    /// others. That is no reason to leave the others, which go on as well.
    pub(crate) fn is_minority_branch(&self, view: &View) -> bool {
        let is_in = |member: &&Member| view.rank(&member.peer).is_some();
        let kept = self.place.view.members.iter().filter(is_in).count();
        let me = view.rank(&self.place.me.peer).map(|rank| view.member(rank).incarnation);
        let is_loss = match &view.recovery {
            Recovery::Resume(resume) => {
                resume.is_interruption() || view.parents.first() != Some(&self.place.digest)
            }
            Recovery::Initialize => false,
        };
        let is_out = me != Some(self.place.me.incarnation) && view.expulsion(&self.place.me.peer).is_none();
        self.probe.allows_forks && is_out && is_loss && 2 * kept <= self.place.view.members.len()
    }

    /// The lost members that may be in another branch. A peer that asks to join is in none.
    pub(crate) fn partitioned_peers(&self) -> impl Iterator<Item = &Contact> {
        let is_away = |contact: &&Contact| self.admission.asking(&contact.peer).is_none();
        self.place.view.history.partitioned.iter().filter(is_away)
    }

    /// The next few of the lost members, in turn: returns those that are linked, and dials the others.
    pub(crate) fn find_partitioned(&mut self, out: &mut Vec<Output>) -> Vec<PeerId> {
        let turn = self.probe.turn;
        self.probe.turn = turn.wrapping_add(PARTITIONED_AT_ONCE);
        let away: Vec<&Contact> = self.partitioned_peers().collect();
        let ranks =
            (0..away.len().min(PARTITIONED_AT_ONCE)).map(|index| turn.wrapping_add(index) % away.len());
        let (found, missing): (Vec<&Contact>, Vec<&Contact>) =
            ranks.map(|index| away[index]).partition(|contact| self.links.is_linked(&contact.peer));
        out.extend(missing.into_iter().cloned().map(Output::Dial));
        found.into_iter().map(|contact| contact.peer).collect()
    }

    /// A peer speaks in another view than this one. One of the two may only not have received the other's view yet.
    pub(crate) fn note_in_other_view(&mut self, now: Instant, peer: &PeerId, view: ViewDigest) {
        let is_next = self.next.as_ref().is_some_and(|next| next.digest == view);
        let is_before = self.place.view.parents.first() == Some(&view);
        if let Some(rank) =
            self.place.view.rank(peer).filter(|_| self.probe.allows_forks && !is_next && !is_before)
        {
            self.view_state.in_other_views.entry(rank).or_insert(now);
        }
    }

    /// The snapshot of another branch that the next view merges, or may merge.
    pub(crate) fn pending_merge(&self) -> Option<SnapshotId> {
        let accepted =
            || self.driver.acceptor.accepted().and_then(|(_, change)| change.resume.merge.as_deref());
        let merge = match &self.next {
            Some(next) => next.view.merge(),
            None => accepted(),
        };
        merge.map(|merge| (merge.view, merge.steps))
    }

    /// The members that have been in another branch for a while.
    pub(super) fn in_other_views(&self, now: Instant) -> impl Iterator<Item = Rank> {
        let is_gone = move |since: &Instant| now.since(*since) > OTHER_VIEW_MAX;
        self.view_state.in_other_views.iter().filter(move |(_, since)| is_gone(since)).map(|(rank, _)| *rank)
    }

    /// The coordinator of this branch; `None` if there is none.
    pub(crate) fn coordinator_contact(&self, now: Instant) -> Option<Contact> {
        Some(self.place.view.member(self.coordinator(now)?).contact())
    }

    /// How long it may take until another branch has offered its snapshot, and all members have their part of it.
    pub(crate) fn merge_timeout(&self) -> Duration {
        MERGE_TIMEOUT + MERGE_TIMEOUT_STEPS * self.detection.step_timing.usual()
    }

    /// How many steps ahead members learn of the step with a snapshot, so that none of them is beyond it by then.
    pub(crate) fn merge_lead_steps(&self) -> u64 {
        let usual = self.detection.step_timing.usual().as_micros();
        if usual == 0 {
            // No step has been measured yet.
            return MERGE_LEAD_STEPS_DEFAULT;
        }
        let steps = MERGE_LEAD.as_micros().div_ceil(usual);
        u64::try_from(steps).unwrap_or(MERGE_LEAD_STEPS_MAX).clamp(MERGE_LEAD_STEPS_MIN, MERGE_LEAD_STEPS_MAX)
    }
}

/// How many lost members a member probes at a time.
const PARTITIONED_AT_ONCE: usize = 4;
/// An attempt to merge that makes no progress for so long, plus some usual steps, is given up.
const MERGE_TIMEOUT: Duration = Duration::from_secs(30);
const MERGE_TIMEOUT_STEPS: u32 = 8;
/// A member that has been heard only in other views for so long is not in this one any more. Before that, views may be on their way.
const OTHER_VIEW_MAX: Duration = Duration::from_secs(3);
/// How far ahead in time the step with a snapshot is named.
const MERGE_LEAD: Duration = Duration::from_secs(1);
/// The fewest steps ahead: the next step may be complete at other members already, so at least one more.
const MERGE_LEAD_STEPS_MIN: u64 = 2;
const MERGE_LEAD_STEPS_MAX: u64 = 4096;
/// The lead while a member has measured no step in this run.
const MERGE_LEAD_STEPS_DEFAULT: u64 = 8;
