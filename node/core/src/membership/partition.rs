//! Partition probe: where both parts of a partitioned swarm continue, members look for those that they have lost.
//!
//! The messages that they exchange once they have found each other: `crate::merge`.

use std::time::Duration;

use peergrad_protocol::PeerId;
use peergrad_protocol::message::Contact;

use super::admission::Admission;
use super::members::Members;
use crate::io::Output;

/// The search for lost members that may be in another branch.
pub(super) struct PartitionProbe {
    /// The index of the lost member that is probed next. It grows without bound and is taken modulo their number.
    turn: usize,
}

impl PartitionProbe {
    /// A search that begins with the lost member at the index `turn`.
    pub(super) fn new(turn: usize) -> Self {
        Self { turn }
    }

    /// The next few of the lost members, in turn: returns those that are linked, and dials the others.
    pub(super) fn find(
        &mut self,
        members: &Members,
        admission: &Admission,
        out: &mut Vec<Output>,
    ) -> Vec<PeerId> {
        let turn = self.turn;
        self.turn = turn.wrapping_add(PARTITIONED_AT_ONCE);
        let away: Vec<&Contact> = partitioned_peers(members, admission).collect();
        let ranks =
            (0..away.len().min(PARTITIONED_AT_ONCE)).map(|index| turn.wrapping_add(index) % away.len());
        let (found, missing): (Vec<&Contact>, Vec<&Contact>) =
            ranks.map(|index| away[index]).partition(|contact| members.links.is_linked(&contact.peer));
        out.extend(missing.into_iter().cloned().map(Output::Dial));
        found.into_iter().map(|contact| contact.peer).collect()
    }
}

/// The lost members that may be in another branch. A peer that asks to join is in none.
pub(super) fn partitioned_peers<'m>(
    members: &'m Members,
    admission: &'m Admission,
) -> impl Iterator<Item = &'m Contact> {
    let is_away = |contact: &&Contact| admission.asking(&contact.peer).is_none();
    members.place.view.history.partitioned.iter().filter(is_away)
}

/// How long it may take until another branch has offered its snapshot, and all members have their part of it. A step takes `step_time`.
pub(super) fn merge_timeout(step_time: Duration) -> Duration {
    MERGE_TIMEOUT + MERGE_TIMEOUT_STEPS * step_time
}

/// How many steps ahead members learn of the step with a snapshot, so that none of them is beyond it by then. A step takes `step_time`.
pub(super) fn merge_lead_steps(step_time: Duration) -> u64 {
    let step_time = step_time.as_micros();
    if step_time == 0 {
        // No step has been measured yet.
        return MERGE_LEAD_STEPS_DEFAULT;
    }
    let steps = MERGE_LEAD.as_micros().div_ceil(step_time);
    u64::try_from(steps).unwrap_or(MERGE_LEAD_STEPS_MAX).clamp(MERGE_LEAD_STEPS_MIN, MERGE_LEAD_STEPS_MAX)
}

/// How many lost members a member probes at a time.
const PARTITIONED_AT_ONCE: usize = 4;
/// An attempt to merge that makes no progress for so long, plus some usual steps, is given up.
const MERGE_TIMEOUT: Duration = Duration::from_secs(30);
const MERGE_TIMEOUT_STEPS: u32 = 8;
/// How far ahead in time the step with a snapshot is named.
const MERGE_LEAD: Duration = Duration::from_secs(1);
/// The fewest steps ahead: the next step may be complete at other members already, so at least one more.
const MERGE_LEAD_STEPS_MIN: u64 = 2;
const MERGE_LEAD_STEPS_MAX: u64 = 4096;
/// The lead while a member has measured no step in this run.
const MERGE_LEAD_STEPS_DEFAULT: u64 = 8;
