//! The failure detector: peers that have been silent for too long.
//!
//! A postman who always comes at ten is missed at noon; one who comes at any time is missed the next day. Every peer sends a small
//! frame, a *heartbeat*, to its watchers, and each watcher learns how late the heartbeats of each peer are. A silence that is long
//! compared with recent ones makes the peer *suspected*. There is nothing to configure.
//!
//! # How it works
//! 1. **Jitter.** A frame that arrives a gap `g` after the previous one is late by `g - interval`. The detector stores the largest
//!    jitter, not an average: many delayed heartbeats that arrive together do not change it.
//! 2. **Forgetting.** Jitter of the present window of 20 s and of the previous one counts in full; with each later window it is
//!    halved.
//! 3. **Timeout.** The next frame is due one heartbeat after the last, and may be late by a grace and by 3 times the jitter
//!    that is stored. The grace is 1.2 s, or 4 heartbeats where those are longer. So a peer that is never late is suspected
//!    after 1.45 s at a heartbeat of 250 ms. No timeout exceeds 10 s, or twice that of a peer that is never late.
//! 4. **Outages.** A silence longer than the timeout counts as one of that length only: after a partition has healed, the next one
//!    is noticed again.
//! 5. **First timeout.** No peer is suspected within the first 4 s: links may still have to be dialed.
//! 6. **Own absence.** All of this is measured on a clock that stops while the watcher itself does not run: if two calls are more
//!    than two heartbeats apart, the rest of the time between them does not count. So a laptop that wakes, or a peer that got no
//!    processor, finds all peers about as far from being suspected as before.
//!
//! Cost: one ordered insertion for each frame; the next deadline is the first entry.
//!
//! # Results
//! Eight simulated peers that watch each other with a heartbeat of 250 ms: how long after a peer stops each other suspects
//! it, in 420 cases, and how often one is suspected that did not stop, in 10 times 30 minutes of 56 pairs.
//!
//! | conditions | least | median | most | in error |
//! |---|---|---|---|---|
//! | quiet: delays of 1 ms, stalls of 2 ms on average | 1.2 s | 1.3 s | 1.5 s | 0 |
//! | far: delays of 40 to 80 ms, and 5 % of frames held up by 300 ms more | 1.9 s | 2.4 s | 2.8 s | 0 |
//! | overloaded: each peer stalls each second for 0.25 s on average, exponential, up to 1 s | 2.3 s | 3.9 s | 6.0 s | 0 |
//! | the same without a bound: a stall in a hundred is longer than 1.2 s, some than 2 s | 2.7 s | 4.1 s | 10.7 s | 1 |
//! | quiet, with a heartbeat of 1 s | 4.0 s | 4.6 s | 5.0 s | 0 |
//!
//! No rule can tell a first stall of 1.5 s, on a machine that never stalled, from a stop.
//!
//! # Not here
//! Asking other peers: every member must reach every other *itself*, so what another peer hears proves nothing
//! ([`clique`](crate::clique) chooses which members a view keeps). Progress: a peer whose task hangs still sends heartbeats.
//!
//! # Reading
//! Chen, Toueg & Aguilera, *On the quality of service of failure detectors*, 2002: the next arrival is estimated, and a
//! margin added. Hayashibara et al., *The phi accrual failure detector*, 2004: the margin follows the spread. We differ
//! in the measure of the spread: the largest recent jitter, because the jitter of a busy machine has a long tail and no variance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::PeerId;
use crate::time::Instant;

/// The watched peers, the time of each one's last frame, and each one's jitter.
#[derive(Clone, Debug)]
pub struct FailureDetector {
    interval: Duration,
    watched: BTreeMap<PeerId, WatchedPeer>,
    /// When each watched peer becomes suspected, the next one first; on the clock that stops in absences.
    due: BTreeSet<(Instant, PeerId)>,
    /// The time of the last call.
    last_tick: Option<Instant>,
    /// The total absence of the watcher. The caller's clock minus this is the clock of all other fields.
    absent: Duration,
}

/// The state of one watched peer, on the clock that stops in absences.
#[derive(Clone, Debug)]
struct WatchedPeer {
    /// The time of the last frame; before the first one, the start of the watch.
    heard: Instant,
    /// Whether a frame has arrived.
    known: bool,
    /// The end of the first timeout.
    grace_until: Instant,
    due: Instant,
    jitter: Jitter,
}

impl FailureDetector {
    /// A detector without peers, for heartbeats every `interval`.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            watched: BTreeMap::new(),
            due: BTreeSet::new(),
            last_tick: None,
            absent: Duration::ZERO,
        }
    }

    /// Sets the heartbeat interval of all peers from now on; larger swarms heartbeat more slowly.
    ///
    /// A peer that keeps a slower heartbeat for a while is merely late. A peer that slows down before this call has the grace: an
    /// interval that grows by more than the grace must grow in two steps.
    pub fn set_interval(&mut self, interval: Duration) {
        let slower = self.interval.saturating_sub(interval);
        self.interval = interval;
        self.due.clear();
        for (peer, watched) in &mut self.watched {
            watched.jitter.learn(watched.heard, slower);
            watched.due = watched.due.max(watched.next_due(interval));
            self.due.insert((watched.due, *peer));
        }
    }

    /// Starts to watch `peer`, with a longer first timeout. No effect if it is watched already.
    pub fn add(&mut self, now: Instant, peer: PeerId) {
        self.tick(now);
        if self.watched.contains_key(&peer) {
            return;
        }
        let heard = self.awake(now);
        let due = heard.after(first_timeout(self.interval));
        let jitter = Jitter::new(heard);
        self.watched.insert(peer, WatchedPeer { heard, known: false, grace_until: due, due, jitter });
        self.due.insert((due, peer));
    }

    /// Stops watching `peer`.
    pub fn remove(&mut self, peer: &PeerId) {
        if let Some(watched) = self.watched.remove(peer) {
            self.due.remove(&(watched.due, *peer));
        }
    }

    /// Stops watching all peers for which `is_watched` is false.
    pub fn retain(&mut self, is_watched: impl Fn(&PeerId) -> bool) {
        self.watched.retain(|peer, _| is_watched(peer));
        self.due.retain(|(_, peer)| is_watched(peer));
    }

    /// A frame of `peer` arrived, with any content. No effect if the peer is not watched.
    pub fn heard(&mut self, now: Instant, peer: &PeerId) {
        self.tick(now);
        let heard = self.awake(now);
        let Some(watched) = self.watched.get_mut(peer) else { return };
        if watched.known {
            let silence = heard.since(watched.heard).min(watched.timeout());
            watched.jitter.learn(heard, silence.saturating_sub(self.interval));
        }
        self.due.remove(&(watched.due, *peer));
        watched.known = true;
        watched.heard = heard;
        watched.due = watched.next_due(self.interval);
        self.due.insert((watched.due, *peer));
    }

    /// The watcher runs. Call this at least once per heartbeat.
    ///
    /// A longer time between two calls counts as the watcher's own absence. Call this before asking which peers are suspected; before
    /// or after the frames that waited makes no difference.
    pub fn tick(&mut self, now: Instant) {
        self.absent += self.absence(now);
        self.last_tick = self.last_tick.max(Some(now));
    }

    /// Whether `peer` is watched.
    #[must_use]
    pub fn is_watched(&self, peer: &PeerId) -> bool {
        self.watched.contains_key(peer)
    }

    /// Whether `peer` is watched and has been silent for longer than its timeout.
    #[must_use]
    pub fn is_suspected(&self, now: Instant, peer: &PeerId) -> bool {
        self.watched.get(peer).is_some_and(|watched| self.awake(now) >= watched.due)
    }

    /// The suspected peers, the longest suspected first.
    pub fn suspected(&self, now: Instant) -> impl Iterator<Item = &PeerId> {
        let awake = self.awake(now);
        self.due.iter().take_while(move |(due, _)| *due <= awake).map(|(_, peer)| peer)
    }

    /// The present timeout of `peer`; for a peer that is not watched, the first timeout.
    #[must_use]
    pub fn timeout(&self, peer: &PeerId) -> Duration {
        self.watched.get(peer).map_or(first_timeout(self.interval), WatchedPeer::timeout)
    }

    /// The time since the last frame of `peer`, without the watcher's own absences; `None` if the peer is not watched, or has not
    /// sent a frame.
    #[must_use]
    pub fn silence(&self, now: Instant, peer: &PeerId) -> Option<Duration> {
        let watched = self.watched.get(peer).filter(|watched| watched.known)?;
        Some(self.awake(now).since(watched.heard))
    }

    /// When the next peer becomes suspected if no frame arrives; in the past if one already is.
    #[must_use]
    pub fn next_suspicion(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| due.after(self.absent))
    }

    /// [`FailureDetector::next_suspicion`] among the peers that are not suspected yet.
    #[must_use]
    pub fn next_suspicion_after(&self, now: Instant) -> Option<Instant> {
        let awake = self.awake(now);
        let (due, _) = self.due.iter().find(|(due, _)| *due > awake)?;
        Some(due.after(self.absent))
    }

    /// `now` on the clock that stops in absences.
    fn awake(&self, now: Instant) -> Instant {
        Instant(0).after(now.since(Instant(0).after(self.absent + self.absence(now))))
    }

    /// How much of the time since the last call the watcher was absent.
    fn absence(&self, now: Instant) -> Duration {
        let asleep = self.last_tick.map_or(Duration::ZERO, |last_tick| now.since(last_tick));
        asleep.saturating_sub(ABSENCE_INTERVALS * self.interval)
    }
}

impl WatchedPeer {
    fn timeout(&self) -> Duration {
        self.due.since(self.heard)
    }

    /// When the peer becomes suspected if no frame arrives.
    fn next_due(&self, interval: Duration) -> Instant {
        let late = interval + grace(interval) + JITTER_FACTOR * self.jitter.largest();
        self.heard.after(late.min(timeout_max(interval))).max(self.grace_until)
    }
}

/// The largest recent jitter: a maximum that is halved with each window.
#[derive(Clone, Debug)]
struct Jitter {
    /// The start of the present window.
    began: Instant,
    present: Duration,
    /// The largest jitter of the previous windows, halved with each window since.
    past: Duration,
}

impl Jitter {
    fn new(now: Instant) -> Self {
        Self { began: now, present: Duration::ZERO, past: Duration::ZERO }
    }

    fn learn(&mut self, now: Instant, jitter: Duration) {
        let windows = (now.since(self.began).as_nanos() / WINDOW.as_nanos()) as u32;
        if let Some(halvings) = windows.checked_sub(1) {
            self.began = self.began.after(WINDOW * windows);
            // After 31 halvings nothing is left that matters beside the grace.
            self.past = self.present.max(self.past / 2) / (1 << halvings.min(31));
            self.present = Duration::ZERO;
        }
        self.present = self.present.max(jitter);
    }

    fn largest(&self) -> Duration {
        self.present.max(self.past)
    }
}

/// The tolerated jitter of a peer that is never late.
fn grace(interval: Duration) -> Duration {
    GRACE.max(GRACE_INTERVALS * interval)
}

/// The time from the start of a watch in which the peer is not suspected.
fn first_timeout(interval: Duration) -> Duration {
    FIRST_TIMEOUT.max(2 * (interval + grace(interval)))
}

/// The longest timeout, whatever the jitter.
fn timeout_max(interval: Duration) -> Duration {
    TIMEOUT_MAX.max(2 * (interval + grace(interval)))
}

/// A pause shorter than this is never suspected: a page fault storm, a garbage collection, a lost packet sent again.
const GRACE: Duration = Duration::from_millis(1_200);
const GRACE_INTERVALS: u32 = 4;
/// The tolerated multiple of the largest recent jitter.
const JITTER_FACTOR: u32 = 3;
const FIRST_TIMEOUT: Duration = Duration::from_secs(4);
const TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// The length of a window. A jitter counts in full until the end of the window after its own.
const WINDOW: Duration = Duration::from_secs(20);
/// Calls further apart than this show that the watcher was absent.
const ABSENCE_INTERVALS: u32 = 2;

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use rand::rngs::ChaCha8Rng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(250);
    const PEER: PeerId = PeerId([1; 32]);

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// A watch of one peer that was heard every 250 ms until `until` milliseconds, which it ends at.
    fn heard_until(until: u64) -> FailureDetector {
        let mut detector = FailureDetector::new(INTERVAL);
        detector.add(at(0), PEER);
        for millis in (0..=until).step_by(250) {
            detector.tick(at(millis));
            detector.heard(at(millis), &PEER);
        }
        detector
    }

    #[test]
    fn a_punctual_peer_is_suspected_after_a_heartbeat_and_a_grace() {
        let mut detector = heard_until(10_000);
        assert_eq!(detector.timeout(&PEER), Duration::from_millis(1_450));
        assert_eq!(detector.next_suspicion(), Some(at(11_450)));
        for millis in (10_250..=11_250).step_by(250) {
            detector.tick(at(millis));
        }
        assert!(!detector.is_suspected(at(11_449), &PEER));
        assert!(detector.is_suspected(at(11_450), &PEER));
        assert_eq!(detector.silence(at(11_450), &PEER), Some(Duration::from_millis(1_450)));
        assert_eq!(detector.silence(at(11_450), &PeerId([2; 32])), None);
        assert_eq!(detector.suspected(at(11_449)).count(), 0);
        assert!(detector.suspected(at(11_450)).eq([&PEER]));
        assert_eq!(detector.next_suspicion_after(at(11_449)), Some(at(11_450)));
        assert_eq!(detector.next_suspicion_after(at(11_450)), None);
        detector.heard(at(11_500), &PEER);
        assert!(!detector.is_suspected(at(11_500), &PEER));
        detector.retain(|_| true);
        assert!(detector.next_suspicion().is_some());
        detector.retain(|peer| *peer != PEER);
        assert_eq!((detector.next_suspicion(), detector.timeout(&PEER)), (None, FIRST_TIMEOUT));
    }

    #[test]
    fn a_new_peer_is_not_suspected_before_the_first_timeout() {
        for said_something in [false, true] {
            let mut detector = FailureDetector::new(INTERVAL);
            detector.add(at(1_000), PEER);
            if said_something {
                detector.heard(at(1_000), &PEER);
            }
            (1_000..5_000).step_by(250).for_each(|millis| detector.tick(at(millis)));
            // Added again, it is the same watch.
            detector.add(at(4_900), PEER);
            assert!(!detector.is_suspected(at(4_999), &PEER));
            assert!(detector.is_suspected(at(5_000), &PEER));
            assert_eq!(detector.next_suspicion(), Some(at(5_000)));
        }
    }

    #[test]
    fn a_peer_that_is_not_watched_is_never_suspected() {
        let mut detector = FailureDetector::new(INTERVAL);
        detector.heard(at(0), &PEER);
        (0..60_000).step_by(250).for_each(|millis| detector.tick(at(millis)));
        assert!(!detector.is_suspected(at(60_000), &PEER));
        assert_eq!((detector.next_suspicion(), detector.timeout(&PEER)), (None, FIRST_TIMEOUT));
    }

    #[test]
    fn a_pause_of_the_watcher_is_not_held_against_other_peers() {
        let awake = |frames_first: bool| {
            let mut detector = heard_until(10_000);
            detector.tick(at(10_500));
            assert!(!detector.is_suspected(at(40_500), &PEER), "even before the first call");
            if frames_first {
                detector.heard(at(40_500), &PEER);
            }
            detector.tick(at(40_500));
            // The peer may be silent for what was left of its timeout, less the two heartbeats that no call is missed for.
            assert!(!detector.is_suspected(at(40_949), &PEER));
            detector.heard(at(40_949), &PEER);
            detector.timeout(&PEER)
        };
        // Half a second of waiting was seen of a frame, or nearly a whole one.
        assert_eq!(awake(true), Duration::from_millis(1_450 + 3 * 750));
        assert_eq!(awake(false), Duration::from_millis(1_450 + 3 * 1_199));
    }

    #[test]
    fn a_lateness_is_remembered_and_then_halved_repeatedly() {
        let mut detector = heard_until(20_000);
        // Late by 400 ms, and then three heartbeats at once, which do not make it any more punctual.
        detector.tick(at(20_400));
        (0..4).for_each(|_| detector.heard(at(20_650), &PEER));
        let mut timeout = vec![];
        for millis in (20_650..=160_650).step_by(250) {
            detector.tick(at(millis));
            detector.heard(at(millis), &PEER);
            timeout.push(detector.timeout(&PEER).as_millis());
        }
        timeout.dedup();
        let of_lateness: Vec<u128> = timeout.iter().map(|timeout| timeout - 1_450).collect();
        assert_eq!(of_lateness[..5], [1_200, 600, 300, 150, 75]);
    }

    #[test]
    fn an_outage_raises_the_timeout_by_a_limited_amount() {
        let mut detector = heard_until(10_000);
        (10_250..=60_000).step_by(250).for_each(|millis| detector.tick(at(millis)));
        assert!(detector.is_suspected(at(60_000), &PEER));
        detector.heard(at(60_000), &PEER);
        assert!(!detector.is_suspected(at(60_000), &PEER));
        assert_eq!(detector.timeout(&PEER), Duration::from_millis(1_450 + 3 * 1_200));
    }

    #[test]
    fn a_peer_that_keeps_a_slow_heartbeat_for_a_while_is_merely_late() {
        let mut detector = FailureDetector::new(4 * INTERVAL);
        detector.add(at(0), PEER);
        for millis in (0..=20_000).step_by(1_000) {
            detector.tick(at(millis));
            detector.heard(at(millis), &PEER);
        }
        assert_eq!(detector.timeout(&PEER), Duration::from_secs(5));
        detector.set_interval(INTERVAL);
        assert_eq!(
            detector.timeout(&PEER),
            Duration::from_secs(5),
            "what was granted stands until the next frame"
        );
        detector.heard(at(20_500), &PEER);
        assert_eq!(detector.timeout(&PEER), Duration::from_millis(1_450 + 3 * 750));
        detector.set_interval(8 * INTERVAL);
        assert_eq!(detector.timeout(&PEER), Duration::from_millis(10_000 + 3 * 750));
        assert_eq!(detector.next_suspicion(), Some(at(20_500 + 12_250)));
    }

    /// Eight peers that watch each other, each a process that runs and stalls, with links between them.
    struct Swarm {
        conditions: Conditions,
        generator: ChaCha8Rng,
        events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
        peers: Vec<Process>,
        /// A peer that stops for good, and when.
        stops: Option<(usize, Instant)>,
        detections: Vec<Duration>,
        /// By peer, how often it suspected another that was alive.
        false_suspicion_counts: [usize; PEERS],
    }

    struct Process {
        detector: FailureDetector,
        stalled_until: Instant,
        /// When the last frame to each of the others arrives: links keep the order.
        arrivals: [Instant; PEERS],
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        /// The peer's timer for the next heartbeat goes off.
        Heartbeat(usize),
        /// A frame arrives at a peer from another.
        Frame(usize, usize),
        /// A peer has asked to be called when somebody is to be suspected.
        Deadline(usize),
        /// A peer gets no processor for a while.
        Stall(usize),
    }

    #[derive(Clone, Copy)]
    struct Conditions {
        interval: Duration,
        /// Delay of a frame: at least, and up to this more.
        delay: Duration,
        delay_spread: Duration,
        /// How many of a hundred frames are held up by 300 ms more.
        held_up_percent: u64,
        /// The mean time that a peer runs between stalls, how long these are on average, and how long at most.
        runs: Duration,
        stalls: Duration,
        stall_max: Duration,
    }

    const PEERS: usize = 8;
    const MILLISECOND: Duration = Duration::from_millis(1);
    const QUIET: Conditions = Conditions {
        interval: INTERVAL,
        delay: Duration::from_micros(200),
        delay_spread: MILLISECOND,
        held_up_percent: 0,
        runs: Duration::from_secs(1),
        stalls: Duration::from_millis(2),
        stall_max: Duration::from_millis(20),
    };
    const FAR: Conditions = Conditions {
        delay: Duration::from_millis(40),
        delay_spread: Duration::from_millis(40),
        held_up_percent: 5,
        ..QUIET
    };
    const OVERLOADED: Conditions = Conditions {
        runs: Duration::from_secs(1),
        stalls: Duration::from_millis(250),
        stall_max: Duration::from_secs(1),
        ..QUIET
    };
    /// Stalls without an end to their tail: some are longer than 2 s.
    const HOPELESS: Conditions = Conditions { stall_max: Duration::from_secs(60), ..OVERLOADED };
    const SLOW: Conditions = Conditions { interval: Duration::from_secs(1), ..QUIET };

    fn peer(index: usize) -> PeerId {
        PeerId([index as u8; 32])
    }

    impl Swarm {
        fn new(conditions: Conditions, seed: u64) -> Self {
            let process = |index| {
                let mut detector = FailureDetector::new(conditions.interval);
                (0..PEERS).filter(|&other| other != index).for_each(|other| detector.add(at(0), peer(other)));
                Process { detector, stalled_until: at(0), arrivals: [at(0); PEERS] }
            };
            let mut swarm = Self {
                conditions,
                generator: ChaCha8Rng::seed_from_u64(seed),
                events: BinaryHeap::new(),
                peers: (0..PEERS).map(process).collect(),
                stops: None,
                detections: vec![],
                false_suspicion_counts: [0; PEERS],
            };
            for index in 0..PEERS {
                let first = at(0).after(swarm.uniform(conditions.interval));
                swarm.push(first, Event::Heartbeat(index));
                swarm.push(first, Event::Stall(index));
            }
            swarm
        }

        fn uniform(&mut self, below: Duration) -> Duration {
            let nanos = (u128::from(self.generator.next_u64()) * below.as_nanos()) >> 64;
            Duration::from_nanos(nanos as u64)
        }

        /// Halves from one step to the next, and is even within it: an exponential distribution without a logarithm.
        fn exponential(&mut self, mean: Duration) -> Duration {
            let step = mean * 2 / 3;
            self.generator.next_u64().trailing_zeros() * step + self.uniform(step)
        }

        /// What happens at the same time happens in any order.
        fn push(&mut self, at: Instant, event: Event) {
            let order = self.generator.next_u64();
            self.events.push(Reverse((at, order, event)));
        }

        fn run_until(&mut self, end: Instant) {
            while let Some(&Reverse((now, _, event))) = self.events.peek()
                && now < end
            {
                self.events.pop();
                let (Event::Heartbeat(index)
                | Event::Frame(index, _)
                | Event::Deadline(index)
                | Event::Stall(index)) = event;
                let is_stopped = self.stops.is_some_and(|(stopped, at)| stopped == index && at <= now);
                let stalled_until = self.peers[index].stalled_until;
                if is_stopped {
                    continue;
                }
                if now < stalled_until {
                    self.push(stalled_until, event);
                    continue;
                }
                self.happen(now, index, event);
            }
        }

        fn happen(&mut self, now: Instant, index: usize, event: Event) {
            if let Event::Stall(_) = event {
                let stall = self.exponential(self.conditions.stalls).min(self.conditions.stall_max);
                let stalled_until = now.after(stall);
                self.peers[index].stalled_until = stalled_until;
                let next = stalled_until.after(self.exponential(self.conditions.runs));
                self.push(next, event);
                return;
            }
            self.peers[index].detector.tick(now);
            self.poll(now, index);
            match event {
                Event::Frame(_, other) => self.peers[index].detector.heard(now, &peer(other)),
                Event::Heartbeat(_) => {
                    (0..PEERS).filter(|&other| other != index).for_each(|other| self.send(now, index, other));
                    self.push(now.after(self.conditions.interval), event);
                }
                Event::Deadline(_) | Event::Stall(_) => {}
            }
            if let Some(next) = self.peers[index].detector.next_suspicion()
                && self.stops.is_some()
            {
                self.push(next, Event::Deadline(index));
            }
        }

        /// Notes whom the peer suspects.
        fn poll(&mut self, now: Instant, index: usize) {
            let detector = &mut self.peers[index].detector;
            if detector.next_suspicion().is_none_or(|next| now < next) {
                return;
            }
            for other in (0..PEERS).filter(|&other| other != index) {
                if detector.is_suspected(now, &peer(other)) {
                    match self.stops {
                        Some((stopped, since)) if stopped == other => {
                            self.detections.push(now.since(since));
                            detector.remove(&peer(other));
                        }
                        _ => {
                            self.false_suspicion_counts[index] += 1;
                            // It is heard again after all.
                            detector.heard(now, &peer(other));
                        }
                    }
                }
            }
        }

        fn send(&mut self, now: Instant, from: usize, to: usize) {
            let held_up = self.generator.next_u64() % 100 < self.conditions.held_up_percent;
            let delay = self.conditions.delay + self.uniform(self.conditions.delay_spread);
            let delay = if held_up { delay + 300 * MILLISECOND } else { delay };
            let arrival = now.after(delay).max(self.peers[from].arrivals[to]);
            self.peers[from].arrivals[to] = arrival;
            self.push(arrival, Event::Frame(to, from));
        }
    }

    /// Lets the swarm live for half an hour in which nobody stops, and counts whom anybody suspects.
    fn false_suspicion_count(conditions: Conditions) -> usize {
        let mut swarm = Swarm::new(conditions, 1);
        swarm.run_until(at(30 * 60_000));
        swarm.false_suspicion_counts.iter().sum()
    }

    /// How long it takes each of the others to suspect a peer that stops: the least and the most, in milliseconds.
    fn detection(conditions: Conditions) -> (u128, u128) {
        let stop = |seed| {
            let mut swarm = Swarm::new(conditions, seed);
            swarm.stops = Some((0, at(60_000)));
            swarm.run_until(at(90_000));
            assert_eq!(swarm.detections.len(), PEERS - 1);
            swarm.detections
        };
        let detections: Vec<u128> = (0..20).flat_map(stop).map(|detection| detection.as_millis()).collect();
        let (least, most) = (detections.iter().min().unwrap(), detections.iter().max().unwrap());
        (*least, *most)
    }

    #[test]
    fn quiet_conditions() {
        assert_eq!(false_suspicion_count(QUIET), 0);
        let (least, most) = detection(QUIET);
        assert!(least >= 1_200 && most <= 1_500, "{least} to {most} ms");
    }

    #[test]
    fn far_away() {
        assert_eq!(false_suspicion_count(FAR), 0);
        let (least, most) = detection(FAR);
        assert!(least >= 1_200 && most <= 3_000, "{least} to {most} ms");
    }

    #[test]
    fn overloaded() {
        assert_eq!(false_suspicion_count(OVERLOADED), 0);
        let (least, most) = detection(OVERLOADED);
        assert!(least >= 1_200 && most <= 6_000, "{least} to {most} ms");
    }

    #[test]
    fn hopelessly_overloaded() {
        assert_eq!(false_suspicion_count(HOPELESS), 0);
        assert!(detection(HOPELESS).1 <= 10_000);
    }

    #[test]
    fn a_slower_heartbeat() {
        assert_eq!(false_suspicion_count(SLOW), 0);
        let (least, most) = detection(SLOW);
        assert!(least >= 4_000 && most <= 5_000, "{least} to {most} ms");
    }

    #[test]
    fn a_watcher_that_pauses_suspects_no_peer() {
        for (conditions, patience_most) in [(QUIET, 3_500), (FAR, 5_000), (OVERLOADED, 10_000)] {
            let mut swarm = Swarm::new(conditions, 2);
            for minutes in (2..30).step_by(2) {
                swarm.run_until(at(minutes * 60_000));
                swarm.peers[0].stalled_until = at(minutes * 60_000 + 30_000);
                swarm.run_until(at(minutes * 60_000 + 31_000));
                // Nor has it become so patient that it would not notice now.
                let timeout = swarm.peers[0].detector.timeout(&peer(1)).as_millis();
                assert!(timeout <= patience_most, "{timeout} ms");
            }
            assert_eq!(swarm.false_suspicion_counts[0], 0);
            // The others cannot tell a pause from a stop.
            assert!(swarm.false_suspicion_counts[1..].iter().all(|&count| count > 0));
        }
    }
}
