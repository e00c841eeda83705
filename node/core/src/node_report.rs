//! The node report: the state of a peer and how it sees the other members, for people.
//!
//! A [`NodeState`] is cheap, and the simulator's invariants ask for it all the time. A report goes through all
//! members and is made on request: the condition of each member, how much each owns, and which peers ask to join.
//!
//! # Invariants
//! - A request changes nothing: the report is a function of the node's state and the time.
//! - It is *this* peer's opinion. Two members on both sides of a partition each report that the other cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, RunId, StepNumber, ViewDigest};

use crate::io::{RecoveryProgress, RunSize};
use crate::partition_policy::PartitionPolicy;

/// The state of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeState {
    /// It founds a run, and waits for peers.
    Bootstrap,
    /// It asks to join.
    Join,
    /// It was a member before its process stopped. It asks to join again, or waits for the other members of that view to return, to resume
    /// from their checkpoints.
    Recovery,
    /// It is a member.
    Member(MemberProgress),
    /// Its run has ended.
    Ended,
}

/// How far a member is in its view.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberProgress {
    /// The view that is installed here.
    pub view: Arc<View>,
    /// Its digest.
    pub digest: ViewDigest,
    /// Whether it has parameters. A newcomer gets its first ones from the other members.
    pub has_parameters: bool,
    /// The number of steps that are complete at this member.
    pub complete: u64,
    /// The number of steps that this member knows to be committed.
    pub committed: u64,
    /// What the present step waits for.
    pub wait: Wait,
    /// Segments from other members that are held here and whose credit was not returned, over all links.
    pub held_segments: u32,
}

/// What a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next view, before a step that is not taken in this one; or chunks of a step that is rolled forward.
    Start,
    /// The members to agree on the next view.
    View,
    /// Its own program: a gradient, or other work between two operations.
    Program,
    /// Sums of the shard that it owns.
    Sums,
    /// The shards of other owners.
    Shards,
    /// Rows of a table, samples to compute, or the acknowledgement of its additions.
    Rows,
    /// The other members to complete the run.
    Closing,
    /// The evaluation of the final parameters.
    Evaluation,
}

/// The report of a node about itself.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeReport {
    /// It founds a run, and waits for peers.
    Bootstrap {
        /// The id of the run.
        run: RunId,
        /// How many peers the first view waits for, this one included.
        wanted: usize,
        /// The peers that asked to join, and whether each is ready.
        peers: Vec<(PeerId, bool)>,
    },
    /// It asks to join.
    Join {
        /// The id of the run; `None` until it is known.
        run: Option<RunId>,
        /// The member that has welcomed this peer; `None` while no member has.
        sponsor: Option<PeerId>,
        /// Whether it has task and data, and has told the sponsor so.
        is_ready: bool,
        /// The members that it must reach and cannot.
        out_of_reach: Vec<PeerId>,
        /// Set if it was a member before it stopped, until it is a member again: which members of that view have returned.
        recovery: Option<RecoveryProgress>,
    },
    /// It is a member.
    Member(Box<MemberDetails>),
    /// Its run has ended.
    Ended,
}

/// A member, and how it sees the others.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberDetails {
    /// How far it is in its view.
    pub progress: MemberProgress,
    /// The size of the run.
    pub run_size: RunSize,
    /// The epoch in progress.
    pub epoch: u64,
    /// The number of chunks of the parameter vector.
    pub chunks: usize,
    /// How many of the view's moves have not been made yet.
    pub moves_left: usize,
    /// How long this member has been in this view.
    pub view_age: Duration,
    /// The members, by rank.
    pub members: Vec<ObservedMember>,
    /// The peers that ask to join, and whether each is ready, as far as this member was told.
    pub joiners: Vec<(PeerId, bool)>,
    /// The lost members that may train on another branch. Empty unless both parts of a partitioned swarm continue.
    pub estranged: Vec<PeerId>,
    /// What the parts of a partitioned swarm do.
    pub policy: PartitionPolicy,
    /// Set while too few members can be reached: how many can, this one included, and how many are needed.
    pub paused: Option<(usize, usize)>,
    /// Whether no reachable member has parameters, so that this member waits for one that has.
    pub is_orphaned: bool,
    /// How many chunks of tables no reachable member stores. This member waits for one that does.
    pub missing_chunks: usize,
    /// The members that have not confirmed the new secret that this member's user has asked for; `None` if the user has not.
    pub without_secret: Option<Vec<PeerId>>,
    /// Whether the members are agreeing on another view because something is wrong.
    pub is_troubled: bool,
}

/// One member, as this or another member sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedMember {
    /// The member's id.
    pub peer: PeerId,
    /// How much it offers to own.
    pub capacity: u8,
    /// How many samples it computes in a minute, as the view has it; `None` if no member's speed is in the view, or not this one's.
    pub samples_per_minute: Option<u32>,
    /// What it is doing, or what is wrong with it.
    pub condition: Condition,
    /// How many steps it has completed, by its last report; `None` before the first.
    pub complete: Option<StepNumber>,
    /// How long ago its last message was received. `None` for the reporting member itself, and for members that it does not watch.
    pub silence: Option<Duration>,
    /// Elements of the parameter vector that it owns in the present step.
    pub owned: usize,
    /// Elements whose optimizer state it stores as a replica.
    pub replicated: usize,
}

/// What a member is doing, or what is wrong with it. If several are wrong, the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It has announced that it stops.
    Stopped,
    /// Its link is down.
    Unreachable,
    /// It has been silent for longer than the failure detector allows.
    Suspected,
    /// It computes the same step for far longer than steps take, and the others wait for it.
    Hanging,
    /// It waits, because it can reach too few of the others.
    Paused,
    /// There was no link to it yet in this view.
    Connecting,
    /// It is new and has no parameters yet: it gets them in its first step.
    CatchingUp,
    /// It hands over what it owns, before it leaves.
    HandingOver,
    /// Its user has said that its program is busy: the others wait for it.
    Busy,
    /// It works, or would if the others did.
    Working,
    /// It is watched by other members: in a large swarm each member watches a few.
    Unwatched,
}

impl Condition {
    /// Whether a user should look into it.
    #[must_use]
    pub fn is_trouble(self) -> bool {
        matches!(self, Self::Stopped | Self::Unreachable | Self::Suspected | Self::Hanging | Self::Paused)
    }
}
