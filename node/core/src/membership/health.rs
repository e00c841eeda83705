//! Health: what a member knows about the condition of each member, for status reports.

use peergrad_protocol::{Instant, Rank, StepNumber};

use super::members::Members;
use super::training_status::TrainingStatus;
use crate::node_report::Condition;

/// What a member knows about another one, or about itself.
pub(crate) struct MemberHealth {
    /// What the member is doing, or what is wrong with it.
    pub(crate) condition: Condition,
    /// How many steps that member has completed, by its last report; `None` before the first.
    pub(crate) complete: Option<StepNumber>,
    /// How long ago the member's last frame arrived. `None` before the first one, for this member itself, and for members that it does
    /// not watch.
    pub(crate) silence: Option<std::time::Duration>,
}

/// For each rank, what this member knows about that member.
pub(super) fn member_health(
    members: &Members,
    now: Instant,
    status: &TrainingStatus<'_>,
) -> Vec<MemberHealth> {
    let place = &members.place;
    let (hanging, neighbors) = (members.hanging(now, status), members.neighbors());
    let of = |rank: Rank| {
        let peer = &place.view.member(rank).peer;
        let is_me = rank == place.rank;
        let is_watched = is_me || neighbors.contains(peer);
        let condition = match (trouble_with(members, now, rank, &hanging), is_watched) {
            (Some(trouble), _) => trouble,
            (None, _) if !is_me && is_watched && !members.links.is_linked(peer) => Condition::Connecting,
            (None, _) if members.departures.retiring.contains(peer) => Condition::HandingOver,
            (None, _) if is_me && !status.has_parameters => Condition::CatchingUp,
            (None, _) if !is_me && members.is_newcomer(rank) => Condition::CatchingUp,
            (None, _) if members.observed.busy.is_busy(now, rank) => Condition::Busy,
            (None, true) => Condition::Working,
            (None, false) => Condition::Unwatched,
        };
        MemberHealth {
            condition,
            complete: members.observed.reported_progress.get(&rank).map(|seen| seen.complete),
            silence: members.detection.detector.silence(now, peer).filter(|_| !is_me),
        }
    };
    place.ranks().map(of).collect()
}

fn trouble_with(members: &Members, now: Instant, rank: Rank, hanging: &[Rank]) -> Option<Condition> {
    let (place, observed) = (&members.place, &members.observed);
    let peer = &place.view.member(rank).peer;
    if rank == place.rank {
        return members.is_paused().then_some(Condition::Paused);
    }
    if observed.departed.contains(&rank) {
        Some(Condition::Stopped)
    } else if observed.broken.contains(&rank) && members.links.unlinked.contains(peer) {
        Some(Condition::Unreachable)
    } else if members.detection.detector.is_suspected(now, peer) {
        Some(Condition::Suspected)
    } else if hanging.contains(&rank) {
        Some(Condition::Hanging)
    } else {
        None
    }
}
