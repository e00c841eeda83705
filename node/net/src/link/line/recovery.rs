//! Recovery from losses: how much longer frames take where packets are lost and sent again.
//!
//! TCP delivers in order. What follows a lost packet waits until that one was sent again, a round trip or more later. Where packets are
//! lost in every round trip, each frame takes two or three of them. To fill such a line, as much has to be in flight as it carries in that
//! time.
//!
//! A frame that waits in a queue takes as long, and more in flight would only make the queue longer. The pings of libp2p tell the two apart:
//! they have a connection of their own. So they wait in the same queues, but not for lost packets of the lane.
//!
//! # How it works
//! The time of frames is averaged, without the time that the line takes to carry each. What they take longer than a ping is recovery; what a
//! ping takes longer than the shortest round trip is queue, and counts against it. So where both are there, no more is in flight until the
//! queue is short. Only pings beside large frames count: between two steps the queue is empty. Where the lane shares a connection with the
//! pings, both take as long, and nothing counts as recovery.
//!
//! # Reading
//! Cheng et al., *The RACK-TLP Loss Detection Algorithm for TCP*, RFC 8985, 2021: when TCP sends a packet again.

use std::collections::VecDeque;
use std::time::Duration;

use peergrad_core::io::LONG_ROUND_TRIP;
use tokio::time::Instant;

/// Measures the times of frames and pings.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The mean time of recent large frames, without that of carrying them; `None` before the first one on this lane.
    frames: Option<Duration>,
    /// The last pings beside large frames, and when they came back.
    pings: VecDeque<(Instant, Duration)>,
}

impl Recovery {
    /// Another lane begins. Pings go on as before.
    pub(super) fn restart(&mut self) {
        self.frames = None;
    }

    /// A ping has come back while a large frame was on its way.
    pub(super) fn note_ping(&mut self, now: Instant, round_trip: Duration) {
        self.pings.push_back((now, round_trip));
        if self.pings.len() > PINGS {
            self.pings.pop_front();
        }
    }

    /// A large frame has taken so long, without the time that the line takes to carry it.
    pub(super) fn note_frame(&mut self, took: Duration) {
        let mean = self.frames.unwrap_or(took);
        self.frames = Some((mean * 7 + took) / 8);
    }

    /// How long a frame takes on a line with an empty queue and this shortest round trip.
    pub(super) fn frame_time(&self, now: Instant, shortest: Duration) -> Duration {
        // On a short line, a frame rather waits for a busy computer.
        if shortest < LONG_ROUND_TRIP {
            return shortest;
        }
        let recent = self.pings.iter().filter(|(at, _)| now - *at < PING_AGE_MAX).map(|(_, trip)| *trip);
        let mut recent: Vec<Duration> = recent.collect();
        recent.sort_unstable();
        // Of two in the middle, the longer one.
        let (Some(ping), Some(frames)) = (recent.get(recent.len() / 2).copied(), self.frames) else {
            return shortest;
        };
        let queue = ping.saturating_sub(shortest);
        let recovery = frames.saturating_sub(ping.max(shortest)).saturating_sub(queue);
        shortest + recovery.min(RECOVERY_MAX * shortest)
    }
}

/// The median of so many pings counts: one that was lost takes longer.
const PINGS: usize = 5;
/// An older ping says nothing about the queue. They come every two seconds.
const PING_AGE_MAX: Duration = Duration::from_secs(20);
/// How many round trips a recovery may count for.
const RECOVERY_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_millis(100);

    /// How long a frame takes where frames took so long, and pings so long.
    fn frame_time(frames: u64, pings: &[u64]) -> Duration {
        let now = Instant::now();
        let mut recovery = Recovery::default();
        pings.iter().for_each(|ping| recovery.note_ping(now, Duration::from_millis(*ping)));
        for _ in 0..20 {
            recovery.note_frame(Duration::from_millis(frames));
        }
        recovery.frame_time(now, SHORTEST)
    }

    #[test]
    fn frames_that_take_longer_than_pings_wait_for_lost_packets() {
        assert_eq!(frame_time(250, &[99, 102, 101]), Duration::from_millis(248));
        assert_eq!(
            frame_time(250, &[100, 400, 100]),
            Duration::from_millis(250),
            "one ping was lost as well"
        );
        assert_eq!(frame_time(100, &[90]), SHORTEST);
        assert_eq!(frame_time(2_000, &[100]), 4 * SHORTEST);
    }

    #[test]
    fn frames_that_take_as_long_as_pings_wait_in_a_queue() {
        assert_eq!(frame_time(250, &[250]), SHORTEST);
        assert_eq!(frame_time(300, &[150]), SHORTEST + Duration::from_millis(100), "part of it is a queue");
        assert_eq!(frame_time(250, &[]), SHORTEST, "nothing is known");
    }

    #[test]
    fn old_pings_and_other_lanes_do_not_count() {
        let now = Instant::now();
        let mut recovery = Recovery::default();
        recovery.note_ping(now, SHORTEST);
        recovery.note_frame(2 * SHORTEST);
        assert_eq!(recovery.frame_time(now, SHORTEST), 2 * SHORTEST);
        assert_eq!(recovery.frame_time(now + PING_AGE_MAX, SHORTEST), SHORTEST);
        recovery.restart();
        assert_eq!(recovery.frame_time(now, SHORTEST), SHORTEST);
    }
}
