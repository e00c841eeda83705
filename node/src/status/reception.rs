//! The reception: all that stands around one running peer to say how it is, from its start to its end.

use std::path::Path;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::log::{Author, EventLog};
use super::{Desk, Memory, Observer, Server};
use crate::io::Event;
use crate::net::{Clock, Inquiry, Network, Notice};

/// Answers those who ask, and writes the event log, as long as it is held.
pub struct Reception {
    observing: JoinHandle<()>,
    desk: Desk,
    _server: Server,
}

/// The ends of what goes through a reception.
pub struct Passage {
    /// For the driver: who asks how the node stands.
    pub inquiries: mpsc::Receiver<Inquiry>,
    /// What the node tells, after it was taken note of.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// The same of the network.
    pub notices: mpsc::UnboundedReceiver<Notice>,
}

impl Reception {
    /// Opens one for a peer whose data is in `directory`. `events` and `notices` are what it and its network tell.
    #[must_use]
    pub fn open(
        directory: &Path,
        author: &Author,
        (network, clock): (&mut Network, Clock),
        events: mpsc::UnboundedReceiver<Event>,
        notices: mpsc::UnboundedReceiver<Notice>,
    ) -> (Self, Passage) {
        let memory = Memory::new(clock, network.counters());
        if let Some(run) = author.run {
            memory.note_run(run);
        }
        let (log, log_notices) = EventLog::start(directory, author);
        let observer = Observer::new(author.peer, std::sync::Arc::clone(&memory), log, log_notices);
        let (told, events_on) = mpsc::unbounded_channel();
        let (noticed, notices_on) = mpsc::unbounded_channel();
        let (desk, inquiries) = Desk::new(author.peer, network.lookout(), memory);
        let (server, local) = Server::start(directory, desk.clone(), network.questions());
        if let Err(reason) = local {
            let _ = noticed.send(Notice::NoStatus { reason });
        }
        let observing = tokio::spawn(observer.listen(events, notices, told, noticed));
        let passage = Passage { inquiries, events: events_on, notices: notices_on };
        (Self { observing, desk, _server: server }, passage)
    }

    /// Where to ask how the peer is.
    #[must_use]
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Waits until the event log has the end of the run.
    pub async fn close(self) {
        // A panic there has been told of by itself.
        let _ = self.observing.await;
    }
}
