//! Evaluations during the run: how good the parameters are on held-out samples, every so many steps.
//!
//! # How it works
//! 1. At the commit of a step whose number is a multiple of `every`, all members save a checkpoint, and one of them, in turn, evaluates the
//!    parameters beside its training. It tells all members the result.
//! 2. If the loss is the lowest so far, each member keeps its checkpoint of that step as the best one.
//! 3. Once `patience` evaluations in a row were not the best, the member that has evaluated orders to end the run.
//!
//! An evaluation tells also which one was the best before it, for members that have joined since. If the member whose turn it is has left, or
//! is still evaluating, that turn is skipped.

use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::message::{BestEvaluation, Evaluated};
use peergrad_protocol::{Buffer, Rank, StepNumber};

use crate::program::loader::EvaluationConfig;

/// The evaluations of a run, as one member knows them.
#[derive(Default)]
pub(crate) struct Evaluations {
    /// When to evaluate; `None`: only the final parameters are evaluated.
    config: Option<EvaluationConfig>,
    /// The best one so far; `None` before the first.
    best: Option<BestEvaluation>,
    /// How many came since.
    since_best: u32,
    /// The newest step after which parameters are evaluated, until the result is known.
    pending: Option<StepNumber>,
    /// The parameters that this member is to evaluate next.
    due: Option<(StepNumber, Arc<Buffer>)>,
    /// Whether this member is evaluating.
    is_evaluating: bool,
}

/// What follows from an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether it is the best so far.
    pub(crate) is_best: bool,
    /// Whether too many in a row were not.
    pub(crate) ends_run: bool,
}

impl Evaluations {
    /// The evaluations of a run with this configuration.
    pub(super) fn new(config: Option<EvaluationConfig>) -> Self {
        Self { config, ..Self::default() }
    }

    /// Whether the parameters after so many steps are evaluated.
    pub(super) fn are_due_after(&self, steps: StepNumber) -> bool {
        self.config.is_some_and(|config| steps.0 > 0 && steps.0.is_multiple_of(config.every.get()))
    }

    /// So many steps are committed, which led to these parameters. `rank` is this member's rank among so many.
    pub(super) fn committed(
        &mut self,
        steps: StepNumber,
        parameters: &Arc<Buffer>,
        rank: Rank,
        members: usize,
    ) {
        let Some(config) = self.config.filter(|_| self.are_due_after(steps)) else { return };
        self.pending = Some(steps);
        let turn = (steps.0 / config.every.get()) % members as u64;
        if turn == u64::from(rank.0) && !self.is_evaluating {
            self.due = Some((steps, Arc::clone(parameters)));
        }
    }

    /// The parameters that this member is to evaluate now, and the number of steps behind them.
    pub(crate) fn take_due(&mut self) -> Option<(StepNumber, Arc<Buffer>)> {
        let due = self.due.take();
        self.is_evaluating |= due.is_some();
        due
    }

    /// This member has evaluated the parameters after so many steps: what it tells the others.
    pub(crate) fn finish(&mut self, steps: StepNumber, evaluation: Evaluation) -> Evaluated {
        self.is_evaluating = false;
        let this = BestEvaluation { steps, loss: evaluation.loss };
        let best = self.best.filter(|best| !this.is_better_than(best)).unwrap_or(this);
        let Evaluation { samples, loss, accuracy } = evaluation;
        Evaluated { steps, samples, loss, accuracy, best }
    }

    /// A member has evaluated.
    pub(crate) fn note(&mut self, evaluated: &Evaluated) -> Verdict {
        self.pending = self.pending.filter(|pending| *pending > evaluated.steps);
        let this = BestEvaluation { steps: evaluated.steps, loss: evaluated.loss };
        let known = self.best.filter(|best| !evaluated.best.is_better_than(best));
        let is_best = this.loss.is_finite() && known.is_none_or(|best| this.is_better_than(&best));
        let is_best = is_best && evaluated.best == this;
        self.best = Some(known.filter(|_| !is_best).unwrap_or(evaluated.best));
        self.since_best = if is_best { 0 } else { self.since_best + 1 };
        let patience = self.config.and_then(|config| config.patience);
        let ends_run = !is_best && patience.is_some_and(|patience| self.since_best >= patience.get());
        Verdict { is_best, ends_run }
    }

    /// The step whose checkpoint may turn out to be the best.
    pub(crate) fn candidate(&self) -> Option<StepNumber> {
        self.pending
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;

    fn evaluations(patience: u32) -> Evaluations {
        let (every, patience) = (NonZeroU64::new(10).unwrap(), NonZeroU32::new(patience));
        Evaluations::new(Some(EvaluationConfig { every, patience }))
    }

    fn evaluation(loss: f64) -> Evaluation {
        Evaluation { samples: 8, loss, accuracy: None }
    }

    #[test]
    fn members_take_turns_and_one_that_is_evaluating_skips_its_turn() {
        let parameters = Arc::new(Buffer::from_values(&[1.0]));
        let mut members = [0, 1].map(|_| evaluations(0));
        let mut turns = Vec::new();
        for steps in (0..=40).map(StepNumber) {
            for (rank, member) in members.iter_mut().enumerate() {
                member.committed(steps, &parameters, Rank(rank as u32), 2);
                turns.extend(member.take_due().map(|(steps, _)| (rank, steps.0)));
            }
        }
        assert_eq!(turns, [(1, 10), (0, 20)], "nobody has finished");
        members[1].finish(StepNumber(10), evaluation(1.0));
        members[1].committed(StepNumber(50), &parameters, Rank(1), 2);
        assert_eq!(members[1].take_due().map(|(steps, _)| steps.0), Some(50));
    }

    #[test]
    fn the_lowest_loss_is_the_best_and_patience_ends() {
        let mut all = evaluations(2);
        let mut verdicts = Vec::new();
        for (turn, loss) in [3.0, 2.0, f64::NAN, 2.5].into_iter().enumerate() {
            let told = all.finish(StepNumber(10 * (turn as u64 + 1)), evaluation(loss));
            let Verdict { is_best, ends_run } = all.note(&told);
            verdicts.push((is_best, ends_run));
        }
        assert_eq!(verdicts, [(true, false), (true, false), (false, false), (false, true)]);
        assert_eq!(all.best, Some(BestEvaluation { steps: StepNumber(20), loss: 2.0 }));
    }

    #[test]
    fn a_newcomer_learns_the_best_from_the_next_evaluation() {
        let (mut old, mut new) = (evaluations(0), evaluations(0));
        let first = old.finish(StepNumber(10), evaluation(1.0));
        old.note(&first);
        let second = old.finish(StepNumber(20), evaluation(2.0));
        assert!(!old.note(&second).is_best && !new.note(&second).is_best);
        assert_eq!(new.best, old.best);
        // It evaluates before it has heard of the best: those that know better keep what they know.
        let mut newest = evaluations(0);
        let third = newest.finish(StepNumber(30), evaluation(1.5));
        assert!(newest.note(&third).is_best && !old.note(&third).is_best);
        assert_eq!(old.best.map(|best| best.steps), Some(StepNumber(10)));
    }

    #[test]
    fn a_checkpoint_may_be_the_best_until_its_result_is_known() {
        let mut all = evaluations(0);
        let parameters = Arc::new(Buffer::from_values(&[1.0]));
        all.committed(StepNumber(10), &parameters, Rank(0), 3);
        assert_eq!(all.candidate(), Some(StepNumber(10)));
        let told = all.finish(StepNumber(10), evaluation(1.0));
        all.note(&told);
        assert_eq!(all.candidate(), None);
    }
}
