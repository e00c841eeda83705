//! What an owner and a copy say, word by word.

use peergrad_protocol::limits::{PENDING_CLOCKS_MAX, QUESTIONS_MAX, STALENESS_BY_CLOCK_MAX, STEPS_MAX};
use peergrad_protocol::table::{Names, Rows, State};
use peergrad_protocol::{Incarnation, PeerId};

use super::super::{Begins, Layout, Table, TableRule, When};
use super::*;
use crate::optimizer::{Rule, Schedule};

const ME: Rank = Rank(0);
const OTHER: Rank = Rank(1);

/// Two chunks of 16 rows of one number.
fn layout(rule: TableRule, when: When) -> Arc<Layout> {
    Arc::new(Layout::new(vec![Table {
        name: "weights",
        rows: 32,
        width: 1,
        rule,
        when,
        begins: Begins::AtZero,
    }]))
}

/// Two members that work; the first owns both chunks, and the other keeps copies.
fn keepers(layout: &Arc<Layout>) -> [Keeper; 2] {
    let who = |byte| Writer { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let places = Arc::new(Places {
        members: vec![who(1), who(2)],
        holders: vec![vec![ME, OTHER]; 2],
        current: vec![vec![ME, OTHER]; 2],
        epoch: 1,
        ..Places::default()
    });
    [ME, OTHER].map(|rank| {
        let mut store = Store::new(Arc::clone(layout));
        (0..2).for_each(|chunk| store.begin(chunk, &Rows::default()));
        let deck = Deck { passes: 1, samples: 5, ..Deck::default() };
        Keeper::enter(rank, Arc::clone(&places), deck, Carried::nothing(store), &mut Vec::new())
    })
}

/// The owner, whose copy has been told that there is nothing.
fn owner(rule: TableRule, when: When) -> Keeper {
    let [mut owner, _] = keepers(&layout(rule, when));
    owner.on_kept(OTHER, 1, &mut Vec::new());
    owner
}

fn names(names: &[u64]) -> Names {
    names.iter().copied().collect()
}

fn add(sequence: u64, clock: u64, rows: &[u64], values: &[f32]) -> Asked {
    let rows = Rows { names: names(rows), values: values.to_vec() };
    let chunk = rows.names.ends().map_or(0, |(first, _)| first as u32 / 16);
    Asked::Add { sequence, clock, chunk, rows }
}

fn get(request: u64, at_least: u64, row: u64) -> Asked {
    Asked::Get { request, at_least, chunk: row as u32 / 16, rows: names(&[row]) }
}

fn asked(keeper: &mut Keeper, from: Rank, asked: Asked) -> Outbox {
    let mut out = Vec::new();
    keeper.on_asked(from, asked, &mut out).unwrap();
    for rank in keeper.ready() {
        while keeper.answer_ready(rank, &mut out) {}
    }
    out
}

fn read(keeper: &Keeper, rows: &[u64]) -> Vec<f32> {
    let rows = names(rows);
    let (zero, values) = keeper.store().read(0, &rows);
    let mut values = values.into_iter();
    let is_zero = |row: u64| zero.iter().any(|name| name == row);
    rows.iter().map(|row| if is_zero(row) { 0.0 } else { values.next().unwrap() }).collect()
}

#[test]
fn what_no_correct_worker_sends_is_refused_and_changes_nothing() {
    let mut keeper = owner(TableRule::Sum, When::AtOnce);
    let mut out = Vec::new();
    asked(&mut keeper, OTHER, Asked::Tick { clock: 5 });
    let wrong = Rows { names: names(&[1, 2]), values: vec![1.0] };
    for (asked, error) in [
        (add(1, 0, &[32], &[1.0]), TableError::Chunk(2)),
        (Asked::Get { request: 1, at_least: 0, chunk: 2, rows: names(&[]) }, TableError::Chunk(2)),
        (add(1, 0, &[0, 16], &[1.0, 1.0]), TableError::Row(16, 0)),
        (add(1, 0, &[1, 2], &[1.0, f32::NAN]), TableError::NotFinite(2)),
        (
            Asked::Add { sequence: 1, clock: 0, chunk: 0, rows: wrong },
            TableError::Length { found: 1, expected: 2 },
        ),
        (Asked::Tick { clock: 4 }, TableError::Backwards { told: 4, known: 5 }),
    ] {
        assert_eq!(keeper.on_asked(OTHER, asked.clone(), &mut out), Err(error), "{asked:?}");
    }
    assert!(out.is_empty() && read(&keeper, &[0, 1, 2]) == [0.0; 3]);
    let [_, mut copy] = keepers(&layout(TableRule::Sum, When::AtOnce));
    assert_eq!(copy.on_asked(OTHER, add(1, 0, &[0], &[1.0]), &mut out), Err(TableError::NotOwned(0)));
    let states = |number, chunk, rows: Rows, updates| {
        let state = State { chunk, rows, updates, ..State::default() };
        States { number, states: vec![state] }
    };
    let rows = || Rows { names: names(&[3]), values: vec![1.0] };
    for (from, states, error) in [
        (ME, states(1, 2, rows(), vec![1]), TableError::Chunk(2)),
        (ME, states(1, 1, rows(), vec![1]), TableError::Row(3, 1)),
        (ME, states(1, 0, rows(), vec![]), TableError::Length { found: 0, expected: 1 }),
        (OTHER, states(1, 0, rows(), vec![1]), TableError::NotOwned(0)),
        (ME, states(0, 0, rows(), vec![1]), TableError::NotOwned(0)),
    ] {
        assert_eq!(copy.on_states(from, &states, &mut out), Err(error));
    }
    assert!(out.is_empty() && read(&copy, &[3]) == [0.0]);
}

#[test]
fn whoever_asks_more_than_anybody_needs_is_refused() {
    let mut keeper = owner(TableRule::Sum, When::AtOnce);
    let mut out = Vec::new();
    let questions = QUESTIONS_MAX as u64;
    assert!((0..questions).all(|request| keeper.on_asked(OTHER, get(request, 1, 0), &mut out).is_ok()));
    let flood = keeper.on_asked(OTHER, get(questions, 1, 0), &mut out);
    assert_eq!(flood, Err(TableError::Flood(QUESTIONS_MAX)));
    assert!(out.is_empty());
    // Nobody else suffers from it, and what was asked before is answered.
    assert!(keeper.on_asked(ME, get(1, 1, 0), &mut out).is_ok());
    for rank in [ME, OTHER] {
        asked(&mut keeper, rank, Asked::Tick { clock: 1 }).len();
    }
    assert!(keeper.on_asked(OTHER, get(questions, 2, 0), &mut out).is_ok());
}

#[test]
fn an_addition_is_acknowledged_once_its_copy_has_it_and_those_meanwhile_go_together() {
    let [mut owner, mut copy] = keepers(&layout(TableRule::Sum, When::AtOnce));
    owner.on_kept(OTHER, 1, &mut Vec::new());
    let mut sent = asked(&mut owner, OTHER, add(1, 0, &[0], &[1.0]));
    let Some((OTHER, Word::States(first))) = sent.pop() else { panic!("{sent:?}") };
    assert!(sent.is_empty(), "it is not safe yet");
    assert!(asked(&mut owner, OTHER, add(2, 0, &[0, 1], &[1.0, 5.0])).is_empty());
    assert!(asked(&mut owner, ME, add(1, 0, &[0], &[1.0])).is_empty());
    let again = asked(&mut owner, OTHER, add(2, 0, &[0, 1], &[1.0, 5.0]));
    assert!(again.is_empty(), "sent again, it is in already");
    let mut out = Vec::new();
    copy.on_states(ME, &first, &mut out).unwrap();
    assert_eq!((out.pop(), read(&copy, &[0])), (Some((ME, Word::Kept(2))), vec![1.0]));
    owner.on_kept(OTHER, 2, &mut out);
    let [(OTHER, Word::Told(Told::Added { up_to: 1 })), (OTHER, Word::States(second))] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((second.states.len(), &second.states[0].rows.values), (1, &vec![3.0, 5.0]));
    copy.on_states(ME, second, &mut Vec::new()).unwrap();
    assert_eq!(copy.store().state(0, None), owner.store().state(0, None));
}

#[test]
fn a_read_waits_for_its_clock_and_no_longer() {
    let mut keeper = owner(TableRule::Sum, When::AtOnce);
    assert!(asked(&mut keeper, ME, get(1, 2, 0)).is_empty());
    assert!(asked(&mut keeper, ME, Asked::Tick { clock: 3 }).is_empty(), "the other has not said");
    assert!(asked(&mut keeper, OTHER, Asked::Tick { clock: 1 }).is_empty());
    let sent = asked(&mut keeper, OTHER, Asked::Tick { clock: 2 });
    let got = Told::Got { request: 1, clock: 2, applied: 0, zero: names(&[0]), values: vec![] };
    assert_eq!(sent, [(ME, Word::Told(got))]);
}

#[test]
fn whoever_is_new_holds_nobody_up_and_is_not_behind_once_it_has_a_clock() {
    let mut keeper = owner(TableRule::Sum, When::AtOnce);
    asked(&mut keeper, ME, Asked::Tick { clock: 7 });
    assert_eq!(keeper.clock(), None);
    asked(&mut keeper, OTHER, Asked::Enter);
    assert_eq!(keeper.clock(), Some(7));
    asked(&mut keeper, OTHER, Asked::Tick { clock: 5 });
    asked(&mut keeper, ME, Asked::Tick { clock: 9 });
    assert_eq!(keeper.clock(), Some(7));
    // It goes on from where it is.
    for (clock, least) in [(6, 7), (7, 7), (8, 8), (20, 9)] {
        asked(&mut keeper, OTHER, Asked::Tick { clock });
        assert_eq!(keeper.clock(), Some(least));
    }
}

#[test]
fn an_owner_s_rule_has_a_row_s_own_history() {
    let rule = Rule::Adagrad { epsilon: 0.0, weight_decay: 0.0 };
    let rule = TableRule::Stock { rule, schedule: Schedule::constant(0.5) };
    let mut keeper = owner(rule, When::AtOnce);
    asked(&mut keeper, OTHER, add(1, 0, &[0], &[3.0]));
    asked(&mut keeper, OTHER, add(2, 0, &[0, 1], &[4.0, 7.0]));
    // Sums of squares 9, then 25; and 49.
    assert_eq!(read(&keeper, &[0, 1]), [-0.5 - 0.5 * 4.0 / 5.0, -0.5]);
    // One that overflows is passed by.
    asked(&mut keeper, OTHER, add(3, 0, &[1], &[f32::MAX]));
    assert_eq!(read(&keeper, &[1]), [-0.5]);
}

/// What came in one clock is one gradient, and the copy has what is not applied yet.
#[test]
fn by_clock_a_rule_sees_what_all_have_added_in_one() {
    let rule = TableRule::Stock { rule: Rule::Prox { l1: 1.0, l2: 0.0 }, schedule: Schedule::constant(1.0) };
    let [mut owner, mut copy] = keepers(&layout(rule, When::ByClock));
    let mut out = Vec::new();
    let mut settle = |owner: &mut Keeper, copy: &mut Keeper| {
        let mut number = 1;
        while let Some(under_way) = owner.copies.get(&OTHER).and_then(Copy::under_way) {
            number = under_way;
            out.clear();
            owner.on_kept(OTHER, number, &mut out);
            for (_, word) in &out {
                if let Word::States(states) = word {
                    copy.on_states(ME, states, &mut Vec::new()).unwrap();
                }
            }
        }
        number
    };
    settle(&mut owner, &mut copy);
    let mut tell = |owner: &mut Keeper, from, word| {
        for (_, word) in asked(owner, from, word) {
            if let Word::States(states) = word {
                copy.on_states(ME, &states, &mut Vec::new()).unwrap();
            }
        }
        settle(owner, &mut copy);
        assert_eq!(copy.store().state(0, None), owner.store().state(0, None));
    };
    // Each of them alone is larger than what the rule takes off.
    tell(&mut owner, ME, add(1, 0, &[0], &[5.0]));
    tell(&mut owner, OTHER, add(1, 0, &[0], &[-4.5]));
    tell(&mut owner, OTHER, add(2, 1, &[0], &[-4.5]));
    tell(&mut owner, OTHER, Asked::Tick { clock: 1 });
    assert_eq!(read(&owner, &[0]), [0.0]);
    tell(&mut owner, ME, Asked::Tick { clock: 1 });
    assert_eq!(read(&owner, &[0]), [0.0], "0.5 is less than is taken off");
    for rank in [ME, OTHER] {
        tell(&mut owner, rank, Asked::Tick { clock: 2 });
    }
    assert_eq!(read(&owner, &[0]), [3.5]);
}

/// Ticks of others may come later than an addition that follows from them.
#[test]
fn what_is_added_far_ahead_waits_until_it_is_less_so() {
    let mut owner = owner(TableRule::Sum, When::ByClock);
    for rank in [ME, OTHER] {
        asked(&mut owner, rank, Asked::Tick { clock: 1 });
    }
    let far = 2 + STALENESS_BY_CLOCK_MAX;
    assert!(asked(&mut owner, OTHER, add(1, far, &[0], &[1.0])).is_empty());
    assert!(owner.store().state(0, None).pending.is_empty(), "it is not with the chunk");
    asked(&mut owner, OTHER, Asked::Tick { clock: far + 1 });
    assert!(owner.store().state(0, None).pending.is_empty());
    asked(&mut owner, ME, Asked::Tick { clock: 2 });
    assert_eq!(owner.store().state(0, None).pending.len(), 1);
    asked(&mut owner, ME, Asked::Tick { clock: far + 1 });
    assert_eq!(read(&owner, &[0]), [1.0]);
}

/// What comes before is not passed by what comes after it, for which there would be room: it would count as in already.
#[test]
fn additions_that_wait_stay_in_order() {
    let mut owner = owner(TableRule::Sum, When::ByClock);
    // Nobody has said where it is, and all clocks that a chunk has room for are taken.
    for (sequence, clock) in (1..).zip((1..PENDING_CLOCKS_MAX as u64).chain([40])) {
        asked(&mut owner, ME, add(sequence, clock, &[0], &[1.0]));
    }
    asked(&mut owner, OTHER, add(1, 39, &[1], &[1.0]));
    asked(&mut owner, OTHER, add(2, 40, &[1], &[10.0]));
    assert!(owner.store().state(0, None).pending.iter().all(|(_, rows)| rows.names == names(&[0])));
    for rank in [ME, OTHER] {
        asked(&mut owner, rank, Asked::Tick { clock: 41 });
    }
    assert_eq!(read(&owner, &[0, 1]), [PENDING_CLOCKS_MAX as f32, 11.0]);
}

/// A rule sees all of a clock at once, also what had no room to be kept with its chunk before.
#[test]
fn what_waited_is_applied_with_the_rest_of_its_clock() {
    let rule = TableRule::Stock { rule: Rule::Prox { l1: 1.0, l2: 0.0 }, schedule: Schedule::constant(1.0) };
    let mut owner = owner(rule, When::ByClock);
    for (sequence, clock) in (1..).zip(1..=PENDING_CLOCKS_MAX as u64) {
        let value = if clock == 1 { 5.0 } else { 0.0 };
        asked(&mut owner, ME, add(sequence, clock, &[0], &[value]));
    }
    // There is no room for the first of them, and the second waits for it.
    asked(&mut owner, OTHER, add(1, 0, &[1], &[3.0]));
    asked(&mut owner, OTHER, add(2, 1, &[0], &[-4.5]));
    for rank in [ME, OTHER] {
        asked(&mut owner, rank, Asked::Tick { clock: 2 });
    }
    assert_eq!(read(&owner, &[0, 1]), [0.0, -2.0], "0.5 is less than is taken off");
}

/// What was sent again while a chunk was to come is put in as far as there is room: its copies would refuse more.
#[test]
fn a_chunk_that_comes_takes_in_as_much_as_there_is_room_for() {
    let layout = layout(TableRule::Sum, When::ByClock);
    let [donor, _] = keepers(&layout);
    let who = |byte| Writer { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let places = Places {
        members: vec![who(1), who(2), who(3)],
        holders: vec![vec![OTHER, Rank(2)]; 2],
        current: vec![vec![ME]; 2],
        newcomers: BTreeSet::from([Rank(2)]),
        epoch: 2,
    };
    let (nothing, mut out) = (Carried::nothing(Store::new(layout)), Vec::new());
    let mut owner = Keeper::enter(OTHER, Arc::new(places), Deck::default(), nothing, &mut out);
    let clocks = PENDING_CLOCKS_MAX as u64 + 1;
    for clock in 0..clocks {
        assert!(asked(&mut owner, ME, add(clock + 1, clock, &[0], &[1.0])).is_empty());
    }
    let state = donor.store().state(0, None);
    owner.on_states(ME, &States { number: 0, states: vec![state] }, &mut out).unwrap();
    let states = |word: &(Rank, Word)| matches!(word, (Rank(2), Word::States(_)));
    assert!(out.iter().any(states) && out.iter().all(|(_, word)| word.is_valid()), "{out:?}");
    assert_eq!(owner.store().state(0, None).pending.len(), PENDING_CLOCKS_MAX);
    for rank in [ME, OTHER] {
        asked(&mut owner, rank, Asked::Tick { clock: clocks });
    }
    assert_eq!(read(&owner, &[0]), [clocks as f32]);
}

/// Those who had a clock are all gone: who is there begins after all that they have added.
#[test]
fn where_all_are_new_somebody_begins() {
    let mut owner = owner(TableRule::Sum, When::ByClock);
    asked(&mut owner, OTHER, add(1, 7, &[0], &[1.0]));
    asked(&mut owner, ME, Asked::Enter);
    assert_eq!(owner.clock(), None);
    asked(&mut owner, OTHER, Asked::Enter);
    assert_eq!((owner.clock(), read(&owner, &[0])), (Some(8), vec![1.0]));
    for (rank, clock, least) in [(ME, 8, 8), (OTHER, 3, 8), (ME, 9, 8), (OTHER, 9, 9)] {
        asked(&mut owner, rank, Asked::Tick { clock });
        assert_eq!(owner.clock(), Some(least));
    }
}

/// A worker that was refused an addition, for which there was no room, says it again in the next view: none after it counts before.
#[test]
fn what_there_is_no_room_for_is_not_acknowledged() {
    let mut owner = owner(TableRule::Sum, When::ByClock);
    for rank in [ME, OTHER] {
        asked(&mut owner, rank, Asked::Tick { clock: 1 });
    }
    asked(&mut owner, OTHER, add(1, 1, &[0], &[1.0]));
    owner.workers.get_mut(&OTHER).unwrap().waiting_bytes = WAITING_BYTES_MAX;
    let mut out = Vec::new();
    let hoard = Err(TableError::Hoard(WAITING_BYTES_MAX));
    assert_eq!(owner.on_asked(OTHER, add(2, 30, &[0], &[1.0]), &mut out), hoard);
    owner.workers.get_mut(&OTHER).unwrap().waiting_bytes = 0;
    assert_eq!(owner.on_asked(OTHER, add(3, 1, &[0], &[1.0]), &mut out), hoard);
    owner.on_kept(OTHER, 2, &mut out);
    assert!(out.contains(&(OTHER, Word::Told(Told::Added { up_to: 1 }))), "{out:?}");
    assert_eq!(owner.store().applied(0, &owner.places.who(OTHER)), 1);
}

#[test]
fn whoever_holds_samples_back_is_not_kept_waiting_for_itself() {
    for may_wait in [false, true] {
        let mut owner = owner(TableRule::Sum, When::AtOnce);
        let deal = |hand| Asked::Deal { hand, samples: 5, may_wait };
        asked(&mut owner, ME, deal(1));
        let none = asked(&mut owner, ME, deal(2));
        assert!(
            matches!(&none[..], [(ME, Word::Told(Told::Dealt { hand: 2, is_over: false, .. }))]),
            "{none:?}"
        );
        assert!(asked(&mut owner, OTHER, deal(1)).is_empty());
        let over = asked(&mut owner, ME, Asked::Done { hands: 1 });
        assert!(matches!(&over[..], [(OTHER, Word::Told(Told::Dealt { is_over: true, .. }))]), "{over:?}");
    }
}

/// Nobody is waited for who waits for samples; but once somebody has a clock, somebody may be.
#[test]
fn whoever_waits_for_samples_goes_on_once_others_may_wait_for_it() {
    let mut owner = owner(TableRule::Sum, When::AtOnce);
    let deal = |hand| Asked::Deal { hand, samples: 5, may_wait: false };
    asked(&mut owner, ME, deal(1));
    asked(&mut owner, OTHER, Asked::Tick { clock: 0 });
    assert!(asked(&mut owner, OTHER, deal(1)).is_empty());
    let none = asked(&mut owner, ME, Asked::Tick { clock: 0 });
    assert!(
        matches!(&none[..], [(OTHER, Word::Told(Told::Dealt { hand: 1, is_over: false, .. }))]),
        "{none:?}"
    );
}

/// What a worker that has ended does not compute is dealt to others.
#[test]
fn what_is_given_back_is_dealt_again() {
    let mut owner = owner(TableRule::Sum, When::AtOnce);
    let deal = |hand| Asked::Deal { hand, samples: 2, may_wait: true };
    (1..=3).for_each(|hand| drop(asked(&mut owner, ME, deal(hand))));
    asked(&mut owner, ME, Asked::Done { hands: 1 });
    assert!(asked(&mut owner, OTHER, deal(1)).is_empty());
    asked(&mut owner, ME, Asked::Back { hands: 2 });
    let dealt = owner.store.dealing().clone();
    let hands = |writer| {
        let held = dealt.held.iter().find(|held| held.writer == writer);
        held.map_or(0, |held| held.hands.len())
    };
    let [me, other] = [ME, OTHER].map(|rank| owner.places.who(rank));
    assert_eq!((hands(me), hands(other), dealt.returned.len()), (0, 1, 1));
    // It is dealt nothing more, whatever it had asked for before.
    asked(&mut owner, ME, deal(4));
    asked(&mut owner, OTHER, Asked::Back { hands: 1 });
    assert_eq!(owner.store.dealing().returned.len(), 2);
    assert!(owner.wants_hand.contains_key(&ME), "it is told once all is over");
}

/// Nobody waits for the clock of one that has ended; and its place is another one's.
#[test]
fn whoever_has_ended_keeps_nobody_from_waiting_for_samples() {
    let mut owner = owner(TableRule::Sum, When::AtOnce);
    owner.deck = Deck { passes: 1, samples: 8, warm_up: 4, wave: 0 };
    let deal = |hand, samples| Asked::Deal { hand, samples, may_wait: false };
    asked(&mut owner, OTHER, deal(1, 2));
    assert!(asked(&mut owner, ME, deal(1, 2)).is_empty(), "another one warms up");
    asked(&mut owner, OTHER, Asked::Back { hands: 1 });
    asked(&mut owner, OTHER, Asked::Tick { clock: STEPS_MAX });
    let held = |owner: &mut Keeper| {
        let me = owner.places.who(ME);
        owner.store.dealing().held.iter().find(|held| held.writer == me).map_or(0, |held| held.hands.len())
    };
    assert_eq!(held(&mut owner), 1);
    asked(&mut owner, ME, deal(2, 8));
    asked(&mut owner, ME, Asked::Done { hands: 2 });
    assert!(owner.wants_hand.is_empty());
}

#[test]
fn samples_are_dealt_once_the_copy_knows_who_has_them() {
    let [mut owner, mut copy] = keepers(&layout(TableRule::Sum, When::AtOnce));
    owner.on_kept(OTHER, 1, &mut Vec::new());
    let deal = |hand, may_wait| Asked::Deal { hand, samples: 3, may_wait };
    let sent = asked(&mut owner, OTHER, deal(1, false));
    let [(OTHER, Word::States(states))] = &sent[..] else { panic!("{sent:?}") };
    copy.on_states(ME, states, &mut Vec::new()).unwrap();
    assert_eq!(copy.store.dealing(), owner.store.dealing());
    let mut out = Vec::new();
    owner.on_kept(OTHER, 2, &mut out);
    let [(OTHER, Word::Told(Told::Dealt { hand: 1, dealt, is_over: false }))] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(dealt.len(), 3);
    asked(&mut owner, ME, deal(1, true));
    out.clear();
    owner.on_kept(OTHER, 3, &mut out);
    asked(&mut owner, ME, Asked::Done { hands: 1 });
    // The rest is dealt: one waits for what the other may have to give back, and the other, for whose clock others may wait, does not.
    asked(&mut owner, ME, Asked::Tick { clock: 0 });
    assert!(asked(&mut owner, ME, deal(2, true)).is_empty());
    let none = asked(&mut owner, OTHER, deal(2, false));
    assert!(matches!(&none[..], [(OTHER, Word::Told(Told::Dealt { is_over: false, .. }))]), "{none:?}");
    let over = asked(&mut owner, OTHER, Asked::Done { hands: 1 });
    let is_over =
        |word: &(Rank, Word)| matches!(word, (ME, Word::Told(Told::Dealt { hand: 2, is_over: true, .. })));
    assert!(over.iter().any(is_over), "{over:?}");
}
