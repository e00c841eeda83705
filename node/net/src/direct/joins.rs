//! The incoming lanes that a connection can be added to.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::PeerId;
use tokio::sync::mpsc;

use super::Stripe;
use crate::link::{STRIPES_MAX, SessionId};
use crate::random::random_bytes;

/// The incoming direct lanes, by their tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Joins(Arc<Mutex<BTreeMap<NonZeroU64, Joinable>>>);

/// A lane to which the peer at its other end can add connections.
#[derive(Clone, Debug)]
pub(crate) struct Joinable {
    peer: PeerId,
    /// This peer's session of its link.
    pub(crate) session: SessionId,
    /// Takes the connections.
    pub(crate) joining: mpsc::Sender<Stripe>,
}

/// An entry for as long as its lane lasts.
pub(crate) struct Entry {
    pub(crate) token: NonZeroU64,
    joins: Joins,
}

impl Joins {
    /// Enters a lane. Connections that are added to it come out of the receiver.
    pub(crate) fn enter(&self, peer: PeerId, session: SessionId) -> (Entry, mpsc::Receiver<Stripe>) {
        // Zero is drawn once in 2^64 times; then any other number serves.
        let token = NonZeroU64::new(u64::from_le_bytes(random_bytes())).unwrap_or(NonZeroU64::MIN);
        let (joining, joined) = mpsc::channel(STRIPES_MAX);
        self.lock().insert(token, Joinable { peer, session, joining });
        (Entry { token, joins: self.clone() }, joined)
    }

    /// The lane of this peer with this token.
    pub(crate) fn find(&self, peer: PeerId, token: NonZeroU64) -> Option<Joinable> {
        self.lock().get(&token).filter(|joinable| joinable.peer == peer).cloned()
    }

    /// A panic elsewhere cannot leave the entries half-changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NonZeroU64, Joinable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.joins.lock().remove(&self.token);
    }
}
