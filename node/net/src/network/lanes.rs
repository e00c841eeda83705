//! The lanes: one task for each, between the actor, which decides, and the [`link`](crate::link), which transfers.
//!
//! ```text
//!            answered                     opened  
//!   opening ----------> over a substream ----------> over a direct lane
//!      ^                 (tries a direct lane)            |
//!      '------------------------- it broke ---------------'
//! ```
//! A link numbers its frames whatever it runs over, so changing from one lane to another loses no frame. A direct lane may have several
//! connections (`lanes/stripes.rs`).

mod stripes;

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use libp2p::{Multiaddr, PeerId, Stream};
use peergrad_protocol::Pool;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::command::{Admission, Command, LaneReport};
use crate::counters::Counters;
use crate::direct::{BundleReceiver, DirectEndpoint, DirectPath, HandshakeError, Joins, Listeners, Records};
use crate::link::{
    self, Acknowledgement, LaneError, LaneKind, Link, LinkEvent, OpenRequest, OpenResponse, SessionId,
    Shared, Uplink, WaitingTime,
};
use crate::reachability::dial_back::{self, DIAL_BACK_PROTOCOL, DialBackServer};
use crate::substreams::{Accepted, Incoming, OpenError, Opener};
use crate::transport::LANE_PROTOCOL;
use stripes::OutgoingLane;

/// The state that all lanes share.
#[derive(Clone)]
pub(super) struct Lanes {
    pub(super) opener: Opener,
    pub(super) direct_endpoint: Arc<DirectEndpoint>,
    /// The incoming direct lanes to which the other ends can add connections.
    pub(super) joins: Joins,
    /// How long frames of direct lanes have waited.
    pub(super) waiting: WaitingTime,
    /// What the long ones among their lines carry together.
    pub(super) uplink: Uplink,
    pub(super) events: mpsc::UnboundedSender<LinkEvent>,
    pub(super) counters: Arc<Counters>,
    pub(super) pool: Pool,
    pub(super) reports: mpsc::UnboundedSender<Command>,
    /// Changes when the network is dropped.
    pub(super) open: watch::Receiver<()>,
}

/// Accepts lanes and spawns a task for each. It does nothing else, since only a few substreams may wait for it.
pub(super) async fn accept(mut incoming: Incoming, lanes: Lanes) {
    while let Some(Accepted { peer, stream, .. }) = incoming.next().await {
        let receiving = lanes.clone();
        lanes.spawn(async move { receiving.receive(peer, stream).await });
    }
}

/// Dials back for peers that ask whether they can be reached.
pub(super) async fn serve_dial_backs(mut status_streams: Incoming, helper: DialBackServer, lanes: Lanes) {
    while let Some(Accepted { peer, ip, stream, .. }) = status_streams.next().await {
        let helper = helper.clone();
        lanes.spawn(helper.answer(peer, ip, stream));
    }
}

/// Takes in that circuits to this peer are wanted.
pub(super) async fn note_wanted_circuits(mut incoming: Incoming, lanes: Lanes) {
    while incoming.next().await.is_some() {
        // Without the actor, nothing can be reserved.
        let _ = lanes.reports.send(Command::CircuitWanted);
    }
}

/// Answers machines that connect for a direct lane.
pub(super) async fn answer(listeners: Listeners, lanes: Lanes) {
    loop {
        let (socket, from) = listeners.accept().await;
        let receiving = lanes.clone();
        lanes.spawn(async move {
            let reason = match receiving.direct_endpoint.answer(socket, from.into()).await {
                Some(Ok((records, peer))) => return receiving.receive_direct(peer, records).await,
                // Perhaps a member that has changed its mind.
                Some(Err(HandshakeError::Broken(_))) => None,
                Some(Err(error)) => Some(error.to_string()),
                None => Some("too many connections at once".to_owned()),
            };
            // Without the actor, refused connections are not counted.
            let _ = receiving.reports.send(Command::HandshakeRefused { from, reason });
        });
    }
}

impl Lanes {
    /// Spawns a lane's work, which ends with the network.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut open = self.open.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                // It changes only when the sender is dropped.
                _ = open.changed() => {}
                () = work => {}
            }
        });
        task.abort_handle()
    }

    /// Opens a lane to `peer`, and sends frames as long as it lasts.
    pub(super) async fn send(self, peer: PeerId, number: u64, opening: OpenRequest, path: Arc<DirectPath>) {
        let result = self.try_send(peer, number, opening, &path).await;
        self.report(peer, LaneReport::OutgoingEnded { number, result });
    }

    /// Asks a peer to dial this one back.
    pub(super) async fn check(self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let asked = async {
            let stream = timeout(OPEN_MAX, self.opener.open(peer, DIAL_BACK_PROTOCOL)).await.ok()?.ok()?;
            dial_back::ask(stream, &addresses).await.ok()
        };
        let findings = asked.await.map(|findings| addresses.iter().cloned().zip(findings).collect());
        // The actor may be gone, and then needs no findings.
        let _ = self.reports.send(Command::Checked(peer, findings));
    }

    /// Waits until a closing link has sent everything.
    pub(super) async fn drain(self, peer: PeerId, link: Arc<Link>) {
        // An end that does not read any more is not waited for.
        let _ = timeout(CLOSING_MAX, link.drained()).await;
        self.report(peer, LaneReport::Drained { link });
    }

    async fn try_send(
        &self,
        peer: PeerId,
        number: u64,
        mut opening: OpenRequest,
        path: &DirectPath,
    ) -> Result<(), LaneError> {
        loop {
            let mut stream = self.open_substream(peer).await?;
            let answer = link::open(&mut stream, opening).await?;
            let port = answer.port;
            let Some((link, lane)) = self.await_reply(peer, number, answer).await else { return Ok(()) };
            opening.known = Some(link.theirs());
            let patience = (LaneKind::Substream, link::STALL_TIMEOUT);
            let substream = link::transmit(stream, patience, &link, lane, &self.events, &self.counters);
            // Without a direct connection there is nothing to try.
            let Some(port) = port.filter(|_| !link.is_relayed()) else { return substream.await };
            // The other end closes the substream as soon as it has answered on the direct lane.
            let mut records = tokio::select! {
                ended = substream => return ended,
                records = self.dial(peer, port, path) => records,
            };
            let answer = match timeout(ANSWER_MAX, link::open(&mut records, opening)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) if error.is_violation() => return Err(error),
                Ok(Err(LaneError::Broken(_))) => {
                    // Mostly the other end is gone, and then opening a substream fails, too.
                    if path.failed(Instant::now()) {
                        self.report(
                            peer,
                            LaneReport::Direct(Err("the direct connection broke at once".to_owned())),
                        );
                    }
                    continue;
                }
                _ => {
                    path.failed(Instant::now());
                    self.report(
                        peer,
                        LaneReport::Direct(Err("no answer on the direct connection".to_owned())),
                    );
                    continue;
                }
            };
            let token = answer.token;
            let Some((link, lane)) = self.await_reply(peer, number, answer).await else { return Ok(()) };
            self.report(peer, LaneReport::Direct(Ok(())));
            opening.known = Some(link.theirs());
            let (since, patience) = (Instant::now(), path.patience());
            let _kept = self.opener.keep(peer);
            let joining = token.map(|_| OpenRequest { joins: token, ..opening });
            let outgoing = OutgoingLane { peer, path, link: &link, number: lane, patience, joining };
            let ended = self.send_directly(records, outgoing).await;
            tracing::debug!(%peer, lasted = ?since.elapsed(), ?ended, "a direct lane has ended");
            if ended.is_err() {
                path.halve_stripe_count();
            }
            match ended {
                Err(LaneError::Stalled) => {
                    // A short stall is not worth reporting.
                    if path.stalled(since, Instant::now()) {
                        self.report(
                            peer,
                            LaneReport::Direct(Err("the direct connection stalled".to_owned())),
                        );
                    }
                }
                // If the connection is gone as well, opening a substream fails, too.
                Err(LaneError::Broken(_)) => path.broke(since, Instant::now()),
                ended => return ended,
            }
        }
    }

    async fn open_substream(&self, peer: PeerId) -> Result<Stream, LaneError> {
        match timeout(OPEN_MAX, self.opener.open(peer, LANE_PROTOCOL)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(OpenError::Broken(error))) => Err(error.into()),
            Ok(Err(OpenError::Unknown(_))) => Err(LaneError::Unwanted),
            Err(_) => Err(LaneError::Stalled),
        }
    }

    /// Tries until there is a direct connection.
    async fn dial(&self, peer: PeerId, port: NonZeroU16, path: &DirectPath) -> Records {
        loop {
            sleep_until(path.due()).await;
            match self.direct_endpoint.dial(peer, &path.hosts(), port).await {
                Ok(records) => {
                    path.note_accepted();
                    return records;
                }
                Err(error) => self.report(peer, LaneReport::Direct(Err(error.to_string()))),
            }
            path.failed(Instant::now());
        }
    }

    async fn await_reply(&self, peer: PeerId, number: u64, answer: OpenResponse) -> Option<(Arc<Link>, u64)> {
        let (reply, replied) = oneshot::channel();
        self.report(peer, LaneReport::OpenAnswered { number, answer, reply });
        replied.await.ok()
    }

    /// Receives frames on a substream as long as it lasts.
    async fn receive(&self, peer: PeerId, mut stream: Stream) {
        let received = async {
            let opening = link::read_opening(&mut stream).await?;
            let Some(admission) = self.admit(peer, opening, LaneKind::Substream).await else { return Ok(()) };
            match admission {
                Admission::Welcome { link, lane, session } => {
                    self.receive_frames(peer, stream, (&link, lane, session), None).await
                }
                Admission::Refused { verdict, session } => link::refuse(&mut stream, verdict, session).await,
            }
        };
        self.report_end(peer, received.await);
    }

    /// Receives frames on a connection to the port for direct lanes, or adds it to the lane that its opening names.
    async fn receive_direct(&self, peer: PeerId, mut records: Records) {
        let received = async {
            let opening = link::read_opening(&mut records).await?;
            if let Some(token) = opening.joins {
                return self.join(peer, records, token).await;
            }
            let Some(admission) = self.admit(peer, opening, LaneKind::Direct).await else { return Ok(()) };
            match admission {
                Admission::Welcome { link, lane, session } => {
                    let _kept = self.opener.keep(peer);
                    let (entry, joining) = self.joins.enter(peer, session);
                    let stream = BundleReceiver::new(records, joining, Arc::clone(&entry.received));
                    self.receive_frames(peer, stream, (&link, lane, session), Some(entry.token)).await
                }
                Admission::Refused { verdict, session } => link::refuse(&mut records, verdict, session).await,
            }
        };
        self.report_end(peer, received.await);
    }

    /// Asks the actor whether frames may come in. Returns `None` if nobody waits for them.
    async fn admit(&self, peer: PeerId, opening: OpenRequest, lane_kind: LaneKind) -> Option<Admission> {
        let (reply, replied) = oneshot::channel();
        self.report(peer, LaneReport::OpenRequested { lane_kind, opening, reply });
        replied.await.ok()
    }

    async fn receive_frames(
        &self,
        peer: PeerId,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        (link, lane, session): (&Arc<Link>, (u64, Acknowledgement), SessionId),
        token: Option<NonZeroU64>,
    ) -> Result<(), LaneError> {
        let (pool, events, counters) = (&self.pool, &self.events, &self.counters);
        let shared = Shared { pool, events, counters, port: self.direct_endpoint.port(), token };
        let said_goodbye = || self.report(peer, LaneReport::Goodbye { link: Arc::clone(link) });
        link::receive(stream, link, lane, session, &shared, said_goodbye).await
    }

    /// An incoming lane has ended.
    fn report_end(&self, peer: PeerId, result: Result<(), LaneError>) {
        if let Err(error) = result {
            self.report(peer, LaneReport::IncomingFailed { error });
        }
    }

    fn report(&self, peer: PeerId, report: LaneReport) {
        // If the actor is gone, all connections are closed.
        let _ = self.reports.send(Command::Report(peer, report));
    }
}

/// How long the other end may take to accept a substream.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// How long sending pauses while the other end answers on a direct connection.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long last frames and goodbyes may take.
pub(super) const CLOSING_MAX: Duration = Duration::from_secs(3);
