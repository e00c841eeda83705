//! Axes: round tick values at equal distances, in common units.
//!
//! The distance of ticks is 1, 2 or 5 times a power of ten (for long times, whole minutes and hours). It is the smallest for which the
//! labels do not overlap.

/// An axis, vertical or horizontal.
pub struct AxisScale {
    /// The value at its start.
    pub low: f64,
    /// The value at its end.
    pub high: f64,
    /// Round values on it, with their labels.
    pub ticks: Vec<(f64, String)>,
    /// Whether the scale is logarithmic.
    pub is_logarithmic: bool,
}

impl AxisScale {
    /// A linear axis that contains `low` to `high`, ends at ticks, and has about `lines` of them.
    #[must_use]
    pub fn covering(low: f64, high: f64, lines: usize) -> Self {
        let (low, high) = sensible(low, high);
        let step = step(high - low, lines);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = (last - first).min(1000.0) as usize;
        let decimals = decimals(step);
        let ticks = (0..=count).map(|index| (first + index as f64) * step);
        let ticks = ticks.map(|value| (value, plain(value, step, decimals))).collect();
        Self { low: first * step, high: last * step, ticks, is_logarithmic: false }
    }

    /// A logarithmic axis that contains `low` to `high`, which must be above 0 and different.
    #[must_use]
    pub fn by_factors(low: f64, high: f64) -> Self {
        let (low, high) = (low.clamp(VALUE_MIN, VALUE_MAX), high.clamp(VALUE_MIN, VALUE_MAX));
        let mut power = 1.0;
        while power > low {
            power /= 10.0;
        }
        while power * 10.0 <= low {
            power *= 10.0;
        }
        let mut ticks = Vec::new();
        // A wide range has ticks only at powers of ten, and a very wide one only at some of them.
        let factors: &[f64] = if high / low > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        while power <= high {
            let round =
                factors.iter().map(|factor| factor * power).filter(|tick| (low..=high).contains(tick));
            ticks.extend(round.map(|tick| (tick, value(tick))));
            power *= 10.0;
        }
        let every = ticks.len().div_ceil(LEVELS_MAX).max(1);
        let ticks = ticks.into_iter().step_by(every).collect();
        Self { low: low * 0.95, high: high * 1.05, ticks, is_logarithmic: true }
    }

    /// An axis that contains losses of `low` to `high`, with about `lines` ticks. It is logarithmic if the losses span a large factor.
    /// Otherwise it is linear, and begins at 0 unless that would leave little room for the curves.
    #[must_use]
    pub fn of_losses(low: f64, high: f64, lines: usize) -> Self {
        match () {
            () if low > 0.0 && high > low * LINEAR_FACTOR_MAX => Self::by_factors(low, high),
            () if low > 0.0 && low < high * 0.6 => Self::covering(0.0, high, lines),
            () => Self::covering(low, high, lines),
        }
    }

    /// An axis of times from 0 to `extent` nanoseconds.
    #[must_use]
    pub fn times(extent: u64) -> Self {
        let ticks = time_ticks(extent).into_iter().map(|(at, label)| (at as f64, label)).collect();
        Self { low: 0.0, high: extent as f64, ticks, is_logarithmic: false }
    }

    /// An axis of bytes from 0 to `high`, with about `lines` ticks; `suffix` follows the unit.
    #[must_use]
    pub fn bytes(high: f64, lines: usize, suffix: &str) -> Self {
        let (unit, name) = byte_unit(high);
        let mut axis = Self::covering(0.0, high / unit, lines);
        for (value, label) in &mut axis.ticks {
            *value *= unit;
            *label = if *value == 0.0 { "0".to_owned() } else { format!("{label} {name}{suffix}") };
        }
        Self { low: 0.0, high: axis.high * unit, ticks: axis.ticks, is_logarithmic: false }
    }

    /// The position of a value: 0 at the low end, 1 at the high end.
    #[must_use]
    pub fn part(&self, value: f64) -> f64 {
        let part = if self.is_logarithmic {
            let low = binary_logarithm(self.low);
            (binary_logarithm(value) - low) / (binary_logarithm(self.high) - low)
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// The base-2 logarithm of a positive number, accurate enough for drawing, and the same on all platforms. The number's bits contain
/// the exponent. For the fraction f in 1..2, ln f = 2 (z + z³/3 + z⁵/5 + ...) with z = (f - 1) / (f + 1).
fn binary_logarithm(number: f64) -> f64 {
    let bits = number.max(VALUE_MIN).to_bits();
    let exponent = (bits >> 52) as f64 - 1023.0;
    let fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let z = (fraction - 1.0) / (fraction + 1.0);
    let (mut power, mut sum) = (z, 0.0);
    for odd in [1.0, 3.0, 5.0, 7.0, 9.0, 11.0] {
        sum += power / odd;
        power *= z * z;
    }
    exponent + 2.0 * sum / std::f64::consts::LN_2
}

/// Replaces bounds that are not finite or not distinct by bounds that are.
fn sensible(low: f64, high: f64) -> (f64, f64) {
    let low = if low.is_finite() { low.clamp(-VALUE_MAX, VALUE_MAX) } else { 0.0 };
    let high = if high.is_finite() { high.clamp(-VALUE_MAX, VALUE_MAX) } else { low };
    let nearest = low.abs().max(high.abs()) * 1e-9;
    match high - low {
        apart if apart > nearest => (low, high),
        _ if low == 0.0 => (0.0, 1.0),
        _ => (low - low.abs() * 0.5, low + low.abs() * 0.5),
    }
}

/// The smallest round step that divides `span` into at most `lines` parts.
fn step(span: f64, lines: usize) -> f64 {
    let wanted = span / lines.max(1) as f64;
    let mut power = 1.0;
    while power * 10.0 <= wanted {
        power *= 10.0;
    }
    while power > wanted && power > VALUE_MIN {
        power /= 10.0;
    }
    let round = [1.0, 2.0, 5.0].map(|factor| factor * power);
    round.into_iter().find(|step| *step >= wanted * 0.999).unwrap_or(10.0 * power)
}

/// The number of decimals that distinguishes multiples of `step`.
fn decimals(step: f64) -> usize {
    let (mut rest, mut count) = (step, 0);
    while rest < 0.999 && count < 12 {
        rest *= 10.0;
        count += 1;
    }
    count
}

fn plain(value: f64, step: f64, decimals: usize) -> String {
    if value.abs() < step * 1e-6 {
        "0".to_owned()
    } else if decimals > 6 || value.abs() >= 1e7 {
        format!("{value:.1e}")
    } else {
        format!("{value:.decimals$}")
    }
}

/// Round times from 0 to `extent` nanoseconds, with their labels.
#[must_use]
pub fn time_ticks(extent: u64) -> Vec<(u64, String)> {
    let (unit, name) = match extent {
        0..2_000 => (1, "ns"),
        2_000..2_000_000 => (1_000, "µs"),
        2_000_000..2_000_000_000 => (1_000_000, "ms"),
        2_000_000_000..=300_000_000_000 => (SECOND, "s"),
        300_000_000_001..=18_000_000_000_000 => (MINUTE, "min"),
        18_000_000_000_001..=172_800_000_000_000 => (HOUR, "h"),
        _ => (24 * HOUR, "d"),
    };
    let span = extent as f64 / unit as f64;
    // Steps of minutes and hours follow the clock, not powers of ten.
    let step = match unit {
        MINUTE | HOUR => step_of_clock(span),
        _ => step(span, TIME_LINES),
    };
    let decimals = decimals(step);
    let count = (span / step) as u64;
    let label = |index: u64| {
        let value = index as f64 * step;
        ((value * unit as f64) as u64, format!("{value:.decimals$} {name}"))
    };
    (0..=count).map(label).collect()
}

fn step_of_clock(span: f64) -> f64 {
    let steps = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0];
    let fits = steps.into_iter().find(|step| span / step <= TIME_LINES as f64);
    fits.unwrap_or_else(|| step(span, TIME_LINES))
}

/// A duration in nanoseconds as text: "812 ms", "12.4 s", "6 min 40 s".
#[must_use]
pub fn duration(nanos: u64) -> String {
    let in_unit = |unit: u64, name: &str| {
        let value = nanos as f64 / unit as f64;
        let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        format!("{value:.decimals$} {name}")
    };
    match nanos {
        0 => "0 s".to_owned(),
        1..1_000_000 => in_unit(1_000, "µs"),
        1_000_000..1_000_000_000 => in_unit(1_000_000, "ms"),
        1_000_000_000..=300_000_000_000 => in_unit(SECOND, "s"),
        300_000_000_001..7_200_000_000_000 => {
            format!("{} min {:02} s", nanos / SECOND / 60, nanos / SECOND % 60)
        }
        7_200_000_000_000..172_800_000_000_000 => {
            format!("{} h {:02} min", nanos / HOUR, nanos / MINUTE % 60)
        }
        _ => format!("{} d {:02} h", nanos / (24 * HOUR), nanos / HOUR % 24),
    }
}

/// A number of bytes as text: "1.24 MB".
#[must_use]
pub fn bytes(count: f64) -> String {
    let (unit, name) = byte_unit(count);
    let value = count / unit;
    let decimals = if unit == 1.0 || value >= 100.0 { 0 } else { 1 + usize::from(value < 10.0) };
    format!("{value:.decimals$} {name}")
}

fn byte_unit(count: f64) -> (f64, &'static str) {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    units.into_iter().find(|(unit, _)| count >= *unit).unwrap_or((1.0, "B"))
}

/// A number with about four significant digits: "0.1234", "17.3".
#[must_use]
pub fn value(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        1e-3..10.0 => format!("{number:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        10.0..1e6 => format!("{number:.1}"),
        _ => format!("{number:.2e}"),
    }
}

/// A part of a whole as text: "12.5 %".
#[must_use]
pub fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", part / whole * 100.0) } else { "0 %".to_owned() }
}

/// A count with a comma between thousands: "12,345".
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut written = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    written
}

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// The most ticks of a logarithmic axis.
const LEVELS_MAX: usize = 7;
/// Losses that span a larger factor get a logarithmic axis.
const LINEAR_FACTOR_MAX: f64 = 5.0;
const TIME_LINES: usize = 12;
const VALUE_MAX: f64 = 1e100;
const VALUE_MIN: f64 = 1e-100;

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(extent: u64) -> Vec<String> {
        time_ticks(extent).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn time_ticks_are_round_and_few() {
        assert_eq!(labels(12_400_000_000).last().map(String::as_str), Some("12 s"));
        assert_eq!(labels(250_000_000)[1], "50 ms");
        assert_eq!(labels(40 * 60 * SECOND)[1], "5 min");
        assert_eq!(labels(6 * 3600 * SECOND)[1], "1 h");
        for power in 0..60 {
            let count = labels(3_u64 << power).len();
            assert!((3..=13).contains(&count), "{count} ticks for {}", 3_u64 << power);
        }
    }

    #[test]
    fn values_are_covered_by_few_round_ticks() {
        for (low, high) in
            [(0.0, 2.31), (0.1, 0.1), (0.0, 0.0), (-3.0, 4e9), (1e-9, 3e-9), (f64::NAN, f64::INFINITY)]
        {
            let axis = AxisScale::covering(low, high, 4);
            assert!((2..=7).contains(&axis.ticks.len()), "{low} to {high}: {:?}", axis.ticks);
            assert!(axis.low < axis.high, "{low} to {high}");
            if low.is_finite() {
                assert!(axis.low <= low && axis.high >= high, "{low} to {high}");
            }
        }
    }

    #[test]
    fn equal_factors_are_equally_far_apart() {
        for (number, logarithm) in [(1.0, 0.0), (8.0, 3.0), (0.125, -3.0), (10.0, std::f64::consts::LOG2_10)]
        {
            assert!((binary_logarithm(number) - logarithm).abs() < 1e-6, "{number}");
        }
        let axis = AxisScale::by_factors(0.24, 2.3);
        let labels: Vec<&str> = axis.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(labels, ["0.5", "1", "2"]);
        assert!(axis.part(0.24) > 0.0 && axis.part(0.24) < 0.05 && axis.part(2.3) > 0.95);
        assert!(AxisScale::by_factors(1e-300, 1e300).ticks.len() <= LEVELS_MAX);
    }

    #[test]
    fn amounts_as_text() {
        assert_eq!(duration(812_000_000), "812 ms");
        assert_eq!(duration(12_400_000_000), "12.4 s");
        assert_eq!(duration(400_000_000_000), "6 min 40 s");
        assert_eq!(bytes(1_240_000.0), "1.24 MB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(percent(1.0, 8.0), "12.5 %");
    }
}
