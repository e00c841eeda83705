//! The loader of a program that takes part in sweeps, and in runs of built-in models.

use std::sync::Arc;

use peergrad_core::io::DataReference;
use peergrad_core::program::loader::{Loaded, Loader};
use peergrad_models::data::bytes::DataBytes;

use super::host::SweepHost;
use super::program::SweepInput;
use super::specification::SweepSpecification;
use crate::specification::{BuiltinLoader, SpecificationError};

/// Loads sweeps, and leaves everything else to another loader.
#[derive(Debug)]
pub struct SweepLoader {
    /// Loads runs that are no sweeps; its limits hold for sweeps as well.
    pub builtin: BuiltinLoader,
    /// The process around the worker of a sweep.
    pub host: Arc<dyn SweepHost>,
}

impl SweepLoader {
    fn parse(&self, specification: &[u8]) -> Result<SweepSpecification, SpecificationError> {
        let sweep = SweepSpecification::parse(specification)?;
        self.builtin.memory.check(sweep.memory_bytes())?;
        Ok(sweep)
    }
}

impl Loader for SweepLoader {
    fn data(&self, specification: &[u8]) -> Result<Option<DataReference>, String> {
        if !SweepSpecification::is_one(specification) {
            return self.builtin.data(specification);
        }
        let trial = self.parse(specification).map_err(|error| error.to_string())?.trial(0);
        // A trial alone is smaller than the sweep.
        self.builtin.data(&trial.to_bytes().map_err(|error| error.to_string())?)
    }

    fn load(&self, specification: &[u8], data: Option<DataBytes>) -> Result<Loaded, String> {
        if !SweepSpecification::is_one(specification) {
            return self.builtin.load(specification, data);
        }
        let data = data.ok_or("the sweep needs its data file, which is missing")?;
        let specification = Arc::new(self.parse(specification).map_err(|error| error.to_string())?);
        let BuiltinLoader { memory, deep } = self.builtin.clone();
        let input = SweepInput { specification, data, memory, deep, host: Arc::clone(&self.host) };
        input.load().map_err(|error| error.to_string())
    }
}
