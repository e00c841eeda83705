//! The modelled disk: where a peer's durable record and its checkpoints lie, and how far it can be trusted.

use std::sync::Arc;
use std::time::Duration;

use peergrad_core::state::checkpoint::Checkpoint;
use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::{DurableBytes, DurableRecord};
use peergrad_protocol::message::SavedCheckpoint;

/// A host's disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// How it behaves.
    pub mode: DiskMode,
    /// Time that it takes to write a record.
    pub write_time: Duration,
    /// The record that a start finds.
    record: Option<DurableBytes>,
    /// The one before, for a disk that loses the last write.
    before: Option<DurableBytes>,
    /// Newest last.
    checkpoints: Vec<Arc<Checkpoint>>,
}

/// How a disk behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskMode {
    /// What it says is written is written.
    #[default]
    Honest,
    /// A crash takes the last record with it, although it was said to be written.
    LosesLast,
    /// It says that it has written, and writes nothing.
    Lying,
    /// After a crash the record has the view, and nothing of what was promised and accepted for the next one.
    Forgetful,
    /// What it returns of a checkpoint is not what was written.
    Corrupted,
    /// It is full, and says so.
    Full,
}

impl Disk {
    /// An honest and empty one.
    #[must_use]
    pub fn honest(write_time: Duration) -> Self {
        Self { write_time, ..Self::default() }
    }

    /// Writes a record; what it tells the writer.
    ///
    /// # Errors
    /// In words, if the record is not written and the disk admits it.
    pub fn write(&mut self, record: DurableBytes) -> Result<(), String> {
        match self.mode {
            DiskMode::Honest | DiskMode::LosesLast | DiskMode::Forgetful | DiskMode::Corrupted => {
                self.before = self.record.replace(record);
                Ok(())
            }
            DiskMode::Lying => Ok(()),
            DiskMode::Full => Err("no space left on device".to_owned()),
        }
    }

    /// Writes a checkpoint beside those before, of which so many are kept in all.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn save(&mut self, checkpoint: Arc<Checkpoint>, keep: usize) -> Result<(), String> {
        match self.mode {
            DiskMode::Honest | DiskMode::LosesLast | DiskMode::Forgetful | DiskMode::Corrupted => {
                self.checkpoints.retain(|other| other.saved.steps != checkpoint.saved.steps);
                self.checkpoints.push(checkpoint);
                let surplus = self.checkpoints.len().saturating_sub(keep);
                self.checkpoints.drain(..surplus);
                Ok(())
            }
            DiskMode::Lying => Ok(()),
            DiskMode::Full => Err("no space left on device".to_owned()),
        }
    }

    /// Reads a checkpoint; those with more steps are of no use any more.
    ///
    /// # Errors
    /// It is not there.
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

    /// The newest checkpoint is damaged, and known to be.
    pub fn damage_newest(&mut self) {
        self.checkpoints.pop();
    }

    /// The power goes.
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

    /// What was written is of no use any more.
    pub fn forget(&mut self) {
        (self.record, self.before) = (None, None);
        self.checkpoints.clear();
    }

    /// What really lies there.
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
            let is_full = disk.write(record).is_err();
            assert_eq!(is_full, mode == DiskMode::Full);
        }
        disk.crash();
        disk.record().map(|record| record.view[0])
    }

    #[test]
    fn disks_can_be_trusted_to_different_degrees() {
        assert_eq!(after_a_crash(DiskMode::Honest), Some(2));
        assert_eq!(after_a_crash(DiskMode::LosesLast), Some(1));
        assert_eq!(after_a_crash(DiskMode::Lying), None);
        assert_eq!(after_a_crash(DiskMode::Full), None);
    }
}
