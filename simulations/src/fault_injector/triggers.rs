//! Triggers: the faults that wait for an event of the run, and not for a time.

use std::time::Duration;

use peergrad_protocol::StepNumber;

use crate::cluster::Cluster;
use crate::scenario::Fault;

/// Faults that wait, each with the time from its event to its start.
#[derive(Default)]
pub(super) struct Triggers {
    /// They wait for the first view.
    pub(super) on_training: Vec<(Duration, Fault)>,
    /// They wait until a step is committed: its number is first.
    pub(super) on_step: Vec<(u64, Duration, Fault)>,
    /// They wait for a view that merges another branch.
    pub(super) on_merge: Vec<(Duration, Fault)>,
}

impl Triggers {
    /// Takes the faults whose event has happened, each with the time from now to its start.
    pub(super) fn take_due(&mut self, cluster: &Cluster) -> Vec<(Duration, Fault)> {
        let history = cluster.history();
        let mut due = Vec::new();
        if history.began.is_some() {
            due.append(&mut self.on_training);
        }
        let is_merging = || history.views.iter().any(|note| note.view.merge().is_some());
        if !self.on_merge.is_empty() && is_merging() {
            due.append(&mut self.on_merge);
        }
        let Some(newest) = history.commits.last() else { return due };
        let StepNumber(step) = newest.committed.step;
        while let Some(index) = self.on_step.iter().position(|(after, ..)| *after <= step) {
            let (_, time, fault) = self.on_step.remove(index);
            due.push((time, fault));
        }
        due
    }
}
