//! Whatever a member sends, no other one panics: records with odd lists, reports of chunks that no member holds, numbers at their limits.
//!
//! Three nodes train. At some point one of them, or a peer outside the run, sends messages that no correct peer would send: close enough to
//! correct ones to pass the first checks, and then as odd as the limits allow. Training need not continue after that, since members are
//! trusted to follow the protocol; but their bytes are untrusted input.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_config::specification::custom::{CustomLoader, CustomSpecification};
use peergrad_core::io::{Event, Input, Output};
use peergrad_core::node::{Config, Node, StartMode};
use peergrad_core::program::ProgramFactory;
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::{DataCursor, Span};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{ATTEMPTS_MAX, BUSY_MAX, CHUNKS_MAX, SAMPLES_MAX, STEPS_MAX};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{
    Accepted, AdminMessage, AgreementMessage, Awaited, AwaitedAt, ChunkBatch, ChunkContent, ChunkEntry,
    Closed, Complete, Contact, Departure, Heartbeat, Join, JoinMessage, MemberReport, MergeAccept,
    MergeMessage, MergeOffer, MergeProbe, MergeReady, Message, Nack, ParametersDigest, PartialStep, Phase,
    Prepare, Promise, Propose, RejoinCandidate, SampleStats, SaveAt, SavedCheckpoint, Segment, SentFrames,
    ShardDigest, ShardNorm, SnapshotChunks, SnapshotDonor, Stage, StepContributors, StepProgress,
    TrainingMessage, WantChunks, WantSnapshot,
};
use peergrad_protocol::view::{
    Ancestor, BatchParts, Branch, Complaint, Donor, Expulsion, ExpulsionCause, Member, MemberFault,
    MemberLine, Merge, Move, Moves, Quarantine, Recovery, Resume, RollForward, View, ViewChange,
};
use peergrad_protocol::{
    Buffer, Frame, Incarnation, Instant, PeerId, Pool, Rank, RunId, StepNumber, ViewDigest, ViewNumber,
};
use proptest::prelude::*;

const PARAMETERS: u32 = 200;
const SAMPLES: u32 = 96;
const PEERS: usize = 3;
/// Inputs after which a case ends, in any state.
const INPUTS_MAX: usize = 4000;

/// A task in which the best value of every parameter is one.
struct Ones;

impl Task for Ones {
    fn manifest(&self) -> Manifest {
        Manifest::new([("ones", &[PARAMETERS][..])])
    }

    fn sample_count(&self) -> u32 {
        SAMPLES
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        for (slope, parameter) in gradient.iter_mut().zip(parameters) {
            *slope = (parameter - 1.0) * samples.len() as f32;
        }
        samples.len() as f64
    }

    fn evaluate(&self, _parameters: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}

fn peer(index: usize) -> PeerId {
    PeerId([index as u8 + 1; 32])
}

fn index_of(peer: PeerId) -> usize {
    usize::from(peer.0[0]).wrapping_sub(1)
}

// The swarm.

/// Three nodes whose outputs go directly to each other, and a fourth peer that only sends what the test makes it send.
struct Swarm {
    nodes: Vec<Node>,
    queue: VecDeque<(usize, Input)>,
    links: BTreeSet<(usize, usize)>,
    now: Instant,
    /// For each node its view, and its present step in that view; `None` before the first view.
    views: Vec<Option<(Arc<View>, ViewDigest)>>,
    steps: Vec<u64>,
    ended: usize,
}

impl Swarm {
    fn new(rule: &str, policy: &str) -> Self {
        let task: Arc<dyn Task> = Arc::new(Ones);
        let run_file = format!(
            "epochs = 8\nbatch = 12\n[optimizer]\nrule = \"{rule}\"\n[sync]\nsegment_kib = 1\n[partition]\npolicy = \"{policy}\""
        );
        let run_file = RunFile::parse(&run_file).expect("a run file");
        let specification = CustomSpecification::resolve(&run_file, "ones", &*task, &ProgramFactory::sync());
        let specification = specification.and_then(|specification| specification.to_bytes());
        let specification: Arc<[u8]> = specification.expect("a specification").into();
        let node = |index: usize| {
            let specification = Arc::clone(&specification);
            let founder = StartMode::Bootstrap { specification, nonce: [0; 32], peers: PEERS, from: None };
            Node::new(Config {
                peer: peer(index),
                incarnation: Incarnation(1),
                addresses: vec![],
                capacity: Some(1),
                loader: Arc::new(CustomLoader::new("ones", Arc::clone(&task), ProgramFactory::sync())),
                segments: Pool::new(64),
                cache: SharedCache::default(),
                restored: None,
                saved: vec![],
                start_mode: if index == 0 { founder } else { StartMode::Join { run: None } },
            })
        };
        let mut swarm = Self {
            nodes: (0..PEERS).map(node).collect(),
            queue: (0..PEERS).map(|index| (index, Input::Tick)).collect(),
            links: BTreeSet::new(),
            now: Instant(0),
            views: vec![None; PEERS],
            steps: vec![0; PEERS],
            ended: 0,
        };
        for a in 0..PEERS {
            (a + 1..=PEERS).for_each(|b| swarm.link(a, b));
        }
        swarm
    }

    fn link(&mut self, a: usize, b: usize) {
        if a != b && a.max(b) <= PEERS && self.links.insert((a.min(b), a.max(b))) {
            self.give(a, Input::LinkUp(peer(b)));
            self.give(b, Input::LinkUp(peer(a)));
        }
    }

    fn cut(&mut self, a: usize, b: usize) {
        if self.links.remove(&(a.min(b), a.max(b))) {
            self.give(a, Input::LinkDown { peer: peer(b), reason: "cut".to_owned() });
            self.give(b, Input::LinkDown { peer: peer(a), reason: "cut".to_owned() });
        }
    }

    fn give(&mut self, to: usize, input: Input) {
        if to < PEERS {
            self.queue.push_back((to, input));
        }
    }

    /// Passes one input on; if there is none, lets time pass. Returns false once nothing happens any more.
    fn step(&mut self) -> bool {
        let Some((index, input)) = self.queue.pop_front() else {
            let Some(next) = self.nodes.iter().filter_map(Node::deadline).min() else { return false };
            self.now = Instant(next.0.max(self.now.0)).after(Duration::from_millis(1));
            (0..PEERS).for_each(|index| self.give(index, Input::Tick));
            return self.ended < PEERS;
        };
        let mut out = Vec::new();
        self.nodes[index].handle(self.now, input, &mut out);
        for output in out {
            match output {
                Output::Send { to, frame } => {
                    let to = index_of(to);
                    if to == index || self.links.contains(&(to.min(index), to.max(index))) {
                        self.give(to, Input::Frame { from: peer(index), frame });
                    }
                }
                Output::Credit { to, segments } => {
                    self.give(index_of(to), Input::Credit { peer: peer(index), segments });
                }
                Output::Compute(job) => {
                    let id = job.id;
                    let result = job.run(|part| self.give(index, Input::ComputedPart { job: id, part }));
                    self.give(index, Input::Computed { job: id, result });
                }
                Output::Persist { id, .. } => self.give(index, Input::Persisted(id)),
                Output::Event(Event::ViewInstalled { view, digest, .. }) => {
                    self.views[index] = Some((view, digest))
                }
                Output::Event(Event::Committed(committed)) => self.steps[index] = committed.step.0 + 2,
                Output::Event(Event::Ended(_)) => self.ended += 1,
                Output::Dial(contact) => self.link(index, index_of(contact.peer)),
                Output::Disconnect(peer) => self.cut(index, index_of(peer)),
                Output::Event(_) | Output::FindData(_) => {}
                Output::StoreData { .. }
                | Output::StorePiece { .. }
                | Output::SaveCheckpoint { .. }
                | Output::KeepBest { .. }
                | Output::LoadCheckpoint(_) => {}
            }
        }
        true
    }

    /// Sends an odd message, in the present view of the node that receives it.
    fn say(&mut self, oddity: &Oddity) {
        let Some((view, digest)) = &self.views[oddity.to] else { return };
        let truth = Truth { view, digest: *digest, step: self.steps[oddity.to] };
        let (message, payload) = truth.bend(oddity.kind, &mut Draws(oddity.draws.iter()));
        let frame = Frame::encode(&message, payload.as_deref().map(Buffer::from_bytes));
        self.give(oddity.to, Input::Frame { from: peer(oddity.from), frame });
    }

    /// Trains, and sends these messages once there is a view.
    fn run_with(mut self, mut oddities: Vec<Oddity>) {
        while self.steps.contains(&0) {
            assert!(self.step(), "the run begins");
        }
        oddities.sort_by_key(|oddity| oddity.after);
        let mut oddities = oddities.iter().peekable();
        for count in 0..INPUTS_MAX {
            while let Some(oddity) = oddities.next_if(|oddity| oddity.after <= count) {
                self.say(oddity);
            }
            if !self.step() {
                break;
            }
        }
    }
}

// Odd messages.

/// Sender, receiver and kind of an odd message, and the number of inputs before it.
#[derive(Clone, Debug)]
struct Oddity {
    after: usize,
    from: usize,
    to: usize,
    kind: u8,
    draws: Vec<(u8, u64)>,
}

fn oddity() -> impl Strategy<Value = Oddity> {
    let draws = prop::collection::vec((any::<u8>(), any::<u64>()), 40);
    (0..400_usize, 0..=PEERS, 0..PEERS, 0..KINDS, draws).prop_map(|(after, from, to, kind, draws)| Oddity {
        after,
        from,
        to,
        kind,
        draws,
    })
}

/// Numbers from which a message is made; zeros once they are used up.
struct Draws<'a>(std::slice::Iter<'a, (u8, u64)>);

impl Draws<'_> {
    /// Mostly below `end`; sometimes `end` itself, or up to `max`.
    fn below(&mut self, end: u64, max: u64) -> u64 {
        let Some(&(how, number)) = self.0.next() else { return 0 };
        match how {
            0..8 => max,
            8..16 => end,
            _ => number % end.max(1),
        }
    }

    fn is(&mut self) -> bool {
        self.below(2, 1) == 1
    }

    fn some<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.is().then(|| make(self))
    }

    fn list<T>(&mut self, count_end: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(count_end, count_end);
        (0..count).map(|_| make(self)).collect()
    }
}

/// The correct values that are changed.
struct Truth<'a> {
    view: &'a View,
    digest: ViewDigest,
    step: u64,
}

const KINDS: u8 = 19;

impl Truth<'_> {
    fn bend(&self, kind: u8, draws: &mut Draws<'_>) -> (Message, Option<Vec<u8>>) {
        let view = self.digest;
        let message = match kind {
            0..4 => Message::Agreement(AgreementMessage::Learn(self.change(draws))),
            4..6 => Message::Agreement(AgreementMessage::Install(self.record(draws))),
            6 => Message::Agreement(AgreementMessage::Propose(Propose {
                ballot: self.ballot(draws),
                change: self.change(draws),
            })),
            7 => {
                let before = draws.some(|draws| self.near(draws));
                Message::Agreement(AgreementMessage::Prepare(Prepare {
                    view,
                    ballot: self.ballot(draws),
                    before,
                }))
            }
            8 => {
                let ballot = self.ballot(draws);
                let accepted = draws.some(|draws| (self.ballot(draws), self.change(draws)));
                let report = self.report(draws);
                Message::Agreement(AgreementMessage::Promise(Box::new(Promise {
                    view,
                    ballot,
                    accepted,
                    report,
                })))
            }
            9 => {
                let promised = draws.some(|draws| self.ballot(draws));
                Message::Agreement(AgreementMessage::Nack(Nack {
                    view,
                    ballot: self.ballot(draws),
                    promised,
                    step: self.near(draws),
                }))
            }
            10 => {
                Message::Agreement(AgreementMessage::Accepted(Accepted { view, ballot: self.ballot(draws) }))
            }
            11 => {
                let (steps, chunks) = (self.near(draws), self.chunks(draws));
                TrainingMessage::WantChunks(WantChunks { steps, chunks }).in_view(view)
            }
            12 => return self.chunk_batch(draws),
            13 => return self.segment(draws),
            14 => {
                let left_out = draws.below(10, SAMPLES_MAX);
                TrainingMessage::Complete(Complete { steps: self.near(draws), left_out }).in_view(view)
            }
            15 => self.heartbeat(draws),
            16 => {
                let (step, has_contribution) = (self.near(draws), draws.is());
                let left_out = draws.below(10, SAMPLES_MAX);
                TrainingMessage::StepProgress(StepProgress { step, has_contribution, left_out }).in_view(view)
            }
            17 => {
                let late = draws.list(3, |draws| self.rank(draws));
                let late = late.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
                let left_out = draws.below(10, SAMPLES_MAX);
                TrainingMessage::StepContributors(StepContributors { step: self.near(draws), late, left_out })
                    .in_view(view)
            }
            _ => self.word(draws),
        };
        (message, None)
    }

    fn heartbeat(&self, draws: &mut Draws<'_>) -> Message {
        let (view_number, complete) = (ViewNumber(draws.below(3, STEPS_MAX)), self.near(draws));
        let computing = draws.some(|draws| self.near(draws));
        let sent = SentFrames { link: 0, count: draws.below(3, u64::MAX) };
        let heard = SentFrames { link: draws.below(3, 9) as u32, count: draws.below(3, u64::MAX) };
        let (view, disk_fails, is_uplink_busy) = (self.digest, draws.is(), draws.is());
        let busy_milliseconds = draws.below(3, BUSY_MAX.as_millis() as u64) as u32;
        let window_bytes = draws.below(1 << 20, u64::MAX);
        Message::Heartbeat(Heartbeat {
            view,
            view_number,
            complete,
            computing,
            sent,
            heard,
            is_uplink_busy,
            window_bytes,
            disk_fails,
            busy_milliseconds,
        })
    }

    fn word(&self, draws: &mut Draws<'_>) -> Message {
        match draws.below(16, 16) {
            14 => {
                let norm = ShardNorm { step: self.near(draws), squares: draws.below(9, 1 << 40) as f64 };
                TrainingMessage::ShardNorm(norm).in_view(self.digest)
            }
            13 => {
                let contacts = vec![Contact { peer: self.member(draws).peer, addresses: vec![] }];
                let (view, question) = (self.some_view(draws), draws.below(10, u64::MAX));
                Message::Merge(MergeMessage::Accept(MergeAccept {
                    view,
                    question,
                    is_merged: draws.is(),
                    contacts,
                }))
            }
            8 => Message::Merge(MergeMessage::Probe(self.meeting(draws))),
            9 => TrainingMessage::TakeSnapshot(SaveAt { steps: self.near(draws) }).in_view(self.digest),
            10 => Message::Merge(MergeMessage::Offer(self.will(draws))),
            11 => {
                let (view, steps) = (self.some_view(draws), self.near(draws));
                Message::Merge(MergeMessage::Ready(MergeReady {
                    recipients: self.digest,
                    view,
                    steps,
                    missing: draws.below(2, 9) as u32,
                }))
            }
            12 => {
                let content = if draws.is() { ChunkContent::Values } else { ChunkContent::State };
                let chunks = [self.chunk(draws) as usize].into_iter().collect();
                let (view, steps) = (self.some_view(draws), self.near(draws));
                Message::Merge(MergeMessage::WantSnapshot(WantSnapshot { view, steps, content, chunks }))
            }
            0 => Message::Join(JoinMessage::Candidate(self.member(draws))),
            1 => Message::Admin(AdminMessage::Retire),
            2 => TrainingMessage::Closed(Closed { left_out: draws.below(10, SAMPLES_MAX) })
                .in_view(self.digest),
            3 => TrainingMessage::SaveCheckpoint(SaveAt { steps: self.near(draws) }).in_view(self.digest),
            4 => Message::Leave(Departure::new("why not")),
            5 => Message::Join(JoinMessage::Ready(ContentDigest([draws.below(3, 255) as u8; 32]))),
            6 => TrainingMessage::ParametersDigest(ParametersDigest {
                steps: self.near(draws),
                digest: ContentDigest([draws.below(3, 255) as u8; 32]),
                shards: draws.list(9, |draws| ShardDigest([draws.below(3, 255) as u8; 8])),
            })
            .in_view(self.digest),
            7 => Message::Admin(AdminMessage::Expel(self.expulsion(draws))),
            _ => {
                let Member { incarnation, addresses, capacity, .. } = self.member(draws);
                Message::Join(JoinMessage::Join(Join { run: None, incarnation, addresses, capacity }))
            }
        }
    }

    fn meeting(&self, draws: &mut Draws<'_>) -> MergeProbe {
        let contact = |draws: &mut Draws<'_>| Contact { peer: self.member(draws).peer, addresses: vec![] };
        MergeProbe {
            run: self.view.run,
            view: self.some_view(draws),
            steps: self.near(draws),
            trained: draws.below(100, SAMPLES_MAX),
            ancestors: vec![Ancestor { view: self.some_view(draws), trained: draws.below(100, SAMPLES_MAX) }],
            coordinator: contact(draws),
            yields: draws.some(|draws| self.some_view(draws)),
            question: draws.below(10, u64::MAX),
            answers: draws.below(10, u64::MAX),
        }
    }

    fn will(&self, draws: &mut Draws<'_>) -> MergeOffer {
        let MergeProbe { view, steps, trained, ancestors, coordinator, .. } = self.meeting(draws);
        let states = [self.chunk(draws) as usize].into_iter().collect();
        let question = draws.below(10, u64::MAX);
        let cursor = self.cursor_and_spans(draws).0;
        // Mostly a consistent number.
        let trained = if draws.is() { cursor.taken(u64::from(SAMPLES)) } else { trained };
        let (peer, donors) = (coordinator.peer, vec![SnapshotDonor { contact: coordinator, states }]);
        MergeOffer { view, steps, cursor, trained, ancestors, donors, coordinator: peer, question }
    }

    /// The present view, or an unknown one.
    fn some_view(&self, draws: &mut Draws<'_>) -> ViewDigest {
        if draws.is() { self.digest } else { ViewDigest([9; 32]) }
    }

    /// A step close to the one in progress.
    fn near(&self, draws: &mut Draws<'_>) -> StepNumber {
        let offset = draws.below(5, STEPS_MAX);
        StepNumber((self.step + offset).saturating_sub(2).min(STEPS_MAX))
    }

    fn rank(&self, draws: &mut Draws<'_>) -> Rank {
        Rank(draws.below(self.view.members.len() as u64, u64::from(u32::MAX)) as u32)
    }

    fn chunk(&self, draws: &mut Draws<'_>) -> u32 {
        draws.below(u64::from(PARAMETERS / 16), CHUNKS_MAX as u64 - 1) as u32
    }

    fn chunks(&self, draws: &mut Draws<'_>) -> ChunkSet {
        let few = draws.list(4, |draws| self.chunk(draws) as usize);
        if draws.is() { ChunkSet::all(PARAMETERS as usize / 16) } else { few.into_iter().collect() }
    }

    fn ballot(&self, draws: &mut Draws<'_>) -> Ballot {
        Ballot { attempt: draws.below(4, u64::from(ATTEMPTS_MAX)) as u32, rank: self.rank(draws) }
    }

    fn member(&self, draws: &mut Draws<'_>) -> Member {
        Member {
            peer: peer(draws.below(5, 200) as usize),
            incarnation: Incarnation(draws.below(4, u64::MAX)),
            addresses: vec![],
            capacity: draws.below(3, 16) as u8,
        }
    }

    fn stats(&self, draws: &mut Draws<'_>) -> SampleStats {
        SampleStats { samples: draws.below(13, u64::from(u32::MAX)), loss: 1.0 }
    }

    fn cursor_and_spans(&self, draws: &mut Draws<'_>) -> (DataCursor, Vec<Span>) {
        let position = draws.below(u64::from(SAMPLES), u64::from(u32::MAX));
        let mut cuts = draws.list(8, |draws| draws.below(position, u64::from(SAMPLES) * 2));
        cuts.sort_unstable();
        cuts.dedup();
        let mut spans: Vec<Span> =
            cuts.chunks_exact(2).map(|cut| Span { start: cut[0], end: cut[1] }).collect();
        let returned = spans.split_off(spans.len() / 2);
        (DataCursor { epoch: draws.below(8, STEPS_MAX), position, returned, ..DataCursor::default() }, spans)
    }

    fn resume(&self, members: u64, draws: &mut Draws<'_>) -> (Resume, DataCursor) {
        let (cursor, spans) = self.cursor_and_spans(draws);
        let step = self.near(draws);
        let mut newcomers = draws.list(2, |draws| self.rank(draws));
        newcomers.sort_unstable();
        newcomers.dedup();
        let batch = draws.some(|draws| {
            let mut parts = vec![vec![]; members as usize];
            for span in spans {
                parts[draws.below(members, members - 1).min(members - 1) as usize].push(span);
            }
            BatchParts { epoch: cursor.epoch, parts }
        });
        let forward = draws.some(|draws| {
            let donor = |draws: &mut Draws<'_>| {
                let first = self.chunk(draws);
                Donor { first, end: first + 1 + draws.below(12, 12) as u32, rank: self.rank(draws) }
            };
            RollForward { stats: self.stats(draws), donors: draws.list(4, donor) }
        });
        let is_restored = draws.below(4, 1) == 1;
        let merge = draws.some(|draws| Merge {
            view: self.some_view(draws),
            steps: self.near(draws),
            ours: draws.below(100, SAMPLES_MAX),
            theirs: 1 + draws.below(100, SAMPLES_MAX - 1),
            cursor: self.cursor_and_spans(draws).0,
            history: vec![Ancestor { view: self.some_view(draws), trained: draws.below(100, SAMPLES_MAX) }],
        });
        let merge = merge.map(Box::new);
        (Resume { step, newcomers, batch, forward, is_restored, merge }, cursor)
    }

    fn moves(&self, draws: &mut Draws<'_>) -> Moves {
        let list = draws.list(6, |draws| {
            let mut from = draws.list(3, |draws| self.rank(draws));
            from.push(self.rank(draws));
            from.sort_unstable();
            from.dedup();
            Move { chunk: self.chunk(draws), from }
        });
        let restarted = draws.list(3, |draws| self.chunk(draws));
        Moves { list, rate: 1 + draws.below(3, u64::from(u32::MAX) - 1) as u32, restarted }
    }

    fn change(&self, draws: &mut Draws<'_>) -> ViewChange {
        let mut removed = draws.list(2, |draws| self.rank(draws));
        removed.dedup();
        let added = draws.list(2, |draws| self.member(draws));
        let members = (self.view.members.len() + added.len()).saturating_sub(removed.len()).max(1) as u64;
        let (resume, cursor) = self.resume(members, draws);
        let capacities = draws.list(2, |draws| (self.rank(draws), draws.below(3, 255) as u8));
        let speeds = draws.list(3, |draws| draws.below(u64::from(u32::MAX), 1 << 40) as u32);
        let lines = draws.list(3, |draws| MemberLine {
            kilobytes_per_second: draws.below(u64::from(u32::MAX), 1 << 40) as u32,
            round_trip_milliseconds: draws.below(200, 1 << 40) as u32,
        });
        let expelled = draws.list(2, |draws| self.expulsion(draws));
        ViewChange {
            parent: self.digest,
            removed,
            added,
            capacities,
            speeds,
            lines,
            resume,
            cursor,
            moves: self.moves(draws),
            expelled,
            quarantined: draws.list(2, |draws| self.quarantine(draws)),
            ancestors: draws.list(2, |draws| Ancestor {
                view: self.some_view(draws),
                trained: draws.below(100, SAMPLES_MAX),
            }),
        }
    }

    fn expulsion(&self, draws: &mut Draws<'_>) -> Expulsion {
        let who = |draws: &mut Draws<'_>| self.member(draws).peer;
        let (peer, by) = (who(draws), who(draws));
        Expulsion {
            peer,
            by,
            cause: if draws.is() { ExpulsionCause::Request } else { ExpulsionCause::Violations },
        }
    }

    fn complaint(&self, draws: &mut Draws<'_>) -> Complaint {
        let fault = if draws.is() { MemberFault::Frames } else { MemberFault::Withheld };
        Complaint { about: self.rank(draws), fault }
    }

    fn quarantine(&self, draws: &mut Draws<'_>) -> Quarantine {
        let Expulsion { peer, by, .. } = self.expulsion(draws);
        Quarantine { peer, other: by, fault: MemberFault::Frames, is_certain: draws.is() }
    }

    fn record(&self, draws: &mut Draws<'_>) -> View {
        let mut view = match self.view.apply(self.digest, &self.change(draws)) {
            Ok(view) => view,
            Err(_) => {
                let (resume, cursor) = self.resume(self.view.members.len() as u64, draws);
                let parents = vec![self.digest];
                let (recovery, moves) = (Recovery::Resume(resume), self.moves(draws));
                View { parents, recovery, cursor, moves, ..self.view.clone() }
            }
        };
        view.number = ViewNumber(self.view.number.0 + draws.below(3, STEPS_MAX));
        if draws.below(8, 7) == 7 {
            view.parents.clear();
            view.recovery = Recovery::Initialize;
        }
        if draws.below(8, 7) == 7 {
            view.run = RunId([200; 32]);
        }
        view
    }

    fn again(&self, draws: &mut Draws<'_>) -> RejoinCandidate {
        let saved = draws.list(4, |draws| SavedCheckpoint {
            steps: self.near(draws),
            branch: Branch {
                view_number: ViewNumber(draws.below(4, STEPS_MAX)),
                step: self.near(draws),
                fork: None,
            },
            cursor: self.cursor_and_spans(draws).0,
            digest: ContentDigest([draws.below(3, 255) as u8; 32]),
            states: self.chunks(draws),
        });
        RejoinCandidate { member: self.member(draws), saved }
    }

    fn report(&self, draws: &mut Draws<'_>) -> MemberReport {
        MemberReport {
            is_vote_only: draws.below(4, 1) == 1,
            complete: draws.some(|draws| self.near(draws)),
            states: self.chunks(draws),
            states_before: draws.some(|draws| self.chunks(draws)),
            is_entering: draws.below(4, 0) == 1,
            stats: draws.some(|draws| self.stats(draws)),
            next: draws.some(|draws| PartialStep {
                values: self.chunks(draws),
                states: self.chunks(draws),
                stats: draws.some(|draws| self.stats(draws)),
            }),
            lost: draws.list(3, |draws| self.rank(draws)),
            complaints: draws.list(3, |draws| self.complaint(draws)),
            is_still: draws.is(),
            awaited: draws.some(|draws| Awaited {
                at: AwaitedAt { step: self.near(draws), stage: Stage::Reduce, hop: draws.below(3, 5) as u32 },
                from: draws.list(3, |draws| self.rank(draws)),
            }),
            has_merge_snapshot: draws.is(),
            rejoin: draws.some(|draws| Box::new(self.again(draws))),
        }
    }

    fn chunk_batch(&self, draws: &mut Draws<'_>) -> (Message, Option<Vec<u8>>) {
        let payload = vec![0; 4 * draws.below(80, 1000) as usize];
        let steps = self.near(draws);
        let piece = |draws: &mut Draws<'_>| {
            let updates = draws.below(steps.0 + 1, steps.0.min(u64::from(u32::MAX))).min(steps.0) as u32;
            ChunkEntry { chunk: self.chunk(draws), updates }
        };
        let entries = draws.list(4, piece);
        let content = if draws.is() { ChunkContent::Values } else { ChunkContent::State };
        let digest = ContentDigest::of(&payload);
        let batch = ChunkBatch { steps, content, entries, digest };
        let message = if draws.is() {
            TrainingMessage::ChunkBatch(batch).in_view(self.digest)
        } else {
            Message::Merge(MergeMessage::SnapshotChunks(SnapshotChunks { view: self.digest, batch }))
        };
        (message, Some(payload))
    }

    fn segment(&self, draws: &mut Draws<'_>) -> (Message, Option<Vec<u8>>) {
        let phase = match draws.below(3, 2) {
            0 => Phase::Reduce,
            1 => Phase::Gather,
            _ => Phase::Mirror,
        };
        let segment = Segment {
            step: self.near(draws),
            phase,
            owner: self.rank(draws).0,
            index: draws.below(3, u64::from(u32::MAX)) as u32,
            stats: self.stats(draws),
        };
        (
            TrainingMessage::Segment(segment).in_view(self.digest),
            Some(vec![0; 4 * draws.below(80, 500) as usize]),
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_messages_never_make_a_node_panic(
        has_state in any::<bool>(),
        policy in prop::sample::select(vec!["majority", "merge"]),
        oddities in prop::collection::vec(oddity(), 1..6),
    ) {
        Swarm::new(if has_state { "adam" } else { "sgd" }, policy).run_with(oddities);
    }
}

/// The same swarm without odd messages.
#[test]
fn without_odd_messages_the_swarm_trains_to_the_end() {
    for rule in ["adam", "sgd"] {
        let mut swarm = Swarm::new(rule, "majority");
        let mut inputs = 0;
        while swarm.step() {
            inputs += 1;
            assert!(inputs < 100_000, "they are done by then");
        }
        assert_eq!((swarm.ended, &swarm.steps[..]), (PEERS, &[65; PEERS][..]));
    }
}

/// A joiner is sent a view that merges another branch, as if it had taken part in the merge.
#[test]
fn a_joiner_does_not_enter_a_view_that_merges_another_branch() {
    let draws = vec![
        (16, 3_352_741_434_259_729_291),
        (16, 5_830_043_113_752_101_937),
        (16, 4_433_373_576_563_353_243),
        (16, 11_422_778_307_712_653_375),
        (16, 1_911_789_841_286_281_374),
        (0, 0),
        (8, 0),
        (16, 7_000_572_919_183_027_351),
        (0, 0),
        (8, 0),
        (16, 507_257_267_015),
        (16, 6_559_599_856_851),
        (16, 260_763_070_805_352),
        (16, 1_087_465_786_406_205_460),
        (16, 21_365_856_391_945),
        (0, 0),
        (8, 7_864),
        (64, 419_689_775_536_252_434),
        (168, 8_360_434_575_388_546_842),
        (69, 3_385_952_963_472_314_580),
        (138, 12_109_439_305_672_296_520),
        (193, 11_795_254_631_528_381_639),
        (198, 9_672_221_006_167_703_170),
        (77, 1_830_113_057_498_851_666),
        (131, 11_467_981_617_933_188_281),
        (195, 2_442_474_493_512_660_740),
        (54, 2_861_298_413_325_874_624),
        (3, 4_007_758_215_099_440_374),
        (15, 11_835_246_561_091_277_287),
        (63, 7_725_829_202_980_529_062),
        (154, 13_278_102_426_245_126_324),
        (227, 6_302_876_839_310_954_901),
        (38, 612_230_282_811_216_876),
        (218, 12_598_836_490_378_080_558),
        (253, 13_992_253_453_669_063_590),
        (6, 17_657_086_809_370_754_515),
        (98, 13_184_776_586_315_596_796),
        (192, 134_054_104_472_783_287),
        (79, 13_489_332_502_254_879_179),
        (161, 11_469_219_820_981_548_248),
    ];
    let oddity = Oddity { after: 0, from: 0, to: 1, kind: 0, draws };
    Swarm::new("sgd", "majority").run_with(vec![oddity]);
}
