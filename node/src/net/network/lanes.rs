//! The lanes: a task for each substream, between the switchboard that knows and the [`link`](super::super::link) that does.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::{PeerId, Stream};
use libp2p_stream::{Control, IncomingStreams, OpenStreamError};
use peergrad_protocol::Pool;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::super::counters::Counters;
use super::super::link::{
    self, Answer, LaneError, Link, LinkEvent, Opening, Record, Session, Shared, Verdict,
};
use super::super::transport::LANE_PROTOCOL;
use super::switchboard::Command;

/// What every lane needs.
#[derive(Clone)]
pub(super) struct Lanes {
    pub(super) control: Control,
    pub(super) events: mpsc::UnboundedSender<LinkEvent>,
    pub(super) counters: Arc<Counters>,
    pub(super) pool: Pool,
    pub(super) reports: mpsc::UnboundedSender<Command>,
}

/// What a lane tells the switchboard, or asks it.
#[derive(Debug)]
pub(super) enum Report {
    /// Somebody opens a lane to us: what shall it be told? No reply: nothing.
    Opening { opening: Opening, reply: oneshot::Sender<Admission> },
    /// Our opening was answered: which link is it, and which lane? No reply: none.
    Answered { number: u64, answer: Answer, reply: oneshot::Sender<(Arc<Link>, u64)> },
    /// A lane from us has ended.
    OutgoingEnded { number: u64, result: Result<(), LaneError> },
    /// A lane to us has ended with an error.
    IncomingFailed { error: LaneError },
    /// The other end is going on purpose.
    Goodbye { link: Arc<Link> },
    /// Everything on a parting link has been acknowledged, or waiting for it has no point any more.
    Settled { link: Arc<Link> },
}

/// The reply to an opening.
#[derive(Debug)]
pub(super) enum Admission {
    /// Frames may come in on this lane of the link.
    Welcome { link: Arc<Link>, lane: (u64, Record), session: Session },
    /// None may come, for this reason.
    Refused { verdict: Verdict, session: Session },
}

/// Does nothing but accept and spawn: a stream that comes while nobody waits for one is dropped by libp2p.
pub(super) async fn accept(mut incoming: IncomingStreams, lanes: Lanes) {
    while let Some((peer, stream)) = incoming.next().await {
        let lanes = lanes.clone();
        tokio::spawn(async move {
            if let Err(error) = lanes.receive(peer, stream).await {
                lanes.report(peer, Report::IncomingFailed { error });
            }
        });
    }
}

impl Lanes {
    /// Opens a lane to `peer` and keeps it as long as it lasts.
    pub(super) async fn send(self, peer: PeerId, number: u64, opening: Opening) {
        let result = self.try_send(peer, number, opening).await;
        self.report(peer, Report::OutgoingEnded { number, result });
    }

    /// Waits until a parting link has nothing more to say.
    pub(super) async fn settle(self, peer: PeerId, link: Arc<Link>) {
        // An end that does not listen any more is not waited for.
        let _ = timeout(PARTING_MAX, link.settled()).await;
        self.report(peer, Report::Settled { link });
    }

    async fn try_send(&self, peer: PeerId, number: u64, opening: Opening) -> Result<(), LaneError> {
        let mut control = self.control.clone();
        let opened = timeout(OPEN_MAX, control.open_stream(peer, LANE_PROTOCOL)).await;
        let mut stream = match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(OpenStreamError::Io(error))) => return Err(error.into()),
            Ok(Err(error)) => return Err(std::io::Error::other(error).into()),
            Err(_) => return Err(LaneError::Stalled),
        };
        let answer = link::open(&mut stream, opening).await?;
        let (reply, replied) = oneshot::channel();
        self.report(peer, Report::Answered { number, answer, reply });
        let Ok((link, lane)) = replied.await else { return Ok(()) };
        link::transmit(stream, &link, lane, &self.events, &self.counters).await
    }

    async fn receive(&self, peer: PeerId, mut stream: Stream) -> Result<(), LaneError> {
        let opening = link::read_opening(&mut stream).await?;
        let (reply, replied) = oneshot::channel();
        self.report(peer, Report::Opening { opening, reply });
        match replied.await {
            Ok(Admission::Welcome { link, lane, session }) => {
                let shared = Shared { pool: &self.pool, events: &self.events, counters: &self.counters };
                let said_goodbye = || self.report(peer, Report::Goodbye { link: Arc::clone(&link) });
                link::receive(stream, &link, lane, session, &shared, said_goodbye).await
            }
            Ok(Admission::Refused { verdict, session }) => link::refuse(&mut stream, verdict, session).await,
            Err(_) => Ok(()),
        }
    }

    fn report(&self, peer: PeerId, report: Report) {
        // A switchboard that is gone has closed all connections.
        let _ = self.reports.send(Command::Report(peer, report));
    }
}

/// libp2p waits by itself for a dial that failed for another reason than it expects.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// How long last frames and goodbyes may take.
pub(super) const PARTING_MAX: Duration = Duration::from_secs(3);
