//! Report: what a member tells its user about the members.

use peergrad_protocol::{Instant, PeerId};

use super::health::{self, MemberHealth};
use super::members::Members;
use super::training_status::TrainingStatus;
use super::{Membership, partition};

/// What a member reports to its user about the members.
pub(crate) struct MembershipReport {
    /// By rank: what this member knows about each member.
    pub(crate) health: Vec<MemberHealth>,
    /// When this view was entered.
    pub(crate) entered_at: Instant,
    /// The peers that ask to join, and whether each is ready.
    pub(crate) joiners: Vec<(PeerId, bool)>,
    /// The lost members that may be in another branch.
    pub(crate) partitioned: Vec<PeerId>,
    /// How many members can be reached, this one included, and how many are needed; `None` unless too few can be reached.
    pub(crate) paused: Option<(usize, usize)>,
    /// Whether all members with parameters are lost.
    pub(crate) is_orphaned: bool,
    /// The members that have not confirmed the secret that this member's user has asked for; `None` if the user has not.
    pub(crate) without_secret: Option<Vec<PeerId>>,
}

impl Membership {
    /// What this member knows about the members, for a status report.
    pub(crate) fn report(&self, now: Instant, status: &TrainingStatus<'_>) -> MembershipReport {
        let Members { place, observed, .. } = &self.members;
        let partitioned = partition::partitioned_peers(&self.members, &self.admission);
        MembershipReport {
            health: health::member_health(&self.members, now, status),
            entered_at: observed.entered_at,
            joiners: self.admission.joiners(),
            partitioned: partitioned.map(|contact| contact.peer).collect(),
            paused: observed.pause.reached_and_needed(place.view.members.len()),
            is_orphaned: observed.pause.is_orphaned(),
            without_secret: self.rekeying.unconfirmed(&self.members),
        }
    }
}
