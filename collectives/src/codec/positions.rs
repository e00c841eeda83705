//! Positions: a compact encoding of which elements of a segment were chosen (Elias-Fano). Its length is known beforehand.
//!
//! The elements are the houses of a street, and some of them are to be visited. A tally sheet has one line for each block of houses, with a
//! mark for each visit. A second sheet lists, for each mark, the number of the house within its block. These numbers are short because
//! blocks are. The tally sheet needs one bit for each visit and one for each end of a line.
//!
//! ```text
//! houses 1 6 7 12 of 16, in blocks of 4      lines         |  ||  -  |      marks as bits, LSB first: 1 0 11 0 0 1
//!                                            within block  1  23     0      two bits each
//! ```
//! # How it works
//! For `k` positions below `n`, a block has 2^r positions, the largest power of two up to n / k. The lower r bits of each position are
//! packed one after the other. The upper bits are the number of its line: the mark of position `i` in line `h` is bit `h + i`. This takes
//! `k r` bits for the lower bits and at most `k + n / 2^r` for the marks. For one position in 100 these are 8.6 bits per position; the
//! minimum, the logarithm of the number of choices, is 8.1, and plain 16-bit positions take 16.
//!
//! # Reading
//! Elias, *Efficient Storage and Retrieval by Content and Address of Static Files*, 1974; Fano, *On the Number of Bits Required to
//! Implement an Associative Memory*, 1971. Vigna, *Quasi-Succinct Indices*, 2013, section 3, has the layout used here.

use super::CodecError;

/// The layout of `count` positions below `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Positions {
    len: usize,
    count: usize,
    /// The number of bits of a position within its block: r above.
    low_bits: u32,
}

impl Positions {
    /// The layout for `count` of `len` elements; `count` is at least one unless `len` is zero.
    pub(super) fn new(len: usize, count: usize) -> Self {
        let low_bits = len.checked_div(count).unwrap_or(1).ilog2();
        assert!(low_bits <= LOW_BITS_MAX, "a segment is smaller");
        Self { len, count, low_bits }
    }

    /// The number of bytes of the lower bits.
    fn low_bytes(self) -> usize {
        (self.count * self.low_bits as usize).div_ceil(8)
    }

    /// The number of bytes of lower bits and marks together.
    pub(super) fn byte_count(self) -> usize {
        let lines_ended = self.len.saturating_sub(1) >> self.low_bits;
        self.low_bytes() + (self.count + lines_ended * usize::from(self.count > 0)).div_ceil(8)
    }

    /// A writer of positions into `bytes`, one by one in rising order.
    pub(super) fn writer(self, bytes: &mut [u8]) -> Writer<'_> {
        bytes.fill(0);
        let (lows, marks) = bytes.split_at_mut(self.low_bytes());
        Writer { low_bits: self.low_bits, lows: lows.iter_mut(), marks, written: 0, held: 0, held_bits: 0 }
    }

    /// Reads positions: calls `visit(index, position)` for each, in rising order.
    ///
    /// # Errors
    /// The bytes are not `count` rising positions below `len`; some may have been visited.
    pub(super) fn read(self, bytes: &[u8], mut visit: impl FnMut(usize, usize)) -> Result<(), CodecError> {
        let (lows, marks) = bytes.split_at_checked(self.low_bytes()).ok_or(CodecError::Position)?;
        let mut lows = lows.iter();
        let (mut held, mut held_bits) = (0_u64, 0);
        let (mut index, mut free) = (0, 0);
        for (place, byte) in marks.iter().enumerate() {
            let mut byte = *byte;
            while byte != 0 {
                let bit = place * 8 + byte.trailing_zeros() as usize;
                byte &= byte - 1;
                while held_bits < self.low_bits {
                    held |= u64::from(*lows.next().ok_or(CodecError::Position)?) << held_bits;
                    held_bits += 8;
                }
                let low = (held & mask(self.low_bits)) as usize;
                held >>= self.low_bits;
                held_bits -= self.low_bits;
                // Each earlier mark took one bit.
                let position = (bit - index) << self.low_bits | low;
                if index == self.count || position < free || position >= self.len {
                    return Err(CodecError::Position);
                }
                visit(index, position);
                free = position + 1;
                index += 1;
            }
        }
        if index == self.count { Ok(()) } else { Err(CodecError::Position) }
    }
}

/// A writer of positions.
pub(super) struct Writer<'a> {
    low_bits: u32,
    lows: std::slice::IterMut<'a, u8>,
    marks: &'a mut [u8],
    written: usize,
    /// Lower bits that do not fill a byte yet.
    held: u64,
    held_bits: u32,
}

impl Writer<'_> {
    /// Writes the next position.
    pub(super) fn push(&mut self, position: usize) {
        let bit = (position >> self.low_bits) + self.written;
        self.marks[bit / 8] |= 1 << (bit % 8);
        self.written += 1;
        self.held |= (position as u64 & mask(self.low_bits)) << self.held_bits;
        self.held_bits += self.low_bits;
        while self.held_bits >= 8 {
            self.put_byte();
            self.held_bits -= 8;
        }
    }

    /// Writes the last lower bits.
    pub(super) fn finish(mut self) {
        if self.held_bits > 0 {
            self.put_byte();
        }
    }

    fn put_byte(&mut self) {
        *self.lows.next().expect("room for the lower bits of every position") = self.held as u8;
        self.held >>= 8;
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Most lower bits: with up to seven bits held back, they fit into a word of 64.
const LOW_BITS_MAX: u32 = 48;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(shape: Positions, positions: &[usize]) -> Vec<u8> {
        let mut bytes = vec![0xaa; shape.byte_count()];
        let mut writer = shape.writer(&mut bytes);
        positions.iter().for_each(|position| writer.push(*position));
        writer.finish();
        bytes
    }

    fn read(shape: Positions, bytes: &[u8]) -> Result<Vec<usize>, CodecError> {
        let mut positions = Vec::new();
        shape.read(bytes, |index, position| {
            assert_eq!(index, positions.len());
            positions.push(position);
        })?;
        Ok(positions)
    }

    #[test]
    fn bytes_match_the_example_in_the_header() {
        let bytes = written(Positions::new(16, 4), &[1, 6, 7, 12]);
        assert_eq!(bytes, [0b00_11_10_01, 0b100_1101]);
        assert_eq!(read(Positions::new(16, 4), &bytes), Ok(vec![1, 6, 7, 12]));
    }

    #[test]
    fn extreme_positions_are_read_back() {
        for len in [1, 2, 3, 7, 8, 9, 100, 255, 256, 257, 5000] {
            for count in [1, 2, 3, len / 100, len / 7, len / 2, len - 1, len] {
                if count == 0 || count > len {
                    continue;
                }
                let shape = Positions::new(len, count);
                let first: Vec<usize> = (0..count).collect();
                let last: Vec<usize> = (len - count..len).collect();
                let spread: Vec<usize> = (0..count).map(|index| index * len / count).collect();
                for positions in [first, last, spread] {
                    assert_eq!(read(shape, &written(shape, &positions)), Ok(positions), "{count} of {len}");
                }
            }
        }
        assert_eq!(Positions::new(0, 0).byte_count(), 0);
        assert_eq!(read(Positions::new(0, 0), &[]), Ok(vec![]));
    }

    #[test]
    fn impossible_positions_are_refused() {
        // Three of ten, in blocks of two: three bits, then seven.
        let shape = Positions::new(10, 3);
        assert_eq!((shape.low_bits, shape.byte_count()), (1, 2));
        assert_eq!(read(shape, &[0b101, 0b100_0101]), Ok(vec![1, 2, 9]));
        // The same one twice, a lower one after a higher one.
        assert_eq!(read(shape, &[0b111, 0b000_0111]), Err(CodecError::Position));
        assert_eq!(read(shape, &[0b001, 0b000_0111]), Err(CodecError::Position));
        // Too few, too many, beyond the end.
        assert_eq!(read(shape, &[0b101, 0b100_0001]), Err(CodecError::Position));
        assert_eq!(read(shape, &[0b101, 0b101_0101]), Err(CodecError::Position));
        assert_eq!(read(shape, &[0b101, 0b1000_0101]), Err(CodecError::Position));
        assert_eq!(read(shape, &[0b101]), Err(CodecError::Position));
    }
}
