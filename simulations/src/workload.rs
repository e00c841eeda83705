//! The workload: what a simulated swarm trains, in the form in which a peer gets it: the bytes of a specification, perhaps a data file, and
//! a loader.
//!
//! The specification is a real one, resolved from a run file as `peer start` does it. Only the loading is shared: a hundred simulated peers
//! read the data once.

use std::sync::Arc;

use peergrad_config::specification::custom::{CustomLoader, CustomSpecification};
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::run_file::DataSection;
use peergrad_config::specification::{BuiltinLoader, DeepBackend, RunFile, SpecificationError, resolve};
use peergrad_config::sweep::{SweepError, SweepHost, SweepLoader, SweepPlan, SweepSpecification};
use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader, TrainingConfig};
use peergrad_core::program::programs::backup_workers::BackupWorkers;
use peergrad_core::program::programs::ssp::Ssp;
use peergrad_core::program::programs::sync::SyncDataParallel;
use peergrad_core::program::{Program, ProgramFactory};
use peergrad_core::table::{Atomicity, TableRule, TableSpec};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::embedded::{DIGITS, embedded};
use peergrad_models::task::Task;
use peergrad_models::task::clicks::SyntheticClicks;
use peergrad_models::task::margin_loss::MarginLoss;
use peergrad_models::task::sparse_linear::SparseLinear;

use crate::task::{Characters, InParts, Integers, Squares};

/// Most nonzero features of a generated sample.
const CLICKS_ENTRIES: usize = 40;

/// What a swarm trains.
#[derive(Clone)]
pub struct Workload {
    /// The run's specification, in bytes.
    pub specification: Arc<[u8]>,
    /// The data file of every peer; `None` if the data is built in.
    pub data: Option<Arc<[u8]>>,
    /// The task and program that the specification describes.
    pub loaded: Loaded,
    /// The task that moves integers; `None` for any other task.
    pub integers: Option<Integers>,
    reference: Option<DataReference>,
}

impl Workload {
    /// A run file's model on the embedded digits.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn digits(run: &RunFile) -> Result<Self, SpecificationError> {
        let bytes = embedded(DIGITS).expect("the digits are embedded");
        let data = run.data.clone().or_else(|| Some(DataSection::new(DIGITS)));
        Self::data_file(&RunFile { data, ..run.clone() }, DIGITS, bytes)
    }

    /// A run file's model on a data file.
    ///
    /// # Errors
    /// If a setting is not allowed, or the data cannot be used.
    ///
    /// # Panics
    /// Never: a specification that was just resolved can be loaded.
    pub fn data_file(run: &RunFile, name: &str, bytes: &[u8]) -> Result<Self, SpecificationError> {
        Self::deep(run, name, bytes, &None)
    }

    /// As [`data_file`](Self::data_file), for a model that may be a deep network, which `deep` computes.
    ///
    /// # Errors
    /// If a setting is not allowed, or the data cannot be used.
    ///
    /// # Panics
    /// Never: a specification that was just resolved can be loaded.
    pub fn deep(
        run: &RunFile,
        name: &str,
        data: impl Into<DataBytes>,
        deep: &DeepBackend,
    ) -> Result<Self, SpecificationError> {
        let data = data.into();
        let specification = resolve(&with_digests(run), name, &data)?;
        let memory = MemoryLimit::default();
        let loaded = specification.load_within(&data, memory, deep)?;
        let specification: Arc<[u8]> = specification.to_bytes()?.into();
        let loader = BuiltinLoader { memory, deep: deep.clone() };
        let reference = loader.data(&specification).expect("it was just resolved");
        let bytes = data.all().expect("simulated data is in memory").as_ref().into();
        Ok(Self { specification, data: Some(bytes), loaded, integers: None, reference })
    }

    /// The task that moves integers.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn integers(run: &RunFile, parameters: usize, samples: u32) -> Result<Self, SpecificationError> {
        let task = Integers::new(parameters, samples);
        Ok(Self { integers: Some(task.clone()), ..Self::custom("integers", task, run)? })
    }

    /// Least squares.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn squares(run: &RunFile, parameters: usize, samples: u32) -> Result<Self, SpecificationError> {
        Self::custom("squares", Squares::new(parameters, samples), run)
    }

    /// Logistic regression on generated sparse samples with `features` features; a tenth as many samples are held out in addition.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn clicks(run: &RunFile, features: usize, samples: u32) -> Result<Self, SpecificationError> {
        let all =
            SyntheticClicks::new(features, samples + samples / 10, CLICKS_ENTRIES.min(features), run.seed);
        Self::custom("clicks", SparseLinear::new(all, samples, MarginLoss::CrossEntropy), run)
    }

    /// A model of the first `samples` characters of a text, gzipped or not.
    ///
    /// # Errors
    /// A description, if a setting is not allowed or the text cannot be used.
    pub fn text(run: &RunFile, name: &str, bytes: &[u8], samples: u32) -> Result<Self, String> {
        let text = unpack(name, bytes).map_err(|error| error.to_string())?;
        let task = Characters::new(&text, samples as usize).map_err(|words| format!("{name}: {words}"))?;
        let run = RunFile { data: None, ..run.clone() };
        Self::custom("characters", task, &run).map_err(|error| error.to_string())
    }

    /// A custom task, trained as the run file specifies.
    ///
    /// # Errors
    /// If a setting is not allowed.
    ///
    /// # Panics
    /// Never: a specification that was just resolved can be loaded.
    pub fn custom(name: &str, task: impl Task, run: &RunFile) -> Result<Self, SpecificationError> {
        Self::custom_program(name, task, ProgramFactory::sync(), run)
    }

    /// A custom task, trained by a custom program. The oracles know only the synchronous program, so such a run is not compared with them.
    ///
    /// # Errors
    /// If a setting is not allowed.
    ///
    /// # Panics
    /// Never: a specification that was just resolved can be loaded.
    pub fn custom_program(
        name: &str,
        task: impl Task,
        program: ProgramFactory,
        run: &RunFile,
    ) -> Result<Self, SpecificationError> {
        let task: Arc<dyn Task> = Arc::new(task);
        let specification = CustomSpecification::resolve(&with_digests(run), name, &*task, &program)?;
        let specification: Arc<[u8]> = specification.to_bytes()?.into();
        let loader = CustomLoader::new(name, task, program);
        let loaded = loader.load(&specification, None).expect("it was just resolved");
        Ok(Self { specification, data: None, loaded, integers: None, reference: None })
    }

    /// A sweep over a run file with this text, on a data file. `host` learns what any of the workers reads.
    ///
    /// # Errors
    /// If a setting is not allowed, or the data cannot be used.
    ///
    /// # Panics
    /// The text is no run file.
    pub fn sweep(
        text: &str,
        plan: &SweepPlan,
        (name, bytes): (&str, &[u8]),
        host: Arc<dyn SweepHost>,
    ) -> Result<Self, SweepError> {
        let run = RunFile::parse(text)?;
        let (specification, _) = SweepSpecification::resolve(&run, text, plan, name, &bytes.into())?;
        let specification: Arc<[u8]> = specification.to_bytes()?.into();
        let loader = SweepLoader { builtin: BuiltinLoader::default(), host };
        let reference = loader.data(&specification).expect("it was just resolved");
        let loaded = loader.load(&specification, Some(bytes.into())).expect("it was just resolved");
        Ok(Self { specification, data: Some(bytes.into()), loaded, integers: None, reference })
    }

    /// The same, where each member hands out its gradient in parts.
    #[must_use]
    pub fn in_parts(mut self) -> Self {
        self.loaded.task = Arc::new(InParts(self.loaded.task));
        self
    }

    /// Whether the oracles know the algorithm: synchronous data parallelism with sums of contributions.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        self.loaded.program.name() == SyncDataParallel::NAME && !self.loaded.config.combine.is_robust()
    }

    /// Whether a plain loop without communication gives the same result: [`Workload::is_sync`] holds, and no codec leaves anything out.
    #[must_use]
    pub fn is_exact_sync(&self) -> bool {
        let TrainingConfig { gradients, parameters, .. } = self.loaded.config;
        self.is_sync() && gradients.is_exact() && parameters.is_exact()
    }

    /// Whether a step is one optimizer step with the sum of contributions: of all of them, or of all but the late ones.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        let has_backup_workers =
            self.loaded.program.name() == BackupWorkers::NAME && !self.loaded.config.combine.is_robust();
        self.is_sync() || has_backup_workers
    }

    /// The loader that every peer uses.
    #[must_use]
    pub fn loader(&self) -> Arc<dyn Loader> {
        Arc::new(SharedLoader { loaded: self.loaded.clone(), reference: self.reference.clone() })
    }

    /// As [`Workload::loader`], but with another training program.
    #[must_use]
    pub fn loader_with(&self, training: TrainingConfig) -> Arc<dyn Loader> {
        let loaded = Loaded { config: training, ..self.loaded.clone() };
        Arc::new(SharedLoader { loaded, reference: self.reference.clone() })
    }

    /// As [`Workload::loader`], but with another task: for a peer whose code differs from that of the others.
    #[must_use]
    pub fn loader_of(&self, task: impl Task) -> Arc<dyn Loader> {
        let loaded = Loaded { task: Arc::new(task), ..self.loaded.clone() };
        Arc::new(SharedLoader { loaded, reference: self.reference.clone() })
    }
}

impl Workload {
    /// As [`Workload::loader`], but for a peer whose additions are not atomic, in a run of [`Ssp`].
    pub(crate) fn loader_by_chunk(&self) -> Arc<dyn Loader> {
        let spec = self.loaded.program.table_spec(&self.loaded).expect("the parameters are in a table");
        let spec = TableSpec { atomicity: Atomicity::Chunk, ..spec };
        let program =
            ProgramFactory::with_tables(move |_| spec.clone(), |loaded| Ssp::of(loaded, TableRule::Sum));
        let loaded = Loaded { program, ..self.loaded.clone() };
        Arc::new(SharedLoader { loaded, reference: self.reference.clone() })
    }
}

/// The run file with a digest after every step, which the invariants compare.
fn with_digests(run: &RunFile) -> RunFile {
    let mut run = run.clone();
    run.sync.digest_every = 1;
    run
}

/// Returns what was loaded before.
struct SharedLoader {
    loaded: Loaded,
    reference: Option<DataReference>,
}

impl Loader for SharedLoader {
    fn data(&self, _specification: &[u8]) -> Result<Option<DataReference>, String> {
        Ok(self.reference.clone())
    }

    fn load(&self, _specification: &[u8], _data: Option<DataBytes>) -> Result<Loaded, String> {
        Ok(self.loaded.clone())
    }
}
