//! One node, and a peer that the test controls: whatever a member sends, the node neither panics nor waits for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::plan::Topology;
use peergrad_core::io::{Event, Failure, Input, Output, Reject};
use peergrad_core::node::{Config, Node, StartMode};
use peergrad_core::program::ProgramFactory;
use peergrad_core::program::loader::{Dealing, Loaded, TrainingConfig};
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_models::optimizer::{Optimizer, ParameterGroups};
use peergrad_models::schedule::Schedule;
use peergrad_models::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{LINK_SEGMENTS, REJECTS_MAX};
use peergrad_protocol::message::{
    AgreementMessage, Contact, Join, JoinMessage, Message, Phase, Refusal, SampleStats, Segment,
    TrainingMessage, WantData, Welcome,
};
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Buffer, Frame, Incarnation, Instant, PeerId, Pool, RunId, StepNumber};
use peergrad_simulations::task::{FixedLoader, Squares};

mod tables;

const ME: PeerId = PeerId([1; 32]);
const OTHER: PeerId = PeerId([2; 32]);
const STRANGER: PeerId = PeerId([3; 32]);
const NONCE: [u8; 32] = [7; 32];
const SEED: u64 = 3;

/// The digest of the initial parameters of the task of all these peers.
fn initial_digest() -> ContentDigest {
    let task = Squares::new(5000, 740);
    let mut initial = Pool::new(0).take_zeroed(task.manifest().parameter_count());
    task.initial(SEED, &mut initial);
    ContentDigest::of(initial.bytes())
}

/// A node whose jobs are done at once, and its outputs.
struct Alone {
    node: Node,
    sent: Vec<(PeerId, Message)>,
    /// The bytes of all table messages, one after the other.
    words: Vec<u8>,
    hung_up: Vec<PeerId>,
    events: Vec<Event>,
}

impl Alone {
    fn new(start_mode: StartMode, capacity: u8, program: ProgramFactory) -> Self {
        let training = TrainingConfig {
            seed: SEED,
            batch_size: 30,
            local_steps: 1,
            round_duration: None,
            epochs: 8,
            rule: Optimizer::Sgd { weight_decay: 0.0 },
            groups: ParameterGroups::default(),
            clip_norm: None,
            bounds: None,
            schedule: Schedule::constant(0.01),
            fixed_topology: Some(Topology::Ring),
            gradients: Codec::F32,
            parameters: Codec::F32,
            combine: Combine::Sum,
            dealing: Dealing::EVEN,
            backups: None,
            segment_elements: 100,
            digest_every: None,
            patience: Duration::from_secs(10),
            evaluation: None,
            checkpoint_every: None,
            checkpoints_kept: 1,
            policy: peergrad_core::partition_policy::PartitionPolicy::Majority,
            is_shuffled: true,
            replicas: Replicas::Number(1),
        };
        let fixed = FixedLoader::new(Squares::new(5000, 740), training);
        let fixed = FixedLoader { loaded: Loaded { program, ..fixed.loaded }, ..fixed };
        let config = Config {
            peer: ME,
            incarnation: Incarnation(1),
            addresses: vec![],
            capacity: Some(capacity),
            loader: Arc::new(fixed),
            segments: Pool::new(64),
            cache: SharedCache::default(),
            restored: None,
            saved: vec![],
            start_mode,
        };
        let mut alone =
            Self { node: Node::new(config), sent: vec![], words: vec![], hung_up: vec![], events: vec![] };
        alone.feed(Input::Tick);
        alone
    }

    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut out = Vec::new();
            self.node.handle(Instant(0), input, &mut out);
            for output in out {
                match output {
                    Output::Send { to: ME, frame } => inputs.push_back(Input::Frame { from: ME, frame }),
                    Output::Send { to, frame } => {
                        let message = frame.decode().expect("our own");
                        if let (Message::InView { message: TrainingMessage::Tables, .. }, Some(bytes)) =
                            (&message, &frame.payload)
                        {
                            self.words.extend(bytes.bytes());
                            inputs.push_back(Input::Credit { peer: to, segments: 1 });
                        }
                        self.sent.push((to, message));
                    }
                    Output::Compute(job) => {
                        inputs.push_back(Input::Computed { job: job.id, result: job.run(drop) });
                    }
                    Output::Persist { id, .. } => {
                        inputs.push_back(Input::Persisted(id));
                    }
                    Output::Disconnect(peer) => self.hung_up.push(peer),
                    Output::Event(event) => self.events.push(event),
                    Output::Credit { .. } | Output::Dial(_) | Output::FindData(_) => {}
                    Output::StoreData { .. }
                    | Output::StorePiece { .. }
                    | Output::SaveCheckpoint { .. }
                    | Output::KeepBest { .. }
                    | Output::LoadCheckpoint(_) => {}
                }
            }
        }
    }

    fn hear(&mut self, from: PeerId, message: &Message, payload: Option<Buffer>) {
        self.feed(Input::Frame { from, frame: Frame::encode(message, payload) });
    }

    /// A founder that trains in a view with [`OTHER`], which owns nothing.
    fn founder() -> (Self, View) {
        Self::founder_of_capacity(1, ProgramFactory::sync())
    }

    fn founder_of_capacity(capacity: u8, program: ProgramFactory) -> (Self, View) {
        let (founder, view) = Self::founder_with(capacity, program, initial_digest());
        assert_eq!(founder.members(), Some(2), "{:?}", founder.events);
        (founder, view)
    }

    /// A founder and its first view. [`OTHER`] has drawn initial parameters with this digest.
    fn founder_with(capacity: u8, program: ProgramFactory, others: ContentDigest) -> (Self, View) {
        let start_mode =
            StartMode::Bootstrap { specification: b"toy"[..].into(), nonce: NONCE, peers: 2, from: None };
        let mut founder = Self::new(start_mode, capacity, program);
        founder.feed(Input::LinkUp(OTHER));
        let join = Join { run: None, incarnation: Incarnation(1), addresses: vec![], capacity: 0 };
        founder.hear(OTHER, &JoinMessage::Join(join).into(), None);
        founder.hear(OTHER, &JoinMessage::Ready(others).into(), None);
        let view = founder.events.iter().find_map(|event| match event {
            Event::ViewInstalled { view, .. } => Some(View::clone(view)),
            _ => None,
        });
        let view = view.expect("enough are ready");
        (founder, view)
    }

    /// A joiner that [`OTHER`] has welcomed.
    fn joiner() -> Self {
        let mut joiner = Self::new(StartMode::Join { run: Some(run()) }, 1, ProgramFactory::sync());
        joiner.feed(Input::LinkUp(STRANGER));
        joiner.feed(Input::LinkUp(OTHER));
        joiner.hear(OTHER, &welcome(OTHER), None);
        assert_eq!(joiner.sent.last(), Some(&(OTHER, Message::Join(JoinMessage::Ready(initial_digest())))));
        joiner
    }

    /// Number of members of the newest installed view; `None` if there is none.
    fn members(&self) -> Option<usize> {
        let installed = |event: &Event| match event {
            Event::ViewInstalled { view, .. } => Some(view.members.len()),
            _ => None,
        };
        self.events.iter().rev().find_map(installed)
    }

    fn rejects(&self) -> Vec<Reject> {
        let reject = |event: &Event| match event {
            Event::Violation { reject, .. } => Some(*reject),
            _ => None,
        };
        self.events.iter().filter_map(reject).collect()
    }

    fn failure(&self) -> Option<&Failure> {
        self.events.iter().find_map(|event| match event {
            Event::Ended(ended) => ended.outcome.as_ref().err(),
            _ => None,
        })
    }
}

fn run() -> RunId {
    RunId::derive(b"toy", &NONCE)
}

fn welcome(by: PeerId) -> Message {
    let members = vec![Contact { peer: by, addresses: vec![] }];
    Message::Join(JoinMessage::Welcome(Welcome {
        specification: b"toy".to_vec(),
        nonce: NONCE,
        members,
        non_owners: vec![],
    }))
}

/// A first view with [`OTHER`], and this peer in some incarnation.
fn view(incarnation: Incarnation) -> View {
    let member = |peer, incarnation| Member { peer, incarnation, addresses: vec![], capacity: 1 };
    View::first(run(), vec![member(ME, incarnation), member(OTHER, Incarnation(1))])
}

#[test]
fn a_member_with_too_many_violations_is_disconnected_and_removed() {
    let (mut founder, _) = Alone::founder();
    for _ in 0..REJECTS_MAX {
        let digest = ContentDigest::of(b"nothing");
        founder.hear(OTHER, &JoinMessage::WantData(WantData { digest, offset: 0 }).into(), None);
    }
    assert_eq!(founder.hung_up.first(), Some(&OTHER));
    assert_eq!((founder.members(), founder.failure()), (Some(1), None), "it goes on alone");
}

/// Segments of [`OTHER`]'s contribution to a step.
fn contribute(founder: &mut Alone, view: &View, step: u64, indices: std::ops::Range<u32>) {
    for index in indices {
        let segment = Segment {
            step: StepNumber(step),
            phase: Phase::Reduce,
            owner: 0,
            index,
            stats: SampleStats { samples: 1, loss: 1.0 },
        };
        founder.hear(
            OTHER,
            &TrainingMessage::Segment(segment).in_view(view.digest()),
            Some(Buffer::from_values(&[0.5; 100])),
        );
    }
}

#[test]
fn a_member_that_sends_ahead_without_receiving_is_waited_for() {
    let (mut founder, view) = Alone::founder();
    contribute(&mut founder, &view, 0, 0..50);
    contribute(&mut founder, &view, 1, 0..LINK_SEGMENTS);
    let committed = founder.events.iter().filter(|event| matches!(event, Event::Committed(_))).count();
    assert_eq!(committed, 1, "its sum for step 1 says that it has step 0; no more");
    assert_eq!((founder.members(), founder.rejects()), (Some(2), vec![]));
}

#[test]
fn a_member_that_exceeds_its_credit_is_disconnected_and_removed() {
    let (mut founder, view) = Alone::founder();
    contribute(&mut founder, &view, 0, 0..50);
    contribute(&mut founder, &view, 1, 0..50);
    contribute(&mut founder, &view, 2, 0..50);
    assert_eq!(founder.rejects().first(), Some(&Reject::OverCredit));
    assert_eq!((founder.members(), founder.hung_up.first()), (Some(1), Some(&OTHER)));
}

#[test]
fn the_founder_owns_the_chunks_if_no_member_offers_capacity() {
    let (_, view) = Alone::founder_of_capacity(0, ProgramFactory::sync());
    assert_eq!(view.members.iter().map(|member| member.capacity).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_peer_with_other_initial_parameters_joins_after_the_start() {
    let (founder, view) = Alone::founder_with(1, ProgramFactory::sync(), ContentDigest([9; 32]));
    assert_eq!(view.members.iter().map(|member| member.peer).collect::<Vec<_>>(), [ME]);
    let is_said = |event: &Event| matches!(event, Event::InitialParametersDiffer(OTHER));
    assert!(founder.events.iter().any(is_said), "{:?}", founder.events);
    assert_eq!(founder.sent.last(), Some(&(OTHER, Message::Join(JoinMessage::Refuse(Refusal::NotReady)))));
}

#[test]
fn a_member_whose_request_crossed_the_view_is_not_blamed() {
    let (mut founder, _) = Alone::founder();
    founder.hear(OTHER, &JoinMessage::Ready(initial_digest()).into(), None);
    assert_eq!(founder.rejects(), []);
    founder.hear(STRANGER, &JoinMessage::Ready(initial_digest()).into(), None);
    assert_eq!(founder.sent.last(), Some(&(STRANGER, Message::Join(JoinMessage::Refuse(Refusal::NotReady)))));
}

#[test]
fn only_the_sponsor_can_refuse_a_joiner() {
    let mut joiner = Alone::joiner();
    joiner.hear(STRANGER, &JoinMessage::Refuse(Refusal::RunComplete).into(), None);
    assert_eq!(joiner.failure(), None);
    joiner.hear(STRANGER, &welcome(STRANGER), None);
    joiner.hear(OTHER, &JoinMessage::Refuse(Refusal::RunComplete).into(), None);
    assert!(matches!(joiner.failure(), Some(Failure::Refused { by: OTHER, .. })));
}

#[test]
fn a_joiner_does_not_enter_a_view_with_another_incarnation_of_itself() {
    let mut joiner = Alone::joiner();
    joiner.hear(OTHER, &AgreementMessage::Install(view(Incarnation(2))).into(), None);
    assert_eq!((joiner.members(), joiner.rejects()), (None, vec![]));
    joiner.hear(OTHER, &AgreementMessage::Install(view(Incarnation(1))).into(), None);
    assert_eq!(joiner.members(), Some(2), "{:?}", joiner.events);
}
