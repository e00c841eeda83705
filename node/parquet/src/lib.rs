//! Parquet files as data: a table becomes a CSV file, and a column of texts becomes one text.
//!
//! A run has one data file, in a format that every peer reads. Data sets of today are shipped as Parquet, often in several files (shards):
//!
//! ```text
//! shards/train-0.parquet              train.csv   names, then a line for each row
//! shards/train-1.parquet  -------->   train.txt   the texts of one column, with an empty line between two
//! ```
//! So a Parquet file is converted once, where it lies, and no other peer needs this crate. [`Table::open`] looks at the footers of the files;
//! [`Table::write_csv`] and [`Table::write_text`] then read the pages of the columns, a few rows at a time.
//!
//! # Invariants
//! - The same files give the same bytes.
//! - No input makes a function panic or takes unbounded memory. The library that decodes believes what a file says of its sizes; so each
//!   size is checked before the library sees it: `footer` checks the schema and the lists, `page_header` and `pages` each page, `delta` the
//!   values that repeat others, and `page_memory` adds up what all columns hold at once. The bounds are in `limits`.
//!
//! # Not here
//! Columns that hold lists, structs or maps, filters and statistics, and encrypted files.
#![forbid(unsafe_code)]

mod cells;
mod delta;
mod error;
mod footer;
mod limits;
mod number_text;
mod page_header;
mod page_memory;
mod page_source;
mod pages;
mod row_group;
mod schema;
mod table;
mod thrift;
mod time_text;

pub use error::TableError;
pub use limits::{METADATA_BYTES_MAX, OUTPUT_BYTES_MAX, PAGES_BYTES_MAX};
pub use schema::LeftOut;
pub use table::{Table, Texts};
