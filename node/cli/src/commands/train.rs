//! The builder of a user's binary: a task, how to train it, and the command line around both.
//!
//! ```no_run
//! # use peergrad_cli::train;
//! # use peergrad_models::optimizer::Optimizer;
//! # fn main_of(task: impl peergrad_models::task::Task) -> std::process::ExitCode {
//! train("parabola", task).optimizer(Optimizer::ADAM).learning_rate(0.01).epochs(40).batch(64).run()
//! # }
//! ```
//! What the builder sets are defaults of the binary. The user who founds a run may give a run.toml, `start RUN.toml`, whose keys
//! and sections take their place; the peers that join get the result from the founder.

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::Arc;

use peergrad_config::specification::custom::{CustomLoader, CustomSpecification};
use peergrad_config::specification::run_file::OptimizerSection;
use peergrad_config::specification::{GroupSettings, RunFile, SpecificationError};
use peergrad_core::program::loader::{Loaded, Loader};
use peergrad_core::program::{Program, ProgramFactory};
use peergrad_core::table::TableSpec;
use peergrad_embed::{PeerOptions, ResumeError, StoppedPeer, memory_limit};
use peergrad_models::optimizer::{Bounds, Optimizer};
use peergrad_models::task::Task;
use peergrad_protocol::invite::Invite;
use peergrad_protocol::limits::MEMBERS_MAX;

/// Begins to describe how this binary trains `task`; [`Training::run`] ends it, or [`Training::new_run`], [`Training::join`] and [`Training::resume`]
/// without a command line.
///
/// All peers of a run must be the same binary. They compare `name`, which error messages quote where the binaries differ.
pub fn train(name: &str, task: impl Task) -> Training {
    Training {
        name: name.to_owned(),
        task: Arc::new(task),
        program: ProgramFactory::sync(),
        settings: RunFile::default(),
    }
}

/// A task and how to train it: see [`train`].
#[must_use = "nothing is trained before `run` is called"]
pub struct Training {
    pub(super) name: String,
    pub(super) task: Arc<dyn Task>,
    pub(super) program: ProgramFactory,
    /// What `start` without a run.toml trains with.
    pub(super) settings: RunFile,
}

impl Training {
    /// The rule by which owners update their shards. Default [`Optimizer::ADAM`].
    pub fn optimizer(mut self, rule: Optimizer) -> Self {
        let before = self.settings.optimizer;
        self.settings.optimizer = OptimizerSection {
            rate: before.rate,
            warmup_steps: before.warmup_steps,
            schedule: before.schedule,
            decay_factor: before.decay_factor,
            decay_epochs: before.decay_epochs,
            floor: before.floor,
            scale_from_batch: before.scale_from_batch,
            clip_norm: before.clip_norm,
            bounds: before.bounds,
            groups: before.groups,
            ..OptimizerSection::of(rule)
        };
        self
    }

    /// The learning rate. Default: what run.toml's `[optimizer]` takes for the rule, 0.001 for Adam.
    pub fn learning_rate(mut self, rate: f64) -> Self {
        self.settings.optimizer.rate = Some(rate);
        self
    }

    /// The greatest norm of the mean gradient of a step; a longer one is shortened before its update. Default: no limit.
    pub fn clip_norm(mut self, norm: f32) -> Self {
        self.settings.optimizer.clip_norm = Some(norm);
        self
    }

    /// Where parameters stay: after each update, a parameter outside moves to the nearer end. Default: no bounds.
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.settings.optimizer.bounds = Some(bounds);
        self
    }

    /// Tensors that are trained differently from the rest, in addition to the groups before: as one entry of run.toml's
    /// `[[optimizer.groups]]`. A tensor is in the first group that matches it. Default: none.
    ///
    /// ```
    /// # use peergrad_cli::{Training, train};
    /// # use peergrad_config::specification::GroupSettings;
    /// # fn groups_of(training: Training) -> Training {
    /// training
    ///     .parameter_group(GroupSettings::of(["norm.*.mean", "norm.*.variance"]).statistic())
    ///     .parameter_group(GroupSettings::of(["*.bias", "norm.*"]).weight_decay(0.0))
    /// # }
    /// ```
    pub fn parameter_group(mut self, group: GroupSettings) -> Self {
        self.settings.optimizer.groups.push(group);
        self
    }

    /// How often each sample is trained. Default 40.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.settings.epochs = Some(epochs);
        self
    }

    /// Samples of one step, over all members together; of one worker's clock, for a program with tables. Default 64.
    pub fn batch(mut self, samples: u64) -> Self {
        self.settings.batch = Some(samples);
        self
    }

    /// Decides the initial parameters and the order of samples. Default 7.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Peers that must be there before training begins, the founder included. Default 2.
    pub fn peers(mut self, count: u32) -> Self {
        self.settings.network.peers = count;
        self
    }

    /// Any other setting of a run.toml, for example `|run| run.checkpoints.seconds = 60`.
    pub fn configure(mut self, change: impl FnOnce(&mut RunFile)) -> Self {
        change(&mut self.settings);
        self
    }

    /// The program that trains, in place of synchronous data-parallel training. Each peer makes one when its first view begins.
    pub fn program<P: Program>(mut self, program: impl Fn(&Loaded) -> P + Send + Sync + 'static) -> Self {
        self.program = ProgramFactory::new(program);
        self
    }

    /// The program that trains, and the tables that it keeps its state in: see [`peergrad_core::table`].
    pub fn tables<P: Program>(
        mut self,
        tables: impl Fn(&Loaded) -> TableSpec + Send + Sync + 'static,
        program: impl Fn(&Loaded) -> P + Send + Sync + 'static,
    ) -> Self {
        self.program = ProgramFactory::with_tables(tables, program);
        self
    }

    /// The name by which peers compare the program that was set before, in place of [`Program::NAME`]: for one whose tables are known only
    /// when the binary runs.
    pub fn program_name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.program = self.program.named(name);
        self
    }

    /// What a peer in this process is started with that founds a run of this task: see [`Peer::start`](peergrad_embed::Peer::start). The
    /// command line is not read.
    ///
    /// # Errors
    /// A setting is out of bounds.
    pub fn new_run(&self) -> Result<PeerOptions, SpecificationError> {
        let specification = self.specification(&self.settings)?.to_bytes()?;
        let peers = self.settings.network.peers as usize;
        if peers == 0 || peers > MEMBERS_MAX {
            let allowed = format!("1 to {MEMBERS_MAX}, this peer included");
            return Err(SpecificationError::Setting {
                key: "network.peers",
                found: peers.to_string(),
                allowed,
            });
        }
        Ok(PeerOptions::new_run(&self.settings, specification.into(), peers, self.shared_loader()))
    }

    /// The same for a peer that joins such a run. The settings are the founder's.
    #[must_use]
    pub fn join(&self, invite: Invite) -> PeerOptions {
        PeerOptions::join(invite, self.shared_loader())
    }

    /// The same for a peer that stopped in the middle of such a run and continues it.
    ///
    /// # Errors
    /// Its directory no longer has the run's secret.
    pub fn resume(&self, stopped: StoppedPeer) -> Result<PeerOptions, ResumeError> {
        stopped.resume(self.shared_loader())
    }

    fn shared_loader(&self) -> Arc<dyn Loader> {
        Arc::new(self.loader().within(memory_limit(None)))
    }

    /// Runs the command that the command line names: `start`, `join`, `resume`, `invite`, `status`, `remove`, `rekey`, `declare-lost`
    /// or `export`, as in `peer`. A setting that is out of bounds is an error of `start`, which names its key in run.toml.
    ///
    /// Returns 0 when the command is done, 1 when it failed. The process exits with 2 if the arguments cannot be read.
    #[must_use]
    pub fn run(self) -> ExitCode {
        super::run_custom(self)
    }

    /// What the peers of a run agree on, if its founder trains with `run_file`.
    pub(super) fn specification(
        &self,
        run_file: &RunFile,
    ) -> Result<CustomSpecification, SpecificationError> {
        CustomSpecification::resolve(run_file, &self.name, &*self.task, &self.program)
    }

    /// Loads this task, for a peer of a run that a binary of the same task and program has founded.
    pub(super) fn loader(&self) -> CustomLoader {
        CustomLoader::new(&self.name, Arc::clone(&self.task), self.program.clone())
    }
}

#[cfg(test)]
mod tests {
    use peergrad_models::task::Evaluation;
    use peergrad_protocol::manifest::Manifest;

    use super::*;

    struct Line;

    impl Task for Line {
        fn manifest(&self) -> Manifest {
            Manifest::tensor("line", [2])
        }
        fn sample_count(&self) -> u32 {
            100
        }
        fn gradient(&self, _: &[f32], _: &[u32], _: &mut [f32]) -> f64 {
            0.0
        }
        fn evaluate(&self, _: &[f32]) -> Evaluation {
            Evaluation { samples: 0, loss: 0.0, accuracy: None }
        }
    }

    #[test]
    fn a_run_file_overrides_the_settings_of_the_code() {
        let rule = Optimizer::Momentum { momentum: 0.5, nesterov: true, weight_decay: 0.1 };
        let training = train("line", Line).learning_rate(0.25).optimizer(rule).epochs(3).batch(10);
        let resolved = |text: &str| {
            let run_file = RunFile::parse_over(text, &training.settings).unwrap();
            training.specification(&run_file).unwrap().training
        };
        let of_code = resolved("");
        assert_eq!((of_code.optimizer, of_code.schedule.base), (rule, 0.25));
        assert_eq!((of_code.epochs, of_code.batch), (3, 10));
        let of_both = resolved("epochs = 5\n[optimizer]\nrule = \"sgd\"");
        assert_eq!((of_both.optimizer, of_both.schedule.base), (Optimizer::Sgd { weight_decay: 0.0 }, 0.1));
        assert_eq!((of_both.epochs, of_both.batch), (5, 10), "the batch is still that of the code");
    }

    #[test]
    fn every_optimizer_survives_being_written_as_settings() {
        for rule in [
            Optimizer::SGD,
            Optimizer::MOMENTUM,
            Optimizer::ADAM,
            Optimizer::ADAMW,
            Optimizer::ADAGRAD,
            Optimizer::Prox { l1: 0.25, l2: 0.5 },
            Optimizer::Ftrl { beta: 2.0, l1: 0.25, l2: 0.5 },
        ] {
            let training = train("line", Line).optimizer(rule);
            assert_eq!(training.specification(&training.settings).unwrap().training.optimizer, rule);
        }
    }
}
