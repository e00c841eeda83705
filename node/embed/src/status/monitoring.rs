//! The monitoring of one running peer: sets up the observer, the event log, the status service and its server.

use std::path::Path;

use peergrad_core::io::Event;
use peergrad_net::{AdminRequest, MonotonicClock, Network, Notice};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::log::{EventLog, LogOrigin};
use super::{Observations, Observer, StatusServer, StatusService};

/// Answers status requests and writes the event log until it is dropped or closed.
pub struct Monitoring {
    observing: JoinHandle<()>,
    service: StatusService,
    _server: StatusServer,
}

/// The receiving ends of the channels that the monitoring passes on.
pub struct EventStreams {
    /// For the driver: requests for the state of its node.
    pub admin_requests: mpsc::Receiver<AdminRequest>,
    /// The node's events, after the observer has seen them.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// The network's notices, after the observer has seen them.
    pub notices: mpsc::UnboundedReceiver<Notice>,
}

impl Monitoring {
    /// Starts the monitoring of a peer whose data is in `directory`. `events` come from its driver, `notices` from its network.
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
        let (events_out, events_in) = mpsc::unbounded_channel();
        let (notices_out, notices_in) = mpsc::unbounded_channel();
        let (service, admin_requests) = StatusService::new(origin.peer, network.handle(), observations);
        let (server, local) = StatusServer::start(directory, service.clone(), network.status_streams());
        if let Err(reason) = local {
            let _ = notices_out.send(Notice::NoStatus { reason });
        }
        let observing = tokio::spawn(observer.listen(events, notices, events_out, notices_out));
        let streams = EventStreams { admin_requests, events: events_in, notices: notices_in };
        (Self { observing, service, _server: server }, streams)
    }

    /// The status service.
    #[must_use]
    pub fn service(&self) -> &StatusService {
        &self.service
    }

    /// Waits until the event log has recorded the end of the run.
    pub async fn close(self) {
        // A panic of that task has been printed already.
        let _ = self.observing.await;
    }
}
