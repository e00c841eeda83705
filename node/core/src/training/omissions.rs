//! Omissions: samples that steps have left out, by who knows of them.
//!
//! Where a step is everybody's, everybody counts alike, but for those who came late or were in other views: they learn from
//! others. Where members drift, each knows its own only, until all tell at the end.

use std::collections::BTreeMap;

use peergrad_protocol::PeerId;

/// The count of one member.
#[derive(Default)]
pub(super) struct Omissions {
    /// Of committed steps, as this member has counted or learnt; where members drift, its own.
    counted: u64,
    /// Where members drift, by member: what it said of itself.
    by_member: BTreeMap<PeerId, u64>,
    /// What members that are done have said in this view of the whole run.
    reported: u64,
    /// What members have said in this view of the steps before the one that they were in.
    reported_before: u64,
}

impl Omissions {
    /// So many more.
    pub(super) fn add(&mut self, samples: u64) {
        self.counted += samples;
    }

    /// What this member has counted.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// There were so many in all that this member has not seen.
    pub(super) fn add_unseen(&mut self, unseen: u64) {
        self.counted += unseen;
    }

    /// A member says what it has left out itself.
    pub(super) fn report_member(&mut self, member: PeerId, samples: u64) {
        self.by_member.insert(member, samples);
    }

    /// A member that is done says what the whole run has left out, as far as it knows.
    pub(super) fn report_total(&mut self, samples: u64) {
        self.reported = self.reported.max(samples);
    }

    /// A member says what the steps before the one that it is in have left out, as far as it knows.
    pub(super) fn report_total_before(&mut self, samples: u64) {
        self.reported_before = self.reported_before.max(samples);
    }

    /// The most that was said of the steps before one that nobody is beyond.
    pub(super) fn reported_before(&self) -> u64 {
        self.reported_before
    }

    /// In another view members speak again.
    pub(super) fn leave_view(&mut self) {
        (self.reported, self.reported_before) = (0, 0);
    }

    /// All of the run, as far as this member knows.
    pub(super) fn total(&self) -> u64 {
        let counted = self.by_member.values().fold(self.counted, |sum, other| sum.saturating_add(*other));
        // Of many members only the first has heard of all.
        counted.max(self.reported)
    }
}
