//! The record of a run: its invariants and their violations, its trace, its history, and the events that nodes report to their users.

use peergrad_core::io::{Event, MergeEvaluation};
use peergrad_protocol::view::{Merge, Quarantine};
use peergrad_protocol::{Instant, PeerId};

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
            Event::Excluded { view_number, .. } => {
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
            Event::Restored { steps, epoch, .. } => {
                let words = match epoch {
                    Some(_) => format!("continues from the checkpoint after step {}", steps.0),
                    None => "continues from the newest checkpoint of the tables".to_owned(),
                };
                self.history.note(host, now, words);
            }
            Event::Saved { result: Err(reason), .. } => {
                let words = format!("cannot write a checkpoint: {reason}");
                self.history.note(host, now, words);
            }
            Event::Stalled { step, stage, peers } => {
                let names: Vec<String> = peers.iter().map(|peer| name(hosts, *peer)).collect();
                let text =
                    format!("step {} does not end: waits for {stage:?} of {}", step.0, names.join(", "));
                self.history.note(host, now, text);
            }
            Event::FaultNoticed { peer, by, fault } if *by == hosts.peer(host) => {
                self.history.note(host, now, format!("complains about {}: {fault:?}", name(hosts, *peer)));
            }
            Event::Quarantined(Quarantine { peer, other, fault, is_certain }) => {
                let doubt = if *is_certain { String::new() } else { format!(", or {}", name(hosts, *other)) };
                let text = format!("quarantines {}: {fault:?}{doubt}", name(hosts, *peer));
                self.history.note(host, now, text);
            }
            Event::Violation { peer, reject } => {
                self.history.note(
                    host,
                    now,
                    format!("rejected a message of {}: {reject}", name(hosts, *peer)),
                );
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

/// The name of a peer's host.
fn name(hosts: &Hosts, peer: PeerId) -> String {
    hosts.of(peer).first().map_or("?".to_owned(), HostId::to_string)
}
