//! What the pages of all columns take in memory, added up before a page is unpacked.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::PAGES_BYTES_MAX;

/// The pages would take more than [`PAGES_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much memory")]
pub(crate) struct TooLarge;

/// The bytes of the pages of a row group.
#[derive(Debug)]
pub(crate) struct PageMemory(Mutex<Counted>);

#[derive(Debug)]
struct Counted {
    /// The sum over all columns.
    total: u64,
    columns: Vec<ColumnPages>,
}

/// The bytes of a column's pages.
#[derive(Clone, Copy, Debug, Default)]
struct ColumnPages {
    /// The page that is being read.
    current: u64,
    /// Earlier pages: values that were read and not yet written may still lie there.
    earlier: u64,
}

/// What a page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A dictionary stays to the end of the row group, as does what is added to it.
    Dictionary,
    /// A page of values, which takes the place of the one before.
    NewPage,
    /// More room for the current page.
    SamePage,
}

impl PageMemory {
    /// Nothing yet, of so many columns.
    pub(crate) fn new(columns: usize) -> Self {
        Self(Mutex::new(Counted { total: 0, columns: vec![ColumnPages::default(); columns] }))
    }

    /// Counts bytes of a column, if there is room for them.
    pub(crate) fn take(&self, column: usize, bytes: u64, kind: Use) -> Result<(), TooLarge> {
        let mut counted = self.lock();
        counted.total = counted.total.saturating_add(bytes);
        if counted.total > PAGES_BYTES_MAX {
            return Err(TooLarge);
        }
        let pages = &mut counted.columns[column];
        match kind {
            Use::Dictionary => {}
            Use::NewPage => {
                pages.earlier += pages.current;
                pages.current = bytes;
            }
            Use::SamePage => pages.current += bytes,
        }
        Ok(())
    }

    /// The values of a column that were read are gone, and with them all pages but the current one.
    pub(crate) fn release(&self, column: usize) {
        let mut counted = self.lock();
        let earlier = std::mem::take(&mut counted.columns[column].earlier);
        counted.total -= earlier;
    }

    /// A panic of the decoder does not happen while the lock is held.
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_give_their_bytes_back_when_their_values_are_written() {
        let memory = PageMemory::new(2);
        let third = PAGES_BYTES_MAX / 3;
        memory.take(0, third, Use::NewPage).unwrap();
        memory.take(1, third, Use::Dictionary).unwrap();
        memory.release(0);
        memory.release(1);
        memory.take(0, third, Use::NewPage).unwrap();
        memory.release(0);
        memory.take(0, third, Use::NewPage).unwrap();
        assert_eq!(memory.take(1, third, Use::NewPage), Err(TooLarge));
    }
}
