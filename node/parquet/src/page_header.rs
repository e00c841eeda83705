//! The sizes in the header of a page, read before the library does.

use crate::thrift::{Event, WalkError, walk};

/// What the header of a page says of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// Bytes of the header itself.
    pub(crate) bytes: usize,
    /// Whether the page is a dictionary.
    pub(crate) is_dictionary: bool,
    /// Bytes of the page in the file.
    pub(crate) packed_bytes: u64,
    /// Bytes of the page when it is unpacked.
    pub(crate) unpacked_bytes: u64,
    /// Bytes of the levels at the beginning of the page, which are never packed; 0 in the older form of a page, which packs them too.
    pub(crate) level_bytes: u64,
    /// Whether the page says that it is not packed, although its column is.
    pub(crate) is_plain: bool,
}

impl PageHeader {
    /// Reads the header at the beginning of `bytes`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, WalkError> {
        let mut header = Self::default();
        let mut is_negative = false;
        let mut size = |number: i64| {
            is_negative |= number < 0;
            u64::try_from(number).unwrap_or(0)
        };
        // Numbers of fields: those of PageHeader and DataPageHeaderV2 in parquet.thrift.
        let read = walk(bytes, &mut |path, event| match (path, event) {
            ([1], Event::Number(kind)) => header.is_dictionary = kind == DICTIONARY_PAGE,
            ([2], Event::Number(number)) => header.unpacked_bytes = size(number),
            ([3], Event::Number(number)) => header.packed_bytes = size(number),
            ([8, 5 | 6], Event::Number(number)) => {
                header.level_bytes = header.level_bytes.saturating_add(size(number));
            }
            ([8, 7], Event::Number(packed)) => header.is_plain = packed == 0,
            _ => {}
        })?;
        if is_negative { Err(WalkError::Wrong) } else { Ok(Self { bytes: read, ..header }) }
    }
}

/// The number of the type of dictionary pages.
const DICTIONARY_PAGE: i64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        // Type 2, 100 bytes unpacked, 50 packed, then fields that do not matter.
        let bytes = [0x15, 4, 0x15, 0xc8, 1, 0x15, 100, 0x4c, 0x15, 6, 0x15, 0, 0, 0, 99];
        let header = PageHeader::read(&bytes).unwrap();
        let PageHeader { bytes: length, is_dictionary, packed_bytes, unpacked_bytes, .. } = header;
        assert_eq!((length, is_dictionary, packed_bytes, unpacked_bytes), (14, true, 50, 100));
        assert_eq!(PageHeader::read(&bytes[..13]), Err(WalkError::Short));
        assert_eq!(PageHeader::read(&[0x15, 0, 0x15, 1, 0]), Err(WalkError::Wrong), "a negative size");
    }
}
