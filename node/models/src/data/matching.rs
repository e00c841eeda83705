//! Matching: the columns of a model in another CSV file, on which the model is evaluated.
//!
//! A saved model knows the names of its columns. In another file they may come in another order, between columns that the model does not use.
//! A column that is missing, or whose name occurs twice, is an error: a number from the wrong column would be a wrong result without a sign
//! of it.
//!
//! # How it works
//! | the model's file | the other file | columns |
//! |---|---|---|
//! | names | header | by name |
//! | names that are not unique, or only their digest | header | by place, if the names there are the same |
//! | names | no header | by place, if the width is the same; with a notice |
//! | no names | any | by place, if the width is the same; refused if the label is elsewhere by its name |

use super::column_hints::ColumnHints;
use super::column_names::{column_text, digest_of_names, listed, named_label};
use super::columns::Columns;
use super::error::{DenseTableError, available};
use super::inferred::Inferred;
use super::notation::Notation;
use super::sheet::{Known, Sheet};

/// Why a model cannot be evaluated on a file. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// The file has another number of columns.
    #[error(
        "{file}: the file has {found} columns, but the model was trained on {expected}; give a file with the same columns, including the label"
    )]
    Width {
        /// The file.
        file: String,
        /// Its columns.
        found: usize,
        /// Columns of the file that the model was trained on.
        expected: usize,
    },
    /// Columns of the model are not in the file.
    #[error(
        "{file}: the model was trained on {missing}, which the file does not have; {}; give a file with all columns of the model under the \
         same names",
        available(.names.len(), .names)
    )]
    Missing {
        /// The file.
        file: String,
        /// The columns that are missing, in words.
        missing: String,
        /// The names in the file.
        names: Vec<String>,
    },
    /// A name of the model occurs more than once in the file.
    #[error(
        "{file}: several columns are named `{name}`, which the model was trained on; give each column a name of its own"
    )]
    Repeated {
        /// The file.
        file: String,
        /// The name.
        name: String,
    },
    /// The model's names do not identify its columns, and the file's are others.
    #[error(
        "{file}: {what} is not the one that the model was trained on, and the model cannot find its columns by name ({reason}); give a file with the \
         header of the training file"
    )]
    Header {
        /// The file.
        file: String,
        /// What differs.
        what: String,
        /// Why names do not help.
        reason: &'static str,
    },
    /// The model has no names, and the label seems to be in another place.
    #[error(
        "{file}: {label} has the name of a label, but the model was trained on a file without a header, with the label in column {expected}; \
         bring the columns into that order"
    )]
    LabelElsewhere {
        /// The file.
        file: String,
        /// The label's column in the file, in words.
        label: String,
        /// The number of the label's column in the model's file, from 1.
        expected: usize,
    },
    /// The file is not a table that can be read.
    #[error(transparent)]
    Table(#[from] DenseTableError),
}

impl Columns {
    /// The layout of another file, `bytes` (unpacked), with the columns of this one. It may have another delimiter, another encoding and
    /// another decimal mark.
    ///
    /// # Errors
    /// If it does not have these columns, or it is doubtful which they are.
    pub fn of_other(&self, file: &str, bytes: &[u8]) -> Result<Inferred<Self>, MatchError> {
        let names: Vec<&str> =
            self.feature_names.iter().chain(&self.label_name).map(String::as_str).collect();
        let known = Known { names: &names, decimal: Some(self.decimal), encoding: Some(self.encoding) };
        let sheet = Sheet::inspect(file, bytes, &ColumnHints::default(), known)?;
        // The settings of a run file do not apply to this one.
        let mut notices: Vec<String> = sheet.doubts.iter().map(|doubt| doubt.what.clone()).collect();
        let places = match (&self.label_name, sheet.header) {
            (Some(_), true) if !has_repeated(&names) => by_name(file, &names, &sheet, &[], &mut notices)?,
            _ => {
                self.check_places(file, &names, &sheet)?;
                notices.extend(self.doubt(&sheet, self.label_name.clone()));
                self.features.iter().copied().chain([self.label]).collect()
            }
        };
        Ok(Inferred { notices, ..Inferred::certain(self.placed(&places, &sheet)) })
    }

    /// As [`of_other`](Self::of_other), for a file that need not have the label. Labels that it has are not read: those of the layout are
    /// the first feature.
    ///
    /// # Errors
    /// If it does not have the features, or it is doubtful which they are.
    pub fn of_unlabelled(&self, file: &str, bytes: &[u8]) -> Result<Inferred<Self>, MatchError> {
        let names: Vec<&str> = self.feature_names.iter().map(String::as_str).collect();
        let known = Known { names: &names, decimal: Some(self.decimal), encoding: Some(self.encoding) };
        let sheet = Sheet::inspect(file, bytes, &ColumnHints::default(), known)?;
        let mut notices: Vec<String> = sheet.doubts.iter().map(|doubt| doubt.what.clone()).collect();
        let mut places = match (&self.label_name, sheet.header) {
            (Some(label), true) if !has_repeated(&names) => {
                by_name(file, &names, &sheet, &[label.as_str()], &mut notices)?
            }
            _ if sheet.width() + 1 == self.width => {
                let places: Vec<usize> =
                    self.features.iter().map(|&column| column - usize::from(column > self.label)).collect();
                self.check_features(file, &names, &places, &sheet)?;
                notices.extend(self.doubt(&sheet, None));
                places
            }
            _ => {
                let all: Vec<&str> = names.iter().copied().chain(self.label_name.as_deref()).collect();
                self.check_places(file, &all, &sheet)?;
                notices.extend(self.doubt(&sheet, None));
                self.features.clone()
            }
        };
        places.push(places[0]);
        let unlabelled = Self { label: self.features[0], ..self.clone() };
        Ok(Inferred { notices, ..Inferred::certain(unlabelled.placed(&places, &sheet)) })
    }

    /// Checks that the columns at these places of a file without labels have the names of the features, if both have names.
    fn check_features(
        &self,
        file: &str,
        names: &[&str],
        places: &[usize],
        sheet: &Sheet,
    ) -> Result<(), MatchError> {
        if !sheet.header {
            return Ok(());
        }
        let wrong = |what: String, reason| MatchError::Header { file: file.to_owned(), what, reason };
        if self.names_digest.is_some() {
            let reason = "their names are too long to be kept in it: give a file with the label's column too";
            return Err(wrong("the header".to_owned(), reason));
        }
        match names.iter().zip(places).find(|&(&name, &place)| sheet.names[place] != name) {
            Some((_, place)) => Err(wrong(
                format!("the name of column {}", place + 1),
                "some of their names are equal or empty",
            )),
            None => Ok(()),
        }
    }

    /// This layout for a file in which the features, then the label, are in these columns.
    fn placed(&self, places: &[usize], sheet: &Sheet) -> Self {
        let own: Vec<usize> = self.features.iter().copied().chain([self.label]).collect();
        let notations = self.notations();
        let with = |notation: Notation| -> Vec<usize> {
            let pairs = own.iter().zip(places);
            // A column of plain numbers may have amounts elsewhere: where numbers reach 1,000.
            let has = |own: usize, place: usize| match notations[own] {
                Notation::Plain if notation == Notation::Amount => {
                    sheet.columns[place].notation() == Some(Notation::Amount)
                }
                known => known == notation,
            };
            pairs.filter(|&(&own, &place)| has(own, place)).map(|(_, &place)| place).collect()
        };
        Self {
            delimiter: sheet.delimiter.byte(),
            header: sheet.header,
            width: sheet.width(),
            label: places[places.len() - 1],
            features: places[..places.len() - 1].to_vec(),
            encoding: sheet.encoding,
            skip_lines: sheet.skip_lines,
            decimal: sheet.decimal,
            amounts: with(Notation::Amount),
            percents: with(Notation::Percent),
            booleans: with(Notation::Boolean),
            feature_names: Vec::new(),
            label_name: None,
            names_digest: None,
        }
    }

    /// Checks that the columns of a file can be those of this layout, place by place. `names` are those of this layout, the label's last.
    fn check_places(&self, file: &str, names: &[&str], sheet: &Sheet) -> Result<(), MatchError> {
        let (file, found, expected) = (file.to_owned(), sheet.width(), self.width);
        if found != expected {
            return Err(MatchError::Width { file, found, expected });
        }
        if !sheet.header {
            return Ok(());
        }
        let own = || self.features.iter().copied().chain([self.label]);
        if let Some((_, index)) = names.iter().zip(own()).find(|&(&name, index)| sheet.names[index] != name) {
            let what = format!("the name of column {}", index + 1);
            return Err(MatchError::Header { file, what, reason: "some of their names are equal or empty" });
        }
        if let Some(digest) = &self.names_digest
            && *digest != digest_of_names(own().map(|index| sheet.names[index].as_str()))
        {
            let what = "the header".to_owned();
            return Err(MatchError::Header {
                file,
                what,
                reason: "their names are too long to be kept in it",
            });
        }
        match named_label(&sheet.names) {
            Some(label)
                if names.is_empty() && self.names_digest.is_none() && !self.header && label != self.label =>
            {
                let (label, expected) = (column_text(label, &sheet.names), self.label + 1);
                Err(MatchError::LabelElsewhere { file, label, expected })
            }
            _ => Ok(()),
        }
    }

    /// What is doubtful about a file whose columns are taken by place: the features, and the label if it has this name.
    fn doubt(&self, sheet: &Sheet, label: Option<String>) -> Option<String> {
        let has_names = self.label_name.is_some() || self.names_digest.is_some();
        match (has_names, self.header, sheet.header) {
            (true, _, false) => {
                let own: Vec<String> = self.feature_names.iter().cloned().chain(label).collect();
                let order: Vec<usize> = (0..own.len()).collect();
                let order = if own.is_empty() { String::new() } else { format!(": {}", listed(&order, &own)) };
                Some(format!("the file has no header; its columns are taken in the order of the training file{order}"))
            }
            (false, true, true) => Some(
                "the model was saved without the names of its columns; those of the file are taken in the order of the training file".to_owned(),
            ),
            (false, false, true) => Some(
                "the model was trained on a file without a header; the columns of the file are taken in the order of the training file".to_owned(),
            ),
            _ => None,
        }
    }
}

/// The place in the file of each of these names. Columns with the names `others` may be there too.
fn by_name(
    file: &str,
    names: &[&str],
    sheet: &Sheet,
    others: &[&str],
    notices: &mut Vec<String>,
) -> Result<Vec<usize>, MatchError> {
    let file = || file.to_owned();
    let places: Vec<Vec<usize>> = {
        let mut known = std::collections::BTreeMap::<&str, Vec<usize>>::new();
        for (index, name) in sheet.names.iter().enumerate() {
            known.entry(name.as_str()).or_default().push(index);
        }
        names.iter().map(|name| known.get(name).cloned().unwrap_or_default()).collect()
    };
    if let Some((name, _)) = names.iter().zip(&places).find(|(_, places)| places.len() > 1) {
        return Err(MatchError::Repeated { file: file(), name: (*name).to_owned() });
    }
    let own: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let missing: Vec<usize> = (0..names.len()).filter(|&index| places[index].is_empty()).collect();
    if !missing.is_empty() {
        return Err(MatchError::Missing {
            file: file(),
            missing: listed(&missing, &own),
            names: sheet.names.clone(),
        });
    }
    let places: Vec<usize> = places.into_iter().flatten().collect();
    let unused: Vec<usize> = {
        let used: std::collections::BTreeSet<usize> = places.iter().copied().collect();
        let is_unused = |&index: &usize| !used.contains(&index) && !others.contains(&&*sheet.names[index]);
        (0..sheet.width()).filter(is_unused).collect()
    };
    if !unused.is_empty() {
        notices.push(format!("the model does not use {}", listed(&unused, &sheet.names)));
    }
    Ok(places)
}

/// Whether a name is empty or occurs twice.
fn has_repeated(names: &[&str]) -> bool {
    let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    distinct.len() != names.len() || distinct.contains("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dense_table::DenseTable;

    fn trained_on(text: &str) -> Columns {
        Columns::infer("f.csv", text.as_bytes(), &ColumnHints::default()).unwrap().layout
    }

    /// The features and the notices of the other file.
    fn read(layout: &Columns, text: &str) -> Result<(Vec<f64>, String), String> {
        let other = layout.of_other("g.csv", text.as_bytes()).map_err(|error| error.to_string())?;
        let table =
            DenseTable::read("g.csv", text.as_bytes(), &other.layout).map_err(|error| error.to_string())?;
        Ok((table.features, other.notices.join("\n")))
    }

    const NAMED: &str = "a,b,c,label\n1,2,3,0\n4,5,6,1\n";

    #[test]
    fn named_columns_are_found_in_any_order() {
        let layout = trained_on(NAMED);
        let plain = (vec![1.0, 2.0, 3.0], String::new());
        for text in [
            "a,b,c,label\n1,2,3,0\n",
            "label,c,a,b\n0,3,1,2\n",
            "b;label;c;a\n2,0;0;3;1\n",
            " c | a |b| label\n3|1|2|0\n",
            "# written later\na,b,c,label\n1,2,3,0\n",
        ] {
            let (features, notices) = read(&layout, text).unwrap();
            assert_eq!(features, plain.0, "{text}");
            assert!(notices.is_empty() || text.starts_with('#'), "{notices}");
        }
        let (features, notices) = read(&layout, "id,a,b,c,label\n9,1,2,3,0\n").unwrap();
        assert_eq!((features, notices.as_str()), (plain.0, "the model does not use `id`"));
    }

    #[test]
    fn missing_renamed_and_repeated_columns_are_refused() {
        let layout = trained_on(NAMED);
        let error = |text| read(&layout, text).unwrap_err();
        assert_eq!(
            error("a,b,label\n1,2,0\n"),
            "g.csv: the model was trained on `c`, which the file does not have; the columns are: a, b, label; give a file with all columns of \
             the model under the same names"
        );
        assert!(error("a,B,c,label\n1,2,3,0\n").starts_with("g.csv: the model was trained on `b`, which"));
        assert!(error("a,b,c,kind\n1,2,3,0\n").starts_with("g.csv: the model was trained on `label`, which"));
        assert_eq!(
            error("a,b,c,a,label\n1,2,3,4,0\n"),
            "g.csv: several columns are named `a`, which the model was trained on; give each column a name of its own"
        );
        assert!(
            error("1,2,0\n").starts_with("g.csv: the file has 3 columns, but the model was trained on 4")
        );
    }

    #[test]
    fn columns_without_names_are_taken_by_place_with_a_notice() {
        let (features, notices) = read(&trained_on(NAMED), "1,2,3,0\n").unwrap();
        assert_eq!(features, [1.0, 2.0, 3.0]);
        assert_eq!(
            notices,
            "the file has no header; its columns are taken in the order of the training file: `a`, `b`, `c`, `label`"
        );
        let unnamed = trained_on("1,2,3,0\n4,5,6,1\n1,2,3,0\n4,5,6,1\n");
        assert_eq!(read(&unnamed, "1,2,3,0\n").unwrap().1, "");
        let (_, notices) = read(&unnamed, NAMED).unwrap();
        assert!(notices.starts_with("the model was trained on a file without a header;"), "{notices}");
        let error = read(&unnamed, "label,a,b,c\n0,1,2,3\n").unwrap_err();
        assert_eq!(
            error,
            "g.csv: `label` has the name of a label, but the model was trained on a file without a header, with the label in column 4; bring the \
             columns into that order"
        );
        let old = Columns { feature_names: Vec::new(), label_name: None, ..trained_on(NAMED) };
        let (_, notices) = read(&old, NAMED).unwrap();
        assert!(notices.starts_with("the model was saved without the names of its columns;"), "{notices}");
    }

    #[test]
    fn names_that_do_not_identify_columns_must_be_the_same() {
        let twice = trained_on("a,a,label\n1,2,0\n");
        assert_eq!(read(&twice, "a,a,label\n1,2,0\n").unwrap().0, [1.0, 2.0]);
        let error = read(&twice, "a,b,label\n1,2,0\n").unwrap_err();
        assert!(
            error.starts_with("g.csv: the name of column 2 is not the one that the model was trained on"),
            "{error}"
        );
        let mut digest = trained_on(NAMED);
        digest.shorten_names();
        assert_eq!(read(&digest, NAMED).unwrap().1, "");
        let error = read(&digest, "b,a,c,label\n2,1,3,0\n").unwrap_err();
        assert!(
            error.starts_with("g.csv: the header is not the one that the model was trained on"),
            "{error}"
        );
    }

    #[test]
    fn the_encoding_of_the_model_is_the_likely_one() {
        let text = "a,\u{17c}ar,label\n1,2,0\n";
        let bytes = encoding_rs::ISO_8859_2.encode(text).0;
        let hints = ColumnHints {
            encoding: Some("iso-8859-2".to_owned().try_into().unwrap()),
            ..ColumnHints::default()
        };
        let layout = Columns::infer("f.csv", &bytes, &hints).unwrap().layout;
        let other = layout.of_other("g.csv", &[&bytes[..], b"3,4,1\n"].concat()).unwrap();
        assert_eq!((other.layout.encoding, other.layout.features), (layout.encoding, vec![0, 1]));
        assert_eq!(
            other.notices,
            ["the text is not UTF-8; it is read as iso-8859-2, which is a guess (line 1: `\u{17c}ar`)"]
        );
    }

    #[test]
    fn notations_go_with_their_columns() {
        let layout = trained_on("share,flag,x,label\n5%,yes,10,0\n6%,no,20,1\n");
        let (features, _) = read(&layout, "label,x,flag,share\n0,\"1,234\",TRUE,7%\n").unwrap();
        assert_eq!(features, [7.0, 1.0, 1234.0]);
        let error = read(&layout, "share,flag,x,label\n0.05,yes,10,0\n").unwrap_err();
        assert!(error.contains("`0.05` is not a number with `%`"), "{error}");
    }

    /// The features of a file without labels.
    fn read_unlabelled(layout: &Columns, text: &str) -> Result<(Vec<f64>, String), String> {
        let found = layout.of_unlabelled("g.csv", text.as_bytes()).map_err(|error| error.to_string())?;
        let table =
            DenseTable::read("g.csv", text.as_bytes(), &found.layout).map_err(|error| error.to_string())?;
        Ok((table.features, found.notices.join("; ")))
    }

    #[test]
    fn a_file_without_labels_has_the_features() {
        let named = trained_on("a,label,b\n1,x,2\n3,y,4\n");
        let by_name = (vec![5.0, 6.0], String::new());
        for text in ["b,a\n6,5\n", "a,label,b\n5,,6\n", "label,b,a\nz,6,5\n"] {
            assert_eq!(read_unlabelled(&named, text), Ok(by_name.clone()), "{text}");
        }
        let (features, notices) = read_unlabelled(&named, "5,6\n7,8\n").unwrap();
        assert_eq!(features, [5.0, 6.0, 7.0, 8.0], "the label stood between them");
        assert!(notices.ends_with("in the order of the training file: `a`, `b`"), "{notices}");
        let missing = read_unlabelled(&named, "a,c\n1,2\n").unwrap_err();
        assert!(missing.contains("the model was trained on `b`, which the file does not have"), "{missing}");
        let repeated = trained_on("a,a,label\n1,2,cat\n3,4,dog\n");
        assert_eq!(read_unlabelled(&repeated, "a,a\n5,6\n").unwrap().0, [5.0, 6.0]);
        let moved = read_unlabelled(&repeated, "b,a\n5,6\n").unwrap_err();
        assert!(moved.contains("the name of column 1 is not the one"), "{moved}");
        let unnamed = trained_on("1,2,cat\n3,4,dog\n");
        assert_eq!(read_unlabelled(&unnamed, "5,6\n").unwrap().0, [5.0, 6.0]);
        assert_eq!(read_unlabelled(&unnamed, "5,6,z\n").unwrap().0, [5.0, 6.0]);
        assert!(read_unlabelled(&unnamed, "5\n").unwrap_err().contains("the file has 1 columns"));
    }
}
