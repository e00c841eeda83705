//! Specifications of custom tasks: model and data are code, so the peers agree on the code's name and on how it is trained.
//!
//! Peers with different binaries would train different models. So the specification names the task and the program that trains it,
//! and has a digest of the task's manifest and the number of its samples. Every peer compares these with its own.

use std::sync::Arc;

use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader};
use peergrad_core::program::programs::sync::SyncDataParallel;
use peergrad_core::program::{Program as _, ProgramFactory};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;
use peergrad_protocol::wire;
use serde::{Deserialize, Serialize};

use super::memory::MemoryLimit;
use super::resolve::{check_kind, resolve_training};
use super::run_file::{DealingName, ModelSection};
use super::{
    Algorithm, RunFile, Specification, SpecificationError, TrainingSettings, VERSION, compression, groups,
    within,
};

/// What the peers of a run with a custom task agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomSpecification {
    /// [`VERSION`].
    pub version: u32,
    /// The task's name.
    pub task: String,
    /// The name of the program that trains it.
    pub program: String,
    /// Digest of the task's manifest, in hexadecimal.
    pub manifest: String,
    /// The number of training samples.
    pub samples: u32,
    /// How it is trained.
    pub training: TrainingSettings,
    /// The settings of the task's own.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub settings: toml::Table,
}

impl CustomSpecification {
    /// Resolves how `program` trains `task`.
    ///
    /// # Errors
    /// A setting is not allowed, or concerns the data or the model, which are part of the binary.
    pub fn resolve(
        run: &RunFile,
        name: &str,
        task: &dyn Task,
        program: &ProgramFactory,
    ) -> Result<Self, SpecificationError> {
        let not_allowed = |key, is_given: bool| {
            let allowed = "nothing, because this binary brings its own model and data".to_owned();
            if is_given {
                Err(SpecificationError::Setting { key, found: "given".to_owned(), allowed })
            } else {
                Ok(())
            }
        };
        not_allowed("data", run.data.is_some())?;
        not_allowed("model", run.model != ModelSection::default())?;
        let parameters = task.manifest().parameter_count();
        if !program.has_tables() {
            within("parameters", parameters, 1.., "at least one parameter to train")?;
        }
        let samples = task.sample_count();
        let mut training = resolve_training(run, u64::from(samples))?;
        let brings_program = program.name() != SyncDataParallel::NAME;
        if brings_program && training.algorithm != Algorithm::Sync {
            return Err(SpecificationError::Setting {
                key: "sync.kind",
                found: "given".to_owned(),
                allowed: "nothing, because this binary brings its own program".to_owned(),
            });
        }
        if brings_program && run.sync.dealing.is_none() {
            // Its contributions need not be weighted by their samples.
            training.dealing = DealingName::Even;
        }
        training.evaluation.check_held_out(u64::from(task.held_out_count()))?;
        compression::check_program(&training, program)?;
        groups::check_program(&training, program)?;
        training.training(&task.manifest())?;
        let program = launched(program, &training).name().to_owned();
        let manifest = manifest_digest(task);
        let settings = run.settings.clone();
        let specification =
            Self { version: VERSION, task: name.to_owned(), program, manifest, samples, training, settings };
        specification.check()?;
        task.configure(&specification.settings_text()).map_err(|allowed| SpecificationError::Setting {
            key: "settings",
            found: "given".to_owned(),
            allowed,
        })?;
        Ok(specification)
    }

    /// The bytes that are hashed and sent.
    ///
    /// # Errors
    /// The settings cannot be written as text, which does not happen after a check.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SpecificationError> {
        let text = toml::to_string(self).map_err(|error| SpecificationError::Foreign(error.to_string()))?;
        Ok(text.into_bytes())
    }

    /// Reads and checks bytes that [`to_bytes`](Self::to_bytes) made, here or at another peer.
    ///
    /// # Errors
    /// The bytes are not such a specification, or a value is out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, SpecificationError> {
        let foreign = |error: &dyn std::fmt::Display| SpecificationError::Foreign(error.to_string());
        if bytes.len() > SPECIFICATION_BYTES_MAX {
            return Err(SpecificationError::TooLarge { found: bytes.len() });
        }
        let text = std::str::from_utf8(bytes).map_err(|error| foreign(&error))?;
        let specification: Self = toml::from_str(text).map_err(|error| foreign(&error.message()))?;
        specification.check()?;
        Ok(specification)
    }

    /// The settings of the task's own as TOML.
    fn settings_text(&self) -> String {
        toml::to_string(&self.settings).expect("it was read from TOML")
    }

    fn check(&self) -> Result<(), SpecificationError> {
        within("version", self.version, VERSION..=VERSION, "1")?;
        within("samples", self.samples, 1.., "at least one training sample")?;
        check_kind(false, matches!(self.training.algorithm, Algorithm::Lda { .. }))?;
        self.training.check()
    }
}

fn manifest_digest(task: &dyn Task) -> String {
    ContentDigest::of(&wire::encode_record(&task.manifest())).to_string()
}

/// The program that trains: the binary's own, or else the one that `[sync]` selects.
fn launched(program: &ProgramFactory, training: &TrainingSettings) -> ProgramFactory {
    if program.name() == SyncDataParallel::NAME { training.algorithm.launch() } else { program.clone() }
}

/// Loads the one task of a binary, and the program that trains it.
pub struct CustomLoader {
    name: String,
    task: Arc<dyn Task>,
    program: ProgramFactory,
    memory: MemoryLimit,
}

impl CustomLoader {
    /// A loader of `task`, which peers know as `name`. `program` trains it; if that is the default program, `[sync]` selects another.
    #[must_use]
    pub fn new(name: &str, task: Arc<dyn Task>, program: ProgramFactory) -> Self {
        Self { name: name.to_owned(), task, program, memory: MemoryLimit::default() }
    }

    /// The same loader, for a peer at which a run may take so much memory.
    #[must_use]
    pub fn within(self, memory: MemoryLimit) -> Self {
        Self { memory, ..self }
    }

    /// Checks that this binary has the task and the program of a specification.
    ///
    /// # Errors
    /// What differs, as text.
    fn compare(&self, theirs: &CustomSpecification) -> Result<(), String> {
        let launched = launched(&self.program, &theirs.training);
        let (task, program, ours) = (&theirs.task, &theirs.program, launched.name());
        if *task != self.name {
            return Err(format!(
                "this run trains the task `{task}`, but this binary has the task `{}`: join with the binary that founded the run",
                self.name
            ));
        }
        if program != ours {
            return Err(format!(
                "this run trains `{task}` with the program `{program}`, but this binary uses `{ours}`: join with the binary that founded the run"
            ));
        }
        if theirs.manifest != manifest_digest(&*self.task) || theirs.samples != self.task.sample_count() {
            return Err(format!(
                "this run trains a different version of the task `{task}`, with different shapes or another number of samples: use the same build on all machines"
            ));
        }
        Ok(())
    }
}

impl Loader for CustomLoader {
    fn data(&self, _specification: &[u8]) -> Result<Option<DataReference>, String> {
        Ok(None)
    }

    fn load(&self, specification: &[u8], _data: Option<DataBytes>) -> Result<Loaded, String> {
        if Specification::parse(specification).is_ok() {
            return Err("this run trains a built-in model: join it with `peer`".to_owned());
        }
        let specification = CustomSpecification::parse(specification).map_err(|error| error.to_string())?;
        self.compare(&specification)?;
        let parameters = self.task.manifest().parameter_count() as u64;
        let needed = specification.training.state_bytes(parameters);
        self.memory.check(needed).map_err(|error| error.to_string())?;
        let config = specification.training.training(&self.task.manifest());
        let config = config.map_err(|error| error.to_string())?;
        let settings = specification.settings_text();
        self.task.configure(&settings)?;
        let loaded = Loaded { settings: settings.into(), ..Loaded::new(Arc::clone(&self.task), config) };
        Ok(Loaded { program: launched(&self.program, &specification.training), ..loaded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peergrad_core::program::context::{Context, Interrupted};
    use peergrad_core::program::{Flow, Program};
    use peergrad_models::optimizer::{ParameterGroups, Treatment};
    use peergrad_models::task::Evaluation;
    use peergrad_protocol::manifest::Manifest;

    struct Line(u32);

    impl Task for Line {
        fn manifest(&self) -> Manifest {
            Manifest::new([("slope", &[self.0][..])])
        }
        fn sample_count(&self) -> u32 {
            100
        }
        fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
            0.0
        }
        fn evaluate(&self, _parameters: &[f32]) -> Evaluation {
            Evaluation { samples: 0, loss: 0.0, accuracy: None }
        }
    }

    /// A task with a key of its own.
    #[derive(Default)]
    struct Tuned(std::sync::OnceLock<String>);

    impl Task for Tuned {
        fn manifest(&self) -> Manifest {
            Line(2).manifest()
        }
        fn sample_count(&self) -> u32 {
            100
        }
        fn configure(&self, settings: &str) -> Result<(), String> {
            if settings.contains("heads = 0") {
                return Err("at least one head".to_owned());
            }
            self.0.set(settings.to_owned()).map_err(|_| "told twice".to_owned())
        }
        fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
            0.0
        }
        fn evaluate(&self, _parameters: &[f32]) -> Evaluation {
            Evaluation { samples: 0, loss: 0.0, accuracy: None }
        }
    }

    #[test]
    fn settings_of_the_task_reach_all_peers() {
        let run =
            RunFile::parse("epochs = 3\n[settings]\nheads = 4\n[settings.names]\nlast = \"norm\"").unwrap();
        let of = |task: &dyn Task| CustomSpecification::resolve(&run, "line", task, &ProgramFactory::sync());
        let founded = of(&Tuned::default()).unwrap().to_bytes().unwrap();
        let joiner = Arc::new(Tuned::default());
        let loader = CustomLoader::new("line", Arc::clone(&joiner) as Arc<dyn Task>, ProgramFactory::sync());
        let loaded = loader.load(&founded, None).unwrap();
        let settings: toml::Table = toml::from_str(&loaded.settings).unwrap();
        assert_eq!(
            (settings["heads"].as_integer(), settings["names"]["last"].as_str()),
            (Some(4), Some("norm"))
        );
        assert_eq!(joiner.0.get().map(String::as_str), Some(&*loaded.settings));
        let error = of(&Line(2)).unwrap_err().to_string();
        assert!(error.contains("settings") && error.contains("no settings of its own"), "{error}");
        let run = RunFile::parse("[settings]\nheads = 0").unwrap();
        let tuned = Tuned::default();
        let error = CustomSpecification::resolve(&run, "line", &tuned, &ProgramFactory::sync()).unwrap_err();
        assert!(error.to_string().contains("at least one head"), "{error}");
        let plain = String::from_utf8(bytes()).unwrap();
        assert!(!plain.contains("settings"), "{plain}");
    }

    struct Idle;

    impl Program for Idle {
        const NAME: &'static str = "idle";
        async fn round(&mut self, _context: &Context) -> Result<Flow, Interrupted> {
            Ok(Flow::Break(()))
        }
    }

    fn bytes() -> Vec<u8> {
        let run = RunFile::parse("epochs = 3").unwrap();
        resolve(&run, &Line(2)).unwrap().to_bytes().unwrap()
    }

    fn resolve(run: &RunFile, task: &Line) -> Result<CustomSpecification, SpecificationError> {
        CustomSpecification::resolve(run, "line", task, &ProgramFactory::sync())
    }

    #[test]
    fn only_the_same_binary_loads_the_task() {
        let load =
            |name: &str, task, program| CustomLoader::new(name, Arc::new(task), program).load(&bytes(), None);
        assert_eq!(load("line", Line(2), ProgramFactory::sync()).unwrap().config.epochs, 3);
        for (loaded, words) in [
            (load("line", Line(3), ProgramFactory::sync()), "a different version of the task `line`"),
            (
                load("curve", Line(2), ProgramFactory::sync()),
                "trains the task `line`, but this binary has the task `curve`",
            ),
            (
                load("line", Line(2), ProgramFactory::new(|_| Idle)),
                "the program `sync`, but this binary uses `idle`",
            ),
        ] {
            let error = loaded.err().unwrap();
            assert!(error.contains(words), "{error}");
        }
        let small = CustomLoader::new("line", Arc::new(Line(2)), ProgramFactory::sync());
        let error = small.within(MemoryLimit::new(Some(1))).load(&bytes(), None).err().unwrap();
        assert!(error.contains("--max-memory"), "{error}");
        let stock = crate::specification::BuiltinLoader::default().data(&bytes()).unwrap_err();
        assert!(stock.contains("`line`") && stock.contains("the program that founded the run"), "{stock}");
    }

    #[test]
    fn settings_of_data_and_model_are_rejected() {
        for text in ["[data]\nfile = \"digits\"", "[model]\nkind = \"softmax\""] {
            let run = RunFile::parse(text).unwrap();
            let error = resolve(&run, &Line(2)).unwrap_err().to_string();
            assert!(error.contains("brings its own"), "{error}");
        }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
    fn groups_are_found_among_the_tensors_of_the_task() {
        let with_group = |tensor: &str| {
            let text = format!("[[optimizer.groups]]\ntensors = [\"{tensor}\"]\nrate_factor = 0.5");
            RunFile::parse(&text).unwrap()
        };
        let bytes = resolve(&with_group("sl*"), &Line(2)).unwrap().to_bytes().unwrap();
        let loader = CustomLoader::new("line", Arc::new(Line(2)), ProgramFactory::sync());
        let slow = Treatment::Trained { weight_decay: None, rate_factor: 0.5 };
        let expected = ParameterGroups::new([(slow, vec![0..2])]);
        assert_eq!(loader.load(&bytes, None).unwrap().config.groups, expected);
        let error = resolve(&with_group("slop"), &Line(2)).unwrap_err().to_string();
        assert!(error.contains("\"slop\" in group 1") && error.ends_with("matches one: slope"), "{error}");
        let (slope, idle) = (with_group("slope"), ProgramFactory::new(|_| Idle));
        let error = CustomSpecification::resolve(&slope, "line", &Line(2), &idle).unwrap_err().to_string();
        assert!(error.contains("the program `idle`, which does not declare"), "{error}");
    }

    #[test]
    fn a_task_without_parameters_is_rejected() {
        let run = RunFile::parse("epochs = 3").unwrap();
        let error = resolve(&run, &Line(0)).unwrap_err().to_string();
        assert!(error.contains("at least one parameter"), "{error}");
    }
}
