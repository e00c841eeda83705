//! Ends of branches: whether each branch that met another one was merged or abandoned.

use peergrad_core::io::MergeEvaluation;
use peergrad_models::task::Evaluation;
use peergrad_protocol::{Instant, StepNumber, ViewDigest};

use super::{History, PeerState};
use crate::host::HostId;

/// The end of one branch that met another one.
#[derive(Clone, Debug)]
pub struct BranchEnd {
    /// When it was first reported.
    pub at: Instant,
    /// The host that reported it: a member of the surviving branch if anything is merged, else of the branch that yields.
    pub host: HostId,
    /// The index of the branch that yields.
    pub branch_index: usize,
    /// What of it is merged; `None` if it is abandoned.
    pub merged: Option<MergeSummary>,
}

/// What of a branch is merged into another one.
#[derive(Clone, Debug)]
pub struct MergeSummary {
    /// The number of steps after which its state was taken.
    pub steps: StepNumber,
    /// Samples that the surviving branch has trained alone.
    pub ours: u64,
    /// Samples that the other branch has trained alone, up to that step.
    pub theirs: u64,
    /// Losses of both branches and of the merged model; `None` if they were not reported.
    pub comparison: Option<MergeEvaluation>,
}

impl History {
    /// A member reports that its branch merges another one, whose view this is.
    pub fn merged(&mut self, host: HostId, at: Instant, view: ViewDigest, merged: MergeSummary) {
        let Some(branch_index) =
            self.views.iter().find(|note| note.digest == view).map(|note| note.branch_index)
        else {
            return;
        };
        let is_it = |branch_end: &BranchEnd| {
            branch_end.branch_index == branch_index
                && branch_end.merged.as_ref().map(|it| it.steps) == Some(merged.steps)
        };
        if !self.branch_ends.iter().any(is_it) {
            self.branch_ends.push(BranchEnd { at, host, branch_index, merged: Some(merged) });
        }
    }

    /// A member reports the losses of both branches and of the merged model.
    pub fn record_comparison(&mut self, host: HostId, comparison: MergeEvaluation) {
        let stays = self.branch_index_at(host);
        let newest =
            self.branch_ends.iter().rposition(|it| it.merged.is_some() && self.surviving_branch(it) == stays);
        if let Some(merged) = newest.and_then(|index| self.branch_ends[index].merged.as_mut()) {
            merged.comparison = Some(comparison);
        }
    }

    /// A member reports that its branch yields to another one, and that nothing of it is kept.
    pub fn branch_abandoned(&mut self, host: HostId, at: Instant) {
        let Some(branch_index) = self.branch_index_at(host) else { return };
        if !self.branch_ends.iter().any(|branch_end| branch_end.branch_index == branch_index) {
            self.branch_ends.push(BranchEnd { at, host, branch_index, merged: None });
        }
    }

    /// The branch in which a host last was a member.
    fn branch_index_at(&self, host: HostId) -> Option<usize> {
        match self.member_state(host)? {
            PeerState::Member(view) => Some(self.views[view].branch_index),
            _ => None,
        }
    }

    /// The index of the surviving branch, if known.
    fn surviving_branch(&self, branch_end: &BranchEnd) -> Option<usize> {
        let branch_index = |view: usize| self.views[view].branch_index;
        let spans = self.peers[branch_end.host.index()].spans.iter();
        let mut views = spans.filter_map(|span| match span.state {
            PeerState::Member(view) => Some((span.from, view)),
            _ => None,
        });
        if branch_end.merged.is_some() {
            return views
                .take_while(|(from, _)| *from <= branch_end.at)
                .last()
                .map(|(_, view)| branch_index(view));
        }
        let is_other = |view: &usize| branch_index(*view) != branch_end.branch_index;
        views
            .find(|(from, view)| *from >= branch_end.at && is_other(view))
            .map(|(_, view)| branch_index(view))
    }

    /// The step with which two branches parted: the one where the younger branch begins.
    fn fork_of(&self, branch_index: usize, other: Option<usize>) -> u64 {
        let younger = other.map_or(branch_index, |other| branch_index.max(other));
        let first = self.views.iter().find(|note| note.branch_index == younger);
        first.map_or(0, |note| note.view.first_step().0)
    }

    /// A sentence or two on each merge or abandoned branch, in order.
    #[must_use]
    pub fn branch_end_sentences(&self) -> Vec<String> {
        self.branch_ends.iter().map(|branch_end| self.describe(branch_end)).collect()
    }

    fn describe(&self, branch_end: &BranchEnd) -> String {
        let stays = self.surviving_branch(branch_end);
        let fork = self.fork_of(branch_end.branch_index, stays);
        let steps =
            self.commits.iter().filter(|note| self.views[note.view].branch_index == branch_end.branch_index);
        let after = steps.filter(|note| note.committed.step.0 >= fork);
        let (mut end, mut samples) = (fork, 0);
        for note in after {
            end = end.max(note.committed.step.0 + 1);
            samples += note.committed.samples * note.count;
        }
        let made = end - fork;
        let part = branch_letter(branch_end.branch_index);
        let other =
            stays.map_or("the other part".to_owned(), |stays| format!("part {}", branch_letter(stays)));
        let at = seconds(branch_end.at);
        let Some(MergeSummary { steps, ours, theirs, comparison }) = &branch_end.merged else {
            return match made {
                0 => format!("At {at} part {part}, which had trained nothing alone, rejoined {other}."),
                _ => format!(
                    "At {at} part {part} yielded to {other}: the {} ({} samples) that it had trained alone were discarded, and their samples are trained again.",
                    plural(made, "step"),
                    grouped(samples)
                ),
            };
        };
        let kept = steps.0.saturating_sub(fork).min(made);
        let mut words = format!(
            "At {at} part {part} was merged into {other}: {} of its {} since the partition ({} samples, beside {} that {other} trained alone)",
            grouped(kept),
            plural(made, "step"),
            grouped(*theirs),
            grouped(*ours)
        );
        words.push_str(&match made - kept {
            0 => ".".to_owned(),
            1 => "; the one step that it made during the agreement was discarded, and its samples are trained again."
                .to_owned(),
            lost => format!(
                "; the {} steps that it made during the agreement were discarded, and their samples are trained again.",
                grouped(lost)
            ),
        });
        if let Some(MergeEvaluation { ours, theirs, merged, distance, norm }) = comparison {
            let stayed = stays.map_or("there".to_owned(), |stays| format!("of {}", branch_letter(stays)));
            words.push_str(&format!(
                " On held-out samples: {} {stayed} before, {} of {part}, {} of both together; their parameters differed by {:.1} %.",
                quality(ours),
                quality(theirs),
                quality(merged),
                100.0 * distance / norm.max(f64::MIN_POSITIVE)
            ));
        }
        words
    }
}

/// The letters of a branch: A to Z, then A1 and so on.
#[must_use]
pub fn branch_letter(branch_index: usize) -> String {
    let letter = char::from(b'A' + (branch_index % 26) as u8);
    if branch_index < 26 { letter.to_string() } else { format!("{letter}{}", branch_index / 26) }
}

fn quality(evaluation: &Evaluation) -> String {
    let Evaluation { loss, accuracy, .. } = evaluation;
    accuracy.map_or(format!("loss {loss:.4}"), |accuracy| format!("loss {loss:.4} (accuracy {accuracy:.4})"))
}

fn seconds(at: Instant) -> String {
    peergrad_page::axis::duration(at.0)
}

fn plural(count: u64, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{} {word}s", grouped(count)) }
}

fn grouped(count: u64) -> String {
    peergrad_page::axis::count(count)
}
