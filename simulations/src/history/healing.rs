//! Healing, for telling: what became of each part of a swarm that met another one again.

use peergrad::io::Weighed;
use peergrad::task::Evaluation;
use peergrad_protocol::{Instant, StepNumber, ViewDigest};

use super::{History, State};
use crate::host::HostId;

/// The end of one part of the swarm in another one.
#[derive(Clone, Debug)]
pub struct Healing {
    /// When it was first told.
    pub at: Instant,
    /// By whom: by a member of the part that stays if there is anything merged, else of the one that yields.
    pub host: HostId,
    /// The lineage of the part that yields.
    pub yields: usize,
    /// What of it is merged; `None`: it is given up.
    pub merged: Option<Merged>,
}

/// What of a part is merged into another one.
#[derive(Clone, Debug)]
pub struct Merged {
    /// Its state after so many steps.
    pub steps: StepNumber,
    /// Samples that the part which stays has trained alone.
    pub ours: u64,
    /// Samples that the other one has trained alone, up to that step.
    pub theirs: u64,
    /// How well both did, and what came of it.
    pub weighed: Option<Weighed>,
}

impl History {
    /// A member says that its part merges another one: that with this view.
    pub fn merged(&mut self, host: HostId, at: Instant, view: ViewDigest, merged: Merged) {
        let Some(yields) = self.views.iter().find(|note| note.digest == view).map(|note| note.lineage) else {
            return;
        };
        let is_it = |healing: &Healing| {
            healing.yields == yields && healing.merged.as_ref().map(|it| it.steps) == Some(merged.steps)
        };
        if !self.healings.iter().any(is_it) {
            self.healings.push(Healing { at, host, yields, merged: Some(merged) });
        }
    }

    /// A member says how well both parts did.
    pub fn weighed(&mut self, host: HostId, weighed: Weighed) {
        let stays = self.lineage_at(host);
        let newest = self.healings.iter().rposition(|it| it.merged.is_some() && self.stays(it) == stays);
        if let Some(merged) = newest.and_then(|index| self.healings[index].merged.as_mut()) {
            merged.weighed = Some(weighed);
        }
    }

    /// A member says that its part yields to another one, and nothing of it is kept.
    pub fn gave_way(&mut self, host: HostId, at: Instant) {
        let Some(yields) = self.lineage_at(host) else { return };
        if !self.healings.iter().any(|healing| healing.yields == yields) {
            self.healings.push(Healing { at, host, yields, merged: None });
        }
    }

    /// The lineage in which a host last was a member.
    fn lineage_at(&self, host: HostId) -> Option<usize> {
        match self.member_state(host)? {
            State::Member(view) => Some(self.views[view].lineage),
            _ => None,
        }
    }

    /// The lineage of the part that stays, if it is known.
    fn stays(&self, healing: &Healing) -> Option<usize> {
        let lineage = |view: usize| self.views[view].lineage;
        let spans = self.lanes[healing.host.index()].spans.iter();
        let mut views = spans.filter_map(|span| match span.state {
            State::Member(view) => Some((span.from, view)),
            _ => None,
        });
        if healing.merged.is_some() {
            return views.take_while(|(from, _)| *from <= healing.at).last().map(|(_, view)| lineage(view));
        }
        let is_other = |view: &usize| lineage(*view) != healing.yields;
        views.find(|(from, view)| *from >= healing.at && is_other(view)).map(|(_, view)| lineage(view))
    }

    /// The step with which two lineages went apart: where the younger one begins.
    fn fork_of(&self, lineage: usize, other: Option<usize>) -> u64 {
        let younger = other.map_or(lineage, |other| lineage.max(other));
        let first = self.views.iter().find(|note| note.lineage == younger);
        first.map_or(0, |note| note.view.first_step().0)
    }

    /// What was healed, a sentence or two each, in order.
    #[must_use]
    pub fn healings_in_words(&self) -> Vec<String> {
        self.healings.iter().map(|healing| self.tell(healing)).collect()
    }

    fn tell(&self, healing: &Healing) -> String {
        let stays = self.stays(healing);
        let fork = self.fork_of(healing.yields, stays);
        let steps = self.commits.iter().filter(|note| self.views[note.view].lineage == healing.yields);
        let after = steps.filter(|note| note.committed.step.0 >= fork);
        let (mut end, mut samples) = (fork, 0);
        for note in after {
            end = end.max(note.committed.step.0 + 1);
            samples += note.committed.samples * note.count;
        }
        let made = end - fork;
        let part = letter(healing.yields);
        let other = stays.map_or("the other part".to_owned(), |stays| format!("part {}", letter(stays)));
        let at = seconds(healing.at);
        let Some(Merged { steps, ours, theirs, weighed }) = &healing.merged else {
            return match made {
                0 => format!("At {at} part {part}, which had trained nothing alone, came back to {other}."),
                _ => format!(
                    "At {at} part {part} yielded to {other}: all that it had trained alone was given up, {} ({} samples), and is trained again there.",
                    plural(made, "step"),
                    grouped(samples)
                ),
            };
        };
        let kept = steps.0.saturating_sub(fork).min(made);
        let mut words = format!(
            "At {at} part {part} was merged into {other}: {} of its {} since they went apart ({} samples, beside {} that {other} trained alone)",
            grouped(kept),
            plural(made, "step"),
            grouped(*theirs),
            grouped(*ours)
        );
        words.push_str(&match made - kept {
            0 => ".".to_owned(),
            1 => "; the one step that it made while this was agreed on was given up, and is trained again."
                .to_owned(),
            lost => format!(
                "; the {} steps that it made while this was agreed on were given up, and are trained again.",
                grouped(lost)
            ),
        });
        if let Some(Weighed { ours, theirs, merged, distance, norm }) = weighed {
            let stayed = stays.map_or("there".to_owned(), |stays| format!("of {}", letter(stays)));
            words.push_str(&format!(
                " On held-out samples: {} {stayed} before, {} of {part}, {} of both together; their parameters were {:.1} % apart.",
                quality(ours),
                quality(theirs),
                quality(merged),
                100.0 * distance / norm.max(f64::MIN_POSITIVE)
            ));
        }
        words
    }
}

/// A lineage's letter: A to Z, then A1 and so on.
#[must_use]
pub fn letter(lineage: usize) -> String {
    let letter = char::from(b'A' + (lineage % 26) as u8);
    if lineage < 26 { letter.to_string() } else { format!("{letter}{}", lineage / 26) }
}

fn quality(evaluation: &Evaluation) -> String {
    let Evaluation { loss, accuracy, .. } = evaluation;
    accuracy.map_or(format!("loss {loss:.4}"), |accuracy| format!("loss {loss:.4} (accuracy {accuracy:.4})"))
}

fn seconds(at: Instant) -> String {
    peergrad::page::axis::duration(at.0)
}

fn plural(count: u64, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{} {word}s", grouped(count)) }
}

fn grouped(count: u64) -> String {
    peergrad::page::axis::count(count)
}
