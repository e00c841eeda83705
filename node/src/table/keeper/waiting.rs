//! What waits at an owner: for a clock, for a chunk, or for its worker to take in what it was told.

use std::collections::VecDeque;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{QUESTIONS_MAX, WAITING_BYTES_MAX};
use peergrad_protocol::table::Asked;

use super::{Change, Keeper, Outbox, TableError, Worker};

impl Keeper {
    /// Something has to wait here; a change is not acknowledged meanwhile.
    pub(super) fn hold(&mut self, from: Rank, asked: &Asked) -> Result<(), TableError> {
        let is_own = from == self.me;
        let worker = self.workers.entry(from).or_default();
        worker.hold(asked, is_own)?;
        if let Some((sequence, chunk)) = asked.change() {
            worker.note(Change::Added(sequence, chunk as usize), 1);
        }
        Ok(())
    }

    /// Something waits no longer.
    pub(super) fn let_go(&mut self, from: Rank, asked: &Asked) {
        self.workers.entry(from).or_default().let_go(asked);
    }

    /// Holds a question until its worker has taken in what it was told before.
    ///
    /// # Errors
    /// No correct peer asks that, or so much.
    pub fn postpone(&mut self, from: Rank, asked: Asked) -> Result<(), TableError> {
        self.check(&asked)?;
        self.hold(from, &asked)?;
        self.ready.entry(from).or_default().push_back(asked);
        Ok(())
    }

    /// Those who have asked what can be answered now.
    #[must_use]
    pub fn ready(&self) -> Vec<Rank> {
        self.ready.keys().copied().collect()
    }

    /// Whether a worker has asked what can be answered now.
    #[must_use]
    pub fn has_ready(&self, from: Rank) -> bool {
        self.ready.contains_key(&from)
    }

    /// Answers the first question of a worker that can be answered now. False if there is none.
    pub fn answer_ready(&mut self, from: Rank, out: &mut Outbox) -> bool {
        let Some(asked) = self.ready.get_mut(&from).and_then(VecDeque::pop_front) else {
            self.ready.remove(&from);
            return false;
        };
        self.let_go(from, &asked);
        let chunk = self.check(&asked).expect("it was checked when it came");
        self.take_in(from, chunk, asked, out).expect("there is room for what there was room for before");
        true
    }

    /// Puts in what had to wait for its chunk, or for its clock. What has been added in clocks that all have completed comes first, all
    /// of it, so that of one clock all is applied together; of the rest as much as there is room for then.
    pub(super) fn put_in(&mut self, chunk: usize, waiting: Vec<(Rank, Asked)>, out: &mut Outbox) {
        let least = self.clock();
        let (mut changes, mut rest) = (Vec::new(), Vec::<(Rank, Asked)>::new());
        for (worker, asked) in waiting {
            self.let_go(worker, &asked);
            let is_complete =
                matches!(asked, Asked::Add { clock, .. } if least.is_some_and(|least| clock < least));
            if !is_complete || rest.iter().any(|(before, _)| *before == worker) {
                rest.push((worker, asked));
            } else if let Some(change) = self.put(worker, &asked) {
                changes.push((worker, change));
            }
        }
        self.complete(chunk);
        changes.into_iter().for_each(|(worker, change)| self.promise(worker, change, out));
        for (worker, asked) in rest {
            self.take_in(worker, Some(chunk), asked, out)
                .expect("there is room for what there was room for before");
        }
    }
}

impl Worker {
    /// Something of it has to wait: of another peer's worker no more than there is room for.
    pub(super) fn hold(&mut self, asked: &Asked, is_own: bool) -> Result<(), TableError> {
        let bytes = self.waiting_bytes + asked.bytes();
        if bytes > WAITING_BYTES_MAX && !is_own {
            if let Some((sequence, _)) = asked.change() {
                self.refused.get_or_insert(sequence);
            }
            return Err(TableError::Hoard(WAITING_BYTES_MAX));
        }
        if asked.change().is_none() {
            if self.questions == QUESTIONS_MAX {
                return Err(TableError::Flood(QUESTIONS_MAX));
            }
            self.questions += 1;
        }
        self.waiting_bytes = bytes;
        Ok(())
    }

    /// It waits no longer.
    pub(super) fn let_go(&mut self, asked: &Asked) {
        self.waiting_bytes -= asked.bytes();
        self.questions -= usize::from(asked.change().is_none());
    }
}
