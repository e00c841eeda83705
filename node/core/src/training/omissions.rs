//! Omissions: how many samples the steps have left out.
//!
//! Where all members take the same steps, all count alike; members that came late, or were in other views, learn the count from
//! others. With local parameters each member knows its own omissions only, until all tell at the end.

use std::collections::BTreeMap;

use peergrad_protocol::PeerId;

/// The omissions that one member knows of, in samples.
#[derive(Default)]
pub(super) struct Omissions {
    /// Of committed steps, as this member has counted or learnt; with local parameters, its own.
    counted: u64,
    /// With local parameters, by member: what it has told of itself. Empty otherwise.
    by_member: BTreeMap<PeerId, u64>,
    /// The most that members that are done have told, in this view, of the whole run.
    reported: u64,
    /// The most that members have told, in this view, of the steps before the one that they were in.
    reported_before: u64,
}

impl Omissions {
    /// Counts so many more samples.
    pub(super) fn add(&mut self, samples: u64) {
        self.counted += samples;
    }

    /// Samples that this member has counted.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// Counts samples of steps that this member has not seen.
    pub(super) fn add_unseen(&mut self, unseen: u64) {
        self.counted += unseen;
    }

    /// A member tells what it has left out itself.
    pub(super) fn report_member(&mut self, member: PeerId, samples: u64) {
        self.by_member.insert(member, samples);
    }

    /// A member that is done tells what the whole run has left out, as far as it knows.
    pub(super) fn report_total(&mut self, samples: u64) {
        self.reported = self.reported.max(samples);
    }

    /// A member tells what the steps before the one that it is in have left out, as far as it knows.
    pub(super) fn report_total_before(&mut self, samples: u64) {
        self.reported_before = self.reported_before.max(samples);
    }

    /// The most that members have told of the steps before one that no member is beyond.
    pub(super) fn reported_before(&self) -> u64 {
        self.reported_before
    }

    /// In another view members tell again.
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
