//! The modelled disk: where a peer's durable record lies, and how far it can be trusted.

use std::time::Duration;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::{Durable, Record};

/// A host's disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// How it behaves.
    pub mode: DiskMode,
    /// Time that it takes to write a record.
    pub write_time: Duration,
    /// The record that a start finds.
    record: Option<Record>,
    /// The one before, for a disk that loses the last write.
    before: Option<Record>,
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
    pub fn write(&mut self, record: Record) -> Result<(), String> {
        match self.mode {
            DiskMode::Honest | DiskMode::LosesLast | DiskMode::Forgetful => {
                self.before = self.record.replace(record);
                Ok(())
            }
            DiskMode::Lying => Ok(()),
            DiskMode::Full => Err("no space left on device".to_owned()),
        }
    }

    /// The power goes.
    pub fn crash(&mut self) {
        match self.mode {
            DiskMode::LosesLast => self.record = self.before.take(),
            DiskMode::Forgetful => {
                let record = self.record.as_ref().and_then(|record| Durable::from_bytes(&record.to_bytes()));
                let forgotten = record.map(|record| Durable { acceptor: Acceptor::default(), ..record });
                self.record = forgotten.map(|record| record.to_record());
            }
            DiskMode::Honest | DiskMode::Lying | DiskMode::Full => {}
        }
    }

    /// What was written is of no use any more.
    pub fn forget(&mut self) {
        (self.record, self.before) = (None, None);
    }

    /// What really lies there.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn after_a_crash(mode: DiskMode) -> Option<u8> {
        let mut disk = Disk { mode, ..Disk::default() };
        for byte in [1_u8, 2] {
            let record = Record { view: Arc::new([byte]), rest: Arc::new([]) };
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
