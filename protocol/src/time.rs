//! Time as a plain number that the caller provides.
//!
//! Pure code never reads a clock. The caller passes in the time, and pure code returns the deadline at which it wants to be called
//! again, like a kitchen timer that the caller winds. So a test owns the clock, and a simulation skips the waiting.

use std::time::Duration;

/// Nanoseconds since some start that the driver chose; only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// This instant plus `duration`, saturating at the end of time (584 years).
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// One optional instant per kind of timer: nothing to cancel, nothing stale.
///
/// `N` is the number of kinds; the owner names them with an enum whose discriminants index the table.
#[derive(Clone, Debug)]
pub struct Timers<const N: usize> {
    due: [Option<Instant>; N],
}

impl<const N: usize> Default for Timers<N> {
    fn default() -> Self {
        Self { due: [None; N] }
    }
}

impl<const N: usize> Timers<N> {
    /// Sets timer `kind` to go off at `at`, replacing what was set.
    pub fn set(&mut self, kind: usize, at: Instant) {
        self.due[kind] = Some(at);
    }

    /// Stops timer `kind`.
    pub fn stop(&mut self, kind: usize) {
        self.due[kind] = None;
    }

    /// Whether timer `kind` has gone off by `now`; if so it is stopped.
    pub fn expired(&mut self, kind: usize, now: Instant) -> bool {
        let expired = self.due[kind].is_some_and(|at| at <= now);
        if expired {
            self.due[kind] = None;
        }
        expired
    }

    /// The earliest instant at which any timer goes off.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.due.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate() {
        assert_eq!(Instant(u64::MAX).after(Duration::from_secs(1)), Instant(u64::MAX));
        assert_eq!(Instant(1).since(Instant(5)), Duration::ZERO);
    }

    #[test]
    fn a_timer_goes_off_once() {
        let mut timers = Timers::<2>::default();
        timers.set(0, Instant(10));
        timers.set(1, Instant(5));
        assert_eq!(timers.next(), Some(Instant(5)));
        assert!(!timers.expired(0, Instant(9)));
        assert!(timers.expired(0, Instant(10)));
        assert!(!timers.expired(0, Instant(11)));
        timers.stop(1);
        assert_eq!(timers.next(), None);
    }
}
