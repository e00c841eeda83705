//! Checkpointing: how often the peers of a run write checkpoints, as its specification says.
//!
//! A command that only looks at a data directory needs this and nothing else of the specification.

use super::custom::CustomSpecification;
use super::{Specification, TrainingSettings};

/// When the peers of a run write checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpointing {
    /// Only when a peer stops.
    WhenStopping,
    /// At this interval, and when a peer stops.
    Every {
        /// The interval in seconds.
        seconds: u64,
    },
}

impl Checkpointing {
    /// What these bytes of a specification say, of a built-in model or of a custom task; `None` if they are no specification.
    #[must_use]
    pub fn of(specification: &[u8]) -> Option<Self> {
        let built_in = Specification::parse(specification).map(|specification| specification.training);
        let custom = || CustomSpecification::parse(specification).map(|specification| specification.training);
        built_in.or_else(|_| custom()).ok().map(|training| Self::of_training(&training))
    }

    fn of_training(training: &TrainingSettings) -> Self {
        match training.checkpoint_seconds {
            0 => Self::WhenStopping,
            seconds => Self::Every { seconds },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RunFile, resolve};
    use super::*;

    #[test]
    fn it_is_read_from_the_specification() {
        let data = b"1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,1,0\n2,3,1\n";
        let of = |text: &str| {
            let run_file = RunFile::parse(&format!("{text}\n[data]\nfile = \"a.csv\"\n")).unwrap();
            Checkpointing::of(&resolve(&run_file, "a.csv", data).unwrap().to_bytes().unwrap())
        };
        assert_eq!(of(""), Some(Checkpointing::Every { seconds: 30 }));
        assert_eq!(of("[checkpoints]\nseconds = 0"), Some(Checkpointing::WhenStopping));
        assert_eq!(of("[sync]\nkind = \"ssp\""), Some(Checkpointing::Every { seconds: 30 }));
        assert_eq!(Checkpointing::of(b"something else"), None);
    }
}
