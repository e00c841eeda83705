//! The section `[data]` of a run file for a table or for pictures, with everything that was inferred.

use peergrad_models::data::column_names::Column;
use peergrad_models::data::columns::Columns;
use peergrad_models::data::dialect::Delimiter;
use peergrad_models::data::embedded::embedded;
use peergrad_models::data::format::{FileLayout, Format};
use peergrad_models::data::labels::{Classes, Target};
use peergrad_models::data::notation::Decimal;
use peergrad_models::data::numbered::{Numbered, NumberedFormat};
use peergrad_models::data::standardize::Standardization;

use super::super::DataSettings;
use super::{line, toml};

/// The most feature columns that are listed one by one.
const COLUMNS_LISTED_MAX: usize = 100;

/// The columns of a CSV file.
#[derive(Default)]
pub(super) struct ColumnNames {
    /// Their names.
    pub(super) names: Vec<String>,
    /// Indices of the feature columns that are left out, from 0.
    pub(super) unusable: Vec<usize>,
}

/// The section `[data]` with everything that was inferred. `shape` describes a row.
pub(super) fn data_section(data: &DataSettings, shape: &str, words: &ColumnNames) -> String {
    let DataSettings { name, rows, layout, target, .. } = data;
    let mut text = format!("\n[data]                     # {rows} rows, {shape}\n");
    let origin = match embedded(name) {
        Some(_) => "built in".to_owned(),
        None => format!("path relative to this file's folder; {}, gzipped or not", layout.format()),
    };
    text += &line(&format!("file = {}", toml(name)), &origin);
    text += &match layout {
        FileLayout::Csv(layout) => columns_settings(layout, &words.names),
        FileLayout::Numbered(Numbered { format: NumberedFormat::Libsvm, width, .. }) => line(
            &format!("features = {width}"),
            "the largest index in the file; raise it if later files have larger ones",
        ),
        FileLayout::Numbered(_) | FileLayout::Text(_) | FileLayout::Documents(_) => String::new(),
    };
    text += &target_settings(target);
    text += &line("held_out = 0.2", "share of the rows that is not trained but used for evaluation");
    let is_standardized = data.standardization != Standardization::identity();
    text += &if layout.format() == Format::Libsvm {
        line("standardize = false", "true scales features to mean 0 and deviation 1, which changes the zeros")
    } else if is_standardized {
        line("standardize = true", "scale features to mean 0 and deviation 1")
    } else {
        line("standardize = false", "means and deviations of so many columns do not fit in the specification")
    };
    text += &match layout {
        FileLayout::Csv(layout) => chosen_columns(layout, words),
        FileLayout::Numbered(_) => {
            "# All features are used; to select some: columns = [1, 2, 3]\n".to_owned()
        }
        FileLayout::Text(_) | FileLayout::Documents(_) => String::new(),
    };
    text
}

/// How the text of a CSV file is read, and its label column.
pub(super) fn columns_settings(layout: &Columns, names: &[String]) -> String {
    let label = toml(&column(layout.label, names));
    let mut text = [
        line(&format!("header = {}", layout.header), "whether the first line names the columns"),
        line(&format!("label = {label}"), "the label column, by number from 1 or by name"),
    ]
    .concat();
    if let Some(delimiter) = Delimiter::of_byte(layout.delimiter) {
        text += &line(&format!("delimiter = {}", toml(&delimiter)), "between cells: , ; | tab or space");
    }
    if layout.decimal != Decimal::Point || !layout.amounts.is_empty() {
        text += &line(&format!("decimal = {}", toml(&layout.decimal)), "the decimal mark: . or ,");
    }
    if !layout.encoding.is_utf_8() {
        let comment = "of the text: utf-8, utf-16le, windows-1252, ...";
        text += &line(&format!("encoding = {}", toml(&layout.encoding)), comment);
    }
    if layout.skip_lines > 0 {
        text += &line(&format!("skip_lines = {}", layout.skip_lines), "lines before the table");
    }
    text
}

/// What the model predicts.
fn target_settings(target: &Target) -> String {
    let Target::Class { classes } = target else { return line("predict = \"number\"", "or class") };
    let comment = match Classes::of(classes) {
        Classes::Count(count) => format!("labels 0 to {}", count - 1),
        Classes::Names(names) => format!("{} labels, in the order of the model's outputs", names.len()),
    };
    let classes = format!("classes = {}", toml(&Classes::of(classes)));
    [line("predict = \"class\"", "or number"), line(&classes, &comment)].concat()
}

/// The feature columns of a CSV file.
fn chosen_columns(layout: &Columns, ColumnNames { names, unusable }: &ColumnNames) -> String {
    let written = |columns: &[usize]| -> Vec<String> {
        columns.iter().map(|&index| toml(&column(index, names))).collect()
    };
    let left_out = match unusable.as_slice() {
        [] => String::new(),
        unusable => {
            format!("# Left out, because they do not hold numbers: {}\n", written(unusable).join(", "))
        }
    };
    let is_all = layout.features.len() + 1 == layout.width;
    if is_all && layout.features.len() > COLUMNS_LISTED_MAX {
        return left_out
            + "# The features are all columns except the label; to select some: columns = [1, 2, 3]\n";
    }
    left_out + &wrapped("columns = [", &written(&layout.features))
}

/// A TOML array that starts with `start`, in lines of about 100 characters.
fn wrapped(start: &str, items: &[String]) -> String {
    const LINE_CHARS: usize = 100;
    let mut lines = vec![start.to_owned()];
    for (index, item) in items.iter().enumerate() {
        let end = if index + 1 == items.len() { "" } else { ", " };
        let line = lines.last_mut().expect("there is a first line");
        if line.len() + item.len() > LINE_CHARS {
            line.truncate(line.trim_end().len());
            lines.push(format!("    {item}{end}"));
        } else {
            line.push_str(item);
            line.push_str(end);
        }
    }
    lines.join("\n") + "]\n"
}

/// A column by its name if that is unique, otherwise by its number.
pub(super) fn column(index: usize, names: &[String]) -> Column {
    match names.get(index) {
        Some(name) if !name.is_empty() && names.iter().filter(|other| *other == name).count() == 1 => {
            Column::Name(name.clone())
        }
        _ => Column::Number(index + 1),
    }
}
