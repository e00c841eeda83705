//! The faults of the demo: one peer is killed, as by `kill -9`, and a new one joins while the others train.

use std::time::Duration;

use peergrad_net::MonotonicClock;
use peergrad_protocol::Instant;
use serde_json::json;

use crate::commands::swarm::{Swarm, SwarmOutput};
use crate::terminal::emit;

/// The planned faults, and their effects so far.
pub(super) struct DemoFaults {
    clock: MonotonicClock,
    phase: DemoPhase,
    /// The peer that was killed; `None` before that.
    pub(super) killed: Option<KilledPeer>,
    /// Index of the peer that joined late; `None` before that.
    pub(super) late: Option<usize>,
}

/// The peer that was killed, and how long training paused.
pub(super) struct KilledPeer {
    /// Its index among the peers of the swarm.
    pub(super) index: usize,
    /// Committed steps at the time of the kill, as far as the founder knew.
    pub(super) step: u64,
    /// The number of committed steps that the founder reported last, and when it grew to that.
    seen: (u64, Instant),
    /// How long no step was committed; `None` until the next one is.
    pub(super) stall: Option<Duration>,
}

/// What the demo waits for.
enum DemoPhase {
    /// The time to kill a peer.
    Kill,
    /// The others to notice the loss.
    Notice,
    /// The next committed step after the loss.
    GoOn,
    /// The time to start a late joiner.
    Join,
    /// Nothing.
    Over,
}

impl DemoFaults {
    /// Plans no kill for fewer than three peers, since the remaining ones would not be a majority.
    pub(super) fn planned(peers: usize, output: &SwarmOutput) -> Self {
        if peers < KILLED_OF_MIN && !output.format.is_json() {
            output.screen.say(
                "no peer is killed: with fewer than three peers, the remaining ones might be too few to continue",
            );
        }
        let phase = match peers {
            1 => DemoPhase::Over,
            0..KILLED_OF_MIN => DemoPhase::Join,
            _ => DemoPhase::Kill,
        };
        Self::from_phase(phase)
    }

    /// Plans no faults.
    pub(super) fn none() -> Self {
        Self::from_phase(DemoPhase::Over)
    }

    fn from_phase(phase: DemoPhase) -> Self {
        Self { clock: MonotonicClock::start(), phase, killed: None, late: None }
    }

    /// Checks the newest reports of the peers, and acts if it is time.
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
                if !swarm.output.format.is_json() {
                    let text = format!("training paused for {:.2} s", stall.as_secs_f64());
                    swarm.output.screen.say(&text);
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
        if swarm.output.format.is_json() {
            emit(&json!({"event": "killed", "peer": peer.id, "step": step}));
        } else {
            swarm.output.screen.say(&format!("step {step}: peer {} is killed (SIGKILL)", peer.name));
        }
    }

    fn join(&mut self, swarm: &mut Swarm<'_>) -> anyhow::Result<()> {
        self.phase = DemoPhase::Over;
        self.late = Some(swarm.peers.len());
        if !swarm.output.format.is_json() {
            swarm.output.screen.say("a new peer joins");
        }
        // It may be too late to join.
        swarm.spawn_joiner()?.is_excused = true;
        Ok(())
    }
}

/// Index of the peer to kill: not the founder, whose invite the late joiner uses.
const KILLED: usize = 1;
/// The smallest swarm of which a peer is killed.
const KILLED_OF_MIN: usize = 3;
