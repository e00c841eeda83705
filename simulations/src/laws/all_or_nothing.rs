//! Law 5, all or nothing: steps are committed in order, each only once it is complete at every member, none twice by one
//! process and none left out from where it came in; a committed step is never undone; and what a run leaves at a peer is a
//! committed state.

use std::any::Any;
use std::collections::BTreeMap;

use peergrad::io::{Committed, Event};
use peergrad::node::Standing;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::view::{Recovery, View};
use peergrad_protocol::{Epoch, PeerId};

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;
use crate::oracles::lineage::is_restored;

/// How far each process, and each view, has committed.
#[derive(Clone, Default)]
pub struct AllOrNothing {
    /// By host: where its process is.
    places: BTreeMap<HostId, Place>,
    /// By number of the view: the step with which it begins.
    begins: BTreeMap<Epoch, u64>,
    /// By number of the view: steps that a member of it has told to be committed. Only grows.
    committed: BTreeMap<Epoch, u64>,
    /// By step: in which view it was first told to be committed, and with which parameters.
    digests: BTreeMap<u64, (Epoch, ContentDigest)>,
}

/// Where one process is.
#[derive(Clone, Copy)]
struct Place {
    /// The number of its view.
    epoch: Epoch,
    /// Steps that are committed there: those before it came in were committed by others.
    committed: u64,
    /// As many were, when it was excluded or came in anew.
    before: Option<u64>,
}

impl AllOrNothing {
    /// A view begins with a step: no later one may be committed in the views before it.
    fn installed(&mut self, host: HostId, view: &View, peer: &PeerId) -> Result<(), String> {
        let first = view.first_step().0;
        self.begins.insert(view.epoch, first);
        let is_newcomer = view.rank(peer).is_some_and(|rank| view.newcomers().contains(&rank));
        // Whoever has committed nothing since it came in last, has what it had before that.
        let before = self.places.get(&host).map(|place| place.before.unwrap_or(place.committed));
        let place =
            self.places.entry(host).or_insert(Place { epoch: view.epoch, committed: first, before: None });
        place.epoch = view.epoch;
        if is_newcomer || matches!(view.recovery, Recovery::Found) || is_restored(view) {
            (place.committed, place.before) = (first, before);
        }
        if is_restored(view) {
            // Nobody had anything in memory any more: that is the one case in which a run goes back.
            self.committed.values_mut().for_each(|steps| *steps = (*steps).min(first));
            self.digests.split_off(&first);
            return Ok(());
        }
        let committed = self.committed.range(..view.epoch).map(|(_, steps)| *steps).max().unwrap_or(0);
        if committed <= first {
            return Ok(());
        }
        Err(format!(
            "view {} at {host} begins with step {first}, and {committed} steps were committed before it",
            view.epoch.0
        ))
    }

    fn commits(&mut self, host: HostId, told: &Committed, world: &World<'_>) -> Result<(), String> {
        let step = told.step.0;
        let Some(place) = self.places.get_mut(&host) else {
            return Err(format!("{host} commits step {step} without being in a view"));
        };
        let (epoch, before) = (place.epoch, std::mem::replace(&mut place.committed, step + 1));
        place.before = None;
        if before != step {
            return Err(format!("{host} commits step {step} after {before} steps"));
        }
        let steps = self.committed.entry(epoch).or_default();
        let is_first = *steps <= step;
        *steps = (*steps).max(step + 1);
        let mut later = self.begins.range(Epoch(epoch.0 + 1)..);
        if let Some((view, first)) = later.find(|(_, first)| **first <= step) {
            return Err(format!(
                "{host} commits step {step} in view {}, and view {} has begun with step {first}",
                epoch.0, view.0
            ));
        }
        if let Some(digest) = told.digest {
            let (known_in, known) = *self.digests.entry(step).or_insert((epoch, digest));
            if known_in != epoch && known != digest {
                return Err(format!(
                    "step {step} is committed by {host} in view {} with other parameters than in view {}",
                    epoch.0, known_in.0
                ));
            }
        }
        // What was complete at every member of a view when the first of them said so, still is.
        if is_first { is_complete_everywhere(host, step, world) } else { Ok(()) }
    }
}

impl Law for AllOrNothing {
    fn name(&self) -> &'static str {
        "all or nothing (law 5)"
    }

    fn fork(&self) -> Option<Box<dyn Law>> {
        Some(Box::new(self.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Told { host, event: Event::Installed { view, .. } } => {
                self.installed(*host, view, &world.peer(*host))
            }
            Observation::Told { host, event: Event::Committed(committed) } => {
                self.commits(*host, committed, world)
            }
            Observation::Told { host, event: Event::Ended(ended) } => {
                let Some(Place { committed, before, .. }) = self.places.remove(host) else { return Ok(()) };
                let left = ended.state.as_ref().map_or(committed, |state| state.steps);
                // Who was let in again, and has not got anywhere yet, leaves what it had before.
                if left == committed || before == Some(left) {
                    return Ok(());
                }
                Err(format!(
                    "{host} leaves the state after {left} steps, and {committed} are committed there"
                ))
            }
            Observation::Crashed { host } => {
                self.places.remove(host);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Members that have gone meanwhile cannot be asked, nor blamed.
fn is_complete_everywhere(host: HostId, step: u64, world: &World<'_>) -> Result<(), String> {
    let Some(Standing::Member(standing)) = world.standing(host) else { return Ok(()) };
    for member in &standing.view.members {
        for &home in world.homes(member.peer) {
            if let Some(Standing::Member(theirs)) = world.standing(home)
                && theirs.digest == standing.digest
                && theirs.complete <= step
            {
                return Err(format!("{host} commits step {step}, which is not complete at {home}"));
            }
        }
    }
    Ok(())
}
