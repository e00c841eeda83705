//! The overview: how a peer stands and how it sees the others, for a person who looks on.
//!
//! A standing says where a node is, and costs nothing; the laws of the simulator ask for it all the time. An overview goes
//! through all members, and is made when somebody asks: what does this peer think of each of them, who owns how much, who
//! wants to come in.
//!
//! # Invariants
//! - Looking changes nothing: it is a function of the node's state and the time.
//! - It is *this* peer's opinion. Two members on both sides of a cut each say that the other cannot be reached.

use std::time::Duration;

use peergrad_protocol::{PeerId, RunId, StepNumber};

use crate::io::{RecoveryProgress, RunSize};
use crate::node::MemberProgress;
use crate::partition_policy::PartitionPolicy;

/// How a node stands, as it sees it itself.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeReport {
    /// It founds a run, and waits for peers.
    Bootstrap {
        /// The run.
        run: RunId,
        /// How many peers the first view waits for, this one included.
        wanted: usize,
        /// Peers that have said hello: who, and whether it is ready.
        peers: Vec<(PeerId, bool)>,
    },
    /// It asks to be let in.
    Join {
        /// The run, once that is known.
        run: Option<RunId>,
        /// The member that has welcomed it.
        sponsor: Option<PeerId>,
        /// Whether it has task and data, and has said so.
        is_ready: bool,
        /// Members that it cannot reach, and has to.
        out_of_reach: Vec<PeerId>,
        /// It was a member before it stopped: who of that view is back with it, as long as nobody trains.
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
    /// Where it is.
    pub progress: MemberProgress,
    /// How large the run is.
    pub run_size: RunSize,
    /// The epoch that is trained.
    pub epoch: u64,
    /// Chunks of the parameter vector.
    pub chunks: usize,
    /// Of those that the view lists, chunks that have not moved yet.
    pub moves_left: usize,
    /// How long it has been in this view.
    pub view_age: Duration,
    /// By rank: the members.
    pub members: Vec<ObservedMember>,
    /// Peers that want to come in, and whether they are ready, as far as this member was told.
    pub joiners: Vec<(PeerId, bool)>,
    /// Where all parts of a swarm that is cut in two go on: members that were lost and may have gone on as another one.
    pub estranged: Vec<PeerId>,
    /// What the parts of a swarm do that is cut in two.
    pub policy: PartitionPolicy,
    /// Set while too few members can be reached: how many are, this one included, and how many are needed.
    pub paused: Option<(usize, usize)>,
    /// The members that can be reached have no parameters; it waits for one that has.
    pub is_orphaned: bool,
    /// Chunks of tables that nobody who can be reached has; this member waits for one who does.
    pub missing_chunks: usize,
    /// Members that have not confirmed the secret that this one's user has asked for; `None` if it has not.
    pub without_secret: Option<Vec<PeerId>>,
    /// Another view is being agreed on because something is wrong.
    pub is_troubled: bool,
}

/// One member, as another or it itself sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedMember {
    /// Who.
    pub peer: PeerId,
    /// How much it offers to own.
    pub capacity: u8,
    /// What it is doing, or what is wrong with it.
    pub condition: Condition,
    /// Steps that are complete there, as it said last.
    pub complete: Option<StepNumber>,
    /// How long nothing has been heard of it; `None` of oneself, and of those who are not listened to.
    pub silence: Option<Duration>,
    /// Elements of the parameter vector that it owns in the present step.
    pub owned: usize,
    /// Elements of whose state it keeps a copy.
    pub replicated: usize,
}

/// What a member is doing, or what is wrong with it; of several, the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It has said that it stops.
    Stopped,
    /// Its link is gone.
    Unreachable,
    /// It has been silent for longer than it should.
    Suspected,
    /// It computes the same step for far longer than steps take, and the others wait for it.
    Hanging,
    /// Too few of the others can be reached: it waits.
    Paused,
    /// There was no link to it yet in this view.
    Connecting,
    /// It is new and has no parameters yet: they come with its first step.
    CatchingUp,
    /// It hands over what it owns, to leave.
    HandingOver,
    /// It works, or would if the others did.
    Working,
    /// In a swarm of many each listens to a few: others do.
    Unwatched,
}

impl Condition {
    /// Whether somebody should look after it.
    #[must_use]
    pub fn is_trouble(self) -> bool {
        matches!(self, Self::Stopped | Self::Unreachable | Self::Suspected | Self::Hanging | Self::Paused)
    }
}
