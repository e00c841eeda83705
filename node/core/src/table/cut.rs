//! A cut: the state of all chunks at a moment when no change is under way. A checkpoint of tables is one.
//!
//! Each worker's changes go to many owners, which never act at the same moment. If each member just copied its chunks, the copies would have
//! a transaction in part. So the members let all changes that are under way arrive, and hold back new ones meanwhile. Workers go on: they
//! read, compute and add, and only what they would send waits, for a few round trips.
//!
//! ```text
//! member of lowest rank            every member
//!   hold                     -->     sends owners no new changes
//!                            <--     held: all that it had sent is safe
//!   take, once all are held  -->     copies the chunks that it stores
//!                            <--     taken
//!   release, once all have   -->     sends what has waited
//! ```
//!
//! # Invariants
//! - Between the first `held` and the last `taken`, no owner gets a change: so all copies are of the same moment.
//! - What a member has kept of workers that are gone is safe before the member is held.
//! - A view change ends an attempt: who has its copy keeps it, and the cut may be complete nevertheless. An attempt that takes long is given
//!   up, but not once a member may have copied.
//!
//! # Reading
//! K. M. Chandy and L. Lamport, "Distributed Snapshots", 1985: why copies of different moments are useless.

use std::collections::BTreeSet;

use peergrad_protocol::Rank;
use peergrad_protocol::table::{CutMessage, TableMessage};

use super::TableError;
use super::server::Outbox;

/// One member's part in cuts.
#[derive(Default)]
pub(super) struct Cut {
    /// The newest attempt of this view; 0 before the first.
    attempt: u64,
    /// How far this member is in it.
    stage: Stage,
    /// At the member of lowest rank: the newest attempt that it has asked for in this view; 0 before the first.
    asked: u64,
    /// At the member of lowest rank: the answers to it.
    collected: Collected,
    /// The number of the last cut of the run, as far as this member knows.
    last: u64,
}

/// How far a member is in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It sends changes.
    #[default]
    Released,
    /// It holds back changes, and some that it had sent are not safe.
    Holding,
    /// All changes are safe that it does not hold back.
    Held,
    /// It has copied its chunks.
    Taken,
}

/// The answers that the member of lowest rank has.
#[derive(Debug, Default)]
enum Collected {
    /// No attempt is in progress.
    #[default]
    None,
    /// These members are held, and this is the largest number that they have named.
    Held(BTreeSet<Rank>, u64),
    /// These members have copied their chunks.
    Taken(BTreeSet<Rank>),
}

/// What a member does when a message about a cut has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutStep {
    /// It holds back new changes.
    Hold,
    /// It copies its chunks, under this number.
    Take(u64),
    /// It sends the changes that were held back.
    Release,
}

/// The member that asks for cuts.
const LOWEST: Rank = Rank(0);

impl Cut {
    /// A view begins: an attempt of the view before is over.
    pub(super) fn enter(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    /// The run continues from the cut with this number.
    pub(super) fn continue_from(&mut self, last: u64) {
        self.last = last;
    }

    /// The number that this member would give to the next cut, with its worker at this clock.
    pub(super) fn next_number(&self, clock: u64) -> u64 {
        clock.max(self.last + 1)
    }

    /// The member of lowest rank asks all of these members for a cut, unless an attempt is in progress.
    pub(super) fn begin(&mut self, ranks: impl Iterator<Item = Rank>, out: &mut Outbox) {
        if let Collected::None = self.collected {
            self.collected = Collected::Held(BTreeSet::new(), 0);
            self.asked += 1;
            send_to_all(ranks, CutMessage::Hold { attempt: self.asked }, out);
        }
    }

    /// The member of lowest rank gives up its attempt, unless members may have copied their chunks.
    pub(super) fn give_up(&mut self, ranks: impl Iterator<Item = Rank>, out: &mut Outbox) {
        if let Collected::Held(..) = self.collected {
            self.collected = Collected::None;
            send_to_all(ranks, CutMessage::Release { attempt: self.asked }, out);
        }
    }

    /// Whether this member holds back changes, and has not said yet that it is held.
    pub(super) fn is_holding(&self) -> bool {
        self.stage == Stage::Holding
    }

    /// All changes are safe that this member does not hold back: it says so.
    pub(super) fn report_held(&mut self, clock: u64, out: &mut Outbox) {
        self.stage = Stage::Held;
        let held = CutMessage::Held { attempt: self.attempt, number: self.next_number(clock) };
        out.push((LOWEST, TableMessage::Cut(held)));
    }

    /// A message about a cut has arrived, in a view of so many members. Returns what this member does now.
    ///
    /// # Errors
    /// No correct member sends it here and now.
    pub(super) fn on_message(
        &mut self,
        from: Rank,
        message: CutMessage,
        members: usize,
        out: &mut Outbox,
    ) -> Result<Option<CutStep>, TableError> {
        match message {
            CutMessage::Held { attempt, number } => {
                if let Collected::Held(held, largest) = &mut self.collected
                    && attempt == self.asked
                {
                    held.insert(from);
                    *largest = number.max(*largest);
                    if held.len() == members {
                        let number = *largest;
                        self.collected = Collected::Taken(BTreeSet::new());
                        let ranks = (0..members).map(Rank::from_index);
                        send_to_all(ranks, CutMessage::Take { attempt, number }, out);
                    }
                }
                Ok(None)
            }
            CutMessage::Taken { attempt } => {
                if let Collected::Taken(taken) = &mut self.collected
                    && attempt == self.asked
                {
                    taken.insert(from);
                    if taken.len() == members {
                        self.collected = Collected::None;
                        let ranks = (0..members).map(Rank::from_index);
                        send_to_all(ranks, CutMessage::Release { attempt }, out);
                    }
                }
                Ok(None)
            }
            _ if from != LOWEST => Err(TableError::CutOutOfOrder),
            CutMessage::Hold { attempt } if attempt > self.attempt && self.stage == Stage::Released => {
                (self.attempt, self.stage) = (attempt, Stage::Holding);
                Ok(Some(CutStep::Hold))
            }
            CutMessage::Take { attempt, number }
                if attempt == self.attempt && self.stage == Stage::Held && number > self.last =>
            {
                (self.stage, self.last) = (Stage::Taken, number);
                out.push((LOWEST, TableMessage::Cut(CutMessage::Taken { attempt })));
                Ok(Some(CutStep::Take(number)))
            }
            CutMessage::Release { attempt } if attempt == self.attempt && self.stage != Stage::Released => {
                self.stage = Stage::Released;
                Ok(Some(CutStep::Release))
            }
            CutMessage::Hold { .. } | CutMessage::Take { .. } | CutMessage::Release { .. } => {
                Err(TableError::CutOutOfOrder)
            }
        }
    }
}

fn send_to_all(ranks: impl Iterator<Item = Rank>, message: CutMessage, out: &mut Outbox) {
    out.extend(ranks.map(|rank| (rank, TableMessage::Cut(message))));
}
