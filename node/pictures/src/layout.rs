//! How a source of pictures is laid out: its classes, and what lies beside them.

use std::path::Path;

use crate::counted::Counted;
use crate::limits::{CLASS_NAME_BYTES_MAX, CLASSES_MAX, WITHOUT_CLASS_KEPT_MAX};
use crate::pack_error::PackError;

/// Folders and files that an operating system or a program put there, and not the owner of the pictures; also all whose names begin with
/// a dot.
const SKIPPED: [&[u8]; 3] = [b"Thumbs.db", b"desktop.ini", b"__MACOSX"];

/// Names of the parts of a data set. Those to train with come first.
const SPLITS: [&str; 7] = ["train", "training", "test", "testing", "val", "valid", "validation"];

/// Whether a file or folder of this name is left out silently.
pub(crate) fn is_skipped(name: &[u8]) -> bool {
    name.starts_with(b".") || SKIPPED.contains(&name)
}

/// A source of pictures before any of them is decoded.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Sorted by the bytes of their names.
    pub(crate) classes: Vec<Class>,
    /// Files beside the folders of the classes.
    pub(crate) without_class: Counted<String>,
    /// The folder of an archive in which all classes are, if there is one.
    pub(crate) top: Option<Vec<u8>>,
    pub(crate) kind: SourceKind,
}

/// A class, before we know whether its pictures can be decoded.
#[derive(Debug)]
pub(crate) struct Class {
    /// The name of the folder, which may be no text.
    pub(crate) name: Vec<u8>,
    pub(crate) files: usize,
    /// Whether some of the files are in folders below the class's folder.
    pub(crate) nested: bool,
}

/// What the user gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    Folder,
    Archive,
}

impl Layout {
    /// No classes yet.
    pub(crate) fn new(kind: SourceKind) -> Self {
        Self { classes: vec![], without_class: Counted::new(WITHOUT_CLASS_KEPT_MAX), top: None, kind }
    }

    /// Files of all classes.
    pub(crate) fn files(&self) -> usize {
        self.classes.iter().map(|class| class.files).sum()
    }

    /// The names of the classes, in their order, if a packed file can be made of them. `path` is the source, for errors.
    pub(crate) fn names(&self, path: &Path) -> Result<Vec<String>, PackError> {
        let shown = || path.display().to_string();
        if self.classes.is_empty() {
            return Err(PackError::NoClasses { path: shown(), files: self.without_class.count });
        }
        if self.classes.len() > CLASSES_MAX {
            return Err(PackError::TooManyClasses { path: shown(), classes: self.classes.len() });
        }
        if u32::try_from(self.files()).is_err() {
            return Err(PackError::TooManyPictures { path: shown(), files: self.files() });
        }
        let names: Vec<String> =
            self.classes.iter().map(|class| class_name(&class.name)).collect::<Result<_, _>>()?;
        if names.len() > 1 && names.iter().all(|name| split_rank(name).is_some()) {
            let best = names.iter().min_by_key(|name| split_rank(name)).expect("there are names");
            let folders = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            return Err(PackError::Split { path: shown(), folders, advice: self.advice(path, best) });
        }
        let mut filled = names.iter().zip(&self.classes).filter(|(_, class)| class.files > 0);
        match (filled.next(), filled.next()) {
            (None, _) => Err(PackError::NoClasses { path: shown(), files: self.without_class.count }),
            (Some((name, class)), None) if class.nested => {
                let advice = self.advice(path, name);
                Err(PackError::ClassesBelow { path: shown(), folder: name.clone(), advice })
            }
            (Some((name, _)), None) => {
                Err(PackError::FewClasses { path: shown(), found: format!("only one class, `{name}`") })
            }
            _ => Ok(names),
        }
    }

    /// The advice to give the folder of this name instead of the source.
    fn advice(&self, path: &Path, name: &str) -> String {
        match self.kind {
            SourceKind::Folder => format!("give `{}`", path.join(name).display()),
            SourceKind::Archive => {
                let top = self.top.iter().map(|top| format!("{}/", String::from_utf8_lossy(top)));
                format!("unpack the archive and give its folder `{}{name}`", top.collect::<String>())
            }
        }
    }
}

/// The name of a folder as the name of a class.
fn class_name(bytes: &[u8]) -> Result<String, PackError> {
    let problem = match str::from_utf8(bytes) {
        Err(_) => "has a name that is not UTF-8",
        Ok(name) if name.len() > CLASS_NAME_BYTES_MAX => "has a name of more than 255 bytes",
        Ok(name) if name.contains(char::is_control) => "has control characters in its name",
        Ok(name) => return Ok(name.to_owned()),
    };
    // The message should not disturb the terminal, nor fill it.
    let name = String::from_utf8_lossy(bytes).replace(char::is_control, "\u{fffd}");
    Err(PackError::ClassName { name: name.chars().take(CLASS_NAME_BYTES_MAX).collect(), problem })
}

/// The place of a name among those of [`SPLITS`], in capitals or not.
fn split_rank(name: &str) -> Option<usize> {
    SPLITS.iter().position(|split| split.eq_ignore_ascii_case(name))
}
