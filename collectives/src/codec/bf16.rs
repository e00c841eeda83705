//! Bf16: the upper half of an f32, which is its sign, its whole exponent, and 7 of its 23 digits after the point.
//!
//! ```text
//! f32   s eeeeeeee ddddddddddddddddddddddd
//! bf16  s eeeeeeee ddddddd                     nearest, ties to even
//! ```
//! An element of any size keeps the same number of digits. One that would be rounded to infinity becomes the largest there
//! is; whatever is not a number becomes the same one.

use super::{INFINITE, SIGN, magnitude};

/// The bf16 nearest to `element`.
pub(super) fn encode(element: f32) -> u16 {
    let magnitude = magnitude(element);
    // Signed comparisons, which every vector unit has: magnitudes are below 2^31.
    let finite = (magnitude as i32).min(LARGEST_MAGNITUDE) as u32;
    let to_even = (finite >> 16) & 1;
    let rounded = (finite + 0x7fff + to_even) >> 16;
    let special = if magnitude as i32 > INFINITE as i32 { NOT_A_NUMBER } else { INFINITE >> 16 };
    let unsigned = if (magnitude as i32) < INFINITE as i32 { rounded } else { special };
    let sign = if magnitude as i32 > INFINITE as i32 { 0 } else { element.to_bits() & SIGN };
    (sign >> 16 | unsigned) as u16
}

/// The element that `code` is: exact.
pub(super) fn decode(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The largest magnitude that is not rounded to infinity.
const LARGEST_MAGNITUDE: i32 = 0x7f7f_7fff;
const NOT_A_NUMBER: u32 = 0x7fc0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_as_the_format_says() {
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
            assert_eq!(encode(element), code, "{element:e}");
        }
    }

    #[test]
    fn every_code_is_itself_again() {
        for code in 0..=u16::MAX {
            let element = decode(code);
            assert_eq!(encode(element), if element.is_nan() { 0x7fc0 } else { code });
        }
    }

    /// Between any two neighbours: below the middle down, above it up, in the middle to the even one.
    #[test]
    fn the_nearest_is_chosen_everywhere() {
        for code in 0..0x7f7f_u16 {
            let bits = u32::from(code) << 16;
            let even = code + (code & 1);
            for (offset, nearest) in [(1, code), (0x7fff, code), (0x8000, even), (0x8001, code + 1)] {
                let element = f32::from_bits(bits + offset);
                assert_eq!((encode(element), encode(-element)), (nearest, nearest | 0x8000));
            }
        }
    }
}
