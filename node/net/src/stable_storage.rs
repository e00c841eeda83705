//! The store: one thread that writes a node's durable record, in the order in which it was asked to.
//!
//! A disk may take its time, and sockets must not wait for it; so it has a thread of its own, and what it has done comes
//! back like frames do.

use std::path::PathBuf;
use std::thread;

use peergrad_core::io::{Input, PersistId};
use peergrad_protocol::durable::DurableBytes;
use tokio::sync::mpsc;

use super::files;

/// The thread. Dropping it lets the record that is being written be finished.
#[derive(Debug)]
pub struct StableStorage {
    records: std::sync::mpsc::Sender<(PersistId, DurableBytes)>,
    results: mpsc::UnboundedReceiver<Input>,
}

impl StableStorage {
    /// Starts the thread; the record lies in `path`.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub fn start(path: PathBuf) -> std::io::Result<Self> {
        let (records, queue) = std::sync::mpsc::channel::<(PersistId, DurableBytes)>();
        let (done, results) = mpsc::unbounded_channel();
        thread::Builder::new().name("store".to_owned()).spawn(move || {
            for (id, record) in queue {
                let result =
                    files::write_atomically(&path, &record.to_bytes()).map_err(|error| error.to_string());
                if done.send(Input::Persisted { id, result }).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { records, results })
    }

    /// Writes a record in place of the one before.
    pub fn persist(&self, id: PersistId, record: DurableBytes) {
        self.records.send((id, record)).expect("the thread outlives the one who gives it work");
    }

    /// The next record that was written or could not be, as the input that tells of it. Nothing is lost if this is
    /// dropped while it waits.
    pub async fn persisted(&mut self) -> Input {
        self.results.recv().await.expect("the thread outlives the one who gives it work")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(bytes: &[u8]) -> DurableBytes {
        DurableBytes { view: bytes.into(), promised: Arc::new([]), definition: Arc::new([]) }
    }

    #[tokio::test]
    async fn records_are_written_in_order_and_a_full_disk_is_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("durable");
        let mut store = StableStorage::start(path.clone()).unwrap();
        for byte in [1_u8, 2] {
            store.persist(PersistId(u64::from(byte)), record(&[byte]));
        }
        for byte in [1, 2] {
            let Input::Persisted { id, result } = store.persisted().await else { panic!("another input") };
            assert_eq!((id, result), (PersistId(byte), Ok(())));
        }
        assert_eq!(std::fs::read(&path).unwrap(), record(&[2]).to_bytes());

        let mut nowhere = StableStorage::start(folder.path().join("absent/durable")).unwrap();
        nowhere.persist(PersistId(0), record(&[]));
        assert!(matches!(nowhere.persisted().await, Input::Persisted { result: Err(_), .. }));
    }
}
