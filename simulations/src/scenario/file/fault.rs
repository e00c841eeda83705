//! One `[[faults]]` section: the keys of each kind of fault, and the messages on mistakes in them.

use std::time::Duration;

use serde::Deserialize;

use super::number::{Mbit, Share, Times, Whole, Within};
use super::source_text::SourceText;
use super::time::Time;
use super::{ScenarioError, TIMES_MAX};
use crate::disk::DiskMode;
use crate::frame_faults::{FrameFault, FrameKind};
use crate::host::Crash;
use crate::scenario::{Directions, Fault, FaultTime, Groups, PEERS_MAX, PlannedFault, Targets};

/// A number of times or of peers.
type Count = Whole<1, TIMES_MAX>;
/// A peer's index; whether there is such a peer is checked later.
type PeerIndex = Whole<0, { PEERS_MAX as u64 - 1 }>;

/// One `[[faults]]` section. It has a field for each key of any kind of fault, hence many: in a flat table, a mistake is reported with its
/// own line, and a key that does not belong to the kind is named.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FaultSection {
    kind: Option<Kind>,
    at: Option<Time>,
    at_step: Option<u64>,
    at_start: Option<Time>,
    at_merge: Option<Time>,
    within: Option<Time>,
    #[serde(rename = "for")]
    duration: Option<Time>,
    every: Option<Time>,
    times: Option<Count>,
    peers: Option<Vec<PeerIndex>>,
    any: Option<Whole<1, { PEERS_MAX as u64 }>>,
    groups: Option<Vec<Vec<PeerIndex>>>,
    split: Option<Vec<Whole<1, { PEERS_MAX as u64 }>>>,
    between: Option<Vec<PeerIndex>>,
    one_way: Option<bool>,
    reset: Option<bool>,
    slower: Option<Within<Times>>,
    chance: Option<Within<Share>>,
    mean: Option<Within<Share>>,
    up_mbit: Option<Within<Mbit>>,
    down_mbit: Option<Within<Mbit>>,
    count: Option<Count>,
    damaged: Option<Count>,
    disk: Option<DiskSetting>,
    frames: Option<FrameSetting>,
    of: Option<FrameKind>,
    by: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Partition,
    Cut,
    Flap,
    Crash,
    Restart,
    Blackout,
    Leave,
    Remove,
    Unreachable,
    Slow,
    Bursts,
    Noise,
    Pause,
    Panic,
    Hang,
    Busy,
    EndRun,
    Clone,
    Garbage,
    StaleViews,
    Frames,
    Disk,
    Throttle,
    Join,
    Orders,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FrameSetting {
    Lost,
    Withheld,
    Changed,
    Wrong,
    Repeated,
    Late,
}

/// The position of a fault in the file, for error messages.
pub(super) struct FaultContext<'a> {
    pub(super) source: &'a SourceText<'a>,
    pub(super) index: usize,
    pub(super) peers: usize,
}

impl FaultContext<'_> {
    /// An error at the line of the key, or of the section if the key is missing.
    fn mistake(&self, key: &str, words: &str) -> ScenarioError {
        self.source.mistake(&format!("faults.{}.{key}", self.index), words)
    }

    fn need<T>(&self, key: &str, value: Option<T>, words: &str) -> Result<T, ScenarioError> {
        value.ok_or_else(|| self.mistake(key, words))
    }

    /// Checks a list of peers: each must exist, and occur once.
    fn peers(&self, key: &str, peers: &[PeerIndex]) -> Result<Vec<usize>, ScenarioError> {
        let peers: Vec<usize> = peers.iter().map(|peer| peer.count()).collect();
        if let Some(peer) = peers.iter().find(|&&peer| peer >= self.peers) {
            let words = format!("there is no peer {peer}; they are 0 to {}", self.peers - 1);
            return Err(self.mistake(key, &words));
        }
        if let Some((_, peer)) = peers.iter().enumerate().find(|(index, peer)| peers[..*index].contains(peer))
        {
            return Err(self.mistake(key, &format!("peer {peer} is named twice; name it once")));
        }
        Ok(peers)
    }
}

impl FaultSection {
    pub(super) fn planned(&self, context: &FaultContext<'_>) -> Result<PlannedFault, ScenarioError> {
        let times = [
            ("at", self.at.map(|time| FaultTime::Training(time.0))),
            ("at_step", self.at_step.map(FaultTime::Step)),
            ("at_start", self.at_start.map(|time| FaultTime::Start(time.0))),
            ("at_merge", self.at_merge.map(|time| FaultTime::Merge(time.0))),
        ];
        let mut given = times.into_iter().filter_map(|(key, when)| Some((key, when?)));
        let when = match (given.next(), given.next()) {
            (Some((_, when)), None) => when,
            (None, _) => {
                let words =
                    "say when: at = \"2s\" after training began, at_step = 40, or at_start = \"50ms\"";
                return Err(context.mistake("at", words));
            }
            (Some(_), Some((key, _))) => {
                let words = "a fault has one of `at`, `at_step`, `at_start` and `at_merge`; keep one";
                return Err(context.mistake(key, words));
            }
        };
        let within = self.within.map_or(Duration::ZERO, |time| time.0);
        let kind = context.need("kind", self.kind, "say what goes wrong, e.g. \"crash\"")?;
        self.check_keys(kind, context)?;
        Ok(PlannedFault { when, within, fault: self.fault(kind, context)? })
    }

    fn fault(&self, kind: Kind, context: &FaultContext<'_>) -> Result<Fault, ScenarioError> {
        let duration = self.duration();
        let targets = || self.targets(context);
        Ok(match kind {
            Kind::Partition => Fault::Partition { groups: self.groups(context)?, duration },
            Kind::Cut => {
                let directions = match self.one_way {
                    Some(true) => Directions::Forward,
                    Some(false) | None => Directions::Both,
                };
                Fault::Cut { between: self.between(context)?, directions, duration }
            }
            Kind::Flap => self.flap(context)?,
            Kind::Crash => {
                let crash = if self.reset == Some(false) { Crash::PowerLost } else { Crash::Killed };
                Fault::Crash { targets: targets()?, crash }
            }
            Kind::Restart => {
                let (targets, duration) = (targets()?, self.span(context)?);
                Fault::Restart { targets, duration, keeps_disk: self.keeps_disk(context)? }
            }
            Kind::Blackout => Fault::Blackout {
                duration: self.span(context)?,
                every: self.every.map_or(Duration::ZERO, |every| every.0),
                count: self.count.map(Whole::count),
                damaged: self.damaged.map_or(0, Whole::count),
            },
            Kind::Leave => Fault::Leave { targets: targets()? },
            Kind::Remove => Fault::Remove { targets: targets()? },
            Kind::Unreachable => Fault::Unreachable { targets: targets()?, duration },
            Kind::Slow => {
                Fault::Slow { targets: targets()?, percent: self.slower_percent(context)?, duration }
            }
            Kind::Bursts => Fault::Bursts {
                targets: targets()?,
                per_mille: (self.chance.map_or(0.1, |chance| chance.0) * 1000.0).round() as u32,
                percent: self.slower_percent(context)?,
            },
            Kind::Noise => Fault::Noise {
                targets: targets()?,
                percent: (self.mean.map_or(0.5, |mean| mean.0) * 100.0).round() as u32,
            },
            Kind::Pause => self.pause(context)?,
            Kind::Panic => Fault::Panic { targets: targets()? },
            Kind::Hang => Fault::Hang { targets: targets()? },
            Kind::Busy => Fault::Busy { targets: targets()?, duration: self.span(context)? },
            Kind::EndRun => Fault::EndRun { targets: targets()? },
            Kind::Clone => Fault::Clone { targets: targets()? },
            Kind::Garbage => {
                Fault::Garbage { targets: targets()?, count: self.count.map_or(10, Whole::count) }
            }
            Kind::StaleViews => Fault::StaleViews { targets: targets()? },
            Kind::Frames => self.frames(context)?,
            Kind::Disk => Fault::Disk { targets: targets()?, mode: self.disk_mode(context)?, duration },
            Kind::Throttle => self.throttle(context)?,
            Kind::Join => Fault::Join { count: self.count.map_or(1, Whole::count) },
            Kind::Orders => Fault::Orders { times: self.times(), every: self.every(context)? },
            Kind::Churn => Fault::Churn { times: self.times(), every: self.every(context)? },
        })
    }

    /// A fault of the frames that peers send.
    fn frames(&self, context: &FaultContext<'_>) -> Result<Fault, ScenarioError> {
        let words = "say what happens to them: \"lost\", \"withheld\", \"changed\", \"wrong\", \"repeated\" or \"late\"";
        let fault = match (context.need("frames", self.frames, words)?, self.by) {
            (FrameSetting::Late, by) => {
                FrameFault::Late(context.need("by", by, "say how late, e.g. \"2s\"")?.0)
            }
            (_, Some(_)) => return Err(context.mistake("by", "only frames = \"late\" has it; remove it")),
            (FrameSetting::Lost, None) => FrameFault::Lost,
            (FrameSetting::Withheld, None) => FrameFault::Withheld,
            (FrameSetting::Changed, None) => FrameFault::Changed,
            (FrameSetting::Wrong, None) => FrameFault::Wrong,
            (FrameSetting::Repeated, None) => FrameFault::Repeated,
        };
        Ok(Fault::Frames {
            targets: self.targets(context)?,
            fault,
            kind: self.of.unwrap_or(FrameKind::All),
            per_million: (self.chance.map_or(1.0, |chance| chance.0) * 1e6).round() as u32,
            duration: self.duration(),
        })
    }

    /// A cut or a partition, again and again.
    fn flap(&self, context: &FaultContext<'_>) -> Result<Fault, ScenarioError> {
        let duration = Some(self.span(context)?);
        let fault = match self.between {
            Some(_) => Fault::Cut { between: self.between(context)?, directions: Directions::Both, duration },
            None => Fault::Partition { groups: self.groups(context)?, duration },
        };
        self.repeated(fault, context)
    }

    /// A pause, or one again and again if the section says how often.
    fn pause(&self, context: &FaultContext<'_>) -> Result<Fault, ScenarioError> {
        let pause = Fault::Pause { targets: self.targets(context)?, duration: self.span(context)? };
        if self.every.is_some() { self.repeated(pause, context) } else { Ok(pause) }
    }

    fn throttle(&self, context: &FaultContext<'_>) -> Result<Fault, ScenarioError> {
        Ok(Fault::Throttle {
            targets: self.targets(context)?,
            up: context.need("up_mbit", self.up_mbit, "say how fast, e.g. 1.0")?.bits(),
            down: context.need("down_mbit", self.down_mbit, "say how fast, e.g. 10.0")?.bits(),
            duration: self.duration(),
        })
    }

    /// The fault `times` times, one `every` so often; each is over before the next one begins.
    fn repeated(&self, fault: Fault, context: &FaultContext<'_>) -> Result<Fault, ScenarioError> {
        let (every, fault) = (self.every(context)?, Box::new(fault));
        match self.duration() >= Some(every) {
            true => Err(context.mistake("for", "must be shorter than `every`")),
            false => Ok(Fault::Flap { fault, times: self.times(), every }),
        }
    }

    fn duration(&self) -> Option<Duration> {
        self.duration.map(|time| time.0)
    }

    /// The duration, of a fault that needs one.
    fn span(&self, context: &FaultContext<'_>) -> Result<Duration, ScenarioError> {
        context.need("for", self.duration(), "say for how long, e.g. \"5s\"")
    }

    fn between(&self, context: &FaultContext<'_>) -> Result<[usize; 2], ScenarioError> {
        let named = context.peers("between", self.between.as_deref().unwrap_or_default())?;
        let two = <[usize; 2]>::try_from(named).ok();
        context.need("between", two, "name two peers, e.g. [0, 1]")
    }

    fn every(&self, context: &FaultContext<'_>) -> Result<Duration, ScenarioError> {
        let every = context.need("every", self.every, "say how often, e.g. \"2s\"")?.0;
        match every.is_zero() {
            true => Err(context.mistake("every", "must be longer than 0, e.g. \"2s\"")),
            false => Ok(every),
        }
    }

    fn times(&self) -> u32 {
        self.times.map_or(10, |times| times.0 as u32)
    }

    /// How long a computation takes, in percent of its usual time.
    fn slower_percent(&self, context: &FaultContext<'_>) -> Result<u32, ScenarioError> {
        let slower = context.need("slower", self.slower, "say how many times slower, e.g. 4")?;
        Ok((slower.0 * 100.0) as u32)
    }

    fn targets(&self, context: &FaultContext<'_>) -> Result<Targets, ScenarioError> {
        match (&self.peers, self.any) {
            (Some(peers), None) if !peers.is_empty() => Ok(Targets::Peers(context.peers("peers", peers)?)),
            (None, Some(count)) if count.count() > context.peers => {
                Err(context.mistake("any", &format!("at most {}, the number of peers", context.peers)))
            }
            (None, Some(count)) => Ok(Targets::Any(count.count())),
            _ => {
                Err(context.mistake("peers", "name peers, e.g. peers = [2], or let the seed choose: any = 1"))
            }
        }
    }

    fn groups(&self, context: &FaultContext<'_>) -> Result<Groups, ScenarioError> {
        match (&self.groups, &self.split) {
            (Some(groups), None) => {
                context.peers("groups", &groups.concat())?;
                if groups.len() < 2 || groups.iter().any(Vec::is_empty) {
                    return Err(context
                        .mistake("groups", "at least two groups with a peer in each, e.g. [[0, 1], [2]]"));
                }
                Ok(Groups::Peers(
                    groups.iter().map(|group| group.iter().map(|peer| peer.count()).collect()).collect(),
                ))
            }
            (None, Some(split)) if split.len() > 1 => {
                let parts: Vec<usize> = split.iter().map(|part| part.count()).collect();
                let words = "every part needs a peer; the proportions leave one without, e.g. split = [1, 1] for halves";
                match Groups::sizes(&parts, context.peers).contains(&0) {
                    true => Err(context.mistake("split", words)),
                    false => Ok(Groups::Split(parts)),
                }
            }
            _ => Err(context.mistake("split", "name groups = [[0, 1], [2]], or proportions: split = [3, 2]")),
        }
    }

    fn keeps_disk(&self, context: &FaultContext<'_>) -> Result<bool, ScenarioError> {
        match self.disk {
            None | Some(DiskSetting::Kept) => Ok(true),
            Some(DiskSetting::Lost) => Ok(false),
            _ => Err(context
                .mistake("disk", "\"kept\" or \"lost\"; for a bad disk add a fault of kind = \"disk\"")),
        }
    }

    fn disk_mode(&self, context: &FaultContext<'_>) -> Result<DiskMode, ScenarioError> {
        match self.disk {
            Some(DiskSetting::LosesLast) => Ok(DiskMode::LosesLast),
            Some(DiskSetting::Lying) => Ok(DiskMode::Lying),
            Some(DiskSetting::Full) => Ok(DiskMode::Full),
            _ => {
                Err(context
                    .mistake("disk", "say what is wrong with it: \"loses-last\", \"lying\" or \"full\""))
            }
        }
    }

    /// A key that has no meaning for this kind of fault is a mistake.
    fn check_keys(&self, kind: Kind, context: &FaultContext<'_>) -> Result<(), ScenarioError> {
        let targets = ["peers", "any"].as_slice();
        let allowed: Vec<&str> = match kind {
            Kind::Partition => vec!["groups", "split", "for"],
            Kind::Cut => vec!["between", "one_way", "for"],
            Kind::Flap if self.between.is_some() => vec!["between", "times", "every", "for"],
            Kind::Flap => vec!["groups", "split", "times", "every", "for"],
            Kind::Crash => [targets, &["reset"]].concat(),
            Kind::Restart => [targets, &["for", "disk"]].concat(),
            Kind::Blackout => vec!["for", "every", "count", "damaged"],
            Kind::Unreachable => [targets, &["for"]].concat(),
            Kind::Slow => [targets, &["slower", "for"]].concat(),
            Kind::Bursts => [targets, &["slower", "chance"]].concat(),
            Kind::Noise => [targets, &["mean"]].concat(),
            Kind::Pause => [targets, &["for", "every", "times"]].concat(),
            Kind::Leave
            | Kind::Remove
            | Kind::Panic
            | Kind::Hang
            | Kind::EndRun
            | Kind::Clone
            | Kind::StaleViews => targets.to_vec(),
            Kind::Busy => [targets, &["for"]].concat(),
            Kind::Garbage => [targets, &["count"]].concat(),
            Kind::Frames => [targets, &["frames", "of", "chance", "by", "for"]].concat(),
            Kind::Disk => [targets, &["disk", "for"]].concat(),
            Kind::Throttle => [targets, &["up_mbit", "down_mbit", "for"]].concat(),
            Kind::Join => vec!["count"],
            Kind::Orders | Kind::Churn => vec!["times", "every"],
        };
        let given = [
            ("for", self.duration.is_some()),
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
            ("mean", self.mean.is_some()),
            ("up_mbit", self.up_mbit.is_some()),
            ("down_mbit", self.down_mbit.is_some()),
            ("count", self.count.is_some()),
            ("damaged", self.damaged.is_some()),
            ("disk", self.disk.is_some()),
            ("frames", self.frames.is_some()),
            ("of", self.of.is_some()),
            ("by", self.by.is_some()),
        ];
        match given.iter().find(|(key, is_given)| *is_given && !allowed.contains(key)) {
            Some((key, _)) => Err(context.mistake(
                key,
                &format!("does not apply to this kind of fault; allowed: {}", allowed.join(", ")),
            )),
            None => Ok(()),
        }
    }
}
