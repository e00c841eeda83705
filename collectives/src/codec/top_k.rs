//! Top-k: the elements of a segment with the largest magnitudes, and their positions. All others are decoded as zero.
//!
//! Most of a gradient's norm is in few of its elements. The others are not lost: they wait in a
//! [`Residual`](crate::residual::Residual), as small change waits in a jar, and are sent once they have grown.
//!
//! ```text
//! positions                        values, in the order of positions
//! as in `positions.rs`             f32 or bf16, `count` of them
//! ```
//! # How it works
//! Elements are compared by the magnitudes of their decoded values. Among equal ones, the first are chosen. The `k`-th largest magnitude
//! is found digit by digit, from the most significant one (a radix select): counting the elements with each leading digit gives the leading
//! digit of the threshold; counting those with that digit by their next digit gives the next one. Digits have up to 11 bits, so this takes
//! two or three passes over the elements, without sorting or moving them. One more pass writes the chosen elements.
//!
//! # Reading
//! Aji & Heafield, *Sparse Communication for Distributed Gradient Descent*, 2017; Lin et al., *Deep Gradient Compression*, 2018. There the
//! threshold is estimated from a sample; here it is exact.

use std::num::NonZeroU32;

use super::positions::Positions;
use super::{CodecError, bf16, magnitude};

/// The share of elements that are sent, and their precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// One in this many elements of a segment is sent, rounded up.
    pub one_in: NonZeroU32,
    /// The encoding of those elements.
    pub values: Values,
}

/// The encoding of the elements that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Exact, four bytes each.
    F32,
    /// Rounded to nearest, ties to even, two bytes each.
    Bf16,
}

impl TopK {
    /// The number of elements that are sent of `len`.
    #[must_use]
    pub fn count(self, len: usize) -> usize {
        len.div_ceil(self.one_in.get() as usize)
    }

    pub(super) fn encoded_len(self, len: usize) -> usize {
        self.positions(len).byte_count() + self.count(len) * self.values.byte_count()
    }

    pub(super) fn encode(self, elements: &[f32], out: &mut [u8]) {
        match self.values {
            Values::F32 => self.encode_as(elements, out, |element| element, f32::to_le_bytes),
            Values::Bf16 => self.encode_as(
                elements,
                out,
                |element| bf16::decode(bf16::nearest(element)),
                |element| bf16::nearest(element).to_le_bytes(),
            ),
        }
    }

    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        let positions = self.positions(out.len());
        let (places, values) = bytes.split_at_checked(positions.byte_count()).ok_or(CodecError::Position)?;
        match self.values {
            Values::F32 => scatter(positions, places, values, out, f32::from_le_bytes),
            Values::Bf16 => {
                scatter(positions, places, values, out, |value| bf16::decode(u16::from_le_bytes(value)))
            }
        }
    }

    fn positions(self, len: usize) -> Positions {
        Positions::new(len, self.count(len))
    }

    /// `seen` returns the decoded value of an element, and `write` its bytes.
    fn encode_as<const N: usize>(
        self,
        elements: &[f32],
        out: &mut [u8],
        seen: impl Fn(f32) -> f32,
        write: impl Fn(f32) -> [u8; N],
    ) {
        let key = |element: f32| magnitude(seen(element));
        let positions = self.positions(elements.len());
        let (places, values) = out.split_at_mut(positions.byte_count());
        let mut writer = positions.writer(places);
        let mut values = values.as_chunks_mut().0.iter_mut();
        let (smallest, mut ties) =
            smallest_kept(elements, self.count(elements.len()), self.values.digits(), key);
        for (position, element) in elements.iter().enumerate() {
            let key = key(*element);
            if key < smallest || (key == smallest && ties == 0) {
                continue;
            }
            ties -= usize::from(key == smallest);
            writer.push(position);
            *values.next().expect("room for all chosen values") = write(*element);
        }
        writer.finish();
    }
}

impl Values {
    fn byte_count(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::Bf16 => size_of::<u16>(),
        }
    }

    /// The digits of a magnitude, most significant first: the number of bits in each, and of bits below it.
    fn digits(self) -> &'static [(u32, u32)] {
        match self {
            Self::F32 => &[(11, 20), (10, 10), (10, 0)],
            Self::Bf16 => &[(11, 20), (4, 16)],
        }
    }
}

/// The `count`-th largest key, found by these digits, and the number of elements with exactly that key among the `count` largest.
fn smallest_kept(
    elements: &[f32],
    count: usize,
    digits: &[(u32, u32)],
    key: impl Fn(f32) -> u32,
) -> (u32, usize) {
    let (mut known, mut wanted) = (0, count);
    for &(digit_bits, below_bits) in digits {
        let mut with_digit = [0_u32; 1 << 11];
        let mask = (1 << digit_bits) - 1;
        for element in elements {
            let key = key(*element);
            if key >> (below_bits + digit_bits) == known >> (below_bits + digit_bits) {
                with_digit[(key >> below_bits & mask) as usize] += 1;
            }
        }
        let mut digit = mask;
        while digit > 0 && (with_digit[digit as usize] as usize) < wanted {
            wanted -= with_digit[digit as usize] as usize;
            digit -= 1;
        }
        known |= digit << below_bits;
    }
    (known, wanted)
}

fn scatter<const N: usize>(
    positions: Positions,
    places: &[u8],
    values: &[u8],
    out: &mut [f32],
    read: impl Fn([u8; N]) -> f32,
) -> Result<(), CodecError> {
    out.fill(0.0);
    let values = values.as_chunks().0;
    positions.read(places, |index, position| {
        if let (Some(element), Some(value)) = (out.get_mut(position), values.get(index)) {
            *element = read(*value);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_in(one_in: u32, values: Values) -> TopK {
        TopK { one_in: NonZeroU32::new(one_in).unwrap(), values }
    }

    #[track_caller]
    fn assert_encoded(top: TopK, elements: &[f32], expected: &[u8]) {
        let mut bytes = vec![0xaa; top.encoded_len(elements.len())];
        top.encode(elements, &mut bytes);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn bytes_are_positions_and_values() {
        // Positions 2 and 5 of 6, in blocks of two: lower bits 0 and 1, marks 1 and 3.
        let elements = [0.5, -0.25, -3.0, 0.0, 1.0, 2.0];
        assert_encoded(one_in(3, Values::F32), &elements, &[0b10, 0b1010, 0, 0, 0x40, 0xc0, 0, 0, 0, 0x40]);
        assert_encoded(one_in(3, Values::Bf16), &elements, &[0b10, 0b1010, 0x40, 0xc0, 0, 0x40]);
        assert_encoded(one_in(100, Values::Bf16), &[], &[]);
    }

    #[test]
    fn among_equal_elements_the_first_ones_are_sent() {
        // Positions 1 and 2 of 5 in blocks of two: lower bits 1 and 0, marks 0 and 2.
        assert_encoded(
            one_in(3, Values::Bf16),
            &[1.0, -2.0, 2.0, 2.0, -2.0],
            &[0b01, 0b101, 0x00, 0xc0, 0x00, 0x40],
        );
        // 2.001 is 2 in bf16; and nothing but zeros has its largest, too.
        assert_encoded(one_in(5, Values::Bf16), &[1.0, -2.0, 2.001, 0.0], &[0b01, 0b1, 0x00, 0xc0]);
        assert_encoded(one_in(5, Values::Bf16), &[-0.0, 0.0], &[0b0, 0b1, 0x00, 0x80]);
    }

    #[test]
    fn elements_that_are_not_finite_are_sent_first() {
        let elements = [1.0, f32::MAX, f32::NEG_INFINITY, 2.0];
        assert_encoded(one_in(4, Values::Bf16), &elements, &[0b10, 0b1, 0x80, 0xff]);
        let elements = [1.0, f32::INFINITY, f32::NAN, 2.0];
        assert_encoded(one_in(4, Values::Bf16), &elements, &[0b10, 0b1, 0xc0, 0x7f]);
    }

    #[test]
    fn one_element_in_a_hundred_takes_about_one_byte_in_a_hundred() {
        // 131,072 bytes as f32.
        assert_eq!(one_in(100, Values::F32).encoded_len(32_768), 1663);
        assert_eq!(one_in(100, Values::Bf16).encoded_len(32_768), 1007);
    }
}
