//! Law 7, nothing waits on the departed: a member that is gone holds nobody up for longer than it takes to notice.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad::io::Event;
use peergrad::node::{Standing, Wait};
use peergrad_protocol::{Incarnation, Instant, PeerId};

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// Who is gone since when.
pub struct Departed {
    patience: Duration,
    gone: BTreeMap<(PeerId, Incarnation), Instant>,
    /// By host: the member that its process is.
    members: BTreeMap<HostId, (PeerId, Incarnation)>,
}

impl Departed {
    /// The law where a departure is noticed within `patience`.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { patience, gone: BTreeMap::new(), members: BTreeMap::new() }
    }

    fn depart(&mut self, host: HostId, now: Instant) {
        if let Some(member) = self.members.remove(&host) {
            self.gone.insert(member, now);
        }
    }
}

impl Law for Departed {
    fn name(&self) -> &'static str {
        "nothing waits on the departed (law 7)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Told { host, event: Event::Installed { view, .. } } => {
                let me = world.peer(*host);
                if let Some(rank) = view.rank(&me) {
                    self.members.insert(*host, (me, view.member(rank).incarnation));
                }
            }
            Observation::Told { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.depart(*host, world.now);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_census(&mut self, world: &World<'_>) -> Result<(), String> {
        if self.gone.is_empty() {
            return Ok(());
        }
        for host in world.hosts() {
            let Some(attentive) = world.attentive_since(host) else { continue };
            let Some(Standing::Member(standing)) = world.standing(host) else { continue };
            if standing.wait == Wait::Evaluation {
                // It is done with everybody.
                continue;
            }
            for member in &standing.view.members {
                let Some(&since) = self.gone.get(&(member.peer, member.incarnation)) else { continue };
                if since.max(attentive).after(self.patience) < world.now {
                    // Told once.
                    self.gone.remove(&(member.peer, member.incarnation));
                    let peer = world.homes(member.peer).first().copied().unwrap_or(host);
                    return Err(format!(
                        "{host} is still in a view with {peer}, which is gone since {:.3} s (it waits for {:?})",
                        since.0 as f64 / 1e9,
                        standing.wait
                    ));
                }
            }
        }
        Ok(())
    }
}
