//! Top-k: the largest elements of a segment, and where they are. All others are decoded as zero.
//!
//! Most of a gradient's length is in few of its elements. Like a shopper who keeps a few banknotes ready and lets coins pile
//! up in a jar: what is not sent is not thrown away but waits in a [`Residual`](crate::residual::Residual), and is sent once
//! it has grown.
//!
//! ```text
//! positions                        values, in the order of positions
//! as in `positions.rs`             f32 or bf16 each
//! ```
//! # How it works
//! Elements are compared by the magnitudes that will be decoded, and among equal ones the first win. The `k`-th largest magnitude
//! is found digit by digit, from the left: a count of the elements with each leading digit shows which digit it has, a
//! count of those with that digit shows the next one. With 2048 values for a digit that takes three looks at the elements;
//! nothing is sorted or moved. A fourth look picks them.

use std::num::NonZeroU32;

use super::positions::Positions;
use super::{CodecError, bf16, magnitude};

/// Keeps the largest elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Of so many elements of a segment one is kept, rounded up.
    pub one_in: NonZeroU32,
    /// How those are written.
    pub values: Values,
}

/// How the elements that are kept are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// As they are.
    F32,
    /// Rounded to nearest, ties to even.
    Bf16,
}

impl TopK {
    /// How many of `len` elements are kept.
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
                |element| bf16::decode(bf16::encode(element)),
                |element| bf16::encode(element).to_le_bytes(),
            ),
        }
    }

    pub(super) fn encode_in_place(self, elements: &mut [f32], out: &mut [u8]) {
        self.encode(elements, out);
        self.decode(out, elements).expect("what was just encoded");
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

    /// `seen` says what an element will be when it is decoded, and `write` what it is as bytes.
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
        let (smallest, mut ties) = smallest_kept(elements, self.count(elements.len()), key);
        for (position, element) in elements.iter().enumerate() {
            let key = key(*element);
            if key < smallest || (key == smallest && ties == 0) {
                continue;
            }
            ties -= usize::from(key == smallest);
            writer.push(position);
            *values.next().expect("room for as many as are kept") = write(*element);
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
}

/// The `count`-th largest key, and how many elements with just that key are among the `count` largest.
fn smallest_kept(elements: &[f32], count: usize, key: impl Fn(f32) -> u32) -> (u32, usize) {
    let (mut known, mut wanted) = (0, count);
    // Of a key's 31 bits: 11, then 10, then 10.
    for (digit_bits, below_bits) in [(11, 20), (10, 10), (10, 0)] {
        let mut with_digit = [0_u32; 1 << 11];
        let mask = (1 << digit_bits) - 1;
        for element in elements {
            let leading = key(*element) >> below_bits;
            if leading >> digit_bits == known {
                with_digit[(leading & mask) as usize] += 1;
            }
        }
        let mut digit = mask;
        while digit > 0 && (with_digit[digit as usize] as usize) < wanted {
            wanted -= with_digit[digit as usize] as usize;
            digit -= 1;
        }
        known = known << digit_bits | digit;
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
