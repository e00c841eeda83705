//! Bequests: what one lineage leaves to another one that goes on for both, on either side.
//!
//! Like two halves of an orchestra that have gone on rehearsing in different towns: before they play together again, one half
//! sends its scores, with all that was pencilled in. The other goes through them part by part, and weighs each marking by how
//! long either half has rehearsed.
//!
//! # How it works
//! - *The lineage that yields* keeps what it has after a step that its convener names, and trains on: whoever wants some of it
//!   is given it ([`Bequest`]). Every member has all parameters; states are with those who keep them.
//! - *The one that leads* trains on too, while its members fetch what belongs to the chunks that each keeps ([`Inheritance`]).
//!   When all have that, they agree on a view whose first step trains nothing: in it owners, and those who keep copies, blend
//!   both states, and the all-gather takes it to everybody. It is a step like any other, so it can be undone, begun again and
//!   rolled forward.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::message::{Content, Donation, Message, Parcel, Piece, Saved, WantBequest, Will};
use peergrad_protocol::view::{Member, Merge};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Pool, Rank, StepNumber, ViewDigest};

use super::Session;
use super::packing::{Packing, unpack};
use crate::blend::{Blend, Estate};
use crate::checkpoint::Checkpoint;
use crate::geometry::Geometry;
use crate::io::{Event, Merged, Output, Reject};
use crate::owned::State;
use crate::task::{Evaluation, Task};

/// What a member keeps for another lineage.
pub(super) struct Bequest {
    /// The view in which it was kept.
    view: ViewDigest,
    checkpoint: Arc<Checkpoint>,
    /// Since when, as far as that was noticed.
    kept_at: Option<Instant>,
}

/// What a member has of another lineage's state so far.
pub(super) struct Inheritance {
    will: Will,
    /// What a step that blends it in holds as well, as long as that lasts.
    estate: Arc<Estate>,
    /// By donor: when it was asked last, and has not answered yet.
    asked: BTreeMap<PeerId, Instant>,
    /// When the convener spoke of it last.
    told_at: Instant,
    /// The view for which all that is needed is here.
    whole_in: Option<ViewDigest>,
}

/// How well the parameters of two lineages do, and those that came of them.
pub(crate) struct Weighing {
    ours: Arc<Buffer>,
    merged: Arc<Buffer>,
    share: f32,
}

/// What a session has to do with other lineages.
#[derive(Default)]
pub(super) struct Bequests {
    /// As soon as so many steps are committed, what is here is kept for another lineage.
    due: Option<StepNumber>,
    kept: Option<Bequest>,
    inheritance: Option<Inheritance>,
    /// What was merged with the newest complete step, until that is committed.
    merged: Option<Merged>,
    weighing: Option<Weighing>,
}

impl Bequests {
    /// What was to be kept in the view that is left was for another lineage to hear of in that view.
    pub(super) fn leave_view(&mut self) {
        self.due = None;
    }

    /// The newest complete step is undone.
    pub(super) fn undo(&mut self) {
        self.merged = None;
    }
}

/// What is asked of one donor.
#[derive(Default)]
struct Wanted {
    values: BTreeSet<usize>,
    states: BTreeSet<usize>,
}

impl Session {
    // Leaving.

    /// What is here after so many steps is kept for another lineage.
    pub(crate) fn bequeath_after(&mut self, steps: StepNumber) {
        if steps.0 > self.committed_steps() {
            self.bequests.due = Some(steps);
        }
    }

    /// A step was committed: perhaps that one.
    pub(super) fn bequeath_if_due(&mut self) {
        let steps = self.committed_steps();
        if self.bequests.due.take_if(|at| at.0 <= steps).is_some_and(|at| at.0 == steps) {
            let view = self.digest();
            self.bequests.kept = self.checkpoint().map(|checkpoint| Bequest {
                view,
                checkpoint: Arc::new(checkpoint),
                kept_at: None,
            });
        }
    }

    /// What this lineage leaves to another one, once it is kept.
    pub(crate) fn will(&self) -> Option<Will> {
        let Bequest { view, checkpoint, .. } =
            self.bequests.kept.as_ref().filter(|_| self.has_bequeathed())?;
        let Saved { steps, ledger, .. } = checkpoint.saved.clone();
        let view_record = self.view();
        // Where each chunk was in the last of these steps.
        let moved = self.geometry.moved(StepNumber(steps.0.saturating_sub(1)));
        let placement = self.geometry.target.after(&view_record.moves, moved);
        let donor = |(index, member): (usize, &Member)| {
            let rank = Rank::from_index(index);
            let is_its = |chunk: &usize| placement.keepers(*chunk).contains(&rank);
            let chunks = 0..self.geometry.cut.chunks.count();
            let states = chunks.filter(|_| self.geometry.cut.has_state).filter(is_its).collect();
            Donation { contact: member.contact(), states }
        };
        let donors = view_record.members.iter().enumerate().map(donor).collect();
        let trained = ledger.taken(u64::from(self.loaded.task.sample_count()));
        Some(Will { view: *view, steps, ledger, trained, roots: view_record.roots.clone(), donors })
    }

    /// Whether what is here was kept for another lineage in the present view.
    pub(crate) fn has_bequeathed(&self) -> bool {
        self.bequests.kept.as_ref().is_some_and(|bequest| bequest.view == self.digest())
    }

    /// The next parcel of what somebody asks for, if it is kept here.
    pub(crate) fn give(&self, want: &WantBequest) -> Option<Frame> {
        let Bequest { view, checkpoint, .. } = self.bequests.kept.as_ref()?;
        if (*view, checkpoint.saved.steps) != (want.view, want.steps) {
            return None;
        }
        let chunks = self.geometry.cut.chunks;
        let part = |chunk: usize| match want.content {
            Content::Values => Some((&checkpoint.parameters[chunks.range(chunk)], 0)),
            Content::State => checkpoint.state(chunk).map(|state| (&state.moments[..], state.updates)),
        };
        let known = want.chunks.iter().filter(|chunk| *chunk < chunks.count());
        let mut packing = Packing::default();
        for (chunk, (part, updates)) in known.filter_map(|chunk| Some((chunk, part(chunk)?))) {
            packing.add(chunk, part, updates);
            if packing.is_full() {
                break;
            }
        }
        let (parcel, payload) = packing.seal(want.view, want.steps, want.content, &self.segments)?;
        Some(Frame::encode(&Message::Bequest(parcel), Some(payload)))
    }

    // Taking over.

    /// Another lineage has left this to the present one.
    pub(crate) fn inherit(&mut self, now: Instant, will: Will) {
        let is_known = |it: &Inheritance| {
            (it.will.view, it.will.steps, &it.will.donors) == (will.view, will.steps, &will.donors)
        };
        match self.bequests.inheritance.as_mut().filter(|inheritance| is_known(inheritance)) {
            Some(inheritance) => inheritance.told_at = now,
            None => {
                let (estate, asked) = (Arc::default(), BTreeMap::new());
                self.bequests.inheritance =
                    Some(Inheritance { will, estate, asked, told_at: now, whole_in: None });
            }
        }
    }

    /// What nobody speaks of any more is not needed, nor what was kept for others long ago.
    pub(crate) fn forget_inheritance(&mut self, now: Instant) {
        let is_merging = self.view().merge().is_some();
        let Bequests { inheritance, kept, .. } = &mut self.bequests;
        inheritance.take_if(|it| !is_merging && now.since(it.told_at) > KEPT_FOR);
        kept.take_if(|bequest| now.since(*bequest.kept_at.get_or_insert(now)) > KEPT_FOR);
    }

    /// What is being inherited.
    pub(crate) fn inheriting(&self) -> Option<(ViewDigest, StepNumber)> {
        self.bequests.inheritance.as_ref().map(|it| (it.will.view, it.will.steps))
    }

    /// The same, if all that this member needs of it in the present view is here.
    pub(crate) fn inherited_here(&self) -> Option<(ViewDigest, StepNumber)> {
        let inheritance = self.bequests.inheritance.as_ref()?;
        // What a view began with it still has, whatever chunks have come since.
        let is_here = inheritance.whole_in == Some(self.digest()) || self.merging().is_some();
        self.inheriting().filter(|_| is_here)
    }

    /// The chunks that this member keeps, or may keep when the next view begins.
    fn needed(&self) -> BTreeSet<usize> {
        let geometry: &Geometry = &self.geometry;
        let now = geometry.target.after(&geometry.view.moves, geometry.moved(self.step));
        let is_mine = |chunk: &usize| {
            [&now, &geometry.target].iter().any(|placement| placement.keepers(*chunk).contains(&self.rank))
        };
        (0..geometry.cut.chunks.count()).filter(is_mine).collect()
    }

    /// Asks for what is lacking: of donors that are linked, and not asked already. The others are dialed.
    pub(crate) fn fetch(&mut self, now: Instant, is_linked: impl Fn(&PeerId) -> bool, out: &mut Vec<Output>) {
        let needed = self.needed();
        let (has_state, rank, digest) = (self.geometry.cut.has_state, self.rank.index(), self.digest());
        let Some(inheritance) = &mut self.bequests.inheritance else { return };
        let is_here = |chunk: &usize| {
            let has_state = !has_state || inheritance.estate.states.contains_key(chunk);
            has_state && inheritance.estate.values.contains_key(chunk)
        };
        if needed.iter().all(is_here) {
            inheritance.whole_in = Some(digest);
            return;
        }
        let donors = &inheritance.will.donors;
        let mut wanted: BTreeMap<PeerId, Wanted> = BTreeMap::new();
        for chunk in needed {
            let lacks_values = !inheritance.estate.values.contains_key(&chunk);
            let lacks_state = has_state && !inheritance.estate.states.contains_key(&chunk);
            if !lacks_values && !lacks_state {
                continue;
            }
            let can_give = |donor: &&Donation| {
                is_linked(&donor.contact.peer) && (!has_state || donor.states.contains(chunk))
            };
            let able: Vec<&Donation> = donors.iter().filter(can_give).collect();
            // In longer runs, so that all of them give.
            let Some(donor) = able.get((chunk / DONOR_RUN + rank) % able.len().max(1)) else { continue };
            let wanted = wanted.entry(donor.contact.peer).or_default();
            if lacks_values {
                wanted.values.insert(chunk);
            }
            if lacks_state {
                wanted.states.insert(chunk);
            }
        }
        for donor in donors.iter().filter(|donor| !is_linked(&donor.contact.peer)) {
            out.push(Output::Dial(donor.contact.clone()));
        }
        for (peer, Wanted { values, states }) in wanted {
            if inheritance.asked.get(&peer).is_some_and(|asked| now.since(*asked) < ASK_AGAIN) {
                continue;
            }
            inheritance.asked.insert(peer, now);
            let (content, chunks) =
                if values.is_empty() { (Content::State, states) } else { (Content::Values, values) };
            let chunks: ChunkSet = chunks.into_iter().collect();
            let Will { view, steps, .. } = inheritance.will;
            let frame =
                Frame::encode(&Message::WantBequest(WantBequest { view, steps, content, chunks }), None);
            out.push(Output::Send { to: peer, frame });
        }
    }

    /// Chunks of another lineage have come.
    ///
    /// # Errors
    /// They are damaged, or not those that were asked for.
    pub(crate) fn inherited(
        &mut self,
        from: PeerId,
        parcel: &Parcel,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        let is_asked = self.bequests.inheritance.as_mut().is_some_and(|it| {
            let is_it = (parcel.view, parcel.steps) == (it.will.view, it.will.steps);
            is_it && it.asked.remove(&from).is_some()
        });
        if !is_asked {
            // Asked for twice, or of an earlier will.
            return Ok(());
        }
        let parts = unpack(parcel, payload, |chunk| self.len_of(chunk, parcel.content))?;
        let inheritance = self.bequests.inheritance.as_mut().expect("just looked at");
        // Nothing is lacking any more while a step blends it in.
        let Some(estate) = Arc::get_mut(&mut inheritance.estate) else { return Ok(()) };
        for (Piece { chunk, updates }, part) in parts {
            let (chunk, part) = (chunk as usize, part.to_vec());
            match parcel.content {
                Content::Values => _ = estate.values.insert(chunk, part),
                Content::State => _ = estate.states.insert(chunk, State { moments: part, updates }),
            }
        }
        Ok(())
    }

    /// Committed steps.
    pub(crate) fn committed(&self) -> StepNumber {
        StepNumber(self.committed_steps())
    }

    // Merging.

    /// What the present view merges with its first step, if that is the step in progress.
    pub(super) fn merging(&self) -> Option<&Merge> {
        let is_first = self.step == self.view().first_step() && self.complete.is_some();
        self.view().merge().filter(|_| is_first)
    }

    /// What owners do in the step in progress, if it is the one that merges another lineage.
    pub(super) fn blend(&self) -> Option<Blend> {
        let share = self.merging()?.share();
        // Who has got its part only from a record that is not true blends in nothing.
        let estate =
            self.bequests.inheritance.as_ref().map_or_else(Arc::default, |it| Arc::clone(&it.estate));
        let updates_max = u32::try_from(self.step.0 + 1).unwrap_or(u32::MAX);
        Some(Blend { estate, share, updates_max })
    }

    /// The step that has merged another lineage is complete: how far apart they were.
    pub(super) fn note_merge(&mut self, merge: Merge) {
        let (Some(before), Some(after)) = (&self.previous, &self.complete) else { return };
        let share = merge.share();
        let apart = |(before, after): (&f32, &f32)| f64::from((after - before) / share).powi(2);
        let distance: f64 = before.iter().zip(after.iter()).map(apart).sum();
        let norm: f64 = before.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let weighing = Weighing { ours: Arc::clone(before), merged: Arc::clone(after), share };
        self.bequests.merged = Some(Merged { merge, distance: distance.sqrt(), norm: norm.sqrt() });
        self.bequests.weighing = Some(weighing);
    }

    /// A step was committed: perhaps the one that has merged another lineage.
    pub(super) fn end_merge(&mut self, out: &mut Vec<Output>) {
        let committed = self.committed().0.checked_sub(1).map(StepNumber);
        if self.view().merge().is_some() && committed == Some(self.view().first_step()) {
            self.bequests.inheritance = None;
        }
        out.extend(self.bequests.merged.take().map(|merged| Output::Event(Event::Merged(merged))));
    }

    /// What is to be weighed, if this member is the one that does it.
    pub(crate) fn take_weighing(&mut self) -> Option<(Weighing, Arc<dyn Task>)> {
        let weighing = self.bequests.weighing.take().filter(|_| self.rank == Rank(0))?;
        Some((weighing, Arc::clone(&self.loaded.task)))
    }
}

impl Weighing {
    /// How well each of the three does: this lineage before, the other one, and both together.
    pub(crate) fn weigh(&self, task: &dyn Task) -> [Evaluation; 3] {
        let pool = Pool::new(1);
        let mut theirs = pool.take(self.ours.len());
        for (theirs, (ours, merged)) in theirs.iter_mut().zip(self.ours.iter().zip(self.merged.iter())) {
            *theirs = ours + (merged - ours) / self.share;
        }
        [task.evaluate(&self.ours), task.evaluate(&theirs), task.evaluate(&self.merged)]
    }
}

/// A donor that has not answered for so long is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// What was kept, or inherited, is forgotten after so long without a word of it.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// So many neighbouring chunks are asked of one donor.
const DONOR_RUN: usize = 16;
