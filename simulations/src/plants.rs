//! Planted bugs: proof that the referee is awake. Each breaks one law, from outside of the node wherever that is possible:
//! a transport that loses or changes a frame, a disk that lies, a peer whose code is not the others'.
//!
//! A run with a plant is watched by the one law that must notice it, so that none is credited with another's catch.

use peergrad::loader::Training;
use peergrad::task::Task;
use peergrad_protocol::message::{Message, Phase, Segment};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank};
use std::sync::Arc;
use std::time::Duration;

use crate::disk::DiskMode;
use crate::host::{HostId, HostSetup, peer_of};
use crate::laws::merged_first::MERGED_FIRST;
use crate::oracles::replay::REPLAY;
use crate::rules::{Envelope, Rule, Verdict};
use crate::simulation::{EXPECTATION, LIVENESS, PLAIN};
use crate::task::Altered;
use crate::workload::Workload;
use views::{Boast, Refuse, Spoil, Unadopted, Uninformed, Wrong};

mod lineages;
mod views;

/// A bug on purpose.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The law that must notice it.
    pub law: &'static str,
    /// The named scenario in which it is tried.
    pub scenario: &'static str,
    bug: Bug,
}

#[derive(Clone, Copy, Debug)]
enum Bug {
    AlteredView,
    FlippedRelay,
    FlippedLastHop,
    CountedTwice,
    EarlySum,
    OtherBatch,
    SwallowedViews,
    NoAdoption,
    NoPersistence,
    Boast,
    Spoiled(Wrong),
    FlippedMirror,
    NewerRefused,
    LostSegments,
    LostSegment,
    GreedyCredit,
    LyingDisk,
    OtherSum,
    LyingLoss,
    NoDigests,
    Modest,
    BentCheckpoint,
    BentBequest,
    ForgottenSamples,
    EarlyEnd,
}

/// All of them.
pub const PLANTS: &[Plant] = &[
    Plant {
        name: "altered-view",
        about: "one member gets another record of the first view",
        law: "one chain (law 1)",
        scenario: "planted",
        bug: Bug::AlteredView,
    },
    Plant {
        name: "flipped-relay",
        about: "a peer changes a bit of another owner's values while passing them on",
        law: "single owner (law 2)",
        scenario: "planted",
        bug: Bug::FlippedRelay,
    },
    Plant {
        name: "counted-twice",
        about: "a peer adds the gradient of one sample twice",
        law: "exactly once (law 3)",
        scenario: "planted",
        bug: Bug::CountedTwice,
    },
    Plant {
        name: "flipped-last-hop",
        about: "a bit of new values changes on the way to one peer",
        law: "same bits (law 4)",
        scenario: "planted",
        bug: Bug::FlippedLastHop,
    },
    Plant {
        name: "early-sum",
        about: "a finished sum of the next step arrives before everyone has completed this one",
        law: "all or nothing (law 5)",
        scenario: "planted",
        bug: Bug::EarlySum,
    },
    Plant {
        name: "other-batch",
        about: "one peer takes other batches than the others",
        law: "every sample once (law 6)",
        scenario: "planted",
        bug: Bug::OtherBatch,
    },
    Plant {
        name: "swallowed-views",
        about: "one peer is never told of the view without another one that is gone",
        law: "nothing waits on the departed (law 7)",
        scenario: "founder-dies",
        bug: Bug::SwallowedViews,
    },
    Plant {
        name: "no-adoption",
        about: "whoever takes over from a proposer is not told what was accepted",
        law: "one chain (law 1)",
        scenario: "founder-dies",
        bug: Bug::NoAdoption,
    },
    Plant {
        name: "no-persistence",
        about: "a peer that is started again has forgotten what it promised and accepted, and votes all the same",
        law: "one chain (law 1)",
        scenario: "restarted-voter",
        bug: Bug::NoPersistence,
    },
    Plant {
        name: "boasting",
        about: "members say that they hold new state which is not there, and the step is rolled forward",
        law: EXPECTATION,
        scenario: "kill-mid-step",
        bug: Bug::Boast,
    },
    Plant {
        name: "empty-state",
        about: "the state of chunks that move arrives empty",
        law: REPLAY,
        scenario: "leave",
        bug: Bug::Spoiled(Wrong::Empty),
    },
    Plant {
        name: "old-state",
        about: "the state of chunks that move arrives as it was at another step",
        law: REPLAY,
        scenario: "leave",
        bug: Bug::Spoiled(Wrong::Old),
    },
    Plant {
        name: "miscounted-state",
        about: "the state of chunks that move has lost count of an update",
        law: REPLAY,
        scenario: "leave",
        bug: Bug::Spoiled(Wrong::Miscounted),
    },
    Plant {
        name: "flipped-mirror",
        about: "the sums from which copies are kept change on their way, and the owner dies",
        law: REPLAY,
        scenario: "kill-mid-step",
        bug: Bug::FlippedMirror,
    },
    Plant {
        name: "miscounted-copy",
        about: "state that comes to one more keeper of a copy has lost count of an update",
        law: "same bits (law 4)",
        scenario: "all-copies",
        bug: Bug::Spoiled(Wrong::Miscounted),
    },
    Plant {
        name: "flipped-sum",
        about: "a bit of the sums that everyone gathers changes on the way to one peer",
        law: "same bits (law 4)",
        scenario: "all-copies",
        bug: Bug::FlippedLastHop,
    },
    Plant {
        name: "newer-refused",
        about: "frames of a view that their receiver has not entered are lost",
        law: LIVENESS,
        scenario: "kill-mid-step",
        bug: Bug::NewerRefused,
    },
    Plant {
        name: "lost-segments",
        about: "the transport loses all segments on one link, and nothing else",
        law: LIVENESS,
        scenario: "planted",
        bug: Bug::LostSegments,
    },
    Plant {
        name: "lost-segment",
        about: "the transport loses one segment, and goes on",
        law: "blameless",
        scenario: "planted",
        bug: Bug::LostSegment,
    },
    Plant {
        name: "greedy-credit",
        about: "credit arrives twice as large as it was given",
        law: "bounded (law 9)",
        scenario: "planted",
        bug: Bug::GreedyCredit,
    },
    Plant {
        name: "lying-disk",
        about: "a disk says that it has written, and has not",
        law: "written first",
        scenario: "planted",
        bug: Bug::LyingDisk,
    },
    Plant {
        name: "counted-twice-of-digits",
        about: "as counted-twice, where nothing is an integer",
        law: PLAIN,
        scenario: "steady",
        bug: Bug::CountedTwice,
    },
    Plant {
        name: "other-sum",
        about: "a peer's gradients are off by one unit in the last place",
        law: REPLAY,
        scenario: "steady",
        bug: Bug::OtherSum,
    },
    Plant {
        name: "lying-loss",
        about: "a peer says that its samples lost more than they did",
        law: REPLAY,
        scenario: "planted",
        bug: Bug::LyingLoss,
    },
    Plant {
        name: "modest-savers",
        about: "peers that are back say nothing of their newest checkpoint",
        law: "restarts",
        scenario: "power-cut",
        bug: Bug::Modest,
    },
    Plant {
        name: "bent-checkpoint",
        about: "a checkpoint comes back with other optimizer state than was written",
        law: REPLAY,
        scenario: "power-cut",
        bug: Bug::BentCheckpoint,
    },
    Plant {
        name: "no-digests",
        about: "a peer keeps to itself what its parameters are",
        law: "same bits (law 4)",
        scenario: "planted",
        bug: Bug::NoDigests,
    },
    Plant {
        name: "bent-bequest",
        about: "what another lineage leaves changes on its way, and its digest with it",
        law: "exactly once (law 3)",
        scenario: "merge-counted",
        bug: Bug::BentBequest,
    },
    Plant {
        name: "forgotten-samples",
        about: "another lineage does not say of some samples that it has trained them",
        law: "every sample once (law 6)",
        scenario: "merge-counted",
        bug: Bug::ForgottenSamples,
    },
    Plant {
        name: "early-end",
        about: "a lineage is told that it is merged as soon as the other one has heard of it",
        law: MERGED_FIRST,
        scenario: "merge-counted",
        bug: Bug::EarlyEnd,
    },
];

impl Plant {
    /// The plant of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PLANTS.iter().find(|plant| plant.name == name)
    }

    /// Changes the host that it lives on.
    pub(crate) fn prepare(&self, host: HostId, workload: &Workload, setup: &mut HostSetup) {
        if host != SITE {
            return;
        }
        let task = Arc::clone(&workload.loaded.task);
        match self.bug {
            Bug::CountedTwice => {
                setup.loader = workload.loader_of(Altered { task, gradient: Arc::new(twice) })
            }
            Bug::OtherSum => setup.loader = workload.loader_of(Altered { task, gradient: Arc::new(off) }),
            Bug::LyingLoss => setup.loader = workload.loader_of(Altered { task, gradient: Arc::new(dearer) }),
            Bug::NoDigests => {
                let training = Training { digest_every: 0, ..workload.loaded.training.clone() };
                setup.loader = workload.loader_with(training);
            }
            Bug::OtherBatch => {
                let batch_size = workload.loaded.training.batch_size / 2;
                let training = Training { batch_size, ..workload.loaded.training.clone() };
                setup.loader = workload.loader_with(training);
            }
            Bug::LyingDisk => setup.disk.mode = DiskMode::Lying,
            Bug::NoPersistence => setup.disk.mode = DiskMode::Forgetful,
            Bug::BentCheckpoint => setup.disk.mode = DiskMode::Bent,
            _ => {}
        }
    }

    /// The rule that it is, if it sits in the network.
    pub(crate) fn rule(&self, seed: u64) -> Option<Box<dyn Rule>> {
        // Anywhere in the first ten steps.
        let step = 1 + seed % 9;
        Some(match self.bug {
            Bug::AlteredView => Box::new(alter_view),
            Bug::FlippedRelay => Box::new(Flip { step, is_relay: true, ranks: vec![] }),
            Bug::FlippedLastHop => Box::new(Flip { step, is_relay: false, ranks: vec![] }),
            Bug::EarlySum => Box::new(EarlySum { step, ranks: vec![], sample: None, is_done: false }),
            Bug::SwallowedViews => {
                Box::new(|envelope: &Envelope<'_>| views::swallow_views(envelope, FOLLOWER))
            }
            Bug::NoAdoption => Box::<Unadopted>::default(),
            Bug::NoPersistence => Box::new(Uninformed::new(SITE)),
            Bug::Boast => Box::<Boast>::default(),
            Bug::Spoiled(wrong) => Box::new(Spoil::new(wrong)),
            Bug::FlippedMirror => Box::new(views::flip_mirror),
            Bug::NewerRefused => Box::<Refuse>::default(),
            Bug::LostSegments => Box::new(Lose { left: seed % 50, link: None, most: usize::MAX }),
            Bug::LostSegment => Box::new(Lose { left: seed % 50, link: None, most: 1 }),
            Bug::GreedyCredit => Box::new(Greed),
            Bug::Modest => Box::new(views::keep_newest_quiet),
            Bug::BentBequest => Box::new(lineages::bend_bequest),
            Bug::ForgottenSamples => Box::new(lineages::forget_samples),
            Bug::EarlyEnd => Box::new(lineages::end_early),
            Bug::CountedTwice
            | Bug::OtherSum
            | Bug::LyingLoss
            | Bug::NoDigests
            | Bug::OtherBatch
            | Bug::LyingDisk
            | Bug::BentCheckpoint => return None,
        })
    }
}

/// The host on which plants live.
const SITE: HostId = HostId(1);
/// A host whose rank is behind that of [`SITE`]: others propose.
const FOLLOWER: HostId = HostId(2);

/// One member's record of the first view gives somebody more weight.
fn alter_view(envelope: &Envelope<'_>) -> Verdict {
    match envelope.message() {
        Some(Message::Install(mut view)) if envelope.to == SITE => {
            view.members[0].weight += 1;
            Verdict::Replace(vec![Frame::encode(&Message::Install(view), None)])
        }
        _ => Verdict::Pass,
    }
}

/// Changes a bit of a gathered segment, on its first hop beyond the owner or where nobody passes it on.
struct Flip {
    step: u64,
    is_relay: bool,
    ranks: Vec<PeerId>,
}

impl Rule for Flip {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        let message = envelope.message();
        learn_ranks(&mut self.ranks, message.as_ref());
        let Some(segment) = segment_of(message.as_ref(), Phase::Gather) else { return Verdict::Pass };
        let count = self.ranks.len();
        let (Some(from), Some(to)) = (rank_of(&self.ranks, envelope.from), rank_of(&self.ranks, envelope.to))
        else {
            return Verdict::Pass;
        };
        let is_relay = from != segment.owner as usize;
        let is_last = (to + 1) % count == segment.owner as usize;
        let is_site = if self.is_relay { is_relay && !is_last } else { is_last };
        if segment.step.0 != self.step || !is_site {
            return Verdict::Pass;
        }
        Verdict::Replace(vec![changed(envelope.frame, *segment, |bytes| bytes[0] ^= 1)])
    }
}

/// A copy of a segment's frame with something changed.
fn changed(frame: &Frame, segment: Segment, change: impl Fn(&mut [u8])) -> Frame {
    let mut bytes = frame.payload.as_ref().map_or(vec![], |payload| payload.bytes().to_vec());
    change(&mut bytes);
    Frame::encode(&Message::Segment(segment), Some(Buffer::from_bytes(&bytes)))
}

/// Holds back the values of one owner, and forges the sum by which it believes that everyone has them.
struct EarlySum {
    step: u64,
    ranks: Vec<PeerId>,
    /// A segment of this step on its last hop to the owner, as a pattern.
    sample: Option<Frame>,
    is_done: bool,
}

impl Rule for EarlySum {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        let message = envelope.message();
        learn_ranks(&mut self.ranks, message.as_ref());
        let Some(Message::Segment(segment)) = message else { return Verdict::Pass };
        let Some(site) = rank_of(&self.ranks, SITE) else { return Verdict::Pass };
        let is_own = segment.owner as usize == site;
        if segment.step.0 != self.step {
            return Verdict::Pass;
        }
        match segment.phase {
            Phase::Reduce if envelope.to == SITE && is_own && segment.index == 0 => {
                let next = Segment { step: segment.step.next(), ..segment };
                self.sample = Some(changed(envelope.frame, next, |_| {}));
                Verdict::Pass
            }
            Phase::Gather if envelope.from == SITE && is_own => Verdict::Delay(Duration::from_secs(2)),
            Phase::Gather if envelope.to == SITE && !self.is_done => {
                let Some(forged) = self.sample.take() else { return Verdict::Pass };
                self.is_done = true;
                Verdict::Replace(vec![changed(envelope.frame, segment, |_| {}), forged])
            }
            Phase::Reduce | Phase::Gather | Phase::Mirror => Verdict::Pass,
        }
    }
}

/// Drops so many segments on one link, from some time on.
struct Lose {
    left: u64,
    link: Option<(HostId, HostId)>,
    most: usize,
}

impl Rule for Lose {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> Verdict {
        if !matches!(envelope.message(), Some(Message::Segment(_))) {
            return Verdict::Pass;
        }
        if self.left > 0 {
            self.left -= 1;
            return Verdict::Pass;
        }
        let link = (envelope.from, envelope.to);
        if self.most == 0 || *self.link.get_or_insert(link) != link {
            return Verdict::Pass;
        }
        self.most -= 1;
        Verdict::Drop
    }
}

/// Doubles credit.
struct Greed;

impl Rule for Greed {
    fn on_frame(&mut self, _envelope: &Envelope<'_>) -> Verdict {
        Verdict::Pass
    }

    fn on_credit(&mut self, _from: HostId, _to: HostId, segments: u32) -> u32 {
        2 * segments
    }
}

fn learn_ranks(ranks: &mut Vec<PeerId>, message: Option<&Message>) {
    if let Some(Message::Install(view)) = message {
        *ranks = view.members.iter().map(|member| member.peer).collect();
    }
}

fn rank_of(ranks: &[PeerId], host: HostId) -> Option<usize> {
    ranks.iter().position(|peer| *peer == peer_of(host)).map(Rank::from_index).map(Rank::index)
}

fn segment_of(message: Option<&Message>, phase: Phase) -> Option<&Segment> {
    match message {
        Some(Message::Segment(segment)) if segment.phase == phase => Some(segment),
        _ => None,
    }
}

/// Adds its first sample's gradient twice.
fn twice(task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
    let twice: Vec<u32> = samples.iter().chain(samples.first()).copied().collect();
    task.gradient(parameters, &twice, gradient)
}

/// Is off by the smallest difference there is.
fn off(task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
    let loss = task.gradient(parameters, samples, gradient);
    for element in gradient.iter_mut() {
        *element = f32::from_bits(element.to_bits() ^ 1);
    }
    loss
}

/// Tells of a loss that it did not have.
fn dearer(task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
    task.gradient(parameters, samples, gradient) + 1.0
}
