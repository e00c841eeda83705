//! Evaluations during the run: how good the parameters are on held-out samples, every so many steps.
//!
//! # How it works
//! 1. At the commit of a step whose number is a multiple of `every`, all members save a checkpoint, and one of them, in turn, evaluates the
//!    parameters beside its training. It tells all members that it begins, and later the result.
//! 2. If the loss is the lowest so far, each member keeps its checkpoint of that step as the best one. Until the result is known, that
//!    checkpoint is a *candidate*, which newer ones do not replace.
//! 3. Once `stop_after` evaluations in a row were not the best, the member that has evaluated orders to end the run.
//!
//! A member that awaits a result leaves out its own turn. It awaits none any more of a member that has left.
//!
//! A checkpoint has the best evaluation before it, and each result names the best one. So a restarted peer and a joiner know it. A joiner
//! that evaluates before it has heard of any result does not call its own the best.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::message::{BestEvaluation, Evaluated};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Incarnation, PeerId, Rank, StepNumber};

use crate::program::loader::EvaluationConfig;
use crate::state::checkpoint::EvaluationHistory;

/// The evaluations of a run, as one member knows them.
#[derive(Default)]
pub(crate) struct Evaluations {
    /// When to evaluate; `None`: only the final parameters are evaluated.
    config: Option<EvaluationConfig>,
    /// What is known of earlier ones.
    history: EvaluationHistory,
    /// Whether that is all: this member was there from the start, or has heard of a result.
    knows_history: bool,
    /// The newest step of which there is a result.
    newest: StepNumber,
    /// The members that evaluate, and the steps behind the parameters.
    running: BTreeMap<(PeerId, Incarnation), StepNumber>,
    /// The newest parameters that were due. Somebody may be about to say that it evaluates these.
    newest_due: Option<StepNumber>,
    /// The parameters that this member is to evaluate next.
    due: Option<(StepNumber, Arc<Buffer>)>,
}

/// What follows from an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether it is the best so far.
    pub(crate) is_best: bool,
    /// The step whose checkpoint has become the best.
    pub(crate) keep: Option<StepNumber>,
    /// Whether too many in a row were not the best.
    pub(crate) ends_run: bool,
}

impl Evaluations {
    /// The evaluations of a run with this configuration. `history` is that of the checkpoint from which this member continues.
    pub(super) fn new(
        config: Option<EvaluationConfig>,
        history: Option<EvaluationHistory>,
        is_newcomer: bool,
    ) -> Self {
        let knows_history = history.is_some() || !is_newcomer;
        Self { config, history: history.unwrap_or_default(), knows_history, ..Self::default() }
    }

    /// What is known of earlier evaluations.
    pub(super) fn history(&self) -> EvaluationHistory {
        self.history
    }

    /// Whether the parameters after so many steps are evaluated.
    pub(crate) fn are_due_after(&self, steps: StepNumber) -> bool {
        self.config.is_some_and(|config| steps.0 > 0 && steps.0.is_multiple_of(config.every.get()))
    }

    /// So many steps are committed, which led to these parameters. This member has the rank `rank` in `view`.
    pub(super) fn committed(&mut self, steps: StepNumber, parameters: &Arc<Buffer>, rank: Rank, view: &View) {
        let Some(config) = self.config.filter(|_| self.are_due_after(steps)) else { return };
        self.newest_due = Some(steps);
        let turn = (steps.0 / config.every.get()) % view.members.len() as u64;
        if turn == u64::from(rank.0) && self.running.is_empty() {
            self.due = Some((steps, Arc::clone(parameters)));
        }
    }

    /// A view has begun: members that are not in it evaluate nothing any more.
    pub(super) fn view_changed(&mut self, view: &View) {
        let is_in = |who: &(PeerId, Incarnation)| {
            view.members.iter().any(|member| (member.peer, member.incarnation) == *who)
        };
        self.running.retain(|who, _| is_in(who));
    }

    /// The parameters that this member is to evaluate now, and the number of steps behind them.
    pub(crate) fn take_due(&mut self) -> Option<(StepNumber, Arc<Buffer>)> {
        self.due.take()
    }

    /// A member begins to evaluate.
    pub(crate) fn begin(&mut self, by: (PeerId, Incarnation), steps: StepNumber) {
        self.running.insert(by, steps);
    }

    /// This member has evaluated the parameters after so many steps: what it tells the others.
    pub(crate) fn finish(&mut self, steps: StepNumber, evaluation: Evaluation) -> Evaluated {
        let this = BestEvaluation { steps, loss: evaluation.loss };
        let best = self.history.best.filter(|best| !this.is_better_than(best)).unwrap_or(this);
        let Evaluation { samples, loss, accuracy } = evaluation;
        Evaluated { steps, samples, loss, accuracy, best }
    }

    /// A member has evaluated. `None` if there is a newer result already.
    pub(crate) fn note(&mut self, by: (PeerId, Incarnation), evaluated: &Evaluated) -> Option<Verdict> {
        self.running.remove(&by);
        let &Evaluated { steps, loss, best, .. } = evaluated;
        if steps <= self.newest {
            return None;
        }
        self.newest = steps;
        let EvaluationHistory { best: known, since_best } = self.history;
        let is_news = known.is_none_or(|known| best.is_better_than(&known));
        let is_best = is_news && best.steps == steps && loss.is_finite();
        let is_sure = std::mem::replace(&mut self.knows_history, true) || best.steps != steps;
        let since_best = if is_best { 0 } else { since_best.saturating_add(1) };
        self.history = EvaluationHistory { best: if is_news { Some(best) } else { known }, since_best };
        let stop_after = self.config.and_then(|config| config.stop_after);
        let ends_run = !is_best && stop_after.is_some_and(|most| since_best >= most.get());
        let keep = Some(best.steps).filter(|_| is_news && is_sure && best.loss.is_finite());
        Some(Verdict { is_best: is_best && is_sure, keep, ends_run })
    }

    /// The best evaluation so far.
    pub(crate) fn best(&self) -> Option<BestEvaluation> {
        self.history.best
    }

    /// The steps whose checkpoints may turn out to be the best.
    pub(super) fn candidates(&self) -> Vec<StepNumber> {
        self.running.values().copied().chain(self.newest_due).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use peergrad_protocol::RunId;

    use super::*;
    use crate::fixtures::member;

    fn evaluations(stop_after: u32) -> Evaluations {
        let (every, stop_after) = (NonZeroU64::new(10).unwrap(), NonZeroU32::new(stop_after));
        Evaluations::new(Some(EvaluationConfig { every, stop_after }), None, false)
    }

    fn view(members: u8) -> View {
        View::first(RunId([1; 32]), (1..=members).map(member).collect())
    }

    fn evaluation(loss: f64) -> Evaluation {
        Evaluation { samples: 8, loss, accuracy: None }
    }

    fn parameters() -> Arc<Buffer> {
        Arc::new(Buffer::from_values(&[1.0]))
    }

    fn who(rank: usize) -> (PeerId, Incarnation) {
        let member = member(rank as u8 + 1);
        (member.peer, member.incarnation)
    }

    #[test]
    fn members_take_turns_and_wait_for_the_result() {
        let (view, parameters) = (view(2), parameters());
        let mut members = [0, 1].map(|_| evaluations(0));
        let mut turns = Vec::new();
        for steps in (0..=60).map(StepNumber) {
            for rank in 0..2 {
                members[rank].committed(steps, &parameters, Rank(rank as u32), &view);
                if let Some((steps, _)) = members[rank].take_due() {
                    turns.push((rank, steps.0));
                    members.iter_mut().for_each(|member| member.begin(who(rank), steps));
                }
            }
            if steps.0 == 35 {
                let told = members[1].finish(StepNumber(10), evaluation(1.0));
                members.iter_mut().for_each(|member| assert!(member.note(who(1), &told).unwrap().is_best));
            }
        }
        assert_eq!(turns, [(1, 10), (0, 40)], "the turns in between were left out");
        assert_eq!(members[1].candidates(), [40, 60].map(StepNumber));
    }

    #[test]
    fn nobody_waits_for_a_member_that_has_left() {
        let mut first = evaluations(0);
        first.begin(who(1), StepNumber(10));
        first.view_changed(&view(2));
        assert_eq!(first.candidates(), [StepNumber(10)]);
        first.view_changed(&view(1));
        assert_eq!(first.candidates(), []);
    }

    #[test]
    fn the_lowest_loss_is_the_best_and_too_many_others_end_the_run() {
        let mut all = evaluations(2);
        let mut verdicts = Vec::new();
        for (turn, loss) in [3.0, 2.0, f64::NAN, 2.5].into_iter().enumerate() {
            let told = all.finish(StepNumber(10 * (turn as u64 + 1)), evaluation(loss));
            let Verdict { is_best, keep, ends_run } = all.note(who(0), &told).unwrap();
            verdicts.push((is_best, keep.map(|steps| steps.0), ends_run));
        }
        let expected =
            [(true, Some(10), false), (true, Some(20), false), (false, None, false), (false, None, true)];
        assert_eq!(verdicts, expected);
        assert_eq!(all.best(), Some(BestEvaluation { steps: StepNumber(20), loss: 2.0 }));
        let old = all.finish(StepNumber(30), evaluation(0.5));
        assert_eq!(all.note(who(0), &old), None, "there is a newer result");
    }

    #[test]
    fn a_newcomer_does_not_call_its_own_the_best_before_it_knows_better() {
        let mut old = evaluations(0);
        let mut new = Evaluations::new(old.config, None, true);
        let first = old.finish(StepNumber(10), evaluation(1.0));
        old.note(who(0), &first).unwrap();
        let second = new.finish(StepNumber(20), evaluation(1.5));
        let verdict = new.note(who(0), &second).unwrap();
        assert_eq!((verdict.is_best, verdict.keep), (false, None));
        assert!(!old.note(who(0), &second).unwrap().is_best);
        let third = old.finish(StepNumber(30), evaluation(2.0));
        assert_eq!(
            new.note(who(0), &third).unwrap().keep,
            Some(StepNumber(10)),
            "it may have that checkpoint"
        );
        assert_eq!(new.best(), old.best());
    }

    #[test]
    fn a_restarted_member_knows_the_best() {
        let mut before = evaluations(0);
        let told = before.finish(StepNumber(10), evaluation(1.0));
        before.note(who(0), &told).unwrap();
        let mut after = Evaluations::new(before.config, Some(before.history()), true);
        let told = after.finish(StepNumber(20), evaluation(1.5));
        assert!(!after.note(who(0), &told).unwrap().is_best);
    }
}
