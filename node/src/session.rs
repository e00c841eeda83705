//! The session: a member's part in training. Batches, rounds, parameters, commits, from view to view.
//!
//! # How it works
//! ```text
//! step t      begin --- gradient --- reduce-scatter --- update --- all-gather --- complete
//! step t + 1                                                          begin --- gradient --- first finished sum
//!                                                                                            = step t is committed
//! ```
//! A finished sum of step t + 1 holds a contribution of every member, and a member contributes only after it completed
//! step t. So the first one that shows up here commits step t, without a message of its own; the last step is committed
//! by a closing barrier. (Where steps do not wait for all, see [`quorum`], none begins before all have completed the last.) What a new view does to all this is in [`change`].
//!
//! # Memory
//! Three vectors: the complete parameters, the ones before (kept until the commit, then their buffer takes the next
//! result), and the gradient; up to three more where gradients travel by a lossy codec, for what it leaves out. Nothing
//! vector-sized is allocated after the first steps.
//!
//! # Invariants
//! - At most two rounds are alive: the one in progress, and the one before while others still wait for its segments.
//! - Segments of the next step, from members that are ahead, are held within their link's window.
//! - Old and new (parameters, state, bookmark, batch) are both kept until the commit: a step can be undone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_collectives::groups::Groups;
use peergrad_collectives::mirror::Mirror;
use peergrad_collectives::plan::Plan;
use peergrad_collectives::residual::Residual;
use peergrad_collectives::round::{Action, Round};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::ledger::Span;
use peergrad_protocol::message::{Message, Segment, Tally};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Buffer, Frame, PeerId, Pool, Rank, StepNumber, ViewDigest};

use crate::checkpoint::Checkpoint;
use crate::dealing::Dealt;
use crate::geometry::{Cut, Geometry, Shards};
use crate::io::{Committed, Event, Output, Reject};
use crate::loader::Loaded;
use crate::memo::Memo;
use crate::owned::Owned;
use crate::peer::{Begun, Contribution, OwnerRule, Reply};
use bequest::Bequests;
pub(crate) use bequest::Left;
use drift::Drifting;
use omissions::Omissions;
use quorum::Quorum;
use tables::Tables;
use transfer::Transfer;
use wiring::Wiring;

mod account;
mod arrivals;
mod bequest;
mod change;
mod closing;
mod drift;
mod omissions;
mod packing;
mod progress;
mod quorum;
mod tables;
mod transfer;
mod wiring;

/// Training, as one member sees it.
pub(crate) struct Session {
    me: Member,
    geometry: Arc<Geometry>,
    rank: Rank,
    specification: Arc<[u8]>,
    loaded: Loaded,
    memo: Memo,
    vectors: Pool,
    segments: Pool,
    wiring: Wiring,
    /// Parameters before the newest complete step, until that step is committed.
    previous: Option<Arc<Buffer>>,
    /// Parameters after the newest complete step; `None`: this member is new and has none yet.
    complete: Option<Arc<Buffer>>,
    owned: Owned,
    /// What was left out of this member's contributions, where they travel by a lossy codec.
    residual: Option<Residual>,
    /// The step in progress: as many are complete.
    step: StepNumber,
    /// Whether the step may be taken: what must be done between two steps is done.
    is_open: bool,
    /// How the batch of the step in progress is dealt.
    dealt: Arc<Dealt>,
    /// The same of the step after, while this view has not begun: some have been dealt it in a view before.
    dealt_next: Option<Arc<Dealt>>,
    /// The newest complete step, while it is not known to be committed.
    uncommitted: Option<Record>,
    /// The program's part in the step in progress, once it has begun it.
    current: Option<Current>,
    live: VecDeque<Live>,
    early: VecDeque<(Rank, Segment, Buffer)>,
    quorum: Quorum,
    transfer: Transfer,
    /// Counts what was handed out to the program: an answer to an older one is void.
    turn: u64,
    /// The turn of a step that was finished before its program was through with it.
    finished_turn: Option<u64>,
    waiting: Waiting,
    /// Nothing is taken in or sent: the next view is being agreed on.
    is_frozen: bool,
    /// This view is to begin at a step that the one before did not reach: there must be another view.
    is_unbegun: bool,
    /// The step in which this member was a newcomer: it has nothing to go back to before that.
    entered_before: Option<StepNumber>,
    /// The first step that is not to be taken in this view.
    stop_before: Option<StepNumber>,
    /// Views that were left, the newest last: their frames are dropped.
    past: VecDeque<ViewDigest>,
    /// Chunks that others took over when this member went.
    handed_over: usize,
    closed: BTreeSet<PeerId>,
    is_closed_by_word: bool,
    omissions: Omissions,
    /// Where members drift: what the last step was worth, if it was a round of all.
    consolidated: Option<Tally>,
    own_trained: u64,
    /// Where a round's actions come together until they are carried out; empty in between.
    actions: Vec<Action>,
    /// Room for the sums of a mirror, used again.
    mirror_room: Vec<f32>,
    /// How the batch of the newest committed step was dealt.
    committed: Option<Arc<Dealt>>,
    /// As soon as so many steps are committed, a checkpoint is written.
    save_after: Option<StepNumber>,
    bequests: Bequests,
    /// Where the program keeps its state in them.
    tables: Option<Tables>,
}

/// What the program waits for.
#[derive(Default)]
struct Waiting {
    begin: Option<Reply<Begun>>,
    ready: Option<Reply<()>>,
    reduced: Option<Reply<()>>,
    updated: Option<Reply<()>>,
    gathered: Option<Reply<()>>,
    closed: Option<Reply<()>>,
}

/// The program's part in the step in progress.
struct Current {
    turn: u64,
    /// Whether the member goes through the step without its program: that of a newcomer has no parameters to begin with, and
    /// one that is late has missed the step.
    is_silent: bool,
    has_contributed: bool,
    /// Who takes part in the step's round, if not everybody.
    among: Option<Groups>,
    rule: Option<OwnerRule>,
    updated: Updated,
    wants_gather: bool,
}

/// How much of the own shard has its final values: its beginning.
#[derive(Clone, Copy, Default)]
struct Updated {
    chunks: usize,
    elements: usize,
}

/// A round on its way.
struct Live {
    step: StepNumber,
    shards: Arc<Shards>,
    plan: Arc<Plan>,
    round: Round,
    mirror: Mirror,
    /// Whether owners tell their sums to those who keep copies.
    is_mirrored: bool,
    /// Where the program drifts.
    drifting: Option<Drifting>,
}

/// A complete step that is not yet committed, and what was before it.
struct Record {
    dealt: Arc<Dealt>,
    tally: Tally,
    /// Samples of the batch that were trained, and those that were not; where members drift, as far as this one knows.
    samples: u64,
    left_out: u64,
    /// What this member was dealt, if the step is made of it.
    own_samples: u64,
    /// Whether all members were in the round.
    is_of_all: bool,
}

/// What a session is made of.
pub(crate) struct Ingredients {
    pub(crate) me: Member,
    pub(crate) specification: Arc<[u8]>,
    pub(crate) loaded: Loaded,
    pub(crate) segments: Pool,
    pub(crate) memo: Memo,
    /// What this member begins with, where the view goes on from checkpoints.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

impl Session {
    /// Begins training in `view`: the first one of a run, where everyone draws the same initial parameters, or one in
    /// which this member is a newcomer. `credits` as for [`Session::enter`].
    pub(crate) fn begin_in(
        view: &Arc<View>,
        digest: ViewDigest,
        ingredients: Ingredients,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) -> Self {
        let Ingredients { me, specification, loaded, segments, memo, checkpoint } = ingredients;
        let training = &loaded.training;
        let cut = Cut::of(&loaded);
        let geometry = memo.geometry(view, digest, cut);
        let rank = view.rank(&me.peer).expect("a view is installed at its members");
        let vectors = Pool::new(VECTORS_KEPT_MAX);
        let initial = || {
            let mut initial = vectors.take_zeroed(loaded.manifest.parameter_count());
            loaded.task.initial(training.seed, &mut initial);
            Arc::new(initial)
        };
        let begin = || checkpoint.as_ref().map_or_else(initial, |it| Arc::clone(&it.parameters));
        let shared = loaded.program.shared(&loaded);
        let is_new = view.newcomers().contains(&rank);
        let complete = (!is_new || shared.is_some()).then(begin);
        let mut owned = Owned::new(cut.chunks, loaded.owner_moments(), loaded.keeps_master());
        let is_lossy = !training.gradients.is_exact() && !loaded.program.drifts();
        let residual = is_lossy.then(|| Residual::new(cut.chunks.parameter_count(), vectors.clone()));
        let shards = memo.shards(&geometry, 0);
        let is_kept = |&chunk: &usize| shared.is_none() && shards.is_kept_by(chunk, rank);
        let kept = (0..cut.chunks.count()).filter(is_kept);
        // A newcomer keeps nothing yet: what it is to keep comes to it.
        let state = |chunk| checkpoint.as_ref()?.state(chunk).cloned();
        kept.filter(|_| complete.is_some()).for_each(|chunk| owned.keep(chunk, state(chunk), false));
        let mut session = Self {
            wiring: Wiring::new(view, rank, credits),
            rank,
            specification,
            memo,
            vectors,
            segments,
            previous: None,
            complete,
            owned,
            residual,
            step: view.first_step(),
            is_open: false,
            dealt: Arc::default(),
            dealt_next: None,
            entered_before: view.newcomers().contains(&rank).then(|| view.first_step()),
            uncommitted: None,
            current: None,
            live: VecDeque::new(),
            early: VecDeque::new(),
            quorum: Quorum::default(),
            transfer: Transfer::default(),
            turn: 0,
            finished_turn: None,
            waiting: Waiting::default(),
            is_frozen: false,
            is_unbegun: false,
            stop_before: None,
            past: VecDeque::new(),
            handed_over: 0,
            closed: BTreeSet::new(),
            is_closed_by_word: false,
            omissions: Omissions::default(),
            consolidated: None,
            own_trained: 0,
            actions: Vec::new(),
            mirror_room: Vec::new(),
            committed: None,
            save_after: None,
            bequests: Bequests::default(),
            tables: shared.map(|shared| Tables::new(&loaded, shared, rank, is_new)),
            me,
            geometry,
            loaded,
        };
        if let Some(checkpoint) = checkpoint {
            session.omissions.add(checkpoint.left_out);
            session.own_trained = checkpoint.own_samples;
        }
        session.deal();
        session.begin_tables();
        session.settle(out);
        session
    }

    /// The view that this member is in.
    pub(crate) fn view(&self) -> &Arc<View> {
        &self.geometry.view
    }

    /// Its digest.
    pub(crate) fn digest(&self) -> ViewDigest {
        self.geometry.digest
    }

    /// How to train, and on what.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Whether the program can be started: there are parameters to begin with.
    pub(crate) fn has_parameters(&self) -> bool {
        self.complete.is_some()
    }

    /// Whether every pass is over, as soon as the steps so far are.
    pub(crate) fn is_over(&self) -> bool {
        self.complete.is_some() && self.dealt.pass >= self.loaded.training.passes
    }

    // What the program asks.

    /// Answers when there is a view to train in.
    pub(crate) fn ready(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.waiting.ready = Some(reply);
        self.settle(out);
    }

    /// Hands out the next step, once it is open.
    pub(crate) fn begin(&mut self, reply: Reply<Begun>, out: &mut Vec<Output>) {
        self.waiting.begin = Some(reply);
        self.settle(out);
    }

    fn hand_out(&mut self, reply: Reply<Begun>) {
        let training = &self.loaded.training;
        let is_over = self.is_over();
        let samples: Arc<[u32]> = if is_over {
            Arc::new([])
        } else {
            let sample_count = self.loaded.task.sample_count();
            let order = self.memo.order(training, self.dealt.pass, sample_count);
            let of = |span: &Span| order[span.start as usize..span.end as usize].iter().copied();
            self.part().iter().flat_map(of).collect()
        };
        self.turn += 1;
        self.current = Some(Current::new(self.turn, false));
        let begun = Begun {
            turn: self.turn,
            number: self.step,
            is_over,
            pass: self.dealt.pass,
            rate: training.rate(self.step.0),
            samples,
            rank: self.rank,
            member_count: self.view().members.len(),
            parameters: Arc::clone(self.complete.as_ref().expect("a step is opened with parameters")),
            room: self.vectors.take(self.geometry.cut.chunks.parameter_count()),
        };
        // A program that no longer waits has ended; the room goes home by itself.
        let _ = reply.send(begun);
    }

    /// Whether a command belongs to the step that the program was handed out last, and was not interrupted since.
    pub(crate) fn is_current(&self, turn: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.turn == turn && !current.is_silent)
    }

    /// Starts the round of the current step.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not foresee.
    pub(crate) fn reduce_scatter(
        &mut self,
        contribution: Contribution,
        among: Option<Groups>,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        let Some(current) = &mut self.current else { return Ok(()) };
        assert!(among.is_none() || self.loaded.program.drifts(), "groups are for programs that drift");
        current.has_contributed = true;
        current.among = among;
        self.waiting.reduced = Some(reply);
        self.contribute(contribution);
        self.take_early(out)?;
        self.settle(out);
        Ok(())
    }

    /// Takes the optimizer step for the own shard, as its sums come in.
    pub(crate) fn update_owned(&mut self, rule: OwnerRule, reply: Reply<()>, out: &mut Vec<Output>) {
        if let OwnerRule::Own(_) = rule {
            let words = "a program whose owners update by a rule of its own says so: Program::OWN_RULE";
            assert!(self.loaded.program.has_own_rule(), "{words}");
        }
        if let Some(current) = &mut self.current {
            current.rule = Some(rule);
            self.waiting.updated = Some(reply);
        }
        self.settle(out);
    }

    /// Sends the own shard to everyone, as it becomes final.
    pub(crate) fn all_gather(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(current) = &mut self.current {
            current.wants_gather = true;
            self.waiting.gathered = Some(reply);
        }
        self.settle(out);
    }

    pub(crate) fn tell_all(&self, message: &Message, out: &mut Vec<Output>) {
        for member in self.view().members.iter().filter(|member| member.peer != self.me.peer) {
            out.push(Output::Send { to: member.peer, frame: Frame::encode(message, None) });
        }
    }

    /// The newest committed parameters.
    pub(crate) fn parameters(&self) -> Option<&Arc<Buffer>> {
        self.previous.as_ref().or(self.complete.as_ref()).filter(|_| !self.is_entering())
    }

    /// Whether the newest complete step is this member's first, and not committed: there is nothing before it.
    fn is_entering(&self) -> bool {
        self.uncommitted.is_some() && self.entered_before.map(StepNumber::next) == Some(self.step)
    }

    /// The part of the step's batch that this member computes.
    fn part(&self) -> &[Span] {
        self.dealt.part(&self.me.peer, self.me.incarnation)
    }

    /// The step before is complete everywhere, if room for a result was asked for.
    fn commit_if_shown(&mut self, out: &mut Vec<Output>) {
        if self.previous.is_none() && self.uncommitted.is_some() {
            self.commit(out);
        }
    }

    fn commit(&mut self, out: &mut Vec<Output>) {
        let Some(record) = self.uncommitted.take() else { return };
        self.owned.commit();
        // Where members drift, each accounts for its own part; what it had computed is in `drift`.
        if !self.loaded.program.drifts() {
            self.omissions.add(record.left_out);
            self.own_trained += record.own_samples;
        }
        let (steps, digest_every) = (self.committed_steps(), self.loaded.training.digest_every);
        if let Some(residual) = &mut self.residual {
            residual.commit(StepNumber(steps - 1));
        }
        let is_due = digest_every > 0 && steps.is_multiple_of(digest_every);
        let complete = self.complete.as_ref().expect("a complete step has parameters");
        // Where members have parameters of their own, a digest says something only after a round of all.
        let is_due = is_due && record.is_of_all;
        out.push(Output::Event(Event::Committed(Committed {
            step: StepNumber(steps - 1),
            pass: record.dealt.pass,
            steps_expected: steps + self.loaded.steps_left(&record.dealt.after),
            loss: record.tally.loss / record.tally.samples as f64,
            samples: record.samples,
            left_out: record.left_out,
            may_be_late: self.has_backups(),
            is_own: false,
            rate: self.loaded.training.rate(steps - 1),
            digest: is_due.then(|| ContentDigest::of(complete.bytes())),
        })));
        self.committed = Some(record.dealt);
        self.end_merge(out);
        self.save_if_due(out);
        self.bequeath_if_due();
    }

    /// A checkpoint is to be written after so many steps: all of them, or those who are not that far yet, do so.
    pub(crate) fn save_after(&mut self, steps: StepNumber) {
        if steps.0 > self.committed_steps() {
            self.save_after = Some(steps);
        }
    }

    /// The step after which a checkpoint is to be written, if one is still to come.
    pub(crate) fn save_is_due(&self) -> Option<StepNumber> {
        self.save_after
    }

    fn save_if_due(&mut self, out: &mut Vec<Output>) {
        let steps = self.committed_steps();
        if self.save_after.take_if(|at| at.0 <= steps).is_some_and(|at| at.0 == steps)
            && let Some(checkpoint) = self.checkpoint()
        {
            let keep = self.loaded.training.checkpoints_kept;
            out.push(Output::Save { checkpoint: Arc::new(checkpoint), keep });
        }
    }

    /// Steps known to be complete everywhere; where there are tables, clocks that are complete here.
    fn committed_steps(&self) -> u64 {
        if let Some(StepNumber(clocks)) = self.clock() {
            return clocks;
        }
        self.step.0 - u64::from(self.uncommitted.is_some())
    }
}

impl Current {
    fn new(turn: u64, is_silent: bool) -> Self {
        Self {
            turn,
            is_silent,
            has_contributed: is_silent,
            among: None,
            rule: None,
            updated: Updated::default(),
            wants_gather: is_silent,
        }
    }

    /// Whether members gather the sums of the step, and each makes new values of all of them.
    fn gathers_sums(&self, shards: &Shards) -> bool {
        // A program's own rule is promised to be called for what is owned, and nothing else.
        shards.is_whole && self.rule.as_ref().is_some_and(OwnerRule::keeps_state)
    }
}

/// The buffer for a round's result: the parameters that were kept for going back are not needed any more.
fn next_result(previous: &mut Option<Arc<Buffer>>, vectors: &Pool, len: usize) -> Buffer {
    *previous = None;
    vectors.take(len)
}

/// Idle vectors kept: more than this come home only after late readers.
const VECTORS_KEPT_MAX: usize = 4;
