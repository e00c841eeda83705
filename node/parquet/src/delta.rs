//! How much room the values of a page take whose texts are written as lengths, or as what differs from the text before.
//!
//! Some ten bytes can say that there are a billion lengths of 0, or a million texts that repeat a long one. The library makes room for them
//! before it reads the first value. So the lengths are added up here, as the library reads them, without keeping them.
//!
//! # Reading
//! "Delta encoding", "Delta-length byte array" and "Delta strings" in Encodings.md of apache/parquet-format.

use parquet::basic::Encoding;

use crate::limits::DELTA_VALUES_MAX;
use crate::thrift::varint;

/// How many bytes the values of a page take besides the page, if their encoding is one of those; else 0. `None` if it makes no sense.
///
/// - `values`: the part of the page behind its levels.
/// - `count_max`: how many values the page has, nulls included.
pub(crate) fn unpacked_bytes(encoding: Encoding, values: &[u8], count_max: u64) -> Option<u64> {
    match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => {
            let lengths = Lengths::add_up(values, count_max)?;
            Some(lengths.count * LENGTH_BYTES)
        }
        Encoding::DELTA_BYTE_ARRAY => {
            let prefixes = Lengths::add_up(values, count_max)?;
            let suffixes = Lengths::add_up(values.get(prefixes.end..)?, count_max)?;
            if suffixes.count != prefixes.count {
                return None;
            }
            // Each text has its own copy of what it repeats.
            Some(2 * prefixes.count * LENGTH_BYTES + prefixes.total.checked_add(suffixes.total)?)
        }
        _ => Some(0),
    }
}

/// Bytes of a length in memory.
const LENGTH_BYTES: u64 = 4;

/// A list of lengths in the encoding DELTA_BINARY_PACKED.
struct Lengths {
    count: u64,
    /// Their sum.
    total: u64,
    /// How many bytes the list has.
    end: usize,
}

impl Lengths {
    /// Reads a list at the beginning of `bytes`. `None` if it makes no sense, has a negative length, or has more than `count_max`.
    fn add_up(bytes: &[u8], count_max: u64) -> Option<Self> {
        let mut at = 0;
        let block = usize::try_from(next(bytes, &mut at)?).ok()?;
        let parts = usize::try_from(next(bytes, &mut at)?).ok()?;
        let count = next(bytes, &mut at)?;
        let mut last = i32::try_from(signed(next(bytes, &mut at)?)).ok()?;
        if parts == 0 || !block.is_multiple_of(parts) || count > count_max.min(DELTA_VALUES_MAX) {
            return None;
        }
        let part = block / parts;
        let mut total = if count == 0 { 0 } else { u64::try_from(last).ok()? };
        let mut missing = count.saturating_sub(1);
        while missing > 0 {
            // A block: the smallest difference, the width of each part, the parts.
            let smallest = i32::try_from(signed(next(bytes, &mut at)?)).ok()?;
            let widths = bytes.get(at..at.checked_add(parts)?)?;
            at += parts;
            for &width in widths {
                if missing == 0 {
                    break;
                }
                let end = at.checked_add(part.checked_mul(usize::from(width))? / 8)?;
                let packed = bytes.get(at..end)?;
                let here = missing.min(part as u64);
                if width > 32 || here == 0 {
                    return None;
                }
                for index in 0..here as usize {
                    let difference = bits(packed, index * usize::from(width), usize::from(width));
                    last = last.wrapping_add(smallest).wrapping_add(difference as i32);
                    total = total.checked_add(u64::try_from(last).ok()?)?;
                }
                missing -= here;
                at = end;
            }
        }
        Some(Self { count, total, end: at })
    }
}

fn next(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let (number, length) = varint(bytes.get(*at..)?).ok()?;
    *at += length;
    Some(number)
}

/// A number whose lowest bit is its sign.
fn signed(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// The number of `width` bits, at most 32, that begins at the bit `start`; low bits are first. What is behind the end is 0.
fn bits(bytes: &[u8], start: usize, width: usize) -> u32 {
    let mut window = [0; 8];
    let here = bytes.get(start / 8..).unwrap_or(&[]);
    let length = here.len().min(8);
    window[..length].copy_from_slice(&here[..length]);
    let number = u64::from_le_bytes(window) >> (start % 8);
    (number & ((1 << width) - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 in 4 parts; three lengths, 5, 3 and 9: differences of -2 and 6, from -2 on, in 4 bits each.
    fn three() -> Vec<u8> {
        let mut bytes = vec![0x80, 1, 4, 3, 10, 3, 4, 0, 0, 0, 0x80];
        bytes.extend([0; 15]);
        bytes
    }

    #[test]
    fn lengths_are_added_up() {
        let bytes = three();
        let lengths = Lengths::add_up(&bytes, 3).unwrap();
        assert_eq!((lengths.count, lengths.total, lengths.end), (3, 17, bytes.len()));
        assert!(Lengths::add_up(&bytes, 2).is_none(), "more than the page has");
        for length in 0..bytes.len() {
            assert!(Lengths::add_up(&bytes[..length], 3).is_none(), "{length}");
        }
        assert_eq!(unpacked_bytes(Encoding::DELTA_LENGTH_BYTE_ARRAY, &bytes, 3), Some(12));
        let twice = [bytes.clone(), bytes].concat();
        assert_eq!(unpacked_bytes(Encoding::DELTA_BYTE_ARRAY, &twice, 3), Some(24 + 34));
    }

    #[test]
    fn billions_of_lengths_in_a_few_bytes_are_refused() {
        // A block of 2^31 values without bits; as many values.
        let huge = [0x80, 0x80, 0x80, 0x80, 8, 1, 0x80, 0x80, 0x80, 0x80, 8, 0, 0, 0];
        assert_eq!(unpacked_bytes(Encoding::DELTA_LENGTH_BYTE_ARRAY, &huge, 1 << 31), None);
    }
}
