//! Law 1, one chain: all members of a view hold the same record, and the views in which anything was committed follow one
//! another, each number used once.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad::io::Event;
use peergrad::node::Standing;
use peergrad_protocol::view::View;
use peergrad_protocol::{Epoch, ViewDigest};

use super::{Law, Observation};
use crate::cluster::World;

/// The views seen so far.
#[derive(Default)]
pub struct OneChain {
    views: BTreeMap<ViewDigest, Arc<View>>,
    /// The view of each number in which something was committed.
    chain: BTreeMap<Epoch, ViewDigest>,
}

impl Law for OneChain {
    fn name(&self) -> &'static str {
        "one chain (law 1)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Told { host, event: Event::Installed { view, digest, .. } } => {
                let digest = *digest;
                if view.rank(&world.peer(*host)).is_none() {
                    return Err(format!("{host} installs view {} without being in it", view.epoch.0));
                }
                // A parent may have been installed nowhere that is still there, but then it is known by its digest.
                let is_rooted = view.epoch == Epoch(1) || !view.parents.is_empty();
                self.views.insert(digest, Arc::clone(view));
                let others = self.views.iter().find(|(other, v)| v.epoch == view.epoch && **other != digest);
                match others {
                    Some((_, other)) if other.parents == view.parents => Err(format!(
                        "{host} installs view {}, but another record of it is held elsewhere: {} and {} members",
                        view.epoch.0,
                        view.members.len(),
                        other.members.len()
                    )),
                    _ if !is_rooted => Err(format!("view {} at {host} follows no other", view.epoch.0)),
                    _ => Ok(()),
                }
            }
            Observation::Told { host, event: Event::Committed(_) } => {
                let Some(Standing::Member(standing)) = world.standing(*host) else { return Ok(()) };
                let (view, digest) = (&standing.view, standing.digest);
                let known = *self.chain.entry(view.epoch).or_insert(digest);
                if known == digest {
                    return Ok(());
                }
                Err(format!("{host} commits in a view {} that is not the one others commit in", view.epoch.0))
            }
            _ => Ok(()),
        }
    }
}
