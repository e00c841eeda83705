//! Inspection: how far a member is, and its report about itself and the other members.

use peergrad_protocol::Instant;

use super::{ActiveMember, Progress};
use crate::machine::jobs::Jobs;
use crate::membership::MemberHealth;
use crate::node_report::{Condition, MemberDetails, MemberProgress, ObservedMember, Wait};

impl ActiveMember {
    /// How far this member is in its view.
    pub(super) fn member_progress(&self) -> MemberProgress {
        let mut progress = self.training.progress();
        if self.progress == Progress::Evaluating {
            progress.wait = Wait::Evaluation;
        }
        progress
    }

    /// This member, and how it sees the others.
    pub(super) fn details(&self, now: Instant, jobs: &Jobs) -> MemberDetails {
        let Self { training, membership, .. } = self;
        let report = || training.report();
        let report = membership.report(now, &training.status(&report, jobs.program()));
        let view = training.view();
        let speeds = view.speeds.iter().copied().chain(std::iter::repeat(0));
        let seen =
            view.members.iter().zip(speeds).zip(report.health).zip(training.base().shares(training.step()));
        let seen = seen.map(|(((member, speed), health), (owned, replicated))| {
            let MemberHealth { condition, complete, silence } = health;
            let is_parting = condition == Condition::Working && member.capacity == 0 && owned > 0;
            let condition = if is_parting { Condition::HandingOver } else { condition };
            ObservedMember {
                peer: member.peer,
                capacity: member.capacity,
                samples_per_minute: Some(speed).filter(|speed| *speed > 0),
                condition,
                complete,
                silence,
                owned,
                replicated,
            }
        });
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
            progress: self.member_progress(),
        }
    }
}
