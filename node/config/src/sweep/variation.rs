//! A variation: a key of the run file, and the values that a sweep tries for it. The text of `--vary`.
//!
//! ```text
//! optimizer.rate=0.001,0.01,0.1       these values
//! model.hidden=[32],[64],[128,64]     any TOML values; words need no quotes
//! optimizer.rate=1e-4..1e-1:log       a range, from which random trials draw; `:log` draws by factors
//! optimizer.rate=1e-4..1e-1:log:4     four values of it, at equal distances
//! ```

use toml::{Table, Value};

use super::specification::SweepError;
use crate::specification::RunFile;

/// A key, and the values to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    /// The key with its section: `optimizer.rate`.
    pub key: String,
    /// Its values.
    pub values: Values,
}

/// The values of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// These; at least one, and no two are the same.
    List(Vec<Value>),
    /// Numbers of a range.
    Range(Range),
}

/// Numbers from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The smallest one.
    pub low: f64,
    /// The largest one, which is larger.
    pub high: f64,
    /// How numbers are spread.
    pub scale: Scale,
    /// Whether only whole numbers are meant.
    pub is_whole: bool,
}

/// How numbers are spread in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// At equal distances.
    Linear,
    /// At equal factors.
    Logarithmic,
}

impl Variation {
    /// Reads the text of one `--vary`, for a run file with these keys.
    ///
    /// # Errors
    /// The key cannot vary, or the values cannot be read or do not suit it.
    pub fn parse(text: &str, run: &Table) -> Result<Self, SweepError> {
        let Some((key, values)) = text.split_once('=') else {
            return Err(SweepError::NotAVariation(text.to_owned()));
        };
        let (key, values) = (key.trim(), values.trim());
        check_key(key)?;
        let refused = |reason: String| SweepError::Key { key: key.to_owned(), reason };
        if values.is_empty() {
            return Err(refused(format!("there are no values: give some, such as `{key}=A,B,C`")));
        }
        let values = if is_range(values) {
            parse_range(values, is_whole_key(key, run)?).map_err(refused)?
        } else {
            parse_list(values).map_err(refused)?
        };
        let variation = Self { key: key.to_owned(), values };
        variation.check_values(run)?;
        Ok(variation)
    }

    /// Checks that the key takes each value of a list.
    fn check_values(&self, run: &Table) -> Result<(), SweepError> {
        let Values::List(values) = &self.values else { return Ok(()) };
        for value in values {
            read_with(run, &self.key, value.clone()).map_err(|reason| SweepError::Key {
                key: self.key.clone(),
                reason: format!("`{value}` is no value of this key ({reason}): correct it in `--vary`"),
            })?;
        }
        Ok(())
    }
}

impl Range {
    /// The number at this part of the range, from 0 to 1. It is rounded to four digits, so that people can read it.
    #[must_use]
    pub fn at(&self, part: f64) -> Value {
        let Self { low, high, scale, is_whole } = *self;
        let number = match scale {
            Scale::Linear => low + (high - low) * part,
            Scale::Logarithmic => low * (high / low).powf(part),
        };
        if is_whole {
            return Value::Integer(number.round().clamp(low, high) as i64);
        }
        let rounded: f64 = format!("{number:.3e}").parse().expect("a number as text");
        Value::Float(rounded.clamp(low, high))
    }

    /// So many different values at equal distances, or fewer if there are not so many whole numbers.
    fn points(&self, count: usize) -> Vec<Value> {
        let mut values: Vec<Value> =
            (0..count).map(|index| self.at(index as f64 / (count - 1) as f64)).collect();
        values.dedup();
        values
    }
}

/// The run file with another value of a key.
///
/// # Errors
/// The result is no run file; the text says why.
pub fn read_with(run: &Table, key: &str, value: Value) -> Result<RunFile, String> {
    let mut table = run.clone();
    set(&mut table, key, value);
    read(table)
}

/// Reads a table as a run file.
pub(super) fn read(table: Table) -> Result<RunFile, String> {
    table.try_into().map_err(|error: toml::de::Error| error.message().to_owned())
}

/// Sets a key to a value. A part of its name that is no section becomes one.
pub fn set(table: &mut Table, key: &str, value: Value) {
    let Some((section, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let entry = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if !entry.is_table() {
        *entry = Value::Table(Table::new());
    }
    if let Value::Table(inner) = entry {
        set(inner, rest, value);
    }
}

/// Checks that a sweep may vary a key.
fn check_key(key: &str) -> Result<(), SweepError> {
    let refused = |reason: &str| Err(SweepError::Key { key: key.to_owned(), reason: reason.to_owned() });
    let (section, name) = key.split_once('.').unwrap_or(("", key));
    match (section, name) {
        ("", "epochs" | "batch" | "shuffle") => Ok(()),
        ("", "seed") => refused(
            "it decides which rows are held out, so results could not be compared: set it in the run file, and vary another key",
        ),
        ("data", _) | ("", "data") => {
            refused("all trials train on the same rows: set it in the run file, and vary another key")
        }
        ("sync", _) | ("", "sync") => refused(
            "one peer alone trains a trial, so it would have no effect: compare such settings with `peer compare`",
        ),
        ("network" | "compute" | "shards" | "checkpoints" | "partition" | "evaluation" | "settings", _)
        | ("", "network" | "compute" | "shards" | "checkpoints" | "partition" | "evaluation" | "settings") => {
            refused("it does not change what a trial learns: set it in the run file, and vary another key")
        }
        ("optimizer", "groups") => {
            refused("groups of tensors cannot vary: set them in the run file, and vary another key")
        }
        ("model" | "optimizer", name) if !name.is_empty() && !name.contains('.') => {
            let unknown = read_with(&Table::new(), key, Value::Boolean(true)).err();
            match unknown.filter(|reason| reason.contains("unknown field")) {
                Some(reason) => refused(&format!("there is no such key ({reason}): correct its name")),
                None => Ok(()),
            }
        }
        _ => {
            refused("there is no such key: give `epochs`, `batch`, `shuffle`, `model.KEY` or `optimizer.KEY`")
        }
    }
}

/// Whether a key takes whole numbers only.
///
/// # Errors
/// It takes no numbers.
fn is_whole_key(key: &str, run: &Table) -> Result<bool, SweepError> {
    let takes = |value: Value| read_with(run, key, value).is_ok();
    match (takes(Value::Float(0.5)), takes(Value::Integer(1))) {
        (true, _) => Ok(false),
        (false, true) => Ok(true),
        (false, false) => Err(SweepError::Key {
            key: key.to_owned(),
            reason: format!(
                "it takes no single number, so it has no range: list values, such as `{key}=A,B,C`"
            ),
        }),
    }
}

/// Whether the text is a range, rather than a list.
fn is_range(text: &str) -> bool {
    text.contains("..") && !text.contains(['[', '"', '\''])
}

/// `LOW..HIGH`, then perhaps `:log`, then perhaps the number of values.
fn parse_range(text: &str, is_whole: bool) -> Result<Values, String> {
    let mut parts = text.split(':').map(str::trim);
    let ends = parts.next().unwrap_or_default();
    let (mut scale, mut count) = (Scale::Linear, None);
    for part in parts {
        match (part, part.parse::<usize>()) {
            ("log", _) if scale == Scale::Linear && count.is_none() => scale = Scale::Logarithmic,
            (_, Ok(number)) if count.is_none() => count = Some(number),
            _ => {
                return Err(format!(
                    "`:{part}` after a range means nothing: give `LOW..HIGH`, `LOW..HIGH:log` or `LOW..HIGH:log:COUNT`"
                ));
            }
        }
    }
    let (low, high) = ends.split_once("..").expect("it was found in the text");
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => {
            Err(format!("`{}` is no number: give a range as `LOW..HIGH`, such as `1e-4..1e-1`", text.trim()))
        }
    };
    let (low, high) = (number(low)?, number(high)?);
    if low >= high {
        return Err(format!(
            "the range `{ends}` is empty: give the smaller number first, and a larger one after it"
        ));
    }
    if scale == Scale::Logarithmic && low <= 0.0 {
        return Err(format!(
            "a range with `:log` has only numbers above 0, and `{ends}` begins at {low}: give a larger one, or leave `:log` out"
        ));
    }
    if is_whole && (low.fract() != 0.0 || high.fract() != 0.0 || low.abs().max(high.abs()) > WHOLE_MAX) {
        return Err(format!("this key takes whole numbers: give them in place of `{ends}`"));
    }
    let range = Range { low, high, scale, is_whole };
    match count {
        None => Ok(Values::Range(range)),
        Some(count) if (2..=super::TRIALS_MAX).contains(&count) => Ok(Values::List(range.points(count))),
        Some(count) => {
            Err(format!("{count} values of a range: give 2 to {}, such as `{ends}:4`", super::TRIALS_MAX))
        }
    }
}

/// Values between commas that are in no brackets and no quotes.
fn parse_list(text: &str) -> Result<Values, String> {
    let mut values: Vec<Value> = Vec::new();
    for part in split_list(text) {
        if part.is_empty() {
            return Err(format!("a value is missing in `{text}`: give one between any two commas"));
        }
        let value = parse_value(part)?;
        if values.contains(&value) {
            return Err(format!("the value `{part}` is there twice: give it once"));
        }
        values.push(value);
    }
    Ok(Values::List(values))
}

fn split_list(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_i64, None);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, ',') if depth <= 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// A TOML value; a word without quotes is a text.
fn parse_value(text: &str) -> Result<Value, String> {
    let parsed = format!("value = {text}").parse::<Table>();
    if let Some(value) = parsed.ok().and_then(|mut table| table.remove("value")) {
        let is_finite = value.as_float().is_none_or(f64::is_finite);
        return if is_finite {
            Ok(value)
        } else {
            Err(format!("`{text}` is not finite: give a number that is"))
        };
    }
    // TOML wants a digit on both sides of a point, and none of its numbers begins with one.
    if let Ok(number) = text.parse::<f64>() {
        return if number.is_finite() {
            Ok(Value::Float(number))
        } else {
            Err(format!("`{text}` is not finite: give a number that is"))
        };
    }
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if text.chars().all(is_word) {
        return Ok(Value::String(text.to_owned()));
    }
    Err(format!(
        "`{text}` is no value: give a number, a word, a quoted text, or a list in brackets, as in a run file"
    ))
}

/// Whole numbers up to this one have a place of their own among floating-point numbers.
const WHOLE_MAX: f64 = 9.0e15;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Values, String> {
        Variation::parse(text, &Table::new()).map(|found| found.values).map_err(|error| error.to_string())
    }

    fn list(text: &str) -> Vec<String> {
        match parsed(text).unwrap() {
            Values::List(values) => values.iter().map(ToString::to_string).collect(),
            Values::Range(range) => panic!("{range:?}"),
        }
    }

    #[test]
    fn lists_have_values_of_any_kind() {
        assert_eq!(list("optimizer.rate=0.001,1e-2, .5 ,1"), ["0.001", "0.01", "0.5", "1"]);
        assert_eq!(list("model.hidden=[32],[64],[128,64],[]"), ["[32]", "[64]", "[128, 64]", "[]"]);
        assert_eq!(list("model.activation=relu,\"tanh\""), ["\"relu\"", "\"tanh\""]);
        assert_eq!(list("shuffle=true,false"), ["true", "false"]);
        assert_eq!(list("batch = 16"), ["16"]);
    }

    #[test]
    fn ranges_are_drawn_from_or_cut_into_values() {
        let range = Range { low: 1e-4, high: 0.1, scale: Scale::Logarithmic, is_whole: false };
        assert_eq!(parsed("optimizer.rate=1e-4..1e-1:log").unwrap(), Values::Range(range));
        assert_eq!(list("optimizer.rate=1e-4..1e-1:log:4"), ["0.0001", "0.001", "0.01", "0.1"]);
        assert_eq!(list("optimizer.momentum=0..1:5"), ["0.0", "0.25", "0.5", "0.75", "1.0"]);
        let whole = Range { low: 16.0, high: 256.0, scale: Scale::Logarithmic, is_whole: true };
        assert_eq!(parsed("batch=16..256:log").unwrap(), Values::Range(whole));
        assert_eq!(list("batch=16..256:log:5"), ["16", "32", "64", "128", "256"]);
        assert_eq!(list("epochs=1..3:9"), ["1", "2", "3"]);
        assert_eq!(range.at(0.5), Value::Float(0.003_162), "four digits");
    }

    #[test]
    fn what_cannot_vary_is_refused_with_the_key_and_a_way_out() {
        for (text, words) in [
            ("optimizer.rate", ["`optimizer.rate`", "KEY=VALUES"]),
            ("optimizer.rate=", ["`optimizer.rate`", "give some"]),
            ("optimizer.rte=1,2", ["`optimizer.rte`", "unknown field `rte`"]),
            ("model.hiden=1", ["`model.hiden`", "correct its name"]),
            ("model=1", ["`model`", "give `epochs`"]),
            ("name=1", ["`name`", "there is no such key"]),
            ("seed=1,2", ["`seed`", "held out"]),
            ("data.held_out=0.1,0.2", ["`data.held_out`", "the same rows"]),
            ("network.port=1,2", ["`network.port`", "vary another key"]),
            ("sync.kind=sync,local", ["`sync.kind`", "peer compare"]),
            ("optimizer.groups=[]", ["`optimizer.groups`", "cannot vary"]),
            ("optimizer.rate=0.1..0.01", ["`optimizer.rate`", "the range `0.1..0.01` is empty"]),
            ("optimizer.rate=0..1:log", ["`optimizer.rate`", "only numbers above 0"]),
            ("optimizer.rate=-1..1:log", ["`optimizer.rate`", "leave `:log` out"]),
            ("optimizer.rate=a..b", ["`optimizer.rate`", "`a` is no number"]),
            ("optimizer.rate=1..inf", ["`optimizer.rate`", "`inf` is no number"]),
            ("optimizer.rate=nan,1", ["`optimizer.rate`", "is not finite"]),
            ("optimizer.rate=fast,slow", ["`optimizer.rate`", "`\"fast\"` is no value of this key"]),
            ("optimizer.rate=1..2:cubic", ["`optimizer.rate`", "`:cubic`"]),
            ("optimizer.rate=1..2:1", ["`optimizer.rate`", "give 2 to 512"]),
            ("optimizer.rate=1,,2", ["`optimizer.rate`", "a value is missing"]),
            ("optimizer.rate=0.1,0.1", ["`optimizer.rate`", "there twice"]),
            ("optimizer.rate=1;2", ["`optimizer.rate`", "is no value"]),
            ("batch=0.5..2", ["`batch`", "whole numbers"]),
            ("batch=0.5,2", ["`batch`", "invalid type"]),
            ("model.hidden=1..4", ["`model.hidden`", "list values"]),
            ("model.activation=relu,swish", ["`model.activation`", "swish"]),
        ] {
            let error = parsed(text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "`{word}` is not in the error of `{text}`: {error}");
            }
        }
    }
}
