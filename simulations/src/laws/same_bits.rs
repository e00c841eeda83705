//! Law 4, same bits: after a commit all members hold bit-identical parameters. The digests that they tell must agree, and
//! they must tell them: without a digest several laws would have nothing to look at.

use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad_protocol::id::ContentDigest;

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// By step: what the first member said, and who it was.
pub struct SameBits {
    digest_every: u64,
    digests: BTreeMap<u64, (ContentDigest, HostId)>,
}

impl SameBits {
    /// The law where a digest is due after so many steps.
    #[must_use]
    pub fn new(digest_every: u64) -> Self {
        Self { digest_every, digests: BTreeMap::new() }
    }
}

impl Law for SameBits {
    fn name(&self) -> &'static str {
        "same bits (law 4)"
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        let Observation::Told { host, event } = observation else { return Ok(()) };
        let (step, digest) = match event {
            Event::Committed(committed) => (committed.step.0, committed.digest),
            Event::Ended(ended) => match &ended.state {
                Some(state) if state.steps > 0 => (state.steps - 1, Some(state.digest)),
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        let Some(digest) = digest else {
            let is_due = self.digest_every > 0 && (step + 1).is_multiple_of(self.digest_every);
            return if is_due {
                Err(format!("{host} commits step {step} without its digest"))
            } else {
                Ok(())
            };
        };
        let (known, first) = *self.digests.entry(step).or_insert((digest, *host));
        if known == digest {
            return Ok(());
        }
        Err(format!("after step {step} the parameters of {host} differ from those of {first}"))
    }
}
