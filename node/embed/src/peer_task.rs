//! What surrounds the node of one peer: passes on its events and notices, keeps its invite current, and saves its model at the end.

use std::thread;
use std::time::Duration;

use peergrad_core::io::{Ended, Event};
use peergrad_net::{Directory, DirectoryError, FileLimit, Notice};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::event_queue::EventSender;
use crate::run_publication::RunPublication;
use crate::{Outcome, PeerEvent};

/// The task that surrounds the node of one running peer.
pub(crate) struct PeerTask {
    directory: Directory,
    publication: RunPublication,
    /// Whether the record on disk is older than the publication, because it could not be written.
    is_outdated: bool,
    /// Whether other members own everything that this peer owned, so that it can leave without a loss.
    has_handed_over: bool,
    /// How many files may be open; `None` once the user knows that these are too few.
    files: Option<FileLimit>,
    events: EventSender,
}

/// What the parts of a peer report.
pub(crate) struct Reports {
    /// The events of its node.
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    /// The notices of its network.
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
    /// Those of its storage.
    pub(crate) disk_notices: mpsc::UnboundedReceiver<Notice>,
    /// Those of what was started beside them: metrics, and the search for data.
    pub(crate) other_notices: mpsc::UnboundedReceiver<Notice>,
}

impl PeerTask {
    /// For a peer that is about to start.
    pub(crate) fn new(directory: Directory, publication: RunPublication, events: EventSender) -> Self {
        let files = Some(FileLimit::raise());
        Self { directory, publication, is_outdated: false, has_handed_over: false, files, events }
    }

    /// Passes on what is reported until the peer's parts have stopped, and returns how the run ended; `None` if they stopped before that.
    pub(crate) async fn watch(&mut self, reports: Reports) -> Option<Ended> {
        let Reports { mut events, mut notices, mut disk_notices, mut other_notices } = reports;
        let mut ended = None;
        let mut retry = tokio::time::interval(RETRY_INTERVAL);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Ended(end)) => ended = Some(end),
                    Some(event) => self.on_event(event),
                    None => return ended,
                },
                Some(notice) = notices.recv(), if ended.is_none() => self.on_notice(notice),
                Some(notice) = disk_notices.recv(), if ended.is_none() => self.tell(notice),
                Some(notice) = other_notices.recv(), if ended.is_none() => self.tell(notice),
                _ = retry.tick(), if self.is_outdated => self.publish(),
            }
        }
    }

    /// Saves the model, releases the directory, and tells how the run ended.
    pub(crate) fn conclude(self, ended: Ended) {
        let Self { directory, events, has_handed_over, .. } = self;
        let outcome = block_in_place(|| {
            // The threads of the storage end as soon as they have written what they were given. What they wrote last may be forgotten then.
            for _ in 0..LOOKS_MAX {
                if !directory.is_written_to() {
                    break;
                }
                thread::sleep(LOOK_INTERVAL);
            }
            let outcome = Outcome::conclude(ended, has_handed_over, &directory);
            drop(directory);
            outcome
        });
        events.push(PeerEvent::Ended(outcome));
    }

    /// Tells that the peer's code has panicked.
    pub(crate) fn panicked(self, reason: String) {
        let Self { directory, events, .. } = self;
        drop(directory);
        events.push(PeerEvent::Panicked(reason));
    }

    fn on_event(&mut self, event: Event) {
        match &event {
            Event::Welcomed { run, .. } => {
                self.publication.set_run(*run);
                self.publish();
            }
            Event::ViewInstalled { view, .. } => {
                self.check_files(view.members.len());
                let is_news = self.publication.set_run(view.run);
                if self.publication.set_members(view) || is_news {
                    self.publish();
                }
            }
            Event::Rekeyed { rekey, .. } => {
                if !self.publication.set_secret(rekey.secret) {
                    return;
                }
                if let Err(error) = self.write_record() {
                    self.is_outdated = true;
                    self.tell(Notice::OldSecretOnDisk { reason: error.to_string() });
                }
            }
            Event::HandedOver { .. } => self.has_handed_over = true,
            _ => {}
        }
        self.events.push(PeerEvent::Node(event));
    }

    fn on_notice(&mut self, notice: Notice) {
        if let Notice::Reachability(reachability) = &notice
            && self.publication.set_addresses(&reachability.announced)
        {
            self.publish();
        }
        self.tell(notice);
    }

    /// Tells the user once if a view of so many members needs more files than may be open.
    fn check_files(&mut self, members: usize) {
        if let Some(shortage) = self.files.and_then(|files| files.shortage(members)) {
            self.files = None;
            self.tell(Notice::FewOpenFiles(shortage));
        }
    }

    /// Writes the record again. If that fails, the run goes on, and the record is written later.
    fn publish(&mut self) {
        let result = self.write_record();
        let was_outdated = std::mem::replace(&mut self.is_outdated, result.is_err());
        if let Err(error) = result
            && !was_outdated
        {
            self.tell(Notice::RunRecordOutdated { reason: error.to_string() });
        }
    }

    /// A disk may be slow, and sockets must not wait for it.
    fn write_record(&self) -> Result<(), DirectoryError> {
        block_in_place(|| self.publication.publish(&self.directory))
    }

    fn tell(&self, notice: Notice) {
        self.events.push(PeerEvent::Notice(notice));
    }
}

/// How long after a failure the record is written again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often a peer looks at its end whether the threads that write to its directory have ended: for a minute at most.
const LOOKS_MAX: u32 = 30_000;
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
