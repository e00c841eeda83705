//! Evaluations during the run: the jobs and messages around [`Evaluations`](crate::training::steps::evaluations::Evaluations).

use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::message::{Evaluated, SaveAt, TrainingMessage};
use peergrad_protocol::{Incarnation, PeerId, StepNumber};

use super::ActiveMember;
use crate::io::{Event, Output, Work};
use crate::machine::context::NodeContext;
use crate::machine::jobs::Purpose;

/// Begins to evaluate, if it is this member's turn.
pub(super) fn begin_if_due(active: &mut ActiveMember, cx: &mut NodeContext<'_>) {
    let Some(steps) = active.training.steps_mut() else { return };
    let Some((number, parameters)) = steps.state_mut().evaluations.take_due() else { return };
    let me = active.membership.members.me();
    let by = (me.peer, me.incarnation);
    steps.state_mut().evaluations.begin(by, number);
    let message = TrainingMessage::Evaluating(SaveAt { steps: number });
    active.training.base().broadcast(&message.in_view(active.training.base().digest()), cx.out);
    let task = Arc::clone(&active.training.base().loaded().task);
    let cost = u64::from(task.held_out_count());
    let work = Work::whole(move || task.evaluate(&parameters));
    cx.node.jobs.start(Purpose::EvaluateStep(number), cost, work, cx.out);
}

/// This member has evaluated: it tells all others, and ends the run if the model does not get better any more.
pub(super) fn finish(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    number: StepNumber,
    evaluation: Evaluation,
) {
    let Some(steps) = active.training.steps_mut() else { return };
    let evaluated = steps.state_mut().evaluations.finish(number, evaluation);
    let message = TrainingMessage::Evaluated(evaluated).in_view(active.training.base().digest());
    active.training.base().broadcast(&message, cx.out);
    let me = cx.node.me.peer;
    if note(active, cx, me, evaluated) {
        active.membership.end_run(cx.out);
    }
}

/// A member begins to evaluate.
pub(super) fn begun(active: &mut ActiveMember, by: PeerId, number: StepNumber) {
    if let Some(who) = incarnation(active, by)
        && let Some(steps) = active.training.steps_mut()
    {
        steps.state_mut().evaluations.begin(who, number);
    }
}

fn incarnation(active: &ActiveMember, peer: PeerId) -> Option<(PeerId, Incarnation)> {
    let view = active.training.view();
    view.rank(&peer).map(|rank| (peer, view.member(rank).incarnation))
}

/// A member has evaluated. Returns whether too many evaluations in a row were not the best.
pub(super) fn note(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    by: PeerId,
    evaluated: Evaluated,
) -> bool {
    let Some(who) = incarnation(active, by) else { return false };
    let Some(engine) = active.training.steps_mut() else { return false };
    let evaluations = &mut engine.state_mut().evaluations;
    let Some(verdict) = evaluations.note(who, &evaluated) else { return false };
    let Evaluated { steps, samples, loss, accuracy, best } = evaluated;
    let (evaluation, best) = (Evaluation { samples, loss, accuracy }, evaluations.best().unwrap_or(best));
    cx.out.push(Output::Event(Event::Evaluated { steps, evaluation, by, is_best: verdict.is_best, best }));
    let run = active.training.view().run;
    cx.out.extend(verdict.keep.map(|steps| Output::KeepBest { run, steps }));
    verdict.ends_run
}
