//! Quantities: numbers, durations and speeds as short text, the same in every command.

use peergrad_embed::text::text_table::count;

/// "0.4 s", "12 s", "3 min 47 s", "2 h 5 min", "3 d 4 h".
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    let two = |large: u64, name: &str, small: u64, small_name: &str| match small {
        0 => format!("{large} {name}"),
        _ => format!("{large} {name} {small} {small_name}"),
    };
    match whole {
        ..60 => format!("{whole} s"),
        60..3600 => two(whole / 60, "min", whole % 60, "s"),
        3600..86_400 => two(whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3600, "h"),
    }
}

/// A number of 0 or more: with two decimals below 1, one below 10, and none from there on.
pub(crate) fn few_digits(value: f64) -> String {
    match value {
        ..0.0095 => "0".to_owned(),
        ..1.0 => format!("{value:.2}"),
        ..10.0 => format!("{value:.1}"),
        _ => count(value.round() as u64),
    }
}

/// A loss with four decimals; below 0.001 in scientific notation.
pub(crate) fn loss_text(loss: f64) -> String {
    if loss != 0.0 && loss.abs() < 0.001 { format!("{loss:.1e}") } else { format!("{loss:.4}") }
}

/// "1,757 steps/s".
pub(crate) fn speed_text(steps_per_second: f64) -> String {
    format!("{} steps/s", few_digits(steps_per_second))
}

/// "3 min 11 s to go". `None` if no step is left, or if the speed is not known.
pub(crate) fn time_to_go(steps_left: u64, steps_per_second: f64) -> Option<String> {
    let is_known = steps_left > 0 && steps_per_second > 0.0;
    is_known.then(|| format!("{} to go", duration(steps_left as f64 / steps_per_second)))
}

/// A number of bytes that the user gave: a whole number with a unit, `500MB` or `2GiB`.
///
/// # Errors
/// What is allowed, as text.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
    let bytes = unit.and_then(|(_, bytes)| number.parse::<u64>().ok()?.checked_mul(*bytes));
    bytes.ok_or_else(|| "give a whole number and a unit, such as 500MB or 2GiB".to_owned())
}

/// The units of bytes, and how many bytes each has.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Shown in place of the speed while a peer waits for others.
pub(crate) const PAUSED: &str = "paused";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_numbers_are_short() {
        let texts = [0.04, 9.9, 59.4, 227.0, 3600.0, 7500.0, 100_000.0].map(duration);
        assert_eq!(texts, ["0.0 s", "9.9 s", "59 s", "3 min 47 s", "1 h", "2 h 5 min", "1 d 3 h"]);
        assert_eq!([0.0, 0.033, 4.25, 1494.4].map(few_digits), ["0", "0.03", "4.2", "1,494"]);
        assert_eq!([0.0, 0.021_34, 2.3e-7].map(loss_text), ["0.0000", "0.0213", "2.3e-7"]);
        assert_eq!(speed_text(1757.2), "1,757 steps/s");
        assert_eq!(time_to_go(335_600, 1757.2).as_deref(), Some("3 min 11 s to go"));
        assert_eq!(
            ["500MB", "2GiB", "3 gib", "7B"].map(parse_bytes),
            [500_000_000, 2 << 30, 3 << 30, 7].map(Ok)
        );
        for wrong in ["", "5", "GiB", "-1GiB", "1.5GiB", "5 apples", "99999999999TiB"] {
            assert!(parse_bytes(wrong).unwrap_err().contains("500MB or 2GiB"), "{wrong}");
        }
        assert_eq!((time_to_go(0, 10.0), time_to_go(10, 0.0)), (None, None));
    }
}
