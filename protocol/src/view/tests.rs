//! What makes a view valid, and how a view follows another.

use std::collections::BTreeSet;

use super::*;
use crate::cursor::{DataCursor, Span};
use crate::id::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
use crate::limits::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, ANCESTORS_MAX, BATCH_SPANS_MAX, CAPACITY_MAX, CHUNKS_MAX, EXPELLED_MAX,
    MEMBERS_MAX, QUARANTINES_MAX, REPLICAS_MAX, STEPS_MAX,
};
use crate::message::SampleStats;

fn member(byte: u8) -> Member {
    Member {
        peer: PeerId([byte; 32]),
        incarnation: Incarnation(1),
        addresses: vec![format!("/ip4/127.0.0.1/tcp/{byte}")],
        capacity: 1,
    }
}

fn expulsion(byte: u8) -> Expulsion {
    Expulsion { peer: PeerId([byte; 32]), by: PeerId([1; 32]), cause: ExpulsionCause::Request }
}

fn view(peers: &[u8]) -> View {
    View::first(RunId([9; 32]), peers.iter().map(|byte| member(*byte)).collect())
}

/// A history that starts with this branch.
fn on(branch: Branch) -> ViewHistory {
    ViewHistory::starting_with(branch)
}

/// A view of two members with these ancestors.
fn descending_from(ancestors: Vec<Ancestor>) -> View {
    let mut view = view(&[1, 3]);
    view.history.ancestors = ancestors;
    view
}

fn resumed(peers: &[u8], resume: Resume) -> View {
    View { recovery: Recovery::Resume(resume), ..view(peers) }
}

#[test]
fn every_field_changes_the_digest() {
    let base = view(&[1, 2]);
    let mut others = vec![view(&[1, 3]), View { number: ViewNumber(2), ..base.clone() }];
    others.push(View { parents: vec![base.digest()], ..base.clone() });
    others.push(View { run: RunId([8; 32]), ..base.clone() });
    others.push(View { history: on(Branch { step: StepNumber(1), ..base.history.branch }), ..base.clone() });
    others.push(resumed(&[1, 2], Resume::at(StepNumber(0))));
    others.push(resumed(&[1, 2], Resume { is_restored: true, ..Resume::at(StepNumber(0)) }));
    others.push(View { cursor: DataCursor { position: 1, ..DataCursor::default() }, ..base.clone() });
    others.push(View { moves: Moves { rate: 1, ..Moves::default() }, ..base.clone() });
    let mut incarnation = base.clone();
    incarnation.members[0].incarnation = Incarnation(2);
    others.push(incarnation);
    let digests: BTreeSet<_> = others.iter().map(View::digest).chain([base.digest()]).collect();
    assert_eq!(digests.len(), others.len() + 1);
}

#[test]
fn ranks_follow_the_order_of_peers() {
    let view = view(&[1, 5, 9]);
    assert_eq!(view.rank(&PeerId([5; 32])), Some(Rank(1)));
    assert_eq!(view.rank(&PeerId([6; 32])), None);
}

#[test]
fn each_broken_rule_has_its_own_error() {
    assert_eq!(view(&[1, 2]).validate(), Ok(()));
    assert_eq!(view(&[]).validate(), Err(InvalidView::MemberCount));
    assert_eq!(view(&[2, 1]).validate(), Err(InvalidView::MemberOrder));
    assert_eq!(view(&[2, 2]).validate(), Err(InvalidView::MemberOrder));
    let mut light = view(&[1]);
    light.members[0].capacity = 0;
    assert_eq!(light.validate(), Err(InvalidView::Capacity));
    light.members[0].capacity = CAPACITY_MAX + 1;
    assert_eq!(light.validate(), Err(InvalidView::Capacity));
    let mut wordy = view(&[1]);
    wordy.members[0].addresses = vec!["x".repeat(ADDRESS_BYTES_MAX + 1)];
    assert_eq!(wordy.validate(), Err(InvalidView::Addresses));
    let merged = View { parents: vec![view(&[1]).digest(); 3], ..view(&[1]) };
    assert_eq!(merged.validate(), Err(InvalidView::Parents));
    let late = resumed(&[1], Resume::at(StepNumber(u64::MAX)));
    assert_eq!(late.validate(), Err(InvalidView::DataCursor));
    let odd = View { cursor: DataCursor { position: u64::MAX, ..DataCursor::default() }, ..view(&[1]) };
    assert_eq!(odd.validate(), Err(InvalidView::DataCursor));
    let again = View { parents: vec![view(&[1]).digest()], ..view(&[1]) };
    assert_eq!(again.validate(), Err(InvalidView::Number));
    let last = View { number: ViewNumber(STEPS_MAX), ..view(&[1]) };
    assert_eq!(last.validate(), Ok(()));
    assert_eq!(View { number: ViewNumber(STEPS_MAX + 1), ..view(&[1]) }.validate(), Err(InvalidView::Number));
    let crowd: Vec<Member> = (0..=MEMBERS_MAX as u16)
        .map(|index| {
            let mut peer = PeerId([0; 32]);
            peer.0[..2].copy_from_slice(&index.to_be_bytes());
            Member { peer, ..member(0) }
        })
        .collect();
    assert_eq!(View { members: crowd[1..].to_vec(), ..view(&[]) }.validate(), Ok(()));
    assert_eq!(View { members: crowd, ..view(&[]) }.validate(), Err(InvalidView::MemberCount));
}

#[test]
fn impossible_lists_are_refused() {
    let span = |start, end| Span { start, end };
    let batch = |parts: Vec<Vec<Span>>| Some(BatchParts { epoch: 0, parts });
    let at = Resume::at(StepNumber(3));
    for resume in [
        Resume { newcomers: vec![Rank(2)], ..at.clone() },
        Resume { newcomers: vec![Rank(0), Rank(1)], ..at.clone() },
        Resume { newcomers: vec![Rank(0), Rank(0)], ..at.clone() },
        Resume { batch: batch(vec![vec![]]), ..at.clone() },
        Resume { batch: batch(vec![vec![span(0, 4)], vec![span(3, 5)]]), ..at.clone() },
        Resume { batch: batch(vec![vec![span(4, 4)], vec![]]), ..at.clone() },
        Resume {
            forward: Some(RollForward {
                stats: SampleStats::default(),
                donors: vec![Donor { first: 0, end: 1, rank: Rank(2) }],
            }),
            ..at.clone()
        },
    ] {
        assert_eq!(resumed(&[1, 2], resume.clone()).validate(), Err(InvalidView::Lists), "{resume:?}");
    }
    let donors = |count| vec![Donor { first: 0, end: 1, rank: Rank(1) }; count];
    for (stats, donors, expected) in [
        (SampleStats::default(), donors(CHUNKS_MAX), Ok(())),
        (SampleStats::default(), donors(CHUNKS_MAX + 1), Err(InvalidView::Lists)),
        (SampleStats::default(), vec![Donor { first: 1, end: 1, rank: Rank(0) }], Err(InvalidView::Lists)),
        (SampleStats::default(), vec![Donor { first: 0, end: 4097, rank: Rank(0) }], Err(InvalidView::Lists)),
        (SampleStats { samples: 1 << 32, loss: 0.0 }, vec![], Err(InvalidView::Lists)),
    ] {
        let resume = Resume { forward: Some(RollForward { stats, donors }), ..at.clone() };
        assert_eq!(resumed(&[1, 2], resume).validate(), expected);
    }
}

#[test]
fn impossible_moves_are_refused() {
    let moves = |list: &[(u32, &[u32])], rate, restarted: &[u32]| Moves {
        list: list
            .iter()
            .map(|(chunk, from)| Move { chunk: *chunk, from: from.iter().map(|r| Rank(*r)).collect() })
            .collect(),
        rate,
        restarted: restarted.to_vec(),
    };
    for odd in [
        moves(&[(1, &[0])], 0, &[]),
        moves(&[(1, &[0]), (1, &[1])], 1, &[]),
        moves(&[(1, &[0, 0])], 1, &[]),
        moves(&[(1, &[2])], 1, &[]),
        moves(&[(1, &[])], 1, &[]),
        moves(&[(CHUNKS_MAX as u32, &[0])], 1, &[]),
        moves(&[], 0, &[1, 1]),
        moves(&[], 0, &[CHUNKS_MAX as u32]),
    ] {
        let record = View { moves: odd.clone(), ..view(&[1, 2]) };
        assert_eq!(record.validate(), Err(InvalidView::Lists), "{odd:?}");
    }
    let restarted = View { moves: moves(&[(1, &[0])], 1, &[1]), ..view(&[1, 2]) };
    assert_eq!(
        restarted.validate(),
        Ok(()),
        "a chunk may restart at another member than its owner by placement"
    );
    let peers: Vec<u8> = (0..=REPLICAS_MAX as u8).collect();
    for (holders, expected) in [(REPLICAS_MAX, Ok(())), (REPLICAS_MAX + 1, Err(InvalidView::Lists))] {
        let from: Vec<u32> = (0..holders as u32).collect();
        let record = View { moves: moves(&[(4095, &from)], 1, &[3]), ..view(&peers) };
        assert_eq!(record.validate(), expected);
    }
}

#[test]
fn assigned_samples_must_have_been_taken_exactly_once() {
    let span = |start, end| Span { start, end };
    let returned = vec![span(4, 6), span(9, 10)];
    let cursor = DataCursor { epoch: 1, position: 20, returned, ..DataCursor::default() };
    let validate = |epoch, parts: &[&[Span]]| {
        let parts = parts.iter().map(|part| part.to_vec()).collect();
        let resume = Resume { batch: Some(BatchParts { epoch, parts }), ..Resume::at(StepNumber(3)) };
        View { cursor: cursor.clone(), ..resumed(&[1, 2], resume) }.validate()
    };
    assert_eq!(validate(1, &[&[span(6, 9), span(0, 4)], &[span(10, 20)]]), Ok(()));
    assert_eq!(validate(1, &[&[], &[]]), Ok(()));
    for parts in [
        // A member without a part, and a part without a member.
        &[&[][..]][..],
        &[&[], &[], &[]],
        // Twice, beyond what was taken, and given back as well.
        &[&[span(0, 3)], &[span(2, 4)]],
        &[&[span(10, 21)], &[]],
        &[&[span(5, 7)], &[]],
        &[&[span(7, 7)], &[]],
    ] {
        assert_eq!(validate(1, parts), Err(InvalidView::Lists), "{parts:?}");
    }
    assert_eq!(validate(2, &[&[span(0, 4)], &[]]), Err(InvalidView::Lists), "of another epoch");
}

#[test]
fn a_record_fits_the_samples_and_chunks_of_its_run() {
    let donor = Donor { first: 2, end: 8, rank: Rank(0) };
    let forward = Some(RollForward { stats: SampleStats::default(), donors: vec![donor] });
    let record = View {
        cursor: DataCursor { position: 100, ..DataCursor::default() },
        moves: Moves { list: vec![Move { chunk: 7, from: vec![Rank(0)] }], rate: 1, restarted: vec![5] },
        ..resumed(&[1, 2], Resume { forward, ..Resume::at(StepNumber(3)) })
    };
    assert_eq!(record.validate(), Ok(()));
    assert!(record.fits(100, 8) && !record.fits(99, 8) && !record.fits(100, 7));
    let moved = View { recovery: Recovery::Initialize, ..record.clone() };
    assert!(moved.fits(100, 8) && !moved.fits(100, 7));
    let restarted = View { moves: Moves { list: vec![], ..moved.moves.clone() }, ..moved };
    assert!(restarted.fits(100, 6) && !restarted.fits(100, 5));
    assert!(view(&[1]).fits(1, 1));
}

/// A change that nothing follows from.
fn no_change(parent: ViewDigest) -> ViewChange {
    ViewChange {
        parent,
        removed: vec![],
        added: vec![],
        capacities: vec![],
        speeds: vec![],
        lines: vec![],
        resume: Resume::at(StepNumber(9)),
        cursor: DataCursor::default(),
        moves: Moves::default(),
        expelled: vec![],
        quarantined: vec![],
        ancestors: vec![],
    }
}

/// A change of `base` that only quarantines.
fn quarantining(base: &View, quarantined: Vec<Quarantine>) -> ViewChange {
    ViewChange { quarantined, ..no_change(base.digest()) }
}

#[test]
fn a_change_is_bounded_before_it_is_applied() {
    let change = no_change(ViewDigest([0; 32]));
    assert!(change.is_bounded());
    let ranks = |count: usize| vec![Rank(0); count];
    let spans = |count: usize| vec![vec![Span { start: 0, end: 1 }; count]];
    let batch = |parts| Resume { batch: Some(BatchParts { epoch: 0, parts }), ..change.resume.clone() };
    let moved = |holders| Move { chunk: 0, from: ranks(holders) };
    let moves = |list, restarted| Moves { list, rate: 1, restarted };
    let wordy = Member { addresses: vec![String::new(); ADDRESSES_MAX + 1], ..member(1) };
    let forward = RollForward {
        stats: SampleStats::default(),
        donors: vec![Donor { first: 0, end: 1, rank: Rank(0) }; CHUNKS_MAX + 1],
    };
    for odd in [
        ViewChange { removed: ranks(MEMBERS_MAX + 1), ..change.clone() },
        ViewChange { added: vec![member(1); MEMBERS_MAX + 1], ..change.clone() },
        ViewChange { added: vec![wordy], ..change.clone() },
        ViewChange { capacities: vec![(Rank(0), 1); MEMBERS_MAX + 1], ..change.clone() },
        ViewChange {
            resume: Resume { newcomers: ranks(MEMBERS_MAX + 1), ..change.resume.clone() },
            ..change.clone()
        },
        ViewChange { resume: batch(vec![vec![]; MEMBERS_MAX + 1]), ..change.clone() },
        ViewChange { resume: batch(spans(BATCH_SPANS_MAX + 1)), ..change.clone() },
        ViewChange { resume: Resume { forward: Some(forward), ..change.resume.clone() }, ..change.clone() },
        ViewChange { cursor: DataCursor { epoch: u64::MAX, ..DataCursor::default() }, ..change.clone() },
        ViewChange { moves: moves(vec![moved(1); CHUNKS_MAX + 1], vec![]), ..change.clone() },
        ViewChange { moves: moves(vec![moved(REPLICAS_MAX + 1)], vec![]), ..change.clone() },
        ViewChange { moves: moves(vec![], vec![0; CHUNKS_MAX + 1]), ..change.clone() },
        ViewChange { expelled: vec![expulsion(9); EXPELLED_MAX + 1], ..change.clone() },
        ViewChange { quarantined: vec![quarantine(3, 2, false); QUARANTINES_MAX + 1], ..change.clone() },
    ] {
        assert!(!odd.is_bounded(), "{odd:?}");
    }
}

#[test]
fn a_change_makes_the_next_view() {
    let base = view(&[1, 3, 5]);
    let digest = base.digest();
    let change = ViewChange {
        removed: vec![Rank(1)],
        added: vec![Member { incarnation: Incarnation(2), ..member(3) }, member(4)],
        capacities: vec![(Rank(2), 7)],
        cursor: DataCursor { position: 5, ..DataCursor::default() },
        expelled: vec![expulsion(7)],
        ..no_change(digest)
    };
    let next = base.apply(digest, &change).unwrap();
    let members: Vec<_> = next.members.iter().map(|m| (m.peer.0[0], m.incarnation.0, m.capacity)).collect();
    assert_eq!(members, [(1, 1, 1), (3, 2, 1), (4, 1, 1), (5, 1, 7)]);
    assert_eq!(
        (next.number, &next.parents, next.first_step()),
        (ViewNumber(2), &vec![digest], StepNumber(9))
    );
    let other = ViewChange { parent: ViewDigest([0; 32]), ..change.clone() };
    assert_eq!(base.apply(digest, &other), Err(InvalidView::Parent));
    let outside = ViewChange { removed: vec![Rank(3)], ..change.clone() };
    assert_eq!(base.apply(digest, &outside), Err(InvalidView::Parent));
    let twice = ViewChange { added: vec![member(1)], ..change };
    assert_eq!(base.apply(digest, &twice), Err(InvalidView::MemberOrder));
}

fn quarantine(peer: u8, other: u8, is_certain: bool) -> Quarantine {
    let (peer, other) = (PeerId([peer; 32]), PeerId([other; 32]));
    Quarantine { peer, other, fault: MemberFault::Frames, is_certain }
}

#[test]
fn a_view_remembers_who_was_quarantined_and_with_whom() {
    let base = view(&[1, 2, 3]);
    let first = base.apply(base.digest(), &quarantining(&base, vec![quarantine(3, 2, false)])).unwrap();
    let change = quarantining(&first, vec![quarantine(2, 1, true)]);
    let second = first.apply(first.digest(), &change).unwrap();
    assert_eq!(second.quarantined_since(&base), [quarantine(3, 2, false), quarantine(2, 1, true)]);
    assert_eq!(second.quarantined_since(&first), [quarantine(2, 1, true)]);
    assert_eq!(second.quarantined_since(&second), []);
    assert_eq!([1, 2, 3].map(|peer| second.suspicion(&PeerId([peer; 32]))), [0, 3, 1]);
    let other = View { quarantined: vec![quarantine(1, 3, true)], ..view(&[1, 2, 3]) };
    assert_eq!(second.quarantined_since(&other), [], "another branch");
}

#[test]
fn the_third_quarantine_is_the_last_one_unless_one_member_was_behind_all() {
    let is_last = |all: &[(u8, bool)]| {
        let mut all = all.iter().map(|(other, is_certain)| quarantine(3, *other, *is_certain));
        let next = all.next_back().expect("one or more");
        View { quarantined: all.collect(), ..view(&[1, 2, 3]) }.is_last_quarantine(&next)
    };
    assert!(is_last(&[(2, false), (2, false), (1, false)]) && is_last(&[(2, true), (2, false), (2, false)]));
    assert!(!is_last(&[(2, true), (1, true)]) && !is_last(&[(2, false); 5]));
    let others = View { quarantined: vec![quarantine(3, 1, true); 2], ..view(&[1, 2, 3]) };
    assert!(!others.is_last_quarantine(&quarantine(2, 3, true)), "another peer");
    let parameters = Quarantine { fault: MemberFault::Parameters, ..quarantine(3, 1, true) };
    let before = View { quarantined: vec![parameters; 2], ..view(&[1, 2, 3]) };
    assert!(!before.is_last_quarantine(&parameters) && !before.is_last_quarantine(&quarantine(3, 1, true)));
}

#[test]
fn a_view_forgets_the_oldest_quarantines() {
    let all: Vec<Quarantine> =
        (0..QUARANTINES_MAX as u8).map(|peer| quarantine(100 + peer, 1, true)).collect();
    let base = View { quarantined: all, ..view(&[1, 2, 3]) };
    let change = quarantining(&base, vec![quarantine(3, 2, false)]);
    let next = base.apply(base.digest(), &change).unwrap();
    assert_eq!(next.quarantined.len(), QUARANTINES_MAX);
    assert_eq!(next.suspicion(&PeerId([100; 32])), 0);
    assert_eq!(next.quarantined_since(&base), [quarantine(3, 2, false)]);
    let many = View { quarantined: vec![quarantine(3, 2, false); QUARANTINES_MAX + 1], ..view(&[1]) };
    assert_eq!(many.validate(), Err(InvalidView::Quarantine));
}

#[test]
fn an_expelled_peer_is_remembered_and_is_no_member() {
    let base = View { expelled: (100..164).map(expulsion).collect(), ..view(&[1, 3]) };
    assert_eq!(base.validate(), Ok(()));
    assert_eq!(base.expulsion(&PeerId([100; 32])), Some(&expulsion(100)));
    let put_out = |peer, removed| {
        let parent = base.digest();
        base.apply(parent, &ViewChange { removed, expelled: vec![expulsion(peer)], ..no_change(parent) })
    };
    let next = put_out(3, vec![Rank(1)]).unwrap();
    assert_eq!(next.expelled.len(), EXPELLED_MAX);
    assert_eq!(next.expulsion(&PeerId([3; 32])), Some(&expulsion(3)));
    assert_eq!(next.expulsion(&PeerId([100; 32])), None, "the oldest is forgotten");
    assert_eq!(put_out(3, vec![]), Err(InvalidView::Expelled), "it is in");
    let many = View { expelled: vec![expulsion(9); EXPELLED_MAX + 1], ..view(&[1]) };
    assert_eq!(many.validate(), Err(InvalidView::Expelled));
}

#[test]
fn a_view_names_its_ancestors_and_two_views_find_their_fork_point() {
    let ancestor = |byte, trained| Ancestor { view: ViewDigest([byte; 32]), trained };
    let base = descending_from((0..ANCESTORS_MAX as u8).map(|byte| ancestor(byte, 5)).collect());
    let parent = base.digest();
    let change = |resume, ancestors| ViewChange { resume, ancestors, ..no_change(parent) };
    let (cursor, history) = (DataCursor::default(), vec![ancestor(2, 5), ancestor(70, 9), ancestor(90, 70)]);
    let (ours, theirs) = (30, 10);
    let merge = Merge { view: ViewDigest([90; 32]), steps: StepNumber(7), ours, theirs, cursor, history };
    let resume = Resume { merge: Some(Box::new(merge.clone())), ..Resume::at(StepNumber(9)) };
    let next = base.apply(parent, &change(resume.clone(), vec![ancestor(80, 64)])).unwrap();
    assert_eq!((&next.parents, next.merge()), (&vec![parent, merge.view], Some(&merge)));
    assert_eq!((next.history.ancestors.len(), merge.share()), (ANCESTORS_MAX, 0.25));
    assert!(next.descends_from(parent) && !next.descends_from(merge.view), "its first step is to come");
    // Given up with the first step, or behind with it.
    let after = |step| {
        let (parent, resume) = (next.digest(), Resume::at(StepNumber(step)));
        next.apply(parent, &ViewChange { parent, ..change(resume, vec![ancestor(95, 80)]) }).unwrap()
    };
    let (dropped, merged) = (after(9), after(10));
    assert!(!dropped.descends_from(merge.view) && merged.descends_from(merge.view));
    // Of the older ones, both branches leave out the same.
    let names = |view: &View, byte| view.descends_from(ViewDigest([byte; 32]));
    let kept = |view: &View| (0..64).filter(|byte| names(view, *byte)).collect::<Vec<u8>>();
    assert!(kept(&dropped).starts_with(&kept(&merged)[..29]) && names(&merged, 70) && names(&merged, 2));
    let next = merged;
    // Of a history that goes on from the same view later, only what came before counts.
    assert_eq!(
        fork_point(&next.history.ancestors, &[ancestor(90, 75), ancestor(80, 60), ancestor(75, 90)]),
        Some(70)
    );
    assert_eq!(fork_point(&next.history.ancestors, &[ancestor(75, 90)]), None);
    for odd in [Merge { ours: 0, theirs: 0, ..merge.clone() }, Merge { ours: u64::MAX, ..merge }] {
        let resume = Resume { merge: Some(Box::new(odd)), ..resume.clone() };
        assert_eq!(base.apply(parent, &change(resume, vec![])), Err(InvalidView::Lists));
    }
    let parts = vec![vec![Span { start: 0, end: 1 }], vec![]];
    let trains = Resume { batch: Some(BatchParts { epoch: 0, parts }), ..resume };
    assert!(base.apply(parent, &change(trains, vec![])).is_err(), "its first step trains nothing");
    assert!(!change(Resume::at(StepNumber(9)), vec![ancestor(1, 1); ANCESTORS_MAX + 1]).is_bounded());
}

#[test]
fn a_restarted_view_does_not_descend_from_later_merges() {
    let ancestor = |byte, trained| Ancestor { view: ViewDigest([byte; 32]), trained };
    // One that was merged early, and after the view that was gone back to one that had trained little.
    let ancestors = vec![ancestor(1, 20), ancestor(2, 10), ancestor(3, 60), ancestor(4, 30), ancestor(5, 80)];
    let base = descending_from(ancestors);
    let parent = base.digest();
    let after = |is_restored| {
        let resume = Resume { is_restored, ..Resume::at(StepNumber(4)) };
        let ancestors = vec![Ancestor { view: parent, trained: 40 }];
        ViewChange { resume, ancestors, ..no_change(parent) }
    };
    let last = Ancestor { view: parent, trained: 40 };
    assert_eq!(base.ancestors_after(&after(true)), [ancestor(1, 20), ancestor(2, 10), ancestor(3, 40), last]);
    assert_eq!(base.ancestors_after(&after(false)).len(), 6);
}

#[test]
fn a_view_names_partitioned_members_until_they_are_back() {
    let base = view(&[1, 3, 5]);
    let names =
        |view: &View| view.history.partitioned.iter().map(|contact| contact.peer.0[0]).collect::<Vec<_>>();
    let ancestor = Ancestor { view: base.digest(), trained: 7 };
    let change = |view: &View, removed: Vec<Rank>, added: Vec<Member>, ancestors: Vec<Ancestor>| {
        let parts = vec![vec![]; view.members.len() + added.len() - removed.len()];
        let batch = Some(BatchParts { epoch: 0, parts });
        let (parent, resume) = (view.digest(), Resume { batch, ..Resume::at(StepNumber(9)) });
        let change = ViewChange { removed, added, resume, ancestors, ..no_change(parent) };
        view.apply(parent, &change).unwrap()
    };
    let lost = change(&base, vec![Rank(1), Rank(2)], vec![], vec![ancestor]);
    assert_eq!(names(&lost), [3, 5]);
    let back = change(&lost, vec![], vec![member(5)], vec![ancestor]);
    assert_eq!(names(&back), [3]);
    // There is only one lineage where none is named.
    assert!(names(&change(&base, vec![Rank(1)], vec![], vec![])).is_empty());
}

#[test]
fn a_branch_starts_where_training_restarts_from_checkpoints() {
    let base = view(&[1, 3]);
    let follow = |view: &View, resume| {
        let parent = view.digest();
        view.apply(parent, &ViewChange { resume, ..no_change(parent) })
    };
    let restored = |step| Resume { is_restored: true, ..Resume::at(StepNumber(step)) };
    let next = follow(&base, Resume::at(StepNumber(9))).unwrap();
    assert_eq!(next.history.branch, Branch { view_number: ViewNumber(1), step: StepNumber(0), fork: None });
    let back = follow(&next, restored(4)).unwrap();
    let branch = Branch { view_number: ViewNumber(3), step: StepNumber(4), fork: None };
    assert_eq!(back.history.branch, branch);
    assert_eq!(follow(&back, Resume::at(StepNumber(7))).unwrap().history.branch, branch);
    // Of what each branch has come to, nothing counts beyond the beginning of a later one.
    let again = follow(&back, restored(6)).unwrap();
    let is_behind = |branch, steps| again.history.descends_from_state(branch, StepNumber(steps));
    assert!(is_behind(again.history.branch, 99) && is_behind(branch, 6) && is_behind(next.history.branch, 4));
    assert!(!is_behind(branch, 7) && !is_behind(next.history.branch, 5));
    assert!(!is_behind(Branch { fork: Some(1), ..branch }, 4), "of another lineage");
    let interrupted =
        Resume { batch: Some(BatchParts { epoch: 0, parts: vec![vec![], vec![]] }), ..restored(4) };
    assert_eq!(follow(&next, interrupted), Err(InvalidView::Lists));
    for branch in [Branch { view_number: ViewNumber(2), ..branch }, Branch { step: StepNumber(5), ..branch }]
    {
        assert_eq!(View { history: on(branch), ..back.clone() }.validate(), Err(InvalidView::Branch));
    }
    let early = Branch { view_number: ViewNumber(4), step: StepNumber(0), fork: None };
    assert_eq!(View { history: on(early), ..next }.validate(), Err(InvalidView::Number));
    let alone = View::first_from_checkpoint(base.run, member(1), StepNumber(7), DataCursor::default());
    assert_eq!((alone.validate(), alone.first_step()), (Ok(()), StepNumber(7)));
}

#[test]
fn a_few_moves_happen_each_step() {
    let list = (0..5).map(|chunk| Move { chunk, from: vec![Rank(0)] }).collect();
    let moves = Moves { list, rate: 2, restarted: vec![] };
    assert_eq!([0, 1, 2, 3, u64::MAX].map(|steps| moves.moved(steps)), [0, 2, 4, 5, 5]);
}
