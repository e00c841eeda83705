//! Expelled: who was put out of a run is in no later view of it, and the views go on saying so.

use std::any::Any;
use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad_protocol::view::View;
use peergrad_protocol::{Epoch, PeerId};

use super::{Law, Observation};
use crate::cluster::World;

/// Who was put out, and the first view that said so.
#[derive(Clone, Default)]
pub struct Expelled {
    since: BTreeMap<PeerId, Epoch>,
}

impl Expelled {
    fn installed(&mut self, view: &View) -> Result<(), String> {
        for expulsion in &view.expelled {
            let since = self.since.entry(expulsion.peer).or_insert(view.epoch);
            *since = view.epoch.min(*since);
        }
        let later = self.since.iter().filter(|(_, since)| **since <= view.epoch);
        for (peer, since) in later {
            if view.rank(peer).is_some() || view.expulsion(peer).is_none() {
                let (peer, since, epoch) = (peer.short(), since.0, view.epoch.0);
                return Err(format!(
                    "view {since} put peer {peer} out for good, and view {epoch} has forgotten it"
                ));
            }
        }
        Ok(())
    }
}

impl Law for Expelled {
    fn name(&self) -> &'static str {
        "who was put out stays out"
    }

    fn fork(&self) -> Option<Box<dyn Law>> {
        Some(Box::new(self.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Told { event: Event::Installed { view, .. }, .. } => self.installed(view),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::view::{Cause, Expulsion, Member};
    use peergrad_protocol::{Incarnation, RunId};

    use super::*;

    fn view(epoch: u64, members: &[u8], expelled: &[u8]) -> View {
        let peer = |byte: &u8| PeerId([*byte; 32]);
        let member =
            |byte| Member { peer: peer(byte), incarnation: Incarnation(1), addresses: vec![], weight: 1 };
        let expulsion = |byte| Expulsion { peer: peer(byte), by: peer(&1), cause: Cause::Request };
        let first = View::first(RunId([0; 32]), members.iter().map(member).collect());
        View { epoch: Epoch(epoch), expelled: expelled.iter().map(expulsion).collect(), ..first }
    }

    #[test]
    fn what_was_decided_is_not_forgotten() {
        let mut law = Expelled::default();
        for told in [view(3, &[1, 2], &[3]), view(2, &[1, 2, 3], &[]), view(4, &[1], &[3, 2])] {
            assert_eq!(law.installed(&told), Ok(()));
        }
        assert!(law.installed(&view(5, &[1, 2], &[3])).is_err(), "it is in again");
        assert!(law.installed(&view(5, &[1], &[2])).is_err(), "the other one is not spoken of any more");
    }
}
