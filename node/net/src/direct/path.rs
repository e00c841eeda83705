//! The direct path to one peer, shared by all its lanes: the hosts to try, and how recent attempts went.
//!
//! A path that is too slow, or fails, is tried ever more rarely, and the next lane after one that stalled gets more time. So a
//! slow line costs a few interruptions, and not one after the other.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The state that all lanes to one peer share.
#[derive(Debug)]
pub(crate) struct DirectPath {
    state: Mutex<PathState>,
}

#[derive(Debug)]
struct PathState {
    /// IP addresses and names of the peer's machine, the newest first.
    hosts: Vec<String>,
    not_before: Instant,
    /// The pause after the next failure.
    pause: Duration,
    patience: Duration,
    /// How many connections the last lane had.
    stripe_count: usize,
    /// Whether the peer's machine has ever accepted a connection from here.
    was_accepted: bool,
}

impl DirectPath {
    pub(crate) fn new(now: Instant) -> Self {
        let (hosts, pause, patience) = (Vec::new(), PAUSE_MIN, PATIENCE_MIN);
        Self {
            state: Mutex::new(PathState {
                hosts,
                not_before: now,
                pause,
                patience,
                stripe_count: 1,
                was_accepted: false,
            }),
        }
    }

    /// Remembers an IP address or a name of the peer's machine.
    pub(crate) fn note_host(&self, host: String) {
        let hosts = &mut self.lock().hosts;
        hosts.retain(|known| *known != host);
        hosts.insert(0, host);
        hosts.truncate(HOSTS_MAX);
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        self.lock().hosts.clone()
    }

    /// The peer's machine has accepted a connection from here.
    pub(crate) fn note_accepted(&self) {
        self.lock().was_accepted = true;
    }

    /// Whether the peer's machine has ever accepted a connection from here.
    pub(crate) fn was_accepted(&self) -> bool {
        self.lock().was_accepted
    }

    /// How many connections the next lane should have.
    pub(crate) fn stripe_count(&self) -> usize {
        self.lock().stripe_count
    }

    /// A lane is better with so many connections.
    pub(crate) fn note_stripe_count(&self, count: usize) {
        self.lock().stripe_count = count;
    }

    /// A lane with several connections broke, or stalled. With fewer that is less likely.
    pub(crate) fn halve_stripe_count(&self) {
        let count = &mut self.lock().stripe_count;
        *count = (*count / 2).max(1);
    }

    /// When to try it next.
    pub(crate) fn due(&self) -> Instant {
        self.lock().not_before
    }

    /// How long a lane may go without an acknowledgement.
    pub(crate) fn patience(&self) -> Duration {
        self.lock().patience
    }

    /// An attempt led to no lane. Returns whether another failure came not long before.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let is_repeated = state.pause > PAUSE_MIN;
        state.not_before = now + state.pause;
        state.pause = (2 * state.pause).min(PAUSE_MAX);
        is_repeated
    }

    /// A lane that was open since then has stalled. Returns whether another failure came not long before.
    pub(crate) fn stalled(&self, since: Instant, now: Instant) -> bool {
        let mut state = self.lock();
        if now.duration_since(since) >= STABLE_AFTER {
            state.pause = PAUSE_MIN;
        }
        state.patience = (2 * state.patience).min(PATIENCE_MAX);
        drop(state);
        self.failed(now)
    }

    /// A lane that was open since then broke. A lane that lasted resets the pause.
    pub(crate) fn broke(&self, since: Instant, now: Instant) {
        if now.duration_since(since) < PAUSE_MIN {
            self.failed(now);
            return;
        }
        let mut state = self.lock();
        (state.not_before, state.pause) = (now, PAUSE_MIN);
    }

    /// A panic elsewhere cannot leave the state half-changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, PathState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const HOSTS_MAX: usize = 6;
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// A lane that was open for so long resets the pause.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// On a short line. It is less than the failure detector of members allows, so that the other way is tried before.
const PATIENCE_MIN: Duration = Duration::from_millis(750);
/// As long as a substream may go without an acknowledgement.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_path_is_tried_ever_more_rarely_and_a_slow_one_gets_more_time() {
        let now = Instant::now();
        let path = DirectPath::new(now);
        assert_eq!((path.due(), path.patience()), (now, PATIENCE_MIN));
        assert!(!path.failed(now));
        assert_eq!((path.due(), path.patience()), (now + PAUSE_MIN, PATIENCE_MIN));
        assert!(path.stalled(now, now), "it is not the first thing that fails");
        assert_eq!((path.due(), path.patience()), (now + 2 * PAUSE_MIN, 2 * PATIENCE_MIN));
        (0..9).for_each(|_| assert!(path.stalled(now, now)));
        assert_eq!((path.due(), path.patience()), (now + PAUSE_MAX, PATIENCE_MAX));
    }

    #[test]
    fn a_lane_that_lasted_is_retried_at_once_and_a_short_lived_one_later() {
        let now = Instant::now();
        let path = DirectPath::new(now);
        path.broke(now, now + PAUSE_MIN);
        assert_eq!(path.due(), now + PAUSE_MIN);
        path.broke(now, now);
        path.broke(now, now);
        assert_eq!(path.due(), now + 2 * PAUSE_MIN);
    }

    #[test]
    fn stalls_far_apart_do_not_add_up() {
        let now = Instant::now();
        let path = DirectPath::new(now);
        assert!(!path.stalled(now, now) && path.stalled(now, now));
        assert!(!path.stalled(now, now + STABLE_AFTER));
        assert_eq!(path.due(), now + STABLE_AFTER + PAUSE_MIN);
    }

    #[test]
    fn the_newest_hosts_come_first_and_their_number_is_bounded() {
        let path = DirectPath::new(Instant::now());
        ["a", "b", "a"].iter().for_each(|host| path.note_host((*host).to_owned()));
        assert_eq!(path.hosts(), ["a", "b"]);
        (0..20).for_each(|host| path.note_host(host.to_string()));
        assert_eq!(path.hosts().len(), HOSTS_MAX);
    }
}
