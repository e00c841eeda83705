//! The setting `replicas` in files: a number, or `"all"`.

use std::fmt::{Display, Formatter, Result as Formatted};

use peergrad_protocol::limits::REPLICAS_NUMBER_MAX;
use peergrad_protocol::placement::Replicas;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserializer, Serializer};

use super::{SpecificationError, within};

/// The allowed values, for errors.
const ALLOWED: &str = "1 to 8, or \"all\"";
const _: () = assert!(REPLICAS_NUMBER_MAX == 8, "`ALLOWED` states this number");

/// Checks the number of replicas.
///
/// # Errors
/// It is not allowed.
pub(super) fn check(replicas: Replicas) -> Result<(), SpecificationError> {
    match replicas {
        Replicas::Number(count) => within("shards.replicas", count, 1..=REPLICAS_NUMBER_MAX, ALLOWED),
        Replicas::All => Ok(()),
    }
}

pub(super) fn serialize<S: Serializer>(replicas: &Replicas, serializer: S) -> Result<S::Ok, S::Error> {
    match replicas {
        Replicas::Number(count) => serializer.serialize_u64(*count as u64),
        Replicas::All => serializer.serialize_str(ALL),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Replicas, D::Error> {
    deserializer.deserialize_any(Written)
}

/// The word for all members.
const ALL: &str = "all";

struct Written;

impl Visitor<'_> for Written {
    type Value = Replicas;

    fn expecting(&self, words: &mut Formatter<'_>) -> Formatted {
        ALLOWED.fmt(words)
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<Replicas, E> {
        // `check` rejects numbers that are too large.
        let count = usize::try_from(count).map_err(|_| E::invalid_value(Unexpected::Signed(count), &self))?;
        Ok(Replicas::Number(count))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Replicas, E> {
        if word == ALL { Ok(Replicas::All) } else { Err(E::invalid_value(Unexpected::Str(word), &self)) }
    }
}
