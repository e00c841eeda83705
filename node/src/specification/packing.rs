//! Packing: how precisely gradients and parameters travel, as it is written in files.

use std::num::NonZeroU32;

use peergrad_collectives::codec::{Codec, TopK, Values};
use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use super::run_file::{PackingName, SyncSection};
use super::{Route, SpecificationError, TrainingSettings, within};

/// How elements travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "codec", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Packing {
    /// As they are.
    #[default]
    F32,
    /// The upper half of each.
    Bf16,
    /// In half precision.
    F16,
    /// A byte each, in blocks with a scale.
    Int8,
    /// Only the largest.
    TopK {
        /// Of so many elements one.
        one_in: u32,
    },
}

impl Packing {
    fn new(name: PackingName, one_in: u32) -> Self {
        match name {
            PackingName::F32 => Self::F32,
            PackingName::Bf16 => Self::Bf16,
            PackingName::F16 => Self::F16,
            PackingName::Int8 => Self::Int8,
            PackingName::TopK => Self::TopK { one_in },
        }
    }

    /// Whether something is left out.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        *self != Self::F32
    }
}

impl From<Packing> for Codec {
    fn from(packing: Packing) -> Self {
        match packing {
            Packing::F32 => Self::F32,
            Packing::Bf16 => Self::Bf16,
            Packing::F16 => Self::F16,
            Packing::Int8 => Self::Int8,
            Packing::TopK { one_in } => {
                let one_in = NonZeroU32::new(one_in).unwrap_or(NonZeroU32::MIN);
                Self::TopK(TopK { one_in, values: Values::Bf16 })
            }
        }
    }
}

/// What `[sync]` says of gradients and of parameters.
///
/// # Errors
/// `one_in` does not go with the rest.
pub(super) fn resolve(section: &SyncSection) -> Result<(Packing, Packing), SpecificationError> {
    if section.one_in.is_some() && section.gradients != PackingName::TopK {
        let allowed = "nothing but with gradients = \"top-k\"".to_owned();
        return Err(SpecificationError::Setting { key: "sync.one_in", found: "given".to_owned(), allowed });
    }
    let one_in = section.one_in.unwrap_or(ONE_IN_DEFAULT);
    Ok((Packing::new(section.gradients, one_in), Packing::new(section.parameters, one_in)))
}

/// An error unless it goes with the rest.
pub(super) fn check(settings: &TrainingSettings) -> Result<(), SpecificationError> {
    let TrainingSettings { gradients, parameters, topology, algorithm, .. } = settings;
    let error = |key, found: &str, allowed: &str| {
        Err(SpecificationError::Setting { key, found: found.to_owned(), allowed: allowed.to_owned() })
    };
    if let Packing::TopK { one_in } = gradients {
        within("sync.one_in", *one_in, 2..=100_000, "2 to 100000")?;
    }
    if let Packing::TopK { .. } = parameters {
        let allowed = "\"f32\", \"bf16\", \"f16\" or \"int8\": everybody needs all parameters";
        return error("sync.parameters", "\"top-k\"", allowed);
    }
    let mixes = matches!(algorithm, Algorithm::Local { .. } | Algorithm::DsSync { .. });
    if mixes && gradients.is_lossy() {
        return error(
            "sync.gradients",
            "lossy",
            "\"f32\" where parameters are averaged: `kind` is \"local\" or \"ds-sync\"",
        );
    }
    if mixes && parameters.is_lossy() {
        return error(
            "sync.parameters",
            "lossy",
            "\"f32\" where parameters are averaged: `kind` is \"local\" or \"ds-sync\"",
        );
    }
    if gradients.is_lossy() && *topology == Route::Ring {
        let allowed = "\"direct\" with lossy gradients: a ring would round sums again at each peer";
        return error("sync.topology", "\"ring\"", allowed);
    }
    Ok(())
}

/// As in the paper that top-k is best known from, less what its warm-up makes up for: one in a hundred.
const ONE_IN_DEFAULT: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::RunFile;
    use crate::specification::resolve::resolve_training;

    fn resolve(sync: &str) -> Result<TrainingSettings, SpecificationError> {
        resolve_training(&RunFile::parse(&format!("[sync]\n{sync}")).unwrap(), 100)
    }

    #[test]
    fn lossy_gradients_go_straight_to_the_owners() {
        let settings = resolve("gradients = \"int8\"\nparameters = \"bf16\"").unwrap();
        assert_eq!((settings.gradients, settings.parameters), (Packing::Int8, Packing::Bf16));
        assert_eq!(settings.topology, Route::Direct);
        assert_eq!(resolve("parameters = \"bf16\"").unwrap().topology, Route::Ring);
        let training = resolve("gradients = \"top-k\"").unwrap().training();
        assert_eq!((training.gradients.encoded_len(1000) < 50, training.sums()), (true, Codec::Bf16));
        assert_eq!(resolve("").unwrap().training().sums(), Codec::F32);
    }

    #[test]
    fn what_would_lose_too_much_is_refused() {
        for (text, words) in [
            ("gradients = \"int8\"\ntopology = \"ring\"", "`sync.topology` is \"ring\"; allowed: \"direct\""),
            ("parameters = \"top-k\"", "everybody needs all parameters"),
            ("gradients = \"bf16\"\nkind = \"local\"", "`sync.gradients` is lossy"),
            ("parameters = \"bf16\"\nkind = \"ds-sync\"", "`sync.parameters` is lossy"),
            ("one_in = 10", "nothing but with gradients = \"top-k\""),
            ("gradients = \"top-k\"\none_in = 1", "`sync.one_in` is 1; allowed: 2 to 100000"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
