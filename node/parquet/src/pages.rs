//! The pages of a column, each checked before its values are decoded.

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::delta;
use crate::limits::DICTIONARY_VALUES_MAX;
use crate::page_memory::Use;
use crate::page_source::PageSource;
use crate::row_group::ColumnPlace;

/// The pages of a column without lists.
pub(crate) struct CheckedPages {
    pub(crate) pages: SerializedPageReader<PageSource>,
    pub(crate) place: ColumnPlace,
    /// Whether the column may have nulls, so that pages begin with levels.
    pub(crate) is_optional: bool,
}

impl CheckedPages {
    /// Refuses a page whose values would take more memory than there may be.
    fn check(&self, page: &Page) -> Result<()> {
        let wrong = |what: &str| ParquetError::General(what.to_owned());
        match page {
            Page::DictionaryPage { buf, num_values, .. } => {
                // Each value has at least one byte.
                if *num_values > DICTIONARY_VALUES_MAX || u64::from(*num_values) > buf.len() as u64 {
                    return Err(wrong("a dictionary has more values than it can hold"));
                }
                self.take(u64::from(*num_values) * VALUE_BYTES, Use::Dictionary)
            }
            Page::DataPage { buf, num_values, encoding, def_level_encoding, .. } => {
                let levels = match def_level_encoding {
                    _ if !self.is_optional => 0,
                    Encoding::RLE => {
                        let length = buf.first_chunk().ok_or_else(|| wrong("a page ends too early"))?;
                        4 + u32::from_le_bytes(*length) as usize
                    }
                    _ => (*num_values as usize).div_ceil(8),
                };
                self.check_values(*encoding, buf.get(levels..), *num_values)
            }
            Page::DataPageV2 {
                buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                self.check_values(*encoding, buf.get(levels..), *num_values)
            }
        }
    }

    fn check_values(&self, encoding: Encoding, values: Option<&[u8]>, count: u32) -> Result<()> {
        let bytes = values.and_then(|values| delta::unpacked_bytes(encoding, values, count.into()));
        let bytes =
            bytes.ok_or_else(|| ParquetError::General("the lengths in a page make no sense".to_owned()))?;
        self.take(bytes, Use::SamePage)
    }

    fn take(&self, bytes: u64, kind: Use) -> Result<()> {
        let taken = self.place.memory.take(self.place.column, bytes, kind);
        taken.map_err(|error| ParquetError::External(Box::new(error)))
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }
}

/// Bytes of a text in memory, besides its letters.
const VALUE_BYTES: u64 = 32;
