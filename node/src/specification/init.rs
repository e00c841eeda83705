//! Initial run files: a commented run.toml that runs unedited.
//!
//! What `start` would infer from the data is inferred here and written down, so that it can be read and changed. The
//! defaults are chosen by the size of the data and reach, on held-out rows, what a careful first try by hand would.

use std::fmt::Write;

use super::{SpecificationError, resolve::infer_data};
use crate::data::embedded::{DIGITS, embedded};
use crate::data::labels::{Classes, Target};
use crate::data::table::{Column, Layout, LayoutHints, unpack};
use crate::specification::run_file::DataSection;

/// Fewer rows than this do not feed a hidden layer: the model is a softmax or linear regression.
const ROWS_FOR_HIDDEN_LAYER: u32 = 1000;
/// From so many feature columns on, the hidden layer is twice as wide.
const COLUMNS_FOR_WIDE_LAYER: usize = 257;
/// At most so many names are listed in a comment.
const NAMES_LISTED_MAX: usize = 30;

/// The commented run.toml for a data file: `data_name` is its path as it shall stand in it.
///
/// Feature columns that hold words are left out, with a comment that says so.
///
/// # Errors
/// If the data cannot be used.
pub fn write_run_file(data_name: &str, bytes: &[u8]) -> Result<String, SpecificationError> {
    let unpacked = unpack(data_name, bytes)?;
    let all = Layout::infer(data_name, &unpacked, &LayoutHints::default())?;
    let worded = all.worded_features(&unpacked);
    let numeric: Vec<usize> = all.features.iter().copied().filter(|column| !worded.contains(column)).collect();
    let is_some_left_out = !worded.is_empty() && !numeric.is_empty();
    let names = all.names(&unpacked);
    let columns = is_some_left_out.then(|| numeric.iter().map(|&index| column(index, &names)).collect());
    let section = DataSection { columns, ..DataSection::new(data_name) };
    let found = infer_data(&section, RUN_SEED, data_name, bytes)?;
    let choice = Choice::for_data(found.rows, found.layout.features.len(), &found.target);
    let mut text = String::new();
    write_head(&mut text, &choice);
    write_data(&mut text, &section, &found.layout, &names, &worded, &found.target, found.rows);
    write_model(&mut text, &choice);
    write_optimizer(&mut text, &choice);
    text.push_str(REST);
    Ok(text)
}

/// The run file of the demo: the embedded digits, one hidden layer, 40 passes.
///
/// # Panics
/// Never: the digits are part of the binary.
#[must_use]
pub fn demo_run_file() -> String {
    let bytes = embedded(DIGITS).expect("the digits are embedded");
    write_run_file(DIGITS, bytes).expect("the embedded digits are a good data set")
}
