//! Why Parquet files cannot be converted.

use crate::limits::{METADATA_BYTES_MAX, NAMED_MAX, OUTPUT_BYTES_MAX, PAGES_BYTES_MAX};
use crate::schema::LeftOut;

/// Why Parquet files cannot be converted. Each message says what to do. What has been written by then is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The operating system does not let us read a file, or it is not a file.
    #[error("{path} cannot be read: {reason}")]
    Read {
        /// The file.
        path: String,
        /// What the operating system says.
        reason: String,
    },
    /// A file has no bytes.
    #[error("{path} is empty; copy the file again")]
    Empty {
        /// The file.
        path: String,
    },
    /// A file does not begin as Parquet files do.
    #[error(
        "{path} is not a Parquet file; give a file in that format, or one of CSV, LIBSVM or IDX under another name"
    )]
    NotParquet {
        /// The file.
        path: String,
    },
    /// A file begins as Parquet files do, and does not end like one.
    #[error("the end of {path} is missing; copy the file again")]
    CutOff {
        /// The file.
        path: String,
    },
    /// A file, or some of its columns, can be read only with a key.
    #[error("{path} is encrypted; write it again without encryption")]
    Encrypted {
        /// The file.
        path: String,
    },
    /// The description of the columns, at the end of a file, makes no sense.
    #[error("the footer of {path} is damaged ({reason}); copy the file again")]
    Footer {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The description of the columns is too long.
    #[error(
        "the footer of {path} has more than {} MiB; write the file again with fewer row groups or columns",
        METADATA_BYTES_MAX >> 20
    )]
    LongFooter {
        /// The file.
        path: String,
    },
    /// A column is compressed in a way that we cannot undo.
    #[error(
        "the column \"{column}\" of {path} is compressed with {codec}; write the file again with zstd, snappy, gzip or lz4"
    )]
    Compression {
        /// The file.
        path: String,
        /// The column.
        column: String,
        /// The name of the compression.
        codec: String,
    },
    /// A page of a column makes no sense.
    #[error("the column \"{column}\" of {path} is damaged ({reason}); copy the file again")]
    Page {
        /// The file.
        path: String,
        /// The column.
        column: String,
        /// What is wrong.
        reason: String,
    },
    /// The pages that must be in memory at once take too much of it.
    #[error(
        "the pages of {path} take more than {} MiB of memory at the column \"{column}\"; write the file again with smaller pages",
        PAGES_BYTES_MAX >> 20
    )]
    LargePages {
        /// The file.
        path: String,
        /// The column at which it is too much.
        column: String,
    },
    /// Two files have different columns.
    #[error(
        "{first} and {other} have different columns: {difference}; give files of one table, or move one of them away"
    )]
    OtherSchema {
        /// A file.
        first: String,
        /// A file with other columns.
        other: String,
        /// The first column that differs, and how.
        difference: String,
    },
    /// There is not a single row.
    #[error("{path} has no rows; give a file with data")]
    NoRows {
        /// The file, or the first of several.
        path: String,
    },
    /// No column is of a type that fits into a CSV file.
    #[error(
        "{path} has no column that can be used ({}); write it again with plain columns",
        reasons(left_out)
    )]
    NoColumns {
        /// The file, or the first of several.
        path: String,
        /// What each column holds.
        left_out: Vec<LeftOut>,
    },
    /// There is no text column of this name.
    #[error("{path} has no column of texts called \"{column}\"; it has {}", names(texts))]
    NoTextColumn {
        /// The file, or the first of several.
        path: String,
        /// The name.
        column: String,
        /// The columns of texts.
        texts: Vec<String>,
    },
    /// The column has no text in any row.
    #[error("the column \"{column}\" of {path} has no texts; give another one")]
    NoTexts {
        /// The file, or the first of several.
        path: String,
        /// The column.
        column: String,
    },
    /// More would be written than is allowed.
    #[error("{path} becomes more than {} GiB; give a part of it", OUTPUT_BYTES_MAX >> 30)]
    TooLong {
        /// The file, or the first of several.
        path: String,
    },
    /// The new file cannot be written.
    #[error("the new file cannot be written: {reason}")]
    Write {
        /// What the operating system says, such as that the disk is full.
        reason: String,
    },
}

fn reasons(left_out: &[LeftOut]) -> String {
    let all: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    shortened(&all)
}

fn names(texts: &[String]) -> String {
    match texts {
        [] => "no columns of texts".to_owned(),
        [only] => format!("the column \"{only}\""),
        several => {
            let quoted: Vec<String> = several.iter().map(|name| format!("\"{name}\"")).collect();
            format!("the columns {}", shortened(&quoted))
        }
    }
}

/// The first few, and how many more there are.
fn shortened(all: &[String]) -> String {
    let shown = &all[..all.len().min(NAMED_MAX)];
    let more = all.len() - shown.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_list_a_few_names() {
        let some: Vec<String> = (0..12).map(|index| format!("c{index}")).collect();
        assert!(names(&some).ends_with("\"c9\" and 2 more"), "{}", names(&some));
        assert_eq!(names(&some[..1]), "the column \"c0\"");
    }
}
