//! Inspection: the state of a node, for observers, and its report about itself and the other members, for status requests.

use std::sync::Arc;

use peergrad_protocol::{Buffer, Instant};

use super::{ActiveMember, Machine, NodeRole, Progress};
use crate::machine::jobs::Jobs;
use crate::membership::MemberHealth;
use crate::node_report::{Condition, MemberDetails, NodeReport, NodeState, ObservedMember, Wait};

impl Machine {
    pub(crate) fn state(&self) -> NodeState {
        match &self.role {
            NodeRole::Founder(_) => NodeState::Bootstrap,
            NodeRole::Joiner(joiner) if joiner.is_recovering() => NodeState::Recovery,
            NodeRole::Joiner(_) => NodeState::Join,
            NodeRole::Member(active) => {
                let mut progress = active.training.progress();
                if active.progress == Progress::Evaluating {
                    progress.wait = Wait::Evaluation;
                }
                NodeState::Member(progress)
            }
            NodeRole::Ended => NodeState::Ended,
        }
    }

    /// The newest committed parameters; `None` unless this peer is a member that has them.
    pub(crate) fn parameters(&self) -> Option<&Arc<Buffer>> {
        match &self.role {
            NodeRole::Member(active) => active.training.parameters(),
            NodeRole::Joiner(_) | NodeRole::Founder(_) | NodeRole::Ended => None,
        }
    }

    pub(crate) fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        let training = if let NodeRole::Member(active) = &self.role { Some(&active.training) } else { None };
        training
            .and_then(|training| training.steps())
            .into_iter()
            .flat_map(|steps| steps.state().optimizer_states())
    }

    pub(crate) fn node_report(&self, now: Instant) -> NodeReport {
        match &self.role {
            NodeRole::Founder(founder) => founder.node_report(),
            NodeRole::Joiner(joiner) => joiner.node_report(),
            NodeRole::Member(active) => NodeReport::Member(Box::new(active.node_report(now, &self.jobs))),
            NodeRole::Ended => NodeReport::Ended,
        }
    }
}

impl ActiveMember {
    fn node_report(&self, now: Instant, jobs: &Jobs) -> MemberDetails {
        let Self { training, membership, progress, .. } = self;
        let report = || training.report();
        let report = membership.report(now, &training.snapshot(&report, jobs.computing()));
        let members = &training.view().members;
        let seen = members.iter().zip(report.health).zip(training.base().shares(training.step()));
        let seen = seen.map(|((member, health), (owned, replicated))| {
            let MemberHealth { condition, complete, silence } = health;
            let is_parting = condition == Condition::Working && member.capacity == 0 && owned > 0;
            let condition = if is_parting { Condition::HandingOver } else { condition };
            ObservedMember {
                peer: member.peer,
                capacity: member.capacity,
                condition,
                complete,
                silence,
                owned,
                replicated,
            }
        });
        let mut standing = training.progress();
        if *progress == Progress::Evaluating {
            standing.wait = Wait::Evaluation;
        }
        MemberDetails {
            members: seen.collect(),
            run_size: training.base().loaded().run_size(),
            epoch: training.epoch(),
            chunks: training.base().chunk_count(),
            moves_left: training.base().moves_left(training.step()),
            view_age: now.since(report.entered_at),
            joiners: report.joiners,
            estranged: report.partitioned,
            policy: training.base().loaded().config.policy,
            paused: report.paused,
            is_orphaned: report.is_orphaned,
            missing_chunks: membership.missing_chunks(),
            without_secret: report.without_secret,
            is_troubled: membership.is_troubled(),
            progress: standing,
        }
    }
}
