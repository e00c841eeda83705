//! The end of a member's part in the run: the run is complete, it has failed, or the user asks this peer to leave.

use std::sync::Arc;

use peergrad_protocol::message::{JoinMessage, Refusal};

use super::{ActiveMember, Progress};
use crate::io::{Event, Failure, Output, Work};
use crate::machine::context::NodeContext;
use crate::machine::jobs::Purpose;
use crate::machine::role::{Role, Transition};

/// This peer leaves, for this reason. A member first hands over the chunks that it owns, if another member is there to take them.
pub(super) fn leave(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    reason: Failure,
) -> Result<(), Transition> {
    let can_hand_over = active.progress == Progress::Training
        && active.training.view().members.len() > 1
        && !active.membership.members.is_paused()
        && active.membership.missing_chunks() == 0;
    if !can_hand_over {
        return Err(reason.into());
    }
    active.leaves_for = Some(reason.clone());
    if let Some(tables) = active.training.tables_mut() {
        tables.wind_down(cx.out);
    }
    cx.out.push(Output::Event(Event::Leaving { reason }));
    Ok(())
}

/// Ends what can end now: a leaving member that is alone stops, and a run that all members have finished is evaluated.
pub(super) fn advance(active: &mut ActiveMember, cx: &mut NodeContext<'_>) -> Result<(), Transition> {
    let is_alone = active.training.view().members.len() == 1 || active.membership.members.is_paused();
    if let Some(reason) =
        active.leaves_for.clone().filter(|_| is_alone && active.progress == Progress::Training)
    {
        // No other member is there to take over the chunks.
        return Err(reason.into());
    }
    if active.membership.members.wants_end()
        && let Some(tables) = active.training.tables_mut()
    {
        tables.end_run(cx.out);
    }
    for (peer, fault) in active.training.steps().map_or_else(Vec::new, |steps| steps.state().at_fault()) {
        active.complain(cx, peer, fault);
    }
    if active.leaves_for.is_none()
        && let Some(failure) = active.training.failure()
    {
        leave(active, cx, failure)?;
    }
    if cx.node.jobs.computing().is_some()
        && let Some(steps) = active.training.steps_mut()
    {
        steps.close_without_program(cx.out);
    }
    if active.progress == Progress::Training && active.training.base().is_closed() {
        if let Some(failure) = active.training.differs_at_end() {
            return Err(failure.into());
        }
        active.progress = Progress::Evaluating;
        active.training.commit_last(cx.out);
        tell_finished(active, cx);
        evaluate(active, cx);
    }
    Ok(())
}

/// Tells members that all have finished, and joiners that they come too late.
fn tell_finished(active: &ActiveMember, cx: &mut NodeContext<'_>) {
    // A neighbor that receives it has finished as well, and tells its own neighbors.
    let others = if active.training.base().is_barrier_root() {
        active.training.view().members.iter().map(|member| member.peer).collect()
    } else {
        active.membership.members.neighbors()
    };
    cx.send_to_linked(others, &active.training.base().closed());
    cx.send_to_linked(
        active.membership.admission.waiting().copied(),
        &JoinMessage::Refuse(Refusal::RunComplete).into(),
    );
}

/// Begins to evaluate the final parameters.
fn evaluate(active: &ActiveMember, cx: &mut NodeContext<'_>) {
    let Some(parameters) = active.training.parameters().cloned() else { return };
    let task = Arc::clone(&active.training.base().loaded().task);
    let cost = u64::from(task.held_out_count());
    let work = Work::whole(move || task.evaluate(&parameters));
    cx.node.jobs.start(Purpose::Evaluate, cost, work, cx.out);
}
