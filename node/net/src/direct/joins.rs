//! The incoming lanes that a connection can be added to.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use tokio::sync::mpsc;
use tokio::time::sleep;

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
    /// How many bytes have come in on the lane.
    received: Arc<AtomicU64>,
}

/// An entry for as long as its lane lasts.
pub(crate) struct Entry {
    pub(crate) token: NonZeroU64,
    pub(crate) received: Arc<AtomicU64>,
    joins: Joins,
}

impl Joins {
    /// Enters a lane. Connections that are added to it come out of the receiver.
    pub(crate) fn enter(&self, peer: PeerId, session: SessionId) -> (Entry, mpsc::Receiver<Stripe>) {
        // Zero is drawn once in 2^64 times; then any other number serves.
        let token = NonZeroU64::new(u64::from_le_bytes(random_bytes())).unwrap_or(NonZeroU64::MIN);
        let (joining, joined) = mpsc::channel(STRIPES_MAX);
        let received = Arc::<AtomicU64>::default();
        self.lock().insert(token, Joinable { peer, session, joining, received: Arc::clone(&received) });
        (Entry { token, received, joins: self.clone() }, joined)
    }

    /// Whether, within a moment from now, this lane gets most of what comes in. A further connection would take from the others.
    pub(crate) async fn gets_most(&self, token: NonZeroU64) -> bool {
        let (own, all) = self.received(token);
        sleep(COMPARING).await;
        let (own_later, all_later) = self.received(token);
        let (own, all) = (own_later.saturating_sub(own), all_later.saturating_sub(all));
        own >= all / 4 * 3
    }

    /// What has come in on this lane, and on all of them.
    fn received(&self, token: NonZeroU64) -> (u64, u64) {
        let lanes = self.lock();
        let count = |lane: &Joinable| lane.received.load(Ordering::Relaxed);
        (lanes.get(&token).map_or(0, count), lanes.values().map(count).sum())
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

/// For how long incoming bytes are compared.
pub(crate) const COMPARING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use peergrad_protocol::Incarnation;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lane_is_found_by_its_peer_alone_and_forgotten_at_its_end() {
        let [peer, stranger] = [PeerId::random(), PeerId::random()];
        let joins = Joins::default();
        let (entry, _joined) = joins.enter(peer, SessionId::draw(Incarnation(1)));
        let token = entry.token;
        assert!(joins.find(peer, token).is_some() && joins.find(stranger, token).is_none());
        drop(entry);
        assert!(joins.find(peer, token).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_beside_others_gets_no_further_connection() {
        let joins = Joins::default();
        let enter = || joins.enter(PeerId::random(), SessionId::draw(Incarnation(1))).0;
        let (one, other) = (enter(), enter());
        for (received, is_most) in [([100, 0], true), ([90, 10], true), ([50, 50], false)] {
            let token = one.token;
            let asking = joins.gets_most(token);
            let receiving = async {
                one.received.fetch_add(received[0], Ordering::Relaxed);
                other.received.fetch_add(received[1], Ordering::Relaxed);
            };
            assert_eq!(tokio::join!(asking, receiving).0, is_most, "{received:?}");
        }
    }
}
