//! The keys in which two texts of a run file differ, such as that of a run and the one that its user has edited since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::{Table, Value};

use super::RunFile;

/// A key with different values in two run files.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedKey {
    /// Its name, with its section: `optimizer.rate`.
    pub key: String,
    /// Its value in the first file, as TOML; `None` if it is not there.
    pub before: Option<String>,
    /// Its value in the second file, as TOML; `None` if it is not there.
    pub now: Option<String>,
}

impl fmt::Display for ChangedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, now } = self;
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not given".to_owned());
        write!(f, "`{key}` ({}, in the run {})", text(now), text(before))
    }
}

/// The keys in which the run file `now` differs from `before`, by name. Comments and the order of keys make no difference.
///
/// # Errors
/// `now` is no run file; the text says why.
pub fn changed_keys(before: &str, now: &str) -> Result<Vec<ChangedKey>, String> {
    let [before, now] = [before, now].map(|text| {
        RunFile::parse(text).map_err(|error| error.to_string())?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let mut values = BTreeMap::new();
        flatten("", &table, &mut values);
        Ok::<_, String>(values)
    });
    // The text of a run was read when it began; an earlier release may have known other keys.
    let (before, now) = (before.unwrap_or_default(), now?);
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(*key) != now.get(*key));
    let text = |values: &BTreeMap<String, Value>, key: &str| values.get(key).map(shortened);
    Ok(changed
        .map(|key| ChangedKey { key: key.clone(), before: text(&before, key), now: text(&now, key) })
        .collect())
}

/// Collects the values of a table and of the tables in it, by their full names.
fn flatten(prefix: &str, table: &Table, values: &mut BTreeMap<String, Value>) {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        match value {
            Value::Table(section) => flatten(&format!("{key}."), section, values),
            _ => _ = values.insert(key, value.clone()),
        }
    }
}

/// A value as TOML, cut where it is long: a list of columns may be.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_LETTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// How much of a value is shown.
const VALUE_LETTERS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(before: &str, now: &str) -> Vec<String> {
        changed_keys(before, now).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keys_are_named_with_both_values() {
        let before = "epochs = 40 # passes\nbatch = 8\n[data]\nfile = \"a.csv\"\n[optimizer]\nrate = 0.1\n";
        assert_eq!(changes(before, before), Vec::<String>::new());
        let reordered = "batch = 8\nepochs = 40\n[optimizer]\nrate = 0.1\n[data]\nfile = \"a.csv\"\n";
        assert_eq!(changes(before, reordered), Vec::<String>::new());
        let now = "epochs = 80\n[data]\nfile = \"b.csv\"\n[optimizer]\nrate = 0.1\nbeta1 = 0.5\n";
        assert_eq!(
            changes(before, now),
            [
                "`batch` (not given, in the run 8)",
                "`data.file` (\"b.csv\", in the run \"a.csv\")",
                "`epochs` (80, in the run 40)",
                "`optimizer.beta1` (0.5, in the run not given)",
            ]
        );
    }

    #[test]
    fn long_values_are_cut_and_broken_files_refused() {
        let columns: Vec<String> = (0..500).map(|column| column.to_string()).collect();
        let now = format!("[data]\nfile = \"a\"\ncolumns = [{}]\n", columns.join(", "));
        let changed = changed_keys("[data]\nfile = \"a\"\n", &now).unwrap();
        assert_eq!(changed[0].key, "data.columns");
        assert!(changed[0].to_string().len() < 100);
        assert!(changed_keys("", "epochs = \"many\"").unwrap_err().contains("epochs"));
        assert!(changed_keys("", "epochs = ").is_err());
    }
}
