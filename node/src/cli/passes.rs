//! The passes as this peer has seen them: how many samples of each were trained, and whether that is all of them, once.
//!
//! Counted from the steps that were committed, not taken from the ledger by which they are dealt.

use serde_json::{Value, json};

use super::table::count;
use super::table::plural;
use crate::io::Committed;

/// What was committed, pass by pass.
#[derive(Default)]
pub(super) struct Passes {
    list: Vec<Pass>,
    next_step: u64,
}

struct Pass {
    number: u64,
    trained: u64,
    left_out: u64,
    /// This peer has seen every step of it so far.
    is_whole: bool,
}

impl Passes {
    /// A step is committed.
    pub(super) fn note(&mut self, committed: &Committed) {
        let Committed { step, pass, samples, left_out, .. } = *committed;
        let is_next = step.0 == self.next_step;
        self.next_step = step.0 + 1;
        if !is_next && let Some(last) = self.list.last_mut() {
            last.is_whole = false;
        }
        if self.list.last().is_none_or(|last| last.number != pass) {
            self.list.push(Pass { number: pass, trained: 0, left_out: 0, is_whole: is_next });
        }
        let last = self.list.last_mut().expect("just pushed");
        last.trained += samples;
        last.left_out += left_out;
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
        for pass in whole.iter().filter(wrong) {
            let (lost, repeated) = pass.balance(samples).unwrap_or_default();
            let number = pass.number + 1;
            words.push(format!("pass {number}: {} samples lost, {} repeated", count(lost), count(repeated)));
        }
        let left_out: u64 = self.list.iter().map(|pass| pass.left_out).sum();
        if words.is_empty() && !whole.is_empty() {
            let which = if left_out == 0 { "each sample" } else { "each sample dealt" };
            words.push(format!("{which} once a pass"));
        }
        if left_out > 0 {
            words.push(format!("{} left out", plural(left_out as usize, "sample")));
        }
        if whole.len() < self.list.len() {
            words.push(format!("{} seen in part", plural(self.list.len() - whole.len(), "pass")));
        }
        words.join("; ")
    }
}

impl Pass {
    /// Samples lost and repeated, if it was seen as a whole.
    fn balance(&self, samples: u64) -> Option<(u64, u64)> {
        let taken = self.trained + self.left_out;
        self.is_whole.then(|| (samples.saturating_sub(taken), taken.saturating_sub(samples)))
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::StepNumber;

    use super::*;

    fn passes(steps: &[(u64, u64, u64)]) -> Passes {
        let mut passes = Passes::default();
        for &(step, pass, samples) in steps {
            let step = StepNumber(step);
            passes.note(&Committed {
                step,
                pass,
                loss: 0.0,
                samples,
                left_out: 0,
                may_be_late: false,
                rate: 0.1,
                digest: None,
            });
        }
        passes
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
