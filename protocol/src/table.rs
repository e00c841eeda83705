//! Table messages: requests of workers, responses of owners, and updates for replicas.
//!
//! Each pair of members has a stream of table messages in each direction; a frame of
//! [`TrainingMessage::Tables`] carries its next piece. A message is four
//! bytes of length and a [`TableMessage`]. The stream restarts with each view, so a message that was cut off by a view change is
//! never completed: its sender sends it again.
//!
//! Row indices are written as ranges: all rows of a dense table are one range, and a single row takes two numbers.
//!
//! [`TrainingMessage::Tables`]: crate::message::TrainingMessage::Tables

use std::fmt;

use crate::chunk_set::ChunkSet;
use crate::cursor::{DataCursor, Span, are_disjoint};
use crate::id::{Incarnation, PeerId};
use crate::limits::{
    BATCH_SPANS_MAX, CHUNKS_MAX, KEPT_PORTIONS_MAX, LEASES_MAX, MEMBERS_MAX, PENDING_CLOCKS_MAX, STEPS_MAX,
    VECTOR_TERMS_MAX,
};
use crate::wire::codec::{Decode, Encode};
pub use change::{Assignment, IdempotencyKey, JournalMessage, Map, Operation, TableChange, UsedKeys};
pub use cut::CutMessage;
pub use row_set::{RowSet, RowSetBuilder};

mod change;
mod cut;
mod row_set;

/// The index of a row, over all tables of a run: each table has a range of indices, one table after the other.
pub type Row = u64;

/// Values of rows of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Rows {
    /// The rows.
    pub indices: RowSet,
    /// The values, shape (rows, width), one row after the other.
    pub values: Vec<f32>,
}

/// A worker in one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct WorkerId {
    /// The worker's peer id.
    pub peer: PeerId,
    /// The worker's incarnation.
    pub incarnation: Incarnation,
}

/// The progress of a worker. A worker that has ended is beyond every clock, so no worker waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum WorkerClock {
    /// The number of clocks that the worker has completed.
    At(u64),
    /// The worker has ended.
    Ended,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum TableMessage {
    /// Worker to owner.
    Request(Request),
    /// Owner to worker.
    Response(Response),
    /// Donor to new owner: a whole chunk that changes hands with the view.
    Handover(TableChunk),
    /// Owner to replica: chunks, or parts of them, to store.
    ReplicaUpdate(ReplicaUpdate),
    /// Replica to owner: the update with this number is stored.
    ReplicaAck(u64),
    /// Owner to every member: all replicas of these chunks are up to date.
    Replicated(ChunkSet),
    /// Between a worker and the members that keep its journal.
    Journal(JournalMessage),
    /// Between the member of lowest rank and another member: about a cut, which a checkpoint is made of.
    Cut(CutMessage),
}

/// A message of a worker to an owner.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Request {
    /// Reads rows, once all workers have come far enough.
    Get {
        /// The worker's number for this request.
        request: u64,
        /// The owner answers once every worker has come as far as this.
        min_clock: WorkerClock,
        /// The rows: of one table, and of chunks that the receiver owns. Perhaps none: then only the clock in the answer matters.
        rows: RowSet,
    },
    /// Changes a chunk, once.
    Change(TableChange),
    /// Changes a chunk, once, in the place of a worker that is gone. The sender has kept the change in that worker's journal.
    Replay {
        /// The worker that has made the change.
        worker: WorkerId,
        /// The change.
        change: TableChange,
    },
    /// Reduces vectors of a chunk to numbers, once all workers have come far enough.
    Reduce {
        /// The worker's number for this request.
        request: u64,
        /// The owner answers once every worker has come as far as this.
        min_clock: WorkerClock,
        /// The chunk.
        chunk: u32,
        /// The reduction.
        reduce: Reduce,
    },
    /// The worker is new and has no clock: others do not wait for it.
    NewWorker,
    /// The worker has come as far as this.
    Tick {
        /// Its clock.
        clock: WorkerClock,
    },
    /// Asks for a sample lease. Lease requests go to the owner of the first chunk.
    Lease {
        /// The worker's number for the lease, from 1.
        lease_number: u64,
        /// The number of samples that the worker asks for.
        samples: u32,
        /// Whether the owner may keep the request until there are samples, because no other worker waits for this worker's clock.
        /// Otherwise the owner answers at once, with an empty lease if there are none. It also does so if the worker holds leases,
        /// or if all samples are done.
        may_wait: bool,
    },
    /// The worker has ended and returns its leases from this number on.
    Return {
        /// The number of the first lease that it returns.
        first_lease: u64,
    },
}

/// A reduction of vectors of a table to numbers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Reduce {
    /// The sum of the products of two vectors; of a vector with itself, the square of its norm.
    Dot(u32, u32),
    /// The sum of the absolute values of a vector.
    L1Norm(u32),
    /// The number of values of a vector that are not zero.
    NonzeroCount(u32),
    /// The dot products of the vectors of this list with each other: those of the first with itself and all others, then those of the second
    /// with itself and those after it, and so on.
    Gram(Vec<u32>),
}

impl Reduce {
    /// The count of numbers that it results in.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Dot(..) | Self::L1Norm(_) | Self::NonzeroCount(_) => 1,
            Self::Gram(vectors) => vectors.len() * (vectors.len() + 1) / 2,
        }
    }

    /// Whether it is no longer than a message may be.
    #[must_use]
    pub fn is_short(&self) -> bool {
        if let Self::Gram(vectors) = self { vectors.len() <= VECTOR_TERMS_MAX } else { true }
    }
}

/// A message of an owner to a worker.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Response {
    /// The rows that a `Get` asked for.
    Rows {
        /// The worker's number for it.
        request: u64,
        /// How far the slowest worker has come.
        clock: WorkerClock,
        /// For each chunk of these rows, in order: the last sequence number of the worker that the chunk includes.
        applied: Vec<u64>,
        /// Requested rows that are zero.
        zero: RowSet,
        /// The other rows, shape (rows, width), one row after the other.
        values: Vec<f32>,
    },
    /// The numbers that a `Reduce` asked for.
    Reduced {
        /// The worker's number for it.
        request: u64,
        /// How far the slowest worker has come.
        clock: WorkerClock,
        /// The last sequence number of the worker that the chunk includes.
        applied: u64,
        /// The result.
        values: Vec<f64>,
    },
    /// All changes up to this number that this owner received in this view are at all replicas.
    Acknowledged {
        /// The sequence number.
        up_to: u64,
    },
    /// All changes of a worker that is gone, up to this number, that this owner received from this member in this view are at all replicas.
    ReplayAcknowledged {
        /// The worker that has made the changes.
        worker: WorkerId,
        /// The sequence number.
        up_to: u64,
    },
    /// A lease. It is empty if there are no samples at present.
    Leased {
        /// The worker's number for the lease.
        lease_number: u64,
        /// The samples.
        lease: SampleLease,
        /// Whether this worker has completed the same samples in the epoch before.
        is_kept: bool,
        /// Once no sample is left to compute, and all are done: how many were trained in the run.
        trained: Option<u64>,
    },
    /// Another worker has completed a copy of this lease: the worker need not compute it.
    Superseded {
        /// The worker's number for the lease.
        lease_number: u64,
    },
}

/// Samples that one worker computes, unless it is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SampleLease {
    /// The epoch whose permutation the positions refer to.
    pub epoch: u64,
    /// The positions, disjoint.
    pub spans: Vec<Span>,
}

/// What an owner tells a replica of its chunks.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct ReplicaUpdate {
    /// The number of this update among those to the same replica in this view, from 1.
    pub number: u64,
    /// Chunks, or parts of them.
    pub chunks: Vec<TableChunk>,
}

/// Rows of a chunk with all of their state, for another member to store.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct TableChunk {
    /// The chunk's index.
    pub chunk: u32,
    /// Whether this is the whole chunk and replaces what the receiver holds of it.
    pub is_whole: bool,
    /// The rows: values and optimizer moments, shape (rows, stride).
    pub rows: Rows,
    /// By row: the number of updates applied to it.
    pub updates: Vec<u32>,
    /// By clock: sums that were added to these rows in it and are applied once all workers have completed it. Empty in tables that
    /// apply additions immediately.
    pub pending: Vec<(u64, Rows)>,
    /// The last sequence number of each worker that the chunk includes; only of some workers if this is not the whole chunk. Zero: the
    /// worker is gone, and its number is forgotten.
    pub applied: Vec<(WorkerId, u64)>,
    /// The keys of the changes that the chunk includes. `None` if they have not changed.
    pub used_keys: Option<UsedKeys>,
    /// The lease table, if it is stored with this chunk and has changed. If this is not the whole chunk, only the workers whose leases
    /// have changed are in it.
    pub lease_table: Option<LeaseTable>,
}

/// Which worker computes which samples. It is stored with the first chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct LeaseTable {
    /// Samples that have been leased at least once.
    pub cursor: DataCursor,
    /// Leases that are granted next: those of departed workers that were not done, and portions of an epoch that workers may keep.
    pub returned: Vec<SampleLease>,
    /// Leases that are not done, sorted by worker.
    pub outstanding: Vec<WorkerLeases>,
}

/// The leases of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WorkerLeases {
    /// The worker.
    pub worker: WorkerId,
    /// The last lease that it was granted.
    pub last: LastLease,
    /// Leases that are not done, with the worker's numbers for them.
    pub leases: Vec<(u64, SampleLease)>,
    /// Where the portions begin that no worker has completed after it, ascending. Empty unless workers keep portions.
    pub kept: Vec<u64>,
}

/// The last lease that a worker was granted. Variants are in the order in which a worker goes through them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum LastLease {
    /// The worker was granted none.
    #[default]
    None,
    /// The worker's number for it, from 1.
    Number(u64),
    /// The worker has ended, and is granted no more.
    Ended,
}

impl Rows {
    /// An estimate of the memory that the rows take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.indices.bytes() + size_of_val(&self.values[..])
    }
}

impl WorkerClock {
    fn is_valid(self) -> bool {
        match self {
            Self::At(clock) => clock <= STEPS_MAX,
            Self::Ended => true,
        }
    }
}

impl fmt::Display for WorkerClock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(clock) => write!(out, "{clock}"),
            Self::Ended => out.write_str("the end"),
        }
    }
}

impl LastLease {
    fn is_valid(self) -> bool {
        match self {
            Self::Number(number) => (1..=STEPS_MAX).contains(&number),
            Self::None | Self::Ended => true,
        }
    }
}

impl TableMessage {
    /// Whether the message satisfies the rules that need no context.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Request(request) => request.is_valid(),
            Self::Response(Response::Rows { request, clock, applied, zero, .. }) => {
                *request <= STEPS_MAX
                    && clock.is_valid()
                    && applied.len() <= CHUNKS_MAX
                    && applied.iter().all(|last| *last <= STEPS_MAX)
                    && zero.is_valid()
            }
            Self::Response(Response::Reduced { request, clock, applied, .. }) => {
                *request <= STEPS_MAX && clock.is_valid() && *applied <= STEPS_MAX
            }
            Self::Response(Response::Superseded { lease_number }) => *lease_number <= STEPS_MAX,
            Self::Response(Response::Acknowledged { up_to } | Response::ReplayAcknowledged { up_to, .. }) => {
                *up_to <= STEPS_MAX
            }
            Self::Response(Response::Leased { lease_number, lease, .. }) => {
                *lease_number <= STEPS_MAX && lease.is_valid()
            }
            Self::Handover(chunk) => chunk.is_valid(),
            Self::ReplicaUpdate(update) => {
                (1..=STEPS_MAX).contains(&update.number) && update.chunks.iter().all(TableChunk::is_valid)
            }
            Self::ReplicaAck(number) => *number <= STEPS_MAX,
            Self::Replicated(chunks) => chunks.is_valid(),
            Self::Journal(message) => message.is_valid(),
            Self::Cut(_) => true,
        }
    }
}

impl Request {
    fn is_valid(&self) -> bool {
        match self {
            Self::NewWorker => true,
            Self::Get { request, min_clock, rows, .. } => {
                *request <= STEPS_MAX && min_clock.is_valid() && rows.is_valid()
            }
            Self::Change(change) | Self::Replay { change, .. } => change.is_valid(),
            Self::Reduce { request, min_clock, reduce, .. } => {
                *request <= STEPS_MAX && min_clock.is_valid() && reduce.is_short()
            }
            Self::Tick { clock } => clock.is_valid(),
            Self::Lease { lease_number, .. } => (1..=STEPS_MAX).contains(lease_number),
            Self::Return { first_lease } => *first_lease <= STEPS_MAX,
        }
    }

    /// The change of a request that changes a table; `None` for other requests.
    #[must_use]
    pub fn change(&self) -> Option<&TableChange> {
        match self {
            Self::Change(change) | Self::Replay { change, .. } => Some(change),
            _ => None,
        }
    }

    /// How far every worker must have come before the owner answers; `None` if the request does not wait for a clock.
    #[must_use]
    pub fn min_clock(&self) -> Option<WorkerClock> {
        match self {
            Self::Get { min_clock, .. } | Self::Reduce { min_clock, .. } => Some(*min_clock),
            _ => None,
        }
    }

    /// An estimate of the memory that the request takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rows = match self {
            Self::Get { rows, .. } => rows.bytes(),
            Self::Change(change) | Self::Replay { change, .. } => change.bytes(),
            _ => 0,
        };
        size_of::<Self>() + rows
    }
}

impl SampleLease {
    /// The number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans.iter().map(Span::len).sum()
    }

    /// Whether the lease has no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The first position of the lease, by which it is told apart from the other leases of its epoch; 0 if the lease has no samples.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.spans.first().map_or(0, |span| span.start)
    }

    fn is_valid(&self) -> bool {
        let is_span = |span: &Span| span.start < span.end && span.end <= u64::from(u32::MAX);
        self.epoch <= STEPS_MAX
            && self.spans.len() <= BATCH_SPANS_MAX
            && self.spans.iter().all(is_span)
            && are_disjoint(&self.spans)
    }
}

impl TableChunk {
    /// Whether a member can have this state. Whether it fits the tables of a run is not known here.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let are_valid = |rows: &Rows| rows.indices.is_valid();
        (self.chunk as usize) < CHUNKS_MAX
            && are_valid(&self.rows)
            && self.pending.len() <= PENDING_CLOCKS_MAX
            && self.pending.iter().all(|(clock, rows)| *clock <= STEPS_MAX && are_valid(rows))
            && self.pending.is_sorted_by(|(one, _), (next, _)| one < next)
            && self.applied.len() <= 2 * MEMBERS_MAX
            && self.applied.iter().all(|(_, last)| *last <= STEPS_MAX)
            && self.used_keys.as_ref().is_none_or(UsedKeys::is_valid)
            && self.lease_table.as_ref().is_none_or(LeaseTable::is_valid)
    }
}

impl LeaseTable {
    fn is_valid(&self) -> bool {
        let are_valid = |held: &WorkerLeases| {
            held.last.is_valid()
                && held.leases.len() <= LEASES_MAX
                && held.leases.iter().all(|(number, lease)| *number <= STEPS_MAX && lease.is_valid())
                && held.kept.len() <= KEPT_PORTIONS_MAX
                && held.kept.is_sorted_by(|one, next| one < next)
        };
        self.cursor.is_valid()
            && self.returned.len() <= 2 * MEMBERS_MAX * LEASES_MAX
            && self.returned.iter().all(SampleLease::is_valid)
            && self.outstanding.len() <= 2 * MEMBERS_MAX
            && self.outstanding.iter().all(are_valid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::row_set::Run;
    use super::*;
    use crate::limits::{TABLE_MESSAGE_ROWS_MAX, TABLE_ROWS_MAX};
    use crate::wire::{decode_table_message, encode_table_message};

    fn decoded(message: &TableMessage) -> Option<TableMessage> {
        let mut stream = Vec::new();
        encode_table_message(message, &mut stream);
        let (length, bytes) = stream.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, bytes.len());
        decode_table_message(bytes).ok()
    }

    #[test]
    fn neighbouring_rows_are_one_run() {
        let indices: RowSet = [0, 1, 2, 7, 8, 20].into_iter().collect();
        assert_eq!(indices.ranges().collect::<Vec<_>>(), [0..3, 7..9, 20..21]);
        assert_eq!((indices.len(), indices.bounds()), (6, Some((0, 20))));
        assert_eq!(RowSet::range(4..9), (4..9).collect());
        assert_eq!((RowSet::range(4..4), RowSet::default().bounds()), (RowSet::default(), None));
        assert_eq!([0..3, 3..4, 5..5, 6..9].into_iter().collect::<RowSet>().ranges().count(), 2);
    }

    /// Row sets that would take the receiver more memory than the message has, or that are not in their one form.
    #[test]
    fn row_sets_in_another_form_are_refused() {
        let get = |runs: &[(u64, u32)]| {
            let runs = runs.iter().map(|(skip, count)| Run { skip: *skip, count: *count }).collect();
            TableMessage::Request(Request::Get {
                request: 1,
                min_clock: WorkerClock::At(0),
                rows: RowSet { runs },
            })
        };
        let message = get(&[(3, 2), (1, 1)]);
        assert_eq!(decoded(&message), Some(message));
        let most = TABLE_MESSAGE_ROWS_MAX as u32;
        for runs in [
            &[(3, 2), (0, 1)][..],
            &[(3, 0)],
            &[(0, most + 1)],
            &[(0, most), (1, 1)],
            &[(TABLE_ROWS_MAX, 1)],
            &[(u64::MAX, 1), (u64::MAX, 1)],
        ] {
            assert_eq!(decoded(&get(runs)), None, "{runs:?}");
        }
        assert!(decoded(&get(&[(0, most)])).is_some() && decoded(&get(&[(TABLE_ROWS_MAX - 1, 1)])).is_some());
    }

    proptest! {
        #[test]
        fn row_sets_hold_the_rows_that_they_were_made_of(rows in proptest::collection::btree_set(0_u64..300, 0..80)) {
            let indices: RowSet = rows.iter().copied().collect();
            prop_assert_eq!(indices.iter().collect::<Vec<_>>(), rows.into_iter().collect::<Vec<_>>());
            let message = TableMessage::Request(Request::Get { request: 1, min_clock: WorkerClock::At(2), rows: indices });
            prop_assert_eq!(decoded(&message), Some(message));
        }

        #[test]
        fn subtracting_a_row_set_leaves_the_rest(
            rows in proptest::collection::btree_set(0_u64..40, 0..40),
            others in proptest::collection::btree_set(0_u64..40, 0..10),
        ) {
            let [all, some]: [RowSet; 2] = [&rows, &others].map(|rows| rows.iter().copied().collect());
            let rest = others.is_subset(&rows).then(|| rows.difference(&others).copied().collect());
            prop_assert_eq!(all.without(&some), rest);
        }

        #[test]
        fn any_bytes_are_a_table_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_table_message(&bytes);
        }
    }
}
