//! Failure detection: how long members have been silent, and how long steps take.
//!
//! `members.rs` concludes from this, and from links and heartbeats, which members are lost and which hold up the others.

use std::time::Duration;

use peergrad_protocol::failure_detector::FailureDetector;
use peergrad_protocol::view::View;
use peergrad_protocol::{Instant, StepNumber};

use super::place::Place;

/// How long steps take at this member.
#[derive(Debug)]
pub(super) struct StepTiming {
    /// The least time that a program may take, as the run's specification says.
    patience_min: Duration,
    /// The step in progress.
    step: StepNumber,
    /// Since when it is in progress; `None` before the first one.
    since: Option<Instant>,
    /// Since when this member's own program computes.
    computing_since: Option<Instant>,
    /// Whether a member was busy in the step in progress.
    is_excused: bool,
    /// The longest recent step. It rises at once and falls slowly.
    longest: Duration,
}

impl StepTiming {
    pub(super) fn new(patience_min: Duration) -> Self {
        Self {
            patience_min,
            step: StepNumber::default(),
            since: None,
            computing_since: None,
            is_excused: false,
            longest: Duration::ZERO,
        }
    }

    pub(super) fn note(&mut self, now: Instant, step: StepNumber) {
        if let Some(since) = self.since.filter(|_| step > self.step) {
            let steps = u32::try_from(step.0 - self.step.0).unwrap_or(u32::MAX);
            let took = now.since(since) / steps;
            // The rest of a step that began while a member was busy is not the usual time, nor does it say that this was long ago.
            let forgotten = if self.is_excused { Duration::ZERO } else { self.longest / STEP_TIMING_MEMORY };
            self.longest = (self.longest - forgotten).max(took);
            self.is_excused = false;
        }
        if step != self.step || self.since.is_none() {
            (self.step, self.since) = (step, Some(now));
        }
    }

    /// A step takes at least as long as this member's program computes, even if the program began in another view.
    pub(super) fn note_computing(&mut self, now: Instant, computing: Option<StepNumber>) {
        if computing.is_some() {
            self.computing_since.get_or_insert(now);
        } else if let Some(since) = self.computing_since.take() {
            self.longest = self.longest.max(now.since(since));
        }
    }

    /// A member is busy that may hold up the others: the time until now does not count.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.since = self.since.map(|_| now);
        self.computing_since = self.computing_since.map(|_| now);
        self.is_excused = true;
    }

    /// A step is repeated.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// How long a program may compute at a step.
    pub(super) fn patience(&self) -> Duration {
        (self.longest * HANG_STEPS).max(self.patience_min)
    }

    /// How long a step may go on if nobody computes and nothing arrives.
    fn stall_patience(&self) -> Duration {
        (self.longest * HANG_STEPS).max(STALL_MIN)
    }

    /// Whether no step has ended for that long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) > self.patience())
    }

    /// The usual time of a step.
    pub(super) fn usual(&self) -> Duration {
        self.longest
    }
}

/// How this member notices that others are lost, or hold up training.
pub(super) struct FailureDetection {
    /// How long each watched member has been silent, and whether its recent delays explain that.
    pub(super) detector: FailureDetector,
    /// How long steps take at this member.
    pub(super) step_timing: StepTiming,
    /// When members that are not linked were last dialed.
    dialed_at: Instant,
    /// When a segment, a chunk batch or a table message last arrived.
    data_arrived_at: Instant,
}

impl FailureDetection {
    /// Detection in a view, by a member that lets every program compute at one step for `patience` at least.
    pub(super) fn new(now: Instant, view: &View, patience: Duration) -> Self {
        Self {
            detector: FailureDetector::new(heartbeat_interval(view)),
            step_timing: StepTiming::new(patience),
            dialed_at: now,
            data_arrived_at: now,
        }
    }

    /// Watches the neighbors in a view, and no other members.
    pub(super) fn watch(&mut self, now: Instant, place: &Place) {
        let neighbors = place.neighbors();
        self.detector.retain(|peer| neighbors.contains(peer));
        self.detector.set_interval(heartbeat_interval(&place.view));
        for peer in neighbors {
            self.detector.add(now, peer);
        }
    }

    /// Whether it is time to dial members that are not linked again. If so, the next time is an interval later.
    pub(super) fn take_redial(&mut self, now: Instant) -> bool {
        let is_due = now.since(self.dialed_at) >= REDIAL_INTERVAL;
        if is_due {
            self.dialed_at = now;
        }
        is_due
    }

    /// Training has received something: it may be slow, but is not stuck.
    pub(super) fn data_arrived(&mut self, now: Instant) {
        self.data_arrived_at = now;
    }

    /// Whether this member has neither completed a step nor received anything for longer than a step may take.
    pub(super) fn is_still(&self, now: Instant) -> bool {
        self.has_been_still(now, self.step_timing.stall_patience())
    }

    /// Whether this member has neither completed a step nor received anything for so long.
    pub(super) fn has_been_still(&self, now: Instant, duration: Duration) -> bool {
        let since = self.step_timing.since.map(|since| since.max(self.data_arrived_at));
        since.is_some_and(|since| now.since(since) > duration)
    }
}

/// The interval between the heartbeats of a member.
pub(super) fn heartbeat_interval(view: &View) -> Duration {
    if view.is_large() { HEARTBEAT_INTERVAL_OF_MANY } else { HEARTBEAT_INTERVAL }
}

/// The interval at which members that are not linked are dialed again.
const REDIAL_INTERVAL: Duration = Duration::from_secs(2);
/// The interval between heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// The same in a large swarm.
const HEARTBEAT_INTERVAL_OF_MANY: Duration = Duration::from_secs(1);
/// How many times as long as the slowest recent step a program may take.
const HANG_STEPS: u32 = 10;
/// The least time for which a step may go on if nobody computes and nothing arrives.
const STALL_MIN: Duration = Duration::from_secs(10);
/// The number of steps over which the longest step loses its weight.
const STEP_TIMING_MEMORY: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(7);

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    #[test]
    fn the_usual_step_time_rises_at_once_and_falls_slowly() {
        let mut step_timing = StepTiming::new(PATIENCE);
        step_timing.note(at(0), StepNumber(7));
        assert_eq!((step_timing.usual(), step_timing.patience()), (Duration::ZERO, PATIENCE));
        step_timing.note(at(100), StepNumber(8));
        assert_eq!(step_timing.usual(), Duration::from_millis(100));
        // No new step, however long it takes.
        step_timing.note(at(2000), StepNumber(8));
        assert_eq!(step_timing.usual(), Duration::from_millis(100));
        step_timing.note(at(4100), StepNumber(9));
        assert_eq!(
            (step_timing.usual(), step_timing.patience()),
            (Duration::from_secs(4), Duration::from_secs(40))
        );
        step_timing.note(at(4200), StepNumber(10));
        assert_eq!(step_timing.usual(), Duration::from_millis(3875));
    }

    /// A member that computes for long is as patient with others, even if the view has changed meanwhile.
    #[test]
    fn computing_time_counts_across_view_changes() {
        let mut step_timing = StepTiming::new(PATIENCE);
        step_timing.note_computing(at(0), Some(StepNumber(0)));
        step_timing.restart(at(19_000));
        step_timing.note_computing(at(19_500), Some(StepNumber(0)));
        assert_eq!(step_timing.patience(), PATIENCE);
        step_timing.note_computing(at(20_000), None);
        step_timing.note_computing(at(21_000), None);
        assert_eq!(
            (step_timing.usual(), step_timing.patience()),
            (Duration::from_secs(20), Duration::from_secs(200))
        );
    }

    /// A busy member takes a minute in one step. That step is not usual, and the longest one before is not forgotten for it.
    #[test]
    fn the_time_of_a_busy_member_is_not_usual() {
        let mut step_timing = StepTiming::new(PATIENCE);
        step_timing.note(at(0), StepNumber(0));
        step_timing.note(at(3200), StepNumber(1));
        step_timing.note_computing(at(3200), Some(StepNumber(1)));
        for milliseconds in (3500..=63_500).step_by(250) {
            step_timing.excuse(at(milliseconds));
            step_timing.note_computing(at(milliseconds), Some(StepNumber(1)));
            step_timing.note(at(milliseconds), StepNumber(1));
        }
        assert!(!step_timing.is_overdue(at(63_500 + 32_000)), "patience begins when the member is not busy");
        assert!(step_timing.is_overdue(at(63_500 + 32_001)));
        step_timing.note_computing(at(63_600), None);
        step_timing.note(at(63_700), StepNumber(2));
        assert_eq!(step_timing.usual(), Duration::from_millis(3200));
        step_timing.note(at(63_800), StepNumber(3));
        assert_eq!(step_timing.usual(), Duration::from_millis(3100), "the next step counts as always");
    }

    #[test]
    fn steps_that_are_noted_together_share_the_time() {
        let mut step_timing = StepTiming::new(PATIENCE);
        step_timing.note(at(0), StepNumber(0));
        step_timing.note(at(1000), StepNumber(4));
        assert_eq!(step_timing.usual(), Duration::from_millis(250));
    }

    /// A step that is undone counts from when it is repeated.
    #[test]
    fn an_undone_step_does_not_count_as_a_step() {
        let mut step_timing = StepTiming::new(PATIENCE);
        step_timing.note(at(0), StepNumber(3));
        step_timing.note(at(100), StepNumber(4));
        step_timing.note(at(5000), StepNumber(3));
        step_timing.note(at(5100), StepNumber(4));
        assert_eq!(step_timing.usual(), Duration::from_millis(100));
    }
}
