//! Observations: what a member has seen of the others in one view, from its entry until the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::message::Heartbeat;
use peergrad_protocol::view::View;
use peergrad_protocol::{Instant, Rank, StepNumber};

use super::complaints::Complaints;
use super::hanging::BusyMembers;
use super::pause::Pause;

/// What a member has seen of the others in one view. It is dropped with the view.
pub(super) struct Observations {
    /// When this view was entered.
    pub(super) entered_at: Instant,
    /// Members whose link broke in this view, or whose process restarted: frames from them may be lost.
    pub(super) broken: BTreeSet<Rank>,
    /// Members whose heartbeats name another view, and since when. Used only where all parts of a partitioned run continue.
    in_other_views: BTreeMap<Rank, Instant>,
    /// Members that have announced that they stop.
    pub(super) departed: BTreeSet<Rank>,
    /// By rank: the progress in the member's last heartbeat.
    pub(super) reported_progress: BTreeMap<Rank, ReportedProgress>,
    /// The members that are busy.
    pub(super) busy: BusyMembers,
    /// The faults that members have noticed of each other.
    pub(super) complaints: Complaints,
    /// Whether this member had been still for long when it stopped for the choice of the next view; `None` before that.
    pub(super) stopped_still: Option<bool>,
    /// Whether the user knows what this member waits for.
    pub(super) has_reported_stall: bool,
    /// Whether a step of this view is committed, so that all its members have parameters.
    pub(super) has_committed: bool,
    /// Whether this member waits for others because too few can be reached, as last reported to the user.
    pub(super) pause: Pause,
}

/// The progress in a member's last heartbeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedProgress {
    /// How many steps the member has completed.
    pub(super) complete: StepNumber,
    /// The step for which the member's program computes; `None` while it does not compute.
    pub(super) computing: Option<StepNumber>,
    /// Since when both have these values. If the member computes: since when it computes in that step.
    pub(super) since: Instant,
    /// When the heartbeat arrived, and since when they have arrived without a long pause.
    arrived: (Instant, Instant),
}

impl ReportedProgress {
    /// When the heartbeat arrived.
    pub(super) fn arrived_at(&self) -> Instant {
        self.arrived.0
    }
}

impl Observations {
    /// Those of a view that is entered now: none yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            entered_at: now,
            broken: BTreeSet::new(),
            in_other_views: BTreeMap::new(),
            departed: BTreeSet::new(),
            reported_progress: BTreeMap::new(),
            busy: BusyMembers::default(),
            complaints: Complaints::default(),
            stopped_still: None,
            has_reported_stall: false,
            has_committed: false,
            pause: Pause::default(),
        }
    }

    /// Records the progress of a member, or of this one.
    pub(super) fn note_heartbeat(&mut self, now: Instant, rank: Rank, heartbeat: Heartbeat) {
        // With a program that steps do not wait for, steps continue while it computes.
        let is_same = |seen: &&ReportedProgress| {
            seen.computing == heartbeat.computing
                && (heartbeat.computing.is_some() || seen.complete == heartbeat.complete)
        };
        let before = self.reported_progress.get(&rank);
        let since = before.filter(is_same).map_or(now, |seen| seen.since);
        let steadily = before.filter(|seen| now.since(seen.arrived.0) < HEARTBEAT_PAUSE_MAX);
        let arrived = (now, steadily.map_or(now, |seen| seen.arrived.1));
        self.in_other_views.remove(&rank);
        let Heartbeat { complete, computing, .. } = heartbeat;
        let progress = ReportedProgress { complete, computing, since, arrived };
        self.reported_progress.insert(rank, progress);
    }

    /// How long heartbeats of a member have arrived without a long pause until now.
    pub(super) fn heard_since(&self, now: Instant, rank: Rank) -> Option<Duration> {
        let (last, first) = self.reported_progress.get(&rank)?.arrived;
        (now.since(last) < HEARTBEAT_PAUSE_MAX).then(|| now.since(first))
    }

    /// The process of a member has restarted.
    pub(super) fn mark_restarted(&mut self, rank: Rank) {
        self.broken.insert(rank);
        self.reported_progress.remove(&rank);
    }

    /// A member speaks in another view than this one.
    pub(super) fn note_in_other_view(&mut self, now: Instant, rank: Rank) {
        self.in_other_views.entry(rank).or_insert(now);
    }

    /// The members that have been in another branch for a while.
    pub(super) fn in_other_views(&self, now: Instant) -> impl Iterator<Item = Rank> {
        let is_gone = move |since: &Instant| now.since(*since) > OTHER_VIEW_MAX;
        self.in_other_views.iter().filter(move |(_, since)| is_gone(since)).map(|(rank, _)| *rank)
    }

    /// Whether a member of `view` has no parameters yet, as far as this one knows. In a large view each member hears only a few others, so
    /// this must not depend on heartbeats alone.
    pub(super) fn is_newcomer(&self, view: &View, rank: Rank) -> bool {
        if self.has_committed {
            return false;
        }
        let has_begun =
            self.reported_progress.get(&rank).is_some_and(|seen| seen.complete > view.first_step());
        view.newcomers().contains(&rank) && !has_begun
    }
}

/// A longer pause between two heartbeats of a member means that it, or this one, did nothing for a while.
const HEARTBEAT_PAUSE_MAX: Duration = Duration::from_secs(3);
/// A member that has been heard only in other views for so long is not in this one any more. Before that, views may be on their way.
const OTHER_VIEW_MAX: Duration = Duration::from_secs(3);
