//! Mutants, which are planted bugs: proof that the invariants notice bugs. Each violates one invariant, wherever possible from outside of
//! the node: by a transport that loses or changes a frame, by a disk that lies about what it has written, or by a peer with other code.
//!
//! A run with a mutant is checked by the one invariant that must notice it, so that no invariant is credited with another one's catch.

use std::sync::Arc;

use peergrad_core::program::loader::TrainingConfig;

use crate::disk::DiskMode;
use crate::filters::{Envelope, FrameFilter};
use crate::host::{HostId, HostSetup};
use crate::invariants::acknowledged::ACKNOWLEDGED;
use crate::invariants::merged_first::MERGED_FIRST;
use crate::liveness::LIVENESS;
use crate::oracles::plain::PLAIN;
use crate::oracles::replay::REPLAY;
use crate::oracles::table_sums::TABLE_SUMS;
use crate::scenario::EXPECTATION;
use crate::task::AlteredTask;
use crate::workload::Workload;
use segments::{DoubleCredit, DropSegments, EarlySum, FlipBit, Hop};
use views::{CorruptState, Corruption, DropNewView, FalseReport, HideAccepted, IsolateVoter};

mod gradients;
mod merges;
mod segments;
mod tables;
mod views;

/// A planted bug.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The name of the invariant that must notice it.
    pub invariant: &'static str,
    /// The named scenario in which it is planted.
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
    WrongBatch,
    DroppedViews,
    NoAdoption,
    NoPersistence,
    FalseReport,
    CorruptedState(Corruption),
    FlippedMirror,
    NewViewDropped,
    LostSegments,
    LostSegment,
    DoubledCredit,
    LyingDisk,
    OffByOneUlp,
    OverstatedLoss,
    NoDigests,
    HiddenCheckpoint,
    CorruptedCheckpoint,
    CorruptedSnapshot,
    HiddenSamples,
    EarlyEnd,
    NoJournal,
    LostUpdates,
}

/// All mutants.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "altered-view",
        about: "one member gets another record of the first view",
        invariant: "one chain (invariant 1)",
        scenario: "mutants",
        bug: Bug::AlteredView,
    },
    Mutant {
        name: "flipped-relay",
        about: "a peer changes a bit of another owner's values while passing them on",
        invariant: "single owner (invariant 2)",
        scenario: "mutants",
        bug: Bug::FlippedRelay,
    },
    Mutant {
        name: "counted-twice",
        about: "a peer adds the gradient of one sample twice",
        invariant: "exactly once (invariant 3)",
        scenario: "mutants",
        bug: Bug::CountedTwice,
    },
    Mutant {
        name: "flipped-last-hop",
        about: "a bit of new values changes on the way to one peer",
        invariant: "same bits (invariant 4)",
        scenario: "mutants",
        bug: Bug::FlippedLastHop,
    },
    Mutant {
        name: "early-sum",
        about: "a finished sum of the next step arrives before everyone has completed this one",
        invariant: "all or nothing (invariant 5)",
        scenario: "mutants",
        bug: Bug::EarlySum,
    },
    Mutant {
        name: "wrong-batch",
        about: "one peer takes other batches than the others",
        invariant: "every sample once (invariant 6)",
        scenario: "mutants",
        bug: Bug::WrongBatch,
    },
    Mutant {
        name: "dropped-views",
        about: "one peer never hears of the view that excludes a departed member",
        invariant: "nothing waits on the departed (invariant 7)",
        scenario: "founder-dies",
        bug: Bug::DroppedViews,
    },
    Mutant {
        name: "no-adoption",
        about: "the proposer that takes over does not learn which value was accepted",
        invariant: "one chain (invariant 1)",
        scenario: "founder-dies",
        bug: Bug::NoAdoption,
    },
    Mutant {
        name: "no-persistence",
        about: "a restarted peer has forgotten what it promised and accepted, and votes nevertheless",
        invariant: "one chain (invariant 1)",
        scenario: "restarted-voter",
        bug: Bug::NoPersistence,
    },
    Mutant {
        name: "false-report",
        about: "members report new state that they do not have, and the step is rolled forward",
        invariant: EXPECTATION,
        scenario: "kill-mid-step",
        bug: Bug::FalseReport,
    },
    Mutant {
        name: "empty-state",
        about: "the state of chunks that move arrives empty",
        invariant: REPLAY,
        scenario: "leave",
        bug: Bug::CorruptedState(Corruption::Empty),
    },
    Mutant {
        name: "old-state",
        about: "the state of chunks that move arrives as it was after an earlier step",
        invariant: REPLAY,
        scenario: "leave",
        bug: Bug::CorruptedState(Corruption::Old),
    },
    Mutant {
        name: "miscounted-state",
        about: "the state of chunks that move counts one update too few",
        invariant: REPLAY,
        scenario: "leave",
        bug: Bug::CorruptedState(Corruption::Miscounted),
    },
    Mutant {
        name: "flipped-mirror",
        about: "the sums from which replicas are updated change on the way, and the owner dies",
        invariant: REPLAY,
        scenario: "kill-mid-step",
        bug: Bug::FlippedMirror,
    },
    Mutant {
        name: "miscounted-copy",
        about: "the state sent to a new replica counts one update too few",
        invariant: "same bits (invariant 4)",
        scenario: "all-replicas",
        bug: Bug::CorruptedState(Corruption::Miscounted),
    },
    Mutant {
        name: "flipped-sum",
        about: "a bit of the gathered sums changes on the way to one peer",
        invariant: "same bits (invariant 4)",
        scenario: "all-replicas",
        bug: Bug::FlippedLastHop,
    },
    Mutant {
        name: "new-view-dropped",
        about: "frames of a view are lost if their receiver has not entered it yet, and are not counted",
        invariant: LIVENESS,
        scenario: "kill-mid-step",
        bug: Bug::NewViewDropped,
    },
    Mutant {
        name: "lost-segments",
        about: "the transport loses all segments on one link, and changes heartbeats and reports so that no member notices",
        invariant: LIVENESS,
        scenario: "mutants",
        bug: Bug::LostSegments,
    },
    Mutant {
        name: "lost-segment",
        about: "the transport loses one segment and keeps the link up",
        invariant: "blameless",
        scenario: "mutants",
        bug: Bug::LostSegment,
    },
    Mutant {
        name: "doubled-credit",
        about: "twice the returned credit arrives",
        invariant: "bounded (invariant 9)",
        scenario: "mutants",
        bug: Bug::DoubledCredit,
    },
    Mutant {
        name: "lying-disk",
        about: "a disk reports a record as written and has not written it",
        invariant: "written first",
        scenario: "mutants",
        bug: Bug::LyingDisk,
    },
    Mutant {
        name: "counted-twice-of-digits",
        about: "as counted-twice, with gradients that are not integers",
        invariant: PLAIN,
        scenario: "steady",
        bug: Bug::CountedTwice,
    },
    Mutant {
        name: "off-by-one-ulp",
        about: "a peer's gradients are off by one unit in the last place",
        invariant: REPLAY,
        scenario: "steady",
        bug: Bug::OffByOneUlp,
    },
    Mutant {
        name: "overstated-loss",
        about: "a peer reports a higher loss of its samples than it computed",
        invariant: REPLAY,
        scenario: "mutants",
        bug: Bug::OverstatedLoss,
    },
    Mutant {
        name: "hidden-checkpoint",
        about: "returning peers do not report their newest checkpoint",
        invariant: "restarts",
        scenario: "power-cut",
        bug: Bug::HiddenCheckpoint,
    },
    Mutant {
        name: "corrupted-checkpoint",
        about: "a checkpoint is read with other optimizer state than was written",
        invariant: REPLAY,
        scenario: "power-cut",
        bug: Bug::CorruptedCheckpoint,
    },
    Mutant {
        name: "no-digests",
        about: "a peer sends no digests of its parameters",
        invariant: "same bits (invariant 4)",
        scenario: "mutants",
        bug: Bug::NoDigests,
    },
    Mutant {
        name: "corrupted-snapshot",
        about: "the snapshot of another branch changes on the way, and its digest with it",
        invariant: "exactly once (invariant 3)",
        scenario: "merge-counted",
        bug: Bug::CorruptedSnapshot,
    },
    Mutant {
        name: "hidden-samples",
        about: "another branch conceals that it has trained some samples",
        invariant: "every sample once (invariant 6)",
        scenario: "merge-counted",
        bug: Bug::HiddenSamples,
    },
    Mutant {
        name: "early-end",
        about: "a branch is notified of its merge before the other branch has committed it",
        invariant: MERGED_FIRST,
        scenario: "merge-counted",
        bug: Bug::EarlyEnd,
    },
    Mutant {
        name: "no-journal",
        about: "workers send their additions to owners before other members keep them",
        invariant: TABLE_SUMS,
        scenario: "tables",
        bug: Bug::NoJournal,
    },
    Mutant {
        name: "lost-updates",
        about: "a holder of chunks confirms updates of them whose contents were lost on the way",
        invariant: ACKNOWLEDGED,
        scenario: "tables",
        bug: Bug::LostUpdates,
    },
];

impl Mutant {
    /// The mutant of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        MUTANTS.iter().find(|mutant| mutant.name == name)
    }

    /// Changes the setup of the host on which the bug is planted.
    pub(crate) fn prepare(&self, host: HostId, workload: &Workload, setup: &mut HostSetup) {
        let is_everywhere = matches!(self.bug, Bug::NoJournal);
        if host != MUTANT_HOST && !is_everywhere {
            return;
        }
        let task = Arc::clone(&workload.loaded.task);
        match self.bug {
            Bug::CountedTwice => {
                setup.loader =
                    workload.loader_of(AlteredTask { task, gradient: Arc::new(gradients::count_twice) })
            }
            Bug::OffByOneUlp => {
                setup.loader =
                    workload.loader_of(AlteredTask { task, gradient: Arc::new(gradients::off_by_one_ulp) })
            }
            Bug::OverstatedLoss => {
                setup.loader =
                    workload.loader_of(AlteredTask { task, gradient: Arc::new(gradients::overstate_loss) })
            }
            Bug::NoDigests => {
                let training = TrainingConfig { digest_every: None, ..workload.loaded.config.clone() };
                setup.loader = workload.loader_with(training);
            }
            Bug::WrongBatch => {
                let batch_size = workload.loaded.config.batch_size / 2;
                let training = TrainingConfig { batch_size, ..workload.loaded.config.clone() };
                setup.loader = workload.loader_with(training);
            }
            Bug::NoJournal => setup.loader = workload.loader_by_chunk(),
            Bug::LyingDisk => setup.disk.mode = DiskMode::Lying,
            Bug::NoPersistence => setup.disk.mode = DiskMode::Forgetful,
            Bug::CorruptedCheckpoint => setup.disk.mode = DiskMode::Corrupted,
            _ => {}
        }
    }

    /// The frame filter that acts as the bug; `None` if the bug is not in the network.
    pub(crate) fn filter(&self, seed: u64) -> Option<Box<dyn FrameFilter>> {
        // A step among the first ten.
        let step = 1 + seed % 9;
        Some(match self.bug {
            Bug::AlteredView => Box::new(|envelope: &Envelope<'_>| views::alter_view(envelope, MUTANT_HOST)),
            Bug::FlippedRelay => Box::new(FlipBit::new(step, Hop::Relay)),
            Bug::FlippedLastHop => Box::new(FlipBit::new(step, Hop::Last)),
            Bug::EarlySum => Box::new(EarlySum::new(MUTANT_HOST, step)),
            Bug::DroppedViews => Box::new(|envelope: &Envelope<'_>| views::drop_views(envelope, FOLLOWER)),
            Bug::NoAdoption => Box::<HideAccepted>::default(),
            Bug::NoPersistence => Box::new(IsolateVoter::new(MUTANT_HOST)),
            Bug::FalseReport => Box::<FalseReport>::default(),
            Bug::CorruptedState(corruption) => Box::new(CorruptState::new(corruption)),
            Bug::FlippedMirror => Box::new(views::flip_mirror),
            Bug::NewViewDropped => Box::<DropNewView>::default(),
            Bug::LostSegments => Box::new(DropSegments::after(seed % 50, usize::MAX)),
            Bug::LostSegment => Box::new(DropSegments::after(seed % 50, 1)),
            Bug::DoubledCredit => Box::new(DoubleCredit),
            Bug::HiddenCheckpoint => Box::new(views::hide_newest_checkpoint),
            Bug::CorruptedSnapshot => Box::new(merges::corrupt_snapshot),
            Bug::HiddenSamples => Box::new(merges::hide_samples),
            Bug::EarlyEnd => Box::new(merges::end_early),
            Bug::LostUpdates => {
                Box::new(|envelope: &Envelope<'_>| tables::empty_updates(envelope, MUTANT_HOST))
            }
            Bug::CountedTwice
            | Bug::OffByOneUlp
            | Bug::OverstatedLoss
            | Bug::NoDigests
            | Bug::WrongBatch
            | Bug::NoJournal
            | Bug::LyingDisk
            | Bug::CorruptedCheckpoint => return None,
        })
    }
}

/// The host on which bugs are planted.
const MUTANT_HOST: HostId = HostId(1);
/// A host of higher rank than [`MUTANT_HOST`]: others propose.
const FOLLOWER: HostId = HostId(2);
