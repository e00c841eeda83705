//! The footer of a Parquet file: marks, length, and a description of columns and row groups, which is checked before it is decoded.
//!
//! ```text
//! PAR1 | pages of all row groups | footer | its length, 4 bytes | PAR1
//! ```

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::panic::catch_unwind;
use std::path::Path;

use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};

use crate::error::TableError;
use crate::limits::{
    COLUMN_CHUNKS_MAX, METADATA_BYTES_MAX, ROW_GROUPS_MAX, SCHEMA_DEPTH_MAX, SCHEMA_ELEMENTS_MAX,
};
use crate::thrift::{Event, walk};

/// What a Parquet file begins and ends with.
const MARK: [u8; 4] = *b"PAR1";
/// What it begins with if its footer is encrypted.
const ENCRYPTED_MARK: [u8; 4] = *b"PARE";

/// Opens a Parquet file and reads its footer.
pub(crate) fn open(path: &Path) -> Result<(File, ParquetMetaData), TableError> {
    let name = || path.display().to_string();
    let unreadable = |error: std::io::Error| TableError::Read { path: name(), reason: error.to_string() };
    // Opening a named pipe would wait for a program that writes into it.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(TableError::Read { path: name(), reason: "it is not a file".to_owned() });
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    if length == 0 {
        return Err(TableError::Empty { path: name() });
    }
    let mut begin = [0; 4];
    let begin_count = length.min(4) as usize;
    file.read_exact(&mut begin[..begin_count]).map_err(unreadable)?;
    if begin == ENCRYPTED_MARK {
        return Err(TableError::Encrypted { path: name() });
    }
    if begin != MARK {
        return Err(TableError::NotParquet { path: name() });
    }
    if length < 12 {
        return Err(TableError::CutOff { path: name() });
    }
    let mut end = [0; 8];
    file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut end)).map_err(unreadable)?;
    let [a, b, c, d, mark @ ..] = end;
    if mark != MARK {
        return Err(TableError::CutOff { path: name() });
    }
    let footer_bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
    let damaged = |reason: String| TableError::Footer { path: name(), reason };
    if footer_bytes > length - 12 {
        return Err(damaged("it is longer than the file".to_owned()));
    }
    if footer_bytes > METADATA_BYTES_MAX {
        return Err(TableError::LongFooter { path: name() });
    }
    let mut footer = vec![0; footer_bytes as usize];
    let start = SeekFrom::Start(length - 8 - footer_bytes);
    file.seek(start).and_then(|_| file.read_exact(&mut footer)).map_err(unreadable)?;
    match check(&footer) {
        Ok(false) => {}
        Ok(true) => return Err(TableError::Encrypted { path: name() }),
        Err(reason) => return Err(damaged(reason.to_owned())),
    }
    let metadata = decode(&footer).map_err(damaged)?;
    Ok((file, metadata))
}

/// Decodes a footer that was checked, without the statistics in it.
fn decode(footer: &[u8]) -> Result<ParquetMetaData, String> {
    let options = || {
        ParquetMetaDataOptions::new()
            .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
    };
    let decoded =
        catch_unwind(|| ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options())));
    let decoded = decoded.map_err(|_| "the decoder gave up".to_owned())?;
    decoded.map_err(|error| error.to_string())
}

/// Checks the sizes in a footer: lists, and the tree of the columns. Returns whether something is encrypted.
fn check(footer: &[u8]) -> Result<bool, &'static str> {
    // For each element of the schema the number of its children.
    let mut children: Vec<i64> = vec![];
    let (mut schema_elements, mut row_groups, mut chunks) = (0_usize, 0_usize, 0_usize);
    let mut is_encrypted = false;
    // Numbers of fields: those of FileMetaData, SchemaElement, RowGroup and ColumnChunk in parquet.thrift.
    let walked = walk(footer, &mut |path, event| match (path, event) {
        ([2], Event::Struct) => {
            schema_elements += 1;
            if schema_elements <= SCHEMA_ELEMENTS_MAX {
                children.push(0);
            }
        }
        ([2, 5], Event::Number(count)) if schema_elements <= SCHEMA_ELEMENTS_MAX => {
            if let Some(last) = children.last_mut() {
                *last = count;
            }
        }
        ([4], Event::Struct) => row_groups += 1,
        ([4, 1], Event::Struct) => chunks += 1,
        ([8] | [4, 1, 8], Event::Struct) => is_encrypted = true,
        _ => {}
    });
    walked.map_err(|_| "it makes no sense")?;
    if schema_elements > SCHEMA_ELEMENTS_MAX || row_groups > ROW_GROUPS_MAX || chunks > COLUMN_CHUNKS_MAX {
        return Err("it has too many columns or row groups");
    }
    check_tree(&children)?;
    Ok(is_encrypted)
}

/// Checks that `children`, the numbers of children of the elements in the order of a walk (parents first), are a tree, and not too deep.
fn check_tree(children: &[i64]) -> Result<(), &'static str> {
    // For each open element how many of its children have not come yet.
    let mut open: Vec<i64> = vec![];
    for (index, &count) in children.iter().enumerate() {
        match open.last_mut() {
            Some(missing) => *missing -= 1,
            None if index == 0 => {}
            None => return Err("its columns are in no group"),
        }
        if count < 0 || count > (children.len() - index) as i64 {
            return Err("a group has more columns than there are");
        }
        open.push(count);
        if open.len() > SCHEMA_DEPTH_MAX {
            return Err("its columns are nested too deep");
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    if open.is_empty() { Ok(()) } else { Err("a group has more columns than there are") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_checked() {
        assert!(check_tree(&[2, 0, 0]).is_ok());
        assert!(check_tree(&[2, 1, 0, 0]).is_ok());
        assert!(check_tree(&[0]).is_ok());
        for wrong in [&[2, 0][..], &[1, 0, 0], &[-1], &[1 << 40, 0], &[1; 100]] {
            assert!(check_tree(wrong).is_err(), "{wrong:?}");
        }
        let mut deep = vec![1; SCHEMA_DEPTH_MAX + 1];
        deep.push(0);
        assert_eq!(check_tree(&deep), Err("its columns are nested too deep"));
    }
}
