//! Merging: branches that meet again become one.
//!
//! # How it works
//! 1. A member sends each lost peer that it can reach again a probe, which tells where the member's branch is. The branch whose view has
//!    the smaller digest decides which of the two yields. In that branch only the coordinator decides, and only once for those two views:
//!    so the branches never wait for each other, and never both yield. The branch with fewer steps yields.
//! 2. The coordinator of the yielding branch gets the decision. If the branches are to be merged, it names a step and offers the snapshot
//!    that its members keep after that step. The coordinator of the leading branch passes the offer to its members. Once all of them have
//!    their part of the snapshot, they agree on a view that merges it. If only one branch is kept, or the yielding one has trained nothing,
//!    the yielding coordinator only asks whether its members may join.
//! 3. When the merging step is committed, or nothing is to be merged, the coordinator of the leading branch says so. The members of the
//!    yielding branch learn that their branch has ended, and ask to be admitted as any joiner does.
//!
//! No member stops training meanwhile, and no member gives up its state before that is merged. Lost messages are repeated. A negotiation
//! that fails starts again when the branches meet the next time.
//!
//! ```text
//! coordinator:    Idle -- decided: this branch yields --------> MergeExport -- MergeAccept: members join the other
//!               | ^--------- no answer, or another view <------'
//!               '-- MergeOffer: another branch yields --> MergeImport -- merged, or no progress any more --> Idle
//! ```
//!
//! # Files
//! - `negotiate`: branches find each other and decide which of them yields.
//! - `export`: this branch yields, and offers its snapshot.
//! - `import`: another branch yields, and this one fetches its snapshot.
//! - `questions`: which answers count.
//! - `branch`: the parts of the node that all of these borrow.
//!
//! # Invariants
//! - A coordinator negotiates with one other branch at a time.
//! - A message that ends a branch counts only as the answer to a recent question: messages sent during a partition may arrive later.

use std::collections::BTreeMap;

use peergrad_protocol::message::MergeOffer;
use peergrad_protocol::view::{Ancestor, Member};
use peergrad_protocol::{Instant, ViewDigest};

use crate::state::snapshot_id::SnapshotId;
pub(crate) use branch::Branch;
use export::MergeExport;
use import::MergeImport;
use questions::Questions;

mod branch;
mod export;
mod import;
mod negotiate;
mod questions;

/// The merge negotiation of a member between its branch and others.
#[derive(Default)]
pub(crate) struct MergeNegotiation {
    /// When this member last probed other branches.
    probed_at: Instant,
    /// The recent questions of this member to other branches.
    questions: Questions,
    /// At a coordinator that decides: for each view of another branch, the view of the branch that yields.
    decided: BTreeMap<ViewDigest, ViewDigest>,
    /// At a coordinator: its negotiation with another branch, if there is one.
    state: MergeState,
    /// At a coordinator: the snapshot of another branch that members failed to get in the present view, if any.
    refused: Option<SnapshotId>,
}

/// The negotiation of a coordinator.
#[derive(Default)]
enum MergeState {
    /// It negotiates with no branch.
    #[default]
    Idle,
    /// Its branch yields.
    Exporting(MergeExport),
    /// Another branch yields.
    Importing(MergeImport),
}

impl MergeNegotiation {
    /// The offer to be merged, if all `members` have their part of the snapshot.
    pub(crate) fn ready_offer(&self, members: &[Member]) -> Option<&MergeOffer> {
        let MergeState::Importing(import) = &self.state else { return None };
        let has_all_chunks = |member: &Member| import.missing_chunks.get(&member.peer) == Some(&0);
        members.iter().all(has_all_chunks).then_some(&import.offer)
    }

    /// A new view begins: a yielding branch negotiates again, and a leading branch counts the missing chunks again.
    pub(crate) fn enter(&mut self, now: Instant) {
        self.decided.clear();
        self.refused = None;
        match &mut self.state {
            MergeState::Importing(import) => {
                *import = MergeImport::new(now, import.offer.clone());
            }
            MergeState::Exporting(_) => self.state = MergeState::Idle,
            MergeState::Idle => {}
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, MergeState::Idle)
    }

    /// The other branch, which is in `view` and descends from `ancestors`, yields to this one. If this branch yields to it as well, because
    /// one of them has changed its view meanwhile, the branch whose view has the smaller digest leads.
    fn break_tie(&mut self, own: ViewDigest, view: ViewDigest, ancestors: &[Ancestor]) {
        let MergeState::Exporting(export) = &self.state else { return };
        let is_it = export.view == view || ancestors.iter().any(|root| root.view == export.view);
        if is_it && view < own {
            self.state = MergeState::Idle;
        }
    }
}
