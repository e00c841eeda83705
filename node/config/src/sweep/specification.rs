//! The specification of a sweep: everything that its peers must agree on. The first peer resolves it, and the others infer nothing.
//!
//! It has the settings of each trial, resolved as those of a run, and one description of the data for all of them. The sweep itself is a run
//! of a table, with settings for that: its seed, checkpoints and replicas are those of the run file.

use std::collections::BTreeMap;

use peergrad_models::data::bytes::DataBytes;
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::schedule::{ETA_MAX, Job, PARALLEL_MAX, RUNGS_MAX, Strategy};
use super::trials::{TrialSource, trials};
use super::variation::{Variation, read, set};
use super::{KEYS_MAX, TRIALS_MAX};
use crate::specification::resolve::{resolve_training, resolve_variant};
use crate::specification::run_file::{DealingName, ModelKind, SyncKind};
use crate::specification::{
    DataSettings, ModelSettings, RunFile, Specification, SpecificationError, TrainingSettings, VERSION,
    resolve_with_notices,
};

/// What a user asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPlan {
    /// The texts of `--vary`.
    pub variations: Vec<String>,
    /// Where trials come from.
    pub source: TrialSource,
    /// How to choose what to train.
    pub strategy: StrategyChoice,
}

/// A strategy whose number of rungs may be left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyChoice {
    /// All trials, to the end.
    All,
    /// Successive halving.
    Halving {
        /// One of so many trials goes on.
        eta: usize,
        /// The number of rungs; `None` for [`Strategy::rungs_default`].
        rungs: Option<usize>,
    },
    /// Asynchronous successive halving.
    Asha {
        /// One of so many trials goes on.
        eta: usize,
        /// The number of rungs; `None` for [`Strategy::rungs_default`].
        rungs: Option<usize>,
        /// How many jobs are under way at most.
        parallel: usize,
    },
}

/// What the peers of a sweep agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSpecification {
    /// [`VERSION`].
    pub version: u32,
    /// What varies, and how trials are chosen.
    pub sweep: SweepSettings,
    /// How the run of the table works.
    pub training: TrainingSettings,
    /// The data file of all trials.
    pub data: DataSettings,
    /// The trials.
    pub trials: Vec<TrialSettings>,
}

/// What varies, and how trials are chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSettings {
    /// The keys that vary.
    pub keys: Vec<String>,
    /// How jobs are chosen.
    pub strategy: Strategy,
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialSettings {
    /// The values of the keys, as TOML, in the order of the keys.
    pub values: Vec<String>,
    /// How it is trained.
    pub training: TrainingSettings,
    /// Its model.
    pub model: ModelSettings,
}

/// Why there is no sweep. Each message says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// Nothing varies.
    #[error("nothing varies: name a key and its values, such as `--vary optimizer.rate=0.001,0.01,0.1`")]
    NoVariation,
    /// Too many keys vary.
    #[error("{found} keys vary, more than {KEYS_MAX}: leave some `--vary` out")]
    KeyCount {
        /// The number of keys.
        found: usize,
    },
    /// The text of `--vary` has no values.
    #[error(
        "`--vary {0}`: give KEY=VALUES, such as `--vary optimizer.rate=0.001,0.01,0.1`; the key is `{0}`"
    )]
    NotAVariation(String),
    /// A key cannot vary so.
    #[error("`--vary {key}`: the key `{key}` cannot vary like this: {reason}")]
    Key {
        /// The key.
        key: String,
        /// Why, and what to do.
        reason: String,
    },
    /// There are too many trials, or none.
    #[error(
        "these are {found} trials: a sweep has 1 to {TRIALS_MAX}. Give fewer values, or draw some with `--trials N`"
    )]
    TrialCount {
        /// The number of trials.
        found: usize,
    },
    /// There are not so many different trials.
    #[error(
        "only {found} different trials were drawn, in place of {wanted}: lower `--trials`, or give more values"
    )]
    TooFewValues {
        /// How many were drawn.
        found: usize,
        /// How many were asked for.
        wanted: usize,
    },
    /// The run file with the values of a trial cannot be used.
    #[error("trial {number} ({values}): {reason}; change these values in `--vary`, or the run file")]
    Trial {
        /// Its number, from 1.
        number: usize,
        /// Its keys and values.
        values: String,
        /// Why.
        reason: String,
    },
    /// An option of the strategy has a value that is not allowed.
    #[error("`{option}` is {found}; allowed: {allowed}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// The specification is too large.
    #[error(
        "the settings of {trials} trials take {found} bytes, more than the maximum of {SPECIFICATION_BYTES_MAX}: try fewer, with `--trials N`"
    )]
    TooLarge {
        /// The number of trials.
        trials: usize,
        /// Their size.
        found: usize,
    },
    /// The run file cannot be used, whatever varies.
    #[error(transparent)]
    RunFile(#[from] SpecificationError),
}

impl SweepSpecification {
    /// Resolves a sweep over the run file with this text, and the bytes of its data file. Returns notices of what was inferred from the data
    /// as well.
    ///
    /// # Errors
    /// The run file cannot be used, or not with the values of a trial.
    pub fn resolve(
        run: &RunFile,
        text: &str,
        plan: &SweepPlan,
        data_name: &str,
        data: &DataBytes,
    ) -> Result<(Self, Vec<String>), SweepError> {
        let table: Table = text.parse().expect("the text was read as a run file");
        let variations = variations(plan, &table)?;
        check_run_file(run)?;
        let (base, notices) = resolve_with_notices(run, data_name, data)?;
        if base.data.held_out_rows == 0 {
            return Err(SweepError::RunFile(SpecificationError::Setting {
                key: "data.held_out",
                found: "too little for one row".to_owned(),
                allowed: "a share above 0, because trials are compared on held-out rows".to_owned(),
            }));
        }
        let values = trials(&variations, plan.source)?;
        let keys: Vec<String> = variations.into_iter().map(|variation| variation.key).collect();
        let strategy = resolve_strategy(plan.strategy, &keys, values.len(), run.epochs())?;
        let mut trials = Vec::new();
        for values in &values {
            let (model, training) =
                resolve_trial(run.seed, &table, &keys, values, &base, data).map_err(|reason| {
                    SweepError::Trial {
                        number: trials.len() + 1,
                        values: assignments(&keys, values.iter()),
                        reason,
                    }
                })?;
            let values = values.iter().map(ToString::to_string).collect();
            trials.push(TrialSettings { values, training, model });
        }
        let sweep = SweepSettings { keys, strategy };
        let training = table_training(run)?;
        let specification = Self { version: VERSION, sweep, training, data: base.data, trials };
        specification.to_bytes()?;
        Ok((specification, notices))
    }

    /// The bytes that are hashed and sent.
    ///
    /// # Errors
    /// There are more than [`SPECIFICATION_BYTES_MAX`] of them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SweepError> {
        let text = toml::to_string(self).map_err(|error| SpecificationError::Foreign(error.to_string()))?;
        if text.len() > SPECIFICATION_BYTES_MAX {
            return Err(SweepError::TooLarge { trials: self.trials.len(), found: text.len() });
        }
        Ok(text.into_bytes())
    }

    /// Whether these bytes are the specification of a sweep, of whatever version.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= SPECIFICATION_BYTES_MAX);
        let table = text.and_then(|text| text.parse::<Table>().ok());
        table.is_some_and(|table| table.contains_key("sweep"))
    }

    /// Reads and checks bytes that [`to_bytes`](Self::to_bytes) made, here or at another peer.
    ///
    /// # Errors
    /// The bytes are not such a specification of this version, or a value is out of bounds.
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
        let foreign = |what: &str| Err(SpecificationError::Foreign(what.to_owned()));
        let Self { version, sweep: SweepSettings { keys, strategy }, training, trials, .. } = self;
        let is_within = *version == VERSION
            && (1..=TRIALS_MAX).contains(&trials.len())
            && (1..=KEYS_MAX).contains(&keys.len())
            && trials.iter().all(|trial| trial.values.len() == keys.len());
        if !is_within || !is_possible(strategy) {
            return foreign("the numbers of a sweep are out of bounds");
        }
        training.check()?;
        (0..trials.len()).try_for_each(|trial| self.trial(trial).check())
    }

    /// The specification of a trial, as if it were a run of its own.
    #[must_use]
    pub fn trial(&self, trial: usize) -> Specification {
        let TrialSettings { training, model, .. } = &self.trials[trial];
        Specification {
            version: VERSION,
            training: training.clone(),
            model: model.clone(),
            data: self.data.clone(),
        }
    }

    /// The keys and values of a trial: `optimizer.rate = 0.01, batch = 32`.
    #[must_use]
    pub fn trial_text(&self, trial: usize) -> String {
        assignments(&self.sweep.keys, self.trials[trial].values.iter())
    }

    /// The keys and values of a trial, for JSON.
    #[must_use]
    pub fn trial_values(&self, trial: usize) -> Vec<(String, serde_json::Value)> {
        let value = |text: &String| {
            let parsed =
                format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
            parsed.and_then(|value| serde_json::to_value(value).ok()).unwrap_or_default()
        };
        self.sweep.keys.iter().cloned().zip(self.trials[trial].values.iter().map(value)).collect()
    }

    /// How many epochs a job trains.
    #[must_use]
    pub fn epochs(&self, job: Job) -> u64 {
        self.sweep.strategy.epochs(job.rung, self.trials[job.trial].training.epochs)
    }

    /// How many samples a job trains.
    #[must_use]
    pub fn samples(&self, job: Job) -> u64 {
        self.epochs(job).saturating_mul(u64::from(self.data.rows - self.data.held_out_rows))
    }

    /// How many samples all trials would train together, each to its end.
    #[must_use]
    pub fn samples_of_all(&self) -> u64 {
        let rung = self.sweep.strategy.rungs() - 1;
        (0..self.trials.len()).map(|trial| self.samples(Job { trial, rung })).sum()
    }

    /// The most jobs that there can be: the rows of the table.
    #[must_use]
    pub fn jobs_max(&self) -> usize {
        self.sweep.strategy.jobs_max(self.trials.len())
    }

    /// About how many bytes of memory a peer needs at most at one time.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let needed = (0..self.trials.len()).map(|trial| self.trial(trial).memory_bytes()).max().unwrap_or(0);
        // The file is kept beside what is loaded from it, for the next trial.
        needed.saturating_add(self.data.byte_count)
    }
}

/// The text of a run file with the values of a trial in it. Comments are lost.
///
/// # Errors
/// A value is no TOML, which does not happen with the values of a specification.
pub fn run_file_with(text: &str, keys: &[String], values: &[String]) -> Result<String, SpecificationError> {
    let foreign = |error: &dyn std::fmt::Display| SpecificationError::Foreign(error.to_string());
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| foreign(&error))?;
    for (key, value) in keys.iter().zip(values) {
        let mut parsed: Table =
            format!("value = {value}").parse().map_err(|error: toml::de::Error| foreign(&error))?;
        set(&mut table, key, parsed.remove("value").unwrap_or(Value::Boolean(false)));
    }
    toml::to_string(&table).map_err(|error| foreign(&error))
}

/// Reads all texts of `--vary`.
fn variations(plan: &SweepPlan, table: &Table) -> Result<Vec<Variation>, SweepError> {
    match plan.variations.len() {
        0 => return Err(SweepError::NoVariation),
        found if found > KEYS_MAX => return Err(SweepError::KeyCount { found }),
        _ => {}
    }
    let parsed = plan.variations.iter().map(|text| Variation::parse(text, table));
    let variations: Vec<Variation> = parsed.collect::<Result<_, _>>()?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    variations.iter().for_each(|variation| *counts.entry(&variation.key).or_default() += 1);
    if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count > 1) {
        let reason = "it is given twice: put all of its values into one `--vary`".to_owned();
        return Err(SweepError::Key { key: key.to_owned(), reason });
    }
    Ok(variations)
}

/// Checks that one peer alone can train such a run.
fn check_run_file(run: &RunFile) -> Result<(), SweepError> {
    if run.model.kind == ModelKind::Lda {
        return Err(SweepError::RunFile(SpecificationError::Setting {
            key: "model.kind",
            found: "\"lda\"".to_owned(),
            allowed: "a model that is trained with gradients; compare topic models with `peer compare`"
                .to_owned(),
        }));
    }
    if run.sync_kind() == SyncKind::Sync {
        return Ok(());
    }
    Err(SweepError::RunFile(SpecificationError::Setting {
        key: "sync.kind",
        found: "given".to_owned(),
        allowed: "\"sync\" in a sweep, because one peer alone trains each trial: leave `kind` out, and set it again for the run with the best values"
            .to_owned(),
    }))
}

/// The model of a trial and how it is trained.
///
/// # Errors
/// Why these values cannot be used.
fn resolve_trial(
    seed: u64,
    table: &Table,
    keys: &[String],
    values: &[Value],
    base: &Specification,
    data: &DataBytes,
) -> Result<(ModelSettings, TrainingSettings), String> {
    let mut table = table.clone();
    keys.iter().zip(values).for_each(|(key, value)| set(&mut table, key, value.clone()));
    let run = RunFile { seed, ..read(table)? };
    let found = resolve_variant(&run, base, data).map_err(|error| error.to_string())?;
    Ok((found.model, found.training))
}

/// Fills in and checks the numbers of a strategy.
fn resolve_strategy(
    choice: StrategyChoice,
    keys: &[String],
    trial_count: usize,
    epochs: u64,
) -> Result<Strategy, SweepError> {
    let (eta, rungs) = match choice {
        StrategyChoice::All => return Ok(Strategy::All {}),
        StrategyChoice::Halving { eta, rungs } | StrategyChoice::Asha { eta, rungs, .. } => (eta, rungs),
    };
    if let Some(key) = keys.iter().find(|key| *key == "epochs") {
        let reason =
            "this strategy itself decides how many epochs a trial gets: use `--strategy grid` or `random`";
        return Err(SweepError::Key { key: key.clone(), reason: reason.to_owned() });
    }
    let option = |option, found: String, allowed: String| SweepError::Option { option, found, allowed };
    if !(2..=ETA_MAX).contains(&eta) {
        return Err(option("--eta", eta.to_string(), format!("2 to {ETA_MAX}")));
    }
    let rungs = rungs.unwrap_or_else(|| Strategy::rungs_default(eta, trial_count, epochs));
    if !(1..=RUNGS_MAX).contains(&rungs) || (eta as u64).saturating_pow(rungs as u32 - 1) > epochs {
        let allowed = format!(
            "1 to {RUNGS_MAX}, and few enough that the lowest rung has an epoch: {epochs} epochs, divided by {eta} for each rung below the highest"
        );
        return Err(option("--rungs", rungs.to_string(), allowed));
    }
    match choice {
        StrategyChoice::Asha { parallel, .. } if !(1..=PARALLEL_MAX).contains(&parallel) => {
            Err(option("--parallel", parallel.to_string(), format!("1 to {PARALLEL_MAX}")))
        }
        StrategyChoice::Asha { parallel, .. } => Ok(Strategy::Asha { eta, rungs, parallel }),
        _ => Ok(Strategy::Halving { eta, rungs }),
    }
}

/// Whether the numbers of a strategy are within their bounds.
fn is_possible(strategy: &Strategy) -> bool {
    match *strategy {
        Strategy::All {} => true,
        Strategy::Halving { eta, rungs } => (2..=ETA_MAX).contains(&eta) && (1..=RUNGS_MAX).contains(&rungs),
        Strategy::Asha { eta, rungs, parallel } => {
            is_possible(&Strategy::Halving { eta, rungs }) && (1..=PARALLEL_MAX).contains(&parallel)
        }
    }
}

/// How the run of the table works: a sample is a turn, and each worker takes one at a time.
fn table_training(run: &RunFile) -> Result<TrainingSettings, SpecificationError> {
    let run = RunFile {
        epochs: Some(TURN_EPOCHS),
        batch: Some(1),
        seed: run.seed,
        shuffle: false,
        shards: run.shards.clone(),
        checkpoints: run.checkpoints.clone(),
        ..RunFile::default()
    };
    let training = resolve_training(&run, u64::from(TURNS))?;
    Ok(TrainingSettings { dealing: DealingName::Even, ..training })
}

/// Keys with their values.
fn assignments(keys: &[String], values: impl Iterator<Item = impl std::fmt::Display>) -> String {
    let each = keys.iter().zip(values).map(|(key, value)| format!("{key} = {value}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The turns of an epoch. A sweep ends when its jobs are done, and not when its turns are over.
pub const TURNS: u32 = 1 << 16;
/// The epochs of turns: a claim states one exactly.
const TURN_EPOCHS: u64 = 1 << 23;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::single_process::train_single_process;
    use peergrad_models::data::embedded::{DIGITS, embedded};

    const RUN: &str = "epochs = 4\n[data]\nfile = \"digits\"\n[model]\nhidden = [16]\n";

    fn resolve(text: &str, vary: &[&str], strategy: StrategyChoice) -> Result<SweepSpecification, String> {
        let run = RunFile::parse(text).unwrap();
        let plan = SweepPlan {
            variations: vary.iter().map(|text| (*text).to_owned()).collect(),
            source: TrialSource::Grid,
            strategy,
        };
        let data = DataBytes::from(embedded(DIGITS).unwrap());
        let found = SweepSpecification::resolve(&run, text, &plan, DIGITS, &data);
        found.map(|(found, _)| found).map_err(|error| error.to_string())
    }

    #[test]
    fn the_bytes_read_back_and_trials_differ_in_their_values_alone() {
        let vary = ["optimizer.rate=0.001,0.01", "model.hidden=[8],[16]", "optimizer.rule=adam,sgd"];
        let sweep = resolve(RUN, &vary, StrategyChoice::All).unwrap();
        assert_eq!(sweep.trials.len(), 8);
        let bytes = sweep.to_bytes().unwrap();
        assert!(SweepSpecification::is_one(&bytes));
        assert_eq!(SweepSpecification::parse(&bytes).unwrap(), sweep);
        assert!(!SweepSpecification::is_one(&sweep.trial(0).to_bytes().unwrap()));
        assert_eq!(
            sweep.trial_text(2),
            "optimizer.rate = 0.001, model.hidden = [16], optimizer.rule = \"adam\""
        );
        // A trial is the run of a file with its values.
        let file = run_file_with(RUN, &sweep.sweep.keys, &sweep.trials[5].values).unwrap();
        let data = embedded(DIGITS).unwrap();
        let run = crate::specification::resolve(&RunFile::parse(&file).unwrap(), DIGITS, data).unwrap();
        assert_eq!(run, sweep.trial(5));
        let parameters = train_single_process(&run.load(data).unwrap(), |_| ());
        let expected = run.load(data).unwrap().task.evaluate(&parameters);
        let found = sweep.train_here(Job { trial: 5, rung: 0 }, &DataBytes::from(data), &None).unwrap();
        assert_eq!((f64::from(found.loss) as f32, found.diverged), (expected.loss as f32, false));
        assert_eq!(found.accuracy, expected.accuracy.map(|accuracy| accuracy as f32));
    }

    #[test]
    fn halving_costs_at_most_half_and_a_rung_is_the_beginning_of_the_whole_training() {
        let text = RUN.replace("epochs = 4", "epochs = 9");
        let halving = StrategyChoice::Halving { eta: 3, rungs: None };
        let sweep = resolve(&text, &["optimizer.rate=1e-4..1e-1:log:9"], halving).unwrap();
        assert_eq!(sweep.sweep.strategy, Strategy::Halving { eta: 3, rungs: 3 });
        let at = |rung| sweep.samples(Job { trial: 0, rung });
        assert_eq!([at(0), at(1), at(2)], [1438, 3 * 1438, 9 * 1438]);
        let all: u64 = 9 * at(0) + 3 * at(1) + at(2);
        assert!(2 * all < sweep.samples_of_all());
    }

    #[test]
    fn what_cannot_be_swept_is_refused() {
        let halving = |rungs| StrategyChoice::Halving { eta: 3, rungs };
        let all = StrategyChoice::All;
        let rate: &[&str] = &["optimizer.rate=0.1,0.2"];
        let local = format!("{RUN}[sync]\nkind = \"local\"\n");
        let topics = "[data]\nfile = \"f.txt\"\n[model]\nkind = \"lda\"\n".to_owned();
        let whole = RUN.replace("file = \"digits\"", "file = \"digits\"\nheld_out = 0");
        let cases: [(&str, &[&str], StrategyChoice, &[&str]); 10] = [
            (RUN, &[], all, &["nothing varies", "--vary"]),
            (RUN, &["batch=1,2", "batch=3,4"], all, &["`batch`", "given twice"]),
            (
                RUN,
                &["optimizer.rate=0.1,5000000"],
                all,
                &["trial 2 (optimizer.rate = 5000000)", "above 0, up to 1000000"],
            ),
            (RUN, &["optimizer.momentum=0.5,0.9"], all, &["trial 1", "optimizer.momentum", "only if `rule`"]),
            (RUN, &["epochs=4,8"], halving(None), &["`epochs`", "--strategy grid"]),
            (RUN, rate, halving(Some(4)), &["`--rungs` is 4", "4 epochs"]),
            (&local, rate, all, &["`sync.kind`", "one peer alone"]),
            (&topics, rate, all, &["`model.kind`", "peer compare"]),
            (&whole, rate, all, &["`data.held_out`", "held-out rows"]),
            (RUN, &["model.kind=mlp,logistic"], all, &["trial 2", "model.kind"]),
        ];
        for (text, vary, strategy, words) in cases {
            let error = resolve(text, vary, strategy).unwrap_err();
            for word in words {
                assert!(error.contains(word), "`{word}` is not in: {error}");
            }
        }
        let eta = resolve(RUN, rate, StrategyChoice::Halving { eta: 1, rungs: None }).unwrap_err();
        assert!(eta.contains("`--eta` is 1; allowed: 2 to 16"), "{eta}");
        let asha = StrategyChoice::Asha { eta: 3, rungs: None, parallel: 0 };
        assert!(resolve(RUN, rate, asha).unwrap_err().contains("`--parallel` is 0"));
    }

    #[test]
    fn a_specification_out_of_bounds_is_foreign() {
        let sweep = resolve(RUN, &["batch=8,16"], StrategyChoice::All).unwrap();
        let text = String::from_utf8(sweep.to_bytes().unwrap()).unwrap();
        let changed = text.replace("kind = \"all\"", "kind = \"halving\"\neta = 1\nrungs = 2");
        assert_ne!(changed, text);
        assert!(
            SweepSpecification::parse(changed.as_bytes()).unwrap_err().to_string().contains("out of bounds")
        );
        let changed = text.replacen("keys = [\"batch\"]", "keys = []", 1);
        assert!(SweepSpecification::parse(changed.as_bytes()).is_err());
    }
}
