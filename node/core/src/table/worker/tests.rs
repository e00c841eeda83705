//! Tests of the requests that a worker repeats, message by message.

use peergrad_protocol::cursor::Span;
use peergrad_protocol::table::{JournalMessage, Request, SampleLease, TableChange, TableMessage};
use peergrad_protocol::{Incarnation, PeerId};

use super::*;
use crate::table::Table;

const ME: Rank = Rank(0);
const OTHER: Rank = Rank(1);

/// The worker of a member, in a view of two members that own one chunk each.
fn worker(atomicity: Atomicity) -> TableWorker {
    let layout = Arc::new(TableLayout::new(vec![Table::additive("counts", 32, 2)]));
    assert_eq!(layout.chunk_count(), 2);
    let schedule = ReadSchedule::constant(ReadPolicy::Unbounded);
    let mut worker = TableWorker::new(layout, schedule, atomicity, WorkerStart::At(0));
    let who = |byte| WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let holders = vec![vec![ME, OTHER], vec![OTHER, ME]];
    let replica_map = ReplicaMap {
        members: vec![who(1), who(2)],
        up_to_date: holders.clone(),
        holders,
        ..ReplicaMap::default()
    };
    worker.enter(ME, Arc::new(replica_map), &mut Vec::new());
    worker.announce_clock(&mut Vec::new());
    worker
}

/// The reads among these messages: the chunk and the number of each.
fn queries(out: &Outbox) -> Vec<(u32, u64)> {
    let query = |message: &(Rank, TableMessage)| match &message.1 {
        TableMessage::Request(Request::Reduce { request, chunk, .. }) => Some((*chunk, *request)),
        TableMessage::Request(Request::Get { request, rows, .. }) => {
            Some((rows.bounds().map_or(0, |(first, _)| first as u32 / 16), *request))
        }
        _ => None,
    };
    out.iter().filter_map(query).collect()
}

/// If vectors are changed when only some owners have answered, all answers must be from after the change.
#[test]
fn a_reduction_is_from_all_owners_before_a_map_or_from_all_after_it() {
    let mut worker = worker(Atomicity::Chunk);
    let mut out = Vec::new();
    let requests = worker.reduce(0..2, &Reduce::L1Norm(0), &mut out);
    let asked = queries(&out);
    assert_eq!(asked.len(), 2);
    let tell = |worker: &mut TableWorker, (chunk, request): (u32, u64), applied, value| {
        let mut out = Vec::new();
        let owner = if chunk % 2 == 0 { ME } else { OTHER };
        worker
            .on_response(
                owner,
                Response::Reduced { request, clock: WorkerClock::At(0), applied, values: vec![value] },
                &mut out,
            )
            .unwrap();
        queries(&out)
    };
    assert_eq!(tell(&mut worker, asked[0], 0, 1.0), []);
    out.clear();
    worker.map(0..2, None, &Map::scale(2.0, 0), &mut out);
    assert_eq!(queries(&out), [asked[0]], "the one that was answered");
    assert_eq!(tell(&mut worker, asked[1], 0, 1.0), [asked[1]], "it is from before");
    for (query, applied) in asked.iter().zip(1..) {
        assert!(!worker.has_all(&requests));
        assert_eq!(tell(&mut worker, *query, applied, 2.0), []);
    }
    assert!(worker.has_all(&requests));
    assert_eq!(worker.reads_mut().take_numbers(&requests), [4.0]);
}

/// The response of an owner that includes this worker's changes up to these numbers.
fn rows_of(request: u64, applied: &[u64], values: &[f32]) -> Response {
    let (clock, zero) = (WorkerClock::At(0), RowSet::default());
    Response::Rows { request, clock, applied: applied.to_vec(), zero, values: values.to_vec() }
}

/// The rows of a read go to the owners of a new view, under as many numbers as there are owners, and come back in order.
#[test]
fn a_read_is_split_when_its_chunks_get_several_owners() {
    let mut worker = worker(Atomicity::Chunk);
    let apart = Arc::clone(&worker.owners.replica_map);
    let holders = vec![vec![OTHER]; 2];
    let together = Arc::new(ReplicaMap { up_to_date: holders.clone(), holders, ..(*apart).clone() });
    let mut out = Vec::new();
    worker.enter(ME, Arc::clone(&together), &mut out);
    out.clear();
    let rows: RowSet = [3, 15, 16, 30].into_iter().collect();
    let requests = worker.pull(&rows, &mut out);
    let [(0, whole)] = queries(&out)[..] else { panic!("{out:?}") };
    assert_eq!(requests, BTreeSet::from([whole]));
    out.clear();
    worker.enter(ME, apart, &mut out);
    let [(0, first), (1, second)] = queries(&out)[..] else { panic!("{out:?}") };
    assert_eq!(first, whole);
    let refused = worker.on_response(ME, rows_of(second, &[0], &[5.0; 4]), &mut out);
    assert_eq!(refused, Err(TableError::NotOwned(1)));
    let too_few = worker.on_response(ME, rows_of(first, &[], &[1.0, 2.0, 3.0, 4.0]), &mut out);
    assert_eq!(too_few, Err(TableError::Length { found: 0, expected: 1 }));
    worker.on_response(ME, rows_of(first, &[0], &[1.0, 2.0, 3.0, 4.0]), &mut out).unwrap();
    assert!(!worker.has_all(&requests), "a part is missing");
    // In the next view one member owns both chunks again; the part that was answered stays so.
    out.clear();
    worker.enter(ME, together, &mut out);
    assert_eq!(queries(&out), [(1, second)]);
    worker.on_response(OTHER, rows_of(second, &[0], &[5.0, 6.0, 7.0, 8.0]), &mut out).unwrap();
    assert!(worker.has_all(&requests));
    let taken = worker.take_rows(&requests);
    assert_eq!(taken, Rows { indices: rows, values: (1_u8..=8).map(f32::from).collect() });
    assert_eq!(worker.take_rows(&requests), Rows::default());
}

/// An operation on one of the chunks of a read makes an answer from before it outdated, and repeats one that was not taken.
#[test]
fn a_read_of_several_chunks_is_from_after_an_operation_on_one_of_them() {
    let mut worker = worker(Atomicity::Chunk);
    let holders = vec![vec![OTHER]; 2];
    let replica_map =
        ReplicaMap { up_to_date: holders.clone(), holders, ..(*worker.owners.replica_map).clone() };
    let mut out = Vec::new();
    worker.enter(ME, Arc::new(replica_map), &mut out);
    out.clear();
    let requests = worker.pull(&[3, 30].into_iter().collect(), &mut out);
    let [(0, request)] = queries(&out)[..] else { panic!("{out:?}") };
    out.clear();
    worker.map(1..2, None, &Map::scale(2.0, 0), &mut out);
    assert_eq!(queries(&out), []);
    worker.on_response(OTHER, rows_of(request, &[0, 0], &[1.0; 4]), &mut out).unwrap();
    assert_eq!(queries(&out), [(0, request)], "it is from before");
    out.clear();
    worker.on_response(OTHER, rows_of(request, &[0, 1], &[1.0, 1.0, 2.0, 2.0]), &mut out).unwrap();
    assert!(worker.has_all(&requests));
    worker.map(1..2, None, &Map::scale(2.0, 0), &mut out);
    assert_eq!(queries(&out), [(0, request)]);
    worker.on_response(OTHER, rows_of(request, &[0, 2], &[1.0, 1.0, 4.0, 4.0]), &mut out).unwrap();
    assert_eq!(worker.take_rows(&requests).values, [1.0, 1.0, 4.0, 4.0]);
}

/// A worker that joins when all others have ended is not near its own end: cached rows become stale for it as for any worker.
#[test]
fn cached_rows_become_stale_even_if_all_other_workers_have_ended() {
    let mut worker = worker(Atomicity::Chunk);
    worker.read_schedule = ReadSchedule::constant(ReadPolicy::Staleness(0));
    let row = RowSet::range(0..1);
    for clock in 0..3 {
        let mut out = Vec::new();
        let requests = worker.fetch(&row, &mut out);
        let [(0, request)] = queries(&out)[..] else { panic!("clock {clock}: {out:?}") };
        let got = Response::Rows {
            request,
            clock: WorkerClock::Ended,
            applied: vec![0],
            zero: row.clone(),
            values: vec![],
        };
        worker.on_response(ME, got, &mut out).unwrap();
        assert!(worker.has_all(&requests) && worker.read(&row).is_some());
        worker.catch_up(&mut out);
        assert_eq!(worker.clock(), clock);
        worker.tick(&mut out);
    }
}

/// Another worker computes the samples of a clock in which a worker ends: what it has added in that clock would count twice.
#[test]
fn a_worker_that_ends_in_an_atomic_clock_adds_nothing() {
    for (atomicity, words) in [(Atomicity::Clock, &[][..]), (Atomicity::Chunk, &["add 1 in 0"])] {
        let mut worker = worker(atomicity);
        let mut out = Vec::new();
        worker.request_lease(5, &mut out);
        let lease = SampleLease { epoch: 0, spans: vec![Span { start: 0, end: 5 }] };
        let leased = Response::Leased { lease_number: 1, lease, is_kept: false, trained: None };
        worker.on_response(ME, leased, &mut out).unwrap();
        worker.take_lease();
        worker.add(0, &[1.0, 0.0]);
        out.clear();
        worker.finish(&mut out);
        assert!(out.contains(&(ME, TableMessage::Request(Request::Return { first_lease: 1 }))), "{out:?}");
        let sent: Vec<String> = sent(&mut out).into_iter().map(|(_, words)| words).collect();
        assert_eq!(sent[..words.len()], *words, "{atomicity:?}: {sent:?}");
        assert!(sent[words.len()..].iter().all(|words| words == "clock the end"), "{atomicity:?}: {sent:?}");
    }
}

/// The owner of the lease table must learn that there is room for another worker.
#[test]
fn a_finished_worker_tells_the_owner_of_the_lease_table() {
    let mut worker = worker(Atomicity::Chunk);
    let mut out = Vec::new();
    worker.finish(&mut out);
    assert!(out.contains(&(ME, TableMessage::Request(Request::Return { first_lease: 1 }))), "{out:?}");
    out.clear();
    worker.enter(ME, Arc::clone(&worker.owners.replica_map), &mut out);
    assert!(
        out.contains(&(ME, TableMessage::Request(Request::Return { first_lease: 1 }))),
        "in each view: {out:?}"
    );
}

/// The changes and clocks among these messages, in order: the receiver, and what is said.
fn sent(out: &mut Outbox) -> Vec<(Rank, String)> {
    let text = |message: TableMessage| match message {
        TableMessage::Request(Request::Change(TableChange { sequence, chunk, operation, .. })) => {
            let what = match operation {
                Operation::Add { .. } => "add",
                Operation::Map(_) => "map",
                Operation::Complete { .. } => "complete",
            };
            Some(format!("{what} {sequence} in {chunk}"))
        }
        TableMessage::Request(Request::Tick { clock }) => Some(format!("clock {clock}")),
        TableMessage::Request(Request::Reduce { .. }) => Some("reduce".to_owned()),
        TableMessage::Journal(JournalMessage::Keep { change, ends_transaction, .. }) => {
            Some(format!("keep {}{}", change.sequence, if ends_transaction { ", the last" } else { "" }))
        }
        TableMessage::Journal(JournalMessage::Forget { up_to, .. }) => Some(format!("forget {up_to}")),
        _ => None,
    };
    std::mem::take(out).into_iter().filter_map(|(to, message)| Some((to, text(message)?))).collect()
}

/// The owner of the lease table may be lost before others know that the lease is complete.
#[test]
fn a_lease_of_which_another_worker_has_completed_a_copy_is_reported_too() {
    let mut worker = worker(Atomicity::Chunk);
    let mut out = Vec::new();
    for lease_number in [1, 2] {
        worker.request_lease(5, &mut out);
        let lease = SampleLease { epoch: 0, spans: vec![Span { start: 0, end: 5 }] };
        let leased = Response::Leased { lease_number, lease, is_kept: false, trained: None };
        worker.on_response(ME, leased, &mut out).unwrap();
        // The first one is being computed, and the second one is yet to be.
        let is_taken = lease_number == 1 && worker.take_lease().is_some();
        worker.on_response(ME, Response::Superseded { lease_number }, &mut out).unwrap();
        assert_eq!((worker.take_superseded(), worker.take_lease()), (is_taken, None));
        out.clear();
        worker.abandon_clock(&mut out);
        assert!(sent(&mut out).contains(&(ME, format!("complete {lease_number} in 0"))));
        worker.on_response(ME, Response::Acknowledged { up_to: lease_number }, &mut out).unwrap();
    }
}

/// The other member keeps the additions of a clock before any owner gets them, and the clock follows them.
#[test]
fn the_additions_of_an_atomic_clock_go_to_the_journal_first() {
    let mut worker = worker(Atomicity::Clock);
    let mut out = Vec::new();
    worker.request_lease(5, &mut out);
    let lease = SampleLease { epoch: 0, spans: vec![] };
    let leased =
        |lease_number| Response::Leased { lease_number, lease: lease.clone(), is_kept: false, trained: None };
    worker.on_response(ME, leased(1), &mut out).unwrap();
    worker.take_lease();
    out.clear();
    // The first transaction is a map, in the middle of the clock.
    worker.map(0..2, None, &Map::scale(2.0, 0), &mut out);
    let number = worker.reduce(0..1, &Reduce::L1Norm(0), &mut out);
    worker.add(0, &[1.0, 0.0]);
    worker.add(31, &[-1.0, 0.0]);
    worker.push_held_back(&mut out);
    worker.tick(&mut out);
    let to_other = |words: &[&str]| words.iter().map(|word| (OTHER, (*word).to_owned())).collect::<Vec<_>>();
    assert_eq!(sent(&mut out), to_other(&["keep 1", "keep 2, the last", "keep 3", "keep 4, the last"]));
    assert_eq!(worker.awaited_for_journal(), Some((WorkerClock::At(0), BTreeSet::from([OTHER]))));
    worker.on_kept(OTHER, 2, &mut out);
    assert_eq!(
        sent(&mut out),
        [(ME, "map 1 in 0".to_owned()), (OTHER, "map 2 in 1".to_owned()), (ME, "reduce".to_owned())]
    );
    worker.on_kept(OTHER, 4, &mut out);
    let clock = |rank| (rank, "clock 1".to_owned());
    let adds = [(ME, "add 3 in 0".to_owned()), (OTHER, "add 4 in 1".to_owned())];
    assert_eq!(sent(&mut out), [&adds[..], &[clock(ME), clock(OTHER)]].concat());
    assert!(!worker.has_all(&number) && worker.awaited_for_journal().is_none());
    // A whole transaction is forgotten at a time.
    let acknowledged = |up_to| Response::Acknowledged { up_to };
    worker.on_response(ME, acknowledged(3), &mut out).unwrap();
    assert_eq!(sent(&mut out), []);
    worker.on_response(OTHER, acknowledged(2), &mut out).unwrap();
    assert_eq!(sent(&mut out), to_other(&["forget 3"]));
    // In the next view, the rest goes to the keepers before it is sent again.
    worker.enter(ME, Arc::clone(&worker.owners.replica_map), &mut out);
    worker.announce_clock(&mut out);
    assert_eq!(
        sent(&mut out),
        [
            (OTHER, "keep 4, the last".to_owned()),
            (ME, "reduce".to_owned()),
            (ME, "clock 0".to_owned()),
            (OTHER, "clock 0".to_owned())
        ]
    );
    worker.on_kept(OTHER, 4, &mut out);
    assert_eq!(sent(&mut out), [(OTHER, "add 4 in 1".to_owned()), clock(ME), clock(OTHER)]);
    worker.on_response(OTHER, acknowledged(4), &mut out).unwrap();
    assert_eq!(sent(&mut out), to_other(&["forget 4"]));
    assert!(worker.wind_down(&mut out));
}
