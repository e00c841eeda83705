//! Data: from a file's bytes to samples that a model trains on.
//!
//! ```text
//! bytes ──unpack──> CSV    ──Columns────> Table (numbers, label texts) ──Target, Standardization──> Dataset (f32)
//!                   IDX    ──Numbered──> Table
//!                   LIBSVM ──Numbered──> SparseTable ──every 0 written out──> Table
//! ```
//! # Not here
//! Reading from disk: the caller passes the bytes of a file, so that a simulated peer and a real one run the same code.

mod cells;
pub mod columns;
pub mod dataset;
pub mod dense_table;
pub mod embedded;
pub mod error;
pub mod format;
pub mod idx;
pub mod label_texts;
pub mod labels;
pub mod libsvm;
pub mod limits;
pub mod numbered;
pub mod sparse;
pub mod standardize;
