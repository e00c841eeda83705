//! Parquet files that a user names, one or a folder of them: a table that becomes a CSV file, or texts that become one text.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// What a user wants of Parquet files.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "nothing converts Parquet files"))]
pub(super) enum Wanted<'a> {
    /// A table, or a text if they hold nothing else.
    Any,
    /// A text, of the only column of texts.
    Text,
    /// A text, of this column.
    TextOf(&'a str),
}

/// The Parquet files at a path: itself, or those of a folder that has mostly such files, sorted by name. Names that begin with a dot or an
/// underscore do not count: programs that write many files leave such notes.
pub(super) fn files_at(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        let is_one = path.is_file() && (has_ending(path) || has_mark(path));
        return Ok(if is_one { vec![path.to_owned()] } else { vec![] });
    }
    let (mut files, mut others) = (vec![], 0_usize);
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".")
            || entry.file_name().as_encoded_bytes().starts_with(b"_")
        {
            continue;
        }
        let found = entry.path();
        if has_ending(&found) && found.is_file() {
            files.push(found);
        } else {
            others += 1;
        }
    }
    files.sort_unstable();
    Ok(if files.len() > others { files } else { vec![] })
}

fn has_ending(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
}

/// Marks of letters alone could begin a text; the byte after this one is no letter.
fn has_mark(path: &Path) -> bool {
    use std::io::Read as _;
    let mut begin = [0; 5];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && matches!(begin, [b'P', b'A', b'R', b'1' | b'E', ..=0x1f])
}

/// Where the files at `source` are converted to: `data.parquet` becomes `data.csv` or `data.txt`, and so does a folder `data`.
#[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "nothing converts Parquet files"))]
fn converted_path(source: &Path, ending: &str) -> PathBuf {
    let is_named = has_ending(source) && source.is_file();
    let stem = if is_named { source.file_stem() } else { source.file_name() };
    let mut name = stem.unwrap_or(OsStr::new("table")).to_owned();
    name.push(ending);
    source.with_file_name(name)
}

#[cfg(not(feature = "parquet"))]
mod of_this_program {
    use anyhow::bail;

    use super::{Path, PathBuf, Wanted};

    pub(in super::super) fn convert(
        source: &Path,
        _: Vec<PathBuf>,
        _: Wanted<'_>,
    ) -> anyhow::Result<(PathBuf, Vec<String>)> {
        bail!(
            "{} is or has Parquet files, which this program cannot read: build `peer` with `cargo build --release --features parquet`, \
             or convert them to one CSV file",
            source.display()
        )
    }
}

#[cfg(feature = "parquet")]
mod of_this_program {
    use std::io::{BufWriter, Write};

    use anyhow::{Context, bail};
    use indicatif::{ProgressBar, ProgressStyle};
    use peergrad_embed::text::text_table::{bytes, count, plural};
    use peergrad_parquet::{LeftOut, Table, TableError};

    use super::super::files;
    use super::{Path, PathBuf, Wanted, converted_path};
    use crate::terminal::complain;

    /// The most columns that a warning lists.
    const NAMES_SHOWN: usize = 10;

    /// Converts Parquet files, those at `source`, into one file beside them. Returns its path, and what was left out, each a sentence.
    pub(in super::super) fn convert(
        source: &Path,
        paths: Vec<PathBuf>,
        wanted: Wanted<'_>,
    ) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let table = Table::open(paths)?;
        match text_column(source, &table, wanted)? {
            Some(column) => to_text(source, &table, &column),
            None => to_csv(source, &table),
        }
    }

    /// The column whose texts are wanted; `None` if a table is wanted.
    fn text_column(source: &Path, table: &Table, wanted: Wanted<'_>) -> anyhow::Result<Option<String>> {
        let texts = table.text_columns();
        match (wanted, texts.as_slice()) {
            (Wanted::TextOf(column), _) => Ok(Some(column.to_owned())),
            (Wanted::Any, [only]) if table.columns() == 1 && table.left_out().is_empty() => {
                Ok(Some((*only).to_owned()))
            }
            (Wanted::Any, _) => Ok(None),
            (Wanted::Text, [only]) => Ok(Some((*only).to_owned())),
            (Wanted::Text, []) => {
                bail!("{} has no column of texts, which a language model needs", source.display())
            }
            (Wanted::Text, several) => {
                let shown: Vec<String> =
                    several.iter().take(NAMES_SHOWN).map(|name| format!("\"{name}\"")).collect();
                bail!(
                    "{} has several columns of texts ({}): name one with `--column`",
                    source.display(),
                    shown.join(", ")
                )
            }
        }
    }

    fn to_csv(source: &Path, table: &Table) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let path = converted_path(source, ".csv");
        let ((), size) = write_file(source, &path, |out, progress| table.write_csv(out, progress))?;
        complain(&format!(
            "converted {} with {} into {} ({})",
            plural(table.rows() as usize, "row"),
            plural(table.columns(), "column"),
            path.display(),
            bytes(size)
        ));
        Ok((path, left_out(table.left_out()).into_iter().collect()))
    }

    fn to_text(source: &Path, table: &Table, column: &str) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let path = converted_path(source, ".txt");
        let (texts, size) =
            write_file(source, &path, |out, progress| table.write_text(column, out, progress))?;
        complain(&format!(
            "joined {} of the column \"{column}\" into {} ({})",
            plural(texts.count as usize, "text"),
            path.display(),
            bytes(size)
        ));
        let empty = (texts.empty > 0)
            .then(|| format!("left out {} without a text", plural(texts.empty as usize, "row")));
        Ok((path, empty.into_iter().collect()))
    }

    /// Writes a new file at `path`, of which no part is there before all of it is. Returns what `write` returns, and the file's size in bytes.
    fn write_file<T>(
        source: &Path,
        path: &Path,
        write: impl FnOnce(&mut dyn Write, &mut dyn FnMut(u64, u64)) -> Result<T, TableError>,
    ) -> anyhow::Result<(T, u64)> {
        files::check_is_new(path, source)?;
        let mut draft = files::draft_beside(path)?;
        let bar = ProgressBar::new(0).with_style(
            ProgressStyle::with_template("converting rows {bar:30} {pos}/{len}").expect("it is a template"),
        );
        let mut out = BufWriter::new(draft.as_file_mut());
        let written = write(&mut out, &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let written = written?;
        out.flush().with_context(|| format!("cannot write {}", path.display()))?;
        drop(out);
        let size = draft.as_file().metadata().map_or(0, |metadata| metadata.len());
        files::keep_draft(draft, path)?;
        Ok((written, size))
    }

    /// A sentence about the columns that are left out, if there are any.
    fn left_out(columns: &[LeftOut]) -> Option<String> {
        let shown: Vec<String> = columns.iter().take(NAMES_SHOWN).map(ToString::to_string).collect();
        let more = columns.len() - shown.len();
        let more = if more == 0 { String::new() } else { format!(" and {} more", count(more as u64)) };
        (!columns.is_empty())
            .then(|| format!("left out {}: {}{more}", plural(columns.len(), "column"), shown.join(", ")))
    }
}

pub(super) use of_this_program::convert;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_of_files_are_found() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("shards");
        fs::create_dir(&folder).unwrap();
        for name in ["b.parquet", "a.PARQUET", "_SUCCESS", ".a.crc", "README.md"] {
            fs::write(folder.join(name), b"PAR1\x15").unwrap();
        }
        let found = files_at(&folder).unwrap();
        assert_eq!(found, [folder.join("a.PARQUET"), folder.join("b.parquet")]);
        assert_eq!(files_at(&folder.join("README.md")).unwrap().len(), 1, "by its first bytes");
        fs::write(folder.join("text.txt"), "PAR1 is a mark").unwrap();
        assert!(files_at(&folder.join("text.txt")).unwrap().is_empty());
        assert!(files_at(&folder).unwrap().is_empty(), "as many other files");
        assert!(files_at(&place.path().join("none")).unwrap().is_empty());
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn converted_files_lie_beside_their_source() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("data.parquet");
        fs::write(&file, "").unwrap();
        assert_eq!(converted_path(&file, ".csv"), place.path().join("data.csv"));
        fs::create_dir(place.path().join("v1.parquet")).unwrap();
        assert_eq!(
            converted_path(&place.path().join("v1.parquet"), ".txt"),
            place.path().join("v1.parquet.txt")
        );
        assert_eq!(converted_path(Path::new("shards/"), ".csv"), Path::new("shards.csv"));
    }
}
