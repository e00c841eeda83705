//! Messages and records of every kind, with whatever is in them, that keep to the rules.

use std::ops::RangeInclusive;

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::limits::{
    ATTEMPTS_MAX, CHUNKS_MAX, COPIES_MAX, MEMBERS_MAX, SAMPLES_MAX, SAVED_MAX, STEPS_MAX, WEIGHT_MAX,
};
use peergrad_protocol::message::{
    Accepted, Again, Beat, Chosen, Closed, Complete, Contact, Content, DataPiece, Departure, Donation,
    Holdings, Inherited, Join, Meeting, Message, Offer, Outbid, Parcel, Phase, Piece, Prepare, Promise,
    Propose, Refusal, Rekey, Report, Save, Saved, Segment, Tally, WantBequest, WantChunks, WantData, Welcome,
    Will, Yield,
};
use peergrad_protocol::view::{
    Branch, Cause, Deal, Donor, Expulsion, Forward, Member, Merge, Move, Moves, Recovery, Resume, Root,
    Succession, View,
};
use peergrad_protocol::{Epoch, Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest};
use proptest::prelude::*;
use proptest::sample::subsequence;

pub(crate) fn array() -> impl Strategy<Value = [u8; 32]> {
    any::<[u8; 32]>()
}

pub(crate) fn addresses() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[ -~]{0,40}|.{0,20}", 0..4)
}

/// Numbers near the places where a varint becomes longer, and any others.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![248_u64..254, 65_534_u64..65_538, 4_294_967_294_u64..4_294_967_298, any::<u64>()]
}

/// The same, of a step, a pass or a view.
fn step() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number.min(STEPS_MAX))
}

fn digest() -> impl Strategy<Value = ViewDigest> {
    array().prop_map(ViewDigest)
}

pub(crate) fn ballot() -> impl Strategy<Value = Ballot> {
    (0..=ATTEMPTS_MAX, any::<u32>()).prop_map(|(attempt, rank)| Ballot { attempt, rank: Rank(rank) })
}

/// A loss may be anything but not-a-number here, so that messages can be compared.
fn tally() -> impl Strategy<Value = Tally> {
    (any::<u32>(), prop::num::f64::ANY.prop_filter("comparable", |loss| !loss.is_nan()))
        .prop_map(|(samples, loss)| Tally { samples: samples.into(), loss })
}

pub(crate) fn contact() -> impl Strategy<Value = Contact> {
    (array(), addresses()).prop_map(|(peer, addresses)| Contact { peer: PeerId(peer), addresses })
}

/// Members in order, one of them with weight at least.
fn members() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::btree_map(array(), (number(), addresses(), 1..=WEIGHT_MAX), 1..6).prop_map(|members| {
        let member = |(peer, (incarnation, addresses, weight))| Member {
            peer: PeerId(peer),
            incarnation: Incarnation(incarnation),
            addresses,
            weight,
        };
        members.into_iter().map(member).collect()
    })
}

/// A bookmark, and ranges that were taken last: none of them given back.
fn ledger_and_spans() -> impl Strategy<Value = (Ledger, Vec<Span>)> {
    let cuts = prop::collection::btree_set(0_u64..100_000, 0..12);
    (step(), 100_000..u64::from(u32::MAX), cuts).prop_map(|(pass, position, cuts)| {
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let spans: Vec<Span> = cuts.chunks_exact(2).map(|cut| Span { start: cut[0], end: cut[1] }).collect();
        let (untrained, dealt) = spans.split_at(spans.len() / 2);
        let (given_back, put_off) = untrained.split_at(untrained.len() / 2);
        (
            Ledger { pass, position, given_back: given_back.to_vec(), put_off: put_off.to_vec() },
            dealt.to_vec(),
        )
    })
}

fn ranks(member_count: usize, counts: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Rank>> {
    subsequence((0..member_count).map(Rank::from_index).collect::<Vec<_>>(), counts)
}

fn moves(member_count: usize) -> impl Strategy<Value = Moves> {
    let from = ranks(member_count, 1..=member_count.min(COPIES_MAX)).prop_shuffle();
    let list = prop::collection::btree_map(0..CHUNKS_MAX as u32, from, 0..6);
    (list, 1..100_u32, prop::collection::btree_set(0..CHUNKS_MAX as u32, 0..4)).prop_map(
        |(list, rate, mut restarted)| {
            restarted.retain(|chunk| !list.contains_key(chunk));
            let list = list.into_iter().map(|(chunk, from)| Move { chunk, from }).collect();
            Moves { list, rate, restarted: restarted.into_iter().collect() }
        },
    )
}

fn forward(member_count: usize) -> impl Strategy<Value = Forward> {
    let donor = (0..CHUNKS_MAX as u32, 1..9_u32, 0..member_count).prop_map(|(first, count, rank)| Donor {
        first,
        end: (first + count).min(CHUNKS_MAX as u32),
        rank: Rank::from_index(rank),
    });
    (tally(), prop::collection::vec(donor, 0..5)).prop_map(|(tally, donors)| Forward { tally, donors })
}

/// What comes of the steps before, in a view of so many members, and the bookmark that belongs to it.
fn resume(member_count: usize) -> impl Strategy<Value = (Resume, Ledger)> {
    let owners = prop::collection::vec(0..member_count, 6);
    let forward = prop::option::of(forward(member_count));
    let newcomers = ranks(member_count, 0..=member_count - 1);
    let interruption = (any::<bool>(), owners, forward);
    (step(), newcomers, ledger_and_spans(), interruption, prop::option::of(merge())).prop_map(
        move |(step, newcomers, (ledger, spans), (is_dealt, owners, forward), merge)| {
            let mut parts = vec![vec![]; member_count];
            spans.iter().zip(owners).for_each(|(span, owner)| parts[owner].push(*span));
            let deal = is_dealt.then_some(Deal { pass: ledger.pass, parts });
            // One in four of those that nothing interrupted goes on from checkpoints.
            let is_restored = deal.is_none() && forward.is_none() && step % 4 == 0;
            let is_bare = deal.is_none() && forward.is_none() && !is_restored;
            let merge = merge.filter(|_| is_bare).map(Box::new);
            (Resume { step: StepNumber(step), newcomers, deal, forward, is_restored, merge }, ledger)
        },
    )
}

fn merge() -> impl Strategy<Value = Merge> {
    let merge = (digest(), step(), 1..=SAMPLES_MAX, 0..=SAMPLES_MAX, ledger_and_spans(), roots());
    merge.prop_map(|(view, steps, ours, theirs, (ledger, _), history)| Merge {
        view,
        steps: StepNumber(steps),
        ours,
        theirs,
        ledger,
        history,
    })
}

fn roots() -> impl Strategy<Value = Vec<Root>> {
    let root = (digest(), 0..=SAMPLES_MAX).prop_map(|(view, trained)| Root { view, trained });
    prop::collection::vec(root, 0..4)
}

pub(crate) fn view() -> impl Strategy<Value = View> {
    let parents = || prop::collection::vec(digest(), 1..3);
    let later = move |members: Vec<Member>| {
        let count = members.len();
        (Just(members), parents(), resume(count), moves(count))
    };
    let later = members().prop_flat_map(later).prop_map(|(members, parents, (resume, ledger), moves)| {
        (members, parents, Recovery::Resume(resume), ledger, moves)
    });
    let first =
        members().prop_map(|members| (members, vec![], Recovery::Found, Ledger::default(), Moves::default()));
    (array(), step(), prop_oneof![1 => first, 4 => later], roots()).prop_map(
        |(run, epoch, (members, parents, recovery, ledger, moves), roots)| View {
            branch: branch_of(epoch, &recovery),
            branches_before: vec![],
            run: RunId(run),
            epoch: Epoch(epoch),
            parents,
            members,
            recovery,
            ledger,
            moves,
            // No peer that is drawn has this id.
            expelled: vec![Expulsion { peer: PeerId([0; 32]), by: PeerId([1; 32]), cause: Cause::Request }],
            estranged: vec![Contact { peer: PeerId([0; 32]), addresses: vec![] }; roots.len()],
            roots,
        },
    )
}

/// One that a view of this number may name.
fn branch_of(epoch: u64, recovery: &Recovery) -> Branch {
    match recovery {
        Recovery::Resume(resume) if resume.is_restored => {
            Branch { epoch: Epoch(epoch), step: resume.step, fork: 0 }
        }
        _ => Branch { epoch: Epoch(epoch / 2), step: StepNumber(epoch / 3), fork: epoch as u32 },
    }
}

/// A change that follows no view in particular.
pub(crate) fn change() -> impl Strategy<Value = Succession> {
    let weights = prop::collection::vec((any::<u32>().prop_map(Rank), any::<u8>()), 0..4);
    let removed = prop::collection::vec(any::<u32>().prop_map(Rank), 0..4);
    let expelled = prop::collection::vec(expulsion(), 0..3);
    (digest(), removed, members(), weights, resume(5), (moves(5), expelled, roots())).prop_map(
        |(parent, removed, added, weights, (resume, ledger), (moves, expelled, roots))| Succession {
            parent,
            removed,
            added,
            weights,
            resume,
            ledger,
            moves,
            expelled,
            roots,
        },
    )
}

fn expulsion() -> impl Strategy<Value = Expulsion> {
    let cause = prop_oneof![Just(Cause::Request), Just(Cause::Violations)];
    (array(), array(), cause).prop_map(|(peer, by, cause)| Expulsion {
        peer: PeerId(peer),
        by: PeerId(by),
        cause,
    })
}

fn chunks() -> impl Strategy<Value = ChunkSet> {
    prop_oneof![
        prop::collection::vec(0..CHUNKS_MAX, 0..6).prop_map(|list| list.into_iter().collect()),
        (0..=CHUNKS_MAX).prop_map(ChunkSet::all)
    ]
}

fn again() -> impl Strategy<Value = Again> {
    let branch = (step(), step(), any::<u32>()).prop_map(|(epoch, step, fork)| Branch {
        epoch: Epoch(epoch),
        step: StepNumber(step),
        fork,
    });
    let saved = (step(), branch, resume(3), digest(), chunks());
    let saved = saved.prop_map(|(steps, branch, (_, ledger), digest, states)| Saved {
        steps: StepNumber(steps),
        branch,
        ledger,
        digest: ContentDigest(digest.0),
        states,
    });
    (members(), prop::collection::vec(saved, 0..=SAVED_MAX))
        .prop_map(|(mut members, saved)| Again { member: members.remove(0), saved })
}

fn report() -> impl Strategy<Value = Report> {
    let next = (chunks(), chunks(), prop::option::of(tally())).prop_map(|(values, states, tally)| Holdings {
        values,
        states,
        tally,
    });
    let lost = (prop::collection::vec(any::<u32>().prop_map(Rank), 0..4), prop::option::of(again()));
    let options = (prop::option::of(step()), prop::option::of(chunks()), prop::option::of(tally()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (flags, chunks(), options, prop::option::of(next), lost).prop_map(
        |(
            (is_over, is_entering, has_bequest),
            states,
            (complete, states_before, tally),
            next,
            (lost, again),
        )| {
            let complete = complete.map(StepNumber);
            let again = again.map(Box::new);
            Report {
                is_over,
                complete,
                states,
                states_before,
                is_entering,
                tally,
                next,
                lost,
                has_bequest,
                again,
            }
        },
    )
}

fn segment() -> impl Strategy<Value = Message> {
    let phase = prop_oneof![Just(Phase::Reduce), Just(Phase::Gather), Just(Phase::Mirror)];
    (digest(), step(), phase, any::<u32>(), any::<u32>(), tally()).prop_map(
        |(view, step, phase, owner, index, tally)| {
            Message::Segment(Segment { view, step: StepNumber(step), phase, owner, index, tally })
        },
    )
}

/// Any message that keeps to the rules.
pub(crate) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![coming(), agreeing(), training()]
}

/// What is said until a peer is in a view.
fn coming() -> impl Strategy<Value = Message> {
    let join = (prop::option::of(array()), number(), addresses(), 0..=WEIGHT_MAX).prop_map(
        |(run, incarnation, addresses, weight)| {
            let incarnation = Incarnation(incarnation);
            Message::Join(Join { run: run.map(RunId), incarnation, addresses, weight })
        },
    );
    let specification = prop::collection::vec(any::<u8>(), 0..300);
    let welcome = (specification, array(), prop::collection::vec(contact(), 0..4)).prop_map(
        |(specification, nonce, members)| {
            let workers = members.iter().skip(1).map(|contact| contact.peer).collect();
            Message::Welcome(Welcome { specification, nonce, members, workers })
        },
    );
    let refusal = prop_oneof![
        array().prop_map(|run| Refusal::OtherRun { run: RunId(run) }),
        Just(Refusal::Full),
        Just(Refusal::Over),
        Just(Refusal::Copied),
        Just(Refusal::NotYet),
        expulsion().prop_map(Refusal::Expelled),
    ];
    let want =
        (array(), number()).prop_map(|(digest, offset)| WantData { digest: ContentDigest(digest), offset });
    let piece =
        (array(), number()).prop_map(|(digest, offset)| DataPiece { digest: ContentDigest(digest), offset });
    prop_oneof![
        join,
        welcome,
        contact().prop_map(Message::Refer),
        refusal.prop_map(Message::Refuse),
        want.prop_map(Message::WantData),
        piece.prop_map(Message::Data),
        Just(Message::Ready),
        members().prop_map(|mut members| Message::Candidate(members.remove(0))),
        Just(Message::Retire),
        view().prop_map(Message::Install),
        ".{0,60}".prop_map(|reason| Message::Leave(Departure { reason })),
    ]
}

/// What members say to agree on the next view.
fn agreeing() -> impl Strategy<Value = Message> {
    let computing = prop::option::of(step());
    let beat = (digest(), step(), step(), computing).prop_map(|(view, epoch, complete, computing)| {
        let computing = computing.map(StepNumber);
        Beat { view, epoch: Epoch(epoch), complete: StepNumber(complete), computing }
    });
    let prepare = (digest(), ballot(), prop::option::of(step())).prop_map(|(view, ballot, before)| Prepare {
        view,
        ballot,
        before: before.map(StepNumber),
    });
    let promise = (digest(), ballot(), prop::option::of((ballot(), change())), report())
        .prop_map(|(view, ballot, accepted, report)| Promise { view, ballot, accepted, report });
    let outbid = (digest(), ballot(), prop::option::of(ballot()), step())
        .prop_map(|(view, ballot, promised, step)| Outbid { view, ballot, promised, step: StepNumber(step) });
    prop_oneof![
        beat.prop_map(Message::Beat),
        prepare.prop_map(Message::Prepare),
        promise.prop_map(|promise| Message::Promise(Box::new(promise))),
        outbid.prop_map(Message::Outbid),
        (ballot(), change()).prop_map(|(ballot, change)| Message::Propose(Propose { ballot, change })),
        (digest(), ballot()).prop_map(|(view, ballot)| Message::Accepted(Accepted { view, ballot })),
        change().prop_map(Message::Succeed),
    ]
}

/// What members of one view say to each other.
fn training() -> impl Strategy<Value = Message> {
    let want = (digest(), step(), chunks()).prop_map(|(view, steps, chunks)| WantChunks {
        view,
        steps: StepNumber(steps),
        chunks,
    });
    let pieces = prop::collection::vec((0..CHUNKS_MAX as u32, any::<u32>()), 0..9);
    let parcel = (digest(), step(), any::<bool>(), pieces, array()).prop_map(
        |(view, steps, has_values, pieces, digest)| {
            let content = if has_values { Content::Values } else { Content::State };
            let piece = |(chunk, updates)| Piece { chunk, updates: u64::from(updates).min(steps) as u32 };
            let pieces: Vec<Piece> = pieces.into_iter().map(piece).collect();
            Parcel { view, steps: StepNumber(steps), content, pieces, digest: ContentDigest(digest) }
        },
    );
    let complete = (digest(), step(), 0..=SAMPLES_MAX).prop_map(|(view, steps, left_out)| Complete {
        view,
        steps: StepNumber(steps),
        left_out,
    });
    let offer = (digest(), step(), any::<bool>(), 0..=SAMPLES_MAX).prop_map(
        |(view, step, has_contribution, left_out)| Offer {
            view,
            step: StepNumber(step),
            has_contribution,
            left_out,
        },
    );
    let late = prop::collection::btree_set(0..MEMBERS_MAX as u32, 0..9);
    let chosen = (digest(), step(), late, 0..=SAMPLES_MAX).prop_map(|(view, step, late, left_out)| Chosen {
        view,
        step: StepNumber(step),
        late: late.into_iter().map(Rank).collect(),
        left_out,
    });
    prop_oneof![
        segment(),
        offer.prop_map(Message::Offer),
        chosen.prop_map(Message::Chosen),
        want.prop_map(Message::WantChunks),
        (parcel, any::<bool>()).prop_map(|(parcel, is_own)| {
            if is_own { Message::Parcel(parcel) } else { Message::Bequest(parcel) }
        }),
        complete.prop_map(Message::Complete),
        (digest(), 0..=SAMPLES_MAX).prop_map(|(view, left_out)| Message::Closed(Closed { view, left_out })),
        (digest(), step()).prop_map(|(view, steps)| Message::Save(Save { view, steps: StepNumber(steps) })),
        expulsion().prop_map(Message::Expel),
        rekey(),
        healing(),
    ]
}

/// Another secret, and that it came.
fn rekey() -> impl Strategy<Value = Message> {
    let rekey = (0..=u64::MAX >> 2, array(), array());
    prop_oneof![
        rekey.prop_map(|(at, by, secret)| Message::Rekey(Rekey {
            at,
            by: PeerId(by),
            secret: Secret(secret)
        })),
        (0..=u64::MAX >> 2).prop_map(Message::Rekeyed),
    ]
}

/// What lineages say that meet again.
fn healing() -> impl Strategy<Value = Message> {
    let meeting = (
        array(),
        digest(),
        step(),
        0..=SAMPLES_MAX,
        roots(),
        contact(),
        (prop::option::of(digest()), number(), number()),
    );
    let meeting =
        meeting.prop_map(|(run, view, steps, trained, roots, convener, (yields, question, answers))| {
            Meeting {
                run: RunId(run),
                view,
                steps: StepNumber(steps),
                trained,
                roots,
                convener,
                yields,
                question,
                answers,
            }
        });
    let donation = (contact(), chunks()).prop_map(|(contact, states)| Donation { contact, states });
    let donors = prop::collection::vec(donation, 0..4);
    let asked = (array(), number());
    let will = (digest(), step(), ledger_and_spans(), 0..=SAMPLES_MAX, roots(), donors, asked);
    let will =
        will.prop_map(|(view, steps, (ledger, _), trained, roots, donors, (convener, question))| Will {
            view,
            steps: StepNumber(steps),
            ledger,
            trained,
            roots,
            donors,
            convener: PeerId(convener),
            question,
        });
    let content = prop_oneof![Just(Content::Values), Just(Content::State)];
    let want = (digest(), step(), content, chunks()).prop_map(|(view, steps, content, chunks)| WantBequest {
        view,
        steps: StepNumber(steps),
        content,
        chunks,
    });
    let inherited = (digest(), digest(), step(), any::<u32>());
    let inherited = inherited.prop_map(|(heirs, view, steps, missing)| Inherited {
        heirs,
        view,
        steps: StepNumber(steps),
        missing,
    });
    let words = (digest(), number(), any::<bool>(), prop::collection::vec(contact(), 0..4));
    let words =
        words.prop_map(|(view, question, is_merged, contacts)| Yield { view, question, is_merged, contacts });
    let bequeath = (digest(), step())
        .prop_map(|(view, steps)| Message::Bequeath(Save { view, steps: StepNumber(steps) }));
    prop_oneof![
        meeting.prop_map(Message::Meet),
        bequeath,
        will.prop_map(Message::Will),
        want.prop_map(Message::WantBequest),
        inherited.prop_map(Message::Inherited),
        words.prop_map(Message::Yield),
    ]
}

/// Whether a payload may travel beside a message.
pub(crate) fn may_carry(message: &Message) -> bool {
    matches!(message, Message::Segment(_) | Message::Data(_) | Message::Parcel(_) | Message::Bequest(_))
}
