//! What nodes tell their users, and what of that goes into the history.

use peergrad_core::io::{Event, MergeEvaluation};
use peergrad_protocol::view::Merge;

use super::Cluster;
use crate::history::{ExitStatus, MergeSummary, PeerState};
use crate::host::HostId;
use crate::observation::Observation;

impl Cluster {
    /// A node tells its user something.
    pub(super) fn on_event(&mut self, host: HostId, event: Event) {
        self.record(host, &event);
        self.trace.event(self.now, host, &event);
        self.observe(Observation::Emitted { host, event: &event });
        if let Event::Ended(_) = event {
            // The process is over once it has said goodbye.
            self.hosts[host.index()].process = None;
            self.running_count -= 1;
            self.network.shut_down(self.now, host);
        }
        self.events.push((self.now, host, event));
    }

    /// Adds an event to the history, if it belongs there.
    fn record(&mut self, host: HostId, event: &Event) {
        match event {
            Event::ViewInstalled { view, digest, share, .. } => {
                self.history.began.get_or_insert(self.now);
                self.history.installed(host, self.now, view, *digest, *share);
            }
            Event::Excluded { view_number } => {
                let words = format!("view {} goes on without it: asks to be let in again", view_number.0);
                self.history.note(host, self.now, words);
                self.history.set_state(host, self.now, PeerState::Joining);
            }
            Event::BranchAbandoned { is_merged, .. } => {
                let what = if *is_merged { "was merged into another" } else { "gives way to another" };
                self.history.note(host, self.now, format!("its part {what}: asks to be let in there"));
                if !is_merged {
                    self.history.branch_abandoned(host, self.now);
                }
                self.history.set_state(host, self.now, PeerState::Joining);
            }
            Event::Merged(merge) => self.record_merge(host, merge),
            Event::MergeEvaluation(comparison) => self.record_evaluation(host, comparison),
            Event::Committed(committed) => self.history.committed(host, self.now, *committed),
            Event::Restored { steps, .. } => {
                let words = format!("goes on from the checkpoint after step {}", steps.0);
                self.history.note(host, self.now, words);
            }
            Event::Saved { steps, result: Err(reason) } => {
                let words = format!("cannot write the checkpoint after step {}: {reason}", steps.0);
                self.history.note(host, self.now, words);
            }
            Event::Violation { peer, reject } => {
                let by = self.hosts_by_peer.get(peer).map_or("?".to_owned(), |homes| homes[0].to_string());
                self.history.note(host, self.now, format!("refused what {by} sent: {reject}"));
            }
            Event::Ended(ended) => {
                let is_finished = ended.outcome.is_ok();
                self.has_finished_member |= is_finished;
                if let Err(failure) = &ended.outcome {
                    self.history.note(host, self.now, format!("stopped: {failure}"));
                }
                self.history.set_state(host, self.now, PeerState::Ended(ExitStatus::of(&ended.outcome)));
            }
            _ => {}
        }
    }

    /// Another branch was merged.
    fn record_merge(&mut self, host: HostId, merge: &Merge) {
        let words = format!(
            "merges another part: {} samples here, {} there since they went apart",
            merge.ours, merge.theirs
        );
        self.history.note(host, self.now, words);
        let Merge { view, steps, ours, theirs, .. } = *merge;
        self.history.merged(host, self.now, view, MergeSummary { steps, ours, theirs, comparison: None });
    }

    /// The merged parameters and those of both branches were evaluated.
    fn record_evaluation(&mut self, host: HostId, comparison: &MergeEvaluation) {
        self.history.record_comparison(host, *comparison);
        let MergeEvaluation { ours, theirs, merged, distance, norm } = comparison;
        let (ours, theirs, merged) = (ours.loss, theirs.loss, merged.loss);
        let apart = 100.0 * distance / norm.max(f64::MIN_POSITIVE);
        let words = format!(
            "held-out loss {ours:.4} here, {theirs:.4} there, {merged:.4} merged; parameters were {apart:.1} % apart"
        );
        self.history.note(host, self.now, words);
    }
}
