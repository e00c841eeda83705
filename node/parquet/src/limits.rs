//! Bounds: how much of a file is in memory at once, and how much may be written.

/// The most bytes of a file's footer, which describes its columns and row groups.
pub const METADATA_BYTES_MAX: u64 = 32 << 20;

/// The most bytes that the pages of all columns may take at once, packed and unpacked. A page has a megabyte, usually.
pub const PAGES_BYTES_MAX: u64 = 1 << 30;

/// The most bytes that are written: a file of some kilobytes can claim any number of equal rows.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 30;

/// The most bytes of the header of a page. Only statistics make it longer than a hundred.
pub(crate) const PAGE_HEADER_BYTES_MAX: usize = 16 << 20;

/// The most elements of a schema: columns, and groups of them.
pub(crate) const SCHEMA_ELEMENTS_MAX: usize = 1 << 17;

/// How deep the groups of a schema may be nested.
pub(crate) const SCHEMA_DEPTH_MAX: usize = 64;

/// How deep the structs of a footer or of a page's header may be nested.
pub(crate) const THRIFT_DEPTH_MAX: usize = 32;

/// The most row groups of a file.
pub(crate) const ROW_GROUPS_MAX: usize = 1 << 17;

/// The most column chunks of a file: columns times row groups.
pub(crate) const COLUMN_CHUNKS_MAX: usize = 1 << 20;

/// The most values of a dictionary: each takes 32 bytes, besides its text.
pub(crate) const DICTIONARY_VALUES_MAX: u32 = 1 << 22;

/// The most values of a page whose lengths are unpacked before its first value is read.
pub(crate) const DELTA_VALUES_MAX: u64 = 1 << 24;

/// The most rows that are read at once.
pub(crate) const BATCH_ROWS_MAX: usize = 1024;

/// About how many values are read at once, over all columns.
pub(crate) const BATCH_VALUES: usize = 1 << 18;

/// About how many bytes are read at once, over all columns.
pub(crate) const BATCH_BYTES: u64 = 64 << 20;

/// How many names a message lists.
pub(crate) const NAMED_MAX: usize = 10;

const _: () = assert!(BATCH_ROWS_MAX <= BATCH_VALUES && BATCH_BYTES < PAGES_BYTES_MAX);
