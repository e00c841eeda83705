//! Law 5, all or nothing: steps are committed in order, each only once it is complete at every member, none twice by one
//! process; and what a run leaves at a peer is a committed state.

use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad::node::Standing;

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// How far each process has committed.
#[derive(Default)]
pub struct AllOrNothing {
    /// By host: steps that its process has committed.
    committed: BTreeMap<HostId, u64>,
}

impl Law for AllOrNothing {
    fn name(&self) -> &'static str {
        "all or nothing (law 5)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Told { host, event: Event::Committed(committed) } => {
                let step = committed.step.0;
                let before = self.committed.insert(*host, step + 1);
                if before.is_some_and(|before| before != step) {
                    return Err(format!("{host} commits step {step} after {} steps", before.unwrap_or(0)));
                }
                is_complete_everywhere(*host, step, world)
            }
            Observation::Told { host, event: Event::Ended(ended) } => {
                let committed = self.committed.remove(host).unwrap_or(0);
                let left = ended.state.as_ref().map_or(committed, |state| state.steps);
                if left == committed {
                    return Ok(());
                }
                Err(format!(
                    "{host} leaves the state after {left} steps, and {committed} are committed there"
                ))
            }
            Observation::Crashed { host } => {
                self.committed.remove(host);
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
