//! The monitoring: all that stands around one running peer to say how it is, from its start to its end.

use std::path::Path;

use peergrad_core::io::Event;
use peergrad_net::{AdminRequest, MonotonicClock, Network, Notice};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::log::{EventLog, LogOrigin};
use super::{Observations, Observer, StatusServer, StatusService};

/// Answers those who ask, and writes the event log, as long as it is held.
pub struct Monitoring {
    observing: JoinHandle<()>,
    service: StatusService,
    _server: StatusServer,
}

/// The ends of what goes through a monitoring.
pub struct EventStreams {
    /// For the driver: who asks how the node stands.
    pub admin_requests: mpsc::Receiver<AdminRequest>,
    /// What the node tells, after it was taken note of.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// The same of the network.
    pub notices: mpsc::UnboundedReceiver<Notice>,
}

impl Monitoring {
    /// Opens one for a peer whose data is in `directory`. `events` and `notices` are what it and its network tell.
    #[must_use]
    pub fn open(
        directory: &Path,
        origin: &LogOrigin,
        (network, clock): (&mut Network, MonotonicClock),
        events: mpsc::UnboundedReceiver<Event>,
        notices: mpsc::UnboundedReceiver<Notice>,
    ) -> (Self, EventStreams) {
        let observations = Observations::new(clock, network.counters());
        if let Some(run) = origin.run {
            observations.note_run(run);
        }
        let (log, log_notices) = EventLog::start(directory, origin);
        let observer = Observer::new(origin.peer, std::sync::Arc::clone(&observations), log, log_notices);
        let (told, events_on) = mpsc::unbounded_channel();
        let (noticed, notices_on) = mpsc::unbounded_channel();
        let (service, admin_requests) = StatusService::new(origin.peer, network.handle(), observations);
        let (server, local) = StatusServer::start(directory, service.clone(), network.status_streams());
        if let Err(reason) = local {
            let _ = noticed.send(Notice::NoStatus { reason });
        }
        let observing = tokio::spawn(observer.listen(events, notices, told, noticed));
        let streams = EventStreams { admin_requests, events: events_on, notices: notices_on };
        (Self { observing, service, _server: server }, streams)
    }

    /// Where to ask how the peer is.
    #[must_use]
    pub fn service(&self) -> &StatusService {
        &self.service
    }

    /// Waits until the event log has the end of the run.
    pub async fn close(self) {
        // A panic there has been told of by itself.
        let _ = self.observing.await;
    }
}
