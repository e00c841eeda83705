//! Why pictures cannot be packed.

use crate::limits::{BROKEN_ONE_OF, CLASSES_MAX};

/// Why a folder or an archive of pictures cannot be packed. Each message says what to do. What has been written by then is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The path does not exist, or the operating system does not let us read it.
    #[error("{path} cannot be read: {reason}")]
    Read {
        /// The path, which may be a folder within the one that was given.
        path: String,
        /// What the operating system says.
        reason: String,
    },
    /// The path is neither a folder nor a tar archive.
    #[error(
        "{path} is neither a folder nor a tar archive; give a folder, a `.tar` or a `.tar.gz`, and unpack other archives first"
    )]
    NoFolder {
        /// The path.
        path: String,
    },
    /// The archive is damaged, cut off, or changed while it was read.
    #[error("the archive {path} cannot be read to its end: {reason}; copy it again")]
    Archive {
        /// The path.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// There are no folders, so no classes.
    #[error(
        "{path} has {files} file{} and no folders with pictures, but each class needs a folder of its own: `photos/cat/1.jpg`, `photos/dog/2.jpg`",
        if *files == 1 { "" } else { "s" }
    )]
    NoClasses {
        /// The path.
        path: String,
        /// Files that are in no folder.
        files: usize,
    },
    /// The only folder holds folders, which may be the classes.
    #[error(
        "{path} has pictures only in the folder `{folder}`, which has folders itself, but needs one folder for each of at least two classes; {advice}"
    )]
    ClassesBelow {
        /// The path.
        path: String,
        /// The folder.
        folder: String,
        /// What to give instead.
        advice: String,
    },
    /// The folders are called like parts of a data set, and not like classes.
    #[error(
        "the folders of {path} are {folders}: parts of a data set, and not classes; to train with one of them, {advice}"
    )]
    Split {
        /// The path.
        path: String,
        /// The names of the folders.
        folders: String,
        /// What to give instead.
        advice: String,
    },
    /// Fewer than two classes have pictures that can be read.
    #[error(
        "{path} has good pictures of {found}, but two classes are needed at least; add a folder with pictures of another class"
    )]
    FewClasses {
        /// The path.
        path: String,
        /// Which classes there are.
        found: String,
    },
    /// A folder's name cannot be the name of a class.
    #[error("the folder `{name}` {problem}, so it cannot be the name of a class; rename the folder")]
    ClassName {
        /// The name, where what cannot be shown is replaced.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There are too many classes.
    #[error(
        "{path} has {classes} folders, but at most {CLASSES_MAX} classes are possible; merge some folders"
    )]
    TooManyClasses {
        /// The path.
        path: String,
        /// How many folders there are.
        classes: usize,
    },
    /// There are more pictures than the packed file can count.
    #[error(
        "{path} has {files} files, but a packed file has at most {} pictures; remove some of them",
        u32::MAX
    )]
    TooManyPictures {
        /// The path.
        path: String,
        /// How many files there are.
        files: usize,
    },
    /// Too many files are not pictures that can be read.
    #[error(
        "{path} has {files} files, and more than one of {BROKEN_ONE_OF} cannot be decoded, such as {named}; remove these files from the folder, or convert them to PNG, JPEG or WebP"
    )]
    TooManyBroken {
        /// The path.
        path: String,
        /// How many files there are in all.
        files: usize,
        /// The first of the broken ones, each with the reason.
        named: String,
    },
    /// The packed file cannot be written.
    #[error("the packed file cannot be written: {reason}")]
    Write {
        /// What the operating system says, such as that the disk is full.
        reason: String,
    },
}

impl From<WriteError> for PackError {
    fn from(error: WriteError) -> Self {
        Self::Write { reason: error.0.to_string() }
    }
}

/// An error of the packed file. A type of its own, so that no error of reading becomes one of writing by accident.
pub(crate) struct WriteError(pub(crate) std::io::Error);
