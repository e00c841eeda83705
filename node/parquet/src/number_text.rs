//! Numbers as text: the shortest that reads back as the same number.

use std::fmt::{LowerExp, Write as _};

/// A number of 32 or 64 bits.
pub(crate) fn float<N: Copy + Into<f64> + std::fmt::Display + LowerExp>(number: N, out: &mut String) {
    let size = number.into().abs();
    // Both are the shortest digits; without an exponent, 1e300 has three hundred zeros.
    let written = if size == 0.0 || !size.is_finite() || (SMALL..LARGE).contains(&size) {
        write!(out, "{number}")
    } else {
        write!(out, "{number:e}")
    };
    written.expect("a text takes everything");
}

/// Numbers between these are written without an exponent.
const SMALL: f64 = 1e-5;
const LARGE: f64 = 1e16;

/// A number of 16 bits, as one of 32 bits, which has the same value.
pub(crate) fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (bits >> 10 & 0x1f, f32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f32.powi(i32::from(exponent) - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// A whole number with its point moved left by `scale` digits.
pub(crate) fn decimal(number: i128, scale: u32, out: &mut String) {
    let scale = scale as usize;
    let digits = format!("{:0width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    if number < 0 {
        out.push('-');
    }
    out.push_str(whole);
    if scale > 0 {
        out.push('.');
        out.push_str(fraction);
    }
}

/// A number in bytes, the highest first, in two's complement; `None` if it has more than 128 bits.
pub(crate) fn of_bytes(bytes: &[u8]) -> Option<i128> {
    let fill = if bytes.first().is_some_and(|&first| first >= 0x80) { 0xff } else { 0 };
    let mut wide = [fill; 16];
    let start = 16_usize.checked_sub(bytes.len())?;
    wide[start..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(wide))
}

/// The 16 bytes of a UUID, in the usual groups.
pub(crate) fn uuid(bytes: &[u8], out: &mut String) {
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            out.push('-');
        }
        write!(out, "{byte:02x}").expect("a text takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_back() {
        for (number, text) in [
            (0.1_f64, "0.1"),
            (-0.0, "-0"),
            (1e300, "1e300"),
            (5e-324, "5e-324"),
            (123456789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
        ] {
            let mut out = String::new();
            float(number, &mut out);
            assert_eq!(out, text);
            assert_eq!(out.parse::<f64>().unwrap().to_bits(), number.to_bits());
        }
        let mut out = String::new();
        float(0.1_f32, &mut out);
        assert_eq!(out, "0.1", "not the digits of the nearest number of 64 bits");
    }

    #[test]
    fn halves_are_exact() {
        for (bits, number) in [
            (0, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (1, 2_f32.powi(-24)),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(half(bits).to_bits(), number.to_bits(), "{bits:x}");
        }
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn decimals_keep_their_digits() {
        for (number, scale, text) in [(12345, 2, "123.45"), (-5, 3, "-0.005"), (7, 0, "7"), (0, 2, "0.00")] {
            let mut out = String::new();
            decimal(number, scale, &mut out);
            assert_eq!(out, text);
        }
        assert_eq!(of_bytes(&[0xff, 0x85]), Some(-123));
        assert_eq!(of_bytes(&[]), Some(0));
        assert_eq!(of_bytes(&[1; 17]), None);
    }
}
