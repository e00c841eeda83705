//! A branch as one of its members sees it: the parts of the node that a merge negotiation reads and changes.

use peergrad_protocol::message::{Contact, MergeOffer, MergeProbe, Message};
use peergrad_protocol::{Frame, Instant, PeerId};

use crate::io::Output;
use crate::membership::Membership;
use crate::peer_links::PeerLinks;
use crate::state::snapshot_id::SnapshotId;
use crate::training::Training;

/// The branch of this peer, borrowed while one input is handled.
pub(crate) struct Branch<'a> {
    /// The time of the input.
    pub(crate) now: Instant,
    /// This peer.
    pub(crate) me: PeerId,
    /// The links to members of this branch and of others.
    pub(crate) links: &'a PeerLinks,
    /// The state that is merged.
    pub(crate) training: &'a mut Training,
    /// The members of this branch, and the lost ones that may be in another branch.
    pub(crate) membership: &'a mut Membership,
    /// The outputs of this input.
    pub(crate) out: &'a mut Vec<Output>,
}

impl Branch<'_> {
    /// The probe that tells another branch where this one is; `None` while no coordinator can be named.
    pub(super) fn merge_probe(&self) -> Option<MergeProbe> {
        Some(MergeProbe {
            run: self.training.view().run,
            view: self.training.base().digest(),
            steps: self.training.committed(),
            trained: self.training.trained(),
            ancestors: self.training.ancestors(),
            coordinator: self.membership.members.coordinator_contact(self.now)?,
            yields: None,
            question: 0,
            answers: 0,
        })
    }

    /// Whether this branch can negotiate with another one now.
    pub(super) fn can_negotiate(&self) -> bool {
        self.training.has_parameters() && !self.training.is_closing() && !self.membership.is_troubled()
    }

    /// The snapshot that a view merges which may still be entered, or which the present view has not merged yet.
    pub(super) fn pinned_snapshot(&self) -> Option<SnapshotId> {
        let pending = self.training.branch_snapshots().and_then(|snapshots| snapshots.pending_merge());
        let pending = pending.map(|merge| (merge.view, merge.steps));
        pending.or_else(|| self.membership.pending_merge())
    }

    /// The offer of another branch that is being imported, and the number of chunks of which something is missing; `None` if there is no
    /// import.
    pub(super) fn importing(&self) -> Option<(&MergeOffer, usize)> {
        self.training.branch_snapshots()?.importing()
    }

    /// Another branch offers its snapshot: imports it, unless another import is pinned.
    pub(super) fn begin_import(&mut self, offer: MergeOffer) {
        let (now, pinned) = (self.now, self.pinned_snapshot());
        if let Some(mut snapshots) = self.training.branch_snapshots_mut() {
            snapshots.begin_import(now, offer, pinned);
        }
    }

    /// Gives up an import whose snapshot is not available.
    pub(super) fn cancel_import(&mut self, snapshot_id: SnapshotId) {
        if let Some(mut snapshots) = self.training.branch_snapshots_mut() {
            snapshots.cancel_import(snapshot_id);
        }
    }

    /// Sends a message to a linked peer.
    pub(super) fn send(&mut self, to: PeerId, message: &Message) {
        self.out.push(Output::Send { to, frame: Frame::encode(message, None) });
    }

    /// Sends a message to a peer of another branch, or dials the peer if it is not linked. The caller repeats the message later.
    pub(super) fn send_or_dial(&mut self, to: &Contact, message: &Message) {
        if self.links.is_linked(&to.peer) {
            self.send(to.peer, message);
        } else {
            self.out.push(Output::Dial(to.clone()));
        }
    }
}
