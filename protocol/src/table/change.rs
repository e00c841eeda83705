//! Changes of tables by workers, and the journal that keeps them until they are safe.

use super::{Rows, WorkerId};
use crate::limits::{ROUND_KEYS_MAX, STEPS_MAX, VECTOR_ASSIGNMENTS_MAX, VECTOR_TERMS_MAX};
use crate::wire::codec::{Decode, Encode};

/// A change of one chunk by a worker.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct TableChange {
    /// The number of this change among all of the worker's, from 1, whatever chunk it is for. An owner applies it once.
    pub sequence: u64,
    /// The chunk.
    pub chunk: u32,
    /// The key of a change that several workers may send: the chunk carries out the first one with this key, and ignores the others.
    pub key: Option<IdempotencyKey>,
    /// What is changed.
    pub operation: Operation,
}

/// The key of a change that is carried out once, though several workers may send it. Keys come in rounds: once a chunk has a change of a round, it ignores those
/// of earlier rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct IdempotencyKey {
    /// The round.
    pub round: u64,
    /// The number of the change in its round, less than [`ROUND_KEYS_MAX`].
    pub number: u32,
}

/// The keys of the changes that a chunk includes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct UsedKeys {
    /// The newest round of which it includes a change.
    pub round: u64,
    /// The numbers of the changes of that round, ascending.
    pub numbers: Vec<u32>,
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
    /// Computes with the vectors of the chunk.
    Map(Map),
    /// The worker's leases up to this number are done. For the first chunk, with which the lease table is stored.
    Complete {
        /// The number of the last lease that is done.
        last_lease: u64,
    },
}

/// An operation of owners on the vectors of a table: linear combinations, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Map {
    /// The combinations, in order.
    pub assignments: Vec<Assignment>,
}

/// A vector becomes a linear combination of vectors.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Assignment {
    /// The vector that is changed.
    pub to: u32,
    /// The vectors that are added, each times its factor. The vector itself may be among them. Without any, it becomes zero.
    pub terms: Vec<(u32, f32)>,
}

impl Map {
    /// `to += by * from`
    #[must_use]
    pub fn axpy(by: f32, from: u32, to: u32) -> Self {
        Self::default().then(to, vec![(to, 1.0), (from, by)])
    }

    /// `vector *= by`
    #[must_use]
    pub fn scale(by: f32, vector: u32) -> Self {
        Self::default().then(vector, vec![(vector, by)])
    }

    /// Adds an assignment, which comes after the others.
    #[must_use]
    pub fn then(mut self, to: u32, terms: Vec<(u32, f32)>) -> Self {
        self.assignments.push(Assignment { to, terms });
        self
    }

    /// Whether it is no longer than a message may be.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.assignments.len() <= VECTOR_ASSIGNMENTS_MAX
            && self.assignments.iter().all(|assignment| assignment.terms.len() <= VECTOR_TERMS_MAX)
    }

    /// An estimate of the memory that it takes, in bytes.
    fn bytes(&self) -> usize {
        let terms = |assignment: &Assignment| size_of::<Assignment>() + size_of_val(&assignment.terms[..]);
        self.assignments.iter().map(terms).sum()
    }
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
        let more = match &self.operation {
            Operation::Add { rows, .. } => rows.bytes(),
            Operation::Map(map) => map.bytes(),
            Operation::Complete { .. } => 0,
        };
        size_of::<Self>() + more
    }

    pub(super) fn is_valid(&self) -> bool {
        let is_operation_valid = match &self.operation {
            Operation::Add { clock, rows } => *clock <= STEPS_MAX && rows.indices.is_valid(),
            Operation::Map(map) => map.is_short(),
            Operation::Complete { last_lease } => *last_lease <= STEPS_MAX && self.key.is_none(),
        };
        (1..=STEPS_MAX).contains(&self.sequence)
            && self.key.is_none_or(|key| key.is_valid())
            && is_operation_valid
    }
}

impl IdempotencyKey {
    /// Whether a chunk can record it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.round <= STEPS_MAX && (self.number as usize) < ROUND_KEYS_MAX
    }
}

impl UsedKeys {
    /// Records a key. Returns false if it was used before, or is of an earlier round.
    pub fn insert(&mut self, key: IdempotencyKey) -> bool {
        if key.round > self.round {
            self.round = key.round;
            self.numbers.clear();
        }
        match self.numbers.binary_search(&key.number) {
            Err(place) if key.round == self.round => self.numbers.insert(place, key.number),
            _ => return false,
        }
        true
    }

    pub(super) fn is_valid(&self) -> bool {
        self.round <= STEPS_MAX
            && self.numbers.is_sorted_by(|one, next| one < next)
            && self.numbers.last().is_none_or(|last| (*last as usize) < ROUND_KEYS_MAX)
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
