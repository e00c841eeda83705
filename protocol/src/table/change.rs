//! Changes of tables by workers, and the journal that keeps them until they are safe.

use super::{Rows, WorkerId};
use crate::limits::STEPS_MAX;
use crate::wire::codec::{Decode, Encode};

/// A change of one chunk by a worker.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct TableChange {
    /// The number of this change among all of the worker's, from 1, whatever chunk it is for. An owner applies it once.
    pub sequence: u64,
    /// The chunk.
    pub chunk: u32,
    /// What is changed.
    pub operation: Operation,
}

/// What a change does to its chunk.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Operation {
    /// Adds to rows of the chunk.
    Add {
        /// The number of clocks that the worker has completed.
        clock: u64,
        /// The values to add.
        rows: Rows,
    },
    /// Changes columns of all rows of the chunk.
    Map(Map),
    /// The worker's leases up to this number are done. For the first chunk, with which the lease table is stored.
    Complete {
        /// The number of the last lease that is done.
        last_lease: u64,
    },
}

/// An operation of owners on columns of a table. Column j holds value j of every row.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub enum Map {
    /// `to += by * from`
    Axpy {
        /// The factor.
        by: f32,
        /// The column that is added.
        from: u32,
        /// The column that it is added to.
        to: u32,
    },
    /// `column *= by`
    Scale {
        /// The factor.
        by: f32,
        /// The column.
        column: u32,
    },
}

/// A message between a worker and a member that keeps its journal. A member that had kept the changes of a worker which is gone takes the
/// worker's place.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum JournalMessage {
    /// Keeps a change of the worker. Changes up to one that ends a transaction are carried out together or not at all.
    Keep {
        /// The worker that has made the change.
        worker: WorkerId,
        /// The change.
        change: TableChange,
        /// Whether this is the last change of its transaction.
        ends_transaction: bool,
    },
    /// The worker's changes up to this number, which ends a transaction, are kept.
    Kept {
        /// The worker.
        worker: WorkerId,
        /// The number.
        up_to: u64,
    },
    /// The worker's changes up to this number are safe at the chunks' owners: they need not be kept any more.
    Forget {
        /// The worker.
        worker: WorkerId,
        /// The number.
        up_to: u64,
    },
}

impl TableChange {
    /// An estimate of the memory that the change takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rows = if let Operation::Add { rows, .. } = &self.operation { rows.bytes() } else { 0 };
        size_of::<Self>() + rows
    }

    pub(super) fn is_valid(&self) -> bool {
        let is_operation_valid = match &self.operation {
            Operation::Add { clock, rows } => *clock <= STEPS_MAX && rows.indices.is_valid(),
            Operation::Map(_) => true,
            Operation::Complete { last_lease } => *last_lease <= STEPS_MAX,
        };
        (1..=STEPS_MAX).contains(&self.sequence) && is_operation_valid
    }
}

impl JournalMessage {
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Keep { change, .. } => change.is_valid(),
            Self::Kept { up_to, .. } | Self::Forget { up_to, .. } => *up_to <= STEPS_MAX,
        }
    }
}
