//! `copies` as it is written in files: a number, or `"all"`.

use std::fmt::{Display, Formatter, Result as Formatted};

use peergrad_protocol::limits::COPIES_NUMBER_MAX;
use peergrad_protocol::placement::Copies;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserializer, Serializer};

use super::{SpecificationError, within};

/// What may be written.
const ALLOWED: &str = "1 to 8, or \"all\"";
const _: () = assert!(COPIES_NUMBER_MAX == 8, "as the words say");

/// An error unless so many copies can be asked for.
pub(super) fn check(copies: Copies) -> Result<(), SpecificationError> {
    match copies {
        Copies::Number(count) => within("shards.copies", count, 1..=COPIES_NUMBER_MAX, ALLOWED),
        Copies::All => Ok(()),
    }
}

pub(super) fn serialize<S: Serializer>(copies: &Copies, serializer: S) -> Result<S::Ok, S::Error> {
    match copies {
        Copies::Number(count) => serializer.serialize_u64(*count as u64),
        Copies::All => serializer.serialize_str(ALL),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Copies, D::Error> {
    deserializer.deserialize_any(Written)
}

/// The word for all members.
const ALL: &str = "all";

struct Written;

impl Visitor<'_> for Written {
    type Value = Copies;

    fn expecting(&self, words: &mut Formatter<'_>) -> Formatted {
        ALLOWED.fmt(words)
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<Copies, E> {
        // Whether it is too large is said where all other settings are checked.
        let count = usize::try_from(count).map_err(|_| E::invalid_value(Unexpected::Signed(count), &self))?;
        Ok(Copies::Number(count))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Copies, E> {
        if word == ALL { Ok(Copies::All) } else { Err(E::invalid_value(Unexpected::Str(word), &self)) }
    }
}
