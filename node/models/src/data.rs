//! Data: from a file's bytes to samples that a model trains on.
//!
//! ```text
//! bytes ──unpack──> CSV    ──Columns────> Table (numbers, label texts) ──Target, Standardization──> Dataset (f32)
//!                   IDX    ──Numbered──> Table
//!                   LIBSVM ──Numbered──> SparseTable ──every 0 written out──> Table
//!                   CSV    ──Columns───> Ratings (users, items, values)
//!                   text, LDA-C ──DocumentsLayout──> Documents ──Vocabulary──> Corpus (words)
//!                   other  ──unsupported──> an error with the format's name
//! ```
//! # Not here
//! Files: the caller passes the bytes of one, or something that [reads](bytes::ReadAt) it, so that a simulated peer and a real one run the
//! same code.

pub mod bytes;
mod cells;
pub mod column_hints;
pub mod column_names;
pub mod columns;
pub mod corpus;
pub mod dataset;
pub mod dense_table;
pub mod dialect;
pub mod documents;
mod doubt;
pub mod embedded;
pub mod encoding;
pub mod error;
pub mod format;
pub mod ids;
pub mod idx;
pub mod inferred;
mod label_column;
pub mod label_texts;
pub mod labels;
pub mod libsvm;
pub mod limits;
pub mod matching;
pub mod notation;
pub mod numbered;
pub mod ratings;
mod sheet;
pub mod sparse;
pub mod standardize;
mod survey;
pub mod unsupported;
