//! Tasks for simulations: one that can be learned, one that moves integers, and a model of a text's characters.
//!
//! Any [`Task`] can be simulated; these need no data file and little time.

use std::sync::Arc;

use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader, TrainingConfig};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::task::Task;
use peergrad_protocol::id::ContentDigest;

mod altered;
mod characters;
mod in_parts;
mod integers;
mod squares;

pub use altered::{AlteredTask, Gradient};
pub use characters::Characters;
pub use in_parts::InParts;
pub use integers::Integers;
pub use squares::Squares;

/// A loader that returns one prepared task for any specification; optionally it asks for a data file first.
pub struct FixedLoader {
    /// The task and its program.
    pub loaded: Loaded,
    /// The data file that the specification requires; `None` if it requires none.
    pub data: Option<Arc<[u8]>>,
}

impl FixedLoader {
    /// A loader of `task`, trained as `training` says.
    #[must_use]
    pub fn new(task: impl Task, training: TrainingConfig) -> Self {
        Self { loaded: Loaded::new(Arc::new(task), training), data: None }
    }
}

impl Loader for FixedLoader {
    fn data(&self, _specification: &[u8]) -> Result<Option<DataReference>, String> {
        Ok(self.data.as_ref().map(|data| DataReference {
            name: "toy".to_owned(),
            digest: ContentDigest::of(data),
            byte_count: data.len() as u64,
        }))
    }

    fn load(&self, _specification: &[u8], data: Option<DataBytes>) -> Result<Loaded, String> {
        if data.map(|data| data.digest()) != self.data.as_ref().map(|data| ContentDigest::of(data)) {
            return Err("the data is not what the specification says".to_owned());
        }
        Ok(self.loaded.clone())
    }
}
