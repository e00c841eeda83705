//! Scenario files: TOML that a user can write.
//!
//! ```toml
//! about = "five peers, cut 3|2 for twenty seconds"
//! peers = 5
//! [links]
//! preset = "home"            # lan, home or continents; any of latency, jitter, loss, up_mbit, down_mbit changes it
//! [task]
//! kind = "digits"            # digits, squares, integers, or file
//! [run]                      # as in a run.toml
//! passes = 10
//! [[faults]]
//! at = "2s"                  # after training began; or at_step = 40; or at_start = "50ms"
//! kind = "partition"
//! split = [3, 2]
//! for = "20s"
//! [expect]
//! survivors = "stop"
//! ```
//! A mistake is told with its line and key.

use std::path::Path;
use std::time::Duration;

use peergrad::specification::{RunFile, SpecificationError};
use serde::Deserialize;
use toml::Spanned;

use super::{Ending, Expect, PEERS_MAX, PeersError, SWEEP_PEERS_MAX, Scenario, Welcome};
use crate::links::Links;
use crate::workload::Workload;

mod fault;
mod time;

use fault::{Context, FaultSection};
use time::Time;

/// A scenario file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// It is not TOML, or a key is unknown or of the wrong type; with the line.
    #[error("{0}")]
    Toml(String),
    /// A key has a value that makes no sense.
    #[error("line {line}, `{key}`: {words}")]
    Mistake {
        /// The line in the file.
        line: usize,
        /// The key.
        key: String,
        /// What is wrong and what to write.
        words: String,
    },
    /// Its small size is too small for its faults.
    #[error("[sweep] peers: {0}; let the seed choose with any = 1, or give proportions")]
    Sweep(#[from] PeersError),
    /// The run that it describes cannot be founded.
    #[error("[run]: {0}")]
    Run(String),
    /// The data file that it names cannot be read.
    #[error("[run.data] file: cannot read {file}: {reason}; give a path from the scenario's folder")]
    Data {
        /// The path.
        file: String,
        /// What the system said.
        reason: String,
    },
}

/// In which size a scenario is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As it stands there.
    Full,
    /// With what `[sweep]` changes: small enough to be run a thousand times.
    Sweep,
}

/// Reads a scenario; paths in it are taken from `folder`.
///
/// # Errors
/// Says where the mistake is.
pub fn parse(name: &str, text: &str, folder: &Path, size: Size) -> Result<Scenario, ScenarioError> {
    let mut file: ScenarioFile =
        toml::from_str(text).map_err(|error| ScenarioError::Toml(error.to_string()))?;
    let place = Place { text };
    let peers = *file.peers.get_ref();
    if peers == 0 || peers > PEERS_MAX {
        return Err(place.mistake_at("peers", file.peers.span().start, "1 to 1000 peers"));
    }
    let mut faults = Vec::new();
    for section in &file.faults {
        faults.push(section.get_ref().planned(&Context { place: &place, section, peers })?);
    }
    let mut wanted_peers = peers;
    if size == Size::Sweep {
        wanted_peers = file.sweep.peers.unwrap_or(peers).min(SWEEP_PEERS_MAX);
        file.task.parameters = file.sweep.parameters.unwrap_or(file.task.parameters);
        file.run.passes = file.sweep.passes.unwrap_or(file.run.passes);
    }
    let scenario = Scenario {
        name: name.to_owned(),
        about: file.about,
        peers,
        links: file.links.links(),
        workload: file.task.workload(&file.run, folder)?,
        sample_time: file.task.sample_time.map_or(Duration::from_micros(20), |time| time.0),
        write_time: file.task.write_time.map_or(Duration::from_millis(1), |time| time.0),
        faults,
        expect: file.expect.expect(),
        is_swarm: file.sweep.swarm,
    };
    Ok(scenario.with_peers(wanted_peers)?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    about: String,
    peers: Spanned<usize>,
    #[serde(default)]
    links: LinksSection,
    task: TaskSection,
    #[serde(default = "default_run")]
    run: RunFile,
    #[serde(default)]
    faults: Vec<Spanned<FaultSection>>,
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
    loss: Option<f64>,
    up_mbit: Option<f64>,
    down_mbit: Option<f64>,
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
        let set = |place: &mut Duration, time: Option<Time>| *place = time.map_or(*place, |time| time.0);
        set(&mut links.latency, self.latency);
        set(&mut links.jitter, self.jitter);
        set(&mut links.reset_patience, self.reset_patience);
        set(&mut links.silence_patience, self.silence_patience);
        if let Some(loss) = self.loss {
            links.loss_per_million = (loss.clamp(0.0, 1.0) * 1e6) as u32;
        }
        links.up = self.up_mbit.map_or(links.up, |mbit| Some(bits(mbit)));
        links.down = self.down_mbit.map_or(links.down, |mbit| Some(bits(mbit)));
        links
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskSection {
    kind: TaskKind,
    #[serde(default = "parameters_default")]
    parameters: usize,
    #[serde(default = "samples_default")]
    samples: u32,
    sample_time: Option<Time>,
    write_time: Option<Time>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TaskKind {
    Digits,
    Squares,
    Integers,
    File,
}

fn parameters_default() -> usize {
    2000
}

fn samples_default() -> u32 {
    640
}

impl TaskSection {
    fn workload(&self, run: &RunFile, folder: &Path) -> Result<Workload, ScenarioError> {
        let workload = match self.kind {
            TaskKind::Digits => Workload::digits(run),
            TaskKind::Squares => Workload::squares(run, self.parameters, self.samples),
            TaskKind::Integers => Workload::integers(run, self.parameters, self.samples),
            TaskKind::File => {
                let file = &run.data().map_err(run_mistake)?.file;
                let unreadable = |error: std::io::Error| ScenarioError::Data {
                    file: file.clone(),
                    reason: error.to_string(),
                };
                let bytes = std::fs::read(folder.join(file)).map_err(unreadable)?;
                Workload::data_file(run, file, &bytes)
            }
        };
        workload.map_err(run_mistake)
    }
}

fn run_mistake(error: SpecificationError) -> ScenarioError {
    ScenarioError::Run(error.to_string())
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExpectSection {
    survivors: Option<Ending>,
    joiners: Option<Welcome>,
    steps: u64,
    patience: Option<Time>,
}

impl ExpectSection {
    fn expect(&self) -> Expect {
        let default = Expect::default();
        Expect {
            survivors: self.survivors.unwrap_or(default.survivors),
            joiners: self.joiners.unwrap_or(default.joiners),
            steps: self.steps,
            patience: self.patience.map_or(default.patience, |time| time.0),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SweepSection {
    peers: Option<usize>,
    parameters: Option<usize>,
    passes: Option<u64>,
    swarm: bool,
}

/// The text, for finding lines.
struct Place<'a> {
    text: &'a str,
}

impl Place<'_> {
    fn mistake_at(&self, key: &str, at: usize, words: &str) -> ScenarioError {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        ScenarioError::Mistake { line, key: key.to_owned(), words: words.to_owned() }
    }
}

fn bits(mbit: f64) -> u64 {
    (mbit.max(0.001) * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Fault, Groups, Planned, When};

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
        let fault = Fault::Partition { groups, lasting: Some(Duration::from_secs(20)) };
        let when = When::Training(Duration::from_secs(2));
        assert_eq!(scenario.faults, [Planned { when, within: Duration::ZERO, fault }]);
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_key() {
        let unknown = words("[links]\nlatensy = \"2ms\"");
        assert!(unknown.contains("line 8") && unknown.contains("latensy"), "{unknown}");
        let time = words("[links]\nlatency = \"fast\"");
        assert!(time.contains("line 8") && time.contains("250ms"), "{time}");
        let run = words("[run.sync]\ntopology = \"star\"");
        assert!(run.contains("line 8") && run.contains("star"), "{run}");
        let nobody = words("[[faults]]\nkind = \"crash\"\nat = \"2s\"\npeers = [1, 7]");
        assert_eq!(nobody, "line 10, `peers`: there is no peer 7; they are 0 to 4");
        let never = words("[[faults]]\nkind = \"crash\"\npeers = [1]");
        assert!(never.starts_with("line 7, `at`"), "{never}");
        let idle = words("[[faults]]\nkind = \"leave\"\nat_step = 3\nany = 1\nfor = \"3s\"");
        assert_eq!(idle, "line 11, `for`: says nothing to this fault; allowed: peers, any");
        let nobody = "about = \"x\"\npeers = 0\n[task]\nkind = \"integers\"";
        assert!(parse("x", nobody, Path::new("."), Size::Full).is_err());
        let far = format!("{HEAD}[[faults]]\nkind = \"crash\"\nat = \"2s\"\npeers = [4]\n[sweep]\npeers = 3");
        assert!(parse("x", &far, Path::new("."), Size::Full).is_ok());
        let words =
            parse("x", &far, Path::new("."), Size::Sweep).err().expect("nobody would crash").to_string();
        assert!(words.starts_with("[sweep] peers: a fault names peer 4"), "{words}");
    }
}
