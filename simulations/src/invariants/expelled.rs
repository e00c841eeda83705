//! Expelled: an expelled peer is in no later view, and each later view names it as expelled.

use std::any::Any;
use std::collections::BTreeMap;

use peergrad_core::io::Event;
use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, ViewNumber};

use super::{Invariant, Observation};
use crate::world::World;

/// The expelled peers, each with the first view that names it so.
#[derive(Clone, Default)]
pub struct Expelled {
    since: BTreeMap<PeerId, ViewNumber>,
}

impl Expelled {
    fn installed(&mut self, view: &View) -> Result<(), String> {
        for expulsion in &view.expelled {
            let since = self.since.entry(expulsion.peer).or_insert(view.number);
            *since = view.number.min(*since);
        }
        let later = self.since.iter().filter(|(_, since)| **since <= view.number);
        for (peer, since) in later {
            if view.rank(peer).is_some() || view.expulsion(peer).is_none() {
                let (peer, since, view_number) = (peer.short(), since.0, view.number.0);
                return Err(format!(
                    "view {since} expelled peer {peer}, but view {view_number} does not name it as expelled"
                ));
            }
        }
        Ok(())
    }
}

impl Invariant for Expelled {
    fn name(&self) -> &'static str {
        "expelled"
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { event: Event::ViewInstalled { view, .. }, .. } => self.installed(view),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::view::{Expulsion, ExpulsionCause, Member};
    use peergrad_protocol::{Incarnation, RunId};

    use super::*;

    fn view(view_number: u64, members: &[u8], expelled: &[u8]) -> View {
        let peer = |byte: &u8| PeerId([*byte; 32]);
        let member =
            |byte| Member { peer: peer(byte), incarnation: Incarnation(1), addresses: vec![], capacity: 1 };
        let expulsion = |byte| Expulsion { peer: peer(byte), by: peer(&1), cause: ExpulsionCause::Request };
        let first = View::first(RunId([0; 32]), members.iter().map(member).collect());
        View { number: ViewNumber(view_number), expelled: expelled.iter().map(expulsion).collect(), ..first }
    }

    #[test]
    fn an_expulsion_is_never_forgotten() {
        let mut invariant = Expelled::default();
        for view in [view(3, &[1, 2], &[3]), view(2, &[1, 2, 3], &[]), view(4, &[1], &[3, 2])] {
            assert_eq!(invariant.installed(&view), Ok(()));
        }
        assert!(invariant.installed(&view(5, &[1, 2], &[3])).is_err(), "it is in again");
        assert!(
            invariant.installed(&view(5, &[1], &[2])).is_err(),
            "the other one is not spoken of any more"
        );
    }
}
