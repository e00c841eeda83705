//! Bf16: the upper half of an f32, that is, its sign, its whole exponent, and 7 of the 23 bits of its fraction. Two bytes for an element.
//!
//! ```text
//! f32   s eeeeeeee ddddddddddddddddddddddd
//! bf16  s eeeeeeee ddddddd                     rounded to nearest, ties to even
//! ```
//! All magnitudes keep the same relative precision. An element that would be rounded to infinity becomes the largest finite value. All NaN
//! become one code.
//!
//! # Reading
//! Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, section 3.

use super::{BLOCK_ELEMENTS, INFINITE, SIGN, encode_each, magnitude};

/// Fills `out` with the bf16 of each element.
pub(super) fn encode(elements: &[f32], out: &mut [u8]) {
    for (block, out) in elements.chunks(BLOCK_ELEMENTS).zip(out.chunks_mut(BLOCK_ELEMENTS * size_of::<u16>()))
    {
        // Special elements are rare, so it is faster to look for one first, and to round a segment without any of them untested.
        if block.iter().fold(false, |any, element| any | is_special(*element)) {
            encode_each(block, out, |element| nearest(element).to_le_bytes());
        } else {
            encode_each(block, out, |element| rounded(element.to_bits()).to_le_bytes());
        }
    }
}

/// The bf16 nearest to `element`.
pub(super) fn nearest(element: f32) -> u16 {
    let (sign, magnitude) = (element.to_bits() & SIGN, magnitude(element));
    if !is_special(element) {
        rounded(element.to_bits())
    } else if magnitude < INFINITE {
        rounded(sign | LARGEST_MAGNITUDE)
    } else if magnitude == INFINITE {
        (element.to_bits() >> 16) as u16
    } else {
        NOT_A_NUMBER
    }
}

/// Whether the element needs more than rounding: it is not finite, or would be rounded to infinity.
fn is_special(element: f32) -> bool {
    // A signed comparison, which every vector unit has.
    magnitude(element).cast_signed() > LARGEST_MAGNITUDE.cast_signed()
}

fn rounded(bits: u32) -> u16 {
    let to_even = (bits >> 16) & 1;
    ((bits + 0x7fff + to_even) >> 16) as u16
}

/// The element of a code. Every code has an exact f32.
pub(super) fn decode(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The largest magnitude that is not rounded to infinity.
const LARGEST_MAGNITUDE: u32 = 0x7f7f_7fff;
const NOT_A_NUMBER: u16 = 0x7fc0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bits_follow_the_format() {
        for (element, code) in [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3f80),
            (-2.5, 0xc020),
            (std::f32::consts::PI, 0x4049),
            // Ties: 1 + 1/256 lies between 1 and 1 + 1/128, and 1 + 3/256 between that and 1 + 1/64.
            (1.0 + 1.0 / 256.0, 0x3f80),
            (1.0 + 3.0 / 256.0, 0x3f82),
            (1.0 + 1.0 / 256.0 + f32::EPSILON, 0x3f81),
            // Rounded up to the next power of two.
            (1.999, 0x4000),
            // The smallest that there are.
            (f32::from_bits(0x0001_0000), 0x0001),
            (f32::from_bits(0x0000_8000), 0x0000),
            (f32::from_bits(0x0000_8001), 0x0001),
            // The largest.
            (f32::from_bits(0x7f7f_7fff), 0x7f7f),
            (f32::MAX, 0x7f7f),
            (f32::MIN, 0xff7f),
            (f32::INFINITY, 0x7f80),
            (f32::NEG_INFINITY, 0xff80),
            (f32::NAN, 0x7fc0),
            (-f32::NAN, 0x7fc0),
            (f32::from_bits(0x7f80_0001), 0x7fc0),
        ] {
            assert_eq!(nearest(element), code, "{element:e}");
        }
    }

    #[test]
    fn every_code_survives_decoding_and_encoding() {
        for code in 0..=u16::MAX {
            let element = decode(code);
            assert_eq!(nearest(element), if element.is_nan() { 0x7fc0 } else { code });
        }
    }

    /// Between any two neighbours: below the middle down, above it up, in the middle to the even one.
    #[test]
    fn an_element_is_rounded_to_the_nearest_code() {
        for code in 0..0x7f7f_u16 {
            let bits = u32::from(code) << 16;
            let even = code + (code & 1);
            for (offset, expected) in [(1, code), (0x7fff, code), (0x8000, even), (0x8001, code + 1)] {
                let element = f32::from_bits(bits + offset);
                assert_eq!((nearest(element), nearest(-element)), (expected, expected | 0x8000));
            }
        }
    }

    #[test]
    fn a_slice_is_encoded_like_its_single_elements() {
        let mut elements: Vec<f32> = (0..1000).map(|index| index as f32 / 7.0 - 60.0).collect();
        (elements[300], elements[301], elements[999]) = (f32::MAX, f32::NAN, f32::NEG_INFINITY);
        let mut bytes = vec![0; 2000];
        encode(&elements, &mut bytes);
        for (bytes, element) in bytes.as_chunks().0.iter().zip(elements) {
            assert_eq!(u16::from_le_bytes(*bytes), nearest(element));
        }
    }
}
