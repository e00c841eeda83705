//! Helpers for comparing trainings over the same seeds: seed ranges, medians and factors.

use std::ops::Range;

/// Parses a range of seeds: `1..4` stands for 1, 2 and 3.
///
/// # Errors
/// The text is not a range, or the range is empty; the error says what to write.
pub fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parse = |text: &str| text.trim().parse::<u64>().ok();
    let range = text.split_once("..").and_then(|(from, to)| Some(parse(from)?..parse(to)?));
    let range = range.ok_or("write two numbers with two dots between them, e.g. 1..4 for 1, 2 and 3")?;
    if range.is_empty() {
        return Err(
            "the range has no seed; the second number must be larger than the first, e.g. 1..4".to_owned()
        );
    }
    Ok(range)
}

/// The median, which lies between the two middle values if their number is even. `None` if there are no values.
#[must_use]
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[last.div_ceil(2)]))
}

/// The factor between `own` and `first` as text: "0.25 x"; "-" if `first` is 0.
#[must_use]
pub fn factor(own: f64, first: f64) -> String {
    if first == 0.0 { "-".to_owned() } else { format!("{:.2} x", own / first) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_non_empty_range() {
        assert_eq!(seeds("1..4"), Ok(1..4));
        assert_eq!(seeds(" 7 .. 8"), Ok(7..8));
        for (text, words) in
            [("4", "two numbers"), ("1..x", "two numbers"), ("3..3", "no seed"), ("4..1", "no seed")]
        {
            assert!(seeds(text).unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        let of = |values: &[f64]| median(values.iter().copied());
        assert_eq!(
            [of(&[]), of(&[3.0]), of(&[4.0, 1.0]), of(&[9.0, 1.0, 2.0])],
            [None, Some(3.0), Some(2.5), Some(2.0)]
        );
    }
}
