//! Test fixtures: peers and views, named by one byte, and a training configuration.

use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::combine::Combine;
use peergrad_models::optimizer::{Optimizer, ParameterGroups, Schedule};
use peergrad_protocol::message::Message;
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Incarnation, Instant, PeerId, RunId};

use crate::io::Output;
use crate::membership::{MemberRules, Membership};
use crate::partition_policy::PartitionPolicy;
use crate::program::loader::{Dealing, TrainingConfig};
use crate::state::round_size::RoundSize;
use crate::state::shared_cache::SharedCache;

pub(crate) fn peer(byte: u8) -> PeerId {
    PeerId([byte; 32])
}

pub(crate) fn member(byte: u8) -> Member {
    Member { peer: peer(byte), incarnation: Incarnation(1), addresses: vec![], capacity: 1 }
}

/// Steps of so many samples.
pub(crate) const fn round_size(batch_size: u64) -> RoundSize {
    RoundSize { batch_size, block: 1, local_steps: 1, duration: None }
}

/// The training configuration of a small task.
pub(crate) fn training() -> TrainingConfig {
    TrainingConfig {
        seed: 7,
        batch_size: 30,
        local_steps: 1,
        round_duration: None,
        epochs: 8,
        rule: Optimizer::Sgd { weight_decay: 0.0 },
        groups: ParameterGroups::default(),
        clip_norm: None,
        bounds: None,
        schedule: Schedule::constant(0.01),
        fixed_topology: None,
        gradients: Codec::F32,
        parameters: Codec::F32,
        combine: Combine::Sum,
        dealing: Dealing::EVEN,
        backups: None,
        segment_elements: 100,
        replicas: Replicas::Number(2),
        digest_every: None,
        patience: Duration::from_secs(10),
        evaluation: None,
        checkpoint_every: None,
        checkpoints_kept: 1,
        policy: PartitionPolicy::Majority,
        is_shuffled: true,
    }
}

/// What the specification of that task says of members.
pub(crate) fn rules() -> MemberRules {
    let TrainingConfig { policy, patience, .. } = training();
    MemberRules { policy, patience }
}

/// Peer 2 of 1, 2 and 3, with the others linked.
pub(crate) fn membership() -> Membership {
    let view = view(&[1, 2, 3]);
    let (me, digest) = (view.members[1].clone(), view.digest());
    let linked = [peer(1), peer(3)].into();
    let rest = (SharedCache::default(), [].into(), rules());
    Membership::new(Instant(0), me, Arc::new(view), digest, linked, rest)
}

/// The messages among these outputs, and their receivers.
pub(crate) fn sent_messages(out: &[Output]) -> Vec<(PeerId, Message)> {
    let sent = |output: &Output| match output {
        Output::Send { to, frame } => Some((*to, frame.decode().expect("we have made it"))),
        _ => None,
    };
    out.iter().filter_map(sent).collect()
}

/// The first view of a run of these peers.
pub(crate) fn view(peers: &[u8]) -> View {
    View::first(RunId([1; 32]), peers.iter().copied().map(member).collect())
}
