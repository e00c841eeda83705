//! The workload: what a simulated swarm trains, as its peers get it: a specification's bytes, perhaps a data file, and a
//! loader.
//!
//! The specification is the real one, resolved from a run file as `peer start` does it. Only the loading is shared: a
//! hundred simulated peers read the data once.

use std::sync::Arc;

use peergrad_config::specification::custom::{CustomLoader, CustomSpecification};
use peergrad_config::specification::run_file::DataSection;
use peergrad_config::specification::{BuiltinLoader, RunFile, SpecificationError, resolve};
use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader, TrainingConfig};
use peergrad_core::program::programs::backup_workers::BackupWorkers;
use peergrad_core::program::programs::sync::SyncDataParallel;
use peergrad_core::program::{Program, ProgramFactory};
use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::embedded::{DIGITS, embedded};
use peergrad_models::task::Task;
use peergrad_models::task::clicks::SyntheticClicks;
use peergrad_models::task::logistic::Logistic;

use crate::task::{Characters, Integers, Squares};

/// Features of a made-up sample.
const CLICKS_ENTRIES: usize = 40;

/// What is trained.
#[derive(Clone)]
pub struct Workload {
    /// What the run is.
    pub specification: Arc<[u8]>,
    /// The data file, at every peer.
    pub data: Option<Arc<[u8]>>,
    /// What the specification becomes.
    pub loaded: Loaded,
    /// The task, if it is the one that moves integers.
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
    /// Never: what was just resolved can be loaded.
    pub fn data_file(run: &RunFile, name: &str, bytes: &[u8]) -> Result<Self, SpecificationError> {
        let specification = resolve(&with_digests(run), name, bytes)?;
        let loaded = specification.load(bytes)?;
        let specification: Arc<[u8]> = specification.to_bytes()?.into();
        let reference = BuiltinLoader.data(&specification).expect("it was just resolved");
        Ok(Self { specification, data: Some(bytes.into()), loaded, integers: None, reference })
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

    /// Logistic regression on made-up samples, which have few of so many features; a tenth as many more are held out.
    ///
    /// # Errors
    /// If a setting is not allowed.
    pub fn clicks(run: &RunFile, features: usize, samples: u32) -> Result<Self, SpecificationError> {
        let all =
            SyntheticClicks::new(features, samples + samples / 10, CLICKS_ENTRIES.min(features), run.seed);
        Self::custom("clicks", Logistic::new(all, samples), run)
    }

    /// A model of the first `samples` characters of a text, gzipped or not.
    ///
    /// # Errors
    /// In words: a setting is not allowed, or the text is no use.
    pub fn text(run: &RunFile, name: &str, bytes: &[u8], samples: u32) -> Result<Self, String> {
        let text = unpack(name, bytes).map_err(|error| error.to_string())?;
        let task = Characters::new(&text, samples as usize).map_err(|words| format!("{name}: {words}"))?;
        let run = RunFile { data: None, ..run.clone() };
        Self::custom("characters", task, &run).map_err(|error| error.to_string())
    }

    /// A task of one's own, trained as the run file says.
    ///
    /// # Errors
    /// If a setting is not allowed.
    ///
    /// # Panics
    /// Never: what was just resolved can be loaded.
    pub fn custom(name: &str, task: impl Task, run: &RunFile) -> Result<Self, SpecificationError> {
        Self::custom_program(name, task, ProgramFactory::sync(), run)
    }

    /// A task of one's own, trained by a program of one's own. What a program computes only its author knows: such a run
    /// is not compared with the oracles, which know the ring.
    ///
    /// # Errors
    /// If a setting is not allowed.
    ///
    /// # Panics
    /// Never: what was just resolved can be loaded.
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

    /// Whether the oracles know how it is trained: by synchronous data parallelism, and with sums of contributions.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        self.loaded.program.name() == SyncDataParallel::NAME && !self.loaded.config.combine.is_robust()
    }

    /// Whether a plain loop, in which nothing travels, comes to the same: as [`Workload::is_sync`], and no codec leaves anything out.
    #[must_use]
    pub fn is_exact_sync(&self) -> bool {
        let TrainingConfig { gradients, parameters, .. } = self.loaded.config;
        self.is_sync() && gradients.is_exact() && parameters.is_exact()
    }

    /// Whether a step is the optimizer's, with the sum of contributions: of all of them, or without those that were too late.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        let has_backup_workers =
            self.loaded.program.name() == BackupWorkers::NAME && !self.loaded.config.combine.is_robust();
        self.is_sync() || has_backup_workers
    }

    /// What every peer's loader hands out.
    #[must_use]
    pub fn loader(&self) -> Arc<dyn Loader> {
        Arc::new(SharedLoader { loaded: self.loaded.clone(), reference: self.reference.clone() })
    }

    /// As [`Workload::loader`], but trained otherwise.
    #[must_use]
    pub fn loader_with(&self, training: TrainingConfig) -> Arc<dyn Loader> {
        let loaded = Loaded { config: training, ..self.loaded.clone() };
        Arc::new(SharedLoader { loaded, reference: self.reference.clone() })
    }

    /// As [`Workload::loader`], but with another task behind it: for a peer whose code is not the one of the others.
    #[must_use]
    pub fn loader_of(&self, task: impl Task) -> Arc<dyn Loader> {
        let loaded = Loaded { task: Arc::new(task), ..self.loaded.clone() };
        Arc::new(SharedLoader { loaded, reference: self.reference.clone() })
    }
}

/// Digests after every step are what the invariants compare.
fn with_digests(run: &RunFile) -> RunFile {
    let mut run = run.clone();
    run.sync.digest_every = run.sync.digest_every.max(1);
    run
}

/// Hands out what was loaded before.
struct SharedLoader {
    loaded: Loaded,
    reference: Option<DataReference>,
}

impl Loader for SharedLoader {
    fn data(&self, _specification: &[u8]) -> Result<Option<DataReference>, String> {
        Ok(self.reference.clone())
    }

    fn load(&self, _specification: &[u8], _data: Option<Arc<[u8]>>) -> Result<Loaded, String> {
        Ok(self.loaded.clone())
    }
}
