//! Ids: the users or the items that a file of ratings names, each with the row that it has in the model.
//!
//! Whole numbers are kept as ranges, so a million users that are numbered without gaps take a few bytes; all other ids are kept as texts. The
//! row of an id is its place in their order: by number, or by the bytes of its text.
//!
//! ```text
//! 7, 3, 4, 5        "3-5,7"             rows 3 -> 0, 4 -> 1, 5 -> 2, 7 -> 3
//! bob, ann          ["ann", "bob"]      rows ann -> 0, bob -> 1
//! ```
//! # Invariants
//! - The order of the rows in the file has no influence.
//! - Ids are different, and there is at least one.

use serde::{Deserialize, Serialize};

use super::label_texts::LabelTexts;

/// The most ids: their rows are counted in 32 bits.
const IDS_MAX: u64 = u32::MAX as u64;

/// The ids of all users, or of all items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ids {
    /// Whole numbers.
    Numbers(IdRanges),
    /// Texts, in their order.
    Texts(Vec<String>),
}

/// Whole numbers from 0 on, as ranges; written as `1-943,950`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdRanges(Vec<IdRange>);

/// Consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdRange {
    first: u64,
    last: u64,
    /// The row of the first one.
    row: u32,
}

impl Ids {
    /// The ids in these cells. They are numbers if all of them are whole numbers without sign or leading zeros.
    #[must_use]
    pub fn of(cells: &LabelTexts) -> Self {
        let texts = || cells.distinct().iter().map(|cell| &cell.text);
        let numbers: Option<Vec<u64>> = texts().map(|text| whole(text)).collect();
        let Some(mut numbers) = numbers else {
            let mut texts: Vec<String> = texts().cloned().collect();
            texts.sort_unstable();
            return Self::Texts(texts);
        };
        numbers.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        Self::Numbers(IdRanges::new(ranges).expect("a file has fewer than 2^32 rows"))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Numbers(IdRanges(ranges)) => ranges.last().map_or(0, IdRange::end) as usize,
            Self::Texts(texts) => texts.len(),
        }
    }

    /// The row of an id; `None` if it is unknown.
    #[must_use]
    pub fn row(&self, text: &str) -> Option<u32> {
        match self {
            Self::Numbers(IdRanges(ranges)) => {
                let number = whole(text)?;
                let range = ranges[..ranges.partition_point(|range| range.first <= number)].last()?;
                (number <= range.last).then(|| range.row + (number - range.first) as u32)
            }
            Self::Texts(texts) => {
                texts.binary_search_by(|known| known.as_str().cmp(text)).ok().map(|row| row as u32)
            }
        }
    }

    /// Some of the ids, for an error.
    #[must_use]
    pub fn examples(&self) -> String {
        const SHOWN: usize = 3;
        match self {
            Self::Numbers(ranges) => {
                let text = String::from(ranges.clone());
                let parts: Vec<&str> = text.split(',').take(SHOWN + 1).collect();
                if parts.len() > SHOWN {
                    format!("{}, ...", parts[..SHOWN].join(", "))
                } else {
                    parts.join(", ")
                }
            }
            Self::Texts(texts) if texts.len() > SHOWN => format!("{}, ...", texts[..SHOWN].join(", ")),
            Self::Texts(texts) => texts.join(", "),
        }
    }

    /// Why these cannot be the ids of a model, in words; `None` if they can. It checks ids that other peers sent.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Self::Texts(texts) if texts.len() as u64 > IDS_MAX => Some("there are too many ids"),
            Self::Texts(texts) if !texts.is_sorted_by(|one, next| one < next) => Some("ids are not in order"),
            _ if self.count() == 0 => Some("there are no ids"),
            _ => None,
        }
    }
}

impl IdRange {
    /// The row after that of the last number.
    fn end(&self) -> u32 {
        self.row + (self.last - self.first + 1) as u32
    }
}

impl IdRanges {
    /// Ranges of first and last numbers, ascending.
    fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Result<Self, String> {
        let mut all: Vec<IdRange> = Vec::new();
        let mut row = 0_u64;
        for (first, last) in ranges {
            if last < first || all.last().is_some_and(|before| before.last >= first) {
                return Err(format!("the ids {first}-{last} are not in order"));
            }
            all.push(IdRange { first, last, row: row as u32 });
            row = (last - first).saturating_add(1).saturating_add(row);
            if row > IDS_MAX {
                return Err("there are too many ids".to_owned());
            }
        }
        Ok(Self(all))
    }
}

impl TryFrom<String> for IdRanges {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            whole(first).zip(whole(last)).ok_or_else(|| format!("`{part}` is no range of ids"))
        };
        Self::new(text.split(',').map(range).collect::<Result<Vec<_>, _>>()?)
    }
}

impl From<IdRanges> for String {
    fn from(IdRanges(ranges): IdRanges) -> Self {
        let part = |range: IdRange| match range {
            IdRange { first, last, .. } if first == last => first.to_string(),
            IdRange { first, last, .. } => format!("{first}-{last}"),
        };
        ranges.into_iter().map(part).collect::<Vec<String>>().join(",")
    }
}

/// The whole number that is written in the shortest way.
fn whole(text: &str) -> Option<u64> {
    let is_shortest =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_shortest { text.parse().ok().filter(|number| *number < u64::MAX) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::label_texts::RowLocation;

    fn ids(texts: &[&str]) -> Ids {
        let mut cells = LabelTexts::default();
        texts.iter().for_each(|&text| cells.push(text.into(), || RowLocation::Line(1)));
        Ids::of(&cells)
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Section {
        users: Ids,
    }

    fn written(users: Ids) -> String {
        toml::to_string(&Section { users }).unwrap()
    }

    #[test]
    fn whole_numbers_are_ranges() {
        let numbers = ids(&["7", "3", "4", "3", "5", "0"]);
        assert_eq!(written(numbers.clone()), "users = \"0,3-5,7\"\n");
        assert_eq!((numbers.count(), numbers.problem()), (5, None));
        let rows = ["0", "1", "3", "5", "7", "8", "03", "-3", "x", ""].map(|text| numbers.row(text));
        assert_eq!(rows[..5], [Some(0), None, Some(1), Some(3), Some(4)]);
        assert!(rows[5..].iter().all(Option::is_none));
        assert_eq!(numbers.examples(), "0, 3-5, 7");
        assert_eq!(ids(&["1", "3", "5", "7"]).examples(), "1, 3, 5, ...");
    }

    #[test]
    fn other_ids_are_texts() {
        let texts = ids(&["bob", "ann", "7", "bob"]);
        assert_eq!(texts, Ids::Texts(vec!["7".into(), "ann".into(), "bob".into()]));
        assert_eq!((texts.row("7"), texts.row("bob"), texts.row("eve")), (Some(0), Some(2), None));
        assert_eq!(ids(&["07", "8"]), Ids::Texts(vec!["07".into(), "8".into()]), "a leading zero is kept");
        assert_eq!(ids(&["1", "18446744073709551615"]).count(), 2);
    }

    #[test]
    fn what_is_written_reads_back_and_nonsense_is_refused() {
        for texts in [&["7", "3", "4"][..], &["a", "b"], &["5"]] {
            let text = written(ids(texts));
            assert_eq!(toml::from_str::<Section>(&text).unwrap().users, ids(texts), "{text}");
        }
        for text in ["", "1-", "3-1", "1,1", "2,1", "1-4,4", "0-4294967295", "0-18446744073709551614", "a"] {
            assert!(toml::from_str::<Section>(&format!("users = \"{text}\"")).is_err(), "{text}");
        }
        let problem = |text: &str| toml::from_str::<Section>(text).unwrap().users.problem();
        assert_eq!(problem("users = []"), Some("there are no ids"));
        assert_eq!(problem("users = [\"b\", \"a\"]"), Some("ids are not in order"));
        assert_eq!(problem("users = [\"a\", \"a\"]"), Some("ids are not in order"));
    }
}
