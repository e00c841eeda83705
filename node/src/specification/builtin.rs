//! The built-in loader: from a specification and the data file's bytes to a task.
//!
//! The same on founder and joiners, and it decides nothing: layout, split, classes and standardization are read, not
//! inferred.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;

use super::own::OwnSpecification;
use super::{Specification, SpecificationError};
use crate::data::dataset::{Dataset, Samples, Split};
use crate::data::table::unpack;
use crate::io::DataReference;
use crate::loader::{Loaded, Loader};
use crate::task::supervised::Supervised;

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
        reference.map(Some).map_err(|error| {
            // Of another binary's task only the names are known here.
            OwnSpecification::parse(specification)
                .map_or(error.to_string(), |OwnSpecification { task, program, .. }| {
                    format!(
                        "this run trains the task `{task}` (program `{program}`), which is not built into `peer` but part \
                         of the binary that founded the run: bring that binary to this machine and type its name in place of `peer`"
                    )
                })
        })
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
        let loaded = Loaded::new(Arc::new(task), self.training.training());
        Ok(Loaded { program: self.training.algorithm.launch(), ..loaded })
    }

    /// The run's samples, from the data file's bytes.
    ///
    /// # Errors
    /// If they are not those of the file that the run was founded on.
    pub fn dataset(&self, bytes: &[u8]) -> Result<Dataset, SpecificationError> {
        let data = &self.data;
        let other =
            |what: &str| SpecificationError::OtherData { name: data.name.clone(), what: what.to_owned() };
        if ContentDigest::of(bytes) != self.digest()? {
            return Err(other("its bytes are different"));
        }
        let table = data.layout.read(&data.name, &unpack(&data.name, bytes)?)?;
        let labels = data.target.labels(&data.name, &table.labels)?;
        if table.rows() != data.rows as usize {
            return Err(other("it has another number of rows"));
        }
        let mut split = Split::draw(self.training.seed, data.rows, data.held_out_rows);
        if !self.training.shuffle {
            split.training.sort_unstable();
        }
        let select = |rows: &[u32]| Samples::select(&table, &labels, &data.standardization, rows);
        Ok(Dataset { training: select(&split.training), held_out: select(&split.held_out) })
    }

    /// All rows of a file with the run's columns, as samples; `file` is only for errors.
    ///
    /// A CSV file may have a header where the run's had none, and another delimiter; a LIBSVM file may lack the last features.
    ///
    /// # Errors
    /// If the file is of another format than the run's, or has other columns or labels.
    pub fn samples(&self, file: &str, bytes: &[u8]) -> Result<Samples, SpecificationError> {
        let unpacked = unpack(file, bytes)?;
        let table = self.data.layout.of_other(file, &unpacked)?.read(file, &unpacked)?;
        let labels = self.data.target.labels(file, &table.labels)?;
        let rows: Vec<u32> = (0..table.rows() as u32).collect();
        Ok(Samples::select(&table, &labels, &self.data.standardization, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::{RunFile, resolve};

    const DATA: &[u8] = b"0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n";

    fn specification() -> Vec<u8> {
        let run = RunFile::parse("[data]\nfile = \"f.csv\"").unwrap();
        resolve(&run, "f.csv", DATA).unwrap().to_bytes().unwrap()
    }

    #[test]
    fn a_joiner_loads_what_the_founder_resolved() {
        let bytes = specification();
        let reference = BuiltinLoader.data(&bytes).unwrap().unwrap();
        assert_eq!((reference.name.as_str(), reference.byte_count), ("f.csv", DATA.len() as u64));
        assert_eq!(reference.digest, ContentDigest::of(DATA));
        let loaded = BuiltinLoader.load(&bytes, Some(DATA.into())).unwrap();
        assert_eq!((loaded.task.sample_count(), loaded.training.passes), (4, 40));
        assert_eq!(loaded.manifest, loaded.task.manifest());
    }

    #[test]
    fn another_file_or_none_is_refused() {
        let error = |data| BuiltinLoader.load(&specification(), data).err().unwrap();
        assert!(error(None).contains("needs its data file"));
        let other = error(Some(b"0,0,a\n1,0,b\n".as_slice().into()));
        assert!(other.starts_with("f.csv: not the file that this run was founded on"), "{other}");
        assert!(BuiltinLoader.data(b"nonsense").unwrap_err().contains("same version"));
    }
}
