//! The modelled disk: it holds a peer's durable record and its checkpoints, and can fail in the ways of [`DiskMode`].

use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::Retention;
use peergrad_core::state::checkpoint::Checkpoint;
use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::{DurableBytes, DurableRecord};
use peergrad_protocol::message::SavedCheckpoint;

/// A host's disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Whether it works, or how it fails.
    pub mode: DiskMode,
    /// Time that it takes to write a record.
    pub write_time: Duration,
    /// The record that a peer reads when it starts; `None` if none was written.
    record: Option<DurableBytes>,
    /// The record before that one, for a disk that loses the last write.
    before: Option<DurableBytes>,
    /// Checkpoints, newest last.
    checkpoints: Vec<Arc<Checkpoint>>,
}

/// Whether a disk works, or how it fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskMode {
    /// All that it reports as written is written.
    #[default]
    Honest,
    /// A crash loses the last record, although the disk had reported it as written.
    LosesLast,
    /// It reports records as written, and writes none.
    Lying,
    /// After a crash the record has the view, but neither the promise nor the accepted value for the next one.
    Forgetful,
    /// The checkpoint that it returns differs from the one that was written.
    Corrupted,
    /// It is full, and each write fails. Records are written again later.
    Full,
}

impl Disk {
    /// A disk that works and is empty.
    #[must_use]
    pub fn honest(write_time: Duration) -> Self {
        Self { write_time, ..Self::default() }
    }

    /// Writes a record. Returns whether the disk says that it is written.
    pub fn write(&mut self, record: DurableBytes) -> bool {
        match self.mode {
            DiskMode::Honest | DiskMode::LosesLast | DiskMode::Forgetful | DiskMode::Corrupted => {
                self.before = self.record.replace(record);
                true
            }
            DiskMode::Lying => true,
            DiskMode::Full => false,
        }
    }

    /// Writes a checkpoint, and keeps the newest ones and the candidates.
    ///
    /// # Errors
    /// A description, if it is not written and the disk reports that.
    pub fn save(&mut self, checkpoint: Arc<Checkpoint>, retention: Retention) -> Result<(), String> {
        match self.mode {
            DiskMode::Honest | DiskMode::LosesLast | DiskMode::Forgetful | DiskMode::Corrupted => {
                // Later ones are of a branch that was given up.
                self.checkpoints.retain(|other| other.saved.steps < checkpoint.saved.steps);
                self.checkpoints.push(checkpoint);
                let surplus = self.checkpoints.len().saturating_sub(retention.keep);
                let mut index = 0;
                self.checkpoints.retain(|other| {
                    index += 1;
                    index > surplus || retention.candidates.contains(&other.saved.steps)
                });
                Ok(())
            }
            DiskMode::Lying => Ok(()),
            DiskMode::Full => Err("no space left on device".to_owned()),
        }
    }

    /// Reads a checkpoint, and deletes those with more steps.
    ///
    /// # Errors
    /// The disk does not have the checkpoint.
    pub fn restore(&mut self, saved: &SavedCheckpoint) -> Result<Arc<Checkpoint>, String> {
        self.checkpoints.retain(|other| other.saved.steps <= saved.steps);
        let found = self.checkpoints.iter().find(|checkpoint| checkpoint.saved == *saved);
        let found = found.cloned().ok_or_else(|| "it is gone".to_owned())?;
        if self.mode != DiskMode::Corrupted {
            return Ok(found);
        }
        let mut corrupted = Checkpoint::clone(&found);
        corrupted.states.iter_mut().for_each(|state| state.moments.fill(0.0));
        Ok(Arc::new(corrupted))
    }

    /// The checkpoints, newest first.
    pub fn checkpoints(&self) -> impl Iterator<Item = &Arc<Checkpoint>> {
        self.checkpoints.iter().rev()
    }

    /// Damages the newest checkpoint. A peer would notice that, so the disk no longer has it.
    pub fn damage_newest(&mut self) {
        self.checkpoints.pop();
    }

    /// A power cut.
    pub fn crash(&mut self) {
        match self.mode {
            DiskMode::LosesLast => {
                self.record = self.before.take();
                self.checkpoints.pop();
            }
            DiskMode::Forgetful => {
                let record =
                    self.record.as_ref().and_then(|record| DurableRecord::from_bytes(&record.to_bytes()));
                let forgotten =
                    record.map(|record| DurableRecord { acceptor: Acceptor::default(), ..record });
                self.record = forgotten.map(|record| record.to_durable_bytes());
            }
            DiskMode::Honest | DiskMode::Lying | DiskMode::Corrupted | DiskMode::Full => {}
        }
    }

    /// Deletes everything.
    pub fn forget(&mut self) {
        (self.record, self.before) = (None, None);
        self.checkpoints.clear();
    }

    /// The record that is really on the disk.
    #[must_use]
    pub fn record(&self) -> Option<&DurableBytes> {
        self.record.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_a_crash(mode: DiskMode) -> Option<u8> {
        let mut disk = Disk { mode, ..Disk::default() };
        for byte in [1_u8, 2] {
            let record =
                DurableBytes { view: Arc::new([byte]), promised: Arc::new([]), definition: Arc::new([]) };
            let is_full = !disk.write(record);
            assert_eq!(is_full, mode == DiskMode::Full);
        }
        disk.crash();
        disk.record().map(|record| record.view[0])
    }

    #[test]
    fn disk_modes_keep_different_records_after_a_crash() {
        assert_eq!(after_a_crash(DiskMode::Honest), Some(2));
        assert_eq!(after_a_crash(DiskMode::LosesLast), Some(1));
        assert_eq!(after_a_crash(DiskMode::Lying), None);
        assert_eq!(after_a_crash(DiskMode::Full), None);
    }
}
