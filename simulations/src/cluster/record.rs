//! The record of a run: its invariants and their violations, its trace, its history, and the events that nodes report to their users.

use peergrad_core::io::{Event, MergeEvaluation};
use peergrad_protocol::Instant;
use peergrad_protocol::view::Merge;

use crate::history::{ExitStatus, History, MergeSummary, PeerState};
use crate::host::HostId;
use crate::hosts::Hosts;
use crate::invariants::Invariants;
use crate::trace::Trace;

/// What is checked and remembered of a run.
#[derive(Default)]
pub(super) struct Record {
    /// What must hold, and what was violated.
    pub(super) invariants: Invariants,
    /// The digest of all frames and events.
    pub(super) trace: Trace,
    /// What reports are drawn from.
    pub(super) history: History,
    /// The events of all nodes, in order.
    pub(super) events: Vec<(Instant, HostId, Event)>,
    /// Whether a member has finished the run.
    pub(super) has_finished_member: bool,
}

impl Record {
    /// Adds an event to the history, if it belongs there.
    pub(super) fn add(&mut self, now: Instant, host: HostId, event: &Event, hosts: &Hosts) {
        match event {
            Event::ViewInstalled { view, digest, share, .. } => {
                self.history.began.get_or_insert(now);
                self.history.installed(host, now, view, *digest, *share);
            }
            Event::Excluded { view_number } => {
                let words = format!("excluded from view {}: asks to rejoin", view_number.0);
                self.history.note(host, now, words);
                self.history.set_state(host, now, PeerState::Joining);
            }
            Event::BranchAbandoned { is_merged, .. } => {
                let what = if *is_merged { "was merged into another" } else { "yields to another" };
                self.history.note(host, now, format!("its part {what}: asks to join that part"));
                if !is_merged {
                    self.history.branch_abandoned(host, now);
                }
                self.history.set_state(host, now, PeerState::Joining);
            }
            Event::Merged(merge) => self.add_merge(now, host, merge),
            Event::MergeEvaluation(comparison) => self.add_evaluation(now, host, comparison),
            Event::Committed(committed) => self.history.committed(host, now, *committed),
            Event::Restored { steps, .. } => {
                let words = format!("continues from the checkpoint after step {}", steps.0);
                self.history.note(host, now, words);
            }
            Event::Saved { steps, result: Err(reason) } => {
                let words = format!("cannot write the checkpoint after step {}: {reason}", steps.0);
                self.history.note(host, now, words);
            }
            Event::Violation { peer, reject } => {
                let by = hosts.of(*peer).first().map_or("?".to_owned(), HostId::to_string);
                self.history.note(host, now, format!("rejected a message of {by}: {reject}"));
            }
            Event::Ended(ended) => {
                let is_finished = ended.outcome.is_ok();
                self.has_finished_member |= is_finished;
                if let Err(failure) = &ended.outcome {
                    self.history.note(host, now, format!("stopped: {failure}"));
                }
                self.history.set_state(host, now, PeerState::Ended(ExitStatus::of(&ended.outcome)));
            }
            _ => {}
        }
    }

    /// Another branch was merged.
    fn add_merge(&mut self, now: Instant, host: HostId, merge: &Merge) {
        let words = format!(
            "merges another part: {} samples here, {} there since the partition",
            merge.ours, merge.theirs
        );
        self.history.note(host, now, words);
        let Merge { view, steps, ours, theirs, .. } = *merge;
        self.history.merged(host, now, view, MergeSummary { steps, ours, theirs, comparison: None });
    }

    /// The merged parameters and those of both branches were evaluated.
    fn add_evaluation(&mut self, now: Instant, host: HostId, comparison: &MergeEvaluation) {
        self.history.record_comparison(host, *comparison);
        let MergeEvaluation { ours, theirs, merged, distance, norm } = comparison;
        let (ours, theirs, merged) = (ours.loss, theirs.loss, merged.loss);
        let apart = 100.0 * distance / norm.max(f64::MIN_POSITIVE);
        let words = format!(
            "held-out loss {ours:.4} here, {theirs:.4} there, {merged:.4} merged; the parameters differed by {apart:.1} %"
        );
        self.history.note(host, now, words);
    }
}
