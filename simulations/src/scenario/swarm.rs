//! Swarm testing: the seed chooses the environment too, and not only the events, so that many seeds reach cases that no test was written
//! for.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::{Directions, Fault, FaultTime, PlannedFault, Scenario, Targets};
use crate::links::Links;

impl Scenario {
    /// This scenario in an environment that the seed chooses, with small faults that the run must survive; unchanged if the scenario does
    /// not ask for that.
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
            let kind = draw(6);
            let fault = self.small_fault(kind, &mut draw);
            // A run on these links takes milliseconds or minutes, so the time is given in steps.
            let when = FaultTime::Step(draw(self.workload.loaded.step_count() * 3 / 4));
            self.faults.push(PlannedFault { when, within: Duration::from_millis(20), fault });
        }
        self
    }

    /// A fault so small that no member has to notice it, or orders of users.
    fn small_fault(&self, kind: u64, draw: &mut impl FnMut(u64) -> u64) -> Fault {
        let peers = self.peers as u64;
        let targets = Targets::Any(1);
        // Less than the time after which a silent peer is suspected.
        let duration = Duration::from_millis(draw(1000));
        match kind {
            0 if peers > 1 => {
                let a = draw(peers);
                let b = (a + 1 + draw(peers - 1)) % peers;
                let between = [a as usize, b as usize];
                let directions = if draw(2) == 0 { Directions::Forward } else { Directions::Both };
                Fault::Cut { between, directions, duration: Some(duration) }
            }
            1 => Fault::Pause { targets, duration },
            2 => Fault::Bursts { targets, per_mille: 100, percent: 1000 },
            3 => Fault::Garbage { targets, count: 1 + draw(20) as usize },
            4 => Fault::Orders { times: 1 + draw(3) as u32, every: duration },
            _ => Fault::Slow { targets, percent: 100 + draw(900) as u32, duration: Some(duration) },
        }
    }
}
