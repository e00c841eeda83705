//! A check of the promise that every sample is trained exactly once per epoch: counts the samples of each epoch.
//!
//! The counts come from committed steps, not from the data cursor that assigns samples, so the check is independent. The newest
//! epochs of a long run are kept one by one; older ones are summed up.

use std::collections::VecDeque;

use peergrad_core::io::Committed;
use serde_json::{Value, json};

use peergrad_embed::text::text_table::{count, plural};

/// The samples of the committed steps, by epoch.
#[derive(Default)]
pub(super) struct Epochs {
    /// The newest epochs, oldest first.
    list: VecDeque<Epoch>,
    /// The sums of the older ones.
    before: Before,
    /// The step that would follow the newest one.
    next_step: u64,
    /// Whether the run ends early: samples of the newest epoch that no step was assigned are not lost.
    ends_early: bool,
}

/// The sums over epochs that are no longer kept one by one.
#[derive(Default)]
struct Before {
    /// The epochs in which this peer saw every step.
    whole: u64,
    /// Other epochs.
    in_part: u64,
    left_out: u64,
    lost: u64,
    repeated: u64,
}

struct Epoch {
    number: u64,
    trained: u64,
    left_out: u64,
    /// Whether this peer has seen every step of the epoch so far.
    is_whole: bool,
}

impl Epochs {
    /// Counts a committed step; an epoch has `all` samples.
    pub(super) fn note(&mut self, committed: &Committed, all: u64) {
        let Committed { step, epoch, samples, left_out, .. } = *committed;
        let is_next = step.0 == self.next_step;
        self.next_step = step.0 + 1;
        if !is_next && let Some(last) = self.list.back_mut() {
            last.is_whole = false;
        }
        if self.list.back().is_none_or(|last| last.number != epoch) {
            self.list.push_back(Epoch { number: epoch, trained: 0, left_out: 0, is_whole: is_next });
        }
        let last = self.list.back_mut().expect("an epoch was pushed if there was none");
        last.trained += samples;
        last.left_out += left_out;
        if self.list.len() > EPOCHS_MAX
            && let Some(oldest) = self.list.pop_front()
        {
            self.before.add(&oldest, all);
        }
    }

    /// The run ends before its epochs are over.
    pub(super) fn end_early(&mut self) {
        self.ends_early = true;
    }

    /// The samples that were lost and repeated in an epoch; `None` if this peer has not seen every step.
    fn balance(&self, epoch: &Epoch, samples: u64) -> Option<(u64, u64)> {
        let (lost, repeated) = epoch.balance(samples)?;
        Some((if self.is_cut(epoch) { 0 } else { lost }, repeated))
    }

    /// Whether the run ended in this epoch, before it was over.
    fn is_cut(&self, epoch: &Epoch) -> bool {
        self.ends_early && self.list.back().is_some_and(|last| last.number == epoch.number)
    }

    /// The sums of the older epochs as JSON; `None` if all epochs are kept one by one.
    pub(super) fn before(&self) -> Option<Value> {
        let Before { whole, in_part, left_out, lost, repeated } = self.before;
        (whole + in_part > 0).then(|| {
            json!({
                "whole": whole, "in_part": in_part, "left_out": left_out, "lost": lost, "repeated": repeated,
            })
        })
    }

    /// The newest epochs as JSON; an epoch has `samples` samples.
    pub(super) fn objects(&self, samples: u64) -> Vec<Value> {
        let object = |epoch: &Epoch| {
            let (lost, repeated) = self.balance(epoch, samples).unzip();
            json!({
                "epoch": epoch.number, "trained": epoch.trained, "left_out": epoch.left_out,
                "lost": lost, "repeated": repeated,
            })
        };
        self.list.iter().map(object).collect()
    }

    /// All epochs as text; an epoch has `samples` samples.
    pub(super) fn text(&self, samples: u64) -> String {
        let whole: Vec<&Epoch> = self.list.iter().filter(|epoch| epoch.is_whole).collect();
        let wrong = |epoch: &&&Epoch| self.balance(epoch, samples) != Some((0, 0));
        let mut parts: Vec<String> = Vec::new();
        let before = &self.before;
        if before.lost + before.repeated > 0 {
            let (lost, repeated) = (count(before.lost), count(before.repeated));
            parts.push(format!("epochs before: {lost} samples lost, {repeated} repeated"));
        }
        for epoch in whole.iter().filter(wrong) {
            let (lost, repeated) = self.balance(epoch, samples).unwrap_or_default();
            let number = epoch.number + 1;
            parts.push(format!("epoch {number}: {} samples lost, {} repeated", count(lost), count(repeated)));
        }
        let left_out = before.left_out + self.list.iter().map(|epoch| epoch.left_out).sum::<u64>();
        if parts.is_empty() && !whole.is_empty() {
            let which = if left_out == 0 { "each sample trained" } else { "each sample assigned" };
            parts.push(format!("{which} once per epoch"));
        }
        let untrained = |epoch: &&&Epoch| self.is_cut(epoch) && epoch.balance(samples) != Some((0, 0));
        if let Some(last) = whole.iter().find(untrained) {
            let (untrained, _) = last.balance(samples).unwrap_or_default();
            parts.push(format!(
                "ended early, before {} of epoch {}",
                plural(untrained as usize, "sample"),
                last.number + 1
            ));
        }
        if left_out > 0 {
            parts.push(format!("{} left out", plural(left_out as usize, "sample")));
        }
        let in_part = self.list.len() - whole.len() + before.in_part as usize;
        if in_part > 0 {
            parts.push(format!("{} only partly seen", plural(in_part, "epoch")));
        }
        parts.join("; ")
    }
}

impl Before {
    fn add(&mut self, epoch: &Epoch, all: u64) {
        self.left_out += epoch.left_out;
        match epoch.balance(all) {
            Some((lost, repeated)) => {
                self.whole += 1;
                self.lost += lost;
                self.repeated += repeated;
            }
            None => self.in_part += 1,
        }
    }
}

impl Epoch {
    /// The samples that were lost and repeated; `None` if this peer has not seen every step.
    fn balance(&self, samples: u64) -> Option<(u64, u64)> {
        let taken = self.trained + self.left_out;
        self.is_whole.then(|| (samples.saturating_sub(taken), taken.saturating_sub(samples)))
    }
}

/// The most epochs that are kept one by one.
const EPOCHS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use peergrad_protocol::StepNumber;

    use super::*;

    fn epochs(steps: &[(u64, u64, u64)]) -> Epochs {
        let mut epochs = Epochs::default();
        for &(step, epoch, samples) in steps {
            let step = StepNumber(step);
            let committed = Committed {
                step,
                epoch,
                steps_expected: 0,
                loss: 0.0,
                samples,
                left_out: 0,
                may_be_late: false,
                is_own: false,
                rate: 0.1,
                digest: None,
            };
            epochs.note(&committed, 10);
        }
        epochs
    }

    #[test]
    fn samples_after_an_early_end_are_not_lost() {
        let mut epochs = epochs(&[(0, 0, 10), (1, 1, 4)]);
        assert_eq!(epochs.text(10), "epoch 2: 6 samples lost, 0 repeated");
        epochs.end_early();
        assert_eq!(
            epochs.text(10),
            "each sample trained once per epoch; ended early, before 6 samples of epoch 2"
        );
        assert_eq!(epochs.objects(10)[1]["lost"], 0);
    }

    #[test]
    fn the_oldest_epochs_of_a_long_run_are_kept_as_sums() {
        let steps: Vec<(u64, u64, u64)> = (0..3000).map(|step| (step, step, 10)).collect();
        let mut long = epochs(&steps);
        assert_eq!((long.list.len(), long.objects(10).len()), (EPOCHS_MAX, EPOCHS_MAX));
        assert_eq!(long.text(10), "each sample trained once per epoch");
        assert_eq!(long.before().unwrap()["whole"], 2000);
        assert_eq!(epochs(&[(0, 0, 10)]).before(), None);
        // One of the first trained too much, and after it a step was not seen: its epoch may have begun before or gone on after.
        let mut steps = steps;
        steps[3].2 = 12;
        steps.remove(5);
        long = epochs(&steps);
        assert_eq!(long.text(10), "epochs before: 0 samples lost, 2 repeated; 2 epochs only partly seen");
    }

    #[test]
    fn lost_and_repeated_samples_are_counted() {
        let right = epochs(&[(0, 0, 6), (1, 0, 4), (2, 1, 10)]);
        assert_eq!(right.text(10), "each sample trained once per epoch");
        let wrong = epochs(&[(0, 0, 6), (1, 1, 12)]);
        assert_eq!(
            wrong.text(10),
            "epoch 1: 4 samples lost, 0 repeated; epoch 2: 0 samples lost, 2 repeated"
        );
        assert_eq!(
            (&wrong.objects(10)[0]["lost"], &wrong.objects(10)[1]["repeated"]),
            (&json!(4), &json!(2))
        );
    }

    #[test]
    fn left_out_samples_are_reported() {
        let mut epochs = epochs(&[(0, 0, 6)]);
        epochs.list[0].left_out = 4;
        assert_eq!(epochs.text(10), "each sample assigned once per epoch; 4 samples left out");
    }

    #[test]
    fn a_partly_seen_epoch_reports_no_lost_samples() {
        let late = epochs(&[(7, 3, 2), (8, 4, 10)]);
        assert_eq!(late.text(10), "each sample trained once per epoch; 1 epoch only partly seen");
        assert_eq!(late.objects(10)[0]["lost"], Value::Null);
        let absent = epochs(&[(0, 0, 10), (1, 1, 5), (5, 1, 2), (6, 2, 10)]);
        assert_eq!(absent.text(10), "each sample trained once per epoch; 1 epoch only partly seen");
    }
}
