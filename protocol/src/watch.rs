//! The watch: who has not been heard of for too long.
//!
//! A postman who always comes at ten is missed at noon; one who comes whenever he likes is missed the next day. Every
//! peer sends a small frame, a *beat*, to those that watch it, and each watcher learns how late the beats of each peer
//! get. A silence that is long beside what was seen lately makes the peer *suspected*; nothing is to be set by hand.
//!
//! # How it works
//! 1. **Lateness.** A frame that comes a gap `g` after the one before it was late by `g - beat`. The largest lateness
//!    is kept, not an average: beats that were held up and come all at once are many, and change nothing.
//! 2. **Forgetting.** What was seen in the present quarter of a minute and in the one before counts in full, and half as
//!    much with each quarter after that.
//! 3. **Patience.** The next frame is due one beat after the last and may be late by a grace of 1.2 s, or 4 beats where
//!    those are longer, and 3 times the lateness kept: 1.45 s for a beat of 250 ms and a peer that is never late, and at
//!    most 10 s. A silence longer than the patience then teaches no more than the patience: it was an outage.
//! 4. **First patience.** Nobody is suspected within the first 4 s: links may still have to be dialed.
//! 5. **Own absence.** All of this is measured on a clock that stands still while the watcher itself does: where two
//!    calls are more than two beats apart, the rest of the time between them never was. So a laptop that wakes, or a
//!    peer that got no processor, finds everybody as far from being suspected as it left them.
//!
//! Cost: one ordered insertion for each frame; one look at the first for the next deadline.
//!
//! # Not here
//! Asking others whether they hear of the peer: every member must reach every other *itself*, so what somebody else
//! hears proves nothing (whom a view keeps then: [`reach`](crate::reach)). Progress: a peer whose task hangs still beats.
//!
//! # Reading
//! Chen, Toueg & Aguilera, *On the quality of service of failure detectors*, 2002: the next arrival is estimated, and a
//! margin added. Hayashibara et al., *The phi accrual failure detector*, 2004: the margin follows the spread. We differ
//! in what the spread is: the largest lateness of late, because that of a busy machine has a long tail and no variance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::PeerId;
use crate::time::Instant;

/// The peers that are watched, when each was last heard, and how late each tends to be.
#[derive(Clone, Debug)]
pub struct Watch {
    beat: Duration,
    watched: BTreeMap<PeerId, Watched>,
    /// When each watched peer becomes suspected, the next one first; of the clock that stands still in absences.
    due: BTreeSet<(Instant, PeerId)>,
    /// The last call that was told the time.
    attended: Option<Instant>,
    /// How long the watcher was absent in all: the caller's clock less this is the clock of all other fields.
    absent: Duration,
}

/// What is known of one peer, on the clock that stands still in absences.
#[derive(Clone, Debug)]
struct Watched {
    /// The last frame; until the first, when the watch began.
    heard: Instant,
    /// Whether there was a first frame.
    known: bool,
    /// The end of the first patience.
    spared_until: Instant,
    due: Instant,
    lateness: Lateness,
}

impl Watch {
    /// A watch over nobody, for peers that send a frame every `beat`.
    #[must_use]
    pub fn new(beat: Duration) -> Self {
        Self { beat, watched: BTreeMap::new(), due: BTreeSet::new(), attended: None, absent: Duration::ZERO }
    }

    /// From now on peers send a frame every `beat`; larger swarms beat more slowly.
    ///
    /// A peer that goes on with a slower beat for a while, because it has not heard yet, is no more than late.
    pub fn set_beat(&mut self, beat: Duration) {
        let slower = self.beat.saturating_sub(beat);
        self.beat = beat;
        self.due.clear();
        for (peer, watched) in &mut self.watched {
            watched.lateness.learn(watched.heard, slower);
            watched.due = watched.due.max(watched.next_due(beat));
            self.due.insert((watched.due, *peer));
        }
    }

    /// Starts to watch `peer`, with a longer first patience; no effect on one that is watched.
    pub fn add(&mut self, now: Instant, peer: PeerId) {
        self.attend(now);
        if self.watched.contains_key(&peer) {
            return;
        }
        let heard = self.awake(now);
        let due = heard.after(first_patience(self.beat));
        let lateness = Lateness::new(heard);
        self.watched.insert(peer, Watched { heard, known: false, spared_until: due, due, lateness });
        self.due.insert((due, peer));
    }

    /// Stops watching `peer`.
    pub fn remove(&mut self, peer: &PeerId) {
        if let Some(watched) = self.watched.remove(peer) {
            self.due.remove(&(watched.due, *peer));
        }
    }

    /// A frame of `peer` arrived, whatever it says; one of a peer that is not watched is ignored.
    pub fn heard(&mut self, now: Instant, peer: &PeerId) {
        self.attend(now);
        let heard = self.awake(now);
        let Some(watched) = self.watched.get_mut(peer) else { return };
        if watched.known {
            let silence = heard.since(watched.heard).min(watched.patience());
            watched.lateness.learn(heard, silence.saturating_sub(self.beat));
        }
        self.due.remove(&(watched.due, *peer));
        watched.known = true;
        watched.heard = heard;
        watched.due = watched.next_due(self.beat);
        self.due.insert((watched.due, *peer));
    }

    /// The watcher is awake; to be called at each beat at least.
    ///
    /// A longer time between two calls was the watcher's own absence, and is not held against the others. Call it before
    /// asking who is suspected, and before or after the frames that waited meanwhile: it makes no difference.
    pub fn attend(&mut self, now: Instant) {
        self.absent += self.absence(now);
        self.attended = self.attended.max(Some(now));
    }

    /// Whether `peer` is watched and has been silent for longer than its patience.
    #[must_use]
    pub fn is_suspected(&self, now: Instant, peer: &PeerId) -> bool {
        self.watched.get(peer).is_some_and(|watched| self.awake(now) >= watched.due)
    }

    /// How long a silence of `peer` is borne at present; for one that is not watched, how long it would be at first.
    #[must_use]
    pub fn patience(&self, peer: &PeerId) -> Duration {
        self.watched.get(peer).map_or(first_patience(self.beat), Watched::patience)
    }

    /// When the next peer becomes suspected if nothing is heard; in the past where one already is.
    #[must_use]
    pub fn next_suspicion(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| due.after(self.absent))
    }

    /// `now`, on the clock that stands still in absences.
    fn awake(&self, now: Instant) -> Instant {
        Instant(0).after(now.since(Instant(0).after(self.absent + self.absence(now))))
    }

    /// How much of the time since the last call the watcher was absent.
    fn absence(&self, now: Instant) -> Duration {
        let asleep = self.attended.map_or(Duration::ZERO, |attended| now.since(attended));
        asleep.saturating_sub(ABSENCE_BEATS * self.beat)
    }
}

impl Watched {
    fn patience(&self) -> Duration {
        self.due.since(self.heard)
    }

    /// When it becomes suspected if nothing more is heard.
    fn next_due(&self, beat: Duration) -> Instant {
        let late = beat + grace(beat) + LATENESS_FACTOR * self.lateness.largest();
        self.heard.after(late.min(patience_max(beat))).max(self.spared_until)
    }
}

/// The largest lateness of late: a maximum that is forgotten by halves.
#[derive(Clone, Debug)]
struct Lateness {
    /// When the present quarter of a minute began.
    began: Instant,
    present: Duration,
    /// The largest of the quarter before, or of an earlier one, halved each time since.
    past: Duration,
}

impl Lateness {
    fn new(now: Instant) -> Self {
        Self { began: now, present: Duration::ZERO, past: Duration::ZERO }
    }

    fn learn(&mut self, now: Instant, lateness: Duration) {
        // After 64 halvings nothing is left, however long nothing was learned.
        for _ in 0..64 {
            if now.since(self.began) < QUARTER {
                break;
            }
            self.began = self.began.after(QUARTER);
            self.past = self.present.max(self.past / 2);
            self.present = Duration::ZERO;
        }
        if now.since(self.began) >= QUARTER {
            self.began = now;
        }
        self.present = self.present.max(lateness);
    }

    fn largest(&self) -> Duration {
        self.present.max(self.past)
    }
}

/// How late a frame of a peer that is never late may be.
fn grace(beat: Duration) -> Duration {
    GRACE.max(GRACE_BEATS * beat)
}

/// The time from the start of a watch in which nobody is suspected.
fn first_patience(beat: Duration) -> Duration {
    FIRST_PATIENCE.max(2 * (beat + grace(beat)))
}

/// The longest silence that is borne, whatever was learned.
fn patience_max(beat: Duration) -> Duration {
    PATIENCE_MAX.max(2 * (beat + grace(beat)))
}

/// A pause shorter than this is never suspected: a page fault storm, a garbage collection, a lost packet sent again.
const GRACE: Duration = Duration::from_millis(1_200);
const GRACE_BEATS: u32 = 4;
/// How many times the largest lateness of late the next one may be.
const LATENESS_FACTOR: u32 = 3;
const FIRST_PATIENCE: Duration = Duration::from_secs(4);
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// How long a lateness counts in full, at least.
const QUARTER: Duration = Duration::from_secs(15);
/// Calls further apart than this show that the watcher was absent.
const ABSENCE_BEATS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_millis(250);
    const PEER: PeerId = PeerId([1; 32]);

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// A watch of one peer that was heard every 250 ms until `until` milliseconds, which it ends at.
    fn heard_until(until: u64) -> Watch {
        let mut watch = Watch::new(BEAT);
        watch.add(at(0), PEER);
        for millis in (0..=until).step_by(250) {
            watch.attend(at(millis));
            watch.heard(at(millis), &PEER);
        }
        watch
    }

    #[test]
    fn a_peer_that_is_never_late_is_suspected_after_beat_and_grace() {
        let mut watch = heard_until(10_000);
        assert_eq!(watch.patience(&PEER), Duration::from_millis(1_450));
        assert_eq!(watch.next_suspicion(), Some(at(11_450)));
        for millis in (10_250..=11_250).step_by(250) {
            watch.attend(at(millis));
        }
        assert!(!watch.is_suspected(at(11_449), &PEER));
        assert!(watch.is_suspected(at(11_450), &PEER));
        watch.heard(at(11_500), &PEER);
        assert!(!watch.is_suspected(at(11_500), &PEER));
        watch.remove(&PEER);
        assert_eq!(watch.next_suspicion(), None);
    }

    #[test]
    fn nobody_is_suspected_at_first() {
        for said_something in [false, true] {
            let mut watch = Watch::new(BEAT);
            watch.add(at(1_000), PEER);
            if said_something {
                watch.heard(at(1_000), &PEER);
            }
            (1_000..5_000).step_by(250).for_each(|millis| watch.attend(at(millis)));
            // Added again, it is the same watch.
            watch.add(at(4_900), PEER);
            assert!(!watch.is_suspected(at(4_999), &PEER));
            assert!(watch.is_suspected(at(5_000), &PEER));
            assert_eq!(watch.next_suspicion(), Some(at(5_000)));
        }
    }

    #[test]
    fn who_is_not_watched_is_not_suspected() {
        let mut watch = Watch::new(BEAT);
        watch.heard(at(0), &PEER);
        (0..60_000).step_by(250).for_each(|millis| watch.attend(at(millis)));
        assert!(!watch.is_suspected(at(60_000), &PEER));
        assert_eq!((watch.next_suspicion(), watch.patience(&PEER)), (None, FIRST_PATIENCE));
    }

    #[test]
    fn an_own_absence_is_not_held_against_the_others() {
        let awake = |frames_first: bool| {
            let mut watch = heard_until(10_000);
            watch.attend(at(10_500));
            assert!(!watch.is_suspected(at(40_500), &PEER), "even before the first call");
            if frames_first {
                watch.heard(at(40_500), &PEER);
            }
            watch.attend(at(40_500));
            // The peer may be silent for what was left of its patience, less the two beats that no call is missed for.
            assert!(!watch.is_suspected(at(40_949), &PEER));
            watch.heard(at(40_949), &PEER);
            watch.patience(&PEER)
        };
        // Half a second of waiting was seen of a frame, or nearly a whole one.
        assert_eq!(awake(true), Duration::from_millis(1_450 + 3 * 750));
        assert_eq!(awake(false), Duration::from_millis(1_450 + 3 * 1_199));
    }
}
