//! Merged first: a member leaves its branch because that is merged into another one, only after a member of the other branch has committed
//! the step that merges it.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_core::io::Event;
use peergrad_protocol::ViewDigest;

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The views that are merged.
#[derive(Default)]
pub struct MergedFirst {
    /// By host: its view.
    homes: BTreeMap<HostId, ViewDigest>,
    merged: BTreeSet<ViewDigest>,
}

impl Invariant for MergedFirst {
    fn name(&self) -> &'static str {
        MERGED_FIRST
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        let Observation::Emitted { host, event } = observation else { return Ok(()) };
        match event {
            Event::ViewInstalled { digest, view, .. } => {
                self.homes.insert(*host, *digest);
                // The view begins after that step.
                self.merged.extend(view.history.ancestors.iter().map(|ancestor| ancestor.view));
            }
            // The event is reported with the commit.
            Event::Merged(merge) => _ = self.merged.insert(merge.view),
            Event::BranchAbandoned { is_merged: true, .. } => {
                let home = self.homes.get(host);
                if !home.is_some_and(|home| self.merged.contains(home)) {
                    return Err(format!(
                        "{host} leaves its branch as merged, but no member has committed the merge"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The invariant's name.
pub const MERGED_FIRST: &str = "merged first";
