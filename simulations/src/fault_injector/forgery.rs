//! Forgery: frames that a faulty peer sends, which its node would never send.

use peergrad_core::node::NodeState;
use peergrad_protocol::message::AgreementMessage;
use peergrad_protocol::view::View;
use peergrad_protocol::{Frame, ViewNumber};
use rand::Rng;
use rand::rngs::ChaCha8Rng;

use crate::cluster::Cluster;
use crate::host::HostId;

/// Sends `count` frames of random bytes to each other host.
pub(super) fn send_garbage(cluster: &mut Cluster, from: HostId, count: usize, generator: &mut ChaCha8Rng) {
    for to in cluster.hosts().ids().filter(|&to| to != from) {
        for _ in 0..count {
            let mut head = vec![0; (generator.next_u32() % 64) as usize];
            generator.fill_bytes(&mut head);
            // Half of such frames look like the start of a valid frame.
            if let (Some(version), 0) = (head.first_mut(), generator.next_u32() % 2) {
                *version = peergrad_protocol::wire::VERSION;
            }
            cluster.forge(from, to, Frame { head, payload: None });
        }
    }
}

/// Sends views to each other host: the installed one once more, and one with the number of the view before, if there was one.
pub(super) fn send_stale_views(cluster: &mut Cluster, from: HostId) {
    let Some(NodeState::Member(standing)) = cluster.hosts().node_state(from) else { return };
    let view = View::clone(&standing.view);
    let before = (view.number.0 > 1).then(|| {
        let number = ViewNumber(view.number.0 - 1);
        View { number, parents: vec![], ..view.clone() }
    });
    for to in cluster.hosts().ids().filter(|&to| to != from) {
        for view in [&view].into_iter().chain(&before) {
            cluster.forge(from, to, Frame::encode(&AgreementMessage::Install(view.clone()).into(), None));
        }
    }
}
