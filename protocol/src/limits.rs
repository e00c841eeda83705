//! The bounds on what a run and its messages may hold, in one place, with asserts that relate them.
//!
//! What a peer sends is input; nothing it says makes another allocate, queue or wait beyond these.

use std::time::Duration;

/// Bytes of a control frame's header: the largest is a view record or a specification.
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
/// Payload bytes of one piece of a shipped data file.
pub const DATA_PIECE_BYTES_MAX: usize = 1 << 15;
/// Pieces of a data file that a joiner has asked for and not yet received.
pub const DATA_PIECES_IN_FLIGHT_MAX: usize = 4;
/// The largest data file that the swarm ships to joiners; larger ones are given by path.
pub const SHIPPED_DATA_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a run's specification.
pub const SPECIFICATION_BYTES_MAX: usize = 1 << 19;
/// Members of a view.
pub const MEMBERS_MAX: usize = 1024;
/// Addresses that a peer announces.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of one address in text form.
pub const ADDRESS_BYTES_MAX: usize = 128;
/// Views that a view can follow: its own lineage, and after a merge another.
pub const PARENTS_MAX: usize = 2;
/// Peers of which a run remembers that it has put them out.
pub const EXPELLED_MAX: usize = 64;
/// Views that a view says it comes from, where lineages can fork.
pub const ANCESTORS_MAX: usize = 64;
/// As [`ANCESTORS_MAX`], with the view itself.
pub const HISTORY_MAX: usize = ANCESTORS_MAX + 1;
/// Earlier branches of the run that a view names.
pub const BRANCHES_MAX: usize = 64;
/// Lost members that a view names, where they may have gone on as another lineage.
pub const PARTITIONED_MAX: usize = 64;
/// Ranges of an epoch that departed members gave back untrained.
pub const RETURNED_SPANS_MAX: usize = 4096;
/// Ranges in which one batch is dealt: it may be made of what was given back, and each member's part is cut out of it.
pub const BATCH_SPANS_MAX: usize = MEMBERS_MAX + RETURNED_SPANS_MAX;
/// Steps of a run, epochs, and numbers of views: far beyond any run, and far from where adding one overflows.
pub const STEPS_MAX: u64 = 1 << 48;
/// Samples of a run, over all its epochs: far from where adding one overflows.
pub const SAMPLES_MAX: u64 = 1 << 62;
/// Attempts to have the successor of one view chosen: nobody lives to make as many, and one more does not overflow.
pub const ATTEMPTS_MAX: u32 = 1 << 30;
/// Members that a joiner is told of, to ask if the first one goes.
pub const CONTACTS_MAX: usize = 32;
/// Bytes of a reason that one peer gives another in words.
pub const REASON_BYTES_MAX: usize = 512;

/// Chunks that the parameters are cut into.
pub const CHUNKS_MAX: usize = 4096;
/// A chunk has at least this many elements, unless the whole vector has fewer.
pub const CHUNK_ELEMENTS_MIN: usize = 16;
/// Rows of all tables of a run.
pub const TABLE_ROWS_MAX: u64 = 1 << 40;
/// Bytes of a word: a few chunks with all that belongs to them.
pub const TABLE_MESSAGE_BYTES_MAX: usize = 4 * CHUNK_BYTES_MAX;
/// Rows that one word names.
pub const TABLE_MESSAGE_ROWS_MAX: usize = 1 << 24;
/// Bytes of a chunk of a table, with all that belongs to it.
pub const TABLE_CHUNK_BYTES_MAX: usize = TABLE_MESSAGE_BYTES_MAX / 2;
/// Bytes of what a copy is told at once, beyond which no further chunk is put into it.
pub const REPLICA_UPDATE_BYTES: usize = 1 << 20;
/// Numbers of the rows that one question asks for.
pub const GET_VALUES_MAX: usize = CHUNK_BYTES_MAX / size_of::<f32>();
/// Questions of one worker to one owner that wait: for a clock, for a chunk, or until it has taken in other answers.
pub const WAITING_REQUESTS_MAX: usize = 1 << 14;
/// Bytes of all that a worker asks of an owner, or adds there, and that has to wait.
pub const WAITING_REQUEST_BYTES_MAX: usize = 1 << 30;
/// Bytes that a worker has added and does not know to be safe, beyond which it begins no clock.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = WAITING_REQUEST_BYTES_MAX / 4;
/// Clocks of which an owner keeps what it has still to apply.
pub const PENDING_CLOCKS_MAX: usize = PER_CLOCK_STALENESS_MAX as usize + 2;
/// How many clocks the fastest worker may be ahead of the slowest, where all that was added in a clock is applied together.
pub const PER_CLOCK_STALENESS_MAX: u64 = 16;
/// Batches that a worker has been dealt and is not done with.
pub const LEASES_MAX: usize = 64;
/// Members that keep the optimizer state of one chunk, the owner included, where all are to keep it.
pub const REPLICAS_MAX: usize = 32;
/// As many, where a number is given.
pub const REPLICAS_NUMBER_MAX: usize = 8;
/// Named tensors of a manifest.
pub const TENSORS_MAX: usize = 4096;
/// The largest capacity of a member.
pub const CAPACITY_MAX: u8 = 16;
/// The capacity of a peer that was not given one; a stronger machine says how many times as much it takes.
pub const CAPACITY_DEFAULT: u8 = 1;

/// Elements of a segment, where nothing else is asked for: 128 KiB.
pub const SEGMENT_ELEMENTS: usize = 32 * 1024;
/// Segments that may be in flight on one link: the sender's own, and one more that only relays may use.
pub const LINK_SEGMENTS: u32 = 4;
/// Bytes of segments, sent and received, that a member's links may have under way at once where it is free to choose: if sending to
/// all others could take more, it sends to its neighbour only. (A run that is fixed to the direct topology, by its settings or by
/// what needs it, takes what it takes.)
pub const ROUND_BYTES_MAX: usize = 32 << 20;
/// Bytes that a line is taken to carry while a frame is under way.
pub const HOP_BYTES: usize = 64 << 10;
/// Idle segment buffers that a peer keeps for reuse.
pub const SEGMENTS_KEPT_MAX: usize = 64;
/// Violations by one peer before the others put it out of the run.
pub const REJECTS_MAX: u32 = 64;

/// Checkpoints of a run that a peer keeps, and speaks of.
pub const CHECKPOINTS_MAX: usize = 4;

/// Pause before an unanswered request to join is sent again.
pub const JOIN_RETRY: Duration = Duration::from_secs(1);

const _: () = assert!(SPECIFICATION_BYTES_MAX < CONTROL_HEADER_BYTES_MAX);
/// Bytes of a rank or a chunk's index, and of a range of positions, at most.
const INDEX_BYTES_MAX: usize = 5;
const SPAN_BYTES_MAX: usize = 18;
/// Bytes of all that a view record can say.
const VIEW_BYTES_MAX: usize = 1024
    + MEMBERS_MAX * (64 + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 3))
    // Newcomers, and how a batch is dealt to each.
    + MEMBERS_MAX * (2 * INDEX_BYTES_MAX)
    + BATCH_SPANS_MAX * SPAN_BYTES_MAX
    // Donors.
    + CHUNKS_MAX * 3 * INDEX_BYTES_MAX
    // Moves.
    + CHUNKS_MAX * (2 + REPLICAS_MAX) * INDEX_BYTES_MAX
    + RETURNED_SPANS_MAX * SPAN_BYTES_MAX
    + EXPELLED_MAX * 65
    + ANCESTORS_MAX * 41
    + PARTITIONED_MAX * (33 + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 3))
    // What is merged.
    + RETURNED_SPANS_MAX * SPAN_BYTES_MAX
    + HISTORY_MAX * 41
    + BRANCHES_MAX * 24
    + 192;
/// Bytes of a change: besides what is in a view, who goes, and whose capacity is another one.
const CHANGE_BYTES_MAX: usize = VIEW_BYTES_MAX + MEMBERS_MAX * (2 * INDEX_BYTES_MAX + 1);
/// Bytes of what is said of a checkpoint: a few numbers and digests, a bookmark, and a set of chunks.
const SAVED_BYTES_MAX: usize = 128 + RETURNED_SPANS_MAX * SPAN_BYTES_MAX + CHUNKS_MAX / 8;
/// Bytes of a report: four sets of chunks, who is lost, and what the sender has saved.
const REPORT_BYTES_MAX: usize = 256
    + 4 * (CHUNKS_MAX / 8)
    + MEMBERS_MAX * INDEX_BYTES_MAX
    + 64
    + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 3)
    + CHECKPOINTS_MAX * SAVED_BYTES_MAX;
// The largest frame is a promise that brings what its sender has accepted.
const _: () = assert!(CHANGE_BYTES_MAX + REPORT_BYTES_MAX <= CONTROL_HEADER_BYTES_MAX);
// The durable record holds a view, a change of it that was accepted, and what the run is.
const _: () = assert!(VIEW_BYTES_MAX + CHANGE_BYTES_MAX + SPECIFICATION_BYTES_MAX + 128 <= DURABLE_BYTES_MAX);
const _: () = assert!(REPLICAS_NUMBER_MAX <= REPLICAS_MAX, "a record names them all");
const _: () = assert!(SEGMENT_ELEMENTS * 4 <= SEGMENT_BYTES_MAX);
const _: () =
    assert!(SEGMENTS_KEPT_MAX * SEGMENT_ELEMENTS * 4 <= 32 << 20, "a peer's buffers stay under 32 MiB");
const _: () = assert!(
    CHUNK_BATCH_CHUNKS_MAX * 10 + 128 <= CHUNK_BATCH_HEADER_BYTES_MAX && CHUNK_BATCH_BYTES <= CHUNK_BYTES_MAX
);
const _: () = assert!(
    REPLICA_UPDATE_BYTES + TABLE_CHUNK_BYTES_MAX <= TABLE_MESSAGE_BYTES_MAX,
    "and a chunk of any table"
);
const _: () =
    assert!(GET_VALUES_MAX * (4 + 6) <= TABLE_MESSAGE_BYTES_MAX && GET_VALUES_MAX <= TABLE_MESSAGE_ROWS_MAX);
const _: () = assert!(
    UNACKNOWLEDGED_BYTES_MAX + TABLE_MESSAGE_BYTES_MAX <= WAITING_REQUEST_BYTES_MAX,
    "there is room for one more large word"
);
const _: () = assert!(LINK_SEGMENTS >= 2, "relays need a place of their own");
const _: () = assert!(CAPACITY_DEFAULT <= CAPACITY_MAX);
