//! Records: what this member writes to disk about a view and its vote there.

use std::sync::Arc;

use peergrad_protocol::ViewDigest;
use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::view::{View, ViewChange};

use super::place::Place;
use crate::state::shared_cache::SharedCache;

/// What the records of all views share.
pub(super) struct Records {
    /// The cache of encoded views.
    pub(super) cache: SharedCache,
    /// The definition of the run, as the record on disk has it.
    pub(super) definition: Arc<[u8]>,
}

impl Records {
    /// The record of the present view, with this member's vote as it is now.
    pub(super) fn present(&self, place: &Place, acceptor: &Acceptor<ViewChange>) -> DurableBytes {
        let view = self.cache.view_bytes(&place.view, place.digest);
        DurableBytes::new(view, place.me.incarnation, acceptor, Arc::clone(&self.definition))
    }

    /// The record of the view after that of `place`, in which this member has not voted yet.
    pub(super) fn next(&self, place: &Place, view: &View, digest: ViewDigest) -> DurableBytes {
        let view = self.cache.view_bytes(view, digest);
        DurableBytes::new(view, place.me.incarnation, &Acceptor::default(), Arc::clone(&self.definition))
    }
}
