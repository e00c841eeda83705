//! The label column: which column of a CSV file the labels are in, if the user does not say so.
//!
//! # How it works
//! 1. With a header: the only column called label, class or target. Else the first or last one called `y`, `labels`, `outcome` or
//!    `response`. Else the last one.
//! 2. Without a header: the first column, if it has few whole numbers without a gap (or few words), and the last one has other numbers:
//!    many files of physics have the class first. Else the last one.
//!
//! An empty column is never the label. Where the choice may be wrong, the user gets a notice.

use super::column_names::{LABEL_NAMES, called, column_text};
use super::survey::ColumnSurvey;

/// Names that mark the first or the last column as the label, in any case.
const PROBABLE_NAMES: [&str; 6] = ["y", "labels", "classes", "outcome", "response", "output"];
/// What to do if the guess is wrong.
const REMEDY: &str = "set `label` in [data] if it is another one";

/// The index of the label's column, and a notice if it is a guess. `names` is empty without a header.
pub(super) fn guess_label(names: &[String], columns: &[ColumnSurvey]) -> (usize, Option<String>) {
    let is_filled = |column: &ColumnSurvey| column.rows == 0 || column.missing < column.rows;
    let last = columns.iter().rposition(is_filled).unwrap_or(columns.len() - 1);
    let said = |index: usize, why: &str| {
        let column = column_text(index, names);
        (index, Some(format!("{why}, so {column} is taken as the label; {REMEDY}")))
    };
    if columns.len() < 2 {
        return (last, None);
    }
    let first_is_class = is_class(&columns[0]);
    let last_is_class = columns[last].is_whole() || columns[last].is_named_classes();
    if names.is_empty() {
        return match (first_is_class, last_is_class) {
            (true, false) => said(0, "there is no header, and column 1 has few values, the last column many"),
            (true, true)
                if columns[0].is_named_classes()
                    || columns[1..last].iter().any(|column| !column.is_whole()) =>
            {
                said(last, "there is no header, and the first and the last column could both be the label")
            }
            (_, true) => (last, None),
            (false, false) => said(last, "there is no header"),
        };
    }
    match called(names, &LABEL_NAMES)[..] {
        [only] => return (only, None),
        [] => {}
        _ => return said(last, "several columns are called label, class or target"),
    }
    if let [only] = called(names, &PROBABLE_NAMES)[..]
        && (only == 0 || only == last)
    {
        return said(only, "no column is called label, class or target");
    }
    let doubt = if first_is_class && !last_is_class { ", and the first column has few values" } else { "" };
    said(last, &format!("no column is called label, class or target{doubt}"))
}

/// Whether a column is rather the label than a feature.
fn is_class(column: &ColumnSurvey) -> bool {
    column.is_numbered_classes() || column.is_named_classes()
}

#[cfg(test)]
mod tests {
    use crate::data::column_hints::ColumnHints;
    use crate::data::columns::Columns;

    #[track_caller]
    fn assert_guess(text: &str, label: usize, notice: &str) {
        let inferred = Columns::infer("f", text.as_bytes(), &ColumnHints::default()).unwrap();
        assert_eq!((inferred.layout.label, inferred.notices.join("\n").as_str()), (label, notice), "{text}");
    }

    #[test]
    fn names_decide_where_there_are_names() {
        assert_guess("x,label,z\n1,0,2\n", 1, "");
        let none = "no column is called label, class or target, so";
        let end = "is taken as the label; set `label` in [data] if it is another one";
        assert_guess("y,a,b\n0,1.5,2\n", 0, &format!("{none} `y` {end}"));
        assert_guess("x,y,z\n0,1.5,2\n", 2, &format!("{none} `z` {end}"));
        assert_guess("a,b,c\n0,1.5,2\n", 2, &format!("{none} `c` {end}"));
        assert_guess(
            "a,b,c\n0,1,2.5\n1,2,3.25\n0,3,4.5\n1,4,5.5\n",
            2,
            &format!(
                "no column is called label, class or target, and the first column has few values, so `c` {end}"
            ),
        );
        assert_guess(
            "label,x,class\n0,1.5,2\n",
            2,
            &format!("several columns are called label, class or target, so `class` {end}"),
        );
    }

    #[test]
    fn a_class_in_the_first_column_is_seen() {
        let end = "is taken as the label; set `label` in [data] if it is another one";
        let first = format!(
            "there is no header, and column 1 has few values, the last column many, so column 1 {end}"
        );
        assert_guess("1.0e0,0.5,1.5\n0.0e0,2.5,3.5\n1.0e0,1.25,2.5\n0.0e0,4.5,6.5\n", 0, &first);
        assert_guess("b,0.5,1.5\na,2.5,3.5\nb,1.25,2.5\na,4.5,6.5\n", 0, &first);
        let both = format!(
            "there is no header, and the first and the last column could both be the label, so column 3 {end}"
        );
        assert_guess("1,0.5,1\n0,2.5,0\n1,1.25,1\n0,4.5,0\n", 2, &both);
        let last = format!("there is no header, so column 3 {end}");
        assert_guess("1.5,0.5,1.5\n2.5,2.5,3.5\n", 2, &last);
        assert_guess("1.5,0.5,1\n2.5,2.5,0\n3.5,1,1\n1.75,2,0\n", 2, "");
    }
}
