//! What a worker asks of owners again, word by word.

use peergrad_protocol::table::{Reduce, Writer};
use peergrad_protocol::{Incarnation, PeerId};

use super::*;
use crate::table::Table;

const ME: Rank = Rank(0);
const OTHER: Rank = Rank(1);

/// A worker of two members, each of whom owns a chunk.
fn client() -> Client {
    let layout = Arc::new(Layout::new(vec![Table::of_sums("counts", 32, 2)]));
    assert_eq!(layout.chunk_count(), 2);
    let mut client = Client::new(layout, Gates::of(Gate::None), false);
    let who = |byte| Writer { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let holders = vec![vec![ME, OTHER], vec![OTHER, ME]];
    let places =
        Places { members: vec![who(1), who(2)], current: holders.clone(), holders, ..Places::default() };
    client.enter(Arc::new(places), &mut Vec::new());
    client
}

/// The questions among these words: of which chunk, and under which number.
fn questions(out: &Outbox) -> Vec<(u32, u64)> {
    let question = |word: &(Rank, Word)| match &word.1 {
        Word::Asked(Asked::Reduce { request, chunk, .. } | Asked::Get { request, chunk, .. }) => {
            Some((*chunk, *request))
        }
        _ => None,
    };
    out.iter().filter_map(question).collect()
}

/// Of columns that are changed while some owners have answered and others have not, all answers are from after that.
#[test]
fn what_columns_come_to_is_of_all_owners_before_a_change_or_of_all_after_it() {
    let mut client = client();
    let mut out = Vec::new();
    let requests = client.reduce(0..2, Reduce::Absolute(0), &mut out);
    let asked = questions(&out);
    assert_eq!(asked.len(), 2);
    let tell = |client: &mut Client, (chunk, request): (u32, u64), applied, value| {
        let mut out = Vec::new();
        let owner = if chunk % 2 == 0 { ME } else { OTHER };
        client.on_told(owner, Told::Reduced { request, clock: 0, applied, value }, &mut out).unwrap();
        questions(&out)
    };
    assert_eq!(tell(&mut client, asked[0], 0, 1.0), []);
    out.clear();
    client.map(0..2, Map::Scale { by: 2.0, column: 0 }, &mut out);
    assert_eq!(questions(&out), [asked[0]], "the one that was answered");
    assert_eq!(tell(&mut client, asked[1], 0, 1.0), [asked[1]], "it is from before");
    for (question, applied) in asked.iter().zip(1..) {
        assert!(!client.has(&requests));
        assert_eq!(tell(&mut client, *question, applied, 2.0), []);
    }
    assert!(client.has(&requests));
    assert_eq!(client.take_number(&requests), 4.0);
}

/// One that comes when all others have ended is nowhere near the end: rows become stale for it as for anybody.
#[test]
fn where_all_others_have_ended_rows_become_stale() {
    let mut client = client();
    client.gates = Gates::of(Gate::Staleness(0));
    let row = Names::range(0..1);
    for clock in 0..3 {
        let mut out = Vec::new();
        let requests = client.fetch(&row, &mut out);
        let [(0, request)] = questions(&out)[..] else { panic!("clock {clock}: {out:?}") };
        let got = Told::Got { request, clock: STEPS_MAX, applied: 0, zero: row.clone(), values: vec![] };
        client.on_told(ME, got, &mut out).unwrap();
        assert!(client.has(&requests) && client.read(&row).is_some());
        client.catch_up(&mut out);
        assert_eq!(client.clock(), clock);
        client.tick(&mut out);
    }
}

/// Whoever deals has to know that there is room for another one.
#[test]
fn who_ends_says_so_to_the_dealer() {
    let mut client = client();
    let mut out = Vec::new();
    client.finish(&mut out);
    assert!(out.contains(&(ME, Word::Asked(Asked::Back { hands: 1 }))), "{out:?}");
    out.clear();
    client.enter(Arc::clone(&client.places), &mut out);
    assert!(out.contains(&(ME, Word::Asked(Asked::Back { hands: 1 }))), "in each view: {out:?}");
}
