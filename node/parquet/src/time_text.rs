//! Dates and times as text, in the form of ISO 8601.

use std::fmt::Write as _;

/// What times are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    fn per_second(self) -> i64 {
        match self {
            Self::Millis => 1_000,
            Self::Micros => 1_000_000,
            Self::Nanos => 1_000_000_000,
        }
    }

    /// Digits of a fraction of a second.
    fn digits(self) -> usize {
        match self {
            Self::Millis => 3,
            Self::Micros => 6,
            Self::Nanos => 9,
        }
    }
}

/// The date so many days after the first of January 1970: `2026-03-01`.
pub(crate) fn date(days: i64, out: &mut String) {
    // The algorithm of Howard Hinnant ("chrono-compatible low-level date algorithms"): years begin in March, and repeat every 400 years.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let written = if (0..=9999).contains(&year) {
        write!(out, "{year:04}-{month:02}-{day:02}")
    } else {
        write!(out, "{year:+}-{month:02}-{day:02}")
    };
    written.expect("a text takes everything");
}

/// A time since midnight: `09:30:00`, with a fraction if there is one.
pub(crate) fn time(count: i64, unit: Unit, out: &mut String) {
    let (seconds, fraction) = (count.div_euclid(unit.per_second()), count.rem_euclid(unit.per_second()));
    let (hours, minutes) = (seconds.div_euclid(3600), seconds.rem_euclid(3600) / 60);
    write!(out, "{hours:02}:{minutes:02}:{:02}", seconds.rem_euclid(60)).expect("a text takes everything");
    if fraction > 0 {
        let digits = format!("{fraction:0width$}", width = unit.digits());
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
}

/// A time since the beginning of 1970: `2026-03-01T09:30:00`, with a `Z` if it is in UTC.
pub(crate) fn timestamp(count: i64, unit: Unit, is_utc: bool, out: &mut String) {
    let per_day = 86_400 * unit.per_second();
    date(count.div_euclid(per_day), out);
    out.push('T');
    time(count.rem_euclid(per_day), unit, out);
    if is_utc {
        out.push('Z');
    }
}

/// A time in the form of older programs: nanoseconds of a day in two words, the low one first, and the day, counted from 4713 BC.
pub(crate) fn timestamp96(words: &[u32], out: &mut String) {
    let &[low, high, day] = words else { return };
    let nanos = u64::from(high) << 32 | u64::from(low);
    // Days that are longer than a day do not occur.
    let nanos = (nanos % 86_400_000_000_000) as i64;
    date(i64::from(day) - 2_440_588, out);
    out.push('T');
    time(nanos, Unit::Nanos, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, text) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (20_513, "2026-03-01"),
            (-719_529, "-1-12-31"),
            (i64::from(i32::MAX), "+5881580-07-11"),
        ] {
            assert_eq!(written(|out| date(days, out)), text);
        }
    }

    #[test]
    fn times_have_the_fraction_that_they_have() {
        assert_eq!(written(|out| time(34_200_000, Unit::Millis, out)), "09:30:00");
        assert_eq!(written(|out| time(1_500, Unit::Micros, out)), "00:00:00.0015");
        let at = |count, unit| written(|out| timestamp(count, unit, false, out));
        assert_eq!(at(-1, Unit::Nanos), "1969-12-31T23:59:59.999999999");
        assert_eq!(at(i64::MIN, Unit::Millis).len(), "-292275055-05-16T16:47:04.192".len());
        assert_eq!(written(|out| timestamp(0, Unit::Millis, true, out)), "1970-01-01T00:00:00Z");
        assert_eq!(written(|out| timestamp96(&[1_000, 0, 2_440_588], out)), "1970-01-01T00:00:00.000001");
    }
}
