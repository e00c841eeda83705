//! The specification: everything that the peers of a run must agree on, as bytes.
//!
//! Each layer is made from the one before:
//!
//! ```text
//! run.toml ──RunFile──> resolve(data) ──Specification──> canonical bytes ──> BuiltinLoader ──> Loaded
//! what a user wrote     by the founder,                  hashed into the     on every peer     what trains
//!                       once                             run's id
//! ```
//! A run file leaves many settings open. The founder resolves them from the data: the columns, the classes, the held-out rows, and the
//! mean and deviation of each feature. Joiners infer nothing.
//!
//! # Invariants
//! - The bytes are TOML text, with the fields in the order of these types. Numbers read back exactly.
//! - A specification that parses is within all bounds: its model has at most [`PARAMETERS_MAX`] parameters.
//!
//! # Not here
//! `[network]` and `[compute]`: ports, the number of peers to wait for, the number of threads and the device are settings of each peer, and are
//! not hashed.

use std::ops::RangeBounds;

use peergrad_models::data::format::{FileLayout, Format};
use peergrad_models::data::labels::Target;
use peergrad_models::data::limits::TABLE_VALUES_MAX;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::text::VOCABULARY;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;
use serde::{Deserialize, Serialize};

pub mod algorithm;
pub mod answers;
pub mod builtin;
pub mod checkpointing;
mod code_settings;
pub mod compression;
mod compute_device;
pub mod custom;
mod dealing;
pub mod deep;
mod error;
mod evaluation;
mod factorization;
mod former_names;
pub mod groups;
pub mod init;
pub mod memory;
pub mod model;
mod patience;
mod replicas;
pub mod resolve;
pub mod run_file;
mod run_file_changes;
mod thread_count;
mod topics;
pub mod training;

pub use algorithm::{Aggregation, Algorithm};
pub use builtin::BuiltinLoader;
pub use checkpointing::Checkpointing;
pub use compression::Compression;
pub use compute_device::{ComputeDevice, NotADevice};
pub use deep::DeepBackend;
pub use error::SpecificationError;
pub use evaluation::EvaluationSection;
pub use factorization::FactorizationSettings;
pub use former_names::explain_former_name;
pub use groups::GroupSettings;
pub use init::{WrittenRunFile, demo_pictures_run_file, demo_run_file, write_run_file};

pub use model::ModelSettings;
pub use resolve::{resolve, resolve_with_notices};
pub use run_file::RunFile;
pub use run_file_changes::{ChangedKey, changed_keys};
pub use thread_count::{NotAThreadCount, ThreadCount};
pub use topics::TopicSettings;
pub use training::{TopologyName, TrainingSettings};

/// The version of the format.
pub const VERSION: u32 = 1;
/// The most parameters of a built-in model.
pub const PARAMETERS_MAX: u64 = 1 << 30;
/// The most different tokens of a text.
pub(crate) const VOCABULARY_MAX: usize = 1 << 20;
/// The maximum length of a data file's name, in bytes.
const NAME_BYTES_MAX: usize = 4096;

/// What the peers of a run agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Specification {
    /// [`VERSION`].
    pub version: u32,
    /// How the run trains.
    pub training: TrainingSettings,
    /// The model between features and target.
    pub model: ModelSettings,
    /// The data file, and how it is read.
    pub data: DataSettings,
}

/// The data file, and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// The name that the founder gave: a path, or the name of a built-in set.
    pub name: String,
    /// The digest of its bytes on disk, in hexadecimal.
    pub digest: String,
    /// The number of those bytes.
    pub byte_count: u64,
    /// The number of rows.
    pub rows: u32,
    /// The number of held-out rows.
    pub held_out_rows: u32,
    /// Where the features and the labels are.
    pub layout: FileLayout,
    /// What the model predicts.
    pub target: Target,
    /// The standardization of the features.
    pub standardization: Standardization,
}

impl DataSettings {
    /// Replaces the names of the columns by their digest, which is short.
    fn shorten_names(&mut self) {
        if let FileLayout::Csv(layout) = &mut self.layout {
            layout.shorten_names();
        }
    }
}

impl Specification {
    /// The bytes that are hashed and sent.
    ///
    /// # Errors
    /// There are more than [`SPECIFICATION_BYTES_MAX`] of them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SpecificationError> {
        let text = toml::to_string(self).map_err(|error| SpecificationError::Foreign(error.to_string()))?;
        if text.len() > SPECIFICATION_BYTES_MAX {
            return Err(SpecificationError::TooLarge { found: text.len() });
        }
        Ok(text.into_bytes())
    }

    /// Reads and checks bytes that [`to_bytes`](Self::to_bytes) made, here or at another peer.
    ///
    /// # Errors
    /// The bytes are not a specification of this version, or a value is out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, SpecificationError> {
        if bytes.len() > SPECIFICATION_BYTES_MAX {
            return Err(SpecificationError::TooLarge { found: bytes.len() });
        }
        let foreign = |error: &dyn std::fmt::Display| SpecificationError::Foreign(error.to_string());
        let text = std::str::from_utf8(bytes).map_err(|error| foreign(&error))?;
        let specification: Self = toml::from_str(text).map_err(|error| foreign(&error.message()))?;
        specification.check()?;
        Ok(specification)
    }

    /// The digest of the data file.
    ///
    /// # Errors
    /// The text is not a digest.
    pub fn digest(&self) -> Result<ContentDigest, SpecificationError> {
        let hash = blake3::Hash::from_hex(&self.data.digest);
        let foreign = |error: blake3::HexError| SpecificationError::Foreign(error.to_string());
        Ok(ContentDigest(*hash.map_err(foreign)?.as_bytes()))
    }

    /// Checks that everything is within its bounds.
    ///
    /// # Errors
    /// The first value that is not.
    pub(crate) fn check(&self) -> Result<(), SpecificationError> {
        within("version", self.version, VERSION..=VERSION, "1")?;
        self.digest()?;
        self.training.check()?;
        self.check_data()?;
        self.model.check(&self.data, &self.training)?;
        self.training.training(&self.manifest()).map(drop)
    }

    fn check_data(&self) -> Result<(), SpecificationError> {
        let data = &self.data;
        let foreign = |what: &str| Err(SpecificationError::Foreign(what.to_owned()));
        if let Some(problem) = data.layout.problem() {
            return foreign(&problem);
        }
        within("data.file", data.name.len(), 1..=NAME_BYTES_MAX, "a name of 1 to 4096 bytes")?;
        within("data.file", data.byte_count, 1.., "a file of at least one byte")?;
        within("data.held_out", data.held_out_rows, 0..data.rows, "fewer rows than the file has")?;
        let has_tokens = matches!(data.target, Target::Token { .. });
        if has_tokens != matches!(data.layout.format(), Format::Text | Format::Documents) {
            return foreign("only text has tokens");
        }
        let has_bytes = self.has_byte_pictures();
        if has_bytes && data.layout.format() != Format::Idx {
            return foreign("only an IDX file has pictures of bytes");
        }
        let is_table = !self.is_sparse() && !has_bytes && data.layout.format() != Format::Text;
        if is_table && u64::from(data.rows) * data.layout.columns() as u64 > TABLE_VALUES_MAX as u64 {
            return foreign("the table has more than 268435456 numbers");
        }
        if !data.standardization.fits(data.layout.columns()) {
            return foreign("the standardization does not fit the columns");
        }
        match &data.target {
            Target::Class { classes } => {
                let allowed = "at least two different classes";
                let distinct: std::collections::BTreeSet<&String> = classes.iter().collect();
                within("data.classes", distinct.len(), 2.max(classes.len()).., allowed)
            }
            Target::Number { mean, scale } if mean.is_finite() && scale.is_finite() && *scale > 0.0 => Ok(()),
            Target::Number { .. } => foreign("the target's mean or scale is not a number"),
            // It is that of the model.
            Target::Token { .. } if data.layout.format() == Format::Documents => Ok(()),
            Target::Token { vocabulary } => {
                let most = if self.has_prepared_text() { VOCABULARY_MAX } else { VOCABULARY };
                let least = if self.has_prepared_text() { 1 } else { VOCABULARY };
                within(
                    "data.file",
                    *vocabulary,
                    least..=most,
                    "256 different bytes, or up to 1048576 different tokens",
                )
            }
        }
    }
}

/// Checks that `range` contains `value`; no range contains NaN.
///
/// # Errors
/// It does not; `key` and `allowed` become part of the message.
fn within<T: PartialOrd + std::fmt::Display>(
    key: &'static str,
    value: T,
    range: impl RangeBounds<T>,
    allowed: &str,
) -> Result<(), SpecificationError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(SpecificationError::Setting { key, found: value.to_string(), allowed: allowed.to_owned() })
}
