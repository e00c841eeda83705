//! Blameless: nothing that a correct peer says is refused as an offence, whenever it arrives and whatever became of what was
//! sent before. All peers are correct here, but for the one that a planted bug sits in. What is no frame at all nobody has
//! said: scenarios throw such bytes at peers on purpose.

use peergrad_core::io::{Event, Reject};

use super::{Invariant, Observation};
use crate::world::World;

/// Remembers nothing.
#[derive(Default)]
pub struct Blameless;

impl Invariant for Blameless {
    fn name(&self) -> &'static str {
        "blameless"
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { event: Event::Violation { reject: Reject::Wire(_), .. }, .. } => Ok(()),
            Observation::Emitted { host, event: Event::Violation { peer, reject } } => {
                Err(format!("{host} refused what {peer} sent: {reject}"))
            }
            _ => Ok(()),
        }
    }
}
