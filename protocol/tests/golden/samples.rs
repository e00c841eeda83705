//! The messages that have golden files: every one, and every variant within one.

use std::array;

use peergrad_protocol::agreement::{Acceptor, Ballot};
use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::durable::{Charter, Durable};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::message::{
    Accepted, Again, Beat, Chosen, Closed, Complete, Contact, Content, DataPiece, Departure, Donation,
    Holdings, Inherited, Join, Meeting, Message, Offer, Outbid, Parcel, Phase, Piece, Prepare, Promise,
    Propose, Refusal, Rekey, Report, Save, Saved, Segment, Tally, WantBequest, WantChunks, WantData, Welcome,
    Will, Words, Yield,
};
use peergrad_protocol::table::{
    Asked, Dealing, Hand, Held, Map, Names, Reduce, Rows, State, States, Told, Word, Writer,
};
use peergrad_protocol::view::{
    Branch, Cause, Deal, Donor, Expulsion, Forward, Member, Merge, Move, Moves, Recovery, Resume, Root,
    Succession, View,
};
use peergrad_protocol::wire::encode_word;
use peergrad_protocol::{Epoch, Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest};

/// One message and its payload, with the name of its file.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) message: Message,
    pub(crate) payload: Option<Vec<u8>>,
}

/// Every message, and every variant within one; numbers are chosen so that each length of a varint occurs.
pub(crate) fn samples() -> Vec<Sample> {
    [coming(), agreeing(), training(), healing(), tables()].into_iter().flatten().collect()
}

/// What is said until a peer is in a view.
fn coming() -> Vec<Sample> {
    let refuse = |refusal| Message::Refuse(refusal);
    let mut samples = vec![
        control("join_with_run", Message::Join(join(Some(RunId(bytes(0x00)))))),
        control("join_without_run", Message::Join(Join { addresses: vec![], weight: 0, ..join(None) })),
        control("welcome", Message::Welcome(welcome())),
        control("refer", Message::Refer(contact())),
        control("refuse_other_run", refuse(Refusal::OtherRun { run: RunId(bytes(0x00)) })),
        control("refuse_full", refuse(Refusal::Full)),
        control("refuse_over", refuse(Refusal::Over)),
        control("refuse_copied", refuse(Refusal::Copied)),
        control("refuse_not_yet", refuse(Refusal::NotYet)),
        control("refuse_expelled", refuse(Refusal::Expelled(expulsion()))),
        control(
            "want_data",
            Message::WantData(WantData { digest: ContentDigest(bytes(0x60)), offset: 262_144 }),
        ),
        control("ready", Message::Ready),
        control("candidate", Message::Candidate(member(0x40, 2))),
        control("retire", Message::Retire),
        control("install_first_view", Message::Install(first_view())),
        control("install_later_view", Message::Install(later_view())),
        control("leave", Message::Leave(Departure { reason: "stopped by its user".to_owned() })),
    ];
    // A file's bytes need not fill whole elements.
    for (name, payload) in [("data", b"5.1,3.5,setosa\n".to_vec()), ("data_empty", vec![])] {
        let message = Message::Data(DataPiece { digest: ContentDigest(bytes(0x60)), offset: 250 });
        samples.push(Sample { name, message, payload: Some(payload) });
    }
    samples
}

/// What members say to agree on the next view.
fn agreeing() -> Vec<Sample> {
    let view = first_view().digest();
    let promise = |accepted, report| {
        Message::Promise(Box::new(Promise { view, ballot: ballot(3, 0), accepted, report }))
    };
    let outbid =
        |promised| Message::Outbid(Outbid { view, ballot: ballot(3, 0), promised, step: StepNumber(70_000) });
    vec![
        control(
            "beat",
            Message::Beat(Beat {
                view,
                epoch: Epoch(1),
                complete: StepNumber(70_000),
                computing: Some(StepNumber(300)),
            }),
        ),
        control("prepare_at_once", Message::Prepare(Prepare { view, ballot: ballot(3, 0), before: None })),
        control(
            "prepare_before_a_step",
            Message::Prepare(Prepare { view, ballot: ballot(251, 1), before: Some(StepNumber(70_002)) }),
        ),
        control("promise_of_a_newcomer", promise(None, Report::default())),
        control("promise_of_a_vote_left_over", promise(None, Report { is_over: true, ..Report::default() })),
        control("promise_of_a_peer_that_is_back", promise(None, report_again())),
        control("promise_inside_a_step", promise(None, report())),
        control("promise_with_accepted", promise(Some((ballot(2, 1), loss())), report_uncommitted())),
        control("outbid_by_a_higher_ballot", outbid(Some(ballot(4, 1)))),
        control("outbid_by_a_later_step", outbid(None)),
        control("propose_after_a_loss", Message::Propose(Propose { ballot: ballot(3, 0), change: loss() })),
        control(
            "propose_between_steps",
            Message::Propose(Propose { ballot: ballot(3, 0), change: exchange() }),
        ),
        control("propose_to_merge", Message::Propose(Propose { ballot: ballot(3, 0), change: merging() })),
        control("accepted", Message::Accepted(Accepted { view, ballot: ballot(3, 0) })),
        control("succeed", Message::Succeed(exchange())),
    ]
}

/// What lineages say that meet again.
fn healing() -> Vec<Sample> {
    let (run, view, heirs) = (RunId(bytes(0x00)), ViewDigest(bytes(0xa0)), ViewDigest(bytes(0x60)));
    let steps = StepNumber(300);
    let meeting = |yields| {
        let (trained, roots, convener) = (70_000, vec![root()], contact());
        Message::Meet(Meeting {
            run,
            view,
            steps,
            trained,
            roots,
            convener,
            yields,
            question: 70_000,
            answers: 300,
        })
    };
    let will = Will {
        view,
        steps,
        ledger: ledger(),
        trained: 70_000,
        roots: vec![root()],
        donors: vec![Donation { contact: contact(), states: chunks(&[0, 9, 300]) }],
        convener: contact().peer,
        question: 70_000,
    };
    let want =
        |content| Message::WantBequest(WantBequest { view, steps, content, chunks: chunks(&[0, 9, 300]) });
    let payload = [1.0_f32.to_le_bytes(), 0.5_f32.to_le_bytes()].concat();
    let pieces = vec![Piece { chunk: 9, updates: 299 }];
    let digest = ContentDigest::of(&payload);
    let bequest = Message::Bequest(Parcel { view, steps, content: Content::State, pieces, digest });
    vec![
        control("meet", meeting(None)),
        control("meet_with_a_verdict", meeting(Some(view))),
        control("bequeath", Message::Bequeath(Save { view, steps })),
        control("will", Message::Will(will)),
        control("want_bequest_values", want(Content::Values)),
        control("want_bequest_state", want(Content::State)),
        Sample { name: "bequest", message: bequest, payload: Some(payload) },
        control("inherited", Message::Inherited(Inherited { heirs, view, steps, missing: 300 })),
        control(
            "yield",
            Message::Yield(Yield { view, question: 70_000, is_merged: true, contacts: vec![contact()] }),
        ),
    ]
}

/// What is said about tables: each word, as a stream has it.
fn tables() -> Vec<Sample> {
    let writer = Writer { peer: PeerId(bytes(0x60)), incarnation: Incarnation(2) };
    let rows = |values: &[f32]| Rows { names: [3, 4, 300].into_iter().collect(), values: values.to_vec() };
    let hand = || Hand { pass: 1, spans: vec![Span { start: 64, end: 300 }] };
    let held = Held { writer, last: 8, hands: vec![(7, hand())] };
    let dealing = Dealing {
        ledger: Ledger { pass: 1, position: 300, ..Ledger::default() },
        returned: vec![hand()],
        held: vec![held],
    };
    let state = State {
        chunk: 300,
        is_whole: true,
        rows: rows(&[1.0, 0.25, -0.5, 0.0, 3.25, 2.0]),
        updates: vec![1, 2, 300],
        pending: vec![(70_000, rows(&[1.0, -0.5, 3.25]))],
        applied: vec![(writer, 70_000)],
        dealing: Some(dealing),
    };
    let words = [
        (
            "words_get",
            Word::Asked(Asked::Get { request: 300, at_least: 70_000, chunk: 9, rows: rows(&[]).names }),
        ),
        (
            "words_add",
            Word::Asked(Asked::Add {
                sequence: 300,
                clock: 70_000,
                chunk: 9,
                rows: rows(&[1.0, -0.5, 3.25]),
            }),
        ),
        (
            "words_map",
            Word::Asked(Asked::Map { sequence: 300, chunk: 9, map: Map::Axpy { by: -0.5, from: 3, to: 1 } }),
        ),
        (
            "words_reduce",
            Word::Asked(Asked::Reduce {
                request: 300,
                at_least: 70_000,
                chunk: 9,
                reduce: Reduce::Dot(1, 300),
            }),
        ),
        ("words_enter", Word::Asked(Asked::Enter)),
        ("words_tick", Word::Asked(Asked::Tick { clock: 70_001 })),
        ("words_deal", Word::Asked(Asked::Deal { hand: 8, samples: 64, may_wait: true })),
        ("words_done", Word::Asked(Asked::Done { hands: 7 })),
        ("words_back", Word::Asked(Asked::Back { hands: 8 })),
        (
            "words_got",
            Word::Told(Told::Got {
                request: 300,
                clock: 70_000,
                applied: 299,
                zero: Names::range(7..10),
                values: vec![1.0, -0.5, 3.25],
            }),
        ),
        (
            "words_reduced",
            Word::Told(Told::Reduced { request: 300, clock: 70_000, applied: 9, value: -0.25 }),
        ),
        ("words_added", Word::Told(Told::Added { up_to: 300 })),
        ("words_dealt", Word::Told(Told::Dealt { hand: 8, dealt: hand(), is_over: false })),
        ("words_states", Word::States(States { number: 300, states: vec![state] })),
        ("words_kept", Word::Kept(300)),
        ("words_settled", Word::Settled([0, 9, 300].into_iter().collect())),
    ];
    let sample = |(name, word): (&'static str, Word)| {
        assert!(word.is_valid(), "{word:?}");
        let mut stream = Vec::new();
        encode_word(&word, &mut stream);
        Sample {
            name,
            message: Message::Words(Words { view: ViewDigest(bytes(0xa0)) }),
            payload: Some(stream),
        }
    };
    words.into_iter().map(sample).collect()
}

/// What members of one view say to each other.
fn training() -> Vec<Sample> {
    let view = ViewDigest(bytes(0xa0));
    let want = WantChunks { view, steps: StepNumber(300), chunks: [0, 9, 300].into_iter().collect() };
    let complete = Complete { view, steps: StepNumber(5_000_000_000), left_out: 64 };
    let mut samples = vec![
        control("want_chunks", Message::WantChunks(want)),
        control("complete", Message::Complete(complete)),
        control("save", Message::Save(Save { view, steps: StepNumber(70_002) })),
        control("expel", Message::Expel(expulsion())),
        control(
            "rekey",
            Message::Rekey(Rekey { at: 70_000, by: PeerId(bytes(0x60)), secret: Secret(bytes(0x70)) }),
        ),
        control("rekeyed", Message::Rekeyed(70_000)),
        control("closed", Message::Closed(Closed { view, left_out: 64 })),
        control(
            "offer",
            Message::Offer(Offer { view, step: StepNumber(300), has_contribution: true, left_out: 64 }),
        ),
        control(
            "chosen",
            Message::Chosen(Chosen {
                view,
                step: StepNumber(300),
                late: vec![Rank(2), Rank(251)],
                left_out: 64,
            }),
        ),
    ];
    let elements: Vec<u8> = [1.0_f32, -0.5, 3.25].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (name, phase, payload) in [
        ("segment_reduce", Phase::Reduce, elements.clone()),
        ("segment_mirror", Phase::Mirror, elements.clone()),
        // A gathered segment's payload may be empty where a shard is.
        ("segment_gather_empty", Phase::Gather, vec![]),
    ] {
        samples.push(Sample { name, message: Message::Segment(segment(phase)), payload: Some(payload) });
    }
    for (name, content, updates) in
        [("parcel_values", Content::Values, 0), ("parcel_state", Content::State, 299)]
    {
        let digest = ContentDigest::of(&elements);
        let pieces = vec![Piece { chunk: 251, updates }, Piece { chunk: 4095, updates: 0 }];
        let parcel = Parcel { view, steps: StepNumber(300), content, pieces, digest };
        samples.push(Sample { name, message: Message::Parcel(parcel), payload: Some(elements.clone()) });
    }
    samples
}

fn control(name: &'static str, message: Message) -> Sample {
    Sample { name, message, payload: None }
}

fn join(run: Option<RunId>) -> Join {
    Join { run, incarnation: Incarnation(1_700_000_000_000), addresses: addresses(), weight: 16 }
}

fn welcome() -> Welcome {
    let other = Contact { peer: PeerId(bytes(0x80)), addresses: vec![] };
    let workers = vec![other.peer];
    Welcome {
        specification: b"[model]\n".to_vec(),
        nonce: bytes(0x40),
        members: vec![contact(), other],
        workers,
    }
}

fn contact() -> Contact {
    Contact { peer: PeerId(bytes(0x20)), addresses: addresses() }
}

fn addresses() -> Vec<String> {
    vec!["/ip4/192.0.2.7/tcp/4747".to_owned(), "/dns/peer.example/tcp/4747".to_owned()]
}

fn member(first: u8, weight: u8) -> Member {
    Member {
        peer: PeerId(bytes(first)),
        incarnation: Incarnation(1),
        addresses: vec![format!("/ip4/192.0.2.{first}/tcp/4747")],
        weight,
    }
}

fn ballot(attempt: u32, rank: u32) -> Ballot {
    Ballot { attempt, rank: Rank(rank) }
}

pub(crate) fn first_view() -> View {
    View::first(RunId(bytes(0x00)), vec![member(0x20, 1), member(0x80, 0)])
}

/// A view after a merge, with all that a record can say.
pub(crate) fn later_view() -> View {
    let resume = Resume {
        newcomers: vec![Rank(1)],
        deal: Some(deal()),
        forward: Some(forward()),
        ..exchange().resume
    };
    View {
        epoch: Epoch(251),
        parents: vec![first_view().digest(), ViewDigest(bytes(0xa0))],
        recovery: Recovery::Resume(resume),
        ledger: ledger(),
        moves: moves(),
        expelled: vec![expulsion()],
        roots: vec![root()],
        ..first_view()
    }
}

fn root() -> Root {
    Root { view: ViewDigest(bytes(0xa0)), trained: 70_000 }
}

/// What was left of another lineage is merged.
fn merging() -> Succession {
    let (ledger, history) = (ledger(), vec![root()]);
    let merge = Merge {
        view: ViewDigest(bytes(0xa0)),
        steps: StepNumber(300),
        ours: 70_000,
        theirs: 250,
        ledger,
        history,
    };
    Succession {
        resume: Resume { merge: Some(Box::new(merge)), ..Resume::at(StepNumber(70_002)) },
        ..exchange()
    }
}

fn expulsion() -> Expulsion {
    Expulsion { peer: PeerId(bytes(0x60)), by: PeerId(bytes(0x20)), cause: Cause::Violations }
}

fn ledger() -> Ledger {
    let given_back = vec![Span { start: 10, end: 20 }, Span { start: 250, end: 300 }];
    Ledger { pass: 2, position: 65_535, given_back, put_off: vec![Span { start: 300, end: 301 }] }
}

fn deal() -> Deal {
    let parts = vec![vec![Span { start: 65_000, end: 65_032 }, Span { start: 20, end: 30 }], vec![]];
    Deal { pass: 2, parts }
}

fn forward() -> Forward {
    let donors =
        vec![Donor { first: 0, end: 250, rank: Rank(1) }, Donor { first: 300, end: 301, rank: Rank(0) }];
    Forward { tally: Tally { samples: 64, loss: 0.75 }, donors }
}

fn moves() -> Moves {
    let list =
        vec![Move { chunk: 251, from: vec![Rank(0)] }, Move { chunk: 7, from: vec![Rank(1), Rank(0)] }];
    Moves { list, rate: 2, restarted: vec![3, 4095] }
}

/// The last member of the first view is lost inside a step; so no moves are possible, and the state of what it owned is gone.
fn loss() -> Succession {
    Succession {
        parent: first_view().digest(),
        removed: vec![Rank(1)],
        added: vec![],
        weights: vec![],
        resume: Resume {
            step: StepNumber(70_000),
            newcomers: vec![],
            deal: Some(Deal { pass: 2, parts: vec![vec![Span { start: 65_000, end: 65_032 }]] }),
            forward: Some(Forward { tally: Tally { samples: 64, loss: 0.75 }, donors: vec![] }),
            is_restored: false,
            merge: None,
        },
        ledger: ledger(),
        moves: Moves { restarted: vec![3, 4095], ..Moves::default() },
        expelled: vec![],
        roots: vec![],
    }
}

/// Somebody comes, and somebody is to hand over what it owns.
fn exchange() -> Succession {
    Succession {
        parent: first_view().digest(),
        removed: vec![],
        added: vec![member(0x40, 2)],
        weights: vec![(Rank(0), 0)],
        resume: Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(70_002)) },
        ledger: ledger(),
        moves: moves(),
        expelled: vec![Expulsion { cause: Cause::Request, ..expulsion() }],
        roots: vec![root()],
    }
}

fn chunks(list: &[usize]) -> ChunkSet {
    list.iter().copied().collect()
}

/// A member in the middle of a step, whose step before is committed.
fn report() -> Report {
    let next = Holdings { values: chunks(&[0, 1, 2, 8]), states: ChunkSet::default(), tally: None };
    Report {
        is_over: false,
        complete: Some(StepNumber(70_000)),
        states: chunks(&[0, 3, 8, 15]),
        states_before: None,
        is_entering: false,
        tally: None,
        next: Some(next),
        lost: vec![Rank(1)],
        has_bequest: true,
        again: None,
    }
}

/// A peer whose process is another one than the member's, and has two checkpoints.
fn report_again() -> Report {
    let saved = |steps, epoch| Saved {
        steps: StepNumber(steps),
        branch: Branch { epoch: Epoch(epoch), step: StepNumber(300), fork: 70_000 },
        ledger: ledger(),
        digest: ContentDigest(bytes(0x60)),
        states: chunks(&[0, 9]),
    };
    let again = Again { member: member(0x20, 1), saved: vec![saved(70_000, 251), saved(65_000, 2)] };
    Report { is_over: true, again: Some(Box::new(again)), ..Report::default() }
}

/// A member that does not know yet whether its newest step is complete everywhere.
fn report_uncommitted() -> Report {
    let next = Holdings {
        values: ChunkSet::default(),
        states: chunks(&[0]),
        tally: Some(Tally { samples: 64, loss: 0.5 }),
    };
    Report {
        states_before: Some(chunks(&[0, 3])),
        is_entering: true,
        tally: Some(Tally { samples: 64, loss: 0.75 }),
        next: Some(next),
        ..report()
    }
}

fn segment(phase: Phase) -> Segment {
    Segment {
        view: ViewDigest(bytes(0xa0)),
        step: StepNumber(300),
        phase,
        owner: 3,
        index: 70_000,
        tally: Tally { samples: 64, loss: 0.75 },
    }
}

pub(crate) fn invite() -> Invite {
    Invite { run: RunId(bytes(0x00)), secret: Secret(bytes(0xc0)), contacts: vec![contact()] }
}

/// A member that has promised one ballot, and accepted a change under an earlier one.
pub(crate) fn durable() -> Durable {
    let mut acceptor = Acceptor::default();
    acceptor.accept(ballot(2, 1), loss()).expect("nothing was promised before");
    acceptor.promise(ballot(3, 0)).expect("a higher ballot");
    let charter = Charter { specification: b"[model]\n".to_vec(), nonce: bytes(0x40) };
    Durable { view: first_view(), incarnation: Incarnation(1), acceptor, charter }
}

/// Counting bytes from `first`: a reader sees at once which way round they go.
pub(crate) fn bytes<const N: usize>(first: u8) -> [u8; N] {
    array::from_fn(|index| first + index as u8)
}
