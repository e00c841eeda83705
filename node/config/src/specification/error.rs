//! Why a specification cannot be made from a run file and its data, or cannot be used.

use peergrad_models::data::error::DenseTableError;
use peergrad_models::data::format::FormatError;
use peergrad_models::data::labels::LabelError;
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;

use super::memory::ByteSize;

/// Why there is no usable specification. Each message says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecificationError {
    /// The run file is not TOML, or has an unknown key or a value of the wrong type.
    #[error("{0}")]
    RunFile(String),
    /// A setting has a value that is not allowed.
    #[error("`{key}` is {found}; allowed: {allowed}")]
    Setting {
        /// The setting's name, with its section.
        key: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// A deep network cannot be built.
    #[error("`{key}`: {reason}")]
    Network {
        /// The setting's name, with its section.
        key: &'static str,
        /// Why, and what to give.
        reason: String,
    },
    /// The data file cannot be unpacked.
    #[error(transparent)]
    Table(#[from] DenseTableError),
    /// The data file cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The labels of the data file cannot be used.
    #[error(transparent)]
    Labels(#[from] LabelError),
    /// Numbers are missing in the data file, and `peer init` has found in which columns.
    #[error("{first}; in all, numbers are missing in {}", .columns.join(", "))]
    Incomplete {
        /// The first place.
        first: DenseTableError,
        /// The columns, in words.
        columns: Vec<String>,
    },
    /// The specification is too large.
    #[error(
        "the specification has {found} bytes, more than the maximum of {SPECIFICATION_BYTES_MAX}; use fewer columns (`columns` in [data]) or classes, or set `standardize = false`"
    )]
    TooLarge {
        /// Its size in bytes.
        found: usize,
    },
    /// The specification has no room for the ids of users and items.
    #[error(
        "{name}: the ids of {users} users and {items} items take {bytes} bytes, and the specification has room for about {SPECIFICATION_BYTES_MAX}; \
         number users and items from 1 on without gaps, which takes a few bytes, or train on a part of the ratings"
    )]
    ManyIds {
        /// The file's name.
        name: String,
        /// How many users it has.
        users: usize,
        /// How many items it has.
        items: usize,
        /// What their ids take.
        bytes: usize,
    },
    /// The specification has no room for the vocabulary.
    #[error(
        "{name}: the vocabulary of {words} words takes {bytes} bytes, and the specification has room for about {SPECIFICATION_BYTES_MAX}; lower \
         `vocabulary_size` in [data], or, with an LDA-C file, leave out `vocabulary`: words are then called by their numbers"
    )]
    ManyWords {
        /// The file's name.
        name: String,
        /// How many words it has.
        words: usize,
        /// What they take.
        bytes: usize,
    },
    /// The run needs more memory than it may take here.
    #[error(
        "this run needs about {} of memory, but this peer may take {}: allow more with `--max-memory {}`, or use a machine with more memory",
        ByteSize(*needed), ByteSize(*limit), ByteSize(*needed).rounded_up()
    )]
    TooMuchMemory {
        /// The bytes that it needs.
        needed: u64,
        /// The bytes that it may take.
        limit: u64,
    },
    /// The unpacked data file takes more memory than the run may take here.
    #[error(
        "{name}: unpacked, the data file takes more than the {} that are left of the memory that this peer may take: allow more with `--max-memory`, or use a machine with more memory",
        ByteSize(*left)
    )]
    UnpacksTooLarge {
        /// The file's name.
        name: String,
        /// The bytes to which it may unpack.
        left: u64,
    },
    /// This version cannot read the specification.
    #[error("the run's specification cannot be read ({0}); use the same version of peergrad on all machines")]
    Foreign(String),
    /// The disk does not give the data file.
    #[error("{name}: the file cannot be read ({reason}); check the disk, or copy the file again")]
    Unreadable {
        /// The file's name.
        name: String,
        /// What the system says.
        reason: String,
    },
    /// A file does not have the pictures that a model is for.
    #[error(
        "{file}: these are not pictures for this model ({what}); give a folder of pictures, or a file of the kind that it was trained on"
    )]
    OtherPictures {
        /// The file.
        file: String,
        /// What differs.
        what: String,
    },
    /// A model is asked about pictures, and was not trained on any.
    #[error(
        "the model was not trained on pictures from a folder; give a data file of the kind that it was trained on"
    )]
    NoPictures,
    /// A language model is asked for predictions.
    #[error("the model continues texts: use `peer generate` with it")]
    PredictsText,
    /// A topic model is asked for predictions.
    #[error("the model finds the topics of documents: use `peer topics MODEL --documents FILE` with it")]
    PredictsTopics,
    /// Another model is asked for topics.
    #[error("the model has no topics: give one that was trained with `kind = \"lda\"` in [model]")]
    NoTopics,
    /// A prepared text cannot be used.
    #[error(
        "{name}: this is no prepared text that can be used ({reason}); prepare it again with `peer init`"
    )]
    Prepared {
        /// The file's name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A model of adapters is used without what they adapt.
    #[error(
        "the model has only adapters: give the prepared text that it was trained on, which holds the model that they adapt (`evaluate --data FILE`, `generate --base FILE`)"
    )]
    NoBase,
    /// A text is shorter than a sample.
    #[error("{file}: the text is too short: the model reads {context} tokens to predict the next ones; give at least {}", context + 1)]
    ShortText {
        /// The file.
        file: String,
        /// Bytes of a sample.
        context: usize,
    },
    /// The run trains a deep network, which this program cannot compute.
    #[error(
        "this is a deep network, which this program cannot compute: build `peer` with `cargo build --release --features deep`, and use that one on all machines"
    )]
    NoBackend,
    /// The run was founded on another data file.
    #[error(
        "{name}: this is not the data file of the run ({what}); copy the file from the first peer's machine"
    )]
    OtherData {
        /// The file's name.
        name: String,
        /// What differs.
        what: String,
    },
}
