//! Labels: the labels of a file as class indices or as numbers.
//!
//! Digits may name a class or be a quantity: `3` is a kind of flower in one file and a price in another. The founder of a run decides
//! once ([`Target::infer`]) and writes the decision to the specification; all other peers apply it ([`Target::labels`]).
//!
//! # How it works
//! Labels are classes if at least one of them is a word. Whole numbers are classes if at most [`CLASSES_MAX`] are distinct and each
//! occurs ten times on average; for at most [`CLASSES_MAX_SMALL`] distinct ones, twice on average is enough. The labels 0 and 1, or -1 and
//! 1, are always classes. All other labels are numbers. Classes are ordered by value if all are whole numbers, and by text otherwise; the index of a class is its place in that order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::label_texts::{LabelText, LabelTexts, RowLocation};
use super::standardize::Standardization;

/// The most classes that are inferred; a user may list more by name.
pub const CLASSES_MAX: usize = 1000;
/// The most distinct whole numbers for which two samples each, on average, are enough to infer classes.
pub const CLASSES_MAX_SMALL: usize = 20;

/// The quantity that a model predicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "predict", rename_all = "lowercase", deny_unknown_fields)]
pub enum Target {
    /// One of several classes.
    Class {
        /// The label texts of the classes, in the order of their indices; at least two.
        classes: Vec<String>,
    },
    /// A number, trained as `(label - mean) / scale`.
    Number {
        /// Mean over the training rows.
        mean: f64,
        /// Standard deviation over the training rows.
        scale: f64,
    },
    /// The next token of a text, or the words of documents.
    Token {
        /// How many different ones there are.
        vocabulary: usize,
    },
}

/// What a user says about the target; a field that is `None` is inferred.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetHints {
    /// Whether the labels are classes or numbers.
    pub predict: Option<Predict>,
    /// The classes.
    pub classes: Option<Classes>,
}

/// The kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Predict {
    /// One of several classes.
    Class,
    /// A number.
    Number,
}

/// The classes, as a user gives them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Classes {
    /// The whole numbers `0..count`.
    Count(u32),
    /// These labels, in this order.
    Names(Vec<String>),
}

impl Classes {
    /// The labels of the classes, in the order of their indices.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Count(count) => (0..*count).map(|class| class.to_string()).collect(),
            Self::Names(names) => names.clone(),
        }
    }

    /// These classes in the shorter of the two forms.
    #[must_use]
    pub fn of(names: &[String]) -> Self {
        let is_counted = names.iter().enumerate().all(|(index, name)| *name == index.to_string());
        if is_counted { Self::Count(names.len() as u32) } else { Self::Names(names.to_vec()) }
    }
}

/// A label for each sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Class indices.
    Classes(Vec<u32>),
    /// Standardized numbers.
    Numbers(Vec<f32>),
}

/// Why the labels of a file cannot be used. Each names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A label that is not one of the classes.
    #[error("{file}, {place}: the label `{found}` is not among the classes ({}); correct the row, or `classes` in [data]", listed(.classes))]
    NotAClass {
        /// The file.
        file: String,
        /// Where in it.
        place: RowLocation,
        /// The label.
        found: String,
        /// The classes.
        classes: Vec<String>,
    },
    /// All rows have the same label.
    #[error(
        "{file}: every row has the label `{found}`, but a model needs at least two classes; check that this is the right file and, for a CSV file, that `label` in [data] names the right column"
    )]
    SingleClass {
        /// The file.
        file: String,
        /// The label.
        found: String,
    },
    /// The labels are words, with more distinct ones than [`CLASSES_MAX`].
    #[error(
        "{file}: {rows} rows have {found} different labels; check that `label` in [data] names the right column, and if it does, list the classes in `classes`"
    )]
    TooManyClasses {
        /// The file.
        file: String,
        /// Different labels.
        found: usize,
        /// Rows.
        rows: usize,
    },
    /// Numbers are predicted, and a label is not a number.
    #[error(
        "{file}, {place}: the label `{found}` is not a number; correct the row, or set `predict = \"class\"` in [data]"
    )]
    NotANumber {
        /// The file.
        file: String,
        /// Where in it.
        place: RowLocation,
        /// The label.
        found: String,
    },
}

/// Some of many classes, for an error.
fn listed(classes: &[String]) -> String {
    match classes {
        few if few.len() <= 12 => few.join(", "),
        many => format!("{}, ... {}", many[..3].join(", "), many[many.len() - 1]),
    }
}

impl Target {
    /// Decides whether the labels of a file are classes or numbers. Mean and scale of numbers are measured over the `training` rows.
    ///
    /// # Errors
    /// If the labels contradict the hints, or all rows have the same class.
    pub fn infer(
        file: &str,
        texts: &LabelTexts,
        hints: &TargetHints,
        training: &[u32],
    ) -> Result<Self, LabelError> {
        let predict = match (hints.predict, &hints.classes) {
            (Some(predict), _) => predict,
            (None, Some(_)) => Predict::Class,
            (None, None) => infer_predict(file, texts)?,
        };
        match (predict, &hints.classes) {
            (Predict::Number, _) => {
                let numbers = numbers(file, texts)?;
                let labels: Vec<f64> = texts.rows().iter().map(|&value| numbers[value as usize]).collect();
                let fitted = Standardization::fit(&labels, 1, training);
                Ok(Self::Number { mean: fitted.mean[0], scale: fitted.scale[0] })
            }
            (Predict::Class, Some(classes)) => {
                let target = Self::Class { classes: classes.names() };
                target.labels(file, texts).map(|_| target)
            }
            (Predict::Class, None) => {
                if let [only] = texts.distinct() {
                    return Err(LabelError::SingleClass { file: file.to_owned(), found: only.text.clone() });
                }
                Ok(Self::Class { classes: sorted(texts.distinct()) })
            }
        }
    }

    /// The label of each row.
    ///
    /// # Errors
    /// If a label is not one of the classes, or is not a number although numbers are predicted.
    pub fn labels(&self, file: &str, texts: &LabelTexts) -> Result<Labels, LabelError> {
        match self {
            Self::Class { classes } => {
                let indices: BTreeMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
                let index = |value: &LabelText| {
                    indices.get(value.text.as_str()).copied().ok_or_else(|| LabelError::NotAClass {
                        file: file.to_owned(),
                        place: value.place,
                        found: value.text.clone(),
                        classes: classes.clone(),
                    })
                };
                let known: Vec<u32> = texts.distinct().iter().map(index).collect::<Result<_, _>>()?;
                Ok(Labels::Classes(texts.rows().iter().map(|&value| known[value as usize]).collect()))
            }
            Self::Number { mean, scale } => {
                let numbers = numbers(file, texts)?;
                let standardized = |&value: &u32| ((numbers[value as usize] - mean) / scale) as f32;
                Ok(Labels::Numbers(texts.rows().iter().map(standardized).collect()))
            }
            // Prose has none beside its tokens.
            Self::Token { .. } => Ok(Labels::Classes(vec![])),
        }
    }
}

impl Labels {
    /// The labels of `rows`, in that order.
    #[must_use]
    pub fn select(&self, rows: &[u32]) -> Self {
        match self {
            Self::Classes(all) => Self::Classes(rows.iter().map(|&row| all[row as usize]).collect()),
            Self::Numbers(all) => Self::Numbers(rows.iter().map(|&row| all[row as usize]).collect()),
        }
    }
}

fn whole(value: &LabelText) -> Option<i64> {
    value.text.parse().ok()
}

/// The number that each distinct label stands for.
fn numbers(file: &str, texts: &LabelTexts) -> Result<Vec<f64>, LabelError> {
    let number = |value: &LabelText| {
        value.text.parse().map_err(|_| LabelError::NotANumber {
            file: file.to_owned(),
            place: value.place,
            found: value.text.clone(),
        })
    };
    texts.distinct().iter().map(number).collect()
}

fn infer_predict(file: &str, texts: &LabelTexts) -> Result<Predict, LabelError> {
    let (rows, distinct) = (texts.rows().len(), texts.distinct().len());
    let has_words = texts.distinct().iter().any(|value| value.text.parse::<f64>().is_err());
    if has_words && distinct > CLASSES_MAX {
        return Err(LabelError::TooManyClasses { file: file.to_owned(), found: distinct, rows });
    }
    let is_whole = texts.distinct().iter().all(|value| whole(value).is_some());
    let is_few = distinct <= CLASSES_MAX && distinct * 10 <= rows;
    let is_few_of_few = distinct <= CLASSES_MAX_SMALL && distinct * 2 <= rows;
    let has = |text: &str| texts.distinct().iter().any(|value| value.text == text);
    let is_binary = distinct == 2 && has("1") && (has("0") || has("-1"));
    let is_class = has_words || (is_whole && (distinct == 1 || is_few || is_few_of_few || is_binary));
    Ok(if is_class { Predict::Class } else { Predict::Number })
}

/// By value if all are whole numbers, else by text.
fn sorted(values: &[LabelText]) -> Vec<String> {
    let mut texts: Vec<String> = values.iter().map(|value| value.text.clone()).collect();
    match values.iter().map(whole).collect::<Option<Vec<_>>>() {
        Some(_) => texts.sort_by_key(|text| text.parse::<i64>().unwrap_or(i64::MAX)),
        None => texts.sort_unstable(),
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(labels: &[&str]) -> LabelTexts {
        let mut texts = LabelTexts::default();
        for (line, &label) in (1..).zip(labels) {
            texts.push(label.into(), || RowLocation::Line(line));
        }
        texts
    }

    fn infer(labels: &[&str], hints: TargetHints) -> Result<Target, LabelError> {
        let rows: Vec<u32> = (0..labels.len() as u32).collect();
        Target::infer("f", &texts(labels), &hints, &rows)
    }

    fn classes(names: &[&str]) -> Target {
        Target::Class { classes: names.iter().map(|&name| name.to_owned()).collect() }
    }

    #[test]
    fn words_and_repeated_whole_numbers_are_classes() {
        let hints = TargetHints::default();
        assert_eq!(infer(&["dog", "cat", "dog"], hints.clone()), Ok(classes(&["cat", "dog"])));
        assert_eq!(infer(&["10", "2", "10", "2"], hints.clone()), Ok(classes(&["2", "10"])));
        assert_eq!(infer(&["1", "2", "1", "unknown"], hints.clone()), Ok(classes(&["1", "2", "unknown"])));
        assert_eq!(infer(&["1", "0"], hints.clone()), Ok(classes(&["0", "1"])), "two of two rows");
        assert_eq!(infer(&["1", "-1", "1"], hints), Ok(classes(&["-1", "1"])));
    }

    #[test]
    fn fractions_and_distinct_whole_numbers_are_numeric_targets() {
        let hints = TargetHints::default();
        assert_eq!(
            infer(&["1", "2", "3", "6"], hints.clone()),
            Ok(Target::Number { mean: 3.0, scale: 3.5_f64.sqrt() })
        );
        assert!(matches!(infer(&["0.5", "1", "0.5", "1"], hints), Ok(Target::Number { .. })));
    }

    #[test]
    fn hints_override_the_inferred_target() {
        let number = TargetHints { predict: Some(Predict::Number), classes: None };
        assert!(matches!(infer(&["0", "1", "0", "1"], number.clone()), Ok(Target::Number { .. })));
        let error = infer(&["0", "b", "0", "1"], number).unwrap_err();
        assert!(error.to_string().starts_with("f, line 2: the label `b` is not a number"), "{error}");
        let class = TargetHints { predict: Some(Predict::Class), classes: None };
        assert_eq!(infer(&["0.5", "1", "2"], class), Ok(classes(&["0.5", "1", "2"])));
    }

    #[test]
    fn a_label_out_of_range_is_named_with_its_line() {
        let hints = TargetHints { predict: None, classes: Some(Classes::Count(3)) };
        let error = infer(&["0", "2", "3"], hints).unwrap_err();
        assert_eq!(
            error.to_string(),
            "f, line 3: the label `3` is not among the classes (0, 1, 2); correct the row, or `classes` in [data]"
        );
    }

    #[test]
    fn a_single_class_is_an_error() {
        let error = infer(&["7", "7", "7"], TargetHints::default()).unwrap_err();
        assert!(matches!(error, LabelError::SingleClass { .. }), "{error}");
    }

    #[test]
    fn labels_follow_the_order_of_classes() {
        let texts = texts(&["b", "a", "b"]);
        assert_eq!(classes(&["a", "b"]).labels("f", &texts), Ok(Labels::Classes(vec![1, 0, 1])));
        let all = classes(&["a", "b"]).labels("f", &texts).unwrap();
        assert_eq!(all.select(&[1, 2]), Labels::Classes(vec![0, 1]));
    }

    #[test]
    fn counted_classes_are_written_as_a_count() {
        let names = Classes::Count(3).names();
        assert_eq!(Classes::of(&names), Classes::Count(3));
        let names = vec!["1".to_owned(), "2".to_owned()];
        assert_eq!(Classes::of(&names), Classes::Names(names));
    }
}
