//! Numbers in scenario files: each type has its range, so that a mistake is reported with its line.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A whole number from `FROM` to `TO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole<const FROM: u64, const TO: u64>(pub(super) u64);

impl<const FROM: u64, const TO: u64> Whole<FROM, TO> {
    pub(super) fn count(self) -> usize {
        self.0 as usize
    }
}

impl<'de, const FROM: u64, const TO: u64> Deserialize<'de> for Whole<FROM, TO> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words<const FROM: u64, const TO: u64>;
        impl<const FROM: u64, const TO: u64> Visitor<'_> for Words<FROM, TO> {
            type Value = Whole<FROM, TO>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {FROM} to {TO}")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                let whole = u64::try_from(number).ok().filter(|whole| (FROM..=TO).contains(whole));
                whole.map(Whole).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_i64(Words)
    }
}

/// A range of numbers, and its unit.
pub(super) trait Range {
    const FROM: f64;
    const TO: f64;
    const WORDS: &'static str;
}

/// A number in the range `R`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Within<R: Range>(pub(super) f64, std::marker::PhantomData<R>);

impl<'de, R: Range> Deserialize<'de> for Within<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words<R>(std::marker::PhantomData<R>);
        impl<R: Range> Visitor<'_> for Words<R> {
            type Value = Within<R>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(R::WORDS)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Within<R>, E> {
                // NaN is in no range.
                match (R::FROM..=R::TO).contains(&number) {
                    true => Ok(Within(number, std::marker::PhantomData)),
                    false => Err(E::invalid_value(de::Unexpected::Float(number), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Within<R>, E> {
                self.visit_f64(number as f64)
            }
        }
        deserializer.deserialize_f64(Words(std::marker::PhantomData))
    }
}

/// A share of all, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share;

impl Range for Share {
    const FROM: f64 = 0.0;
    const TO: f64 = 1.0;
    const WORDS: &'static str = "a share from 0 to 1, e.g. 0.01 for one of a hundred";
}

/// A rate in Mbit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mbit;

impl Range for Mbit {
    const FROM: f64 = 0.001;
    const TO: f64 = 1e6;
    const WORDS: &'static str = "a rate in Mbit/s, from 0.001 to 1000000";
}

impl Within<Mbit> {
    /// The rate in bits a second.
    pub(super) fn bits(self) -> u64 {
        (self.0 * 1e6) as u64
    }
}

/// A factor by which something is slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times;

impl Range for Times {
    const FROM: f64 = 1.0;
    const TO: f64 = 1e6;
    const WORDS: &'static str = "how many times slower, from 1 to 1000000";
}
