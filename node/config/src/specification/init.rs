//! `peer init`: writes a commented run.toml that works without edits.
//!
//! It writes down what `start` would infer from the data, so that users can read and change it. The defaults depend on the size of
//! the data, and reach the held-out accuracy of a careful first attempt by hand.

use std::fmt::Write as _;

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::column_hints::ColumnHints;
use peergrad_models::data::column_names::listed;
use peergrad_models::data::embedded::{DIGITS, embedded};
use peergrad_models::data::error::DenseTableError;
use peergrad_models::data::format::{FileLayout, Format, FormatError};
use peergrad_models::data::idx::Outline;
use peergrad_models::data::inferred::{Inferred, UnusableColumn};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::numbered::{Numbered, NumberedFormat};
use peergrad_models::data::standardize::Standardization;
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;

use super::deep::data::{in_memory, outline};
use super::deep::transformer::is_prose;
use super::resolve::{ResolvedData, resolve_data};
use super::run_file::{DataSection, InputForm, ModelKind, SEED_DEFAULT};
use super::{DataSettings, RunFile, SpecificationError, resolve};
use crate::prepared_text::PreparedText;
use crate::terminal::is_obeyed;
use data_section::{ColumnNames, column, data_section};
use fixed::{HEAD, REST, SSP, SYNC};
use preset::Preset;

mod data_section;
mod fixed;
mod preset;
mod prose;
mod ratings;
mod topics;

/// LIBSVM files with more columns than this are mostly zeros, and get a sparse model.
const COLUMNS_FOR_SPARSE_MODEL: usize = 4096;
/// The most columns that are left out and described one by one.
const COLUMNS_DESCRIBED_MAX: usize = 10;

/// A run.toml that was written for a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRunFile {
    /// The text.
    pub text: String,
    /// What was inferred and may be wrong, and what was left out: each a sentence for the user.
    pub notices: Vec<String>,
}

/// The commented run.toml for a data file. `data_name` is the file's path, relative to the folder of the run.toml.
///
/// Feature columns without numbers are left out; a notice and a comment say so.
///
/// `kind` is the model that the user wants; by default it follows from the data. A file of prose, such as `book.txt`, gets a transformer.
///
/// # Errors
/// The data cannot be used, or not for this model.
pub fn write_run_file(
    data_name: &str,
    data: impl Into<DataBytes>,
    kind: Option<ModelKind>,
) -> Result<WrittenRunFile, SpecificationError> {
    let data = data.into();
    // A text that stays on disk is not read as a table first.
    let is_large_text = matches!(data, DataBytes::Disk(_)) && is_prose(data_name, &data);
    let kind = kind.or(is_large_text.then_some(ModelKind::Gpt));
    let written = write(data_name, &data, kind, None);
    if kind.is_some() {
        // What the data does not suit is refused here, and not only when a run is started.
        let written = written?;
        resolve(&RunFile::parse(&written.text)?, data_name, data)?;
        return Ok(written);
    }
    let Err(error) = written else { return written };
    if !is_prose(data_name, &data) {
        return Err(error);
    }
    let Ok(mut written) = write(data_name, &data, Some(ModelKind::Gpt), None) else { return Err(error) };
    written.notices.push(format!("read as prose, because it is no table ({error})"));
    Ok(written)
}

/// As [`write_run_file`], without a guess; `batch`, if given, replaces the default batch size.
fn write(
    data_name: &str,
    packed: &DataBytes,
    kind: Option<ModelKind>,
    batch: Option<u64>,
) -> Result<WrittenRunFile, SpecificationError> {
    let unpacked = packed.unpacked(data_name, UNPACKED_BYTES_MAX)?;
    let prepared = PreparedText::find(data_name, &unpacked)?;
    if kind.map_or(prepared.is_some(), ModelKind::is_for_text) {
        return prose::run_file(data_name, packed, prepared.as_ref(), kind);
    }
    if kind == Some(ModelKind::Factorization) {
        return ratings::run_file(data_name, packed);
    }
    if kind == Some(ModelKind::Lda) {
        return topics::run_file(data_name, packed);
    }
    let outline = outline(data_name, &unpacked)?;
    let kind = kind.or_else(|| outline.as_ref()?.has_names().then_some(ModelKind::Cnn));
    let mut section = DataSection::new(data_name);
    let hints = ColumnHints::default();
    let inferred = match &outline {
        Some(outline) => FileLayout::of_outline(data_name, outline, &hints)?,
        None => FileLayout::infer(data_name, &in_memory(data_name, &unpacked)?, &hints)?,
    };
    let Inferred { layout, names, unusable, incomplete, mut notices } = inferred;
    if let FileLayout::Csv(layout) = &layout
        && !unusable.is_empty()
    {
        let described = described(&unusable, &names);
        if unusable.len() == layout.features.len() {
            let file = data_name.to_owned();
            return Err(DenseTableError::NoNumbers { file, columns: described }.into());
        }
        let is_usable = |index: &&usize| unusable.iter().all(|column| column.index != **index);
        let numbers = layout.features.iter().filter(is_usable);
        section.columns = Some(numbers.map(|&index| column(index, &names)).collect());
        notices.push(format!("left out, because a model needs numbers: {}", described.join(", ")));
    }
    let is_sparse = layout.format() == Format::Libsvm && layout.columns() > COLUMNS_FOR_SPARSE_MODEL;
    let inferred = if is_sparse { InputForm::SparseTable } else { InputForm::Table };
    let input = kind.map_or(inferred, ModelKind::input);
    let resolved = resolve_data(&section, input, SEED_DEFAULT, data_name, packed);
    let ResolvedData { mut data, picture, .. } =
        resolved.map_err(|error| with_all_columns(error, &incomplete, &names))?;
    if !fits(&data) {
        notices.push(without_standardization(&data));
        data.standardization = Standardization::identity();
    }
    if data.held_out_rows == 0 {
        notices.push(format!(
            "no row is held out for a test, because the file has only {}; give more rows, or raise `held_out` in [data]",
            counted(data.rows, "row")
        ));
    }
    let shape = shape_words(&data.layout, outline.as_ref());
    let picture = picture.map(|picture| picture.picture);
    let mut preset = Preset::of(&data, input, kind, picture);
    preset.batch = batch.unwrap_or(preset.batch);
    let rest = if preset.is_sparse { REST.replacen(SYNC, SSP, 1) } else { REST.to_owned() };
    let columns = ColumnNames { names, unusable: unusable.iter().map(|column| column.index).collect() };
    let mut section = data_section(&data, &shape, &columns);
    if let Some(picture) = picture {
        section += &line(&format!("picture = {}", toml(&picture)), "channels, height and width of a row");
        section += &line("changes = []", "at random in training: \"flip\", \"shift 2\"");
    }
    let text = [HEAD, &preset.training(), &section, &preset.model(), &rest].concat();
    Ok(WrittenRunFile { text, notices })
}

/// What a row has, in words.
fn shape_words(layout: &FileLayout, outline: Option<&Outline>) -> String {
    match layout {
        FileLayout::Csv(layout) => format!("{} columns", layout.width),
        FileLayout::Numbered(Numbered { format: NumberedFormat::Libsvm, width, .. }) => {
            format!("{width} features")
        }
        FileLayout::Numbered(Numbered { format: NumberedFormat::Idx, .. }) => {
            format!("each {}", outline.map(Outline::sample_words).unwrap_or_default())
        }
        FileLayout::Text(_) | FileLayout::Documents(_) => unreachable!("text has no columns to infer"),
    }
}

/// The error about a missing number, with all columns in which numbers are missing.
fn with_all_columns(
    error: SpecificationError,
    incomplete: &[(usize, usize)],
    names: &[String],
) -> SpecificationError {
    match error {
        SpecificationError::Format(FormatError::Table(first @ DenseTableError::Missing { .. }))
            if !incomplete.is_empty() =>
        {
            let described = |&(index, missing): &(usize, usize)| {
                format!("{} (in {})", listed(&[index], names), counted(missing as u32, "row"))
            };
            let mut columns: Vec<String> =
                incomplete.iter().take(COLUMNS_DESCRIBED_MAX).map(described).collect();
            let more = incomplete.len() - columns.len();
            columns.extend((more > 0).then(|| format!("and {more} more")));
            SpecificationError::Incomplete { first, columns }
        }
        error => error,
    }
}

/// Columns with what they hold; of many, the first few.
fn described(unusable: &[UnusableColumn], names: &[String]) -> Vec<String> {
    let shown = unusable.iter().take(COLUMNS_DESCRIBED_MAX);
    let mut described: Vec<String> = shown
        .map(|UnusableColumn { index, reason }| format!("{} ({reason})", listed(&[*index], names)))
        .collect();
    let more = unusable.len() - described.len();
    described.extend((more > 0).then(|| format!("and {more} more")));
    described
}

/// Whether the specification has room for these settings. Names of columns may be replaced by their digest.
fn fits(data: &DataSettings) -> bool {
    /// Everything else in a specification is shorter.
    const OTHERS_BYTES: usize = 8192;
    let mut short = data.clone();
    short.shorten_names();
    let text = ::toml::to_string(&short).map_or(usize::MAX, |text| text.len());
    text.saturating_add(OTHERS_BYTES) <= SPECIFICATION_BYTES_MAX
}

/// The notice about features that are not standardized.
fn without_standardization(data: &DataSettings) -> String {
    format!(
        "`standardize = false` is written, because the specification has no room for the means and deviations of {} columns; \
         scale the columns in the file if their values differ much in size",
        data.layout.columns()
    )
}

/// A count with its noun, which gets an `s` if there is not one.
fn counted(count: u32, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The run file of the demo: the built-in digits, one hidden layer, Adam, 40 epochs and small batches. The thousands of steps leave
/// time to kill a peer and to add one.
///
/// # Panics
/// Never: the digits are part of the binary.
#[must_use]
pub fn demo_run_file() -> String {
    let bytes = embedded(DIGITS).expect("the digits are embedded");
    write(DIGITS, &bytes.into(), None, Some(DEMO_BATCH)).expect("the embedded digits can be used").text
}

/// The run file of `peer demo cnn`: the built-in digits as pictures of 8 x 8, and a small convolutional network.
///
/// # Panics
/// Never: the digits are part of the binary.
#[must_use]
pub fn demo_pictures_run_file() -> String {
    let bytes = embedded(DIGITS).expect("the digits are embedded");
    let kind = Some(ModelKind::Cnn);
    write(DIGITS, &bytes.into(), kind, Some(DEMO_PICTURES_BATCH))
        .expect("the embedded digits can be used")
        .text
}

const DEMO_PICTURES_BATCH: u64 = 64;

const DEMO_BATCH: u64 = 16;

/// A setting, with its comment aligned with the others.
fn line(setting: &str, comment: &str) -> String {
    format!("{setting:<26} # {comment}\n")
}

/// A value in TOML, on one line.
fn toml(value: &(impl serde::Serialize + ?Sized)) -> String {
    // Strings, numbers and lists of strings are the same in JSON and TOML, except for one character. Others that a terminal would obey are
    // written by their number as well: what is printed must be the file.
    let json = serde_json::to_string(value).expect("strings and numbers can be written");
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_obeyed(character) {
            let _ = write!(text, "\\u{:04x}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::run_file::{OptimizerKind, SyncKind};
    use super::*;
    use peergrad_models::data::column_names::Column;
    use peergrad_models::data::labels::Classes;
    use proptest::prelude::*;

    use crate::specification::run_file::NetworkSection;
    use crate::specification::{RunFile, resolve};

    /// Writes a run file, and checks that it parses and resolves.
    #[track_caller]
    fn written(name: &str, bytes: &[u8]) -> (String, RunFile) {
        let text = write_run_file(name, bytes, None).unwrap().text;
        let run = RunFile::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let resolved =
            resolve(&run, &run.data().unwrap().file, bytes).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(resolved.data.name, name);
        (text, run)
    }

    /// A terminal would obey some characters, so that what is printed would not be what was written.
    #[test]
    fn text_that_a_terminal_would_obey_is_written_by_numbers() {
        let name = "a\u{200e}b\u{9b}c\u{7f}d\ne\u{1b}f";
        let written = toml(name);
        assert!(!written.contains(is_obeyed), "{written:?}");
        let read: std::collections::BTreeMap<String, String> =
            toml::from_str(&format!("name = {written}")).expect("it is TOML");
        assert_eq!(read["name"], name);
    }

    #[test]
    fn the_run_file_of_the_demo_works_without_edits() {
        let (text, run) = written(DIGITS, embedded(DIGITS).unwrap());
        assert_eq!(text.replace("batch = 64", "batch = 16"), demo_run_file());
        let data = resolve(&run, DIGITS, embedded(DIGITS).unwrap()).unwrap().data;
        let layout = ::toml::to_string(&data.layout).unwrap();
        let keys: Vec<&str> = layout.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(keys, ["delimiter", "header", "width", "label", "features"], "a plain file needs no more");
        assert_eq!((run.epochs(), run.batch()), (40, 64));
        assert_eq!(run.model.hidden, Some(vec![128]));
        assert_eq!(run.data().unwrap().classes, Some(Classes::Count(10)));
        assert_eq!(run.data().unwrap().label, Some(Column::Number(65)));
        assert_eq!(run.network, NetworkSection::default());
    }

    #[test]
    fn unusual_names_and_texts_survive() {
        let bytes =
            b"\"a \"\"b\"\"\nc\",town,x,x,y\n1,Rom,2,3,no\n4,Ulm,5,6,yes\n7,Bonn,8,9,no\n1,Bern,2,3,yes\n";
        let (text, run) = written("my \"odd\"\n.csv", bytes);
        assert!(text.contains("do not hold numbers: \"town\""), "{text}");
        let columns = vec![Column::Name("a \"b\"\nc".into()), Column::Number(3), Column::Number(4)];
        assert_eq!(run.data().unwrap().columns, Some(columns));
        assert_eq!(run.data().unwrap().classes, Some(Classes::Names(vec!["no".into(), "yes".into()])));
        assert_eq!(run.model.kind, ModelKind::Softmax);
    }

    #[test]
    fn few_rows_with_numbers_get_a_linear_model() {
        let (_, run) = written("f.csv", b"1,0.5\n2,1.5\n3,2.25\n4,3.5\n");
        assert_eq!(run.model.kind, ModelKind::Linear);
    }

    #[test]
    fn many_columns_are_not_listed() {
        let row = |label: &str| "1,".repeat(300) + label + "\n";
        let (text, run) = written("f.csv", (row("a") + &row("b") + &row("a") + &row("b")).as_bytes());
        assert_eq!(run.data().unwrap().columns, None);
        assert!(text.contains("all columns except the label"));
    }

    #[test]
    fn a_libsvm_file_is_described_by_its_features() {
        let (text, run) = written("f.txt", b"+1 3:0.5\n-1 1:2\n+1 2:1\n-1\n");
        assert!(text.contains("# 4 rows, 3 features") && text.contains("LIBSVM, gzipped or not"), "{text}");
        let data = run.data().unwrap();
        assert_eq!((data.features, data.standardize), (Some(3), Some(false)));
        assert_eq!((&data.label, data.header, &data.columns), (&None, None, &None));
        assert_eq!(data.classes, Some(Classes::Names(vec!["-1".into(), "1".into()])));
        assert_eq!(run.model.kind, ModelKind::Softmax);
    }

    #[test]
    fn a_file_with_many_features_gets_a_sparse_model() {
        let (text, run) = written("f.txt", b"+1 3:0.5\n-1 1:2 70000:1\n+1 2:1\n-1\n");
        assert!(text.contains(SSP) && text.contains("70000 features"), "{text}");
        assert_eq!((run.model.kind, run.optimizer.rule()), (ModelKind::Logistic, OptimizerKind::Ftrl));
        assert_eq!(run.sync_kind(), SyncKind::Ssp);
        let (text, _) = written("f.txt", b"0 3:0.5\n1 1:2 70000:1\n2 2:1\n0\n1\n2\n");
        assert!(text.contains(SYNC), "{text}");
    }

    #[test]
    fn an_idx_file_is_described_by_the_shape_of_its_samples() {
        let samples =
            [&b"\0\0\x08\x03\0\0\0\x04\0\0\0\x01\0\0\0\x02"[..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
        let bytes = [&samples[..], b"\0\0\x08\x01\0\0\0\x04", &[0, 1, 0, 1]].concat();
        let (text, run) = written("f.bin", &bytes);
        assert!(text.contains("# 4 rows, each 1 x 2") && text.contains("IDX, gzipped or not"), "{text}");
        assert_eq!(run.data().unwrap().classes, Some(Classes::Count(2)));
        assert_eq!(run.data().unwrap().standardize, Some(true));
        let error = write_run_file("f.bin", &samples, None).unwrap_err().to_string();
        assert!(error.contains("`cat train-images-idx3-ubyte.gz"), "{error}");
    }

    proptest! {
        #[test]
        fn every_written_file_works(
            head in "[a-c\\x00-\\x7fü]{0,12}",
            rows in prop::collection::vec(("[0-9.]{1,3}", "[0-9a]{1,2}", "[a-c0-3\"]"), 1..30),
        ) {
            let rows: String = rows.iter().map(|(a, b, label)| format!("{a},{b},{label}\n")).collect();
            let bytes = format!("{head}\n{rows}").into_bytes();
            if let Ok(WrittenRunFile { text, .. }) = write_run_file("f.csv", &bytes, None) {
                let run = RunFile::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                resolve(&run, "f.csv", &bytes).unwrap_or_else(|error| panic!("{error}\n{text}"));
            }
        }
    }
}
