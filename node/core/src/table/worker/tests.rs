//! Tests of the requests that a worker repeats, message by message.

use peergrad_protocol::table::WorkerId;
use peergrad_protocol::{Incarnation, PeerId};

use super::*;
use crate::table::Table;

const ME: Rank = Rank(0);
const OTHER: Rank = Rank(1);

/// The worker of a member, in a view of two members that own one chunk each.
fn worker() -> TableWorker {
    let layout = Arc::new(TableLayout::new(vec![Table::additive("counts", 32, 2)]));
    assert_eq!(layout.chunk_count(), 2);
    let mut worker =
        TableWorker::new(layout, ReadSchedule::constant(ReadPolicy::Unbounded), WorkerStart::WithRun);
    let who = |byte| WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let holders = vec![vec![ME, OTHER], vec![OTHER, ME]];
    let replica_map = ReplicaMap {
        members: vec![who(1), who(2)],
        up_to_date: holders.clone(),
        holders,
        ..ReplicaMap::default()
    };
    worker.enter(Arc::new(replica_map), &mut Vec::new());
    worker
}

/// The reads among these messages: the chunk and the number of each.
fn queries(out: &Outbox) -> Vec<(u32, u64)> {
    let query = |message: &(Rank, TableMessage)| match &message.1 {
        TableMessage::Request(
            Request::Reduce { request, chunk, .. } | Request::Get { request, chunk, .. },
        ) => Some((*chunk, *request)),
        _ => None,
    };
    out.iter().filter_map(query).collect()
}

/// If columns are changed when only some owners have answered, all answers must be from after the change.
#[test]
fn a_reduction_is_from_all_owners_before_a_map_or_from_all_after_it() {
    let mut worker = worker();
    let mut out = Vec::new();
    let requests = worker.reduce(0..2, Reduce::L1Norm(0), &mut out);
    let asked = queries(&out);
    assert_eq!(asked.len(), 2);
    let tell = |worker: &mut TableWorker, (chunk, request): (u32, u64), applied, value| {
        let mut out = Vec::new();
        let owner = if chunk % 2 == 0 { ME } else { OTHER };
        worker
            .on_response(
                owner,
                Response::Reduced { request, clock: WorkerClock::At(0), applied, value },
                &mut out,
            )
            .unwrap();
        queries(&out)
    };
    assert_eq!(tell(&mut worker, asked[0], 0, 1.0), []);
    out.clear();
    worker.map(0..2, Map::Scale { by: 2.0, column: 0 }, &mut out);
    assert_eq!(queries(&out), [asked[0]], "the one that was answered");
    assert_eq!(tell(&mut worker, asked[1], 0, 1.0), [asked[1]], "it is from before");
    for (query, applied) in asked.iter().zip(1..) {
        assert!(!worker.has_all(&requests));
        assert_eq!(tell(&mut worker, *query, applied, 2.0), []);
    }
    assert!(worker.has_all(&requests));
    assert_eq!(worker.reads_mut().take_value(&requests), 4.0);
}

/// A worker that joins when all others have ended is not near its own end: cached rows become stale for it as for any worker.
#[test]
fn cached_rows_become_stale_even_if_all_other_workers_have_ended() {
    let mut worker = worker();
    worker.read_schedule = ReadSchedule::constant(ReadPolicy::Staleness(0));
    let row = RowSet::range(0..1);
    for clock in 0..3 {
        let mut out = Vec::new();
        let requests = worker.fetch(&row, &mut out);
        let [(0, request)] = queries(&out)[..] else { panic!("clock {clock}: {out:?}") };
        let got = Response::Rows {
            request,
            clock: WorkerClock::Ended,
            applied: 0,
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

/// The owner of the lease table must learn that there is room for another worker.
#[test]
fn a_finished_worker_tells_the_owner_of_the_lease_table() {
    let mut worker = worker();
    let mut out = Vec::new();
    worker.finish(&mut out);
    assert!(out.contains(&(ME, TableMessage::Request(Request::Return { first_lease: 1 }))), "{out:?}");
    out.clear();
    worker.enter(Arc::clone(&worker.owners.replica_map), &mut out);
    assert!(
        out.contains(&(ME, TableMessage::Request(Request::Return { first_lease: 1 }))),
        "in each view: {out:?}"
    );
}
