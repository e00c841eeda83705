//! Durations in scenario files.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A duration as people write it: "250ms", "2s", "1.5min".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(pub(super) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a time such as \"250ms\", \"2s\" or \"1.5min\" (us, ms, s, min, h), at most \"1000h\"",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                time_of(text).map(Time).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

fn time_of(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().ok()?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok().filter(|time| *time <= TIME_MAX)
}

/// Small enough that the sum of a thousand is still a valid instant of virtual time.
const TIME_MAX: Duration = Duration::from_secs(1000 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(time_of("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(time_of(" 1.5 min"), Some(Duration::from_secs(90)));
        assert_eq!(time_of("20us"), Some(Duration::from_micros(20)));
        assert_eq!([time_of("5"), time_of("fast"), time_of("-1s"), time_of("2 weeks")], [None; 4]);
        assert_eq!([time_of("nans"), time_of("infs"), time_of("1001h")], [None; 3]);
    }
}
