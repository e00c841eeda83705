//! Looking on: what a node tells of itself and of the others when somebody asks.

use peergrad_protocol::Instant;

use super::{Machine, Progress, Seat, Stage};
use crate::jobs::Jobs;
use crate::membership::Impression;
use crate::node::Wait;
use crate::overview::{Condition, MemberOverview, Overview, Seen};

impl Machine {
    pub(crate) fn overview(&self, now: Instant) -> Overview {
        match &self.stage {
            Stage::Founding(founding) => founding.overview(),
            Stage::Joining(joining) => joining.overview(),
            Stage::Member(seat) => Overview::Member(Box::new(seat.overview(now, &self.jobs))),
            Stage::Ended => Overview::Ended,
        }
    }
}

impl Seat {
    fn overview(&self, now: Instant, jobs: &Jobs) -> MemberOverview {
        let Self { session, membership, progress, .. } = self;
        let report = || session.report();
        let impressions = membership.impressions(now, &session.facts(&report, jobs.computing()));
        let members = &session.view().members;
        let seen = members.iter().zip(impressions).zip(session.shares());
        let seen = seen.map(|((member, impression), (owned, copied))| {
            let Impression { condition, complete, silence } = impression;
            let is_parting = condition == Condition::Working && member.weight == 0 && owned > 0;
            let condition = if is_parting { Condition::HandingOver } else { condition };
            Seen { peer: member.peer, weight: member.weight, condition, complete, silence, owned, copied }
        });
        let mut standing = session.standing();
        if *progress == Progress::Evaluating {
            standing.wait = Wait::Evaluation;
        }
        let (pass, chunks) = session.pass_and_chunks();
        MemberOverview {
            members: seen.collect(),
            scope: session.loaded().scope(),
            pass,
            chunks,
            moves_left: session.moves_left(),
            view_age: now.since(membership.entered_at()),
            comers: membership.comers(),
            estranged: membership.estranged().map(|contact| contact.peer).collect(),
            policy: session.loaded().training.policy,
            paused: membership.paused(),
            is_orphaned: membership.is_orphaned(),
            missing_chunks: membership.missing_chunks(),
            without_secret: membership.without_secret(),
            is_troubled: membership.is_troubled(),
            standing,
        }
    }
}
