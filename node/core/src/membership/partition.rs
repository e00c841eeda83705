//! MergeProbe: where all parts of a swarm that is cut in two go on, members look for those whom they have lost.
//!
//! What they say to each other when they have found them: `machine/merge.rs`.

use std::time::Duration;

use peergrad_protocol::message::Contact;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, Rank, ViewDigest};

use super::Membership;
use crate::io::Output;
use crate::training::SnapshotId;

/// Where all parts go on: the search for those in another one.
pub(super) struct PartitionProbe {
    /// Whether all parts of a partitioned swarm go on.
    pub(super) allows_forks: bool,
    /// The index of the lost member that is probed next, counted on without end.
    pub(super) turn: usize,
}

impl Membership {
    /// Whether all parts go on.
    pub(crate) fn allows_forks(&self) -> bool {
        self.probe.allows_forks
    }

    /// Whether that is what half of the members of this view or fewer have gone on with, for want of this one and the others: no
    /// reason to leave those, who go on as well.
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

    /// Members that were lost and may be in another lineage: who asks to be let in is in none.
    pub(crate) fn partitioned_peers(&self) -> impl Iterator<Item = &Contact> {
        let is_away = |contact: &&Contact| self.admission.asking(&contact.peer).is_none();
        self.place.view.partitioned.iter().filter(is_away)
    }

    /// Some of the members that were lost and can be reached again; others of them are dialed. One after the other has its turn.
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

    /// Somebody speaks in another view than this one. Perhaps one of the two is about to hear of the other's.
    pub(crate) fn note_in_other_view(&mut self, now: Instant, peer: &PeerId, view: ViewDigest) {
        let is_next = self.next.as_ref().is_some_and(|next| next.digest == view);
        let is_before = self.place.view.parents.first() == Some(&view);
        if let Some(rank) =
            self.place.view.rank(peer).filter(|_| self.probe.allows_forks && !is_next && !is_before)
        {
            self.view_state.in_other_views.entry(rank).or_insert(now);
        }
    }

    /// The state of another lineage that a view merges which may follow this one.
    pub(crate) fn pending_merge(&self) -> Option<SnapshotId> {
        let accepted =
            || self.driver.acceptor.accepted().and_then(|(_, change)| change.resume.merge.as_deref());
        let merge = match &self.next {
            Some(next) => next.view.merge(),
            None => accepted(),
        };
        merge.map(|merge| (merge.view, merge.steps))
    }

    /// Members that have been in another lineage for a while.
    pub(super) fn in_other_views(&self, now: Instant) -> impl Iterator<Item = Rank> {
        let is_gone = move |since: &Instant| now.since(*since) > OTHER_VIEW_MAX;
        self.view_state.in_other_views.iter().filter(move |(_, since)| is_gone(since)).map(|(rank, _)| *rank)
    }

    /// Who speaks for this lineage.
    pub(crate) fn coordinator_contact(&self, now: Instant) -> Option<Contact> {
        Some(self.place.view.member(self.coordinator(now)?).contact())
    }

    /// How long it may take until another lineage has said what it leaves, and all have their part of it.
    pub(crate) fn merge_timeout(&self) -> Duration {
        MERGE_TIMEOUT + MERGE_TIMEOUT_STEPS * self.detection.step_timing.usual()
    }

    /// How many steps ahead members are told of one, so that none is beyond it when they hear of it.
    pub(crate) fn merge_lead_steps(&self) -> u64 {
        let usual = self.detection.step_timing.usual().as_micros();
        if usual == 0 {
            // Nobody knows yet.
            return MERGE_LEAD_STEPS_DEFAULT;
        }
        let steps = MERGE_LEAD.as_micros().div_ceil(usual);
        u64::try_from(steps).unwrap_or(MERGE_LEAD_STEPS_MAX).clamp(MERGE_LEAD_STEPS_MIN, MERGE_LEAD_STEPS_MAX)
    }
}

/// So many of those who were lost are told where a member's lineage is, each time.
const PARTITIONED_AT_ONCE: usize = 4;
/// What has come to nothing by then is given up; where steps are slow, it takes some of them longer.
const MERGE_TIMEOUT: Duration = Duration::from_secs(30);
const MERGE_TIMEOUT_STEPS: u32 = 8;
/// Who is heard of in other views only is not in this one any more; before that, views are on their way.
const OTHER_VIEW_MAX: Duration = Duration::from_secs(3);
/// A step is named so long ahead.
const MERGE_LEAD: Duration = Duration::from_secs(1);
/// And at least one after that which others may have completed already.
const MERGE_LEAD_STEPS_MIN: u64 = 2;
const MERGE_LEAD_STEPS_MAX: u64 = 4096;
/// As long as a member has taken no step in this run.
const MERGE_LEAD_STEPS_DEFAULT: u64 = 8;
