//! Hanging: the members whose program holds up all others, and those that are excused because they are busy.
//!
//! A program hangs if it computes at one step and does not end. To the others it looks like a slow one, so they are patient first. A step
//! may also take long for a good reason: a compilation, a validation, a breakpoint. Then the member's user says so, and for how long. The
//! others wait until that time is over, as for a colleague with a note on the door.
//!
//! # How it works
//! - A heartbeat says how much longer its sender is busy. The receiver counts from its arrival, so no clocks are compared.
//! - In a large view a member hears few others, but its step holds up all. So all are told when a user's word changes, and for a few seconds
//!   after, since some may not have entered the view yet.
//! - A busy member does not hang. When its time is over, or it is not busy any more, patience with it begins.
//! - What a step takes while a member is busy says nothing of the usual time: `failure_detection.rs`.
//!
//! # Not here
//! Members that are silent or out of reach are lost, busy or not: `members.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::{Instant, Rank};

use super::members::Members;
use super::observations::ReportedProgress;
use super::training_status::TrainingStatus;

/// The members that are busy in one view, as far as this one knows.
#[derive(Debug, Default)]
pub(super) struct BusyMembers {
    /// By rank: until when the member is busy, or was.
    until: BTreeMap<Rank, Instant>,
    /// Until when this member is busy, or was, as it has told the others.
    told: Instant,
    /// Until when members learn of that which are no neighbors.
    told_until: Instant,
}

impl BusyMembers {
    /// A heartbeat says that its sender is busy for so many milliseconds more; 0 if it is not busy.
    pub(super) fn note(&mut self, now: Instant, rank: Rank, milliseconds: u32) {
        if milliseconds > 0 || self.is_busy(now, rank) {
            self.until.insert(rank, now.after(Duration::from_millis(milliseconds.into())));
        }
    }

    /// Until when the member is busy, or was; the start of time if it never was in this view.
    pub(super) fn until(&self, rank: Rank) -> Instant {
        self.until.get(&rank).copied().unwrap_or_default()
    }

    /// Whether the member is busy.
    pub(super) fn is_busy(&self, now: Instant, rank: Rank) -> bool {
        self.until(rank) > now
    }

    /// The members that are busy.
    fn all(&self, now: Instant) -> impl Iterator<Item = Rank> {
        self.until.iter().filter(move |(_, until)| **until > now).map(|(rank, _)| *rank)
    }

    /// This member sends a heartbeat, and is busy until then. Returns whether members learn of it that are no neighbors.
    pub(super) fn are_told(&mut self, now: Instant, until: Instant) -> bool {
        let is_news = until != self.told && until.max(self.told) > now;
        self.told = until;
        if is_news {
            self.told_until = now.after(TOLD_FOR);
        }
        now < self.told_until
    }
}

impl Members {
    /// The members whose program delays all others. Never this member itself, which knows that it computes.
    pub(super) fn hanging(&self, now: Instant, status: &TrainingStatus<'_>) -> Vec<Rank> {
        let timing = &self.detection.step_timing;
        let is_working = status.computing.is_some() || status.gate.is_frozen || status.is_closing;
        let tables = status.tables.as_ref();
        if is_working
            || !status.has_parameters
            || tables.is_some_and(|tables| !tables.is_reading || !timing.is_overdue(now))
        {
            // No other member delays this one.
            return vec![];
        }
        let hangs = |rank: Rank, seen: &ReportedProgress| {
            let is_behind = seen.computing.is_some_and(|step| step <= status.progress());
            let since = seen.since.max(self.observed.busy.until(rank));
            // What it said last, for heartbeats may be late.
            is_behind && seen.arrived_at().since(since) > timing.patience()
        };
        let seen = self.observed.reported_progress.iter();
        seen.filter(|(rank, seen)| hangs(**rank, seen)).map(|(rank, _)| *rank).collect()
    }

    /// Whether a member is busy that computes, as far as this one knows: then steps take longer than usual.
    pub(super) fn waits_for_busy(&self, now: Instant) -> bool {
        let progress = &self.observed.reported_progress;
        let may_compute = |rank| progress.get(&rank).is_none_or(|seen| seen.computing.is_some());
        self.observed.busy.all(now).any(may_compute)
    }
}

/// How long all members of a large view are told that a member is busy, or that it is not any more.
const TOLD_FOR: Duration = Duration::from_secs(3);
