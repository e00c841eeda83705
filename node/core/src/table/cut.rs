//! A cut: the state of all chunks at a moment when no change is under way. A checkpoint of tables is one.
//!
//! Each worker's changes go to many owners, which never act at the same moment. If each member just copied its chunks, the copies would have
//! a transaction in part. So the members let all changes that are under way arrive, and hold back new ones meanwhile. Workers go on: they
//! read, compute and add. What they would send waits for a few round trips, and so do reads that must include it.
//!
//! ```text
//! member of lowest rank            every member
//!   hold                     -->     sends owners no new changes
//!                            <--     held: all that it had sent is safe
//!   take, once all are held  -->     copies the chunks that it stores, tells all others to take, and sends what has waited
//! ```
//!
//! # Invariants
//! - Once all members are held, no owner gets a change before it has its copy: messages of one member arrive in order, and a member's first
//!   change after its own copy follows its `take`. So all copies are of the same moment.
//! - What a member has kept of workers that are gone is safe before the member is held.
//! - A view change ends an attempt. Members that have their copies keep them, and the cut may be complete nevertheless. An attempt that takes
//!   long is given up, but not once a member may have copied.
//!
//! # Reading
//! K. M. Chandy and L. Lamport, "Distributed Snapshots", 1985: why copies of different moments are useless.

use std::collections::BTreeSet;

use peergrad_protocol::Rank;
use peergrad_protocol::table::{CutMessage, TableMessage};

use super::TableError;
use super::server::Outbox;

/// One member's part in the cuts of a view.
#[derive(Default)]
pub(super) struct Cut {
    /// The newest attempt; 0 before the first.
    attempt: u64,
    /// How far this member is in it.
    stage: Stage,
    /// At the member of lowest rank: the newest attempt that it has asked for; 0 before the first.
    asked: u64,
    /// At the member of lowest rank: the members that are held in it. `None` if no attempt is in progress, or members were told to take the cut.
    held: Option<BTreeSet<Rank>>,
}

/// How far a member is in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It sends changes: it has its copy, or the attempt was given up.
    #[default]
    Released,
    /// It holds back changes, and some that it had sent are not safe.
    Holding,
    /// All changes are safe that it does not hold back.
    Held,
}

/// What a member does when a message about a cut has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutStep {
    /// It holds back new changes.
    Hold,
    /// It copies its chunks in this attempt, and then sends the changes that were held back.
    Take(u64),
    /// It sends the changes that were held back.
    Release,
}

/// The member that asks for cuts.
const LOWEST: Rank = Rank(0);

impl Cut {
    /// The member of lowest rank asks all of these members for a cut, unless an attempt is in progress. Returns whether it asks.
    pub(super) fn begin(&mut self, ranks: impl Iterator<Item = Rank>, out: &mut Outbox) -> bool {
        if self.held.is_some() {
            return false;
        }
        self.held = Some(BTreeSet::new());
        self.asked += 1;
        send_to_all(ranks, CutMessage::Hold(self.asked), out);
        true
    }

    /// The member of lowest rank gives up its attempt, unless it has told members to take the cut. Returns whether it has given up.
    pub(super) fn give_up(&mut self, ranks: impl Iterator<Item = Rank>, out: &mut Outbox) -> bool {
        let is_in_progress = self.held.take().is_some();
        if is_in_progress {
            send_to_all(ranks, CutMessage::Release(self.asked), out);
        }
        is_in_progress
    }

    /// A member that is alone takes a cut at once. Returns the number of the attempt.
    pub(super) fn take_alone(&mut self) -> u64 {
        self.asked += 1;
        self.attempt = self.asked;
        self.attempt
    }

    /// Whether this member holds back changes, and has not said yet that it is held.
    pub(super) fn is_holding(&self) -> bool {
        self.stage == Stage::Holding
    }

    /// All changes are safe that this member does not hold back: it says so.
    pub(super) fn report_held(&mut self, out: &mut Outbox) {
        self.stage = Stage::Held;
        out.push((LOWEST, TableMessage::Cut(CutMessage::Held(self.attempt))));
    }

    /// A message about a cut has arrived at this member, in a view of so many members. Returns what this member does now.
    ///
    /// # Errors
    /// No correct member sends it here and now.
    pub(super) fn on_message(
        &mut self,
        from: Rank,
        message: CutMessage,
        (me, members): (Rank, usize),
        out: &mut Outbox,
    ) -> Result<Option<CutStep>, TableError> {
        let ranks = (0..members).map(Rank::from_index);
        match message {
            CutMessage::Held(attempt) => {
                if attempt == self.asked
                    && let Some(held) = &mut self.held
                {
                    held.insert(from);
                    if held.len() == members {
                        self.held = None;
                        send_to_all(ranks, CutMessage::Take(attempt), out);
                    }
                }
                Ok(None)
            }
            CutMessage::Take(attempt) if attempt == self.attempt && self.stage == Stage::Held => {
                self.stage = Stage::Released;
                send_to_all(ranks.filter(|rank| *rank != me), message, out);
                Ok(Some(CutStep::Take(attempt)))
            }
            // Another member has told it before.
            CutMessage::Take(attempt)
                if attempt < self.attempt || (attempt == self.attempt && self.stage == Stage::Released) =>
            {
                Ok(None)
            }
            CutMessage::Hold(attempt)
                if from == LOWEST && attempt > self.attempt && self.stage == Stage::Released =>
            {
                (self.attempt, self.stage) = (attempt, Stage::Holding);
                Ok(Some(CutStep::Hold))
            }
            CutMessage::Release(attempt)
                if from == LOWEST && attempt == self.attempt && self.stage != Stage::Released =>
            {
                self.stage = Stage::Released;
                Ok(Some(CutStep::Release))
            }
            CutMessage::Hold(_) | CutMessage::Take(_) | CutMessage::Release(_) => {
                Err(TableError::CutOutOfOrder)
            }
        }
    }
}

fn send_to_all(ranks: impl Iterator<Item = Rank>, message: CutMessage, out: &mut Outbox) {
    out.extend(ranks.map(|rank| (rank, TableMessage::Cut(message))));
}
