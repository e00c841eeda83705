//! Limits of data files: how large a file may be that a peer reads, since a specification of another peer may name any file.

/// The most rows of a file: rows are counted in 32 bits.
pub const ROWS_MAX: usize = u32::MAX as usize;

/// The most columns of a CSV file.
pub const COLUMNS_MAX: usize = 1 << 16;

/// The most features of a sample in a LIBSVM or IDX file: a model has at least one parameter for each.
pub const FEATURES_MAX: usize = 1 << 24;

/// The most bytes that a gzipped file may unpack to.
pub const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// The most numbers of a table: 2 GiB as a table, and 1 GiB more as samples. A file may be far shorter than its table, because it is
/// packed, leaves out zeros or has one byte for each number.
pub const TABLE_VALUES_MAX: usize = 1 << 28;

/// The most entries of a sparse table, over all rows: 8 GiB.
pub const SPARSE_VALUES_MAX: usize = 1 << 30;

// A feature's index, and a value's place in a table, must be representable.
const _: () = assert!(FEATURES_MAX <= u32::MAX as usize && COLUMNS_MAX <= FEATURES_MAX);
