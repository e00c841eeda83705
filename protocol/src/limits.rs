//! The bounds on what a run and its messages may hold, in one place, with asserts that relate them.
//!
//! What a peer sends is input: it cannot make another peer allocate, queue or wait beyond these bounds.

use std::time::Duration;

/// Bytes of a control frame's header. The largest holds a view record or a specification.
pub const CONTROL_HEADER_BYTES_MAX: usize = 5 << 19;
/// Bytes of the record that a member keeps on its disk.
pub const DURABLE_BYTES_MAX: usize = 2 * CONTROL_HEADER_BYTES_MAX;
/// Bytes of a segment's or data piece's header, which has a fixed set of small fields.
pub const SMALL_HEADER_BYTES_MAX: usize = 128;
/// Payload bytes of one segment.
pub const SEGMENT_BYTES_MAX: usize = 1 << 20;
/// Chunks in one chunk batch.
pub const CHUNK_BATCH_CHUNKS_MAX: usize = 1024;
/// Bytes of a chunk batch's header: its chunks, ten bytes each, and a few digests.
pub const CHUNK_BATCH_HEADER_BYTES_MAX: usize = 16 << 10;
/// Payload bytes beyond which no further chunk is put into a chunk batch.
pub const CHUNK_BATCH_BYTES: usize = 128 << 10;
/// Payload bytes of a chunk batch: one chunk of the largest model, with its optimizer state.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Payload bytes of one piece of a data file.
pub const DATA_PIECE_BYTES_MAX: usize = 1 << 15;
/// Pieces of a data file that a joiner has asked for and not yet received. It begins with an eighth of them.
pub const DATA_PIECES_IN_FLIGHT_MAX: usize = 32;
/// The largest data file that peers keep in memory, for joiners that lack it. Larger ones stay on disk.
pub const KEPT_DATA_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a run's specification.
pub const SPECIFICATION_BYTES_MAX: usize = 1 << 19;
/// Members of a view.
pub const MEMBERS_MAX: usize = 1024;
/// Members up to which each exchanges control messages with every other.
pub const SMALL_VIEW_MEMBERS_MAX: usize = 32;
/// Addresses that a peer announces.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of one address in text form.
pub const ADDRESS_BYTES_MAX: usize = 128;
/// Parents of a view: its predecessor, and after a merge the view of the other branch.
pub const PARENTS_MAX: usize = 2;
/// Expelled peers that a view remembers.
pub const EXPELLED_MAX: usize = 64;
/// Quarantined members, as many as a view remembers.
pub const QUARANTINES_MAX: usize = 64;
/// A member that is quarantined this many times is expelled.
pub const QUARANTINE_TIMES_MAX: usize = 3;
/// Ancestors that a view names, in a run that can fork.
pub const ANCESTORS_MAX: usize = 64;
/// [`ANCESTORS_MAX`] and the view itself.
pub const HISTORY_MAX: usize = ANCESTORS_MAX + 1;
/// Earlier branches of the run that a view names.
pub const BRANCHES_MAX: usize = 64;
/// Lost members that a view names because they may train on another branch.
pub const PARTITIONED_MAX: usize = 64;
/// Ranges of an epoch that departed members returned untrained.
pub const RETURNED_SPANS_MAX: usize = 4096;
/// Ranges of one batch: it may consist of returned ranges, and each member's part is cut out of them.
pub const BATCH_SPANS_MAX: usize = MEMBERS_MAX + RETURNED_SPANS_MAX;
/// Local steps of a round.
pub const LOCAL_STEPS_MAX: u64 = 1_000_000;
/// Steps of a run, epochs, and numbers of views: far beyond any run, and far from where adding one overflows.
pub const STEPS_MAX: u64 = 1 << 48;
/// Samples of a run, over all its epochs: far from where adding one overflows.
pub const SAMPLES_MAX: u64 = 1 << 62;
/// Attempts to agree on the successor of one view: far more than a run makes, and far from an overflow.
pub const ATTEMPTS_MAX: u32 = 1 << 30;
/// Members that a `Welcome` names, so that a joiner can ask another one if the first one leaves.
pub const CONTACTS_MAX: usize = 32;
/// Bytes of a reason that one peer gives another as text.
pub const REASON_BYTES_MAX: usize = 512;
/// Bytes of chunks that one peer requests of another at a time, apart from the last of these chunks. Such chunks need no credit, and wait in
/// the memory of the one that sends them. It keeps a link across the world busy.
pub const REQUESTED_BYTES_MAX: usize = 1 << 20;

/// Chunks that the parameters are cut into.
pub const CHUNKS_MAX: usize = 4096;
/// A chunk has at least this many elements, unless the whole vector has fewer.
pub const CHUNK_ELEMENTS_MIN: usize = 16;
/// Rows of all tables of a run.
pub const TABLE_ROWS_MAX: u64 = 1 << 40;
/// Bytes of a table message: a few chunks with all of their state.
pub const TABLE_MESSAGE_BYTES_MAX: usize = 4 * CHUNK_BYTES_MAX;
/// Rows that one table message names.
pub const TABLE_MESSAGE_ROWS_MAX: usize = 1 << 24;
/// Bytes of a chunk of a table, with all of its state.
pub const TABLE_CHUNK_BYTES_MAX: usize = TABLE_MESSAGE_BYTES_MAX / 2;
/// Bytes of a replica update beyond which no further chunk is put into it.
pub const REPLICA_UPDATE_BYTES: usize = 1 << 20;
/// Values of the rows that one read asks for, unless one row has more. A larger read is several, so that one is on its way while another
/// is read or stored.
pub const GET_VALUES_MAX: usize = REPLICA_UPDATE_BYTES / size_of::<f32>();
/// Requests of one worker that wait at one owner: for a clock, for a chunk, or until the worker has received other responses.
pub const WAITING_REQUESTS_MAX: usize = 1 << 14;
/// Bytes of all requests of one worker that wait at one owner.
pub const WAITING_REQUEST_BYTES_MAX: usize = 1 << 30;
/// Unacknowledged bytes beyond which a worker starts no clock.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = WAITING_REQUEST_BYTES_MAX / 4;
/// Bytes of unacknowledged transactions beyond which a worker gives no further transaction to the members that keep its journal.
pub const JOURNAL_BYTES_MAX: usize = WAITING_REQUEST_BYTES_MAX / 2;
/// Clocks whose additions an owner stores until it can apply them.
pub const PENDING_CLOCKS_MAX: usize = PER_CLOCK_STALENESS_MAX as usize + 2;
/// Clocks that the fastest worker may be ahead of the slowest, in tables that apply the additions of a clock together.
pub const PER_CLOCK_STALENESS_MAX: u64 = 16;
/// Linear combinations of vectors of a table in one operation.
pub const VECTOR_ASSIGNMENTS_MAX: usize = 256;
/// Vectors in one linear combination, or in one matrix of dot products.
pub const VECTOR_TERMS_MAX: usize = 256;
/// Changes of one round that a chunk of a table carries out once, though several workers may send them.
pub const ROUND_KEYS_MAX: usize = 1 << 16;
/// Portions of an epoch that workers keep.
pub const KEPT_PORTIONS_MAX: usize = 256;
/// Leases of one worker that are not done.
pub const LEASES_MAX: usize = 64;
/// Members that store the optimizer state of one chunk, the owner included, if `replicas` is `all`.
pub const REPLICAS_MAX: usize = 32;
/// The same if `replicas` is a number.
pub const REPLICAS_NUMBER_MAX: usize = 8;
/// Named tensors of a manifest.
pub const TENSORS_MAX: usize = 4096;
/// The largest capacity of a member.
pub const CAPACITY_MAX: u8 = 16;
/// The capacity of a peer whose user has declared none, until the lines of all members are known; later, that of a line of the median rate.
pub const CAPACITY_DEFAULT: u8 = 4;

/// Elements of a segment by default: 128 KiB.
pub const SEGMENT_ELEMENTS: usize = 32 * 1024;
/// Segments in flight on one link at first: those that start at the sender, and one more that only relays may use.
pub const LINK_SEGMENTS: u32 = 4;
/// Segments in flight on one link at most: a receiver allows more than [`LINK_SEGMENTS`] if it takes more to fill the line.
pub const LINK_SEGMENTS_MAX: u32 = 64;
/// Bytes of segments that a peer allows on all its links together, beyond [`LINK_SEGMENTS`] on each; and how many bytes it asks all others
/// together to allow.
pub const LONG_LINES_BYTES_MAX: usize = 32 << 20;
/// Bytes of segments, sent and received, that a member's links may have in flight at once, besides those of long lines. If the direct
/// topology could take more, the ring is used, unless the run's settings need the direct topology.
pub const ROUND_BYTES_MAX: usize = 32 << 20;
/// Bytes that the cost model assumes a connection carries while one frame is in flight.
pub const HOP_BYTES: usize = 64 << 10;
/// Idle segment buffers that a peer keeps for reuse.
pub const SEGMENTS_KEPT_MAX: usize = 64;
/// The events of committed steps that a peer keeps until its user takes them.
pub const STEP_EVENTS_KEPT_MAX: usize = 100_000;
/// Violations by one peer before the others expel it from the run.
pub const REJECTS_MAX: u32 = 64;

/// Checkpoints of a run that a peer keeps and reports.
pub const CHECKPOINTS_MAX: usize = 4;

/// How long a member may say that its program is busy. It may say so again before that time is over.
pub const BUSY_MAX: Duration = Duration::from_secs(3600);
/// Pause before an unanswered request to join is sent again.
pub const JOIN_RETRY: Duration = Duration::from_secs(1);

const _: () = assert!(SPECIFICATION_BYTES_MAX < CONTROL_HEADER_BYTES_MAX);
/// Bytes of a rank or a chunk's index at most. The next constant: bytes of a range of positions.
const INDEX_BYTES_MAX: usize = 5;
const SPAN_BYTES_MAX: usize = 18;
/// Bytes of the largest view record.
const VIEW_BYTES_MAX: usize = 1024
    + MEMBERS_MAX * (64 + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 3))
    // Speeds and lines.
    + MEMBERS_MAX * 3 * INDEX_BYTES_MAX
    // Newcomers, and the assignment of a batch.
    + MEMBERS_MAX * (2 * INDEX_BYTES_MAX)
    + BATCH_SPANS_MAX * SPAN_BYTES_MAX
    // Donors.
    + CHUNKS_MAX * 3 * INDEX_BYTES_MAX
    // Moves.
    + CHUNKS_MAX * (2 + REPLICAS_MAX) * INDEX_BYTES_MAX
    + RETURNED_SPANS_MAX * SPAN_BYTES_MAX
    + EXPELLED_MAX * 65
    + QUARANTINES_MAX * 66
    + ANCESTORS_MAX * 41
    + PARTITIONED_MAX * (33 + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 3))
    // The merge.
    + RETURNED_SPANS_MAX * SPAN_BYTES_MAX
    + HISTORY_MAX * 41
    + BRANCHES_MAX * 24
    + 192;
/// Bytes of the largest change: beyond the contents of a view, removed members and new capacities.
const CHANGE_BYTES_MAX: usize = VIEW_BYTES_MAX + MEMBERS_MAX * (2 * INDEX_BYTES_MAX + 1);
/// Bytes of the description of a checkpoint: a few numbers and digests, a data cursor, and a set of chunks.
const SAVED_BYTES_MAX: usize = 128 + RETURNED_SPANS_MAX * SPAN_BYTES_MAX + CHUNKS_MAX / 8;
/// Bytes of the largest report: four sets of chunks, the lost members, complaints, awaited members, and the sender's checkpoints.
const REPORT_BYTES_MAX: usize = 256
    + 4 * (CHUNKS_MAX / 8)
    + MEMBERS_MAX * INDEX_BYTES_MAX
    + MEMBERS_MAX * (INDEX_BYTES_MAX + 1)
    + MEMBERS_MAX * INDEX_BYTES_MAX
    + 64
    + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 3)
    + CHECKPOINTS_MAX * SAVED_BYTES_MAX;
// The largest frame is a promise with the change that its sender has accepted.
const _: () = assert!(CHANGE_BYTES_MAX + REPORT_BYTES_MAX <= CONTROL_HEADER_BYTES_MAX);
// The durable record holds a view, an accepted change of it, and the run's specification.
const _: () = assert!(VIEW_BYTES_MAX + CHANGE_BYTES_MAX + SPECIFICATION_BYTES_MAX + 128 <= DURABLE_BYTES_MAX);
const _: () = assert!(REPLICAS_NUMBER_MAX <= REPLICAS_MAX, "a record names all holders");
const _: () = assert!(SEGMENT_ELEMENTS * 4 <= SEGMENT_BYTES_MAX);
const _: () =
    assert!(SEGMENTS_KEPT_MAX * SEGMENT_ELEMENTS * 4 <= 32 << 20, "a peer's buffers stay under 32 MiB");
const _: () = assert!(
    CHUNK_BATCH_CHUNKS_MAX * 10 + 128 <= CHUNK_BATCH_HEADER_BYTES_MAX && CHUNK_BATCH_BYTES <= CHUNK_BYTES_MAX
);
const _: () = assert!(
    REPLICA_UPDATE_BYTES + TABLE_CHUNK_BYTES_MAX <= TABLE_MESSAGE_BYTES_MAX,
    "one chunk of any table more fits"
);
const _: () =
    assert!(GET_VALUES_MAX * (4 + 6) <= TABLE_MESSAGE_BYTES_MAX && GET_VALUES_MAX <= TABLE_MESSAGE_ROWS_MAX);
const _: () = assert!(
    UNACKNOWLEDGED_BYTES_MAX + TABLE_MESSAGE_BYTES_MAX <= WAITING_REQUEST_BYTES_MAX,
    "there is room for one more large message"
);
const _: () = assert!(JOURNAL_BYTES_MAX <= WAITING_REQUEST_BYTES_MAX, "keepers refuse no correct worker");
const _: () = assert!(LINK_SEGMENTS >= 2, "one segment is reserved for relays");
const _: () = assert!(0 < CAPACITY_DEFAULT && CAPACITY_DEFAULT <= CAPACITY_MAX);
