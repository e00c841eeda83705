//! One `[[faults]]` section: which keys each kind of fault has, and what is told about a mistake in them.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::time::Time;
use super::{Place, ScenarioError, bits};
use crate::disk::DiskMode;
use crate::scenario::{Fault, Groups, Planned, When, Whom};

/// One `[[faults]]`: flat, so that a mistake is found on its own line.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FaultSection {
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
pub(super) struct Context<'a> {
    pub(super) place: &'a Place<'a>,
    pub(super) section: &'a Spanned<FaultSection>,
    pub(super) peers: usize,
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
    pub(super) fn planned(&self, context: &Context<'_>) -> Result<Planned, ScenarioError> {
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
