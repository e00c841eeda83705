//! Int8: integers from -127 to 127, times a scale for each block of 256 elements. One byte for an element, and four for each scale.
//!
//! A map says once how many metres a millimetre is; then whole millimetres suffice. Each block is a map with a scale of its own, chosen so
//! that its largest element just fits.
//!
//! ```text
//! scale, f32   codes, i8                     scale   codes
//! ssss         cccccccccccc ... 256 of them  ssss    cccc ... the remaining elements
//! ```
//! # How it works
//! The scale of a block is its largest magnitude / 127. The code of an element is element / scale, rounded to nearest, ties to even. So the
//! error of an element is at most half a scale, apart from the rounding of that division.
//!
//! A scale has at most 17 significant bits, and a code has 7. Their product fits into the 24 bits of an f32, so decoding is exact. The
//! largest decoded magnitude / 127 is the same scale, so decoded elements are encoded as the same bytes again. The difference between an
//! element and its decoded value is exact too, because the two are close.
//!
//! Blocks whose largest magnitude is below 127 x 2^-126, zeros included, have the smallest normal scale. A block with an element that is
//! not finite has a NaN as its scale, and all of its elements are decoded as NaN.
//!
//! # Reading
//! Dettmers, *8-Bit Approximations for Parallelism in Deep Learning*, 2016. Dettmers et al., *8-bit Optimizers via Block-wise
//! Quantization*, 2022, section 2.1: blocks. Here codes are evenly spaced.

use super::{BLOCK_ELEMENTS, CodecError, INFINITE, magnitude};

/// The number of bytes of `len` elements.
pub(super) fn encoded_len(len: usize) -> usize {
    len + len.div_ceil(BLOCK_ELEMENTS) * SCALE_BYTES
}

pub(super) fn encode(elements: &[f32], out: &mut [u8]) {
    for (block, out) in elements.chunks(BLOCK_ELEMENTS).zip(out.chunks_mut(BLOCK_BYTES)) {
        let (scale_bytes, codes) = out.split_first_chunk_mut().expect("a block begins with its scale");
        let scale = scale_of(block);
        *scale_bytes = scale.to_le_bytes();
        if scale.is_nan() {
            codes.fill(0);
            continue;
        }
        let inverse = 1.0 / scale;
        for (code, element) in codes.iter_mut().zip(block) {
            // A rounding function is a slow call on some processors. This addition rounds to nearest, ties to even, and the lowest byte
            // of the sum is the code.
            *code = (element * inverse + UNITS).to_bits() as u8;
        }
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    for (block, bytes) in out.chunks_mut(BLOCK_ELEMENTS).zip(bytes.chunks(BLOCK_BYTES)) {
        let (scale, codes) = bytes.split_first_chunk().ok_or(CodecError::Scale)?;
        let scale = f32::from_le_bytes(*scale);
        if scale.to_bits() == NOT_A_NUMBER.to_bits() {
            block.fill(NOT_A_NUMBER);
            continue;
        }
        let is_possible = (SCALE_MIN..=SCALE_MAX).contains(&scale) && scale.to_bits() & !SCALE_DIGITS == 0;
        if !is_possible {
            return Err(CodecError::Scale);
        }
        let mut has_strange = false;
        for (element, code) in block.iter_mut().zip(codes) {
            let code = code.cast_signed();
            has_strange |= code == i8::MIN;
            *element = f32::from(code) * scale;
        }
        if has_strange {
            return Err(CodecError::Code);
        }
    }
    Ok(())
}

fn scale_of(block: &[f32]) -> f32 {
    let largest = block.iter().map(|element| magnitude(*element).cast_signed()).max().unwrap_or(0);
    if largest >= INFINITE.cast_signed() {
        return NOT_A_NUMBER;
    }
    // Bits are cut off, not rounded: 127 times the scale never exceeds the largest magnitude, so it is never infinite. The difference is
    // so small that the largest element still gets the code 127.
    let scale = f32::from_bits(largest.cast_unsigned()) / 127.0;
    f32::from_bits(scale.to_bits() & SCALE_DIGITS).max(SCALE_MIN)
}

/// 1.5 x 2^23: an f32 whose last bit has the value 1, with room for codes of either sign.
const UNITS: f32 = 12_582_912.0;

const SCALE_BYTES: usize = size_of::<f32>();
const BLOCK_BYTES: usize = SCALE_BYTES + BLOCK_ELEMENTS;

/// A mask of the bits that a scale may have.
const SCALE_DIGITS: u32 = !0x7f;
const SCALE_MIN: f32 = f32::MIN_POSITIVE;
const SCALE_MAX: f32 = f32::from_bits((f32::MAX / 127.0).to_bits() & SCALE_DIGITS);
/// A NaN with fixed bits, unlike the standard library's.
const NOT_A_NUMBER: f32 = f32::from_bits(0x7fc0_0000);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_encoded(elements: &[f32], expected: &[u8]) {
        let mut bytes = vec![0xaa; encoded_len(elements.len())];
        encode(elements, &mut bytes);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn bytes_are_a_scale_and_codes() {
        // A scale of one half, and ties.
        assert_encoded(
            &[63.5, -63.5, 0.25, 0.75, -0.25, -0.75, 0.26, -0.0],
            &[0, 0, 0, 0x3f, 127, 129, 0, 2, 0, 254, 1, 0],
        );
        // 1 / 127 is 0x3c010204: the last digits are cut off.
        assert_encoded(&[1.0, 0.5], &[0x00, 0x02, 0x01, 0x3c, 127, 64]);
        // Nothing, in both senses, and nearly nothing.
        assert_encoded(&[], &[]);
        assert_encoded(&[0.0, -0.0], &[0, 0, 0x80, 0, 0, 0]);
        assert_encoded(&[f32::from_bits(1), f32::MIN_POSITIVE * 2.6], &[0, 0, 0x80, 0, 0, 3]);
        // The largest there are.
        assert_encoded(&[f32::MAX, f32::MIN], &[0x00, 0x02, 0x01, 0x7c, 127, 129]);
        // What is not finite takes its block with it.
        assert_encoded(&[1.0, f32::NAN], &[0, 0, 0xc0, 0x7f, 0, 0]);
        assert_encoded(&[f32::NEG_INFINITY, 1.0], &[0, 0, 0xc0, 0x7f, 0, 0]);
    }

    #[test]
    fn each_block_has_its_own_scale() {
        let mut elements = vec![127.0; BLOCK_ELEMENTS];
        elements.extend([254.0, 2.0]);
        let mut expected = vec![0, 0, 0x80, 0x3f];
        expected.extend([127; BLOCK_ELEMENTS]);
        expected.extend([0, 0, 0, 0x40, 127, 1]);
        assert_encoded(&elements, &expected);
    }

    #[test]
    fn impossible_blocks_are_refused() {
        let decoded = |scale: f32, code: u8| {
            let mut bytes = scale.to_le_bytes().to_vec();
            bytes.push(code);
            let mut out = [7.0];
            decode(&bytes, &mut out).map(|()| out[0])
        };
        assert_eq!(decoded(0.5, 129), Ok(-63.5));
        assert!(decoded(SCALE_MAX, 127).unwrap().is_finite());
        assert!(decoded(NOT_A_NUMBER, 1).unwrap().is_nan());
        assert_eq!(decoded(0.5, 128), Err(CodecError::Code));
        for scale in [
            0.0,
            -0.5,
            f32::INFINITY,
            -NOT_A_NUMBER,
            f32::from_bits(0x7fc0_0001),
            SCALE_MIN / 2.0,
            f32::from_bits(SCALE_MAX.to_bits() + 0x80),
            0.1,
        ] {
            assert_eq!(decoded(scale, 1), Err(CodecError::Scale), "{scale:e}");
        }
    }
}
