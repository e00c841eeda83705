//! The clock: the only place where real time becomes the plain number that the pure crates are given.

use std::time::Duration;

use peergrad_protocol::Instant;

/// A monotonic clock that starts at zero when it is made. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: std::time::Instant,
}

impl MonotonicClock {
    /// A clock that starts at zero now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "here, and nowhere else")]
    pub fn start() -> Self {
        Self { start: std::time::Instant::now() }
    }

    /// The time since the clock started.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::default().after(self.start.elapsed())
    }

    /// How long until the clock reaches `at`; zero if it already has.
    #[must_use]
    pub fn until(&self, at: Instant) -> Duration {
        at.since(self.now())
    }
}

/// The system's time of day, in seconds since 1970, for text that people and other machines read. It may jump.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "here, and nowhere else")]
pub fn unix_seconds() -> f64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
