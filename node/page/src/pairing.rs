//! Pairing: what commands that compare several trainings with the same seeds have in common.

use std::ops::Range;

/// Reads a range of seeds, as it is typed: `1..4` is 1, 2 and 3.
///
/// # Errors
/// In words: it is none, or an empty one.
pub fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parse = |text: &str| text.trim().parse::<u64>().ok();
    let range = text.split_once("..").and_then(|(from, to)| Some(parse(from)?..parse(to)?));
    let range = range.ok_or("write two numbers with two points between, e.g. 1..4 for 1, 2 and 3")?;
    if range.is_empty() {
        return Err(
            "there is no seed in it; the second number is larger than the first, e.g. 1..4".to_owned()
        );
    }
    Ok(range)
}

/// The one in the middle, or between the two there.
#[must_use]
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[last.div_ceil(2)]))
}

/// How many times as much as the first, in words.
#[must_use]
pub fn factor(own: f64, first: f64) -> String {
    if first == 0.0 { "-".to_owned() } else { format!("{:.2} x", own / first) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_that_is_not_empty() {
        assert_eq!(seeds("1..4"), Ok(1..4));
        assert_eq!(seeds(" 7 .. 8"), Ok(7..8));
        for (text, words) in
            [("4", "two numbers"), ("1..x", "two numbers"), ("3..3", "no seed"), ("4..1", "no seed")]
        {
            assert!(seeds(text).unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn medians_lie_in_the_middle() {
        let of = |values: &[f64]| median(values.iter().copied());
        assert_eq!(
            [of(&[]), of(&[3.0]), of(&[4.0, 1.0]), of(&[9.0, 1.0, 2.0])],
            [None, Some(3.0), Some(2.5), Some(2.0)]
        );
    }
}
