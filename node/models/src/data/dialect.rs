//! The dialect of a CSV file: which lines come before the table, what separates its cells, and its decimal mark.
//!
//! Nothing in such a file says so. The founder of a run infers the dialect from the first rows, and peers read with what it found.
//!
//! # How it works
//! 1. Lines before the table are comments (`#`, `%`, `//`), the line `sep=;` of spreadsheets, and titles: rows of one cell, a text, where
//!    the rows below have more.
//! 2. For each possible delimiter the rows are parsed, outside quotes. A delimiter is consistent if nearly all rows have the same number of
//!    cells, at least two. Among the consistent ones, the delimiter that leaves most cells numbers wins: `1,5;2,5` has two numbers between
//!    semicolons, and `1`, `5;2` and `5` between commas.
//! 3. The decimal mark is the one that more cells show. `1,234` shows none: it may be 1234.

use std::borrow::Cow;

use csv::ByteRecord;
use serde::{Deserialize, Serialize};

use super::cells::{reader, shortened, text};
use super::doubt::Doubt;
use super::encoding::line_ends;
use super::notation::{Decimal, Evidence, is_missing, is_numeric};

/// How many bytes are parsed to find the delimiter.
const SAMPLE_BYTES: usize = 4 << 20;
/// How many rows are parsed to find the delimiter.
const SAMPLE_ROWS: usize = 500;
/// The most lines before the table.
pub const SKIPPED_LINES_MAX: usize = 1000;
/// A delimiter is consistent if so many of a hundred rows have the same number of cells.
const CONSISTENT_PERCENT: usize = 80;

/// What separates the cells of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Delimiter {
    /// `\t`, called `tab` in a run file
    Tab,
    /// `|`
    Pipe,
    /// `;`
    Semicolon,
    /// `,`
    Comma,
    /// One or more spaces or tabs, called `space` in a run file.
    Blanks,
}

/// The dialect of a file, and what the user should know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dialect {
    pub(super) delimiter: Delimiter,
    /// Lines before the table.
    pub(super) skip_lines: usize,
    pub(super) decimal: Decimal,
    /// What was inferred and may be wrong.
    pub(super) doubts: Vec<Doubt>,
}

/// What a user says about the dialect; a field that is `None` is inferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DialectHints {
    pub(super) delimiter: Option<Delimiter>,
    pub(super) skip_lines: Option<usize>,
    pub(super) decimal: Option<Decimal>,
    /// The decimal mark of a file in which no cell shows it.
    pub(super) decimal_otherwise: Option<Decimal>,
}

impl Delimiter {
    /// All delimiters. Of two that fit a file equally well, the first is taken: commas and spaces occur in texts most often.
    const ALL: [Self; 5] = [Self::Tab, Self::Pipe, Self::Semicolon, Self::Comma, Self::Blanks];

    /// The byte between two cells. Blanks are made single spaces before.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Tab => b'\t',
            Self::Pipe => b'|',
            Self::Semicolon => b';',
            Self::Comma => b',',
            Self::Blanks => b' ',
        }
    }

    /// The delimiter of this byte.
    #[must_use]
    pub fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|delimiter| delimiter.byte() == byte)
    }
}

impl From<Delimiter> for String {
    fn from(delimiter: Delimiter) -> Self {
        match delimiter {
            Delimiter::Tab => "tab".to_owned(),
            Delimiter::Blanks => "space".to_owned(),
            other => char::from(other.byte()).to_string(),
        }
    }
}

impl TryFrom<String> for Delimiter {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_named =
            |delimiter: &Self| text == String::from(*delimiter) || text.as_bytes() == [delimiter.byte()];
        Self::ALL.into_iter().find(is_named).ok_or_else(|| {
            format!("unknown delimiter `{}`, expected `,`, `;`, `|`, `tab` or `space`", text.escape_default())
        })
    }
}

impl Dialect {
    /// Infers what the hints leave open from the beginning of `text`, in UTF-8.
    pub(super) fn infer(text: &[u8], hints: &DialectHints) -> Self {
        let mut doubts = Vec::new();
        let (mut skip_lines, mut delimiter) = (hints.skip_lines.unwrap_or(0), hints.delimiter);
        if hints.skip_lines.is_none() {
            let preamble = Preamble::find(text, hints);
            skip_lines = preamble.lines;
            delimiter = delimiter.or(preamble.delimiter);
        }
        let mut sample = Sample::best(text, skip_lines, delimiter);
        if hints.skip_lines.is_none() {
            let titles = sample.titles();
            if titles > 0 {
                skip_lines = sample.line_of_row(text, titles);
                sample = Sample::best(text, skip_lines, Some(sample.delimiter));
            }
            if skip_lines > 0 {
                doubts.push(skipped(text, skip_lines));
            }
        }
        let decimal = hints.decimal.unwrap_or_else(|| sample.decimal(hints.decimal_otherwise, &mut doubts));
        Self { delimiter: sample.delimiter, skip_lines, decimal, doubts }
    }
}

/// What the lines before the table are.
fn skipped(text: &[u8], skip_lines: usize) -> Doubt {
    let first = text[..after_lines(text, skip_lines)].split(|&byte| byte == b'\n' || byte == b'\r');
    let shown =
        first.map(<[u8]>::trim_ascii).find(|line| !line.is_empty()).map(shortened).unwrap_or_default();
    let lines = match skip_lines {
        1 => "line 1 is".to_owned(),
        count => format!("lines 1 to {count} are"),
    };
    let what = format!("{lines} not part of the table (`{shown}`)");
    Doubt { what, remedy: "set `skip_lines = 0` in [data] otherwise".to_owned() }
}

/// Comments and the line `sep=` at the beginning.
#[derive(Default)]
struct Preamble {
    lines: usize,
    delimiter: Option<Delimiter>,
}

impl Preamble {
    fn find(text: &[u8], hints: &DialectHints) -> Self {
        let mut found = Self::default();
        let mut offset = 0;
        let mut last_comment = None;
        for number in 1..=SKIPPED_LINES_MAX {
            let end = offset + after_lines(&text[offset..], 1);
            let line = text[offset..end].trim_ascii();
            if end == offset {
                break;
            }
            let separator = separator_line(line).filter(|_| found.delimiter.is_none());
            let is_comment = comment_mark(line) > 0;
            if let Some(delimiter) = separator {
                (found.lines, found.delimiter, last_comment) = (number, Some(delimiter), None);
            } else if is_comment {
                last_comment = Some((found.lines, offset));
                found.lines = number;
            } else if !line.is_empty() {
                break;
            }
            offset = end;
        }
        if text[offset..].trim_ascii().is_empty() || found.lines == SKIPPED_LINES_MAX {
            // All lines begin like comments, so they are none.
            return Self::default();
        }
        // Some programs write the names of the columns as a comment: `# a b c`.
        if let Some((lines, offset)) = last_comment {
            let rest = Sample::best(text, found.lines, hints.delimiter.or(found.delimiter));
            let line = &text[offset..offset + after_lines(&text[offset..], 1)];
            if rest.width() > 1 && rest.is_header(line) {
                found.lines = lines_before(text, offset).max(lines);
            }
        }
        found
    }
}

/// The delimiter of a line `sep=;`, with which spreadsheets begin a file.
fn separator_line(line: &[u8]) -> Option<Delimiter> {
    let line = line.strip_prefix(b"\"").unwrap_or(line);
    let (word, rest) = line.split_at_checked(4)?;
    let separator = match rest {
        [] => b'\t',
        [separator] | [separator, b'"'] => *separator,
        b"\\t" => b'\t',
        _ => return None,
    };
    word.eq_ignore_ascii_case(b"sep=").then(|| Delimiter::of_byte(separator)).flatten()
}

/// The first rows of a table, parsed with one delimiter.
struct Sample {
    delimiter: Delimiter,
    rows: Vec<ByteRecord>,
    /// Where the parsed text begins in the file.
    start: usize,
}

impl Sample {
    /// The rows after `skip_lines` lines, with the delimiter that fits best.
    fn best(text: &[u8], skip_lines: usize, given: Option<Delimiter>) -> Self {
        let start = after_lines(text, skip_lines);
        let rest = &text[start..];
        let head = &rest[..rest.len().min(SAMPLE_BYTES)];
        let parse = |delimiter: Delimiter| {
            let spaced = delimiter.spaced(head);
            let mut rows: Vec<ByteRecord> = (reader(&spaced, delimiter.byte()).into_byte_records())
                .map_while(Result::ok)
                .take(SAMPLE_ROWS)
                .collect();
            if head.len() < rest.len() && rows.len() > 1 && rows.len() < SAMPLE_ROWS {
                // The last row may be cut.
                rows.pop();
            }
            Self { delimiter, rows, start }
        };
        match given {
            Some(delimiter) => parse(delimiter),
            None => {
                // A comma if nothing separates the cells.
                let (mut best, mut best_fit) = (parse(Delimiter::Comma), (false, 0, 0));
                for sample in Delimiter::ALL.into_iter().map(parse) {
                    let fit = sample.fit();
                    if fit > best_fit {
                        (best, best_fit) = (sample, fit);
                    }
                }
                best
            }
        }
    }

    /// How well the delimiter fits: whether most rows are equally wide, then the share of numbers, then the share of these rows.
    fn fit(&self) -> (bool, usize, usize) {
        let (width, rows) = (self.width(), self.rows.len());
        if width < 2 {
            return (false, 0, 0);
        }
        let wide = self.rows.iter().filter(|row| row.len() == width);
        let (mut numbers, mut cells, mut count) = (0, 0, 0);
        for row in wide {
            count += 1;
            for cell in row.iter().filter(|cell| !is_missing(cell)) {
                cells += 1;
                numbers += usize::from(is_numeric(cell));
            }
        }
        (count * 100 >= rows * CONSISTENT_PERCENT, numbers * 1000 / cells.max(1), count * 1000 / rows.max(1))
    }

    /// The number of cells that most rows have; of two that are equally frequent, that of the earlier row.
    fn width(&self) -> usize {
        most_frequent(self.rows.iter().map(ByteRecord::len)).unwrap_or(0)
    }

    /// How many rows at the beginning are titles: a single cell that is a text, where rows are wider.
    fn titles(&self) -> usize {
        let width = self.width();
        let is_title = |row: &&ByteRecord| {
            let mut filled = row.iter().filter(|cell| !cell.trim_ascii().is_empty());
            let is_text = filled.next().is_none_or(|cell| !is_numeric(cell) && !is_missing(cell));
            // A row of three cells or more, of which one is filled, is a title in a spreadsheet.
            (row.len() == 1 || row.len() > 2) && is_text && filled.next().is_none()
        };
        match self.rows.iter().take_while(is_title).count() {
            count if width > 1 && count < self.rows.len() => count,
            _ => 0,
        }
    }

    /// How many lines come before row `index`.
    fn line_of_row(&self, text: &[u8], index: usize) -> usize {
        let head = &text[self.start..][..(text.len() - self.start).min(SAMPLE_BYTES)];
        let spaced = self.delimiter.spaced(head);
        // Blanks are made single within lines only, so that the number of lines is the same.
        let byte = self.rows[index].position().map_or(0, csv::Position::byte) as usize;
        let blank = spaced[byte..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        lines_before(text, self.start) + lines_before(&spaced, byte + blank)
    }

    /// Whether a comment is the header of these rows: it has as many cells, and all are words.
    fn is_header(&self, comment: &[u8]) -> bool {
        let line = &comment[comment_mark(comment)..];
        let spaced = self.delimiter.spaced(line);
        let mut cells = ByteRecord::new();
        let is_row = reader(&spaced, self.delimiter.byte()).read_byte_record(&mut cells).unwrap_or(false);
        is_row
            && cells.len() == self.width()
            && cells.iter().all(|cell| !is_numeric(cell) && !text(cell).is_empty() && text(cell).len() <= 40)
    }

    /// The decimal mark that most cells show.
    fn decimal(&self, otherwise: Option<Decimal>, doubts: &mut Vec<Doubt>) -> Decimal {
        let (mut points, mut commas) = (0_usize, 0_usize);
        let width = self.width();
        // For each column, whether it has cells such as `1,234`, and whether it has whole numbers below 1000.
        let (mut either, mut small) = (vec![false; width], vec![false; width]);
        let mut example = None;
        for row in self.rows.iter().filter(|row| row.len() == width) {
            for (column, cell) in row.iter().enumerate() {
                match Decimal::evidence(cell) {
                    Evidence::Of(Decimal::Point) => points += 1,
                    // Without a comma it is `1.234.567`, which between commas is rather an address than a number.
                    Evidence::Of(Decimal::Comma)
                        if self.delimiter == Delimiter::Comma && !cell.contains(&b',') => {}
                    Evidence::Of(Decimal::Comma) => commas += 1,
                    Evidence::Either => {
                        either[column] = true;
                        example.get_or_insert_with(|| shortened(cell));
                    }
                    Evidence::None => {
                        let digits = cell.trim_ascii();
                        small[column] |= digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit);
                    }
                }
            }
        }
        let Some(example) = example.filter(|_| points + commas == 0) else {
            return if commas > points { Decimal::Comma } else { Decimal::Point };
        };
        if let Some(decimal) = otherwise {
            return decimal;
        }
        // Where commas separate cells, one in quotes separates thousands. Elsewhere, numbers beside it that have none are below 1000.
        let has_both = either.iter().zip(&small).any(|(&either, &small)| either && small);
        let is_grouping = self.delimiter == Delimiter::Comma || has_both;
        let (decimal, read, other) = if is_grouping {
            (Decimal::Point, example.replace(',', ""), ",")
        } else {
            (Decimal::Comma, example.replace(',', "."), ".")
        };
        doubts.push(Doubt {
            what: format!("numbers such as `{example}` are read as {read}"),
            remedy: format!("set `decimal = \"{other}\"` in [data] if that is wrong"),
        });
        decimal
    }
}

impl Delimiter {
    /// `text` with this delimiter as a single byte.
    pub(super) fn spaced(self, text: &[u8]) -> Cow<'_, [u8]> {
        if self == Self::Blanks { Cow::Owned(single_blanks(text)) } else { Cow::Borrowed(text) }
    }
}

/// `text` with each run of spaces and tabs outside quotes as one space, and with none at the ends of lines. It has the same lines.
fn single_blanks(text: &[u8]) -> Vec<u8> {
    let mut single = Vec::with_capacity(text.len());
    // Blanks before the next byte: within a line they become one, at its beginning none.
    let (mut is_quoted, mut has_blanks) = (false, false);
    for &byte in text {
        if matches!(byte, b' ' | b'\t') && !is_quoted {
            has_blanks = true;
            continue;
        }
        let last = single.last().copied();
        let is_line_start = matches!(last, None | Some(b'\n' | b'\r'));
        let is_line_end = matches!(byte, b'\n' | b'\r') && !is_quoted;
        // Without a blank between them, the two would be one line end.
        let are_two_ends = last == Some(b'\r') && byte == b'\n';
        if std::mem::take(&mut has_blanks) && (are_two_ends || !(is_line_start || is_line_end)) {
            single.push(b' ');
        }
        is_quoted ^= byte == b'"';
        single.push(byte);
    }
    single
}

/// How many bytes at the beginning of a line are the mark of a comment, with the spaces around it; 0 if it has none.
pub(super) fn comment_mark(line: &[u8]) -> usize {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let before = line.iter().take_while(|byte| is_blank(byte)).count();
    let rest = &line[before..];
    let mark = match rest {
        [b'/', b'/', ..] => rest.iter().take_while(|&&byte| byte == b'/').count(),
        _ => rest.iter().take_while(|byte| matches!(byte, b'#' | b'%')).count(),
    };
    let is_missing_number = rest.get(..4).is_some_and(|cell| cell.eq_ignore_ascii_case(b"#n/a"));
    if mark == 0 || is_missing_number {
        0
    } else {
        before + mark + rest[mark..].iter().take_while(|byte| is_blank(byte)).count()
    }
}

/// The byte at which the line after the first `count` lines begins.
pub(super) fn after_lines(text: &[u8], count: usize) -> usize {
    let mut offset = 0;
    for _ in 0..count {
        let rest = &text[offset..];
        let Some(end) = rest.iter().position(|&byte| byte == b'\n' || byte == b'\r') else {
            return text.len();
        };
        offset += end + if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
    }
    offset
}

/// How many lines end before the byte at `offset`.
fn lines_before(text: &[u8], offset: usize) -> usize {
    line_ends(&text[..offset]) as usize
}

/// The most frequent of these numbers; of two that are equally frequent, the one that comes first.
fn most_frequent(numbers: impl Iterator<Item = usize>) -> Option<usize> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match counts.iter_mut().find(|(other, _)| *other == number) {
            Some((_, count)) => *count += 1,
            None => counts.push((number, 1)),
        }
    }
    let most = counts.iter().map(|&(_, count)| count).max()?;
    counts.into_iter().find(|&(_, count)| count == most).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blanks_become_single_outside_quotes() {
        let text = b"  1 \t 2\t\"a  b\"  \r\n\n 3  4 \"c\n  d\"";
        assert_eq!(single_blanks(text), b"1 2 \"a  b\"\r\n\n3 4 \"c\n  d\"");
    }

    #[test]
    fn lines_end_in_three_ways() {
        let text = b"a\nb\r\nc\rd";
        assert_eq!((0..6).map(|count| after_lines(text, count)).collect::<Vec<_>>(), [0, 2, 5, 7, 8, 8]);
        assert_eq!(lines_before(text, 7), 3);
    }

    #[test]
    fn the_line_of_spreadsheets_names_the_delimiter() {
        assert_eq!(separator_line(b"sep=;"), Some(Delimiter::Semicolon));
        assert_eq!(separator_line(b"\"SEP=|\""), Some(Delimiter::Pipe));
        assert_eq!(separator_line(b"sep="), Some(Delimiter::Tab), "a tab at the end of the line");
        assert_eq!((separator_line(b"sep=x"), separator_line(b"separate")), (None, None));
    }

    #[test]
    fn delimiters_have_names() {
        for (text, delimiter) in [
            (",", Delimiter::Comma),
            ("tab", Delimiter::Tab),
            ("\t", Delimiter::Tab),
            ("space", Delimiter::Blanks),
            (" ", Delimiter::Blanks),
        ] {
            assert_eq!(Delimiter::try_from(text.to_owned()), Ok(delimiter));
            assert_eq!(Delimiter::try_from(String::from(delimiter)), Ok(delimiter));
        }
        let error = Delimiter::try_from(":".to_owned()).unwrap_err();
        assert_eq!(error, "unknown delimiter `:`, expected `,`, `;`, `|`, `tab` or `space`");
    }

    #[test]
    fn marks_of_comments() {
        for (line, length) in [
            (&b"# a"[..], 2),
            (b"  ##a", 4),
            (b"%a", 1),
            (b"// a", 3),
            (b"/a", 0),
            (b"#N/A,1", 0),
            (b"a#", 0),
            (b"", 0),
        ] {
            assert_eq!(comment_mark(line), length, "{}", String::from_utf8_lossy(line));
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_dialect(text in "[0-9a-c,;|\\t .#%\"\n\r=sep]{0,200}") {
            let dialect = Dialect::infer(text.as_bytes(), &DialectHints::default());
            prop_assert!(after_lines(text.as_bytes(), dialect.skip_lines) <= text.len());
            let spaced = Delimiter::Blanks.spaced(text.as_bytes());
            prop_assert_eq!(line_ends(&spaced), line_ends(text.as_bytes()));
        }
    }
}
