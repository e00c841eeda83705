//! The stripes of direct lanes: opens connections beside the first one of an outgoing lane, as many as raise its throughput, and takes in
//! those that other peers add to incoming ones.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use libp2p::PeerId;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Lanes;
use crate::direct::{BundleSender, COMPARING, Change, DirectPath, Records, Stripe};
use crate::link::{self, LaneError, LaneKind, LaneWaiting, Link, OpenRequest, StripeSearch, Verdict};

/// A direct lane that sends frames.
pub(super) struct OutgoingLane<'a> {
    /// The peer at its other end.
    pub(super) peer: PeerId,
    /// The way there.
    pub(super) path: &'a DirectPath,
    /// The link whose frames it carries.
    pub(super) link: &'a Arc<Link>,
    /// The outbox's number of the lane.
    pub(super) number: u64,
    /// How long it may go without an acknowledgement.
    pub(super) patience: Duration,
    /// The request that adds a connection to it; `None` if the other end takes none.
    pub(super) joining: Option<OpenRequest>,
}

impl Lanes {
    /// Sends the link's frames on the lane, whose first connection this is, until it breaks or another lane takes its place. Meanwhile adds
    /// connections where that raises the throughput.
    pub(super) async fn send_directly(
        &self,
        first: Records,
        lane: OutgoingLane<'_>,
    ) -> Result<(), LaneError> {
        let address = first.address();
        let (changes, changed) = mpsc::unbounded_channel();
        let bundle = BundleSender::new(first, changed);
        let (kind, Self { events, counters, .. }) = ((LaneKind::Direct, lane.patience), self);
        tokio::select! {
            ended = link::transmit(bundle, kind, lane.link, lane.number, events, counters) => ended,
            never = self.keep_stripes(&lane, address, &changes) => match never {},
        }
    }

    /// Adds connections to the lane, and ends them, as the search says. They go to the `address` over which its first one runs.
    async fn keep_stripes(
        &self,
        lane: &OutgoingLane<'_>,
        address: Option<SocketAddr>,
        changes: &mpsc::UnboundedSender<Change>,
    ) -> Infallible {
        let OutgoingLane { link, number, path, .. } = *lane;
        let mut waiting = LaneWaiting::begin(&self.waiting, link.outbox.throughput());
        let begin = waiting.note(link.outbox.throughput());
        let mut search = StripeSearch::new(Instant::now(), path.stripe_count(), begin);
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 1;
        loop {
            looks.tick().await;
            let throughput = waiting.note(link.outbox.throughput());
            let Some(line) = link.line() else { continue };
            search.note(Instant::now(), throughput, line);
            path.note_stripe_count(search.kept());
            let wanted = search.wanted();
            if wanted == count {
                continue;
            }
            tracing::debug!(peer = %lane.peer, count, wanted, "the connections of a direct lane change");
            if wanted < count {
                count = wanted;
                // A lane that has ended needs no change.
                let _ = changes.send(Change::Keep(count));
            } else {
                let opening = (count..wanted).map(|_| self.open_stripe(lane, address));
                for stripe in join_all(opening).await.into_iter().flatten() {
                    count += 1;
                    let _ = changes.send(Change::Add(Box::new(stripe)));
                }
                if count < wanted {
                    search.note_failure(Instant::now(), count);
                }
            }
            link.outbox.set_stripes(number, count);
        }
    }

    /// Opens a connection and adds it to the lane.
    async fn open_stripe(&self, lane: &OutgoingLane<'_>, address: Option<SocketAddr>) -> Option<Stripe> {
        let (joining, address) = lane.joining.zip(address)?;
        let place = self.direct_endpoint.take_added()?;
        let mut records = self.direct_endpoint.dial_address(lane.peer, address).await.ok()?;
        let answer = timeout(JOIN_MAX, link::open(&mut records, joining)).await.ok()?.ok()?;
        (answer.verdict == Verdict::Welcome).then_some(Stripe { records, place })
    }

    /// Adds a connection to the incoming lane that the other end has named.
    pub(super) async fn join(
        &self,
        peer: PeerId,
        mut records: Records,
        token: NonZeroU64,
    ) -> Result<(), LaneError> {
        // The lane may just have ended. Without an answer, the other end does without the connection.
        let Some(lane) = self.joins.find(peer, token) else { return Ok(()) };
        let Some(place) = self.direct_endpoint.take_joined() else { return Ok(()) };
        if !self.joins.gets_most(token).await {
            return Ok(());
        }
        // Its place in the queue comes before the answer: pieces may follow at once.
        let Ok(queue) = lane.joining.try_reserve() else { return Ok(()) };
        link::welcome_stripe(&mut records, lane.session).await?;
        queue.send(Stripe { records, place });
        Ok(())
    }
}

/// How long the other end may take to answer: it first looks at what comes in.
const JOIN_MAX: Duration = COMPARING.saturating_add(Duration::from_secs(2));
/// How often the throughput is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
