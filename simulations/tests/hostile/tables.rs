//! A member that says about tables what no correct one says: each word of it is refused, counted and named, and nothing is lost by it.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

use peergrad::io::{Event, Reject};
use peergrad::peer::{Interrupted, Peer};
use peergrad::program::{Flow, Launch, Program};
use peergrad::table::client::Gate;
use peergrad::table::{Shared, Table, TableError};
use peergrad_protocol::limits::{QUESTIONS_MAX, WORD_BYTES_MAX};
use peergrad_protocol::message::{Message, Tally, Words};
use peergrad_protocol::table::{Asked, Map, Names, Reduce, Rows, Told, Word};
use peergrad_protocol::view::View;
use peergrad_protocol::wire::{decode_word, encode_word};
use peergrad_protocol::{Buffer, ViewDigest};

use super::{Alone, OTHER};

/// Rows of the table: four chunks.
const ROWS: u64 = 64;

/// Adds 1 to the first row in each of its clocks, and remembers what that row was in the end.
struct Counting {
    end: Arc<Mutex<Option<f32>>>,
}

impl Program for Counting {
    const NAME: &'static str = "counting";

    async fn round(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        let clock = peer.begin_clock().await?;
        let row = Names::range(0..1);
        if clock.is_over {
            clock.finish();
            let values = clock.get(row).expect("there is such a row").await?;
            *self.end.lock().expect("nobody panics with it") = Some(values[0]);
            return Ok(Break(()));
        }
        clock.get(row.clone()).expect("there is such a row").await?;
        let samples = clock.samples.len() as u64;
        let added = if samples > 0 { 1.0 } else { 0.0 };
        clock.add(Rows { names: row, values: vec![added] }).expect("a finite row");
        drop(clock.push());
        clock.end(Tally { samples, loss: 0.0 });
        Ok(Continue(()))
    }
}

/// A founder that counts, and [`OTHER`], which works too and owns nothing.
struct Founded {
    founder: Alone,
    view: View,
    end: Arc<Mutex<Option<f32>>>,
}

impl Founded {
    fn new() -> Self {
        let end = Arc::<Mutex<Option<f32>>>::default();
        let kept = Arc::clone(&end);
        let shared = Shared::new(vec![Table::of_sums("counts", ROWS, 1)], Gate::Staleness(0));
        let launch =
            Launch::with_tables(move |_| shared.clone(), move |_| Counting { end: Arc::clone(&kept) });
        let (founder, view) = Alone::founder_of_weight(1, launch);
        Self { founder, view, end }
    }

    fn hear_bytes(&mut self, view: ViewDigest, bytes: &[u8]) {
        for piece in bytes.chunks(400) {
            self.founder.hear(OTHER, &Message::Words(Words { view }), Some(Buffer::from_bytes(piece)));
        }
    }

    fn hear(&mut self, asked: Asked) {
        let mut bytes = Vec::new();
        encode_word(&Word::Asked(asked), &mut bytes);
        self.hear_bytes(self.view.digest(), &bytes);
    }

    /// What the founder has told [`OTHER`] since the last time, if it came in one piece each.
    fn told(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        let bytes: Vec<u8> = std::mem::take(&mut self.founder.words);
        let mut rest = &bytes[..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (word, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            if let Word::Told(one) = decode_word(word).expect("a node says words") {
                told.push(one);
            }
            rest = after;
        }
        told
    }
}

fn add(sequence: u64, rows: &[u64], values: &[f32]) -> Asked {
    let names: Names = rows.iter().copied().collect();
    let chunk = rows[0] as u32 / 16;
    Asked::Add { sequence, clock: 0, chunk, rows: Rows { names, values: values.to_vec() } }
}

#[test]
fn whatever_is_wrong_is_refused_by_name_and_nothing_is_lost() {
    let mut table = Founded::new();
    table.hear(Asked::Tick { clock: 0 });
    table.hear(add(1, &[0], &[100.0]));
    assert_eq!(table.told(), [Told::Added { up_to: 1 }]);

    let get =
        |rows: &[u64]| Asked::Get { request: 1, at_least: 0, chunk: 0, rows: rows.iter().copied().collect() };
    let wrong = [
        (add(2, &[0, 17], &[1.0, 1.0]), "row 17 is not in chunk 0"),
        (get(&[3, 70]), "row 70 is not in chunk 0"),
        (add(2, &[64], &[1.0]), "there is no chunk 4"),
        (add(2, &[0], &[f32::NAN]), "a value that is not finite, for row 0"),
        (add(2, &[0, 1], &[1.0, f32::INFINITY]), "a value that is not finite, for row 1"),
        (add(2, &[0, 1], &[1.0]), "1 numbers for 2"),
        (add(2, &[0], &[1.0, 1.0]), "2 numbers for 1"),
        (Asked::Map { sequence: 2, chunk: 0, map: Map::Scale { by: f32::NAN, column: 0 } }, "a factor"),
        (
            Asked::Map { sequence: 2, chunk: 0, map: Map::Axpy { by: 1.0, from: 0, to: 1 } },
            "there is no column 1: rows have 1",
        ),
        (
            Asked::Reduce { request: 1, at_least: 0, chunk: 0, reduce: Reduce::Dot(0, 7) },
            "there is no column 7: rows have 1",
        ),
    ];
    let count = wrong.len();
    for (asked, words) in wrong {
        table.hear(asked);
        let last = table.founder.rejects().last().expect("it is refused").to_string();
        assert!(last.starts_with("about a table: ") && last.contains(words), "{last}, not {words}");
    }
    table.hear(Asked::Tick { clock: 1 });
    table.hear(Asked::Tick { clock: 0 });
    assert_eq!(
        table.founder.rejects().last(),
        Some(&Reject::Table(TableError::Backwards { told: 0, known: 1 }))
    );
    assert_eq!(table.founder.rejects().len(), count + 1, "each is counted once");

    // Words of a view that is over, or of none, are nobody's fault, and change nothing.
    let mut bytes = Vec::new();
    encode_word(&Word::Asked(add(2, &[0], &[1000.0])), &mut bytes);
    table.hear_bytes(ViewDigest([9; 32]), &bytes);
    assert_eq!(table.founder.rejects().len(), count + 1);

    // What it sends rightly counts all the same, once, and the run comes to its end with exact sums.
    table.hear(add(2, &[0], &[100.0]));
    table.hear(add(2, &[0], &[100.0]));
    table.hear(Asked::Tick { clock: 1_000_000 });
    let clocks = table.founder.events.iter().filter(|event| matches!(event, Event::Committed(_))).count();
    assert!(clocks > 100 && table.end.lock().unwrap().is_none(), "it waits for the other to finish");
    table.hear(Asked::Tick { clock: peergrad_protocol::limits::STEPS_MAX });
    assert_eq!(*table.end.lock().unwrap(), Some(200.0 + clocks as f32));
    assert_eq!((table.founder.members(), table.founder.rejects().len()), (Some(2), count + 1));
}

#[test]
fn a_flood_of_questions_is_refused_and_others_are_answered() {
    let mut table = Founded::new();
    table.hear(Asked::Tick { clock: 0 });
    let get = |request, at_least| Asked::Get { request, at_least, chunk: 0, rows: Names::range(0..1) };
    for request in 0..QUESTIONS_MAX as u64 {
        table.hear(get(request, 1));
    }
    assert_eq!(table.founder.rejects(), []);
    table.hear(get(0, 1));
    assert_eq!(table.founder.rejects(), [Reject::Table(TableError::Flood(QUESTIONS_MAX))]);
    // Those before are answered when their time has come, and there is room again.
    table.told();
    table.hear(Asked::Tick { clock: 1 });
    let answered = table.told().iter().filter(|told| matches!(told, Told::Got { .. })).count();
    assert_eq!(answered, QUESTIONS_MAX);
    table.hear(get(5, 1));
    assert!(matches!(table.told()[..], [Told::Got { request: 5, .. }]));
}

#[test]
fn what_is_no_word_is_refused_and_its_sender_put_out_in_the_end() {
    let mut table = Founded::new();
    table.hear(Asked::Tick { clock: 0 });
    let digest = table.view.digest();
    for length in [3, WORD_BYTES_MAX as u32 + 1] {
        table.hear_bytes(digest, &[&length.to_le_bytes()[..], &[0xff; 3]].concat());
        assert_eq!(table.founder.rejects().last(), Some(&Reject::Word));
    }
    for _ in 0..peergrad_protocol::limits::REJECTS_MAX {
        table.hear_bytes(digest, &u32::MAX.to_le_bytes());
    }
    assert_eq!(table.founder.members(), Some(1), "the other is put out, and nobody waits for it");
    let clocks = table.founder.events.iter().filter(|event| matches!(event, Event::Committed(_))).count();
    assert_eq!(*table.end.lock().unwrap(), Some(clocks as f32));
}
