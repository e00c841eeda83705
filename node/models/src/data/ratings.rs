//! Ratings: which user gave which item what value, from a CSV file.
//!
//! ```text
//! user,item,rating          users   ann, bob        rows 0, 1 of the users' factors
//! bob,7,4.5                 items   3, 7            rows 0, 1 of the items' factors
//! ann,3,2                   values  4.5, 2
//! ```
//! Ids are texts or whole numbers. The columns are found by their names, and else by their order: user, item, rating. Other columns are not
//! read. The [layout](Columns) of such a file has the columns of users and items as features, and that of ratings as the label.
//!
//! # Invariants
//! - Every rating is a finite number.
//! - A user has rated an item at most once: of two ratings of the same item, nobody could know which one holds.

use csv::ByteRecord;

use super::cells::{reader, shortened, text};
use super::column_hints::ColumnHints;
use super::column_names::{Column, LABEL_NAMES, called, find_column, listed};
use super::columns::{Columns, TableText};
use super::dense_table::CellLocation;
use super::encoding::line_ends;
use super::error::DenseTableError;
use super::format::{FileLayout, Format, FormatError};
use super::ids::Ids;
use super::inferred::Inferred;
use super::label_texts::{LabelTexts, RowLocation};
use super::limits::ROWS_MAX;
use super::notation::is_numeric;
use super::sheet::{Known, Sheet};

/// Names of a column of users, in any case.
const USER_NAMES: [&str; 4] = ["user", "user_id", "userid", "user id"];
/// Names of a column of items, in any case.
const ITEM_NAMES: [&str; 10] = [
    "item",
    "item_id",
    "itemid",
    "item id",
    "movie",
    "movie_id",
    "movieid",
    "product",
    "product_id",
    "productid",
];
/// Names of a column of ratings, in any case, besides those of labels.
const VALUE_NAMES: [&str; 4] = ["rating", "value", "score", "stars"];

/// The ratings of a file, in the order of its rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ratings {
    /// The user of each rating.
    pub users: LabelTexts,
    /// The item of each rating.
    pub items: LabelTexts,
    /// The value of each rating; without rows if the file was read without values.
    pub values: LabelTexts,
}

/// Whether the values of a file are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    Read,
    LeftOut,
}

/// Why a file of ratings cannot be used. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RatingsError {
    /// The file is not CSV.
    #[error(
        "{file}: this is {found}, but ratings are read from a CSV file with a column each of users, items and ratings"
    )]
    OtherFormat {
        /// The file.
        file: String,
        /// Its format, with an article.
        found: String,
    },
    /// The file has too few columns, or the user names too few or too many.
    #[error(
        "{file}: {problem}; a file of ratings needs a column each of users, items and ratings: name them in [data], such as \
         `columns = [\"user\", \"item\"]` and `label = \"rating\"`"
    )]
    Columns {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A user or an item is missing.
    #[error("{file}, line {line}, column {column}: the {what} is empty; fill it in or delete the row")]
    NoId {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// `user` or `item`.
        what: &'static str,
    },
    /// A rating is not a finite number.
    #[error(
        "{file}, line {line}, column {column}: the rating `{found}` is not a finite 32-bit number; correct the cell, delete the row, or name the \
         column of ratings with `label` in [data]"
    )]
    NotANumber {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// The cell's text, shortened.
        found: String,
    },
    /// The same user has rated the same item twice.
    #[error(
        "{file}, line {line}: user `{user}` has rated item `{item}` already, in line {first_line} ({values}); keep one of the two \
         rows, or name the columns of users and items with `columns` in [data] if these are others"
    )]
    Repeated {
        /// The file.
        file: String,
        /// The line of the second rating, from 1.
        line: u64,
        /// The line of the first rating, from 1.
        first_line: u64,
        /// The user.
        user: String,
        /// The item.
        item: String,
        /// The two values, in words.
        values: String,
    },
    /// A user or an item is not among those of the model.
    #[error(
        "{file}, {place}: the model knows no {what} `{found}` (it knows {count}: {examples}); delete the rows of this {what}, or train again with \
         ratings of this {what}"
    )]
    Unknown {
        /// The file.
        file: String,
        /// The first row with it.
        place: RowLocation,
        /// `user` or `item`.
        what: &'static str,
        /// The id.
        found: String,
        /// How many the model knows.
        count: usize,
        /// Some of them.
        examples: String,
    },
    /// The file cannot be read as a table.
    #[error(transparent)]
    Table(#[from] DenseTableError),
}

/// Two ratings of one item, for an error.
fn in_words([first, second]: [String; 2]) -> String {
    if first == second { format!("both rate it {first}") } else { format!("{first} there, {second} here") }
}

/// The layout of a file of ratings, `bytes` (unpacked): the hints name the columns of users and items as features and that of ratings as the
/// label, or leave them open.
///
/// # Errors
/// If the file is not CSV, or lacks a column.
pub fn ratings_layout(
    file: &str,
    bytes: &[u8],
    hints: &ColumnHints,
) -> Result<Inferred<FileLayout>, FormatError> {
    let format = Format::of(file, bytes)?;
    if format != Format::Csv {
        return Err(RatingsError::OtherFormat { file: file.to_owned(), found: format.file() }.into());
    }
    // Ids may be words or numbers, but a rating is a number: the first row is a header if it has a word there.
    let as_header = ColumnHints { header: hints.header.or(Some(true)), ..hints.clone() };
    let sheet = Sheet::inspect(file, bytes, &as_header, Known::default())?;
    let places = places(file, &sheet, hints)?;
    let is_word = |name: &String| !name.is_empty() && !is_numeric(name.as_bytes());
    let has_header = sheet.names.get(places[2]).is_some_and(is_word);
    let names = if has_header { sheet.names } else { Vec::new() };
    let [user, item, value] = places.map(|place| Column::Number(place + 1));
    let found = ColumnHints {
        label: Some(value),
        features: Some(vec![user, item]),
        header: hints.header.or(Some(has_header)),
        ..hints.clone()
    };
    let Inferred { layout, mut notices, .. } = FileLayout::infer(file, bytes, &found)?;
    if !is_named(&names, places) {
        let [user, item, value] = places.map(|place| listed(&[place], &names));
        notices.push(format!(
            "users are taken from {user}, items from {item} and ratings from {value}; if that is wrong, name `columns` and `label` in [data]"
        ));
    }
    Ok(Inferred { notices, names, ..Inferred::certain(layout) })
}

/// The columns of users, items and ratings.
fn places(file: &str, sheet: &Sheet, hints: &ColumnHints) -> Result<[usize; 3], FormatError> {
    let width = sheet.width();
    let wrong = |problem: String| RatingsError::Columns { file: file.to_owned(), problem };
    if width == 1 {
        let (separator, is_given) = (sheet.separator, hints.delimiter.is_some());
        return Err(DenseTableError::OneColumn { file: file.to_owned(), separator, is_given }.into());
    }
    if width < 3 {
        return Err(wrong(format!("the file has {width} columns")).into());
    }
    let find = |column: &Column| find_column(file, column, width, &sheet.names);
    let (mut user, mut item) = (None, None);
    if let Some(columns) = &hints.features {
        let [first, second] = &columns[..] else {
            return Err(wrong(format!("`columns` names {} columns", columns.len())).into());
        };
        (user, item) = (Some(find(first)?), Some(find(second)?));
    }
    let mut value = hints.label.as_ref().map(find).transpose()?;
    let value_names = [&VALUE_NAMES[..], &LABEL_NAMES].concat();
    for (place, names) in [(&mut user, &USER_NAMES[..]), (&mut item, &ITEM_NAMES), (&mut value, &value_names)]
    {
        if let (None, [only]) = (&place, &called(&sheet.names, names)[..]) {
            *place = Some(*only);
        }
    }
    let mut places = [user, item, value];
    for index in 0..places.len() {
        if places[index].is_none() {
            places[index] = (0..width).find(|column| !places.contains(&Some(*column)));
        }
    }
    let places = places.map(|place| place.expect("there are at least three columns"));
    if places[0] == places[1] || places[2] == places[0] || places[2] == places[1] {
        return Err(wrong("one column is named twice".to_owned()).into());
    }
    Ok(places)
}

/// Whether the names of these columns say that they are of users, items and ratings.
fn is_named(names: &[String], [user, item, value]: [usize; 3]) -> bool {
    let is_any = |column: usize, wanted: &[&str]| called(names, wanted).contains(&column);
    is_any(user, &USER_NAMES)
        && is_any(item, &ITEM_NAMES)
        && (is_any(value, &VALUE_NAMES) || is_any(value, &LABEL_NAMES))
}

/// The layout of a file of pairs of users and items, for a model of ratings with the layout `trained`. It may have other columns beside them;
/// without names, it has these two, or all columns of the model's file.
///
/// # Errors
/// If it is not CSV, or the columns are not found.
pub fn pairs_layout(
    trained: &FileLayout,
    file: &str,
    bytes: &[u8],
) -> Result<Inferred<FileLayout>, FormatError> {
    let found = trained.of_unlabelled(file, bytes);
    let (Err(error), FileLayout::Csv(columns)) = (&found, trained) else { return found };
    if !matches!(error, FormatError::Match(_)) || !columns.feature_names.is_empty() {
        return found;
    }
    let hints =
        ColumnHints { features: Some(vec![Column::Number(1), Column::Number(2)]), ..ColumnHints::default() };
    let sheet = Sheet::inspect(file, bytes, &hints, Known::default())?;
    if sheet.width() != 2 {
        return found;
    }
    Ok(Inferred::certain(FileLayout::Csv(Columns {
        delimiter: sheet.delimiter.byte(),
        header: sheet.header,
        width: 2,
        label: 0,
        features: vec![0, 1],
        encoding: sheet.encoding,
        skip_lines: sheet.skip_lines,
        decimal: sheet.decimal,
        ..Columns::default()
    })))
}

impl Ratings {
    /// Reads `bytes` (unpacked) with this layout; `file` is the name for errors.
    ///
    /// # Errors
    /// At the first row that cannot be used, or at the first rating of an item that its user has rated before.
    pub fn read(file: &str, bytes: &[u8], layout: &FileLayout) -> Result<Self, RatingsError> {
        Self::read_as(Values::Read, file, bytes, layout)
    }

    /// As [`read`](Self::read), without the values. The same pair may occur several times.
    ///
    /// # Errors
    /// At the first row that cannot be used.
    pub fn read_pairs(file: &str, bytes: &[u8], layout: &FileLayout) -> Result<Self, RatingsError> {
        Self::read_as(Values::LeftOut, file, bytes, layout)
    }

    fn read_as(wanted: Values, file: &str, bytes: &[u8], layout: &FileLayout) -> Result<Self, RatingsError> {
        let FileLayout::Csv(layout) = layout else {
            let found = layout.format().file();
            return Err(RatingsError::OtherFormat { file: file.to_owned(), found });
        };
        let [user, item] = layout.features[..] else {
            let problem = format!("the layout has {} columns", layout.features.len());
            return Err(RatingsError::Columns { file: file.to_owned(), problem });
        };
        let TableText { text: table, start } = layout.table(file, bytes)?;
        let mut rows = reader(&table[start..], layout.delimiter);
        let (mut row, mut is_header) = (ByteRecord::new(), layout.header);
        let mut ratings = Self::default();
        // (ratings) The byte at which the reader looked for each row.
        let mut starts: Vec<u64> = Vec::new();
        let at = |start| CellLocation { file, bytes: &table, start, decimal: layout.decimal };
        // The line that begins at the byte `counted`.
        let (mut line, mut counted) = (1, 0);
        let value_notation = layout.notations()[layout.label];
        while rows.read_byte_record(&mut row).unwrap_or(false) {
            let row_start = start as u64 + row.position().map_or(0, csv::Position::byte);
            let place = at(row_start);
            if row.len() != layout.width {
                return Err(place.row_width(row.len(), layout.width).into());
            }
            if std::mem::take(&mut is_header) {
                continue;
            }
            if starts.len() == ROWS_MAX {
                return Err(DenseTableError::too_many_rows(file).into());
            }
            // Many ids and ratings are new: their lines are counted on, and not from the beginning.
            let row_begin = place.row_start();
            line += line_ends(&table[counted..row_begin]);
            counted = row_begin;
            let line = || RowLocation::Line(line);
            ratings.users.push(id(&place, &row[user], user, "user")?.into(), line);
            ratings.items.push(id(&place, &row[item], item, "item")?.into(), line);
            starts.push(row_start);
            if wanted == Values::Read {
                let cell = &row[layout.label];
                let is_finite = |value: f64| (value as f32).is_finite();
                if !value_notation.read(cell, layout.decimal).is_some_and(is_finite) {
                    let (file, line, column) = (file.to_owned(), place.line(), layout.label + 1);
                    return Err(RatingsError::NotANumber { file, line, column, found: shortened(cell) });
                }
                ratings.values.push(place.label(cell, layout.label, value_notation)?, line);
            }
        }
        match (starts.is_empty(), layout.header) {
            (true, true) => return Err(DenseTableError::NoRows { file: file.to_owned() }.into()),
            (true, false) => return Err(DenseTableError::Empty { file: file.to_owned() }.into()),
            (false, _) => {}
        }
        if let Some([first, second]) = ratings.first_repeated().filter(|_| wanted == Values::Read) {
            let line = |row: usize| at(starts[row]).line();
            return Err(ratings.repeated(file, [first, second], [line(first), line(second)]));
        }
        Ok(ratings)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.users.rows().len()
    }

    /// The first row whose user has rated its item before, behind the row of the earlier rating.
    fn first_repeated(&self) -> Option<[usize; 2]> {
        let pairs = self.users.rows().iter().zip(self.items.rows());
        let mut pairs: Vec<(u32, u32, usize)> =
            pairs.zip(0..).map(|((&user, &item), row)| (user, item, row)).collect();
        pairs.sort_unstable();
        let repeated = pairs.windows(2).filter(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1));
        repeated.map(|pair| [pair[0].2, pair[1].2]).min_by_key(|[_, second]| *second)
    }

    fn repeated(&self, file: &str, rows: [usize; 2], [first_line, line]: [u64; 2]) -> RatingsError {
        let cell = |texts: &LabelTexts, row: usize| texts.distinct()[texts.rows()[row] as usize].text.clone();
        RatingsError::Repeated {
            file: file.to_owned(),
            line,
            first_line,
            user: shortened(cell(&self.users, rows[1]).as_bytes()),
            item: shortened(cell(&self.items, rows[1]).as_bytes()),
            values: in_words(rows.map(|row| cell(&self.values, row))),
        }
    }
}

/// The id in a cell.
fn id(
    place: &CellLocation<'_>,
    cell: &[u8],
    column: usize,
    what: &'static str,
) -> Result<String, RatingsError> {
    let id = text(cell);
    if id.is_empty() {
        let (file, line) = (place.file.to_owned(), place.line());
        return Err(RatingsError::NoId { file, line, column: column + 1, what });
    }
    Ok(id)
}

/// The row in a model of the user or item of each rating; `what` is `user` or `item`.
///
/// # Errors
/// If the model does not know one.
pub fn rows_of(
    ids: &Ids,
    cells: &LabelTexts,
    file: &str,
    what: &'static str,
) -> Result<Vec<u32>, RatingsError> {
    let known = cells.distinct().iter().map(|cell| {
        ids.row(&cell.text).ok_or_else(|| RatingsError::Unknown {
            file: file.to_owned(),
            place: cell.place,
            what,
            found: shortened(cell.text.as_bytes()),
            count: ids.count(),
            examples: ids.examples(),
        })
    });
    let known: Vec<u32> = known.collect::<Result<_, _>>()?;
    Ok(cells.rows().iter().map(|&cell| known[cell as usize]).collect())
}

#[cfg(test)]
mod tests;
