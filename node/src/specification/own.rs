//! Specifications of tasks that a program brings itself: model and data are code, so what is agreed on is which code,
//! and how it is trained.
//!
//! Peers that run different versions of a program would train different things; so the specification names the task, and
//! carries the digest of its manifest and the number of its samples, which every peer compares with its own.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;
use peergrad_protocol::wire;
use serde::{Deserialize, Serialize};

use super::resolve::resolve_training;
use super::run_file::ModelSection;
use super::{RunFile, Specification, SpecificationError, TrainingSettings, VERSION, within};
use crate::io::DataReference;
use crate::loader::{Loaded, Loader};
use crate::task::Task;

/// What the peers of a run of an own task agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnSpecification {
    /// [`VERSION`].
    pub version: u32,
    /// The task's name.
    pub task: String,
    /// Digest of the shapes of its parameters, in hexadecimal.
    pub manifest: String,
    /// Training samples.
    pub samples: u32,
    /// How it is trained.
    pub training: TrainingSettings,
}

impl OwnSpecification {
    /// Settles how `task` is trained.
    ///
    /// # Errors
    /// If a setting is out of bounds, or speaks of data or a model, which the task brings itself.
    pub fn resolve(run: &RunFile, name: &str, task: &dyn Task) -> Result<Self, SpecificationError> {
        let brings_its_own = |key, is_given: bool| {
            let allowed = "nothing: this program brings its own model and data".to_owned();
            if is_given {
                Err(SpecificationError::Setting { key, found: "given".to_owned(), allowed })
            } else {
                Ok(())
            }
        };
        brings_its_own("data", run.data.is_some())?;
        brings_its_own("model", run.model != ModelSection::default())?;
        let parameters = task.manifest().parameter_count();
        within("parameters", parameters, 1.., "at least one parameter to train")?;
        let samples = task.sample_count();
        let training = resolve_training(run, u64::from(samples))?;
        let manifest = manifest_digest(task);
        let specification = Self { version: VERSION, task: name.to_owned(), manifest, samples, training };
        specification.check()?;
        Ok(specification)
    }

    /// The bytes that are hashed and sent.
    ///
    /// # Errors
    /// If they have no text form; settings that were checked do.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SpecificationError> {
        let text = toml::to_string(self).map_err(|error| SpecificationError::Foreign(error.to_string()))?;
        Ok(text.into_bytes())
    }

    /// Reads and checks bytes that [`to_bytes`](Self::to_bytes) made, here or at another peer.
    ///
    /// # Errors
    /// If they are none.
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

    fn check(&self) -> Result<(), SpecificationError> {
        within("version", self.version, VERSION..=VERSION, "1")?;
        within("samples", self.samples, 1.., "at least one training sample")?;
        self.training.check()
    }

    /// The task that a specification names, if it is one of a program's own.
    #[must_use]
    pub fn task_of(bytes: &[u8]) -> Option<String> {
        Self::parse(bytes).ok().map(|specification| specification.task)
    }
}

fn manifest_digest(task: &dyn Task) -> String {
    ContentDigest::of(&wire::encode_record(&task.manifest())).to_string()
}

/// Hands out the one task that a program brings.
pub struct OwnLoader {
    name: String,
    task: Arc<dyn Task>,
}

impl OwnLoader {
    /// A loader of `task`, known to peers as `name`.
    #[must_use]
    pub fn new(name: &str, task: Arc<dyn Task>) -> Self {
        Self { name: name.to_owned(), task }
    }
}

impl Loader for OwnLoader {
    fn data(&self, _specification: &[u8]) -> Result<Option<DataReference>, String> {
        Ok(None)
    }

    fn load(&self, specification: &[u8], _data: Option<Arc<[u8]>>) -> Result<Loaded, String> {
        if Specification::parse(specification).is_ok() {
            return Err("this run trains a built-in model: join it with `peer`".to_owned());
        }
        let specification = OwnSpecification::parse(specification).map_err(|error| error.to_string())?;
        let manifest = self.task.manifest();
        let is_same = specification.task == self.name
            && specification.manifest == manifest_digest(&*self.task)
            && specification.samples == self.task.sample_count();
        if !is_same {
            return Err(format!(
                "this run trains another task, or another version of it (`{}`): use the same program on all machines",
                specification.task
            ));
        }
        Ok(Loaded { task: Arc::clone(&self.task), manifest, training: specification.training.training() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Evaluation;
    use peergrad_protocol::manifest::Manifest;

    struct Line(u32);

    impl Task for Line {
        fn manifest(&self) -> Manifest {
            Manifest::new([("slope", &[self.0][..])])
        }
        fn initial(&self, _seed: u64, parameters: &mut [f32]) {
            parameters.fill(0.0);
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

    fn bytes() -> Vec<u8> {
        OwnSpecification::resolve(&RunFile::parse("passes = 3").unwrap(), "line", &Line(2))
            .unwrap()
            .to_bytes()
            .unwrap()
    }

    #[test]
    fn the_same_program_loads_it_and_others_say_why_not() {
        let load = |name: &str, task| OwnLoader::new(name, Arc::new(task)).load(&bytes(), None);
        assert_eq!(load("line", Line(2)).unwrap().training.passes, 3);
        for loaded in [load("line", Line(3)), load("curve", Line(2))] {
            assert!(loaded.err().unwrap().contains("`line`"));
        }
        let stock = crate::specification::BuiltinLoader.data(&bytes()).unwrap_err();
        assert!(stock.contains("`line`") && stock.contains("join with the program"), "{stock}");
    }

    #[test]
    fn a_task_brings_its_own_model_and_data() {
        for text in ["[data]\nfile = \"digits\"", "[model]\nkind = \"softmax\""] {
            let run = RunFile::parse(text).unwrap();
            let error = OwnSpecification::resolve(&run, "line", &Line(2)).unwrap_err().to_string();
            assert!(error.contains("brings its own"), "{error}");
        }
    }

    #[test]
    fn a_task_without_parameters_is_refused() {
        let run = RunFile::parse("passes = 3").unwrap();
        let error = OwnSpecification::resolve(&run, "line", &Line(0)).unwrap_err().to_string();
        assert!(error.contains("at least one parameter"), "{error}");
    }
}
