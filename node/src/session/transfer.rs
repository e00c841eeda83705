//! The transfer of single chunks: those whose turn to move has come, and those that complete an interrupted step.
//!
//! Like handing over a shift: between two steps the old keeper of a chunk sends its state to the new one, while everybody
//! already computes the next gradients. The new keeper needs it only when the sums are there.
//!
//! # How it works
//! - *Moving.* Before a step is taken here, the chunks whose turn comes with it are sent by their old owner, with the state
//!   after as many steps. The new keeper takes them in when it is as far itself.
//! - *Filling.* A view may roll a step forward that its members hold only together. Who lacks chunks asks the donors that
//!   the record names for their values.
//!
//! Both use the credit of the links, one credit a chunk, and every chunk comes with its digest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::CHUNKS_MAX;
use peergrad_protocol::message::{Chunk, Message, Tally, WantChunks};
use peergrad_protocol::view::Donor;
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, StepNumber};

use super::Session;
use crate::io::{Output, Reject};
use crate::owned::State;

/// Chunks on their way, to and from this member.
#[derive(Default)]
pub(super) struct Transfer {
    /// What is to be sent, as soon as there is credit.
    outbox: VecDeque<Outgoing>,
    /// States that have come for the step in progress, or the one after.
    arrivals: BTreeMap<(StepNumber, usize), State>,
    filling: Option<Filling>,
}

/// A chunk that is to be sent.
#[derive(Clone, Copy)]
struct Outgoing {
    to: Rank,
    chunk: usize,
    steps: StepNumber,
    what: What,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Values,
    State,
}

/// The step that this member completes with what others hold.
struct Filling {
    vector: Buffer,
    missing: BTreeSet<usize>,
    tally: Tally,
}

impl Transfer {
    pub(super) fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Forgets what belongs to a view that is over. What has come of an interrupted step, and is lacking of it, is
    /// handed back.
    pub(super) fn clear(&mut self) -> Option<(Buffer, BTreeSet<usize>)> {
        let filling = std::mem::take(self).filling?;
        Some((filling.vector, filling.missing))
    }

    /// Which chunks of the step are lacking while it is being filled.
    pub(super) fn missing(&self) -> Option<&BTreeSet<usize>> {
        self.filling.as_ref().map(|filling| &filling.missing)
    }

    /// What the step that is being filled is worth.
    pub(super) fn tally(&self) -> Option<Tally> {
        self.filling.as_ref().map(|filling| filling.tally)
    }
}

impl Session {
    // Moving.

    /// Queues the chunks whose turn to leave has come with the step in progress.
    pub(super) fn move_chunks(&mut self) {
        let (geometry, step) = (&self.geometry, self.step);
        if !geometry.cut.has_state || step <= geometry.view.first_step() {
            return;
        }
        let (done, due) = (geometry.moved(StepNumber(step.0 - 1)), geometry.moved(step));
        for moved in &geometry.view.moves.list[done..due] {
            let chunk = moved.chunk as usize;
            if moved.from[0] != self.rank || chunk >= geometry.cut.chunks.count() {
                continue;
            }
            let new = geometry.target.keepers(chunk).iter().filter(|keeper| !moved.from.contains(keeper));
            let outgoing = |&to: &Rank| Outgoing { to, chunk, steps: step, what: What::State };
            self.transfer.outbox.extend(new.map(outgoing));
        }
    }

    /// States that came before this member was as far.
    pub(super) fn take_arrivals(&mut self) {
        let step = self.step;
        while let Some(entry) = self.transfer.arrivals.first_entry() {
            let (steps, chunk) = *entry.key();
            if steps > step {
                return;
            }
            let state = entry.remove();
            let is_pending = self.uncommitted.is_some();
            if steps == step && self.owned.state(chunk, is_pending).is_none() {
                self.owned.keep(chunk, Some(state), is_pending);
            }
        }
    }

    // Filling.

    /// Completes the step in progress with what others hold; `vector` has all but the `missing` chunks.
    pub(super) fn fill(
        &mut self,
        vector: Buffer,
        missing: BTreeSet<usize>,
        tally: Tally,
        donors: &[Donor],
        out: &mut Vec<Output>,
    ) {
        let view = self.digest();
        for donor in donors {
            // Long ranges of which little is lacking are asked for piece by piece.
            let mut lacking = missing.range(donor.first as usize..donor.end as usize).copied().peekable();
            while let Some(first) = lacking.next() {
                let mut end = first + 1;
                while lacking.next_if_eq(&end).is_some() {
                    end += 1;
                }
                let want = WantChunks { view, steps: self.step.next(), first: first as u32, end: end as u32 };
                let frame = Frame::encode(&Message::WantChunks(want), None);
                out.push(Output::Send { to: self.view().member(donor.rank).peer, frame });
            }
        }
        // That there are sums of this step shows that everyone had completed the one before.
        self.previous = None;
        self.commit_if_shown(out);
        self.transfer.filling = Some(Filling { vector, missing, tally });
        self.end_filling();
    }

    fn end_filling(&mut self) {
        if self.transfer.filling.as_ref().is_some_and(|filling| filling.missing.is_empty())
            && let Some(Filling { vector, tally, .. }) = self.transfer.filling.take()
        {
            self.complete_step(Arc::new(vector), tally);
        }
    }

    /// A member lacks chunks that this one has.
    ///
    /// # Errors
    /// It is none of the view, or asks for more than there is.
    pub(crate) fn wanted(
        &mut self,
        from: PeerId,
        want: WantChunks,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let to = self.view().rank(&from).ok_or(Reject::NotAMember)?;
        let asked = self.transfer.outbox.iter().filter(|outgoing| outgoing.to == to).count();
        let count = (want.end - want.first) as usize;
        if asked + count > CHUNKS_MAX || want.end as usize > self.geometry.cut.chunks.count() {
            return Err(Reject::OutOfPlace);
        }
        let chunks = want.first as usize..want.end as usize;
        let outgoing = |chunk| Outgoing { to, chunk, steps: want.steps, what: What::Values };
        self.transfer.outbox.extend(chunks.map(outgoing));
        self.settle(out);
        Ok(())
    }

    // Both.

    /// Sends chunks as far as credit goes.
    pub(super) fn send_chunks(&mut self, out: &mut Vec<Output>) {
        for _ in 0..self.transfer.outbox.len() {
            let Some(outgoing) = self.transfer.outbox.pop_front() else { return };
            let rank = outgoing.to.index();
            if !self.wiring.links.take_for_one_hop(rank) {
                self.transfer.outbox.push_back(outgoing);
                continue;
            }
            let Some(frame) = self.chunk_frame(outgoing) else {
                // It is not here any more: the receiver is ahead of it, or in another view.
                let credit = self.wiring.links.credit(rank);
                self.wiring.links.set_credit(rank, credit + 1);
                continue;
            };
            out.push(Output::Send { to: self.view().member(outgoing.to).peer, frame });
        }
    }

    fn chunk_frame(&self, Outgoing { chunk, steps, what, .. }: Outgoing) -> Option<Frame> {
        let (values, updates) = match what {
            What::Values => (self.values(chunk, steps)?, None),
            What::State => {
                let state = self.state_after(chunk, steps)?;
                (&state.moments[..], Some(state.updates))
            }
        };
        let mut payload = self.segments.take(values.len());
        payload.copy_from_slice(values);
        let digest = ContentDigest::of(payload.bytes());
        let has_values = what == What::Values;
        let view = self.digest();
        let message = Chunk { view, steps, chunk: chunk as u32, has_values, updates, digest };
        Some(Frame::encode(&Message::Chunk(message), Some(payload)))
    }

    /// The values of a chunk after so many steps, if they are here.
    fn values(&self, chunk: usize, steps: StepNumber) -> Option<&[f32]> {
        let range = self.geometry.cut.chunks.range(chunk);
        if steps == self.step {
            return Some(&self.complete.as_ref()?[range]);
        }
        if steps == self.step.next() {
            let filling = self.transfer.filling.as_ref()?;
            return (!filling.missing.contains(&chunk)).then(|| &filling.vector[range]);
        }
        let is_before = self.uncommitted.is_some() && steps.next() == self.step;
        if is_before { Some(&self.previous.as_ref()?[range]) } else { None }
    }

    /// The optimizer state of a chunk after so many steps, if it is here.
    fn state_after(&self, chunk: usize, steps: StepNumber) -> Option<&State> {
        let is_newest = steps == self.step;
        let is_before = self.uncommitted.is_some() && steps.next() == self.step;
        if is_newest || is_before {
            self.owned.state(chunk, is_newest && self.uncommitted.is_some())
        } else {
            None
        }
    }

    /// A chunk has come.
    ///
    /// # Errors
    /// It is damaged, or not one that was to come.
    pub(crate) fn chunk(
        &mut self,
        from: PeerId,
        message: Chunk,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.view().rank(&from).ok_or(Reject::NotAMember)?;
        out.push(Output::Credit { to: from, segments: 1 });
        let chunk = message.chunk as usize;
        if chunk >= self.geometry.cut.chunks.count() {
            return Err(Reject::Chunk);
        }
        if ContentDigest::of(payload.bytes()) != message.digest {
            return Err(Reject::Chunk);
        }
        match message.updates {
            Some(updates) => self.state_in(rank, message.steps, chunk, updates, payload)?,
            None => self.values_in(message.steps, chunk, payload)?,
        }
        self.settle(out);
        Ok(())
    }

    fn state_in(
        &mut self,
        from: Rank,
        steps: StepNumber,
        chunk: usize,
        updates: u32,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        let is_mine = self.geometry.target.keepers(chunk).contains(&self.rank);
        let is_donor = |moved: &peergrad_protocol::view::Move| {
            moved.chunk as usize == chunk && moved.from[0] == from && !moved.from.contains(&self.rank)
        };
        let is_due = steps == self.step || steps == self.step.next();
        let has_length = payload.len() == self.owned.len_of(chunk);
        if !is_mine || !is_due || !has_length || !self.view().moves.list.iter().any(is_donor) {
            return Err(Reject::Chunk);
        }
        let state = State { moments: payload.to_vec(), updates };
        self.transfer.arrivals.insert((steps, chunk), state);
        self.take_arrivals();
        Ok(())
    }

    fn values_in(&mut self, steps: StepNumber, chunk: usize, payload: &Buffer) -> Result<(), Reject> {
        let range = self.geometry.cut.chunks.range(chunk);
        let is_next = steps == self.step.next();
        let filling = self.transfer.filling.as_mut().filter(|_| is_next).ok_or(Reject::Chunk)?;
        if range.len() != payload.len() || !filling.missing.remove(&chunk) {
            return Err(Reject::Chunk);
        }
        filling.vector[range].copy_from_slice(payload);
        self.end_filling();
        Ok(())
    }
}
