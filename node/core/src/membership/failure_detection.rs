//! Failure detection: which members are lost, and which ones hold up all others.
//!
//! # How it works
//! - *Reach.* A member hears the heartbeats of its neighbors: of all members in a small view, else of a few at growing
//!   distances. A member whose link broke is lost, and so is one that is silent for longer than its recent delays explain.
//! - *Progress.* A heartbeat carries the number of complete steps and whether the program computes. A member hangs if it
//!   computes at the same step for a large multiple of the usual time while the others wait.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::failure_detector::FailureDetector;
use peergrad_protocol::message::{AgreementMessage, Heartbeat};
use peergrad_protocol::view::View;
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::{Membership, TrainingSnapshot};
use crate::io::{Event, Output};

/// The progress in a member's last heartbeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedProgress {
    pub(super) complete: StepNumber,
    computing: Option<StepNumber>,
    /// Since when both have these values; if the member computes, since when for that step.
    since: Instant,
}

/// How long steps take.
#[derive(Debug, Default)]
pub(super) struct StepTiming {
    step: StepNumber,
    since: Option<Instant>,
    /// Since when this member's own program computes.
    computing_since: Option<Instant>,
    /// The longest recent step: rises at once, falls slowly.
    longest: Duration,
}

impl StepTiming {
    pub(super) fn note(&mut self, now: Instant, step: StepNumber) {
        if let Some(since) = self.since.filter(|_| step > self.step) {
            let steps = u32::try_from(step.0 - self.step.0).unwrap_or(u32::MAX);
            let took = now.since(since) / steps;
            self.longest = (self.longest - self.longest / STEP_TIMING_MEMORY).max(took);
        }
        if step != self.step || self.since.is_none() {
            (self.step, self.since) = (step, Some(now));
        }
    }

    /// What the own program takes, a step takes at least: also one that began in another view.
    pub(super) fn note_computing(&mut self, now: Instant, is_computing: bool) {
        if is_computing {
            self.computing_since.get_or_insert(now);
        } else if let Some(since) = self.computing_since.take() {
            self.longest = self.longest.max(now.since(since));
        }
    }

    /// A step begins again.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// How long nobody has to be done with a step.
    fn patience(&self) -> Duration {
        (self.longest * HANG_STEPS).max(HANG_MIN)
    }

    /// Whether nothing has come to its end for that long.
    fn is_overdue(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) > self.patience())
    }

    /// A step's usual time.
    pub(super) fn usual(&self) -> Duration {
        self.longest
    }
}

/// How this member notices that others are lost, or hold up training.
pub(super) struct FailureDetection {
    pub(super) detector: FailureDetector,
    pub(super) step_timing: StepTiming,
    /// When members that are not linked were dialed last.
    dialed_at: Instant,
    /// When anything that is trained with arrived last.
    data_arrived_at: Instant,
}

impl FailureDetection {
    pub(super) fn new(now: Instant, view: &View) -> Self {
        Self {
            detector: FailureDetector::new(heartbeat_interval(view)),
            step_timing: StepTiming::default(),
            dialed_at: now,
            data_arrived_at: now,
        }
    }

    /// Watches the `neighbors` of another view, and no other members.
    pub(super) fn watch(&mut self, now: Instant, view: &View, neighbors: Vec<PeerId>) {
        self.detector.set_interval(heartbeat_interval(view));
        for peer in neighbors {
            self.detector.add(now, peer);
        }
    }
}

impl Membership {
    /// A frame of a peer arrived.
    pub(crate) fn heard(&mut self, now: Instant, peer: &PeerId) {
        self.detection.detector.heard(now, peer);
    }

    /// A segment or a chunk batch of a member arrived: slow, perhaps, but not stuck.
    pub(crate) fn data_arrived(&mut self, now: Instant) {
        self.detection.data_arrived_at = now;
    }

    /// A member says where it is. Whoever is behind is told of the view, unless it is about to hear of it anyway.
    pub(crate) fn on_heartbeat(
        &mut self,
        now: Instant,
        from: PeerId,
        heartbeat: Heartbeat,
        out: &mut Vec<Output>,
    ) {
        if heartbeat.view != self.place.digest {
            self.note_in_other_view(now, &from, heartbeat.view);
        }
        if heartbeat.view_number < self.place.view.number {
            if heartbeat.view_number.0 + 1 == self.place.view.number.0
                && now.since(self.view_state.entered_at) < DISSEMINATION_MAX
            {
                return;
            }
            let view = self.place.view.as_ref().clone();
            return self.send(from, &AgreementMessage::Install(view).into(), out);
        }
        if let Some(rank) = self.place.view.rank(&from).filter(|_| heartbeat.view == self.place.digest) {
            self.note_heartbeat(now, rank, heartbeat);
        }
    }

    /// Takes note of where a member is, this one included.
    pub(super) fn note_heartbeat(&mut self, now: Instant, rank: Rank, heartbeat: Heartbeat) {
        // Where steps do not wait for a program, they go on while it computes.
        let is_same = |seen: &&ReportedProgress| {
            seen.computing == heartbeat.computing
                && (heartbeat.computing.is_some() || seen.complete == heartbeat.complete)
        };
        let since =
            self.view_state.reported_progress.get(&rank).filter(is_same).map_or(now, |seen| seen.since);
        self.view_state.in_other_views.remove(&rank);
        let Heartbeat { complete, computing, .. } = heartbeat;
        self.view_state.reported_progress.insert(rank, ReportedProgress { complete, computing, since });
    }

    /// Frames can be sent to this peer.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId) {
        self.links.up(peer);
        self.detection.detector.heard(now, &peer);
    }

    /// They cannot any more, and some may be lost.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        self.links.down(*peer, &self.place.view);
        self.view_state.broken.extend(self.place.view.rank(peer));
    }

    /// A peer stops, and says so. Whether it is a member.
    pub(crate) fn departed(&mut self, from: &PeerId, reason: &str, out: &mut Vec<Output>) -> bool {
        let Some(rank) = self.place.view.rank(from) else { return false };
        self.view_state.departed.insert(rank);
        out.push(Output::Event(Event::MemberStopped { peer: *from, reason: reason.to_owned() }));
        true
    }

    /// The process of a member is another one by now.
    pub(super) fn mark_restarted(&mut self, rank: Rank) {
        self.view_state.broken.insert(rank);
        self.view_state.reported_progress.remove(&rank);
    }

    /// Members that this one cannot reach, in order.
    pub(super) fn lost(&self, now: Instant) -> Vec<Rank> {
        // A link that is still being dialed has its patience, as a heartbeat that has not come yet.
        let is_cut = |rank: &&Rank| self.links.unlinked.contains(&self.place.view.member(**rank).peer);
        let cut = self.view_state.broken.iter().filter(is_cut).copied();
        let silent = self.detection.detector.suspected(now).filter_map(|peer| self.place.view.rank(peer));
        let far = self.links.relayed.iter().filter_map(|(peer, since)| self.out_of_reach(now, peer, *since));
        let lost: BTreeSet<Rank> = cut
            .chain(self.view_state.departed.iter().copied())
            .chain(silent)
            .chain(far)
            .chain(self.in_other_views(now))
            .chain(self.violators())
            .collect();
        lost.into_iter().collect()
    }

    /// Members whose program holds everybody up; never this one itself, which would know.
    pub(super) fn hanging(&self, now: Instant, snapshot: &TrainingSnapshot<'_>) -> Vec<Rank> {
        if snapshot.computing.is_some()
            || snapshot.is_still
            || snapshot.is_closing
            || !snapshot.has_parameters
        {
            return vec![];
        }
        let hangs = |seen: &ReportedProgress| {
            let is_behind = seen.computing.is_some_and(|step| step <= snapshot.progress());
            is_behind && now.since(seen.since) > self.detection.step_timing.patience()
        };
        if snapshot
            .tables
            .as_ref()
            .is_some_and(|tables| !tables.is_reading || !self.detection.step_timing.is_overdue(now))
        {
            // Nobody holds this one up.
            return vec![];
        }
        self.view_state
            .reported_progress
            .iter()
            .filter(|(_, seen)| hangs(seen))
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Whether nobody gets on although nobody computes: something has been lost on the way.
    pub(super) fn is_stalled(&self, now: Instant, snapshot: &TrainingSnapshot<'_>) -> bool {
        let computes = self.view_state.reported_progress.values().any(|seen| seen.computing.is_some());
        let is_waiting = snapshot.computing.is_none() && !snapshot.is_closing && snapshot.has_parameters;
        let waited = self
            .detection
            .step_timing
            .since
            .map_or(Duration::ZERO, |since| now.since(since.max(self.detection.data_arrived_at)));
        is_waiting && !computes && waited > self.detection.step_timing.patience()
    }

    /// Takes note of how training gets on.
    pub(super) fn note_step_timing(&mut self, now: Instant, snapshot: &TrainingSnapshot<'_>) {
        self.view_state.has_committed = snapshot.has_committed;
        self.detection.step_timing.note_computing(now, snapshot.computing.is_some());
        if !snapshot.is_still {
            self.detection.step_timing.note(now, snapshot.progress());
        }
    }

    /// Notes that something is wrong, or no longer.
    pub(super) fn note_trouble(&mut self, now: Instant, is_trouble: bool, out: &mut Vec<Output>) {
        match (is_trouble, self.view_state.trouble_since) {
            (true, None) => {
                self.view_state.trouble_since = Some(now);
                for rank in self.lost(now) {
                    out.push(Output::Event(Event::MemberSuspected(self.place.view.member(rank).peer)));
                }
            }
            (false, Some(_)) => self.view_state.trouble_since = None,
            _ => {}
        }
    }

    /// A member that is not linked is wanted: whoever dials may have given up, or waits ever longer.
    pub(super) fn redial(&mut self, now: Instant, out: &mut Vec<Output>) {
        if now.since(self.detection.dialed_at) < REDIAL_INTERVAL {
            return;
        }
        self.detection.dialed_at = now;
        for rank in self.links.unlinked.iter().filter_map(|peer| self.place.view.rank(peer)) {
            let member = self.place.view.member(rank);
            out.push(Output::Dial(member.contact()));
        }
    }

    /// Those whom this member watches, and who watch it.
    pub(crate) fn neighbors(&self) -> Vec<PeerId> {
        let count = self.place.view.members.len();
        let rank = self.place.rank.index();
        let ranks: Vec<usize> = if !self.place.view.is_large() {
            (0..count).filter(|other| *other != rank).collect()
        } else {
            let distances = [1, 7, count - 7, count - 1];
            let mut ranks: Vec<usize> = distances.iter().map(|distance| (rank + distance) % count).collect();
            ranks.sort_unstable();
            ranks
        };
        ranks.into_iter().map(|index| self.place.view.members[index].peer).collect()
    }
}

/// How often members say that they live.
pub(super) fn heartbeat_interval(view: &View) -> Duration {
    if view.is_large() { HEARTBEAT_INTERVAL_OF_MANY } else { HEARTBEAT_INTERVAL }
}

/// Within this time all members hear of a view, mostly, from the one that proposed it.
const DISSEMINATION_MAX: Duration = Duration::from_millis(200);
/// Pause before members that are not linked are dialed again.
const REDIAL_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two beats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// The same in a swarm of many.
const HEARTBEAT_INTERVAL_OF_MANY: Duration = Duration::from_secs(1);
/// A program may take so many times as long as the slowest step of late.
const HANG_STEPS: u32 = 10;
/// And at least this long.
const HANG_MIN: Duration = Duration::from_secs(10);
/// The longest step is forgotten over some tens of steps.
const STEP_TIMING_MEMORY: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    #[test]
    fn the_pace_rises_at_once_and_falls_slowly() {
        let mut step_timing = StepTiming::default();
        step_timing.note(at(0), StepNumber(7));
        assert_eq!((step_timing.usual(), step_timing.patience()), (Duration::ZERO, HANG_MIN));
        step_timing.note(at(100), StepNumber(8));
        assert_eq!(step_timing.usual(), Duration::from_millis(100));
        // Nothing new, for however long.
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

    /// Whoever computes for long has that much more patience with others, although the view has changed meanwhile.
    #[test]
    fn the_own_program_s_time_counts_across_views() {
        let mut step_timing = StepTiming::default();
        step_timing.note_computing(at(0), true);
        step_timing.restart(at(19_000));
        step_timing.note_computing(at(19_500), true);
        assert_eq!(step_timing.patience(), HANG_MIN);
        step_timing.note_computing(at(20_000), false);
        step_timing.note_computing(at(21_000), false);
        assert_eq!(
            (step_timing.usual(), step_timing.patience()),
            (Duration::from_secs(20), Duration::from_secs(200))
        );
    }

    #[test]
    fn steps_that_are_noted_together_share_the_time() {
        let mut step_timing = StepTiming::default();
        step_timing.note(at(0), StepNumber(0));
        step_timing.note(at(1000), StepNumber(4));
        assert_eq!(step_timing.usual(), Duration::from_millis(250));
    }

    /// A step that is undone counts from when it begins again.
    #[test]
    fn a_step_back_is_no_step() {
        let mut step_timing = StepTiming::default();
        step_timing.note(at(0), StepNumber(3));
        step_timing.note(at(100), StepNumber(4));
        step_timing.note(at(5000), StepNumber(3));
        step_timing.note(at(5100), StepNumber(4));
        assert_eq!(step_timing.usual(), Duration::from_millis(100));
    }
}
