//! What goes wrong in the demo: one peer is killed, as `kill -9` does it, and a new one comes while the others train.

use std::time::Duration;

use peergrad_net::MonotonicClock;
use peergrad_protocol::Instant;
use serde_json::json;

use crate::commands::swarm::{Swarm, SwarmOutput};
use crate::terminal::emit;

/// What is planned, and what has come of it.
pub(super) struct DemoFaults {
    clock: MonotonicClock,
    phase: DemoPhase,
    pub(super) killed: Option<KilledPeer>,
    /// Which peer came late.
    pub(super) late: Option<usize>,
}

/// A peer that was killed.
pub(super) struct KilledPeer {
    pub(super) index: usize,
    /// Steps that were committed by then, as far as the founder knew.
    pub(super) step: u64,
    /// Steps known to be committed, and since when.
    seen: (u64, Instant),
    /// How long no step was committed, once another one is.
    pub(super) stall: Option<Duration>,
}

enum DemoPhase {
    /// Everybody trains.
    Kill,
    /// Somebody is gone, and the others have to notice.
    Notice,
    /// They have; the next step has to be committed.
    GoOn,
    /// Somebody new is to come.
    Join,
    Over,
}

impl DemoFaults {
    /// Of few peers none is killed: the others might be too few to go on.
    pub(super) fn planned(peers: usize, is_calm: bool, output: &SwarmOutput) -> Self {
        if !is_calm && peers < KILLED_OF_MIN && !output.is_json {
            output.screen.say(
                "nobody is killed: of fewer than three peers, those who are left might be too few to go on",
            );
        }
        let phase = match peers {
            _ if is_calm || peers == 1 => DemoPhase::Over,
            0..KILLED_OF_MIN => DemoPhase::Join,
            _ => DemoPhase::Kill,
        };
        Self { clock: MonotonicClock::start(), phase, killed: None, late: None }
    }

    /// Something has been reported.
    pub(super) fn advance(&mut self, swarm: &mut Swarm<'_>) -> anyhow::Result<()> {
        let founder = &swarm.peers[0];
        let steps = founder.steps;
        let is_time = founder.scope.is_some_and(|scope| steps >= scope.steps / 5);
        match self.phase {
            DemoPhase::Kill if is_time => {
                self.kill(swarm);
                self.phase = DemoPhase::Notice;
            }
            DemoPhase::Join if is_time => self.join(swarm)?,
            DemoPhase::Notice => {
                self.note_steps(steps);
                if founder.changes.iter().any(|change| !change.left.is_empty()) {
                    self.phase = DemoPhase::GoOn;
                }
            }
            DemoPhase::GoOn => {
                let now = self.clock.now();
                let Some(killed) = self.killed.as_mut().filter(|killed| steps > killed.seen.0) else {
                    return Ok(());
                };
                let stall = now.since(killed.seen.1);
                killed.stall = Some(stall);
                if !swarm.output.is_json {
                    let words = format!("training stood still for {:.2} s, and goes on", stall.as_secs_f64());
                    swarm.output.screen.say(&words);
                }
                self.join(swarm)?;
            }
            DemoPhase::Kill | DemoPhase::Join | DemoPhase::Over => {}
        }
        Ok(())
    }

    fn note_steps(&mut self, steps: u64) {
        let now = self.clock.now();
        if let Some(killed) = self.killed.as_mut().filter(|killed| steps > killed.seen.0) {
            killed.seen = (steps, now);
        }
    }

    fn kill(&mut self, swarm: &mut Swarm<'_>) {
        let step = swarm.peers[0].steps;
        let index = KILLED.min(swarm.peers.len() - 1);
        let peer = &mut swarm.peers[index];
        peer.kill();
        self.killed = Some(KilledPeer { index, step, seen: (step, self.clock.now()), stall: None });
        if swarm.output.is_json {
            emit(&json!({"event": "killed", "peer": peer.id, "step": step}));
        } else {
            swarm.output.screen.say(&format!("step {step}: peer {} is killed, without a word", peer.name));
        }
    }

    fn join(&mut self, swarm: &mut Swarm<'_>) -> anyhow::Result<()> {
        self.phase = DemoPhase::Over;
        self.late = Some(swarm.peers.len());
        if !swarm.output.is_json {
            swarm.output.screen.say("a new peer comes");
        }
        // It may come when all is over.
        swarm.spawn_joiner()?.is_excused = true;
        Ok(())
    }
}

/// Not the founder, whose invite the late one uses.
const KILLED: usize = 1;
/// So many have to be there for one to be killed.
const KILLED_OF_MIN: usize = 3;
