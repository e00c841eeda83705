//! A joiner enters a view: perhaps after it has read a checkpoint, and once the view is on disk.

use std::sync::Arc;

use peergrad_protocol::ViewDigest;
use peergrad_protocol::view::View;

use crate::state::checkpoint::Checkpoint;

/// A view that this peer enters as a member; it is on disk.
pub(crate) struct ViewEntry {
    pub(crate) view: Arc<View>,
    /// The digest of `view`.
    pub(crate) digest: ViewDigest,
    /// The checkpoint of the view's first step, if this peer resumes from one.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

/// How far a joiner is on its way into a view.
#[derive(Default)]
pub(super) enum Entry {
    /// It is in no view that it knows of.
    #[default]
    Outside,
    /// It reads a checkpoint. Holds the view, which waits for that.
    Restoring(Box<View>),
    /// It has read the checkpoint, and is about to enter the view.
    Restored(Arc<Checkpoint>),
    /// The view is being written to disk. Holds the checkpoint from which this peer starts there, if it starts from one.
    Recording(Option<Arc<Checkpoint>>),
}

impl Entry {
    /// Whether this peer is about to enter a view.
    pub(super) fn is_begun(&self) -> bool {
        matches!(self, Self::Restoring(_) | Self::Recording(_))
    }

    /// Whether the view is being written to disk.
    pub(super) fn is_recording(&self) -> bool {
        matches!(self, Self::Recording(_))
    }

    /// The view that waits for a checkpoint; `None` if none does.
    pub(super) fn restoring(&self) -> Option<&View> {
        if let Self::Restoring(view) = self { Some(view) } else { None }
    }

    /// The checkpoint has been read. Returns the view that waited for it, if one did.
    pub(super) fn restored(&mut self, checkpoint: Arc<Checkpoint>) -> Option<View> {
        match std::mem::replace(self, Self::Restored(checkpoint)) {
            Self::Restoring(view) => Some(*view),
            Self::Outside | Self::Restored(_) | Self::Recording(_) => None,
        }
    }

    /// The view is being written to disk.
    pub(super) fn record(&mut self) {
        *self = match std::mem::take(self) {
            Self::Outside | Self::Restoring(_) => Self::Recording(None),
            Self::Restored(checkpoint) => Self::Recording(Some(checkpoint)),
            Self::Recording(checkpoint) => Self::Recording(checkpoint),
        };
    }

    /// The checkpoint from which this peer starts in the view that is on disk now.
    pub(super) fn take_checkpoint(&mut self) -> Option<Arc<Checkpoint>> {
        if let Self::Recording(checkpoint) = self { checkpoint.take() } else { None }
    }
}
