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
//! Every parcel of some chunks comes with its digest. One that moves uses a credit of its link, as a segment does, and goes
//! ahead of those of its step: the new keeper cannot complete the step without it, and until then holds on to segments of the
//! next one. One that fills needs none: segments of the next step may have used it all up, and wait at the receiver for this
//! very step. So it is asked for, one parcel at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::limits::CHUNKS_MAX;
use peergrad_protocol::message::{Content, Message, Parcel, Piece, Tally, WantChunks};
use peergrad_protocol::view::{Donor, Move};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, StepNumber};

use super::Session;
use super::packing::{Packing, unpack};
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
    chunk: usize,
    parcel: Addressed,
}

/// What chunks in one parcel have in common.
#[derive(Clone, Copy, PartialEq)]
struct Addressed {
    to: Rank,
    steps: StepNumber,
    content: Content,
}

/// The step that this member completes with what others hold.
struct Filling {
    vector: Buffer,
    missing: BTreeSet<usize>,
    tally: Tally,
    donors: Vec<Donor>,
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

    /// The next chunk that is to be sent, if it goes into this parcel.
    fn next_of(&mut self, parcel: Addressed) -> Option<Outgoing> {
        let is_its = self.outbox.front().is_some_and(|next| next.parcel == parcel);
        if is_its { self.outbox.pop_front() } else { None }
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
            let outgoing = |&to: &Rank| Outgoing {
                chunk,
                parcel: Addressed { to, steps: step, content: Content::State },
            };
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
        // That there are sums of this step shows that everyone had completed the one before.
        self.previous = None;
        self.commit_if_shown(out);
        self.transfer.filling = Some(Filling { vector, missing, tally, donors: donors.to_vec() });
        let ranks: BTreeSet<Rank> = donors.iter().map(|donor| donor.rank).collect();
        ranks.into_iter().for_each(|rank| self.ask(rank, out));
        self.end_filling();
    }

    /// Asks a donor for what is lacking and it has.
    pub(super) fn ask(&self, donor: Rank, out: &mut Vec<Output>) {
        let Some(filling) = &self.transfer.filling else { return };
        let has = |chunk: &&usize| {
            let is_its = |at: &Donor| at.rank == donor && (at.first..at.end).contains(&(**chunk as u32));
            filling.donors.iter().any(is_its)
        };
        let chunks: ChunkSet = filling.missing.iter().filter(has).copied().collect();
        if !chunks.is_empty() {
            let want = WantChunks { view: self.digest(), steps: self.step.next(), chunks };
            let frame = Frame::encode(&Message::WantChunks(want), None);
            out.push(Output::Send { to: self.view().member(donor).peer, frame });
        }
    }

    pub(super) fn end_filling(&mut self) {
        if self.transfer.filling.as_ref().is_some_and(|filling| filling.missing.is_empty())
            && let Some(Filling { vector, tally, .. }) = self.transfer.filling.take()
        {
            let record = self.record(tally);
            self.complete_step(Arc::new(vector), record);
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
        let asked = self.transfer.outbox.iter().filter(|outgoing| outgoing.parcel.to == to).count();
        let is_chunk = |chunk: usize| chunk < self.geometry.cut.chunks.count();
        if asked + want.chunks.len() > CHUNKS_MAX || !want.chunks.iter().all(is_chunk) {
            return Err(Reject::OutOfPlace);
        }
        let parcel = Addressed { to, steps: want.steps, content: Content::Values };
        self.transfer.outbox.extend(want.chunks.iter().map(|chunk| Outgoing { chunk, parcel }));
        self.settle(out);
        Ok(())
    }

    // Both.

    /// Sends chunks: those that move as far as credit goes, and of those that were asked for one parcel.
    pub(super) fn send_chunks(&mut self, out: &mut Vec<Output>) {
        let mut waiting = VecDeque::new();
        while let Some(first) = self.transfer.outbox.front().copied() {
            let to = first.parcel.to;
            if first.parcel.content == Content::Values {
                if let Some(frame) = self.next_parcel() {
                    out.push(Output::Send { to: self.view().member(to).peer, frame });
                }
                self.transfer.outbox.retain(|outgoing| outgoing.parcel != first.parcel);
                continue;
            }
            // Without credit for one parcel there is none for the next.
            if waiting.iter().any(|outgoing: &Outgoing| outgoing.parcel.to == to)
                || self.wiring.links.credit(to.index()) == 0
            {
                waiting.extend(self.transfer.outbox.pop_front());
                continue;
            }
            // What is not here any more is left out: the receiver is ahead of it, or in another view.
            if let Some(frame) = self.next_parcel() {
                let has_credit = self.wiring.links.take_for_one_hop(to.index());
                assert!(has_credit, "looked at before");
                out.push(Output::Send { to: self.view().member(to).peer, frame });
            }
        }
        self.transfer.outbox = waiting;
    }

    /// The next chunks of the outbox that go together, as many as make a parcel.
    fn next_parcel(&mut self) -> Option<Frame> {
        let parcel = self.transfer.outbox.front()?.parcel;
        let mut packing = Packing::default();
        while let Some(outgoing) = self.transfer.next_of(parcel) {
            let Outgoing { chunk, parcel: Addressed { steps, content, .. } } = outgoing;
            let (part, updates) = match content {
                Content::Values => (self.values(chunk, steps), 0),
                Content::State => {
                    let state = self.state_after(chunk, steps);
                    (state.map(|state| &state.moments[..]), state.map_or(0, |state| state.updates))
                }
            };
            let Some(part) = part else { continue };
            packing.add(chunk, part, updates);
            if packing.is_full() {
                break;
            }
        }
        let Addressed { steps, content, .. } = parcel;
        let (parcel, payload) = packing.seal(self.digest(), steps, content, &self.segments)?;
        Some(Frame::encode(&Message::Parcel(parcel), Some(payload)))
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

    /// Chunks have come.
    ///
    /// # Errors
    /// They are damaged, or not those that were to come.
    pub(crate) fn parcel(
        &mut self,
        from: PeerId,
        message: &Parcel,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.view().rank(&from).ok_or(Reject::NotAMember)?;
        if message.content == Content::State {
            out.push(Output::Credit { to: from, segments: 1 });
        }
        for (piece, part) in unpack(message, payload, |chunk| self.len_of(chunk, message.content))? {
            match message.content {
                Content::Values => self.values_in(message.steps, piece.chunk as usize, part)?,
                Content::State => self.state_in(rank, message.steps, piece, part)?,
            }
        }
        // What this member has reported stays true: a step that is whole now is completed later.
        if !self.is_still() {
            if message.content == Content::Values {
                self.ask(rank, out);
            }
            self.end_filling();
        }
        self.settle(out);
        Ok(())
    }

    /// Elements of a chunk's values, or of its state; `None`: there is no such chunk.
    pub(super) fn len_of(&self, chunk: usize, content: Content) -> Option<usize> {
        let is_chunk = chunk < self.geometry.cut.chunks.count();
        is_chunk.then(|| match content {
            Content::Values => self.geometry.cut.chunks.range(chunk).len(),
            Content::State => self.owned.len_of(chunk),
        })
    }

    fn state_in(
        &mut self,
        from: Rank,
        steps: StepNumber,
        Piece { chunk, updates }: Piece,
        moments: &[f32],
    ) -> Result<(), Reject> {
        let is_mine = self.geometry.target.keepers(chunk as usize).contains(&self.rank);
        let is_donor =
            |moved: &Move| moved.chunk == chunk && moved.from[0] == from && !moved.from.contains(&self.rank);
        let is_due = steps == self.step || steps == self.step.next();
        if !is_mine || !is_due || !self.view().moves.list.iter().any(is_donor) {
            return Err(Reject::Chunk);
        }
        let state = State { moments: moments.to_vec(), updates };
        self.transfer.arrivals.insert((steps, chunk as usize), state);
        self.take_arrivals();
        Ok(())
    }

    fn values_in(&mut self, steps: StepNumber, chunk: usize, values: &[f32]) -> Result<(), Reject> {
        let is_next = steps == self.step.next();
        // Asked for twice, it may come twice.
        let Some(filling) = self.transfer.filling.as_mut().filter(|_| is_next) else { return Ok(()) };
        if filling.missing.remove(&chunk) {
            filling.vector[self.geometry.cut.chunks.range(chunk)].copy_from_slice(values);
        }
        Ok(())
    }
}
