//! The built-in loader: from a specification and the data file's bytes to a task.
//!
//! The same on founder and joiners, and it decides nothing: layout, split, classes and standardization are read, not
//! inferred.

use std::sync::Arc;

use super::{Specification, SpecificationError};
use crate::data::dataset::{Dataset, Samples, Split};
use crate::data::table::{Table, unpack};
use crate::io::DataReference;
use crate::loader::{Loaded, Loader};
use crate::task::Task;
use crate::task::supervised::Supervised;
use peergrad_protocol::id::ContentDigest;

/// Builds the models that `run.toml` can name.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinLoader;

impl Loader for BuiltinLoader {
    fn data(&self, specification: &[u8]) -> Result<Option<DataReference>, String> {
        let reference = Specification::parse(specification).and_then(|specification| {
            Ok(DataReference {
                digest: specification.digest()?,
                byte_count: specification.data.byte_count,
                name: specification.data.name,
            })
        });
        reference.map(Some).map_err(|error| error.to_string())
    }

    fn load(&self, specification: &[u8], data: Option<Arc<[u8]>>) -> Result<Loaded, String> {
        let bytes = data.ok_or("the run needs its data file, and it is not here")?;
        let specification = Specification::parse(specification).map_err(|error| error.to_string())?;
        specification.load(&bytes).map_err(|error| error.to_string())
    }
}

impl Specification {
    /// Builds the task from the data file's bytes.
    ///
    /// # Errors
    /// If they are not those of the file that the run was founded on.
    pub fn load(&self, bytes: &[u8]) -> Result<Loaded, SpecificationError> {
        let dataset = self.dataset(bytes)?;
        let task = Supervised::new(self.network(), dataset);
        Ok(Loaded { manifest: task.manifest(), task: Arc::new(task), training: self.training() })
    }

    /// The run's samples, from the data file's bytes.
    ///
    /// # Errors
    /// If they are not those of the file that the run was founded on.
    pub fn dataset(&self, bytes: &[u8]) -> Result<Dataset, SpecificationError> {
        let data = &self.data;
        let other = |what: &str| SpecificationError::OtherData { name: data.name.clone(), what: what.to_owned() };
        if ContentDigest::of(bytes) != self.digest()? {
            return Err(other("its bytes are different"));
        }
        let (table, labels) = self.read(&data.name, bytes)?;
        if table.rows() != data.rows as usize {
            return Err(other("it has another number of rows"));
        }
        let split = Split::draw(self.training.seed, data.rows, data.held_out_rows);
        let select = |rows: &[u32]| Samples::select(&table, &labels, &data.standardization, rows);
        Ok(Dataset { training: select(&split.training), held_out: select(&split.held_out) })
    }

    /// All rows of a file with the run's columns, as samples; `file` is only for errors.
    ///
    /// # Errors
    /// If the file has other columns or labels than the run's.
    pub fn samples(&self, file: &str, bytes: &[u8]) -> Result<Samples, SpecificationError> {
        let (table, labels) = self.read(file, bytes)?;
        let rows: Vec<u32> = (0..table.rows() as u32).collect();
        Ok(Samples::select(&table, &labels, &self.data.standardization, &rows))
    }

    fn read(&self, file: &str, bytes: &[u8]) -> Result<(Table, crate::data::labels::Labels), SpecificationError> {
        let table = Table::read(file, &unpack(file, bytes)?, &self.data.layout)?;
        let labels = self.data.target.labels(file, &table)?;
        Ok((table, labels))
    }
}
