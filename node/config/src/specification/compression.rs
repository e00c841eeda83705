//! Compression: the encoding of gradients and parameters on the wire, as written in files.

use std::num::NonZeroU32;

use peergrad_collectives::codec::{Codec, TopK, Values};
use peergrad_core::program::ProgramFactory;
use serde::{Deserialize, Serialize};

use super::algorithm::{Aggregation, Algorithm};
use super::run_file::{CompressionName, SyncSection};
use super::{SpecificationError, TopologyName, TrainingSettings, within};

/// The encoding of elements on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "codec", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Compression {
    /// 32-bit floats, unchanged.
    #[default]
    F32,
    /// bfloat16: the upper half of each 32-bit float.
    Bf16,
    /// Half precision.
    F16,
    /// One byte per element, in blocks with a common scale.
    Int8,
    /// Only the largest elements.
    TopK {
        /// One of this many elements is sent.
        one_in: u32,
    },
}

impl Compression {
    fn new(name: CompressionName, one_in: u32) -> Self {
        match name {
            CompressionName::F32 => Self::F32,
            CompressionName::Bf16 => Self::Bf16,
            CompressionName::F16 => Self::F16,
            CompressionName::Int8 => Self::Int8,
            CompressionName::TopK => Self::TopK { one_in },
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::F32 => "\"f32\"",
            Self::Bf16 => "\"bf16\"",
            Self::F16 => "\"f16\"",
            Self::Int8 => "\"int8\"",
            Self::TopK { .. } => "\"top-k\"",
        }
    }

    /// Whether the encoding loses precision.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        *self != Self::F32
    }
}

impl From<Compression> for Codec {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::F32 => Self::F32,
            Compression::Bf16 => Self::Bf16,
            Compression::F16 => Self::F16,
            Compression::Int8 => Self::Int8,
            Compression::TopK { one_in } => {
                let one_in = NonZeroU32::new(one_in).unwrap_or(NonZeroU32::MIN);
                Self::TopK(TopK { one_in, values: Values::Bf16 })
            }
        }
    }
}

/// Resolves the compression of gradients and of parameters in `[sync]`.
///
/// # Errors
/// `one_in` is given without `gradients = "top-k"`.
pub(super) fn resolve(section: &SyncSection) -> Result<(Compression, Compression), SpecificationError> {
    if section.one_in.is_some() && section.gradients != CompressionName::TopK {
        let allowed = "only with gradients = \"top-k\"".to_owned();
        return Err(SpecificationError::Setting { key: "sync.one_in", found: "given".to_owned(), allowed });
    }
    let one_in = section.one_in.unwrap_or(ONE_IN_DEFAULT);
    Ok((Compression::new(section.gradients, one_in), Compression::new(section.parameters, one_in)))
}

/// Checks that the other settings support the compression.
///
/// # Errors
/// They do not.
pub(super) fn check(settings: &TrainingSettings) -> Result<(), SpecificationError> {
    let TrainingSettings { gradients, parameters, topology, algorithm, combine, .. } = settings;
    let error = |key, found: &str, allowed: &str| {
        Err(SpecificationError::Setting { key, found: found.to_owned(), allowed: allowed.to_owned() })
    };
    if let Compression::TopK { one_in } = gradients {
        within("sync.one_in", *one_in, 2..=100_000, "2 to 100000")?;
    }
    if let Compression::TopK { .. } = parameters {
        let allowed = "\"f32\", \"bf16\", \"f16\" or \"int8\": every member needs all parameters";
        return error("sync.parameters", "\"top-k\"", allowed);
    }
    if let Algorithm::Local { .. } | Algorithm::DsSync { .. } = algorithm {
        let allowed = "\"f32\" if parameters are averaged, as with `kind` \"local\" or \"ds-sync\"";
        for (key, compression) in [("sync.gradients", gradients), ("sync.parameters", parameters)] {
            if compression.is_lossy() {
                return error(key, compression.name(), allowed);
            }
        }
    }
    if algorithm.has_tables() {
        let allowed = "\"f32\" with this kind: additions to a table are sent uncompressed";
        for (key, compression) in [("sync.gradients", gradients), ("sync.parameters", parameters)] {
            if compression.is_lossy() {
                return error(key, compression.name(), allowed);
            }
        }
    }
    if gradients.is_lossy() && *topology == TopologyName::Ring {
        let allowed =
            "\"auto\" or \"direct\" with lossy gradients: a ring would round the partial sums at each peer";
        return error("sync.topology", "\"ring\"", allowed);
    }
    if let (Compression::TopK { .. }, Aggregation::TrimmedMean { .. } | Aggregation::Median) =
        (gradients, combine)
    {
        let allowed = "\"mean\" with gradients = \"top-k\": most contributions to an element are 0";
        return error("sync.combine", "a robust mean", allowed);
    }
    Ok(())
}

/// Checks that a custom program supports the compression and the partition policy.
///
/// # Errors
/// It does not.
pub(super) fn check_program(
    settings: &TrainingSettings,
    program: &ProgramFactory,
) -> Result<(), SpecificationError> {
    let TrainingSettings { gradients, parameters, .. } = settings;
    let refuse = |key, compression: &Compression, why: &str| {
        let (found, allowed) = (compression.name().to_owned(), format!("\"f32\": {why}"));
        Err(SpecificationError::Setting { key, found, allowed })
    };
    if program.has_tables() && settings.policy.allows_forks() {
        return Err(SpecificationError::Setting {
            key: "partition.policy",
            found: "given".to_owned(),
            allowed: "\"majority\" with a program that has tables".to_owned(),
        });
    }
    if program.has_tables() && (gradients.is_lossy() || parameters.is_lossy()) {
        return refuse("sync.gradients", gradients, "additions to a table are sent uncompressed");
    }
    if program.has_local_parameters() && gradients.is_lossy() {
        return refuse("sync.gradients", gradients, "members contribute parameters under this program");
    }
    if (program.has_local_parameters() || program.has_custom_rule()) && parameters.is_lossy() {
        return refuse("sync.parameters", parameters, "owners keep no exact parameters under this program");
    }
    Ok(())
}

/// The default of `one_in`: ten times the elements that *Deep Gradient Compression* sends after its warm-up.
const ONE_IN_DEFAULT: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use peergrad_collectives::plan::{ShardLayout, Topology};
    use peergrad_core::program::loader::RingLinks;
    use peergrad_protocol::manifest::Manifest;

    use crate::specification::RunFile;
    use crate::specification::resolve::resolve_training;

    fn resolve(sync: &str) -> Result<TrainingSettings, SpecificationError> {
        resolve_training(&RunFile::parse(&format!("[sync]\n{sync}")).unwrap(), 100)
    }

    #[test]
    fn lossy_gradients_use_the_direct_topology() {
        let training = |sync: &str| resolve(sync).unwrap().training(&Manifest::default()).unwrap();
        let settings = resolve("gradients = \"int8\"\nparameters = \"bf16\"").unwrap();
        assert_eq!((settings.gradients, settings.parameters), (Compression::Int8, Compression::Bf16));
        // With shards like these, a ring is faster and is selected otherwise.
        let uneven = ShardLayout::even(1 << 20, 8, &[0], 1 << 15);
        let topology = |sync: &str| training(sync).topology(&uneven, RingLinks::Complete, &[]);
        assert_eq!(topology("parameters = \"bf16\""), Topology::Ring);
        for sync in [
            "gradients = \"int8\"",
            "kind = \"backup-workers\"",
            "combine = \"median\"",
            "topology = \"direct\"",
        ] {
            assert_eq!(topology(sync), Topology::Direct, "{sync}");
        }
        let sparse = training("gradients = \"top-k\"");
        assert_eq!((sparse.gradients.encoded_len(1000) < 50, sparse.sum_codec()), (true, Codec::Bf16));
        assert_eq!(training("").sum_codec(), Codec::F32);
    }

    #[test]
    fn unsupported_combinations_are_rejected() {
        for (text, words) in [
            (
                "gradients = \"int8\"\ntopology = \"ring\"",
                "`sync.topology` is \"ring\"; allowed: \"auto\" or \"direct\"",
            ),
            ("parameters = \"top-k\"", "every member needs all parameters"),
            ("gradients = \"bf16\"\nkind = \"local\"", "`sync.gradients` is \"bf16\"; allowed: \"f32\""),
            ("parameters = \"bf16\"\nkind = \"ds-sync\"", "`sync.parameters` is \"bf16\"; allowed: \"f32\""),
            ("gradients = \"top-k\"\ncombine = \"median\"", "`sync.combine` is a robust mean"),
            ("one_in = 10", "only with gradients = \"top-k\""),
            ("gradients = \"top-k\"\none_in = 1", "`sync.one_in` is 1; allowed: 2 to 100000"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
