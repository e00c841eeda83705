//! The epochs as this peer has seen them: how many samples of each were trained, and whether that is all of them, once.
//!
//! Counted from the steps that were committed, not taken from the cursor by which they are dealt. Of a long run the newest epochs
//! are kept one by one, and of those before the sums.

use std::collections::VecDeque;

use peergrad_core::io::Committed;
use serde_json::{Value, json};

use crate::text::text_table::count;
use crate::text::text_table::plural;

/// What was committed, epoch by epoch.
#[derive(Default)]
pub(super) struct Epochs {
    /// The newest.
    list: VecDeque<Epoch>,
    before: Before,
    next_step: u64,
}

/// The sums over the epochs that are not kept one by one any more.
#[derive(Default)]
struct Before {
    whole: u64,
    in_part: u64,
    left_out: u64,
    lost: u64,
    repeated: u64,
}

struct Epoch {
    number: u64,
    trained: u64,
    left_out: u64,
    /// This peer has seen every step of it so far.
    is_whole: bool,
}

impl Epochs {
    /// A step is committed; an epoch has `all` samples.
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
        let last = self.list.back_mut().expect("just pushed");
        last.trained += samples;
        last.left_out += left_out;
        if self.list.len() > EPOCHS_MAX
            && let Some(oldest) = self.list.pop_front()
        {
            self.before.add(&oldest, all);
        }
    }

    /// What is not kept one by one, as JSON; `None` where all is.
    pub(super) fn before(&self) -> Option<Value> {
        let Before { whole, in_part, left_out, lost, repeated } = self.before;
        (whole + in_part > 0).then(|| {
            json!({
                "whole": whole, "in_part": in_part, "left_out": left_out, "lost": lost, "repeated": repeated,
            })
        })
    }

    /// Each epoch, of so many samples, as JSON.
    pub(super) fn objects(&self, samples: u64) -> Vec<Value> {
        let object = |epoch: &Epoch| {
            let (lost, repeated) = epoch.balance(samples).unzip();
            json!({
                "epoch": epoch.number, "trained": epoch.trained, "left_out": epoch.left_out,
                "lost": lost, "repeated": repeated,
            })
        };
        self.list.iter().map(object).collect()
    }

    /// All epochs, of so many samples each, in words.
    pub(super) fn words(&self, samples: u64) -> String {
        let whole: Vec<&Epoch> = self.list.iter().filter(|epoch| epoch.is_whole).collect();
        let wrong = |epoch: &&&Epoch| epoch.balance(samples) != Some((0, 0));
        let mut words: Vec<String> = Vec::new();
        let before = &self.before;
        if before.lost + before.repeated > 0 {
            let (lost, repeated) = (count(before.lost), count(before.repeated));
            words.push(format!("epochs before: {lost} samples lost, {repeated} repeated"));
        }
        for epoch in whole.iter().filter(wrong) {
            let (lost, repeated) = epoch.balance(samples).unwrap_or_default();
            let number = epoch.number + 1;
            words.push(format!("epoch {number}: {} samples lost, {} repeated", count(lost), count(repeated)));
        }
        let left_out = before.left_out + self.list.iter().map(|epoch| epoch.left_out).sum::<u64>();
        if words.is_empty() && !whole.is_empty() {
            let which = if left_out == 0 { "each sample" } else { "each sample dealt" };
            words.push(format!("{which} once an epoch"));
        }
        if left_out > 0 {
            words.push(format!("{} left out", plural(left_out as usize, "sample")));
        }
        let in_part = self.list.len() - whole.len() + before.in_part as usize;
        if in_part > 0 {
            words.push(format!("{} seen in part", plural(in_part, "epoch")));
        }
        words.join("; ")
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
    /// Samples lost and repeated, if it was seen as a whole.
    fn balance(&self, samples: u64) -> Option<(u64, u64)> {
        let taken = self.trained + self.left_out;
        self.is_whole.then(|| (samples.saturating_sub(taken), taken.saturating_sub(samples)))
    }
}

/// Epochs that are kept one by one.
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
    fn of_a_long_run_sums_are_kept() {
        let steps: Vec<(u64, u64, u64)> = (0..3000).map(|step| (step, step, 10)).collect();
        let mut long = epochs(&steps);
        assert_eq!((long.list.len(), long.objects(10).len()), (EPOCHS_MAX, EPOCHS_MAX));
        assert_eq!(long.words(10), "each sample once an epoch");
        assert_eq!(long.before().unwrap()["whole"], 2000);
        assert_eq!(epochs(&[(0, 0, 10)]).before(), None);
        // One of the first trained too much, and after it a step was not seen: its epoch may have begun before or gone on after.
        let mut steps = steps;
        steps[3].2 = 12;
        steps.remove(5);
        long = epochs(&steps);
        assert_eq!(long.words(10), "epochs before: 0 samples lost, 2 repeated; 2 epochs seen in part");
    }

    #[test]
    fn what_is_lost_and_repeated_is_counted() {
        let right = epochs(&[(0, 0, 6), (1, 0, 4), (2, 1, 10)]);
        assert_eq!(right.words(10), "each sample once an epoch");
        let wrong = epochs(&[(0, 0, 6), (1, 1, 12)]);
        assert_eq!(
            wrong.words(10),
            "epoch 1: 4 samples lost, 0 repeated; epoch 2: 0 samples lost, 2 repeated"
        );
        assert_eq!(
            (&wrong.objects(10)[0]["lost"], &wrong.objects(10)[1]["repeated"]),
            (&json!(4), &json!(2))
        );
    }

    #[test]
    fn what_was_left_out_is_said() {
        let mut epochs = epochs(&[(0, 0, 6)]);
        epochs.list[0].left_out = 4;
        assert_eq!(epochs.words(10), "each sample dealt once an epoch; 4 samples left out");
    }

    #[test]
    fn an_epoch_that_was_not_seen_from_its_first_step_proves_nothing() {
        let late = epochs(&[(7, 3, 2), (8, 4, 10)]);
        assert_eq!(late.words(10), "each sample once an epoch; 1 epoch seen in part");
        assert_eq!(late.objects(10)[0]["lost"], Value::Null);
        let absent = epochs(&[(0, 0, 10), (1, 1, 5), (5, 1, 2), (6, 2, 10)]);
        assert_eq!(absent.words(10), "each sample once an epoch; 1 epoch seen in part");
    }
}
