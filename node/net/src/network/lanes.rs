//! The lanes: a task for each, between the actor that knows and the [`link`](crate::link) that does.
//!
//! ```text
//!            answered                    it stands
//!   opening ----------> over a substream ----------> over a direct lane
//!      ^                 (tries a direct lane)            |
//!      '------------------------- it broke ---------------'
//! ```
//! Whatever a link runs over, its frames are numbered: going from one to the other costs none of them.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use libp2p::{Multiaddr, PeerId, Stream};
use peergrad_protocol::Pool;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::command::{Admission, Command, Report};
use crate::counters::Counters;
use crate::direct::{DirectEndpoint, DirectPath, HandshakeError, Listeners, Records};
use crate::link::{self, LaneError, LaneKind, Link, LinkEvent, OpenRequest, OpenResponse, Shared};
use crate::reachability::dial_back::{self, DIAL_BACK_PROTOCOL, DialBackServer};
use crate::substreams::{Incoming, OpenError, Opener};
use crate::transport::LANE_PROTOCOL;

/// What every lane needs.
#[derive(Clone)]
pub(super) struct Lanes {
    pub(super) opener: Opener,
    pub(super) direct_endpoint: Arc<DirectEndpoint>,
    pub(super) events: mpsc::UnboundedSender<LinkEvent>,
    pub(super) counters: Arc<Counters>,
    pub(super) pool: Pool,
    pub(super) reports: mpsc::UnboundedSender<Command>,
    /// Whether the network is still there.
    pub(super) open: watch::Receiver<()>,
}

/// Does nothing but accept and spawn: only so many substreams wait for it.
pub(super) async fn accept(mut incoming: Incoming, lanes: Lanes) {
    while let Some((peer, stream)) = incoming.next().await {
        let receiving = lanes.clone();
        lanes.spawn(async move { receiving.receive(peer, stream, LaneKind::Substream).await });
    }
}

/// Dials for those who ask whether they can be reached.
pub(super) async fn serve_dial_backs(mut status_streams: Incoming, helper: DialBackServer, lanes: Lanes) {
    while let Some((peer, stream)) = status_streams.next().await {
        let helper = helper.clone();
        lanes.spawn(helper.answer(peer, stream));
    }
}

/// Answers those who connect for a direct lane.
pub(super) async fn answer(listeners: Listeners, lanes: Lanes) {
    loop {
        let (socket, from) = listeners.accept().await;
        let receiving = lanes.clone();
        lanes.spawn(async move {
            let reason = match receiving.direct_endpoint.answer(socket, from).await {
                Some(Ok((records, peer))) => return receiving.receive(peer, records, LaneKind::Direct).await,
                // Perhaps a member that has thought better of it.
                Some(Err(HandshakeError::Broken(_))) => None,
                Some(Err(error)) => Some(error.to_string()),
                None => Some("too many connect at once".to_owned()),
            };
            // An actor that is gone counts nobody.
            let _ = receiving.reports.send(Command::HandshakeRefused { from, reason });
        });
    }
}

impl Lanes {
    /// Does work of a lane, as long as the network is there.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut open = self.open.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                // Nothing is ever said, until it is dropped.
                _ = open.changed() => {}
                () = work => {}
            }
        });
        task.abort_handle()
    }

    /// Opens a lane to `peer`, and keeps it as long as it lasts.
    pub(super) async fn send(self, peer: PeerId, number: u64, opening: OpenRequest, path: Arc<DirectPath>) {
        let result = self.try_send(peer, number, opening, &path).await;
        self.report(peer, Report::OutgoingEnded { number, result });
    }

    /// Asks a peer to dial this one.
    pub(super) async fn check(self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let asked = async {
            let stream = timeout(OPEN_MAX, self.opener.open(peer, DIAL_BACK_PROTOCOL)).await.ok()?.ok()?;
            dial_back::ask(stream, &addresses).await.ok()
        };
        let findings = asked.await.map(|findings| addresses.iter().cloned().zip(findings).collect());
        // An actor that is gone has no use for it.
        let _ = self.reports.send(Command::Checked(peer, findings));
    }

    /// Waits until a parting link has nothing more to say.
    pub(super) async fn drain(self, peer: PeerId, link: Arc<Link>) {
        // An end that does not listen any more is not waited for.
        let _ = timeout(CLOSING_MAX, link.drained()).await;
        self.report(peer, Report::Drained { link });
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
            let way = (LaneKind::Substream, link::STALL_TIMEOUT);
            let substream = link::transmit(stream, way, &link, lane, &self.events, &self.counters);
            // Where two do not reach each other, there is nothing to be tried.
            let Some(port) = port.filter(|_| !link.is_relayed()) else { return substream.await };
            // The other end lets go of the substream as soon as it has answered on the direct lane.
            let mut records = tokio::select! {
                ended = substream => return ended,
                records = self.dial(peer, port, path) => records,
            };
            let answer = match timeout(ANSWER_MAX, link::open(&mut records, opening)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) if error.is_violation() => return Err(error),
                Ok(Err(LaneError::Broken(_))) => {
                    // Mostly one that has gone; then opening a substream will say so.
                    if path.failed(Instant::now()) {
                        self.report(peer, Report::Direct(Err("it broke at once".to_owned())));
                    }
                    continue;
                }
                _ => {
                    path.failed(Instant::now());
                    self.report(peer, Report::Direct(Err("no answer to an opening".to_owned())));
                    continue;
                }
            };
            let Some((link, lane)) = self.await_reply(peer, number, answer).await else { return Ok(()) };
            self.report(peer, Report::Direct(Ok(())));
            opening.known = Some(link.theirs());
            let (since, way) = (Instant::now(), (LaneKind::Direct, path.patience()));
            match link::transmit(records, way, &link, lane, &self.events, &self.counters).await {
                Err(LaneError::Stalled) => {
                    // A moment is nothing to tell of.
                    if path.stalled(since, Instant::now()) {
                        self.report(peer, Report::Direct(Err("it stood still".to_owned())));
                    }
                }
                // Where the connection is gone as well, opening a substream will say so.
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
                Ok(records) => return records,
                Err(error) => self.report(peer, Report::Direct(Err(error.to_string()))),
            }
            path.failed(Instant::now());
        }
    }

    async fn await_reply(&self, peer: PeerId, number: u64, answer: OpenResponse) -> Option<(Arc<Link>, u64)> {
        let (reply, replied) = oneshot::channel();
        self.report(peer, Report::OpenAnswered { number, answer, reply });
        replied.await.ok()
    }

    /// Takes in what comes over a lane that somebody opens, as long as it lasts.
    async fn receive(&self, peer: PeerId, stream: impl AsyncRead + AsyncWrite + Unpin, way: LaneKind) {
        if let Err(error) = self.try_receive(peer, stream, way).await {
            self.report(peer, Report::IncomingFailed { error });
        }
    }

    async fn try_receive(
        &self,
        peer: PeerId,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        way: LaneKind,
    ) -> Result<(), LaneError> {
        let opening = link::read_opening(&mut stream).await?;
        let (reply, replied) = oneshot::channel();
        self.report(peer, Report::OpenRequested { way, opening, reply });
        match replied.await {
            Ok(Admission::Welcome { link, lane, session }) => {
                let (pool, events, counters) = (&self.pool, &self.events, &self.counters);
                let shared = Shared { pool, events, counters, port: self.direct_endpoint.port() };
                let said_goodbye = || self.report(peer, Report::Goodbye { link: Arc::clone(&link) });
                link::receive(stream, &link, lane, session, &shared, said_goodbye).await
            }
            Ok(Admission::Refused { verdict, session }) => link::refuse(&mut stream, verdict, session).await,
            Err(_) => Ok(()),
        }
    }

    fn report(&self, peer: PeerId, report: Report) {
        // An actor that is gone has closed all connections.
        let _ = self.reports.send(Command::Report(peer, report));
    }
}

/// How long the other end may take to agree to a substream.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// How long nothing else is sent while the other end answers on a direct connection.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long last frames and goodbyes may take.
pub(super) const CLOSING_MAX: Duration = Duration::from_secs(3);
