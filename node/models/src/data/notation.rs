//! Notations: how the cells of a column write their numbers.
//!
//! ```text
//! 1234.5       plain          1234,5       plain, in a file with decimal commas
//! 1,234.5      amount         1.234,5      amount, likewise; also 1 234,5   1'234.5   $1,234   12 €   (5)
//! 5%           percent        TRUE   no    boolean: 1 and 0
//! ```
//! A file has one decimal mark, and each column has one notation. The founder of a run infers both once, from many rows. A cell that is not
//! in the notation of its column is an error, so no reader guesses.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cells::number;

/// Texts that stand for a missing number, in lower case.
const MISSING: [&str; 20] = [
    "", "?", "-", "--", "---", ".", "..", "*", "na", "n/a", "#n/a", "n.a.", "<na>", "nan", "null", "(null)",
    "none", "nil", "missing", "\\n",
];
/// Signs of currencies.
const CURRENCIES: [&str; 18] = [
    "$", "\u{20ac}", "\u{a3}", "\u{a5}", "\u{20b9}", "\u{20a9}", "\u{20bd}", "\u{20ba}", "\u{20bf}", "USD",
    "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "CAD", "AUD",
];
/// Words that stand for 0 and 1, in lower case.
const BOOLEANS: [[&str; 2]; 5] = [["false", "true"], ["no", "yes"], ["n", "y"], ["f", "t"], ["off", "on"]];

/// The mark between the whole part of a number and its fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decimal {
    /// `1.5`
    #[default]
    #[serde(rename = ".")]
    Point,
    /// `1,5`
    #[serde(rename = ",")]
    Comma,
}

/// How the numbers of a column are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notation {
    /// Digits, a decimal mark and an exponent.
    #[default]
    Plain,
    /// As plain, with digits in groups of three, or with the sign of a currency.
    Amount,
    /// As an amount, followed by `%`; `5%` is 5.
    Percent,
    /// One of two words, or 0 and 1.
    Boolean,
}

/// What a cell says about the decimal mark of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The mark is this one.
    Of(Decimal),
    /// A single comma, three digits before the end: `1,234`.
    Either,
    /// The cell is the same number in both.
    None,
}

impl Decimal {
    /// The mark.
    fn character(self) -> char {
        match self {
            Self::Point => '.',
            Self::Comma => ',',
        }
    }

    /// What `cell` says about the mark, if it is a number.
    pub(super) fn evidence(cell: &[u8]) -> Evidence {
        let Ok(text) = std::str::from_utf8(cell) else { return Evidence::None };
        let text = bare(text.trim().trim_end_matches('%').trim());
        let commas = text.matches(',').count();
        if commas == 0 && !text.contains('.') {
            return Evidence::None;
        }
        let reads = |decimal| amount_of(&text, decimal).is_some();
        match (reads(Self::Point), reads(Self::Comma)) {
            (true, false) => Evidence::Of(Self::Point),
            (false, true) => Evidence::Of(Self::Comma),
            (true, true) if commas == 1 => Evidence::Either,
            _ => Evidence::None,
        }
    }
}

impl Notation {
    /// The number in a cell, which may be infinite or NaN; `None` if the cell is not in this notation.
    pub(super) fn read(self, cell: &[u8], decimal: Decimal) -> Option<f64> {
        match self {
            Self::Plain => plain(cell, decimal),
            Self::Boolean => boolean(cell).map(f64::from),
            Self::Amount => amount(std::str::from_utf8(cell).ok()?, decimal),
            Self::Percent => amount(std::str::from_utf8(cell).ok()?.trim().strip_suffix('%')?, decimal),
        }
    }
}

/// Whether a cell stands for a missing number.
pub(super) fn is_missing(cell: &[u8]) -> bool {
    let cell = cell.trim_ascii();
    MISSING.iter().any(|mark| cell.eq_ignore_ascii_case(mark.as_bytes()))
}

/// Whether a cell is a number in any notation but the boolean one.
pub(super) fn is_numeric(cell: &[u8]) -> bool {
    let begins_so = |byte: &u8| byte.is_ascii_digit() || *byte >= 0x80 || b"+-.,$(iInNUEGJCA".contains(byte);
    cell.trim_ascii().first().is_some_and(begins_so)
        && [Notation::Plain, Notation::Amount, Notation::Percent].iter().any(|notation| {
            [Decimal::Point, Decimal::Comma].iter().any(|&decimal| notation.read(cell, decimal).is_some())
        })
}

/// The pair of words that a boolean cell is of, by its place among all pairs.
pub(super) fn boolean_pair(cell: &[u8]) -> Option<usize> {
    let is_cell = |word: &str| cell.trim_ascii().eq_ignore_ascii_case(word.as_bytes());
    BOOLEANS.iter().position(|pair| pair.iter().any(|word| is_cell(word)))
}

fn boolean(cell: &[u8]) -> Option<bool> {
    match cell.trim_ascii() {
        b"0" => Some(false),
        b"1" => Some(true),
        word => {
            let [_, yes] = BOOLEANS[boolean_pair(word)?];
            Some(word.eq_ignore_ascii_case(yes.as_bytes()))
        }
    }
}

fn plain(cell: &[u8], decimal: Decimal) -> Option<f64> {
    if decimal == Decimal::Point || !cell.contains(&b',') {
        // Without a decimal mark, both notations are the same; `1.5` is no number among decimal commas.
        return number(cell).filter(|_| decimal == Decimal::Point || !cell.contains(&b'.'));
    }
    let text = std::str::from_utf8(cell).ok()?.trim();
    // `5,` is rather a cell and a comma.
    (!text.contains('.') && !text.ends_with(','))
        .then(|| f64::from_str(&text.replacen(',', ".", 1)).ok())
        .flatten()
}

/// A number that may have groups of digits, the sign of a currency, and a sign anywhere before the digits or parentheses.
fn amount(text: &str, decimal: Decimal) -> Option<f64> {
    amount_of(&bare(text.trim()), decimal)
}

/// An amount without its currency: a minus as `-`, parentheses as a minus.
fn bare(text: &str) -> String {
    let mut text = text.replace('\u{2212}', "-");
    if let Some(inside) = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        text = format!("-{inside}");
    }
    let (sign, unsigned) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (&text[..1], rest.trim_start()),
        None => ("", text.as_str()),
    };
    let before = CURRENCIES.iter().find_map(|currency| unsigned.strip_prefix(currency));
    let after = || CURRENCIES.iter().find_map(|currency| unsigned.strip_suffix(currency));
    format!("{sign}{}", before.or_else(after).unwrap_or(unsigned).trim_matches([' ', '\u{a0}', '\u{202f}']))
}

fn amount_of(bare: &str, decimal: Decimal) -> Option<f64> {
    const GROUPING: [char; 7] = [',', '.', ' ', '\u{a0}', '\u{202f}', '\'', '\u{2019}'];
    let (whole, fraction) = match bare.split_once(decimal.character()) {
        Some((_, "")) if decimal == Decimal::Comma => return None,
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (bare, None),
    };
    let (sign, digits) = match whole.strip_prefix(['-', '+']) {
        Some(digits) => (&whole[..1], digits),
        None => ("", whole),
    };
    let mark = GROUPING.into_iter().find(|&mark| mark != decimal.character() && digits.contains(mark));
    let mut joined = String::with_capacity(bare.len());
    joined.push_str(sign);
    match mark {
        None => joined.push_str(digits),
        Some(mark) => {
            let mut groups = digits.split(mark);
            let first = groups.next().unwrap_or_default();
            let is_digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
            // `0,123` is no group of thousands.
            let is_leading = (1..=3).contains(&first.len()) && is_digits(first) && !first.starts_with('0');
            if !is_leading {
                return None;
            }
            joined.push_str(first);
            for group in groups {
                if group.len() != 3 || !is_digits(group) {
                    return None;
                }
                joined.push_str(group);
            }
        }
    }
    if let Some(fraction) = fraction {
        joined.push('.');
        joined.push_str(fraction);
    }
    joined.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(notation: Notation, text: &str, decimal: Decimal) -> Option<f64> {
        notation.read(text.as_bytes(), decimal)
    }

    #[test]
    fn plain_numbers_have_one_decimal_mark() {
        for (text, point, comma) in [
            ("1.5", Some(1.5), None),
            ("-1,5", None, Some(-1.5)),
            ("7", Some(7.0), Some(7.0)),
            (" 1e3 ", Some(1000.0), Some(1000.0)),
            ("1,5e3", None, Some(1500.0)),
            (",5", None, Some(0.5)),
            ("5,", None, None),
            ("1,234,567", None, None),
            ("1.234,5", None, None),
            ("", None, None),
            ("red", None, None),
        ] {
            assert_eq!(read(Notation::Plain, text, Decimal::Point), point, "{text}");
            assert_eq!(read(Notation::Plain, text, Decimal::Comma), comma, "{text}");
        }
    }

    #[test]
    fn amounts_have_groups_and_currencies() {
        for (text, point, comma) in [
            ("1,234", Some(1234.0), Some(1.234)),
            ("1,234.5", Some(1234.5), None),
            ("1.234,5", None, Some(1234.5)),
            ("1.234.567", None, Some(1_234_567.0)),
            ("$1,234", Some(1234.0), Some(1.234)),
            ("-$5", Some(-5.0), Some(-5.0)),
            ("12,50 \u{20ac}", None, Some(12.5)),
            ("(1,234.00)", Some(-1234.0), None),
            ("1 234,5", None, Some(1234.5)),
            ("1\u{a0}234\u{a0}567", Some(1_234_567.0), Some(1_234_567.0)),
            ("1'234.5", Some(1234.5), None),
            ("USD 1,000", Some(1000.0), Some(1.0)),
            ("0,123", None, Some(0.123)),
            ("12,34", None, Some(12.34)),
            ("1,23,456", None, None),
            ("1.234,", None, None),
            ("12:30", None, None),
            ("2024-01-31", None, None),
            ("$", None, None),
            ("", None, None),
        ] {
            assert_eq!(read(Notation::Amount, text, Decimal::Point), point, "{text}");
            assert_eq!(read(Notation::Amount, text, Decimal::Comma), comma, "{text}");
        }
    }

    #[test]
    fn percents_and_booleans() {
        assert_eq!(read(Notation::Percent, "5 %", Decimal::Point), Some(5.0));
        assert_eq!(read(Notation::Percent, "-2,5%", Decimal::Comma), Some(-2.5));
        assert_eq!(read(Notation::Percent, "0.05", Decimal::Point), None, "a share is another number");
        for (text, value) in [("TRUE", 1.0), ("no", 0.0), (" Y ", 1.0), ("f", 0.0), ("1", 1.0), ("0", 0.0)] {
            assert_eq!(read(Notation::Boolean, text, Decimal::Point), Some(value), "{text}");
        }
        assert_eq!(read(Notation::Boolean, "maybe", Decimal::Point), None);
    }

    #[test]
    fn cells_are_evidence_of_the_decimal_mark() {
        for (text, evidence) in [
            ("1.5", Evidence::Of(Decimal::Point)),
            ("1,5", Evidence::Of(Decimal::Comma)),
            ("0,123", Evidence::Of(Decimal::Comma)),
            ("2,5 %", Evidence::Of(Decimal::Comma)),
            ("1,234", Evidence::Either),
            ("1,234.5", Evidence::Of(Decimal::Point)),
            ("1,234,567", Evidence::Of(Decimal::Point)),
            ("1.234.567", Evidence::Of(Decimal::Comma)),
            ("1.234", Evidence::None),
            ("17", Evidence::None),
            ("a,b", Evidence::None),
        ] {
            assert_eq!(Decimal::evidence(text.as_bytes()), evidence, "{text}");
        }
    }

    #[test]
    fn marks_of_missing_numbers() {
        assert!(
            ["", " ", "NA", "n/a", "?", "NULL", "NaN", "-"].iter().all(|mark| is_missing(mark.as_bytes()))
        );
        assert!(!["0", "none of it", "x"].iter().any(|mark| is_missing(mark.as_bytes())));
    }
}
