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
    elsewhere: BTreeMap<PeerId, u64>,
    /// What members that are done have said in this view of the whole run.
    told: u64,
    /// What members have said in this view of the steps before the one that they were in.
    told_before: u64,
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
    pub(super) fn learn(&mut self, unseen: u64) {
        self.counted += unseen;
    }

    /// A member says what it has left out itself.
    pub(super) fn hear_of(&mut self, member: PeerId, samples: u64) {
        self.elsewhere.insert(member, samples);
    }

    /// A member that is done says what the whole run has left out, as far as it knows.
    pub(super) fn hear(&mut self, samples: u64) {
        self.told = self.told.max(samples);
    }

    /// A member says what the steps before the one that it is in have left out, as far as it knows.
    pub(super) fn hear_before(&mut self, samples: u64) {
        self.told_before = self.told_before.max(samples);
    }

    /// The most that was said of the steps before one that nobody is beyond.
    pub(super) fn told_before(&self) -> u64 {
        self.told_before
    }

    /// In another view members speak again.
    pub(super) fn leave_view(&mut self) {
        (self.told, self.told_before) = (0, 0);
    }

    /// All of the run, as far as this member knows.
    pub(super) fn in_all(&self) -> u64 {
        let counted = self.elsewhere.values().fold(self.counted, |sum, other| sum.saturating_add(*other));
        // Of many members only the first has heard of all.
        counted.max(self.told)
    }
}
