//! The sheet: a CSV file as its founder sees it first, before columns are chosen.

use super::column_hints::ColumnHints;
use super::column_names::names_in;
use super::dialect::{Delimiter, Dialect, DialectHints, after_lines, comment_mark};
use super::doubt::Doubt;
use super::encoding::{Detected, TextEncoding};
use super::error::DenseTableError;
use super::limits::COLUMNS_MAX;
use super::notation::{Decimal, is_numeric};
use super::survey::{ColumnSurvey, Survey};

/// The text of a CSV file, and what its columns look like.
pub(super) struct Sheet {
    pub(super) encoding: TextEncoding,
    pub(super) delimiter: Delimiter,
    pub(super) skip_lines: usize,
    pub(super) decimal: Decimal,
    pub(super) header: bool,
    /// The names of all columns; empty if there is no header.
    pub(super) names: Vec<String>,
    /// One for each column.
    pub(super) columns: Vec<ColumnSurvey>,
    /// A text that may separate the cells although it is none of the delimiters, if there is a single column.
    pub(super) separator: Option<&'static str>,
    /// What was inferred and may be wrong.
    pub(super) doubts: Vec<Doubt>,
}

/// What is known of a file that should be like an earlier one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known<'a> {
    /// Names of columns: a first row that has all of them is a header.
    pub(super) names: &'a [&'a str],
    /// The decimal mark, if no cell shows it.
    pub(super) decimal: Option<Decimal>,
    /// The encoding, if the text is in one that can only be guessed.
    pub(super) encoding: Option<TextEncoding>,
}

impl Sheet {
    /// Inspects `bytes` (unpacked).
    pub(super) fn inspect(
        file: &str,
        bytes: &[u8],
        hints: &ColumnHints,
        known: Known<'_>,
    ) -> Result<Self, DenseTableError> {
        let (encoding, guess) = match hints.encoding {
            Some(encoding) => (encoding, None),
            None => detect(file, bytes, known.encoding)?,
        };
        let decoded = encoding.decode(file, bytes)?;
        let ColumnHints { delimiter, skip_lines, decimal, .. } = *hints;
        let decimal_otherwise = known.decimal;
        let dialect =
            Dialect::infer(&decoded, &DialectHints { delimiter, skip_lines, decimal, decimal_otherwise });
        let text = dialect.delimiter.spaced(&decoded);
        let table = &text[after_lines(&text, dialect.skip_lines)..];
        let mark = if hints.header == Some(false) { 0 } else { comment_mark(table) };
        let survey = |from: usize, header| {
            Survey::take(&table[from..], dialect.delimiter, dialect.decimal, header, known.names)
        };
        let empty = || match (file.to_owned(), hints.skip_lines) {
            (file, Some(skip_lines)) if !decoded.trim_ascii().is_empty() => {
                DenseTableError::NoTable { file, skip_lines }
            }
            (file, _) => DenseTableError::Empty { file },
        };
        let mut survey_of_table = survey(mark, hints.header).ok_or_else(empty)?;
        if mark > 0 && !survey_of_table.header {
            survey_of_table = survey(0, Some(false)).ok_or_else(empty)?;
        }
        let Survey { first, header, columns, usual_width } = survey_of_table;
        let width = first.len();
        if let Some(usual) = usual_width {
            let line = dialect.skip_lines as u64 + 1 + blank_lines(table);
            return Err(DenseTableError::FirstRowWidth { file: file.to_owned(), line, found: width, usual });
        }
        if width > COLUMNS_MAX {
            let (file, what, limit) = (file.to_owned(), "columns", COLUMNS_MAX);
            return Err(DenseTableError::TooMany { file, what, found: width, limit });
        }
        let mut doubts: Vec<Doubt> = guess.into_iter().chain(dialect.doubts).collect();
        let numbers = first.iter().filter(|cell| is_numeric(cell)).count();
        if header && hints.header.is_none() && numbers * 2 > width {
            doubts.push(Doubt {
                what: "the first row is taken as the header, although most of it are numbers".to_owned(),
                remedy: "set `header = false` in [data] if it is a sample".to_owned(),
            });
        }
        Ok(Self {
            encoding,
            delimiter: dialect.delimiter,
            skip_lines: dialect.skip_lines,
            decimal: dialect.decimal,
            header,
            names: if header { names_in(&first) } else { Vec::new() },
            separator: if width == 1 { other_separator(table) } else { None },
            columns,
            doubts,
        })
    }

    /// The number of columns.
    pub(super) fn width(&self) -> usize {
        self.columns.len()
    }
}

/// The text that each of the first lines has equally often, and that is none of the delimiters.
fn other_separator(table: &[u8]) -> Option<&'static str> {
    const SEPARATORS: [&str; 7] = ["::", ":", "^", "~", "&", "!", "\u{1}"];
    const LINES: usize = 20;
    let lines: Vec<&[u8]> = (table.split(|&byte| byte == b'\n' || byte == b'\r'))
        .filter(|line| !line.trim_ascii().is_empty())
        .take(LINES)
        .collect();
    let count = |line: &[u8], separator: &str| {
        line.windows(separator.len()).filter(|window| *window == separator.as_bytes()).count()
    };
    SEPARATORS.into_iter().find(|separator| {
        let first = lines.first().map_or(0, |line| count(line, separator));
        first > 0 && lines.len() > 1 && lines.iter().all(|line| count(line, separator) == first)
    })
}

/// The encoding of a file, and a doubt unless it is UTF-8. Where it can only be guessed, it is the one that is `known`.
fn detect(
    file: &str,
    bytes: &[u8],
    known: Option<TextEncoding>,
) -> Result<(TextEncoding, Option<Doubt>), DenseTableError> {
    let (encoding, what) = match TextEncoding::detect(bytes) {
        Detected::Utf32 => return Err(DenseTableError::Utf32 { file: file.to_owned() }),
        Detected::Certain(encoding) if encoding.is_utf_8() => return Ok((encoding, None)),
        Detected::Certain(encoding) => (encoding, format!("the text is read as {}", encoding.name())),
        Detected::Guessed(guess) => {
            let is_possible = |known: &TextEncoding| !known.is_utf_8() && known.decode(file, bytes).is_ok();
            let encoding = known.filter(is_possible).unwrap_or(guess);
            let (name, example) = (encoding.name(), example(&encoding.decode(file, bytes)?));
            (encoding, format!("the text is not UTF-8; it is read as {name}, which is a guess{example}"))
        }
    };
    let remedy = "set `encoding` in [data] if that is wrong".to_owned();
    Ok((encoding, Some(Doubt { what, remedy })))
}

/// A word that shows whether the encoding is the right one, with its line.
fn example(text: &[u8]) -> String {
    let Some(place) = text.iter().position(|byte| !byte.is_ascii()) else { return String::new() };
    let is_edge = |byte: &u8| matches!(byte, b'\n' | b'\r' | b'\t' | b',' | b';' | b'|' | b'"');
    let start = text[..place].iter().rposition(is_edge).map_or(0, |edge| edge + 1);
    let end = text[place..].iter().position(is_edge).map_or(text.len(), |edge| place + edge);
    let line = 1 + super::encoding::line_ends(&text[..place]);
    format!(" (line {line}: `{}`)", super::cells::shortened(&text[start..end]))
}

/// Blank lines at the beginning.
fn blank_lines(table: &[u8]) -> u64 {
    let blank = table.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    super::encoding::line_ends(&table[..blank])
}
