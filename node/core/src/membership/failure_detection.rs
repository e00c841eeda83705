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
    /// Since when both have these values. If the member computes: since when it computes in that step.
    since: Instant,
}

/// How long steps take at this member.
#[derive(Debug, Default)]
pub(super) struct StepTiming {
    step: StepNumber,
    since: Option<Instant>,
    /// Since when this member's own program computes.
    computing_since: Option<Instant>,
    /// The longest recent step. It rises at once and falls slowly.
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

    /// A step takes at least as long as this member's program computes, even if the program began in another view.
    pub(super) fn note_computing(&mut self, now: Instant, is_computing: bool) {
        if is_computing {
            self.computing_since.get_or_insert(now);
        } else if let Some(since) = self.computing_since.take() {
            self.longest = self.longest.max(now.since(since));
        }
    }

    /// A step is repeated.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// How long a member may take to complete a step.
    fn patience(&self) -> Duration {
        (self.longest * HANG_STEPS).max(HANG_MIN)
    }

    /// Whether no step has ended for that long.
    fn is_overdue(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) > self.patience())
    }

    /// The usual time of a step.
    pub(super) fn usual(&self) -> Duration {
        self.longest
    }
}

/// How this member notices that others are lost, or hold up training.
pub(super) struct FailureDetection {
    pub(super) detector: FailureDetector,
    pub(super) step_timing: StepTiming,
    /// When members that are not linked were last dialed.
    dialed_at: Instant,
    /// When a segment, a chunk batch or a table message last arrived.
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
    /// A frame has arrived from this peer.
    pub(crate) fn heard(&mut self, now: Instant, peer: &PeerId) {
        self.detection.detector.heard(now, peer);
    }

    /// A segment, a chunk batch or a table message has arrived: training may be slow, but is not stuck.
    pub(crate) fn data_arrived(&mut self, now: Instant) {
        self.detection.data_arrived_at = now;
    }

    /// A member has sent a heartbeat. A member in an earlier view is sent this one, unless it is about to receive it from the proposer.
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

    /// Records the progress of a member, or of this one.
    pub(super) fn note_heartbeat(&mut self, now: Instant, rank: Rank, heartbeat: Heartbeat) {
        // With a program that steps do not wait for, steps go on while it computes.
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

    /// A link to this peer is up.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId) {
        self.links.up(peer);
        self.detection.detector.heard(now, &peer);
    }

    /// The link is down, and some frames may be lost.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        self.links.down(*peer, &self.place.view);
        self.view_state.broken.extend(self.place.view.rank(peer));
    }

    /// A peer announces that it stops. Returns whether it is a member.
    pub(crate) fn departed(&mut self, from: &PeerId, reason: &str, out: &mut Vec<Output>) -> bool {
        let Some(rank) = self.place.view.rank(from) else { return false };
        self.view_state.departed.insert(rank);
        out.push(Output::Event(Event::MemberStopped { peer: *from, reason: reason.to_owned() }));
        true
    }

    /// The process of a member has restarted.
    pub(super) fn mark_restarted(&mut self, rank: Rank) {
        self.view_state.broken.insert(rank);
        self.view_state.reported_progress.remove(&rank);
    }

    /// The members that this one considers lost, in order.
    pub(super) fn lost(&self, now: Instant) -> Vec<Rank> {
        // A link that is still being dialed gets as much time as a heartbeat that has not arrived yet.
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

    /// The members whose program delays all others. Never this member itself, which knows that it computes.
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
            // No other member delays this one.
            return vec![];
        }
        self.view_state
            .reported_progress
            .iter()
            .filter(|(_, seen)| hangs(seen))
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Whether no member advances although none computes: some message has been lost.
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

    /// Records how long this member's steps take.
    pub(super) fn note_step_timing(&mut self, now: Instant, snapshot: &TrainingSnapshot<'_>) {
        self.view_state.has_committed = snapshot.has_committed;
        self.detection.step_timing.note_computing(now, snapshot.computing.is_some());
        if !snapshot.is_still {
            self.detection.step_timing.note(now, snapshot.progress());
        }
    }

    /// Records that something is wrong, or not any more.
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

    /// Dials the members that are not linked again: the driver may have given up, or may wait ever longer between its tries.
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

    /// The members that this one watches, which also watch it.
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

/// The interval between the heartbeats of a member.
pub(super) fn heartbeat_interval(view: &View) -> Duration {
    if view.is_large() { HEARTBEAT_INTERVAL_OF_MANY } else { HEARTBEAT_INTERVAL }
}

/// The time within which the proposer's message about a view usually reaches all members.
const DISSEMINATION_MAX: Duration = Duration::from_millis(200);
/// The interval at which members that are not linked are dialed again.
const REDIAL_INTERVAL: Duration = Duration::from_secs(2);
/// The interval between heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// The same in a large swarm.
const HEARTBEAT_INTERVAL_OF_MANY: Duration = Duration::from_secs(1);
/// How many times as long as the slowest recent step a program may take.
const HANG_STEPS: u32 = 10;
/// The least time that a program may take.
const HANG_MIN: Duration = Duration::from_secs(10);
/// The number of steps over which the longest step loses its weight.
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

    /// A step that is undone counts from when it is repeated.
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
