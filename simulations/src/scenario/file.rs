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

use std::fmt;
use std::path::Path;
use std::time::Duration;

use peergrad::specification::{RunFile, SpecificationError};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

use super::{
    Ending, Expect, Fault, Groups, PEERS_MAX, Planned, SWEEP_PEERS_MAX, Scenario, Welcome, When, Whom,
};
use crate::disk::DiskMode;
use crate::links::Links;
use crate::workload::Workload;

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
    let mut swept_peers = peers;
    if size == Size::Sweep {
        swept_peers = file.sweep.peers.unwrap_or(peers).min(SWEEP_PEERS_MAX);
        file.task.parameters = file.sweep.parameters.unwrap_or(file.task.parameters);
        file.run.passes = file.sweep.passes.unwrap_or(file.run.passes);
    }
    Ok(Scenario {
        name: name.to_owned(),
        about: file.about,
        peers: swept_peers,
        links: file.links.links(),
        workload: file.task.workload(&file.run, folder)?,
        sample_time: file.task.sample_time.map_or(Duration::from_micros(20), |time| time.0),
        write_time: file.task.write_time.map_or(Duration::from_millis(1), |time| time.0),
        faults,
        expect: file.expect.expect(),
        is_swarm: file.sweep.swarm,
    })
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

/// One `[[faults]]`: flat, so that a mistake is found on its own line.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FaultSection {
    kind: Option<Kind>,
    at: Option<Time>,
    at_step: Option<u64>,
    at_start: Option<Time>,
    within: Option<Time>,
    #[serde(rename = "for")]
    lasting: Option<Time>,
    every: Option<Time>,
    times: Option<u32>,
    peers: Option<Vec<usize>>,
    any: Option<usize>,
    groups: Option<Vec<Vec<usize>>>,
    split: Option<Vec<usize>>,
    between: Option<[usize; 2]>,
    one_way: Option<bool>,
    reset: Option<bool>,
    slower: Option<f64>,
    chance: Option<f64>,
    up_mbit: Option<f64>,
    down_mbit: Option<f64>,
    count: Option<usize>,
    disk: Option<DiskSetting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Partition,
    Cut,
    Flap,
    Crash,
    Restart,
    Leave,
    Slow,
    Bursts,
    Pause,
    Panic,
    Hang,
    Clone,
    Garbage,
    StaleViews,
    Disk,
    Throttle,
    Join,
    Churn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DiskSetting {
    Kept,
    Lost,
    LosesLast,
    Lying,
    Full,
}

/// Where a fault stands, for telling of mistakes in it.
struct Context<'a> {
    place: &'a Place<'a>,
    section: &'a Spanned<FaultSection>,
    peers: usize,
}

impl Context<'_> {
    /// The line is the key's, or the section's where the key is missing.
    fn mistake(&self, key: &str, words: &str) -> ScenarioError {
        // The span is the header's; the section goes on to the next one.
        let span = self.section.span();
        let rest = &self.place.text[span.start..];
        let within = &rest[..rest[1..].find("\n[").map_or(rest.len(), |next| next + 2)];
        let is_key = |line: &str| line.trim_start().split(['=', ' ']).next() == Some(key);
        let before: usize = within.lines().take_while(|line| !is_key(line)).map(|line| line.len() + 1).sum();
        let at = span.start + if before < within.len() { before } else { 0 };
        self.place.mistake_at(key, at, words)
    }

    fn need<T>(&self, key: &str, value: Option<T>, words: &str) -> Result<T, ScenarioError> {
        value.ok_or_else(|| self.mistake(key, words))
    }

    fn check_peers(&self, key: &str, peers: &[usize]) -> Result<(), ScenarioError> {
        match peers.iter().find(|&&peer| peer >= self.peers) {
            Some(peer) => {
                let words = format!("there is no peer {peer}; they are 0 to {}", self.peers - 1);
                Err(self.mistake(key, &words))
            }
            None => Ok(()),
        }
    }
}

impl FaultSection {
    fn planned(&self, context: &Context<'_>) -> Result<Planned, ScenarioError> {
        let when = match (self.at, self.at_step, self.at_start) {
            (Some(time), None, None) => When::Training(time.0),
            (None, Some(step), None) => When::Step(step),
            (None, None, Some(time)) => When::Start(time.0),
            _ => return Err(context.mistake("at", "a fault has one of `at`, `at_step` and `at_start`")),
        };
        let within = self.within.map_or(Duration::ZERO, |time| time.0);
        let kind = context.need("kind", self.kind, "say what goes wrong, e.g. \"crash\"")?;
        self.check_keys(kind, context)?;
        Ok(Planned { when, within, fault: self.fault(kind, context)? })
    }

    fn fault(&self, kind: Kind, context: &Context<'_>) -> Result<Fault, ScenarioError> {
        let lasting = self.lasting.map(|time| time.0);
        let span = || context.need("for", lasting, "say for how long, e.g. \"5s\"");
        let between = || {
            let between = context.need("between", self.between, "name two peers, e.g. [0, 1]")?;
            context.check_peers("between", &between)?;
            Ok::<_, ScenarioError>(between)
        };
        let every = || Ok::<_, ScenarioError>(context.need("every", self.every, "how often, e.g. \"2s\"")?.0);
        let times = self.times.unwrap_or(10);
        let percent = || {
            let slower = context.need("slower", self.slower, "how many times slower, e.g. 4")?;
            Ok::<_, ScenarioError>((slower.clamp(1.0, 1e6) * 100.0) as u32)
        };
        let whom = || self.whom(context);
        Ok(match kind {
            Kind::Partition => Fault::Partition { groups: self.groups(context)?, lasting },
            Kind::Cut => Fault::Cut { between: between()?, one_way: self.one_way.unwrap_or(false), lasting },
            Kind::Flap => Fault::Flap { between: between()?, times, every: every()?, lasting: span()? },
            Kind::Crash => Fault::Crash { whom: whom()?, has_reset: self.reset.unwrap_or(true) },
            Kind::Restart => Fault::Restart {
                whom: whom()?,
                lasting: span()?,
                keeps_disk: self.disk.unwrap_or(DiskSetting::Kept) == DiskSetting::Kept,
            },
            Kind::Leave => Fault::Leave { whom: whom()? },
            Kind::Slow => Fault::Slow { whom: whom()?, percent: percent()?, lasting },
            Kind::Bursts => Fault::Bursts {
                whom: whom()?,
                per_mille: (self.chance.unwrap_or(0.1).clamp(0.0, 1.0) * 1000.0) as u32,
                percent: percent()?,
            },
            Kind::Pause => Fault::Pause { whom: whom()?, lasting: span()? },
            Kind::Panic => Fault::Panic { whom: whom()? },
            Kind::Hang => Fault::Hang { whom: whom()? },
            Kind::Clone => Fault::Clone { whom: whom()? },
            Kind::Garbage => Fault::Garbage { whom: whom()?, count: self.count.unwrap_or(10) },
            Kind::StaleViews => Fault::StaleViews { whom: whom()? },
            Kind::Disk => Fault::Disk { whom: whom()?, mode: self.disk_mode(context)? },
            Kind::Throttle => Fault::Throttle {
                whom: whom()?,
                up: bits(context.need("up_mbit", self.up_mbit, "a rate, e.g. 1.0")?),
                down: bits(context.need("down_mbit", self.down_mbit, "a rate, e.g. 10.0")?),
                lasting,
            },
            Kind::Join => Fault::Join { count: self.count.unwrap_or(1) },
            Kind::Churn => Fault::Churn { times, every: every()? },
        })
    }

    fn whom(&self, context: &Context<'_>) -> Result<Whom, ScenarioError> {
        match (&self.peers, self.any) {
            (Some(peers), None) => {
                context.check_peers("peers", peers)?;
                Ok(Whom::Peers(peers.clone()))
            }
            (None, Some(count)) => Ok(Whom::Any(count)),
            _ => {
                Err(context.mistake("peers", "name peers, e.g. peers = [2], or let the seed choose: any = 1"))
            }
        }
    }

    fn groups(&self, context: &Context<'_>) -> Result<Groups, ScenarioError> {
        match (&self.groups, &self.split) {
            (Some(groups), None) => {
                groups.iter().try_for_each(|group| context.check_peers("groups", group))?;
                Ok(Groups::Peers(groups.clone()))
            }
            (None, Some(split)) if split.len() > 1 && split.iter().all(|&part| part > 0) => {
                Ok(Groups::Split(split.clone()))
            }
            _ => Err(context.mistake("split", "name groups = [[0, 1], [2]], or proportions: split = [3, 2]")),
        }
    }

    fn disk_mode(&self, context: &Context<'_>) -> Result<DiskMode, ScenarioError> {
        match self.disk {
            Some(DiskSetting::LosesLast) => Ok(DiskMode::LosesLast),
            Some(DiskSetting::Lying) => Ok(DiskMode::Lying),
            Some(DiskSetting::Full) => Ok(DiskMode::Full),
            _ => Err(context.mistake("disk", "\"loses-last\", \"lying\" or \"full\"")),
        }
    }

    /// A key that says nothing to this kind of fault was meant for something.
    fn check_keys(&self, kind: Kind, context: &Context<'_>) -> Result<(), ScenarioError> {
        let whom = ["peers", "any"].as_slice();
        let allowed: Vec<&str> = match kind {
            Kind::Partition => vec!["groups", "split", "for"],
            Kind::Cut => vec!["between", "one_way", "for"],
            Kind::Flap => vec!["between", "times", "every", "for"],
            Kind::Crash => [whom, &["reset"]].concat(),
            Kind::Restart => [whom, &["for", "disk"]].concat(),
            Kind::Slow => [whom, &["slower", "for"]].concat(),
            Kind::Bursts => [whom, &["slower", "chance"]].concat(),
            Kind::Pause => [whom, &["for"]].concat(),
            Kind::Leave | Kind::Panic | Kind::Hang | Kind::Clone | Kind::StaleViews => whom.to_vec(),
            Kind::Garbage => [whom, &["count"]].concat(),
            Kind::Disk => [whom, &["disk"]].concat(),
            Kind::Throttle => [whom, &["up_mbit", "down_mbit", "for"]].concat(),
            Kind::Join => vec!["count"],
            Kind::Churn => vec!["times", "every"],
        };
        let given = [
            ("for", self.lasting.is_some()),
            ("every", self.every.is_some()),
            ("times", self.times.is_some()),
            ("peers", self.peers.is_some()),
            ("any", self.any.is_some()),
            ("groups", self.groups.is_some()),
            ("split", self.split.is_some()),
            ("between", self.between.is_some()),
            ("one_way", self.one_way.is_some()),
            ("reset", self.reset.is_some()),
            ("slower", self.slower.is_some()),
            ("chance", self.chance.is_some()),
            ("up_mbit", self.up_mbit.is_some()),
            ("down_mbit", self.down_mbit.is_some()),
            ("count", self.count.is_some()),
            ("disk", self.disk.is_some()),
        ];
        match given.iter().find(|(key, is_given)| *is_given && !allowed.contains(key)) {
            Some((key, _)) => {
                Err(context
                    .mistake(key, &format!("says nothing to this fault; allowed: {}", allowed.join(", "))))
            }
            None => Ok(()),
        }
    }
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

/// A time as people write it: "250ms", "2s", "1.5min".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"250ms\", \"2s\" or \"1.5min\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                time_of(text).map(Time).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

fn time_of(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().ok()?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "about = \"x\"\npeers = 5\n[task]\nkind = \"integers\"\n[run]\nbatch = 64\n";

    fn parsed(rest: &str) -> Result<Scenario, ScenarioError> {
        parse("x", &format!("{HEAD}{rest}"), Path::new("."), Size::Full)
    }

    fn words(rest: &str) -> String {
        parsed(rest).err().expect("a mistake").to_string()
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(time_of("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(time_of(" 1.5 min"), Some(Duration::from_secs(90)));
        assert_eq!(time_of("20us"), Some(Duration::from_micros(20)));
        assert_eq!([time_of("5"), time_of("fast"), time_of("-1s"), time_of("2 weeks")], [None; 4]);
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
    }
}
