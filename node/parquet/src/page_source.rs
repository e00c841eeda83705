//! The bytes of a column's pages. The library asks for the header of a page, then for the page; both are checked on the way.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::limits::PAGE_HEADER_BYTES_MAX;
use crate::page_header::PageHeader;
use crate::page_memory::{PageMemory, Use};
use crate::thrift::WalkError;

/// The pages of a column in a row group.
pub(crate) struct PageSource {
    file: Arc<File>,
    /// Bytes of the file.
    length: u64,
    /// The place of the column among those that are read.
    column: usize,
    memory: Arc<PageMemory>,
    /// Whether pages are packed by gzip, which does not say how much it unpacks to.
    is_gzip: bool,
    /// The header that was read last: the library asks for its page next.
    header: Mutex<PageHeader>,
}

impl PageSource {
    /// Pages in a file, of the column with this place.
    pub(crate) fn new(
        (file, length): (Arc<File>, u64),
        (column, memory): (usize, Arc<PageMemory>),
        is_gzip: bool,
    ) -> Self {
        Self { file, length, column, memory, is_gzip, header: Mutex::default() }
    }

    /// Bytes of the file from `start` on, at most so many.
    fn read(&self, start: u64, count: usize) -> io::Result<Vec<u8>> {
        let count = self.length.saturating_sub(start).min(count as u64);
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::with_capacity(count as usize);
        file.take(count).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The header of the page at `start`, and its bytes.
    fn read_header(&self, start: u64) -> Result<(PageHeader, Vec<u8>), ParquetError> {
        let mut count = FIRST_READ_BYTES;
        loop {
            let mut bytes = self.read(start, count)?;
            match PageHeader::read(&bytes) {
                Ok(header) => {
                    bytes.truncate(header.bytes);
                    return Ok((header, bytes));
                }
                Err(WalkError::Short) if bytes.len() == count && count < PAGE_HEADER_BYTES_MAX => count *= 16,
                Err(_) => {
                    return Err(ParquetError::General("the header of a page makes no sense".to_owned()));
                }
            }
        }
    }

    /// Refuses a page of gzip that unpacks to more than its header says: the library would unpack all of it.
    fn check_gzip(&self, page: &[u8]) -> Result<(), ParquetError> {
        let header = *self.header.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_gzip || header.is_plain {
            return Ok(());
        }
        let packed = page.get(header.level_bytes as usize..).unwrap_or(&[]);
        let expected = header.unpacked_bytes.saturating_sub(header.level_bytes);
        let unpacked = &mut MultiGzDecoder::new(packed).take(expected + 1);
        if packed.is_empty() || io::copy(unpacked, &mut io::sink())? <= expected {
            return Ok(());
        }
        Err(ParquetError::General("a page is longer than its header says".to_owned()))
    }
}

impl Length for PageSource {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for PageSource {
    type T = Cursor<Vec<u8>>;

    /// The library calls this for the header of a page, and for nothing else, as long as columns are without lists.
    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let (header, bytes) = self.read_header(start)?;
        let kind = if header.is_dictionary { Use::Dictionary } else { Use::NewPage };
        let size = header.packed_bytes.saturating_add(header.unpacked_bytes);
        let taken = self.memory.take(self.column, size, kind);
        taken.map_err(|error| ParquetError::External(Box::new(error)))?;
        *self.header.lock().unwrap_or_else(PoisonError::into_inner) = header;
        Ok(Cursor::new(bytes))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.read(start, length)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF("a page ends behind the end of the file".to_owned()));
        }
        self.check_gzip(&bytes)?;
        Ok(bytes.into())
    }
}

/// How many bytes are read for a header: most have fewer.
const FIRST_READ_BYTES: usize = 4096;
