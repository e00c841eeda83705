//! A folder of texts as one file: a run has one data file, and people have chapters.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peergrad_embed::text::text_table::{bytes, plural};

use super::files;
use crate::terminal::complain;

/// What texts become in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinedForm {
    /// They stay as they are, with an empty line between two.
    Prose,
    /// Each is a line, with a space for any number of spaces and line ends: a document of its own.
    Lines,
}

/// What lies below a folder.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The texts, sorted by path.
    pub(super) texts: Vec<PathBuf>,
    /// How many other files there are.
    others: usize,
}

impl Found {
    /// Whether it is a folder of texts: most of what it has are texts.
    pub(super) fn is_mostly_text(&self) -> bool {
        self.texts.len() > self.others
    }
}

/// Looks below a folder; finds nothing if `path` is no folder.
pub(super) fn look_below(path: &Path) -> anyhow::Result<Found> {
    let mut found = Found::default();
    if path.is_dir() {
        collect(path, &mut found).with_context(|| format!("cannot read {}", path.display()))?;
    }
    found.texts.sort_unstable();
    Ok(found)
}

/// Links to folders are not followed, since they may lead in a circle.
fn collect(folder: &Path, found: &mut Found) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(&path, found)?;
        } else if is_text(&path) && path.is_file() {
            found.texts.push(path);
        } else {
            found.others += 1;
        }
    }
    Ok(())
}

/// By its name, as [`init`](super::files::init) takes single texts.
fn is_text(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ["txt", "text", "md"].contains(&ending.as_str()))
}

/// Joins texts into one file beside their folder: `books/` becomes `books.txt`. Returns its path, and what was left out, each a sentence.
pub(super) fn join(
    folder: &Path,
    texts: &[PathBuf],
    form: JoinedForm,
) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let name = folder.file_name().map_or_else(|| "texts".into(), |name| name.to_string_lossy().into_owned());
    let joined = folder.with_file_name(format!("{name}.txt"));
    files::check_is_new(&joined, folder)?;
    let cannot_write = || format!("cannot write {}", joined.display());
    let mut draft = files::draft_beside(&joined)?;
    let mut out = BufWriter::new(draft.as_file_mut());
    let (mut notices, mut count, mut size) = (vec![], 0, 0);
    for path in texts {
        let text = files::read(path)?;
        let Ok(text) = String::from_utf8(text) else {
            notices.push(format!("left out {}, which is not text in UTF-8", path.display()));
            continue;
        };
        let (text, between) = match form {
            JoinedForm::Prose => (text, "\n\n"),
            JoinedForm::Lines => (text.split_whitespace().collect::<Vec<_>>().join(" "), "\n"),
        };
        let between = if count == 0 { "" } else { between };
        out.write_all(between.as_bytes())
            .and_then(|()| out.write_all(text.as_bytes()))
            .with_context(cannot_write)?;
        count += 1;
        size += (between.len() + text.len()) as u64;
    }
    out.flush().with_context(cannot_write)?;
    drop(out);
    if count == 0 {
        bail!("{} has no text in UTF-8: save the texts in that encoding", folder.display());
    }
    files::keep_draft(draft, &joined)?;
    complain(&format!("joined {} into {} ({})", plural(count, "text"), joined.display(), bytes(size)));
    Ok((joined, notices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_in_the_order_of_their_names() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("books");
        fs::create_dir_all(folder.join("more")).unwrap();
        fs::write(folder.join("b.txt"), "second").unwrap();
        fs::write(folder.join("a.md"), "first").unwrap();
        fs::write(folder.join("more/c.TXT"), [0xff, 0xfe]).unwrap();
        fs::write(folder.join("cover.png"), "no text").unwrap();
        fs::write(folder.join(".hidden.txt"), "hidden").unwrap();
        let found = look_below(&folder).unwrap();
        assert!(found.texts.len() == 3 && found.others == 1 && found.is_mostly_text());
        let texts = found.texts;
        let (joined, notices) = join(&folder, &texts, JoinedForm::Prose).unwrap();
        assert_eq!(joined, place.path().join("books.txt"));
        assert_eq!(fs::read_to_string(&joined).unwrap(), "first\n\nsecond");
        assert!(
            notices.len() == 1 && notices[0].contains("c.TXT, which is not text in UTF-8"),
            "{notices:?}"
        );
        let again = join(&folder, &texts, JoinedForm::Prose).unwrap_err().to_string();
        assert!(again.contains("books.txt exists"), "{again}");
        fs::remove_file(&joined).unwrap();
        fs::write(folder.join("a.md"), " first\n\nof\ttwo ").unwrap();
        join(&folder, &texts, JoinedForm::Lines).unwrap();
        assert_eq!(fs::read_to_string(&joined).unwrap(), "first of two\nsecond");
        assert!(!look_below(&joined).unwrap().is_mostly_text(), "it is no folder");
    }
}
