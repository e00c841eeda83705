//! Law 2, single owner: the new values of a chunk come from one owner. Whoever passes them on, in one view and step they
//! are the same bits; and the shards of a view cover the vector exactly once.

use std::collections::{BTreeMap, BTreeSet};

use peergrad::io::Event;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::message::{Message, Phase};

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// What owners have sent out.
pub struct SingleOwner {
    parameter_count: usize,
    /// By view: elements owned by those that have installed it, and who has.
    installed: BTreeMap<ViewDigest, (usize, BTreeSet<HostId>)>,
    /// By step, view, owner and segment: its bits, as a sum that a change of any of them changes.
    sent: BTreeMap<(u64, ViewDigest, u32, u32), u64>,
}

impl SingleOwner {
    /// The law for vectors of this many elements.
    #[must_use]
    pub fn new(parameter_count: usize) -> Self {
        Self { parameter_count, installed: BTreeMap::new(), sent: BTreeMap::new() }
    }
}

impl Law for SingleOwner {
    fn name(&self) -> &'static str {
        "single owner (law 2)"
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Told { host, event: Event::Installed { view, digest, shard, .. } } => {
                let (owned, members) = self.installed.entry(*digest).or_default();
                if members.insert(*host) {
                    *owned += shard;
                }
                let is_whole = members.len() == view.members.len();
                if *owned > self.parameter_count || (is_whole && *owned != self.parameter_count) {
                    return Err(format!(
                        "the members of view {} own {owned} of {} elements",
                        view.epoch.0, self.parameter_count
                    ));
                }
                Ok(())
            }
            Observation::Sent {
                from, message: Message::Segment(segment), payload: Some(payload), ..
            } if segment.phase == Phase::Gather => {
                let key = (segment.step.0, segment.view, segment.owner, segment.index);
                let bits = fold(payload);
                let known = *self.sent.entry(key).or_insert(bits);
                self.forget_before(segment.step.0.saturating_sub(STEPS_ALIVE));
                if known == bits {
                    return Ok(());
                }
                Err(format!(
                    "{from} passes on other values of segment {} of rank {}'s shard in step {} than were sent before",
                    segment.index, segment.owner, segment.step.0
                ))
            }
            _ => Ok(()),
        }
    }
}

impl SingleOwner {
    fn forget_before(&mut self, step: u64) {
        while let Some(first) = self.sent.first_entry() {
            if first.key().0 >= step {
                return;
            }
            first.remove();
        }
    }
}

fn fold(values: &[f32]) -> u64 {
    let mix = |sum: u64, value: &f32| (sum ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    values.iter().fold(values.len() as u64, mix)
}

/// Members are at most one step apart; one more for frames that a cut held back.
const STEPS_ALIVE: u64 = 3;
