//! What the roles of a node share: its identity, links, run, jobs and records.

use std::sync::Arc;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::message::{JoinMessage, Message, WantData};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Frame, Instant, PeerId, Pool, Rank};

use crate::io::{FinalState, Output, Reject};
use crate::machine::early_frames::EarlyFrames;
use crate::machine::frame_audit::FrameAudit;
use crate::machine::jobs::Jobs;
use crate::machine::program_state::ProgramState;
use crate::machine::run_setup::RunSetup;
use crate::machine::violations::Violations;
use crate::membership::journal::{Effect, Journal};
use crate::membership::own_capacity::OwnCapacity;
use crate::peer_links::PeerLinks;
use crate::state::shared_cache::SharedCache;

/// The parts of a node that outlast a change of its role.
pub(super) struct NodeParts {
    /// This peer, in its present incarnation.
    pub(super) me: Member,
    /// How much this peer offers to own; `me` has the number.
    pub(super) own_capacity: OwnCapacity,
    /// The pool for the memory of segments.
    pub(super) segments: Pool,
    /// The results that nodes of one process compute alike.
    pub(super) cache: SharedCache,
    /// The links to other peers.
    pub(super) links: PeerLinks,
    /// The frames of a view that this peer has not entered yet.
    pub(super) early_frames: EarlyFrames,
    /// The wrong messages of other peers.
    pub(super) violations: Violations,
    /// Whether the frames of other peers arrive as they were sent.
    pub(super) frame_audit: FrameAudit,
    /// The run, and how far its task is prepared here.
    pub(super) run: RunSetup,
    /// The jobs that are running.
    pub(super) jobs: Jobs,
    /// The records that this peer has asked its disk to keep.
    pub(super) journal: Journal,
    /// Whether the program runs.
    pub(super) program: ProgramState,
    /// The last state that this peer had as a member before it was excluded; `None` if it was never excluded.
    pub(super) state_before: Option<FinalState>,
    /// The peers whose removal a user has ordered here before this peer was excluded, and that are not removed yet.
    pub(super) removals_before: Vec<PeerId>,
}

impl NodeParts {
    /// Others can dial this peer at these addresses, or at none. A peer that others cannot dial owns nothing.
    pub(super) fn set_reachable(&mut self, addresses: Vec<String>, is_reachable: bool) {
        self.own_capacity.set_reachable(is_reachable);
        self.me.capacity = self.own_capacity.offered();
        self.me.addresses = addresses;
    }

    /// This peer is at `rank` of a view, which may have other lines.
    pub(super) fn follow_lines(&mut self, view: &View, rank: Rank) {
        self.own_capacity.follow_lines(view, rank);
        self.me.capacity = self.own_capacity.offered();
    }

    /// Writes a view to disk. When that is done, this peer becomes a member of it.
    pub(super) fn record(&mut self, view: View, out: &mut Vec<Output>) {
        let digest = view.digest();
        let bytes = self.cache.view_bytes(&view, digest);
        let definition = self.run.definition();
        let record = DurableBytes::new(bytes, self.me.incarnation, &Acceptor::default(), definition);
        self.journal.persist_then(record, Effect::EnterView(Arc::new(view), digest), out);
    }
}

/// The handling of one input: when it happens, the shared parts of the node, and the outputs.
pub(super) struct NodeContext<'a> {
    /// The time of the input.
    pub(super) now: Instant,
    /// What all roles share.
    pub(super) node: &'a mut NodeParts,
    /// The outputs of this input.
    pub(super) out: &'a mut Vec<Output>,
}

impl NodeContext<'_> {
    /// Sends a message without a payload.
    pub(super) fn send(&mut self, to: PeerId, message: &Message) {
        self.out.push(Output::Send { to, frame: Frame::encode(message, None) });
    }

    /// Sends a message to those of `peers` that are linked.
    pub(super) fn send_to_linked(&mut self, peers: impl IntoIterator<Item = PeerId>, message: &Message) {
        for peer in peers {
            if self.node.links.is_linked(&peer) {
                self.send(peer, message);
            }
        }
    }

    /// Sends a joiner a piece of the data file.
    ///
    /// # Errors
    /// The file is not sent, or the request is wrong. A joiner knows from the specification whether it has to have the file itself.
    pub(super) fn send_data_piece(&mut self, to: PeerId, want: WantData) -> Result<(), Reject> {
        let (piece, payload) = self.node.run.data_piece(want, &self.node.segments).ok_or(Reject::Data)?;
        let frame = Frame::encode(&JoinMessage::Data(piece).into(), Some(payload));
        self.out.push(Output::Send { to, frame });
        Ok(())
    }
}
