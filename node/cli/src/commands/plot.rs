//! A loss curve drawn with characters, for any terminal.

use std::fmt::Write as _;

/// Draws `values` from left to right with braille dots, `width` characters wide and `height` high; each character holds two columns
/// and four rows of dots. The left margin shows the range. Positive values that span more than a factor of ten are drawn on a
/// logarithmic scale. Returns an empty string for fewer than two finite values.
#[must_use]
pub fn curve(values: &[f64], width: usize, height: usize) -> String {
    let mut finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let (Some(low), Some(high)) =
        (finite.iter().copied().reduce(f64::min), finite.iter().copied().reduce(f64::max))
    else {
        return String::new();
    };
    if finite.len() < 2 || width == 0 || height == 0 {
        return String::new();
    }
    let is_logarithmic = low > 0.0 && high > 10.0 * low;
    if is_logarithmic {
        finite.iter_mut().for_each(|value| *value = value.ln());
    }
    let dots = if is_logarithmic {
        Dots::of(&finite, width, height, low.ln(), high.ln())
    } else {
        Dots::of(&finite, width, height, low, high)
    };
    let mut text = String::new();
    for row in 0..height {
        let label = match row {
            0 => format!("{high:>8.4}"),
            _ if row + 1 == height => format!("{low:>8.4}"),
            _ => " ".repeat(8),
        };
        let cells: String = (0..width).map(|column| dots.cell(row, column)).collect();
        // Writing to a string succeeds.
        let _ = writeln!(text, "{label} |{}", cells.trim_end());
    }
    text
}

/// A grid of dots, `2 x width` by `4 x height`.
struct Dots {
    width: usize,
    cells: Vec<u8>,
}

impl Dots {
    fn of(values: &[f64], width: usize, height: usize, low: f64, high: f64) -> Self {
        let mut dots = Self { width, cells: vec![0; width * height] };
        let (columns, rows) = (2 * width, 4 * height);
        let span = if high > low { high - low } else { 1.0 };
        let mut before: Option<usize> = None;
        for column in 0..columns {
            // The mean of the values in this column of dots, or the nearest value if there is none.
            let start = column * values.len() / columns;
            let end = ((column + 1) * values.len() / columns).max(start + 1);
            let mean = values[start..end].iter().sum::<f64>() / (end - start) as f64;
            let row = (((high - mean) / span) * (rows - 1) as f64).round() as usize;
            // Connected to the dot before, so that a steep fall is a line.
            let from = before.unwrap_or(row);
            (row.min(from)..=row.max(from)).for_each(|row| dots.set(row, column));
            before = Some(row);
        }
        dots
    }

    fn set(&mut self, row: usize, column: usize) {
        // Braille numbers the dots down the left column, then the right one; the two lowest were added later.
        const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        self.cells[(row / 4) * self.width + column / 2] |= BITS[row % 4][column % 2];
    }

    fn cell(&self, row: usize, column: usize) -> char {
        match self.cells[row * self.width + column] {
            0 => ' ',
            bits => char::from_u32(0x2800 + u32::from(bits)).expect("a braille pattern"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_curve_starts_at_the_top_left_and_ends_at_the_bottom_right() {
        let values: Vec<f64> = (0..40).map(|step| 2.0 - f64::from(step) * 0.05).collect();
        let text = curve(&values, 10, 4);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("  2.0000 |\u{2801}") || lines[0].contains('|'), "{text}");
        assert!(lines[0].trim_end().chars().count() < lines[3].trim_end().chars().count(), "{text}");
    }

    #[test]
    fn odd_inputs_are_drawn_without_a_panic() {
        assert_eq!(curve(&[], 10, 4), "");
        assert_eq!(curve(&[1.0], 10, 4), "");
        assert_eq!(curve(&[f64::NAN, f64::INFINITY], 10, 4), "");
        assert_eq!(curve(&[1.0; 3], 10, 4).lines().count(), 4);
        assert_eq!(curve(&[1.0, f64::NAN, 2.0], 3, 1).lines().count(), 1);
    }
}
