//! `[evaluation]`: how good the model is on held-out samples during the run, and when that ends the run.
//!
//! A specification without it does not name it, so that its bytes and its run's id are those of releases without the setting.

use std::num::{NonZeroU32, NonZeroU64};

use peergrad_core::program::loader::EvaluationConfig;
use serde::{Deserialize, Serialize};

use super::{Algorithm, SpecificationError, within};

/// `[evaluation]`: when the peers evaluate, beside the evaluation of the final model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSection {
    /// Steps between two evaluations, at which all peers save a checkpoint as well; 0 for none. Default 0.
    pub every: u64,
    /// The run ends after so many evaluations in a row that were not the best; 0: it does not. Default 0.
    pub stop_after: u32,
}

impl EvaluationSection {
    /// Whether a specification need not name it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the settings for this algorithm.
    ///
    /// # Errors
    /// One of them is not allowed.
    pub(super) fn check(&self, algorithm: &Algorithm) -> Result<(), SpecificationError> {
        within("evaluation.every", self.every, ..=1_000_000_000, "0 to 1000000000 steps")?;
        if self.every > 0 && algorithm.has_tables() {
            return Err(refused(
                "evaluation.every",
                "0 with this [sync] kind: its peers have no steps in common",
            ));
        }
        if self.every > 0 && matches!(algorithm, Algorithm::DsSync { .. }) {
            let allowed = "0 with `kind` \"ds-sync\": its peers have different parameters until the end";
            return Err(refused("evaluation.every", allowed));
        }
        if self.stop_after > 0 && self.every == 0 {
            return Err(refused("evaluation.stop_after", "0 unless `every` says how often to evaluate"));
        }
        Ok(())
    }

    /// Checks that there is something to evaluate on.
    ///
    /// # Errors
    /// There is not.
    pub(super) fn check_held_out(&self, samples: u64) -> Result<(), SpecificationError> {
        if self.every > 0 && samples == 0 {
            return Err(refused("evaluation.every", "0 without held-out samples"));
        }
        Ok(())
    }

    /// What the node reads.
    pub(super) fn config(&self) -> Option<EvaluationConfig> {
        let stop_after = NonZeroU32::new(self.stop_after);
        NonZeroU64::new(self.every).map(|every| EvaluationConfig { every, stop_after })
    }
}

fn refused(key: &'static str, allowed: &str) -> SpecificationError {
    SpecificationError::Setting { key, found: "given".to_owned(), allowed: allowed.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::{RunFile, resolve};

    #[test]
    fn evaluations_need_steps_and_held_out_samples() {
        let of = |text: &str| {
            let run = RunFile::parse(&format!("[data]\nfile = \"f.csv\"\nheld_out = 0.2\n{text}")).unwrap();
            let rows: String = (0..40).map(|row| format!("{row},{}\n", row % 7)).collect();
            resolve(&run, "f.csv", format!("a,b\n{rows}").as_bytes())
        };
        let error = |text: &str| of(text).unwrap_err().to_string();
        let config = of("[evaluation]\nevery = 5\nstop_after = 2").unwrap().training.evaluation.config();
        assert_eq!(
            config.map(|config| (config.every.get(), config.stop_after.map(|it| it.get()))),
            Some((5, Some(2)))
        );
        assert_eq!(of("").unwrap().training.evaluation.config(), None);
        assert!(error("[evaluation]\nstop_after = 2").contains("evaluation.stop_after"));
        assert!(error("[evaluation]\nevery = 5\n[sync]\nkind = \"ssp\"").contains("no steps in common"));
        assert!(
            error("[evaluation]\nevery = 5\n[sync]\nkind = \"ds-sync\"").contains("different parameters")
        );
        let text = "[data]\nfile = \"f.csv\"\nheld_out = 0.0\n[evaluation]\nevery = 5";
        let none = resolve(&RunFile::parse(text).unwrap(), "f.csv", b"a,b\n1,2\n3,4\n5,6\n").unwrap_err();
        assert!(none.to_string().contains("without held-out samples"), "{none}");
        let plain = String::from_utf8(of("").unwrap().to_bytes().unwrap()).unwrap();
        assert!(!plain.contains("evaluation"), "{plain}");
    }
}
