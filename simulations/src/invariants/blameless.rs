//! Blameless: no message of a correct peer is rejected as an offence, whenever it arrives and whatever happened to earlier messages, and
//! no correct peer is found to have other parameters than most, to send wrong values, or to be late. All peers are correct here, except one
//! with a planted bug, and those whose frames have a fault on purpose. Bytes that are no frame do not count: scenarios send such bytes on
//! purpose.

use peergrad_core::io::{Event, Reject};
use peergrad_protocol::view::MemberFault;

use super::{Invariant, Observation};
use crate::world::World;

/// The invariant; it has no state.
#[derive(Default)]
pub struct Blameless;

impl Invariant for Blameless {
    fn name(&self) -> &'static str {
        "blameless"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { event: Event::Violation { reject: Reject::Wire(_), .. }, .. } => Ok(()),
            Observation::Emitted { event: Event::Violation { peer, .. }, .. }
                if world.has_faulty_frames(*peer) =>
            {
                Ok(())
            }
            Observation::Emitted { host, event: Event::Violation { peer, reject } } => {
                Err(format!("{host} rejected a message of {peer}: {reject}"))
            }
            Observation::Emitted { host, event: Event::FaultNoticed { peer, by, fault } }
                if matches!(fault, MemberFault::Parameters | MemberFault::Values | MemberFault::Late)
                    && ![peer, by].iter().any(|peer| world.has_faulty_frames(**peer)) =>
            {
                Err(format!("{host} learned that {by} complains of {peer}: {fault:?}"))
            }
            _ => Ok(()),
        }
    }
}
