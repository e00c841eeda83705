//! Swarm testing: the seed chooses not only what happens but in what kind of world, so that many seeds visit corners that
//! nobody thought of.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::{Fault, FaultTime, PlannedFault, Scenario, Targets};
use crate::links::Links;

impl Scenario {
    /// This scenario in a world of the seed's choice, with small troubles that a swarm has to ride out; itself, where it
    /// does not ask for that.
    #[must_use]
    pub fn swarmed(mut self, seed: u64) -> Self {
        if !self.is_swarm {
            return self;
        }
        let mut generator = ChaCha8Rng::seed_from_u64(seed ^ 0x5377_6172_6d21);
        let mut draw = |below: u64| generator.next_u64() % below;
        self.peers = 2 + draw((self.peers as u64).max(3) - 1) as usize;
        self.links = [Links::lan(), Links::home(), Links::continents()][draw(3) as usize].clone();
        self.links.jitter = self.links.latency * draw(4) as u32;
        self.links.loss_per_million = [0, 100, 5000][draw(3) as usize];
        if draw(2) == 0 {
            (self.links.up, self.links.down) = (None, None);
        }
        self.sample_time = Duration::from_micros(1 + draw(200));
        self.write_time = Duration::from_micros([0, 1000, 300_000][draw(3) as usize]);
        for _ in 0..draw(4) {
            let kind = draw(5);
            let fault = self.small_fault(kind, &mut draw);
            // A run of these lines takes milliseconds or minutes: steps are what they have in common.
            let when = FaultTime::Step(draw(self.workload.loaded.step_count() * 3 / 4));
            self.faults.push(PlannedFault { when, within: Duration::from_millis(20), fault });
        }
        self
    }

    /// Something that nobody has to notice.
    fn small_fault(&self, kind: u64, draw: &mut impl FnMut(u64) -> u64) -> Fault {
        let peers = self.peers as u64;
        let targets = Targets::Any(1);
        // Below the patience for silence.
        let duration = Duration::from_millis(draw(1000));
        match kind {
            0 if peers > 1 => {
                let a = draw(peers);
                let b = (a + 1 + draw(peers - 1)) % peers;
                let between = [a as usize, b as usize];
                Fault::Cut { between, one_way: draw(2) == 0, duration: Some(duration) }
            }
            1 => Fault::Pause { targets, duration },
            2 => Fault::Bursts { targets, per_mille: 100, percent: 1000 },
            3 => Fault::Garbage { targets, count: 1 + draw(20) as usize },
            _ => Fault::Slow { targets, percent: 100 + draw(900) as u32, duration: Some(duration) },
        }
    }
}
