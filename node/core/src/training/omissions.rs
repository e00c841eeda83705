//! Omissions: how many samples the steps have left out.
//!
//! Where all members take the same steps, all have the same count. Members that joined late, or were in other views, get the count from
//! others. With local parameters, or with tables, each member counts only its own omissions, until all members report theirs at the end.

use std::collections::BTreeMap;

use peergrad_protocol::PeerId;

/// The omissions that one member knows of, in samples.
#[derive(Default)]
pub(super) struct Omissions {
    /// In committed steps, as this member has counted or been told. With local parameters or tables, only its own.
    counted: u64,
    /// With local parameters or tables: each member's own omissions, as it has reported them. Empty otherwise.
    by_member: BTreeMap<PeerId, u64>,
    /// The highest count for the whole run that members which have finished have reported in this view.
    reported: u64,
    /// The highest count for the steps before its step in progress that any member has reported in this view.
    reported_before: u64,
}

impl Omissions {
    /// Counts more samples.
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

    /// A member reports its own omissions.
    pub(super) fn report_member(&mut self, member: PeerId, samples: u64) {
        self.by_member.insert(member, samples);
    }

    /// A member that has finished reports the omissions of the whole run, as far as it knows.
    pub(super) fn report_total(&mut self, samples: u64) {
        self.reported = self.reported.max(samples);
    }

    /// A member reports the omissions of the steps before its step in progress, as far as it knows.
    pub(super) fn report_total_before(&mut self, samples: u64) {
        self.reported_before = self.reported_before.max(samples);
    }

    /// The highest reported count for the steps before one that no member is beyond.
    pub(super) fn reported_before(&self) -> u64 {
        self.reported_before
    }

    /// In a new view, members report again.
    pub(super) fn leave_view(&mut self) {
        (self.reported, self.reported_before) = (0, 0);
    }

    /// The omissions of the whole run, as far as this member knows.
    pub(super) fn total(&self) -> u64 {
        let counted = self.by_member.values().fold(self.counted, |sum, other| sum.saturating_add(*other));
        // In a large view only the first member gets all reports.
        counted.max(self.reported)
    }
}
