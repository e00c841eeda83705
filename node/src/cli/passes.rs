//! The passes as this peer has seen them: how many samples of each were trained, and whether that is all of them, once.
//!
//! Counted from the steps that were committed, not taken from the ledger by which they are dealt. Of a long run the newest passes
//! are kept one by one, and of those before the sums.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::table::count;
use super::table::plural;
use crate::io::Committed;

/// What was committed, pass by pass.
#[derive(Default)]
pub(super) struct Passes {
    /// The newest.
    list: VecDeque<Pass>,
    before: Before,
    next_step: u64,
}

/// The sums over the passes that are not kept one by one any more.
#[derive(Default)]
struct Before {
    whole: u64,
    in_part: u64,
    left_out: u64,
    lost: u64,
    repeated: u64,
}

struct Pass {
    number: u64,
    trained: u64,
    left_out: u64,
    /// This peer has seen every step of it so far.
    is_whole: bool,
}

impl Passes {
    /// A step is committed; a pass has `all` samples.
    pub(super) fn note(&mut self, committed: &Committed, all: u64) {
        let Committed { step, pass, samples, left_out, .. } = *committed;
        let is_next = step.0 == self.next_step;
        self.next_step = step.0 + 1;
        if !is_next && let Some(last) = self.list.back_mut() {
            last.is_whole = false;
        }
        if self.list.back().is_none_or(|last| last.number != pass) {
            self.list.push_back(Pass { number: pass, trained: 0, left_out: 0, is_whole: is_next });
        }
        let last = self.list.back_mut().expect("just pushed");
        last.trained += samples;
        last.left_out += left_out;
        if self.list.len() > PASSES_MAX
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

    /// Each pass, of so many samples, as JSON.
    pub(super) fn objects(&self, samples: u64) -> Vec<Value> {
        let object = |pass: &Pass| {
            let (lost, repeated) = pass.balance(samples).unzip();
            json!({
                "pass": pass.number, "trained": pass.trained, "left_out": pass.left_out,
                "lost": lost, "repeated": repeated,
            })
        };
        self.list.iter().map(object).collect()
    }

    /// All passes, of so many samples each, in words.
    pub(super) fn words(&self, samples: u64) -> String {
        let whole: Vec<&Pass> = self.list.iter().filter(|pass| pass.is_whole).collect();
        let wrong = |pass: &&&Pass| pass.balance(samples) != Some((0, 0));
        let mut words: Vec<String> = Vec::new();
        let before = &self.before;
        if before.lost + before.repeated > 0 {
            let (lost, repeated) = (count(before.lost), count(before.repeated));
            words.push(format!("passes before: {lost} samples lost, {repeated} repeated"));
        }
        for pass in whole.iter().filter(wrong) {
            let (lost, repeated) = pass.balance(samples).unwrap_or_default();
            let number = pass.number + 1;
            words.push(format!("pass {number}: {} samples lost, {} repeated", count(lost), count(repeated)));
        }
        let left_out = before.left_out + self.list.iter().map(|pass| pass.left_out).sum::<u64>();
        if words.is_empty() && !whole.is_empty() {
            let which = if left_out == 0 { "each sample" } else { "each sample dealt" };
            words.push(format!("{which} once a pass"));
        }
        if left_out > 0 {
            words.push(format!("{} left out", plural(left_out as usize, "sample")));
        }
        let in_part = self.list.len() - whole.len() + before.in_part as usize;
        if in_part > 0 {
            words.push(format!("{} seen in part", plural(in_part, "pass")));
        }
        words.join("; ")
    }
}

impl Before {
    fn add(&mut self, pass: &Pass, all: u64) {
        self.left_out += pass.left_out;
        match pass.balance(all) {
            Some((lost, repeated)) => {
                self.whole += 1;
                self.lost += lost;
                self.repeated += repeated;
            }
            None => self.in_part += 1,
        }
    }
}

impl Pass {
    /// Samples lost and repeated, if it was seen as a whole.
    fn balance(&self, samples: u64) -> Option<(u64, u64)> {
        let taken = self.trained + self.left_out;
        self.is_whole.then(|| (samples.saturating_sub(taken), taken.saturating_sub(samples)))
    }
}

/// Passes that are kept one by one.
const PASSES_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use peergrad_protocol::StepNumber;

    use super::*;

    fn passes(steps: &[(u64, u64, u64)]) -> Passes {
        let mut passes = Passes::default();
        for &(step, pass, samples) in steps {
            let step = StepNumber(step);
            let committed = Committed {
                step,
                pass,
                steps_expected: 0,
                loss: 0.0,
                samples,
                left_out: 0,
                may_be_late: false,
                is_own: false,
                rate: 0.1,
                digest: None,
            };
            passes.note(&committed, 10);
        }
        passes
    }

    #[test]
    fn of_a_long_run_sums_are_kept() {
        let steps: Vec<(u64, u64, u64)> = (0..3000).map(|step| (step, step, 10)).collect();
        let mut long = passes(&steps);
        assert_eq!((long.list.len(), long.objects(10).len()), (PASSES_MAX, PASSES_MAX));
        assert_eq!(long.words(10), "each sample once a pass");
        assert_eq!(long.before().unwrap()["whole"], 2000);
        assert_eq!(passes(&[(0, 0, 10)]).before(), None);
        // One of the first trained too much, and after it a step was not seen: its pass may have begun before or gone on after.
        let mut steps = steps;
        steps[3].2 = 12;
        steps.remove(5);
        long = passes(&steps);
        assert_eq!(long.words(10), "passes before: 0 samples lost, 2 repeated; 2 passes seen in part");
    }

    #[test]
    fn what_is_lost_and_repeated_is_counted() {
        let right = passes(&[(0, 0, 6), (1, 0, 4), (2, 1, 10)]);
        assert_eq!(right.words(10), "each sample once a pass");
        let wrong = passes(&[(0, 0, 6), (1, 1, 12)]);
        assert_eq!(wrong.words(10), "pass 1: 4 samples lost, 0 repeated; pass 2: 0 samples lost, 2 repeated");
        assert_eq!(
            (&wrong.objects(10)[0]["lost"], &wrong.objects(10)[1]["repeated"]),
            (&json!(4), &json!(2))
        );
    }

    #[test]
    fn what_was_left_out_is_said() {
        let mut passes = passes(&[(0, 0, 6)]);
        passes.list[0].left_out = 4;
        assert_eq!(passes.words(10), "each sample dealt once a pass; 4 samples left out");
    }

    #[test]
    fn a_pass_that_was_not_seen_from_its_first_step_proves_nothing() {
        let late = passes(&[(7, 3, 2), (8, 4, 10)]);
        assert_eq!(late.words(10), "each sample once a pass; 1 pass seen in part");
        assert_eq!(late.objects(10)[0]["lost"], Value::Null);
        let absent = passes(&[(0, 0, 10), (1, 1, 5), (5, 1, 2), (6, 2, 10)]);
        assert_eq!(absent.words(10), "each sample once a pass; 1 pass seen in part");
    }
}
