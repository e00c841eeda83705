//! Stable storage: one thread that writes a node's durable record in the order in which it was asked to.
//!
//! A disk may be slow, and sockets must not wait for it. So writing has its own thread, and its results come back as inputs,
//! like frames.
//!
//! A disk may also be full for a while, or fail once. Then writing is tried again, and the node learns of each failure: it does not vote
//! until the disk works. Of the records that wait, only the newest is written, because it contains all that the earlier ones did.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use peergrad_config::file_error::explained;
use peergrad_core::io::{Input, PersistId};
use peergrad_protocol::durable::DurableBytes;
use tokio::sync::mpsc;

use super::files;
use super::notice::Notice;

/// The writing thread. If this is dropped, the record that is being written is finished first.
#[derive(Debug)]
pub struct StableStorage {
    records: std::sync::mpsc::Sender<Entry>,
    results: mpsc::UnboundedReceiver<Input>,
}

/// A record, and the id by which the node asked to write it.
type Entry = (PersistId, DurableBytes);

impl StableStorage {
    /// Starts the thread. It writes the record to `path`, and drops `lock` when it ends. The second result receives notices about the disk.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
    pub fn start(
        path: PathBuf,
        lock: impl Send + 'static,
    ) -> std::io::Result<(Self, mpsc::UnboundedReceiver<Notice>)> {
        let (records, queue) = std::sync::mpsc::channel::<Entry>();
        let (done, results) = mpsc::unbounded_channel();
        let (notices, noticed) = mpsc::unbounded_channel();
        thread::Builder::new().name("store".to_owned()).spawn(move || {
            let _lock = lock;
            while let Ok(entry) = queue.recv() {
                let Some(id) = write(&path, entry, &queue, (&done, &notices)) else { break };
                if done.send(Input::Persisted(id)).is_err() {
                    break;
                }
            }
        })?;
        Ok((Self { records, results }, noticed))
    }

    /// Replaces the record.
    pub fn persist(&self, id: PersistId, record: DurableBytes) {
        self.records.send((id, record)).expect("the thread runs as long as its owner");
    }

    /// The next result of a write, as an input. No result is lost if this is dropped while it waits.
    pub async fn persisted(&mut self) -> Input {
        self.results.recv().await.expect("the thread runs as long as its owner")
    }
}

/// Writes a record, again and again if that fails, or one that comes after it, and reports each failure. Returns the id of the one that was
/// written; `None` if nobody waits for it any more.
fn write(
    path: &Path,
    (mut id, mut record): Entry,
    queue: &Receiver<Entry>,
    (failures, notices): (&mpsc::UnboundedSender<Input>, &mpsc::UnboundedSender<Notice>),
) -> Option<PersistId> {
    let mut has_failed = false;
    loop {
        let Err(error) = files::write_private(path, &record.to_bytes()) else {
            if has_failed {
                // The receiver may be gone: notices need no reader.
                let _ = notices.send(Notice::RecordWritten);
            }
            return Some(id);
        };
        if !has_failed {
            let _ = notices.send(Notice::RecordNotWritten { reason: explained(&error) });
        }
        has_failed = true;
        failures.send(Input::NotPersisted(id)).ok()?;
        match queue.recv_timeout(RETRY) {
            Ok(newer) => (id, record) = newer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// How long after a failure the record is written again.
const RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(bytes: &[u8]) -> DurableBytes {
        DurableBytes { view: bytes.into(), promised: Arc::new([]), definition: Arc::new([]) }
    }

    #[tokio::test]
    async fn records_are_written_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("durable");
        let (mut store, _notices) = StableStorage::start(path.clone(), ()).unwrap();
        for byte in [1_u8, 2] {
            store.persist(PersistId(u64::from(byte)), record(&[byte]));
        }
        for byte in [1, 2] {
            assert!(matches!(store.persisted().await, Input::Persisted(PersistId(id)) if id == byte));
        }
        assert_eq!(std::fs::read(&path).unwrap(), record(&[2]).to_bytes());
    }

    /// The folder of the record is missing for a while, as a full disk would be.
    #[tokio::test]
    async fn a_record_that_cannot_be_written_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent/durable");
        let (mut store, mut notices) = StableStorage::start(path.clone(), ()).unwrap();
        for byte in [1_u8, 2] {
            store.persist(PersistId(u64::from(byte)), record(&[byte]));
        }
        assert!(matches!(notices.recv().await, Some(Notice::RecordNotWritten { .. })));
        std::fs::create_dir(folder.path().join("absent")).unwrap();
        let mut failures = 0;
        loop {
            match store.persisted().await {
                Input::NotPersisted(_) => failures += 1,
                Input::Persisted(PersistId(2)) => break,
                Input::Persisted(_) => {}
                _ => panic!("another input"),
            }
        }
        assert!(failures > 0, "the node learns of each failure");
        assert_eq!(std::fs::read(&path).unwrap(), record(&[2]).to_bytes());
        assert_eq!(notices.recv().await, Some(Notice::RecordWritten));
    }
}
