//! Settings of a run that are given in code: those of a binary that brings its own task.
//!
//! They are the settings of a run.toml. A run.toml replaces them, one top-level key or one whole section at a time. Both are checked
//! by the same code.

use peergrad_models::optimizer::Optimizer;

use super::SpecificationError;
use super::run_file::{OptimizerKind, OptimizerSection, RunFile};

impl Default for RunFile {
    /// The settings of an empty run.toml.
    fn default() -> Self {
        Self::parse("").expect("every key of a run.toml has a default")
    }
}

impl RunFile {
    /// Reads the text of a run.toml whose author may leave out what `defaults` holds.
    ///
    /// A top-level key or a section that is in the text replaces the one in `defaults`; all others are taken from `defaults`. So a
    /// text with `[optimizer]` replaces that whole section, and keys that it leaves out have their usual defaults.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_over(text: &str, defaults: &Self) -> Result<Self, SpecificationError> {
        let run = Self::parse(text)?;
        let given: toml::Table = text.parse().expect("the text has just been read");
        macro_rules! overlay {
            ($($field:ident),*) => {
                Self {
                    $($field: if given.contains_key(stringify!($field)) {
                        run.$field
                    } else {
                        defaults.$field.clone()
                    }),*
                }
            };
        }
        Ok(overlay!(
            epochs,
            batch,
            seed,
            shuffle,
            data,
            model,
            optimizer,
            sync,
            shards,
            checkpoints,
            evaluation,
            partition,
            settings,
            network,
            compute
        ))
    }
}

impl OptimizerSection {
    /// The keys that name `rule` and its constants; every other key is left out.
    #[must_use]
    pub fn of(rule: Optimizer) -> Self {
        match rule {
            Optimizer::Sgd { weight_decay } => {
                Self { rule: Some(OptimizerKind::Sgd), weight_decay: Some(weight_decay), ..Self::default() }
            }
            Optimizer::Momentum { momentum, nesterov, weight_decay } => Self {
                rule: Some(OptimizerKind::Momentum),
                momentum: Some(momentum),
                nesterov: Some(nesterov),
                weight_decay: Some(weight_decay),
                ..Self::default()
            },
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                Self::adam(OptimizerKind::Adam, [beta1, beta2], epsilon, weight_decay)
            }
            Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
                Self::adam(OptimizerKind::AdamW, [beta1, beta2], epsilon, weight_decay)
            }
            Optimizer::Adagrad { epsilon, weight_decay } => Self {
                rule: Some(OptimizerKind::Adagrad),
                epsilon: Some(epsilon),
                weight_decay: Some(weight_decay),
                ..Self::default()
            },
            Optimizer::Prox { l1, l2 } => {
                Self { rule: Some(OptimizerKind::Prox), l1: Some(l1), l2: Some(l2), ..Self::default() }
            }
            Optimizer::Ftrl { beta, l1, l2 } => Self {
                rule: Some(OptimizerKind::Ftrl),
                beta: Some(beta),
                l1: Some(l1),
                l2: Some(l2),
                ..Self::default()
            },
        }
    }

    fn adam(rule: OptimizerKind, [beta1, beta2]: [f32; 2], epsilon: f32, weight_decay: f32) -> Self {
        Self {
            rule: Some(rule),
            beta1: Some(beta1),
            beta2: Some(beta2),
            epsilon: Some(epsilon),
            weight_decay: Some(weight_decay),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_of_the_text_replaces_that_of_the_defaults() {
        let mut defaults = RunFile { epochs: Some(3), batch: Some(10), ..RunFile::default() };
        defaults.optimizer =
            OptimizerSection::of(Optimizer::Momentum { momentum: 0.5, nesterov: true, weight_decay: 0.0 });
        let run = RunFile::parse_over("batch = 20\n[sync]\ndigest_every = 5", &defaults).unwrap();
        assert_eq!((run.epochs(), run.batch(), run.sync.digest_every), (3, 20, 5));
        assert_eq!(run.optimizer, defaults.optimizer);
        let run = RunFile::parse_over("[optimizer]\nrule = \"sgd\"", &defaults).unwrap();
        assert_eq!(
            run.optimizer,
            OptimizerSection { rule: Some(OptimizerKind::Sgd), ..OptimizerSection::default() }
        );
        assert_eq!(RunFile::parse_over("", &defaults).unwrap(), defaults);
    }
}
