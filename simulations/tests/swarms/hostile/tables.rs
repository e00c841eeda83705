//! A member that sends table messages that no correct member sends: each is rejected, counted and attributed to it, and nothing is lost.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

use peergrad_core::io::{Event, Reject};
use peergrad_core::program::context::{Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{ReadPolicy, Table, TableError, TableSpec};
use peergrad_protocol::limits::{TABLE_MESSAGE_BYTES_MAX, WAITING_REQUESTS_MAX};
use peergrad_protocol::message::{SampleStats, TrainingMessage};
use peergrad_protocol::table::{
    Map, Operation, Reduce, Request, Response, RowSet, Rows, TableChange, TableMessage, WorkerClock,
};
use peergrad_protocol::view::View;
use peergrad_protocol::wire::{decode_table_message, encode_table_message};
use peergrad_protocol::{Buffer, ViewDigest};

use super::{Alone, OTHER};

/// Rows of the table: four chunks.
const ROWS: u64 = 64;

/// Adds 1 to the first row in each clock, and stores the final value of that row.
struct Counting {
    end: Arc<Mutex<Option<f32>>>,
}

impl Program for Counting {
    const NAME: &'static str = "counting";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        let row = RowSet::range(0..1);
        if clock.is_over {
            clock.finish();
            let values = clock.get(row).expect("there is such a row").await?;
            *self.end.lock().expect("nobody panics with it") = Some(values[0]);
            return Ok(Break(()));
        }
        clock.get(row.clone()).expect("there is such a row").await?;
        let samples = clock.samples.len() as u64;
        let added = if samples > 0 { 1.0 } else { 0.0 };
        clock.add(Rows { indices: row, values: vec![added] }).expect("a finite row");
        drop(clock.commit(SampleStats { samples, loss: 0.0 }));
        Ok(Continue(()))
    }
}

/// A founder that counts, and [`OTHER`], which is a worker too and owns nothing.
struct Founded {
    founder: Alone,
    view: View,
    end: Arc<Mutex<Option<f32>>>,
}

impl Founded {
    fn new() -> Self {
        let end = Arc::<Mutex<Option<f32>>>::default();
        let kept = Arc::clone(&end);
        let table_spec = TableSpec::new(vec![Table::additive("counts", ROWS, 1)], ReadPolicy::Staleness(0));
        let launch = ProgramFactory::with_tables(
            move |_| table_spec.clone(),
            move |_| Counting { end: Arc::clone(&kept) },
        );
        let (founder, view) = Alone::founder_of_capacity(1, launch);
        Self { founder, view, end }
    }

    fn hear_bytes(&mut self, view: ViewDigest, bytes: &[u8]) {
        for piece in bytes.chunks(400) {
            self.founder.hear(OTHER, &TrainingMessage::Tables.in_view(view), Some(Buffer::from_bytes(piece)));
        }
    }

    fn hear(&mut self, request: Request) {
        let mut bytes = Vec::new();
        encode_table_message(&TableMessage::Request(request), &mut bytes);
        self.hear_bytes(self.view.digest(), &bytes);
    }

    /// What the founder has sent to [`OTHER`] since the last call, if each message came in one piece.
    fn responses(&mut self) -> Vec<Response> {
        let mut responses = Vec::new();
        let bytes: Vec<u8> = std::mem::take(&mut self.founder.words);
        let mut rest = &bytes[..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (message, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            if let TableMessage::Response(one) = decode_table_message(message).expect("a node says words") {
                responses.push(one);
            }
            rest = after;
        }
        responses
    }
}

fn change(sequence: u64, chunk: u32, operation: Operation) -> Request {
    Request::Change(TableChange { sequence, chunk, key: None, operation })
}

fn add(sequence: u64, rows: &[u64], values: &[f32]) -> Request {
    let indices: RowSet = rows.iter().copied().collect();
    let chunk = rows[0] as u32 / 16;
    change(sequence, chunk, Operation::Add { clock: 0, rows: Rows { indices, values: values.to_vec() } })
}

#[test]
fn each_invalid_request_is_refused_with_its_reason_and_loses_nothing() {
    let mut table = Founded::new();
    table.hear(Request::Tick { clock: WorkerClock::At(0) });
    table.hear(add(1, &[0], &[100.0]));
    assert_eq!(table.responses(), [Response::Acknowledged { up_to: 1 }]);

    let get = |rows: &[u64]| Request::Get {
        request: 1,
        min_clock: WorkerClock::At(0),
        rows: rows.iter().copied().collect(),
    };
    let wrong = [
        (add(2, &[0, 17], &[1.0, 1.0]), "row 17 is not in chunk 0"),
        (get(&[3, 70]), "there is no row 70"),
        (add(2, &[64], &[1.0]), "there is no chunk 4"),
        (add(2, &[0], &[f32::NAN]), "a value that is not finite, for row 0"),
        (add(2, &[0, 1], &[1.0, f32::INFINITY]), "a value that is not finite, for row 1"),
        (add(2, &[0, 1], &[1.0]), "1 numbers for 2"),
        (add(2, &[0], &[1.0, 1.0]), "2 numbers for 1"),
        (change(2, 0, Operation::Map(Map::scale(f32::NAN, 0))), "a factor"),
        (change(2, 0, Operation::Map(Map::axpy(1.0, 0, 1))), "there is no vector 1: the table has 1"),
        (change(2, 1, Operation::Complete { last_lease: 1 }), "leases that are completed with chunk 1"),
        (
            Request::Reduce {
                request: 1,
                min_clock: WorkerClock::At(0),
                chunk: 0,
                reduce: Reduce::Dot(0, 7),
            },
            "there is no vector 7: the table has 1",
        ),
    ];
    let count = wrong.len();
    for (asked, words) in wrong {
        table.hear(asked);
        let last = table.founder.rejects().last().expect("it is refused").to_string();
        assert!(last.starts_with("about a table: ") && last.contains(words), "{last}, not {words}");
    }
    table.hear(Request::Tick { clock: WorkerClock::At(1) });
    table.hear(Request::Tick { clock: WorkerClock::At(0) });
    assert_eq!(
        table.founder.rejects().last(),
        Some(&Reject::Table(TableError::ClockBackwards {
            sent: WorkerClock::At(0),
            known: WorkerClock::At(1)
        }))
    );
    assert_eq!(table.founder.rejects().len(), count + 1, "each is counted once");

    // Messages of an earlier view, or of an unknown one, are no offence, and change nothing.
    let mut bytes = Vec::new();
    encode_table_message(&TableMessage::Request(add(2, &[0], &[1000.0])), &mut bytes);
    table.hear_bytes(ViewDigest([9; 32]), &bytes);
    assert_eq!(table.founder.rejects().len(), count + 1);

    // Its correct messages still count, each once, and the run finishes with exact sums.
    table.hear(add(2, &[0], &[100.0]));
    table.hear(add(2, &[0], &[100.0]));
    table.hear(Request::Tick { clock: WorkerClock::At(1_000_000) });
    let clocks = table.founder.events.iter().filter(|event| matches!(event, Event::Committed(_))).count();
    assert!(clocks > 100 && table.end.lock().unwrap().is_none(), "it waits for the other to finish");
    table.hear(Request::Tick { clock: WorkerClock::Ended });
    assert_eq!(*table.end.lock().unwrap(), Some(200.0 + clocks as f32));
    assert_eq!((table.founder.members(), table.founder.rejects().len()), (Some(2), count + 1));
}

#[test]
fn a_flood_of_requests_is_refused_and_other_requests_are_answered() {
    let mut table = Founded::new();
    table.hear(Request::Tick { clock: WorkerClock::At(0) });
    let get = |request, min_clock| Request::Get {
        request,
        min_clock: WorkerClock::At(min_clock),
        rows: RowSet::range(0..1),
    };
    for request in 0..WAITING_REQUESTS_MAX as u64 {
        table.hear(get(request, 1));
    }
    assert_eq!(table.founder.rejects(), []);
    table.hear(get(0, 1));
    assert_eq!(table.founder.rejects(), [Reject::Table(TableError::TooManyRequests(WAITING_REQUESTS_MAX))]);
    // Earlier requests are answered once their clock is reached, and then new ones are accepted.
    table.responses();
    table.hear(Request::Tick { clock: WorkerClock::At(1) });
    let answered =
        table.responses().iter().filter(|response| matches!(response, Response::Rows { .. })).count();
    assert_eq!(answered, WAITING_REQUESTS_MAX);
    table.hear(get(5, 1));
    assert!(matches!(table.responses()[..], [Response::Rows { request: 5, .. }]));
}

#[test]
fn malformed_messages_are_refused_and_their_sender_is_finally_removed() {
    let mut table = Founded::new();
    table.hear(Request::Tick { clock: WorkerClock::At(0) });
    let digest = table.view.digest();
    for length in [3, TABLE_MESSAGE_BYTES_MAX as u32 + 1] {
        table.hear_bytes(digest, &[&length.to_le_bytes()[..], &[0xff; 3]].concat());
        assert_eq!(table.founder.rejects().last(), Some(&Reject::MalformedTableMessage));
    }
    for _ in 0..peergrad_protocol::limits::REJECTS_MAX {
        table.hear_bytes(digest, &u32::MAX.to_le_bytes());
    }
    assert_eq!(table.founder.members(), Some(1), "the other is put out, and nobody waits for it");
    let clocks = table.founder.events.iter().filter(|event| matches!(event, Event::Committed(_))).count();
    assert_eq!(*table.end.lock().unwrap(), Some(clocks as f32));
}
