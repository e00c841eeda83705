//! Invariant 5, all or nothing: steps are committed in order, each only once it is complete at every member. No process commits a step
//! twice, or leaves one out after it joined. A committed step is never undone, and the final state at a peer is a committed state. Whether
//! the parameters after a step are everywhere the same is [another invariant](super::same_bits), which does not hold where a member sends
//! wrong values.

use std::any::Any;
use std::collections::BTreeMap;

use peergrad_core::io::{Committed, Event};
use peergrad_core::node::NodeState;
use peergrad_protocol::view::{Recovery, View};
use peergrad_protocol::{PeerId, ViewNumber};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::oracles::view_chain::is_restored;
use crate::world::World;

/// The committed steps of each process and each view.
#[derive(Clone, Default)]
pub struct AllOrNothing {
    /// By host: the progress of its process.
    progress_by_host: BTreeMap<HostId, ProcessProgress>,
    /// By number of the view: its first step.
    begins: BTreeMap<ViewNumber, u64>,
    /// By number of the view: how many steps its members have reported as committed. Only grows.
    committed: BTreeMap<ViewNumber, u64>,
}

/// The progress of one process.
#[derive(Clone, Copy)]
struct ProcessProgress {
    /// The number of its view.
    view_number: ViewNumber,
    /// How many steps are committed there, including those that others committed before it joined.
    committed: u64,
    /// How many steps were, when it was removed or last joined; `None` if it has joined once only.
    before: Option<u64>,
}

impl AllOrNothing {
    /// A view begins with a step: the views before it may commit no later step.
    fn installed(&mut self, host: HostId, view: &View, peer: &PeerId) -> Result<(), String> {
        let first = view.first_step().0;
        self.begins.insert(view.number, first);
        let is_newcomer = view.rank(peer).is_some_and(|rank| view.newcomers().contains(&rank));
        // A process that has committed nothing since it last joined has the state from before that.
        let before =
            self.progress_by_host.get(&host).map(|progress| progress.before.unwrap_or(progress.committed));
        let progress = self.progress_by_host.entry(host).or_insert(ProcessProgress {
            view_number: view.number,
            committed: first,
            before: None,
        });
        progress.view_number = view.number;
        if is_newcomer || matches!(view.recovery, Recovery::Initialize) || is_restored(view) {
            (progress.committed, progress.before) = (first, before);
        }
        if is_restored(view) {
            // No member had the state in memory any more: only then a run goes back.
            self.committed.values_mut().for_each(|steps| *steps = (*steps).min(first));
            return Ok(());
        }
        let committed = self.committed.range(..view.number).map(|(_, steps)| *steps).max().unwrap_or(0);
        if committed <= first {
            return Ok(());
        }
        Err(format!(
            "view {} at {host} begins with step {first}, but {committed} steps were committed before it",
            view.number.0
        ))
    }

    fn commits(&mut self, host: HostId, committed: &Committed, world: &World<'_>) -> Result<(), String> {
        let step = committed.step.0;
        let Some(progress) = self.progress_by_host.get_mut(&host) else {
            return Err(format!("{host} commits step {step} without being in a view"));
        };
        let (view_number, before) =
            (progress.view_number, std::mem::replace(&mut progress.committed, step + 1));
        progress.before = None;
        if before != step {
            return Err(format!("{host} commits step {step} after {before} steps"));
        }
        let steps = self.committed.entry(view_number).or_default();
        let is_first = *steps <= step;
        *steps = (*steps).max(step + 1);
        let mut later = self.begins.range(ViewNumber(view_number.0 + 1)..);
        if let Some((view, first)) = later.find(|(_, first)| **first <= step) {
            return Err(format!(
                "{host} commits step {step} in view {}, but view {} has begun with step {first}",
                view_number.0, view.0
            ));
        }
        // What was complete at every member of a view when the first of them reported the commit, still is complete.
        if is_first { is_complete_everywhere(host, step, world) } else { Ok(()) }
    }
}

impl Invariant for AllOrNothing {
    fn name(&self) -> &'static str {
        "all or nothing (invariant 5)"
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { host, event: Event::ViewInstalled { view, .. } } => {
                self.installed(*host, view, &world.peer(*host))
            }
            Observation::Emitted { host, event: Event::Committed(committed) } => {
                self.commits(*host, committed, world)
            }
            Observation::Emitted { host, event: Event::Ended(ended) } => {
                let Some(ProcessProgress { committed, before, .. }) = self.progress_by_host.remove(host)
                else {
                    return Ok(());
                };
                let left = ended.state.as_ref().map_or(committed, |state| state.steps);
                // A peer that has rejoined, and has committed nothing since, ends with the state from before that.
                if left == committed || before == Some(left) {
                    return Ok(());
                }
                Err(format!(
                    "{host} ends with the state after {left} steps, but {committed} steps are committed there"
                ))
            }
            Observation::Crashed { host } => {
                self.progress_by_host.remove(host);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Members that have departed meanwhile are not checked.
fn is_complete_everywhere(host: HostId, step: u64, world: &World<'_>) -> Result<(), String> {
    let Some(NodeState::Member(standing)) = world.node_state(host) else { return Ok(()) };
    for member in &standing.view.members {
        for &home in world.hosts_of(member.peer) {
            if let Some(NodeState::Member(theirs)) = world.node_state(home)
                && theirs.digest == standing.digest
                && theirs.complete <= step
            {
                return Err(format!("{host} commits step {step}, which is not complete at {home}"));
            }
        }
    }
    Ok(())
}
