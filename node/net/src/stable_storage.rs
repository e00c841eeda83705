//! Stable storage: one thread that writes a node's durable record in the order in which it was asked to.
//!
//! A disk may be slow, and sockets must not wait for it. So writing has its own thread, and its results come back as inputs,
//! like frames.

use std::path::PathBuf;
use std::thread;

use peergrad_core::io::{Input, PersistId};
use peergrad_protocol::durable::DurableBytes;
use tokio::sync::mpsc;

use super::files;

/// The writing thread. If this is dropped, the record that is being written is finished first.
#[derive(Debug)]
pub struct StableStorage {
    records: std::sync::mpsc::Sender<(PersistId, DurableBytes)>,
    results: mpsc::UnboundedReceiver<Input>,
}

impl StableStorage {
    /// Starts the thread. It writes the record to `path`.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
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

    /// Replaces the record.
    pub fn persist(&self, id: PersistId, record: DurableBytes) {
        self.records.send((id, record)).expect("the thread runs as long as its owner");
    }

    /// The next result of a write, as an input. No result is lost if this is dropped while it waits.
    pub async fn persisted(&mut self) -> Input {
        self.results.recv().await.expect("the thread runs as long as its owner")
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
    async fn records_are_written_in_order_and_a_failed_write_is_reported() {
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
