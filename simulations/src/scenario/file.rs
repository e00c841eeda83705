//! Scenario files: TOML that a user can write.
//!
//! ```toml
//! about = "five peers, cut 3|2 for twenty seconds"
//! peers = 5
//! [links]
//! preset = "home"            # lan, home or continents; other keys change it, such as latency, loss, up_mbit
//! [task]
//! kind = "digits"            # digits, squares, integers, clicks, text or file
//! [run]                      # as in a run.toml
//! epochs = 10
//! [[faults]]
//! at = "2s"                  # after training began; or at_step = 40; or at_start = "50ms"
//! kind = "partition"
//! split = [3, 2]
//! for = "20s"
//! [expect]
//! joiners = "join"
//! ```
//! Every key is explained in `scenarios/keys.toml`, which `simulate keys` prints. A mistake is reported with its line and key.

use std::path::Path;
use std::time::Duration;

use peergrad_config::specification::run_file::ModelSection;
use peergrad_config::specification::{RunFile, SpecificationError, explain_former_name};
use peergrad_models::data::embedded::DIGITS;
use serde::Deserialize;

use super::{
    Expect, FaultTime, JoinOutcome, PEERS_MAX, PlannedFault, SWEEP_PEERS_MAX, Scenario, SurvivorOutcome,
};
use crate::links::Links;
use crate::workload::Workload;

mod fault;
mod number;
mod source_text;
mod time;

use fault::{FaultContext, FaultSection};
use number::{Mbit, Share, Whole, Within};
use source_text::SourceText;
use time::Time;

/// A scenario file in which every key is explained.
pub const KEYS: &str = include_str!("../../scenarios/keys.toml");

/// Why a scenario file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// It is not TOML, or a key is unknown or of the wrong type; with the line.
    #[error("{0}")]
    Toml(String),
    /// A key has an invalid value.
    #[error("line {line}, `{key}`: {text}")]
    Mistake {
        /// The line in the file.
        line: usize,
        /// The key.
        key: String,
        /// What is wrong and what to write instead.
        text: String,
    },
}

/// The size of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The size in the file.
    Full,
    /// The size after the changes in `[sweep]`: small enough to be run a thousand times.
    Sweep,
}

/// Parses a scenario; paths in it are relative to `folder`.
///
/// # Errors
/// A description of the mistake, with its line.
pub fn parse(name: &str, text: &str, folder: &Path, size: Size) -> Result<Scenario, ScenarioError> {
    let mut file: ScenarioFile = toml::from_str(text).map_err(|error| toml_mistake(text, &error))?;
    let source = SourceText::new(text);
    let peers = file.peers.count();
    let planned = |(index, section): (usize, &FaultSection)| {
        section.planned(&FaultContext { source: &source, index, peers })
    };
    let faults: Vec<PlannedFault> = file.faults.iter().enumerate().map(planned).collect::<Result<_, _>>()?;
    if size == Size::Sweep {
        file.task.parameters = file.sweep.parameters.or(file.task.parameters);
        file.run.epochs = file.sweep.epochs.map_or(file.run.epochs, |epochs| Some(epochs.0));
        file.task.sample_time = file.sweep.sample_time.or(file.task.sample_time);
    }
    let scenario = Scenario {
        name: name.to_owned(),
        about: file.about,
        peers,
        links: file.links.links(),
        workload: file.task.workload(&file.run, folder, &source)?,
        capacity: None,
        sample_time: file.task.sample_time.map_or(Duration::from_micros(20), |time| time.0),
        write_time: file.task.write_time.map_or(Duration::from_millis(1), |time| time.0),
        faults,
        expect: file.expect.expect(),
        is_swarm: file.sweep.swarm,
    };
    check_steps(&scenario, size, &source)?;
    match size {
        Size::Full => Ok(scenario),
        Size::Sweep => {
            let swept = file.sweep.peers.map_or(peers.min(SWEEP_PEERS_MAX), Whole::count);
            scenario.with_peers(swept).map_err(|error| source.mistake("sweep.peers", error.to_string()))
        }
    }
}

fn toml_mistake(text: &str, error: &toml::de::Error) -> ScenarioError {
    if let Some(words) = explain_former_name(text, Some("run")) {
        return ScenarioError::Toml(words);
    }
    let mut words = error.to_string().trim_end().to_owned();
    // Of all sections only faults are a list.
    if error.message().ends_with("expected a sequence") && words.contains("[faults]") {
        words += "; a fault is one of many: write [[faults]]";
    }
    ScenarioError::Toml(words)
}

/// A fault that waits for a step that never comes is a mistake.
fn check_steps(scenario: &Scenario, size: Size, source: &SourceText<'_>) -> Result<(), ScenarioError> {
    let count = scenario.workload.loaded.step_count();
    let small = if size == Size::Sweep { " in the small size of [sweep]" } else { "" };
    for (index, planned) in scenario.faults.iter().enumerate() {
        if let FaultTime::Step(step) = planned.when
            && step >= count
        {
            let words = format!("the run has {count} steps{small}: 0 to {}", count - 1);
            return Err(source.mistake(&format!("faults.{index}.at_step"), words));
        }
    }
    if scenario.expect.steps > count {
        return Err(source.mistake("expect.steps", format!("the run has no more than {count} steps{small}")));
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    about: String,
    peers: Whole<1, { PEERS_MAX as u64 }>,
    #[serde(default)]
    links: LinksSection,
    task: TaskSection,
    #[serde(default = "default_run")]
    run: RunFile,
    #[serde(default)]
    faults: Vec<FaultSection>,
    #[serde(default)]
    expect: ExpectSection,
    #[serde(default)]
    sweep: SweepSection,
}

fn default_run() -> RunFile {
    RunFile::parse("").expect("an empty run file is all defaults")
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LinksSection {
    preset: Preset,
    latency: Option<Time>,
    jitter: Option<Time>,
    loss: Option<Within<Share>>,
    connections: Option<Whole<1, CONNECTIONS_MAX>>,
    up_mbit: Option<Within<Mbit>>,
    down_mbit: Option<Within<Mbit>>,
    reset_patience: Option<Time>,
    silence_patience: Option<Time>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Preset {
    #[default]
    Lan,
    Home,
    Continents,
}

impl LinksSection {
    fn links(&self) -> Links {
        let mut links = match self.preset {
            Preset::Lan => Links::lan(),
            Preset::Home => Links::home(),
            Preset::Continents => Links::continents(),
        };
        let set = |source: &mut Duration, time: Option<Time>| *source = time.map_or(*source, |time| time.0);
        set(&mut links.latency, self.latency);
        set(&mut links.jitter, self.jitter);
        set(&mut links.reset_patience, self.reset_patience);
        set(&mut links.silence_patience, self.silence_patience);
        if let Some(loss) = self.loss {
            links.loss_per_million = (loss.0 * 1e6).round() as u32;
        }
        links.connections = self.connections.map_or(links.connections, |connections| connections.0 as u32);
        links.up = self.up_mbit.map(Within::bits).or(links.up);
        links.down = self.down_mbit.map(Within::bits).or(links.down);
        links
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskSection {
    kind: TaskKind,
    parameters: Option<Whole<1, PARAMETERS_MAX>>,
    samples: Option<Whole<1, SAMPLES_MAX>>,
    sample_time: Option<Time>,
    write_time: Option<Time>,
    #[serde(default)]
    in_parts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TaskKind {
    Digits,
    Squares,
    Integers,
    Clicks,
    File,
    Text,
}

impl TaskSection {
    fn workload(
        &self,
        run: &RunFile,
        folder: &Path,
        source: &SourceText<'_>,
    ) -> Result<Workload, ScenarioError> {
        let workload = self.workload_of_kind(run, folder, source)?;
        Ok(if self.in_parts { workload.in_parts() } else { workload })
    }

    fn workload_of_kind(
        &self,
        run: &RunFile,
        folder: &Path,
        source: &SourceText<'_>,
    ) -> Result<Workload, ScenarioError> {
        self.check_keys(run, source)?;
        let parameters = self.parameters.map_or(PARAMETERS_DEFAULT, Whole::count);
        let samples = self.samples.map_or(SAMPLES_DEFAULT, |samples| samples.0 as u32);
        let workload = match self.kind {
            TaskKind::Digits => Workload::digits(run),
            TaskKind::Squares => Workload::squares(run, parameters, samples),
            TaskKind::Integers => Workload::integers(run, parameters, samples),
            TaskKind::Clicks => Workload::clicks(run, parameters, samples),
            TaskKind::File => {
                let (name, bytes) = data_file(run, folder, source)?;
                Workload::data_file(run, &name, &bytes)
            }
            TaskKind::Text => {
                let (name, bytes) = data_file(run, folder, source)?;
                let samples = self.samples.map_or(CHARACTERS_DEFAULT, |samples| samples.0 as u32);
                return Workload::text(run, &name, &bytes, samples)
                    .map_err(|words| source.mistake("run.data.file", words));
            }
        };
        workload.map_err(|error| match error {
            SpecificationError::Setting { key, found, allowed } => {
                source.mistake(&format!("run.{key}"), format!("is {found}; allowed: {allowed}"))
            }
            error if run.data.is_some() => source.mistake("run.data.file", error.to_string()),
            error => source.mistake("run", error.to_string()),
        })
    }

    /// A key that has no meaning for this kind of task is a mistake.
    fn check_keys(&self, run: &RunFile, source: &SourceText<'_>) -> Result<(), ScenarioError> {
        let brings_model = matches!(self.kind, TaskKind::Squares | TaskKind::Integers | TaskKind::Clicks);
        let is_other_file =
            self.kind == TaskKind::Digits && run.data.as_ref().is_some_and(|data| data.file != DIGITS);
        let is_text = self.kind == TaskKind::Text;
        let of_built_in =
            "only for kind = \"digits\" and \"file\"; this kind brings its own model and samples";
        let of_own = "only for kind = \"squares\", \"integers\" and \"clicks\"; the size of this one follows from its data and [run.model]";
        for (key, is_wrong, words) in [
            ("task.parameters", !brings_model && self.parameters.is_some(), of_own),
            ("task.samples", !brings_model && !is_text && self.samples.is_some(), of_own),
            ("run.data", brings_model && run.data.is_some(), of_built_in),
            ("run.model", (brings_model || is_text) && run.model != ModelSection::default(), of_built_in),
            (
                "run.data.file",
                is_other_file,
                "kind = \"digits\" brings its own; for this file write kind = \"file\"",
            ),
        ] {
            if is_wrong {
                return Err(source.mistake(key, words));
            }
        }
        Ok(())
    }
}

/// The name and bytes of the file that `[run.data]` names.
fn data_file(
    run: &RunFile,
    folder: &Path,
    source: &SourceText<'_>,
) -> Result<(String, Vec<u8>), ScenarioError> {
    let words = "needs its file: add [run.data] with file = \"my.csv\", a path from the scenario's folder";
    let data = run.data.as_ref().ok_or_else(|| source.mistake("task.kind", words))?;
    let unreadable = |error: std::io::Error| {
        let words = format!("cannot read {}: {error}; give a path from the scenario's folder", data.file);
        source.mistake("run.data.file", words)
    };
    Ok((data.file.clone(), std::fs::read(folder.join(&data.file)).map_err(unreadable)?))
}

/// How many characters of a text are trained by default.
const CHARACTERS_DEFAULT: u32 = 100_000;
const PARAMETERS_DEFAULT: usize = 2000;
const SAMPLES_DEFAULT: u32 = 640;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExpectSection {
    survivors: Option<SurvivorOutcome>,
    joiners: Option<JoinOutcome>,
    restarted: Option<bool>,
    steps: u64,
    merged: Option<Whole<1, { PEERS_MAX as u64 }>>,
    patience: Option<Time>,
    loss_tolerance: Option<Within<Share>>,
}

impl ExpectSection {
    fn expect(&self) -> Expect {
        let default = Expect::default();
        Expect {
            survivors: self.survivors.unwrap_or(default.survivors),
            joiners: self.joiners.unwrap_or(default.joiners),
            restarted: self.restarted,
            steps: self.steps,
            merged: self.merged.map_or(default.merged, |count| count.count()),
            patience: self.patience.map_or(default.patience, |time| time.0),
            loss_tolerance: self.loss_tolerance.map_or(default.loss_tolerance, |share| share.0),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SweepSection {
    peers: Option<Whole<1, { SWEEP_PEERS_MAX as u64 }>>,
    parameters: Option<Whole<1, PARAMETERS_MAX>>,
    epochs: Option<Whole<1, EPOCHS_MAX>>,
    sample_time: Option<Time>,
    swarm: bool,
}

const PARAMETERS_MAX: u64 = 100_000_000;
/// Most connections of a link, as of the stripes of a direct lane.
const CONNECTIONS_MAX: u64 = 16;
const SAMPLES_MAX: u64 = 10_000_000;
const EPOCHS_MAX: u64 = 1_000_000_000;
/// Most repetitions of a fault, frames, or joiners.
const TIMES_MAX: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Fault, FaultTime, Groups, PlannedFault};

    const HEAD: &str = "about = \"x\"\npeers = 5\n[task]\nkind = \"integers\"\n[run]\nbatch = 64\n";

    fn parsed(rest: &str) -> Result<Scenario, ScenarioError> {
        parse("x", &format!("{HEAD}{rest}"), Path::new("."), Size::Full)
    }

    fn words(rest: &str) -> String {
        parsed(rest).err().expect("a mistake").to_string()
    }

    #[test]
    fn a_fault_is_read() {
        let scenario =
            parsed("[[faults]]\nat = \"2s\"\nkind = \"partition\"\nsplit = [3, 2]\nfor = \"20s\"").unwrap();
        let groups = Groups::Split(vec![3, 2]);
        let fault = Fault::Partition { groups, duration: Some(Duration::from_secs(20)) };
        let when = FaultTime::Training(Duration::from_secs(2));
        assert_eq!(scenario.faults, [PlannedFault { when, within: Duration::ZERO, fault }]);
    }

    #[test]
    fn a_mistake_is_reported_with_its_line_and_key() {
        let unknown = words("[links]\nlatensy = \"2ms\"");
        assert!(unknown.contains("line 8") && unknown.contains("latensy"), "{unknown}");
        let time = words("[links]\nlatency = \"fast\"");
        assert!(time.contains("line 8") && time.contains("250ms"), "{time}");
        let single = words("[faults]\nkind = \"crash\"");
        assert!(single.contains("line 7") && single.ends_with("write [[faults]]"), "{single}");
        let run = words("[run.sync]\ntopology = \"star\"");
        assert!(run.contains("line 8") && run.contains("star"), "{run}");
        let nobody = words("[[faults]]\nkind = \"crash\"\nat = \"2s\"\npeers = [1, 7]");
        assert_eq!(nobody, "line 10, `peers`: there is no peer 7; they are 0 to 4");
        let never = words("[[faults]]\nkind = \"crash\"\npeers = [1]");
        assert!(never.starts_with("line 7, `at`"), "{never}");
        let idle = words("[[faults]]\nkind = \"leave\"\nat_step = 3\nany = 1\nfor = \"3s\"");
        assert_eq!(idle, "line 11, `for`: does not apply to this kind of fault; allowed: peers, any");
        let former = words("[run.sync]\nkind = \"quorum\"");
        assert_eq!(former, "line 8: `kind` = \"quorum\" is now called \"backup-workers\"");
        let nobody = "about = \"x\"\npeers = 0\n[task]\nkind = \"integers\"";
        assert!(parse("x", nobody, Path::new("."), Size::Full).is_err());
    }

    #[test]
    fn invalid_values_are_refused_with_their_line_and_key() {
        for (rest, expected) in [
            ("[links]\nloss = 2", "from 0 to 1"),
            ("[links]\nloss = nan", "from 0 to 1"),
            ("[links]\nconnections = 17", "from 1 to 16"),
            ("[links]\nup_mbit = 0", "from 0.001"),
            ("[run.optimizer]\nrate = 0", "line 8, `run.optimizer.rate`: is 0"),
            ("epochs = 0", "line 7, `run.epochs`"),
            ("[run.data]\nfile = \"my.csv\"", "line 7, `run.data`: only for"),
            ("[run.model]\nkind = \"softmax\"", "line 7, `run.model`: only for"),
            ("[expect]\nsteps = 401", "line 8, `expect.steps`: the run has no more than 400 steps"),
        ] {
            let words = words(rest);
            assert!(words.contains(expected), "{rest}: {words}");
        }
        for (fault, expected) in [
            ("kind = \"crash\"\npeers = []", "line 10, `peers`"),
            ("kind = \"crash\"\npeers = [1, 1]", "line 10, `peers`: peer 1 is named twice"),
            ("kind = \"crash\"\nany = 6", "line 10, `any`: at most 5, the number of peers"),
            ("kind = \"cut\"\nbetween = [2, 2]", "line 10, `between`: peer 2"),
            ("kind = \"cut\"\nbetween = [0, 1, 2]", "line 10, `between`: name two"),
            ("kind = \"partition\"\ngroups = [[0, 1]]", "line 10, `groups`"),
            ("kind = \"partition\"\ngroups = [[0, 1], [1, 2]]", "line 10, `groups`: peer 1"),
            ("kind = \"partition\"\nsplit = [1]", "line 10, `split`"),
            ("kind = \"partition\"\nsplit = [1, 9]", "line 10, `split`: every part"),
            ("kind = \"partition\"\nsplit = [9223372036854775807, 1]", "from 1 to 1000"),
            (
                "kind = \"flap\"\nbetween = [0, 1]\nevery = \"1s\"\nfor = \"2s\"",
                "line 12, `for`: must be shorter",
            ),
            ("kind = \"churn\"\nevery = \"0s\"", "line 10, `every`"),
            ("kind = \"slow\"\nany = 1\nslower = nan", "from 1 to 1000000"),
            ("kind = \"bursts\"\nany = 1\nslower = 2\nchance = 1.5", "from 0 to 1"),
            ("kind = \"join\"\ncount = 1000000", "from 1 to 1000"),
            ("kind = \"restart\"\nany = 1\nfor = \"1s\"\ndisk = \"full\"", "line 12, `disk`"),
        ] {
            let words = words(&format!("[[faults]]\nat_step = 3\n{fault}"));
            assert!(words.contains(expected), "{fault}: {words}");
        }
        let late = words("[[faults]]\nat_step = 400\nkind = \"crash\"\nany = 1");
        assert_eq!(late, "line 8, `at_step`: the run has 400 steps: 0 to 399");
    }

    #[test]
    fn a_sweep_must_have_the_peers_that_faults_name() {
        let text =
            format!("{HEAD}[[faults]]\nat_step = 3\nkind = \"crash\"\npeers = [3]\n[sweep]\npeers = 2");
        let error = parse("x", &text, Path::new("."), Size::Sweep).err().unwrap().to_string();
        assert_eq!(
            error,
            "line 12, `sweep.peers`: a fault names peer 3, but there are only 2 peers (numbered from 0): give more peers, or change the fault"
        );
    }

    /// The names that an error message offers in place of an unknown one.
    fn offered(error: &str) -> Vec<String> {
        let offered = error.split_once("expected").expect("it says what may be there").1;
        offered.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn every_key_is_explained() {
        let scenario =
            parse("keys", KEYS, Path::new("."), Size::Full).unwrap_or_else(|error| panic!("{error}"));
        assert!(parse("keys", KEYS, Path::new("."), Size::Sweep).is_ok());
        assert!(scenario.faults.len() > 1);
        // Whether a line of the file has the key, perhaps commented out.
        let is_explained = |key: &str| {
            KEYS.lines().any(|line| {
                line.trim_start_matches(['#', ' '])
                    .strip_prefix(key)
                    .is_some_and(|rest| rest.trim_start().starts_with('='))
            })
        };
        for section in [
            "links",
            "task",
            "run",
            "run.data",
            "run.model",
            "run.optimizer",
            "[run.optimizer.groups]",
            "run.sync",
            "run.shards",
            "run.partition",
            "run.network",
            "[faults]",
            "expect",
            "sweep",
        ] {
            assert!(KEYS.contains(&format!("[{section}]")), "[{section}]");
            let text = format!("about = \"x\"\npeers = 2\n[{section}]\nnonsense = 1");
            let error = parse("x", &text, Path::new("."), Size::Full).err().unwrap().to_string();
            for key in offered(&error) {
                let is_section = KEYS.contains(&format!("[{section}.{key}]"))
                    || KEYS.contains(&format!("[[{section}.{key}]]"));
                assert!(is_explained(&key) || is_section, "[{section}] {key}");
            }
        }
        for (key, section) in [
            ("kind", "[faults]"),
            ("kind", "task"),
            ("disk", "[faults]"),
            ("preset", "links"),
            ("survivors", "expect"),
            ("joiners", "expect"),
        ] {
            let text = format!("about = \"x\"\npeers = 2\n[{section}]\n{key} = \"nonsense\"");
            let error = parse("x", &text, Path::new("."), Size::Full).err().unwrap().to_string();
            for name in offered(&error) {
                assert!(
                    KEYS.contains(&format!("\"{name}\"")) || KEYS.contains(&format!("# {name} ")),
                    "[{section}] {key} = {name}"
                );
            }
        }
    }
}
