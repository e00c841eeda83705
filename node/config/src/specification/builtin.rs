//! The built-in loader: creates a task from a specification and the bytes of the data file.
//!
//! Founder and joiners use the same code. It infers nothing: layout, split, classes and standardization come from the specification.

use std::sync::Arc;

use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::dataset::{Dataset, HeldOutSplit, Samples};
use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::error::DenseTableError;
use peergrad_models::data::format::FileLayout;
use peergrad_models::data::labels::Labels;
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::deep::DeepTask;
use peergrad_models::task::Task;
use peergrad_models::task::factorization::FactorizationTask;
use peergrad_models::task::sparse_linear::{SparseDataset, SparseLinear};
use peergrad_models::task::supervised::Supervised;
use peergrad_protocol::id::ContentDigest;

use super::custom::CustomSpecification;
use super::deep::data::in_memory;
use super::deep::{DeepBackend, check_backend};
use super::memory::MemoryLimit;
use super::model::TableModel;
use super::{ModelSettings, Specification, SpecificationError};

/// Loads the models that `run.toml` can name.
#[derive(Clone, Debug, Default)]
pub struct BuiltinLoader {
    /// How much memory a run may take.
    pub memory: MemoryLimit,
    /// What computes deep networks.
    pub deep: DeepBackend,
}

impl Loader for BuiltinLoader {
    fn data(&self, specification: &[u8]) -> Result<Option<DataReference>, String> {
        let reference = Specification::parse(specification).and_then(|specification| {
            self.memory.check(specification.memory_bytes())?;
            specification.check_backend(&self.deep)?;
            Ok(DataReference {
                digest: specification.digest()?,
                byte_count: specification.data.byte_count,
                name: specification.data.name,
            })
        });
        reference.map(Some).map_err(|error| {
            // A custom task is known here only by name.
            CustomSpecification::parse(specification)
                .map_or(error.to_string(), |CustomSpecification { task, program, .. }| {
                    format!(
                        "this run trains the custom task `{task}` (program `{program}`), which is part of the program that founded the run: \
                         use that program on this machine in place of `peer`. If it is a Python script, install the package `peergrad` here"
                    )
                })
        })
    }

    fn load(&self, specification: &[u8], data: Option<DataBytes>) -> Result<Loaded, String> {
        let bytes = data.ok_or("the run needs its data file, which is missing")?;
        let specification = Specification::parse(specification).map_err(|error| error.to_string())?;
        specification.load_within(&bytes, self.memory, &self.deep).map_err(|error| error.to_string())
    }
}

impl Specification {
    /// Creates the task from the bytes of the data file.
    ///
    /// # Errors
    /// The run was founded on a different file, or trains a deep network.
    pub fn load(&self, bytes: impl Into<DataBytes>) -> Result<Loaded, SpecificationError> {
        self.load_within(&bytes.into(), MemoryLimit::default(), &None)
    }

    /// Checks that this program can compute the model.
    ///
    /// # Errors
    /// It is a deep network, and there is nothing that computes one.
    pub fn check_backend(&self, deep: &DeepBackend) -> Result<(), SpecificationError> {
        if self.model.is_deep() { check_backend(deep).map(drop) } else { Ok(()) }
    }

    /// As [`load`](Self::load), for a peer whose memory is limited.
    ///
    /// # Errors
    /// The run was founded on a different file, or unpacking this one takes too much memory.
    pub fn load_within(
        &self,
        bytes: &DataBytes,
        memory: MemoryLimit,
        deep: &DeepBackend,
    ) -> Result<Loaded, SpecificationError> {
        self.check_digest(bytes.digest())?;
        let unpacked = self.unpacked(bytes, memory)?;
        let all = || in_memory(&self.data.name, &unpacked);
        if let ModelSettings::Lda(_) = &self.model {
            return self.load_topics(&all()?);
        }
        let training = self.data.rows - self.data.held_out_rows;
        let task: Arc<dyn Task> = match (&self.model, self.model.table_model(&self.data)) {
            (_, Some(TableModel::Dense(network))) => {
                Arc::new(Supervised::new(network, self.unpacked_dataset(&all()?)?))
            }
            (_, Some(TableModel::Sparse(loss))) => {
                Arc::new(SparseLinear::new(self.unpacked_rows(&all()?)?, training, loss))
            }
            (ModelSettings::Factorization(settings), _) => {
                let samples = self.own_ratings(&all()?)?;
                Arc::new(FactorizationTask::new(settings.model(), samples, training))
            }
            _ => {
                let backend = Arc::clone(check_backend(deep)?);
                let start = self.start_values(&unpacked)?;
                let samples = self.deep_samples(unpacked)?;
                let task = DeepTask::new(self.architecture()?, samples, self.training.seed, backend);
                Arc::new(task.starting_at(start))
            }
        };
        let config = self.training.training(&task.manifest())?;
        let loaded = Loaded::new(task, config);
        Ok(Loaded { program: self.training.algorithm.launch(), ..loaded })
    }

    fn check_digest(&self, found: ContentDigest) -> Result<(), SpecificationError> {
        if found == self.digest()? {
            return Ok(());
        }
        Err(self.other("its bytes are different"))
    }

    /// The training rows and the held-out rows of a data file with `rows` rows. They are compared with the specification first: drawing
    /// takes memory for each of its rows, and another peer wrote it.
    pub(super) fn split(&self, rows: usize) -> Result<HeldOutSplit, SpecificationError> {
        if rows != self.data.rows as usize {
            return Err(self.other("it has a different number of rows"));
        }
        let mut split = HeldOutSplit::draw(self.training.seed, self.data.rows, self.data.held_out_rows);
        if !self.training.shuffle {
            split.training.sort_unstable();
        }
        Ok(split)
    }

    /// The bytes of the run's data file, unpacked if it is packed.
    fn unpacked(&self, bytes: &DataBytes, memory: MemoryLimit) -> Result<DataBytes, SpecificationError> {
        let (name, limit) = (&self.data.name, self.unpacked_bytes_max(memory));
        bytes.unpacked(name, limit).map_err(|error| match error {
            DenseTableError::TooLarge { .. } if limit < UNPACKED_BYTES_MAX => {
                SpecificationError::UnpacksTooLarge { name: name.clone(), left: limit }
            }
            other => other.into(),
        })
    }

    pub(super) fn other(&self, what: &str) -> SpecificationError {
        SpecificationError::OtherData { name: self.data.name.clone(), what: what.to_owned() }
    }

    /// The run's samples in sparse form: first the training samples, then the held-out ones.
    pub(super) fn own_rows(&self, bytes: &[u8]) -> Result<SparseDataset, SpecificationError> {
        self.check_digest(ContentDigest::of(bytes))?;
        self.unpacked_rows(&unpack(&self.data.name, bytes)?)
    }

    pub(super) fn unpacked_rows(&self, bytes: &[u8]) -> Result<SparseDataset, SpecificationError> {
        let samples = self.listed(&self.data.name, &self.data.layout, bytes)?;
        let split = self.split(samples.labels.len())?;
        Ok(samples.select(&[split.training, split.held_out].concat()))
    }

    /// All rows of an unpacked file, in sparse form.
    pub(super) fn listed(
        &self,
        file: &str,
        layout: &FileLayout,
        bytes: &[u8],
    ) -> Result<SparseDataset, SpecificationError> {
        let table = layout.read_sparse(file, bytes)?;
        let labels = match self.data.target.labels(file, &table.labels)? {
            Labels::Classes(classes) => classes.into_iter().map(|class| class == 1).collect(),
            Labels::Numbers(_) => return Err(self.other("its labels are numbers")),
        };
        Ok(SparseDataset { features: table.features, labels })
    }

    /// The run's samples, from the bytes of the data file.
    ///
    /// # Errors
    /// The run was founded on a different file.
    pub fn dataset(&self, bytes: &[u8]) -> Result<Dataset, SpecificationError> {
        self.check_digest(ContentDigest::of(bytes))?;
        self.unpacked_dataset(&unpack(&self.data.name, bytes)?)
    }

    pub(super) fn unpacked_dataset(&self, bytes: &[u8]) -> Result<Dataset, SpecificationError> {
        let data = &self.data;
        let table = data.layout.read(&data.name, bytes)?;
        let labels = data.target.labels(&data.name, &table.labels)?;
        let split = self.split(table.rows())?;
        let select = |rows: &[u32]| Samples::select(&table, &labels, &data.standardization, rows);
        Ok(Dataset { training: select(&split.training), held_out: select(&split.held_out) })
    }

    /// All rows of a file that has the run's columns, as samples.
    pub(super) fn samples(
        &self,
        file: &str,
        bytes: &[u8],
        notices: &mut Vec<String>,
    ) -> Result<Samples, SpecificationError> {
        let unpacked = unpack(file, bytes)?;
        let other = self.data.layout.of_other(file, &unpacked)?;
        notices.extend(other.notices);
        let table = other.layout.read(file, &unpacked)?;
        let labels = self.data.target.labels(file, &table.labels)?;
        let rows: Vec<u32> = (0..table.rows() as u32).collect();
        Ok(Samples::select(&table, &labels, &self.data.standardization, &rows))
    }
}

#[cfg(test)]
mod tests {
    use peergrad_models::data::embedded::{DIGITS, embedded};

    use super::*;
    use crate::specification::{RunFile, resolve};

    const DATA: &[u8] = b"0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n";

    fn specification() -> Vec<u8> {
        let run = RunFile::parse("[data]\nfile = \"f.csv\"").unwrap();
        resolve(&run, "f.csv", DATA).unwrap().to_bytes().unwrap()
    }

    #[test]
    fn a_joiner_loads_the_task_that_the_founder_resolved() {
        let bytes = specification();
        let reference = BuiltinLoader::default().data(&bytes).unwrap().unwrap();
        assert_eq!((reference.name.as_str(), reference.byte_count), ("f.csv", DATA.len() as u64));
        assert_eq!(reference.digest, ContentDigest::of(DATA));
        let loaded = BuiltinLoader::default().load(&bytes, Some(DATA.into())).unwrap();
        assert_eq!((loaded.task.sample_count(), loaded.config.epochs), (4, 40));
        assert_eq!(loaded.manifest, loaded.task.manifest());
    }

    #[test]
    fn a_different_or_missing_file_is_rejected() {
        let error = |data| BuiltinLoader::default().load(&specification(), data).err().unwrap();
        assert!(error(None).contains("needs its data file"));
        let other = error(Some(b"0,0,a\n1,0,b\n".as_slice().into()));
        assert!(other.starts_with("f.csv: this is not the data file of the run"), "{other}");
        assert!(BuiltinLoader::default().data(b"nonsense").unwrap_err().contains("same version"));
    }

    #[test]
    fn rows_that_the_file_does_not_have_are_rejected_before_they_are_drawn() {
        let text = String::from_utf8(specification()).unwrap();
        let claims = text.replace("\nrows = 5\n", "\nrows = 100000000\n");
        assert_ne!(claims, text);
        let error = BuiltinLoader::default().load(claims.as_bytes(), Some(DATA.into())).err().unwrap();
        assert!(error.contains("a different number of rows"), "{error}");
    }

    #[test]
    fn a_file_without_bytes_and_a_table_without_bound_are_rejected_with_the_specification() {
        let text = String::from_utf8(specification()).unwrap();
        for (what, claim, words) in [
            (format!("\nbyte_count = {}\n", DATA.len()), "\nbyte_count = 0\n", "at least one byte"),
            ("\nrows = 5\n".to_owned(), "\nrows = 4294967295\n", "more than 268435456 numbers"),
        ] {
            let claims = text.replace(&what, claim);
            assert_ne!(claims, text);
            let error = BuiltinLoader::default().data(claims.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_run_that_takes_too_much_memory_is_rejected_with_its_specification() {
        let limited = |bytes| BuiltinLoader { memory: MemoryLimit::new(Some(bytes)), deep: None };
        let needed = Specification::parse(&specification()).unwrap().memory_bytes();
        assert!(limited(needed).data(&specification()).is_ok());
        let error = limited(needed - 1).data(&specification()).unwrap_err();
        assert!(error.contains("--max-memory"), "{error}");
    }

    #[test]
    fn a_packed_file_unpacks_to_no_more_than_what_is_left_of_the_memory() {
        let packed: &[u8] = embedded(DIGITS).unwrap();
        let run = RunFile::parse("[data]\nfile = \"digits\"").unwrap();
        let specification = resolve(&run, DIGITS, packed).unwrap();
        let unpacked = unpack(DIGITS, packed).unwrap().len() as u64;
        let limit = |left| MemoryLimit::new(Some(specification.loading_bytes() + left));
        assert!(specification.load_within(&packed.into(), limit(unpacked), &None).is_ok());
        let error = specification.load_within(&packed.into(), limit(unpacked - 1), &None).err().unwrap();
        assert_eq!(
            error,
            SpecificationError::UnpacksTooLarge { name: DIGITS.to_owned(), left: unpacked - 1 }
        );
    }
}
