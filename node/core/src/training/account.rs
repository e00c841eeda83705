//! The account of training: the state that other parts of the node ask for, and the final state.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::view::{Recovery, Resume, View};
use peergrad_protocol::{Buffer, Instant, Rank, StepNumber};

use super::Training;
use super::base::EngineBase;
use crate::io::{Event, FinalState, ViewDelta};
use crate::membership::view_change::ViewChangePlanner;
use crate::membership::{Assignments, GateStatus, MergeStatus, TrainingStatus};
use crate::node_report::MemberProgress;
use crate::state::shared_cache::ViewDifference;

impl Training {
    /// The planner of the view after this one.
    pub(crate) fn planner(&self) -> ViewChangePlanner<'_> {
        let base = self.base();
        ViewChangePlanner::new(&base.shard_map, &base.loaded)
    }

    /// The state of training for membership. `report` makes this member's report, if one is asked for. The program computes in this step, or
    /// in none, and is busy until then.
    pub(crate) fn status<'a>(
        &'a self,
        report: &'a dyn Fn() -> MemberReport,
        (computing, busy_until): (Option<StepNumber>, Instant),
    ) -> TrainingStatus<'a> {
        let base = self.base();
        let common = TrainingStatus {
            planner: self.planner(),
            report,
            step: self.step(),
            tables: None,
            assignments: Assignments {
                current: match self {
                    Self::Steps(steps) => steps.state().assignment(),
                    Self::Tables(tables) => tables.assignment(),
                },
                previous: None,
                next: None,
            },
            gate: GateStatus { is_open: true, is_frozen: base.is_frozen, ..GateStatus::default() },
            has_parameters: self.has_parameters(),
            computing,
            busy_until,
            is_closing: self.is_closing(),
            has_committed: true,
            merge: MergeStatus::default(),
        };
        match self {
            Self::Steps(steps) => steps.status(common),
            Self::Tables(tables) => TrainingStatus { tables: Some(tables.status()), ..common },
        }
    }

    /// Samples that the committed steps have taken.
    pub(crate) fn trained(&self) -> u64 {
        let assignment = match self {
            Self::Steps(steps) => steps.state().uncommitted_assignment(),
            Self::Tables(tables) => tables.assignment(),
        };
        let sample_count = u64::from(self.base().loaded.task.sample_count());
        assignment.after.taken(sample_count).saturating_sub(assignment.len())
    }

    /// The parameters after the newest complete step; with tables, those that the program has last read. `None` for a newcomer that has
    /// none yet.
    fn newest_parameters(&self) -> Option<&Arc<Buffer>> {
        match self {
            Self::Steps(steps) => steps.state().newest_parameters(),
            Self::Tables(tables) => Some(tables.parameters()),
        }
    }

    /// The newest committed parameters.
    pub(crate) fn parameters(&self) -> Option<&Arc<Buffer>> {
        match self {
            Self::Steps(steps) => steps.state().parameters(),
            Self::Tables(tables) => Some(tables.parameters()),
        }
    }

    /// Whether this member has parameters, so that the program can be started.
    pub(crate) fn has_parameters(&self) -> bool {
        self.newest_parameters().is_some()
    }

    /// Whether the step in progress comes after the last epoch.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Steps(steps) => steps.state().is_over(),
            Self::Tables(tables) => tables.is_over(),
        }
    }

    /// Whether the program has ended, or would end at once.
    pub(crate) fn is_closing(&self) -> bool {
        self.base().barrier.is_waiting() || self.is_over()
    }

    /// How far this member is in its view.
    pub(crate) fn progress(&self) -> MemberProgress {
        MemberProgress {
            view: Arc::clone(self.view()),
            digest: self.base().digest(),
            complete: self.at().0,
            has_parameters: self.has_parameters(),
            committed: self.committed().0,
            wait: match self {
                Self::Steps(steps) => steps.wait(),
                Self::Tables(tables) => tables.wait(),
            },
            held_segments: self.base().flow_control.held_total(),
        }
    }

    /// The final state at this member: the newest committed one; `None` while this member has no parameters.
    pub(crate) fn final_state(&self) -> Option<FinalState> {
        let (base, parameters) = (self.base(), self.parameters()?);
        let left_out = base.omissions.total();
        let (samples, optimizer_bytes) = match self {
            Self::Steps(steps) => (steps.state().samples(), steps.state().optimizer_bytes()),
            Self::Tables(tables) => (tables.samples(), tables.moment_bytes()),
        };
        Some(FinalState {
            run: self.view().run,
            specification: Arc::clone(&base.specification),
            manifest: base.loaded.manifest.clone(),
            steps: self.committed().0,
            samples,
            left_out,
            own_samples: base.own_trained,
            parameters: Arc::clone(parameters),
            digest: ContentDigest::of(parameters.bytes()),
            evaluation: None,
            optimizer_bytes,
            shard: base.shard_len(self.step()),
        })
    }

    /// The epoch in progress.
    pub(crate) fn epoch(&self) -> u64 {
        match self {
            Self::Steps(steps) => steps.state().assignment().epoch,
            Self::Tables(tables) => tables.epoch(),
        }
    }

    // The view.

    /// The event that reports a view which resumes from checkpoints; `None` for another view.
    pub(crate) fn restored_event(&self) -> Option<Event> {
        let Recovery::Resume(resume) = &self.view().recovery else { return None };
        let parameters = self.newest_parameters().filter(|_| resume.is_restored)?;
        Some(Event::Restored {
            steps: resume.step,
            epoch: self.steps().map(|_| self.view().cursor.epoch),
            digest: ContentDigest::of(parameters.bytes()),
            restarted: self.view().moves.restarted.clone(),
        })
    }

    /// The event that reports the view. `change` is the difference from the view before, and how this one resumes; `None` in a member's
    /// first view.
    pub(crate) fn installed_event(&self, change: Option<(&ViewDifference, &Resume)>) -> Event {
        let (base, view) = (self.base(), Arc::clone(self.view()));
        let change = change.map(|(difference, resume)| view_delta(difference, resume, base));
        let share = base.shard_map.shares[base.rank.index()];
        Event::ViewInstalled {
            digest: base.digest(),
            shard: base.shard_len(self.step()),
            share,
            view,
            change,
        }
    }
}

/// Which part of each batch a member computes in the view, in thousandths.
fn batch_per_mille(view: &View, rank: Rank) -> u16 {
    let weights = view.batch_weights(|_| true);
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    (1000 * u64::from(weights[rank.index()]) / total) as u16
}

/// Which part of the parameters a member owns after all moves of the view, in thousandths.
fn owned_per_mille(base: &EngineBase) -> u16 {
    let shares = &base.shard_map.shares;
    let total: usize = shares.iter().sum();
    (1000 * shares[base.rank.index()] / total.max(1)) as u16
}

/// How the view differs from the one before.
fn view_delta(difference: &ViewDifference, resume: &Resume, base: &EngineBase) -> ViewDelta {
    let (view, round_size) = (base.view(), base.loaded.config.round_size());
    let has_steps = !base.shard_map.sharding.has_tables;
    ViewDelta {
        joined: difference.joined.clone(),
        left: difference.left.clone(),
        step: has_steps.then_some(resume.step),
        is_interruption: has_steps && resume.is_interruption(),
        is_forward: resume.forward.is_some(),
        is_merge: resume.merge.is_some(),
        returned: view.cursor.returned.iter().map(|span| span.len()).sum(),
        moving: view.moves.list.len(),
        restarted: view.moves.restarted.clone(),
        retiring: difference.retiring.clone(),
        owned_per_mille: difference.has_other_capacities.then(|| owned_per_mille(base)),
        batch_per_mille: difference.has_other_parts.then(|| batch_per_mille(view, base.rank)),
        local_steps: round_size.duration.map(|_| round_size.local_steps(view, |_| true)),
    }
}
