//! F16: IEEE 754 half precision, with 5 bits of exponent and 10 bits of fraction. Two bytes for an element.
//!
//! ```text
//! f32   s eeeeeeee ddddddddddddddddddddddd
//! f16   s    eeeee dddddddddd                  rounded to nearest, ties to even
//! ```
//! It is eight times as precise as bf16, but only within a range. Greater magnitudes become 65504. Below 2^-14, about 6.1e-5, precision
//! falls bit by bit, and magnitudes up to 2^-25 become zero. All NaN become one code.
//!
//! # Reading
//! Giesen, *Float to half done quick*, 2012: its additions for the smallest numbers are used here, without its branches. Micikevicius et
//! al., *Mixed Precision Training*, 2018, section 3.2: which gradients are too small for it.

use super::{INFINITE, SIGN, encode_each, magnitude};

/// Fills `out` with the f16 of each element.
pub(super) fn encode(elements: &[f32], out: &mut [u8]) {
    encode_each(elements, out, |element| nearest(element).to_le_bytes());
}

/// The f16 nearest to `element`. It has no branches, so that the compiler can process several elements at once.
fn nearest(element: f32) -> u16 {
    let magnitude = magnitude(element);
    // Rounds off the lower bits, and subtracts the difference of the exponents' biases.
    let to_even = (magnitude >> 13) & 1;
    let normal = (magnitude as i32).min(LARGEST_MAGNITUDE) as u32;
    let normal = (normal + 0xfff + to_even).wrapping_sub(REBIASED) >> 13;
    // The last bit of 0.5 has the value of the smallest f16, so this addition rounds there.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let special = if magnitude as i32 > INFINITE as i32 { NOT_A_NUMBER } else { INFINITE_CODE };
    let finite = if (magnitude as i32) < SMALLEST_NORMAL { small } else { normal };
    let unsigned = if (magnitude as i32) < INFINITE as i32 { finite } else { special };
    let sign = if magnitude as i32 > INFINITE as i32 { 0 } else { element.to_bits() & SIGN };
    (sign >> 16 | unsigned) as u16
}

/// The element of a code. Every code has an exact f32.
pub(super) fn decode(code: u16) -> f32 {
    let code = u32::from(code);
    let digits = (code & 0x7fff) << 13;
    let exponent = digits & INFINITE_CODE << 13;
    let normal = digits + REBIASED;
    // Subnormal numbers lack the leading one: they are read as if they had it, and its value is subtracted.
    let small = f32::from_bits(digits | SMALLEST_NORMAL as u32) - f32::from_bits(SMALLEST_NORMAL as u32);
    let finite = if exponent == 0 { small.to_bits() } else { normal };
    let unsigned = if exponent == INFINITE_CODE << 13 { digits | INFINITE } else { finite };
    f32::from_bits((code & 0x8000) << 16 | unsigned)
}

/// The difference of the exponents' biases, 127 and 15.
const REBIASED: u32 = (127 - 15) << 23;
/// The largest f32 magnitude that is not rounded to infinity, just under 65520.
const LARGEST_MAGNITUDE: i32 = 0x477f_efff;
/// The f32 magnitude of 2^-14, below which f16 has fewer significant bits.
const SMALLEST_NORMAL: i32 = (127 - 14) << 23;
const INFINITE_CODE: u32 = 0x7c00;
const NOT_A_NUMBER: u32 = 0x7e00;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bits_follow_the_format() {
        let power = |exponent: i32| f32::from_bits(((127 + exponent) as u32) << 23);
        for (element, code) in [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.5, 0xc100),
            (std::f32::consts::PI, 0x4248),
            // Ties: 2049 lies between 2048 and 2050, and 2051 between 2050 and 2052.
            (2049.0, 0x6800),
            (2051.0, 0x6802),
            (2049.001, 0x6801),
            // The smallest that there are.
            (power(-14), 0x0400),
            (power(-14) - power(-24), 0x03ff),
            (power(-14) - power(-25), 0x0400),
            (power(-24), 0x0001),
            (power(-25), 0x0000),
            (power(-25) + power(-40), 0x0001),
            (1.5 * power(-24), 0x0002),
            (f32::from_bits(1), 0x0000),
            (-f32::from_bits(1), 0x8000),
            // The largest.
            (65504.0, 0x7bff),
            (65519.99, 0x7bff),
            (65520.0, 0x7bff),
            (-1e9, 0xfbff),
            (f32::MAX, 0x7bff),
            (f32::INFINITY, 0x7c00),
            (f32::NEG_INFINITY, 0xfc00),
            (f32::NAN, 0x7e00),
            (-f32::NAN, 0x7e00),
            (f32::from_bits(0x7f80_0001), 0x7e00),
        ] {
            assert_eq!(nearest(element), code, "{element:e}");
        }
    }

    /// A code by the standard's formula, in f64.
    fn by_formula(code: u16) -> f64 {
        let (exponent, digits) = (i32::from(code >> 10 & 31), f64::from(code & 0x3ff));
        let scaled = if exponent == 0 { digits } else { 1024.0 + digits };
        let unsigned = scaled * f64::from_bits(((1023 + exponent.max(1) - 25) as u64) << 52);
        if code & 0x8000 == 0 { unsigned } else { -unsigned }
    }

    #[test]
    fn every_code_decodes_by_the_formula_and_encodes_back() {
        for code in 0..=u16::MAX {
            let element = decode(code);
            if code & INFINITE_CODE as u16 != INFINITE_CODE as u16 {
                assert_eq!(f64::from(element), by_formula(code));
            }
            assert_eq!(nearest(element), if element.is_nan() { 0x7e00 } else { code });
        }
    }

    /// Between any two neighbours: below the middle down, above it up, in the middle to the even one.
    #[test]
    fn an_element_is_rounded_to_the_nearest_code() {
        for code in 0..0x7bff_u16 {
            let middle = ((by_formula(code) + by_formula(code + 1)) / 2.0) as f32;
            let even = code + (code & 1);
            for (element, expected) in
                [(middle.next_down(), code), (middle, even), (middle.next_up(), code + 1)]
            {
                assert_eq!((nearest(element), nearest(-element)), (expected, expected | 0x8000));
            }
        }
    }
}
