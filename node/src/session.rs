//! The session: training in one view. Batches, rounds, parameters, commits.
//!
//! # How it works
//! ```text
//! step t      begin --- gradient --- reduce-scatter --- update --- all-gather --- complete
//! step t + 1                                                          begin --- gradient --- first finished sum
//!                                                                                            = step t is committed
//! ```
//! A finished sum of step t + 1 holds a contribution of every member, and a member contributes only after it completed
//! step t. So the first one that shows up here commits step t, without a message of its own; the last step is committed
//! by a closing barrier.
//!
//! # Memory
//! Three vectors: the complete parameters, the ones before (kept until the commit, then their buffer takes the next
//! result), and the gradient. Nothing vector-sized is allocated after the first steps.
//!
//! # Invariants
//! - At most two rounds are alive: the one in progress, and the one before while others still wait for its segments.
//! - Segments of the next step, from members that are ahead, are held within their link's window.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_collectives::links::Links;
use peergrad_collectives::plan::Plan;
use peergrad_collectives::round::{Action, Label, Round};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::ledger::Ledger;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{Complete, Message, Segment, Tally};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Frame, PeerId, Pool, Rank, StepNumber, ViewDigest};

use crate::geometry::Geometry;
use crate::io::{Committed, Event, Output, Reject};
use crate::loader::Loaded;
use crate::memo::Memo;
use crate::owned::Owned;
use crate::peer::{Begun, Contribution, OwnerRule, Reply};

mod account;

/// Training in one view.
pub(crate) struct Session {
    pub(crate) view: Arc<View>,
    pub(crate) digest: ViewDigest,
    rank: Rank,
    specification: Arc<[u8]>,
    loaded: Loaded,
    plan: Arc<Plan>,
    links: Links,
    /// By rank: segments received whose credit was not returned.
    held: Vec<u32>,
    held_total: u32,
    vectors: Pool,
    segments: Pool,
    /// Parameters before the newest complete step, until that step is committed.
    previous: Option<Arc<Buffer>>,
    /// Parameters after the newest complete step.
    complete: Arc<Buffer>,
    owned: Owned,
    /// The bookmark before the step in progress.
    ledger: Ledger,
    memo: Memo,
    step: StepNumber,
    current: Option<Current>,
    rounds: VecDeque<(StepNumber, Round)>,
    early: VecDeque<(Rank, Label, Buffer)>,
    /// The newest complete step, while it is not known to be committed.
    uncommitted: Option<Record>,
    trained: u64,
    left_out: u64,
    own_trained: u64,
    reduced: Option<Reply<()>>,
    gathered: Option<Reply<()>>,
    /// Whether the program is done here, and which members have said so.
    is_closing: bool,
    closed: BTreeSet<PeerId>,
    /// Where a round's actions come together until they are carried out; empty in between.
    actions: Vec<Action>,
}

/// The step in progress.
struct Current {
    rate: f64,
    pass: u64,
    /// Samples of the batch, whether or not their gradient is finite.
    samples: u64,
    own_samples: u64,
    after: Ledger,
}

/// A complete step that is not yet committed.
struct Record {
    was: Current,
    tally: Tally,
}

impl Session {
    /// Begins the first view of a run: everyone draws the same initial parameters.
    pub(crate) fn found(
        geometry: &Geometry,
        me: PeerId,
        specification: Arc<[u8]>,
        loaded: Loaded,
        segments: Pool,
        memo: Memo,
    ) -> Self {
        let view = Arc::clone(&geometry.view);
        let rank = view.rank(&me).expect("a view is installed at its members");
        let training = &loaded.training;
        let layout = Arc::clone(&geometry.layout);
        let plan = Plan { layout, topology: training.topology, rank: rank.index() };
        let vectors = Pool::new(VECTORS_KEPT_MAX);
        let mut initial = vectors.take_zeroed(plan.layout.len());
        loaded.task.initial(training.seed, &mut initial);
        let shard = geometry.shards[rank.index()].iter().cloned();
        Self {
            digest: geometry.digest,
            rank,
            links: Links::new(view.members.len(), LINK_SEGMENTS, plan.has_relays()),
            held: vec![0; view.members.len()],
            held_total: 0,
            owned: Owned::new(shard, training.rule.moment_count()),
            plan: Arc::new(plan),
            vectors,
            segments,
            previous: None,
            complete: Arc::new(initial),
            ledger: view.ledger.clone(),
            view,
            specification,
            loaded,
            memo,
            step: StepNumber(0),
            current: None,
            rounds: VecDeque::new(),
            early: VecDeque::new(),
            uncommitted: None,
            trained: 0,
            left_out: 0,
            own_trained: 0,
            reduced: None,
            gathered: None,
            is_closing: false,
            closed: BTreeSet::new(),
            actions: Vec::new(),
        }
    }

    /// Elements that this member owns.
    pub(crate) fn shard_len(&self) -> usize {
        self.plan.own().len()
    }

    /// How to train, and on what.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    // What the program asks.

    /// Hands out the next step.
    pub(crate) fn begin(&mut self, reply: Reply<Begun>) {
        let training = &self.loaded.training;
        let sample_count = self.loaded.task.sample_count();
        let (batch, after) = self.ledger.take(training.batch_size, u64::from(sample_count));
        let order = self.memo.order(training.seed, batch.pass, sample_count);
        let shares = vec![1; self.view.members.len()];
        let part = batch.part(self.rank.index(), &shares);
        let samples: Arc<[u32]> =
            part.iter().flat_map(|span| &order[span.start as usize..span.end as usize]).copied().collect();
        let rate = training.schedule.rate(self.step.0);
        self.current = Some(Current {
            rate,
            pass: batch.pass,
            samples: batch.len(),
            own_samples: samples.len() as u64,
            after,
        });
        let begun = Begun {
            number: self.step,
            pass: batch.pass,
            rate,
            samples,
            view: self.digest,
            rank: self.rank,
            member_count: self.view.members.len(),
            parameters: Arc::clone(&self.complete),
            room: self.vectors.take(self.plan.layout.len()),
        };
        // A program that no longer waits has ended; the room goes home by itself.
        let _ = reply.send(begun);
    }

    /// Starts the round of the current step.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not foresee.
    pub(crate) fn reduce_scatter(
        &mut self,
        contribution: Contribution,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        let (previous, vectors, len) = (&mut self.previous, &self.vectors, self.plan.layout.len());
        let Contribution { vector, tally } = contribution;
        let round = Round::new(Arc::clone(&self.plan), vector, tally, || next_result(previous, vectors, len));
        self.rounds.push_back((self.step, round));
        assert!(self.rounds.len() <= 2, "a round ends before the next but one begins");
        self.reduced = Some(reply);
        for (from, label, payload) in std::mem::take(&mut self.early) {
            let taken = self.segment_in(from, self.step, label, payload, out);
            taken.map_err(|reject| (self.view.member(from).peer, reject))?;
        }
        self.settle(out);
        Ok(())
    }

    /// Takes the optimizer step for the own shard.
    pub(crate) fn update_owned(&mut self, rule: OwnerRule, reply: Reply<()>) {
        let (Some((_, round)), Some(current)) = (self.rounds.back_mut(), &self.current) else { return };
        if let Some((vector, tally)) = round.own_shard() {
            self.owned.update(rule, current.rate, tally, &self.complete, vector);
        }
        let _ = reply.send(());
    }

    /// The own shard is final: sends it to everyone.
    pub(crate) fn all_gather(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some((_, round)) = self.rounds.back_mut() {
            round.gather();
            self.gathered = Some(reply);
        }
        self.settle(out);
    }

    /// The program is done: tells everyone, and waits until everyone has said so.
    pub(crate) fn close(&mut self, out: &mut Vec<Output>) {
        self.is_closing = true;
        let message = Message::Complete(Complete { view: self.digest, steps: self.step });
        for member in
            self.view.members.iter().filter(|member| member.peer != self.view.member(self.rank).peer)
        {
            out.push(Output::Send { to: member.peer, frame: Frame::encode(&message, None) });
        }
    }

    // What other members send.

    /// Takes in a segment, or holds it if it is of the next step.
    pub(crate) fn segment(
        &mut self,
        from: PeerId,
        segment: Segment,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let from = self.rank_of(&from).ok_or(Reject::NotAMember)?;
        if segment.view != self.digest {
            return Err(Reject::OutOfPlace);
        }
        let held = &mut self.held[from.index()];
        if *held == LINK_SEGMENTS {
            return Err(Reject::OverCredit);
        }
        *held += 1;
        self.held_total += 1;
        let label = Label {
            phase: segment.phase,
            owner: segment.owner as usize,
            index: segment.index as usize,
            tally: segment.tally,
        };
        // Some members may have completed a step that still lacks a shard here.
        let next_round = self.rounds.back().map_or(self.step, |(step, _)| step.next());
        if segment.step == next_round {
            self.early.push_back((from, label, payload));
            return Ok(());
        }
        self.segment_in(from, segment.step, label, payload, out)?;
        self.settle(out);
        Ok(())
    }

    /// The rank of a peer that sent something: mostly a neighbour in the ring.
    fn rank_of(&self, peer: &PeerId) -> Option<Rank> {
        let is_it = |rank: &Rank| self.view.member(*rank).peer == *peer;
        let neighbours = [self.plan.previous(), self.plan.next()].map(Rank::from_index);
        neighbours.into_iter().find(is_it).or_else(|| self.view.rank(peer))
    }

    fn segment_in(
        &mut self,
        from: Rank,
        step: StepNumber,
        label: Label,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let (previous, vectors, len) = (&mut self.previous, &self.vectors, self.plan.layout.len());
        let round = self.rounds.iter_mut().find(|(number, _)| *number == step).ok_or(Reject::Segment)?;
        let room = || next_result(previous, vectors, len);
        let received = round.1.receive(from.index(), label, payload, room, &mut self.actions);
        received.map_err(|_| Reject::Segment)?;
        self.carry_out(step, out);
        Ok(())
    }

    /// A member returned credit.
    pub(crate) fn credit(
        &mut self,
        from: &PeerId,
        segments: u32,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.rank_of(from).ok_or(Reject::NotAMember)?;
        if !self.links.give_back(rank.index(), segments) {
            return Err(Reject::OverCredit);
        }
        self.settle(out);
        Ok(())
    }

    /// A member is done with the run.
    pub(crate) fn closed(&mut self, from: PeerId, complete: Complete) -> Result<(), Reject> {
        let is_last = complete.steps.0 == self.loaded.step_count();
        if complete.view != self.digest || self.view.rank(&from).is_none() || !is_last {
            return Err(Reject::OutOfPlace);
        }
        self.closed.insert(from);
        Ok(())
    }

    /// Whether the run cannot end well without this peer: a member, unless both it and this peer are done.
    ///
    /// One that is done may still hold segments of the last step that wait for credit.
    pub(crate) fn is_needed(&self, peer: &PeerId) -> bool {
        self.view.rank(peer).is_some() && !(self.is_closing && self.closed.contains(peer))
    }

    /// Whether everyone is done, so that the last step is committed and the run is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closing && self.closed.len() + 1 == self.view.members.len()
    }

    /// Commits the last step, after the closing barrier.
    pub(crate) fn commit_last(&mut self, out: &mut Vec<Output>) {
        assert!(self.is_closed(), "everyone is done");
        self.previous = None;
        self.commit(out);
    }

    // Progress.

    /// Does all that can be done now: sends what credit allows, notes commits, answers the program.
    fn settle(&mut self, out: &mut Vec<Output>) {
        self.commit_if_shown(out);
        for index in 0..self.rounds.len() {
            let (step, round) = &mut self.rounds[index];
            let step = *step;
            round.pump(&mut self.links, &self.segments, &mut self.actions);
            self.carry_out(step, out);
        }
        if self.rounds.len() == 2 && self.rounds[0].1.is_drained() {
            self.rounds.pop_front();
        }
        let is_alone = self.rounds.len() == 1;
        let Some((_, round)) = self.rounds.back_mut() else { return };
        if round.is_reduced()
            && let Some(reply) = self.reduced.take()
        {
            let _ = reply.send(());
        }
        // What others still wait for of the round before has left by now, unless somebody is ahead of what it can have.
        if is_alone
            && round.is_complete()
            && let Some(reply) = self.gathered.take()
        {
            self.complete_step();
            let _ = reply.send(());
        }
    }

    fn complete_step(&mut self) {
        let (_, round) = self.rounds.back_mut().expect("a round is complete");
        let vector = round.complete(|| self.vectors.take(self.plan.layout.len()));
        let was = self.current.take().expect("a round belongs to a step");
        assert!(self.uncommitted.is_none(), "a finished sum committed the step before");
        self.ledger = was.after.clone();
        self.uncommitted = Some(Record { was, tally: round.tally() });
        self.previous = Some(std::mem::replace(&mut self.complete, vector));
        self.step = self.step.next();
    }

    /// Steps known to be complete everywhere.
    fn committed_steps(&self) -> u64 {
        self.step.0 - u64::from(self.uncommitted.is_some())
    }

    /// Room for a result was asked for: the step before is complete everywhere.
    fn commit_if_shown(&mut self, out: &mut Vec<Output>) {
        if self.previous.is_none() && self.uncommitted.is_some() {
            self.commit(out);
        }
    }

    fn commit(&mut self, out: &mut Vec<Output>) {
        let Some(Record { was, tally }) = self.uncommitted.take() else { return };
        self.owned.commit();
        let left_out = was.samples.saturating_sub(tally.samples);
        self.trained += tally.samples;
        self.left_out += left_out;
        self.own_trained += was.own_samples;
        let (steps, digest_every) = (self.committed_steps(), self.loaded.training.digest_every);
        let is_due = digest_every > 0 && steps.is_multiple_of(digest_every);
        out.push(Output::Event(Event::Committed(Committed {
            step: StepNumber(steps - 1),
            pass: was.pass,
            loss: tally.loss / tally.samples as f64,
            samples: tally.samples,
            left_out,
            rate: was.rate,
            digest: is_due.then(|| ContentDigest::of(self.complete.bytes())),
        })));
    }

    fn carry_out(&mut self, step: StepNumber, out: &mut Vec<Output>) {
        for action in self.actions.drain(..) {
            match action {
                Action::Send { to, label, payload } => {
                    let segment = Segment {
                        view: self.digest,
                        step,
                        phase: label.phase,
                        owner: label.owner as u32,
                        index: label.index as u32,
                        tally: label.tally,
                    };
                    let frame = Frame::encode(&Message::Segment(segment), Some(payload));
                    out.push(Output::Send { to: self.view.members[to].peer, frame });
                }
                Action::Grant { to } => {
                    self.held[to] -= 1;
                    self.held_total -= 1;
                    out.push(Output::Credit { to: self.view.members[to].peer, segments: 1 });
                }
            }
        }
    }

    /// The newest committed parameters.
    pub(crate) fn parameters(&self) -> &Arc<Buffer> {
        self.previous.as_ref().unwrap_or(&self.complete)
    }
}

/// The buffer for a round's result: the parameters that were kept for going back are not needed any more.
fn next_result(previous: &mut Option<Arc<Buffer>>, vectors: &Pool, len: usize) -> Buffer {
    *previous = None;
    vectors.take(len)
}

/// Idle vectors kept: more than this come home only after late readers.
const VECTORS_KEPT_MAX: usize = 4;
