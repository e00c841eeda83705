//! Tests of an owner and a replica, message by message.

use std::num::NonZeroU64;

use peergrad_models::optimizer::{Optimizer, Schedule};
use peergrad_protocol::limits::{PENDING_CLOCKS_MAX, PER_CLOCK_STALENESS_MAX, WAITING_REQUESTS_MAX};
use peergrad_protocol::table::{
    IdempotencyKey, ReplicaUpdate, RowSet, Rows, TableChunk, UsedKeys, WorkerClock,
};
use peergrad_protocol::{Incarnation, PeerId};

use super::super::{ApplyMode, Init, Portions, Table, TableLayout, TableRule};
use super::*;

const ME: Rank = Rank(0);
const OTHER: Rank = Rank(1);

/// The layout of two chunks of 16 rows, with one number in a row.
fn layout(rule: TableRule, apply_mode: ApplyMode) -> Arc<TableLayout> {
    Arc::new(TableLayout::new(vec![Table {
        name: "weights".into(),
        rows: 32,
        width: 1,
        vectors: 1,
        rule,
        apply_mode,
        init: Init::Zeros,
    }]))
}

/// Two workers; the first member owns both chunks, and the other is a replica.
fn servers(layout: &Arc<TableLayout>) -> [TableServer; 2] {
    let who = |byte| WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let replica_map = Arc::new(ReplicaMap {
        members: vec![who(1), who(2)],
        holders: vec![vec![ME, OTHER]; 2],
        up_to_date: vec![vec![ME, OTHER]; 2],
        view_number: 1,
        ..ReplicaMap::default()
    });
    [ME, OTHER].map(|rank| {
        let mut store = TableStore::new(Arc::clone(layout));
        (0..2).for_each(|chunk| store.create_chunk(chunk, &Rows::default()));
        let lease_policy = LeasePolicy { epochs: 1, samples: 5, ..LeasePolicy::default() };
        TableServer::enter(
            rank,
            Arc::clone(&replica_map),
            lease_policy,
            ViewHandover::new(store),
            &mut Vec::new(),
        )
    })
}

/// The owner, whose replica has received the empty chunks.
fn owner(rule: TableRule, apply_mode: ApplyMode) -> TableServer {
    let [mut owner, _] = servers(&layout(rule, apply_mode));
    owner.on_replica_ack(OTHER, 1, &mut Vec::new());
    owner
}

fn indices(indices: &[u64]) -> RowSet {
    indices.iter().copied().collect()
}

fn change(sequence: u64, chunk: u32, operation: Operation) -> Request {
    Request::Change(TableChange { sequence, chunk, key: None, operation })
}

/// The leases up to `last_lease` are done.
fn complete(sequence: u64, last_lease: u64) -> Request {
    change(sequence, 0, Operation::Complete { last_lease })
}

fn add(sequence: u64, clock: u64, rows: &[u64], values: &[f32]) -> Request {
    let rows = Rows { indices: indices(rows), values: values.to_vec() };
    let chunk = rows.indices.bounds().map_or(0, |(first, _)| first as u32 / 16);
    change(sequence, chunk, Operation::Add { clock, rows })
}

fn get(request: u64, min_clock: u64, row: u64) -> Request {
    Request::Get { request, min_clock: WorkerClock::At(min_clock), rows: indices(&[row]) }
}

fn request(server: &mut TableServer, from: Rank, request: Request) -> Outbox {
    let mut out = Vec::new();
    server.on_request(from, request, &mut out).unwrap();
    for rank in server.ready() {
        while server.answer_ready(rank, &mut out) {}
    }
    out
}

fn read(server: &TableServer, rows: &[u64]) -> Vec<f32> {
    let rows = indices(rows);
    let read = server.store().read(&rows, &server.replica_map.worker_id(ME));
    let mut values = read.values.into_iter();
    let is_zero = |row: u64| read.zero.iter().any(|name| name == row);
    rows.iter().map(|row| if is_zero(row) { 0.0 } else { values.next().unwrap() }).collect()
}

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let mut server = owner(TableRule::Sum, ApplyMode::Immediate);
    let mut out = Vec::new();
    request(&mut server, OTHER, Request::Tick { clock: WorkerClock::At(5) });
    let wrong = Rows { indices: indices(&[1, 2]), values: vec![1.0] };
    for (request, error) in [
        (add(1, 0, &[32], &[1.0]), TableError::NoChunk(2)),
        (
            Request::Get { request: 1, min_clock: WorkerClock::At(0), rows: indices(&[3, 32]) },
            TableError::NoRow(32),
        ),
        (add(1, 0, &[0, 16], &[1.0, 1.0]), TableError::RowOutsideChunk(16, 0)),
        (add(1, 0, &[1, 2], &[1.0, f32::NAN]), TableError::NotFinite(2)),
        (
            change(1, 0, Operation::Add { clock: 0, rows: wrong }),
            TableError::Length { found: 1, expected: 2 },
        ),
        (
            Request::Tick { clock: WorkerClock::At(4) },
            TableError::ClockBackwards { sent: WorkerClock::At(4), known: WorkerClock::At(5) },
        ),
    ] {
        assert_eq!(server.on_request(OTHER, request.clone(), &mut out), Err(error), "{request:?}");
    }
    assert!(out.is_empty() && read(&server, &[0, 1, 2]) == [0.0; 3]);
    let [_, mut replica] = servers(&layout(TableRule::Sum, ApplyMode::Immediate));
    assert_eq!(replica.on_request(OTHER, add(1, 0, &[0], &[1.0]), &mut out), Err(TableError::NotOwned(0)));
    let update = |chunk, rows: Rows, updates| {
        let state = TableChunk { chunk, rows, updates, ..TableChunk::default() };
        ReplicaUpdate { number: 1, chunks: vec![state] }
    };
    let rows = || Rows { indices: indices(&[3]), values: vec![1.0] };
    for (from, update, error) in [
        (ME, update(2, rows(), vec![1]), TableError::NoChunk(2)),
        (ME, update(1, rows(), vec![1]), TableError::RowOutsideChunk(3, 1)),
        (ME, update(0, rows(), vec![]), TableError::Length { found: 0, expected: 1 }),
        (OTHER, update(0, rows(), vec![1]), TableError::NotOwned(0)),
    ] {
        assert_eq!(replica.on_replica_update(from, &update, &mut out), Err(error));
    }
    let handed_over = TableChunk { rows: rows(), updates: vec![1], ..TableChunk::default() };
    assert_eq!(replica.on_handover(ME, &handed_over, &mut out), Err(TableError::NotOwned(0)));
    assert!(out.is_empty() && read(&replica, &[3]) == [0.0]);
}

#[test]
fn a_worker_with_too_many_waiting_requests_is_refused() {
    let mut server = owner(TableRule::Sum, ApplyMode::Immediate);
    let mut out = Vec::new();
    let questions = WAITING_REQUESTS_MAX as u64;
    assert!((0..questions).all(|request| server.on_request(OTHER, get(request, 1, 0), &mut out).is_ok()));
    let flood = server.on_request(OTHER, get(questions, 1, 0), &mut out);
    assert_eq!(flood, Err(TableError::TooManyRequests(WAITING_REQUESTS_MAX)));
    assert!(out.is_empty());
    // No other worker is affected, and earlier requests are answered.
    assert!(server.on_request(ME, get(1, 1, 0), &mut out).is_ok());
    for rank in [ME, OTHER] {
        request(&mut server, rank, Request::Tick { clock: WorkerClock::At(1) }).len();
    }
    assert!(server.on_request(OTHER, get(questions, 2, 0), &mut out).is_ok());
}

#[test]
fn an_addition_is_acknowledged_once_replicated_and_later_ones_are_batched() {
    let [mut owner, mut replica] = servers(&layout(TableRule::Sum, ApplyMode::Immediate));
    owner.on_replica_ack(OTHER, 1, &mut Vec::new());
    let mut sent = request(&mut owner, OTHER, add(1, 0, &[0], &[1.0]));
    let Some((OTHER, TableMessage::ReplicaUpdate(first))) = sent.pop() else { panic!("{sent:?}") };
    assert!(sent.is_empty(), "it is not safe yet");
    assert!(request(&mut owner, OTHER, add(2, 0, &[0, 1], &[1.0, 5.0])).is_empty());
    assert!(request(&mut owner, ME, add(1, 0, &[0], &[1.0])).is_empty());
    let again = request(&mut owner, OTHER, add(2, 0, &[0, 1], &[1.0, 5.0]));
    assert!(again.is_empty(), "sent again, it is in already");
    let mut out = Vec::new();
    replica.on_replica_update(ME, &first, &mut out).unwrap();
    assert_eq!((out.pop(), read(&replica, &[0])), (Some((ME, TableMessage::ReplicaAck(2))), vec![1.0]));
    owner.on_replica_ack(OTHER, 2, &mut out);
    let [
        (OTHER, TableMessage::Response(Response::Acknowledged { up_to: 1 })),
        (OTHER, TableMessage::ReplicaUpdate(second)),
    ] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!((second.chunks.len(), &second.chunks[0].rows.values), (1, &vec![3.0, 5.0]));
    replica.on_replica_update(ME, second, &mut Vec::new()).unwrap();
    assert_eq!(replica.store().snapshot(0, None), owner.store().snapshot(0, None));
}

#[test]
fn a_read_waits_for_its_clock_and_no_longer() {
    let mut server = owner(TableRule::Sum, ApplyMode::Immediate);
    assert!(request(&mut server, ME, get(1, 2, 0)).is_empty());
    assert!(
        request(&mut server, ME, Request::Tick { clock: WorkerClock::At(3) }).is_empty(),
        "the other has not said"
    );
    assert!(request(&mut server, OTHER, Request::Tick { clock: WorkerClock::At(1) }).is_empty());
    let sent = request(&mut server, OTHER, Request::Tick { clock: WorkerClock::At(2) });
    let got = Response::Rows {
        request: 1,
        clock: WorkerClock::At(2),
        applied: vec![0],
        zero: indices(&[0]),
        values: vec![],
    };
    assert_eq!(sent, [(ME, TableMessage::Response(got))]);
}

#[test]
fn a_new_worker_delays_no_other_and_is_never_counted_as_behind() {
    let mut server = owner(TableRule::Sum, ApplyMode::Immediate);
    request(&mut server, ME, Request::Tick { clock: WorkerClock::At(7) });
    assert_eq!(server.clock(), None);
    request(&mut server, OTHER, Request::NewWorker);
    assert_eq!(server.clock(), Some(WorkerClock::At(7)));
    request(&mut server, OTHER, Request::Tick { clock: WorkerClock::At(5) });
    request(&mut server, ME, Request::Tick { clock: WorkerClock::At(9) });
    assert_eq!(server.clock(), Some(WorkerClock::At(7)));
    // The worker continues from its own clock.
    for (clock, least) in [(6, 7), (7, 7), (8, 8), (20, 9)] {
        request(&mut server, OTHER, Request::Tick { clock: WorkerClock::At(clock) });
        assert_eq!(server.clock(), Some(WorkerClock::At(least)));
    }
}

#[test]
fn a_rule_of_the_owner_keeps_a_history_for_each_row() {
    let rule = Optimizer::Adagrad { epsilon: 0.0, weight_decay: 0.0 };
    let rule = TableRule::Optimizer { rule, schedule: Schedule::constant(0.5), bounds: None };
    let mut server = owner(rule, ApplyMode::Immediate);
    request(&mut server, OTHER, add(1, 0, &[0], &[3.0]));
    request(&mut server, OTHER, add(2, 0, &[0, 1], &[4.0, 7.0]));
    // The sums of squares are 9, then 25; and 49.
    assert_eq!(read(&server, &[0, 1]), [-0.5 - 0.5 * 4.0 / 5.0, -0.5]);
    // An addition that overflows is ignored.
    request(&mut server, OTHER, add(3, 0, &[1], &[f32::MAX]));
    assert_eq!(read(&server, &[1]), [-0.5]);
}

/// The additions of one clock are one gradient, and the replica has those that are not applied yet.
#[test]
fn a_per_clock_rule_sees_all_additions_of_one_clock_together() {
    let rule = TableRule::Optimizer {
        rule: Optimizer::Prox { l1: 1.0, l2: 0.0 },
        schedule: Schedule::constant(1.0),
        bounds: None,
    };
    let [mut owner, mut replica] = servers(&layout(rule, ApplyMode::PerClock));
    let mut out = Vec::new();
    let mut settle = |owner: &mut TableServer, replica: &mut TableServer| {
        let mut number = 1;
        while let Some(in_flight) = owner.replication.in_flight(OTHER) {
            number = in_flight;
            out.clear();
            owner.on_replica_ack(OTHER, number, &mut out);
            for (_, message) in &out {
                if let TableMessage::ReplicaUpdate(update) = message {
                    replica.on_replica_update(ME, update, &mut Vec::new()).unwrap();
                }
            }
        }
        number
    };
    settle(&mut owner, &mut replica);
    let mut tell = |owner: &mut TableServer, from, message| {
        for (_, message) in request(owner, from, message) {
            if let TableMessage::ReplicaUpdate(update) = message {
                replica.on_replica_update(ME, &update, &mut Vec::new()).unwrap();
            }
        }
        settle(owner, &mut replica);
        assert_eq!(replica.store().snapshot(0, None), owner.store().snapshot(0, None));
    };
    // Each of the two additions alone is larger than the rule's threshold.
    tell(&mut owner, ME, add(1, 0, &[0], &[5.0]));
    tell(&mut owner, OTHER, add(1, 0, &[0], &[-4.5]));
    tell(&mut owner, OTHER, add(2, 1, &[0], &[-4.5]));
    tell(&mut owner, OTHER, Request::Tick { clock: WorkerClock::At(1) });
    assert_eq!(read(&owner, &[0]), [0.0]);
    tell(&mut owner, ME, Request::Tick { clock: WorkerClock::At(1) });
    assert_eq!(read(&owner, &[0]), [0.0], "0.5 is less than is taken off");
    for rank in [ME, OTHER] {
        tell(&mut owner, rank, Request::Tick { clock: WorkerClock::At(2) });
    }
    assert_eq!(read(&owner, &[0]), [3.5]);
}

/// Ticks of other workers may arrive later than an addition that depends on them.
#[test]
fn an_addition_too_far_ahead_waits_until_other_workers_catch_up() {
    let mut owner = owner(TableRule::Sum, ApplyMode::PerClock);
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(1) });
    }
    let far = 2 + PER_CLOCK_STALENESS_MAX;
    assert!(request(&mut owner, OTHER, add(1, far, &[0], &[1.0])).is_empty());
    assert!(owner.store().snapshot(0, None).pending.is_empty(), "it is not with the chunk");
    request(&mut owner, OTHER, Request::Tick { clock: WorkerClock::At(far + 1) });
    assert!(owner.store().snapshot(0, None).pending.is_empty());
    request(&mut owner, ME, Request::Tick { clock: WorkerClock::At(2) });
    assert_eq!(owner.store().snapshot(0, None).pending.len(), 1);
    request(&mut owner, ME, Request::Tick { clock: WorkerClock::At(far + 1) });
    assert_eq!(read(&owner, &[0]), [1.0]);
}

/// A later addition does not overtake an earlier one, even if there is room for it: the earlier one would count as included.
#[test]
fn additions_that_wait_stay_in_order() {
    let mut owner = owner(TableRule::Sum, ApplyMode::PerClock);
    // No worker has sent its clock, and the additions fill all clocks for which a chunk has room.
    for (sequence, clock) in (1..).zip((1..PENDING_CLOCKS_MAX as u64).chain([40])) {
        request(&mut owner, ME, add(sequence, clock, &[0], &[1.0]));
    }
    request(&mut owner, OTHER, add(1, 39, &[1], &[1.0]));
    request(&mut owner, OTHER, add(2, 40, &[1], &[10.0]));
    assert!(owner.store().snapshot(0, None).pending.iter().all(|(_, rows)| rows.indices == indices(&[0])));
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(41) });
    }
    assert_eq!(read(&owner, &[0, 1]), [PENDING_CLOCKS_MAX as f32, 11.0]);
}

/// The report that a lease is done is a change of the first chunk, too: it must not overtake an addition that waits.
#[test]
fn a_completion_waits_for_an_earlier_addition() {
    let mut owner = owner(TableRule::Sum, ApplyMode::PerClock);
    request(&mut owner, OTHER, Request::Lease { lease_number: 1, samples: 5, may_wait: true });
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(1) });
    }
    let far = 2 + PER_CLOCK_STALENESS_MAX;
    request(&mut owner, OTHER, add(1, far, &[0], &[1.0]));
    request(&mut owner, OTHER, complete(2, 1));
    let holds_lease = |owner: &mut TableServer| {
        owner.store.lease_table_mut().outstanding.iter().any(|held| !held.leases.is_empty())
    };
    assert!(holds_lease(&mut owner));
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(far + 1) });
    }
    assert_eq!((read(&owner, &[0]), holds_lease(&mut owner)), (vec![1.0], false));
}

/// A rule is applied to all additions of a clock at once, including those for which there was no room before.
#[test]
fn a_waiting_addition_is_applied_with_the_rest_of_its_clock() {
    let rule = TableRule::Optimizer {
        rule: Optimizer::Prox { l1: 1.0, l2: 0.0 },
        schedule: Schedule::constant(1.0),
        bounds: None,
    };
    let mut owner = owner(rule, ApplyMode::PerClock);
    for (sequence, clock) in (1..).zip(1..=PENDING_CLOCKS_MAX as u64) {
        let value = if clock == 1 { 5.0 } else { 0.0 };
        request(&mut owner, ME, add(sequence, clock, &[0], &[value]));
    }
    // There is no room for the first of them, and the second waits for it.
    request(&mut owner, OTHER, add(1, 0, &[1], &[3.0]));
    request(&mut owner, OTHER, add(2, 1, &[0], &[-4.5]));
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(2) });
    }
    assert_eq!(read(&owner, &[0, 1]), [0.0, -2.0], "0.5 is less than is taken off");
}

/// Changes that were repeated while a chunk was to arrive are applied as far as there is room: its replicas would refuse more.
#[test]
fn a_chunk_that_arrives_takes_in_as_many_additions_as_it_has_room_for() {
    let layout = layout(TableRule::Sum, ApplyMode::PerClock);
    let [donor, _] = servers(&layout);
    let who = |byte| WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let replica_map = ReplicaMap {
        members: vec![who(1), who(2), who(3)],
        holders: vec![vec![OTHER, Rank(2)]; 2],
        up_to_date: vec![vec![ME]; 2],
        newcomers: BTreeSet::from([Rank(2)]),
        view_number: 2,
    };
    let (nothing, mut out) = (ViewHandover::new(TableStore::new(layout)), Vec::new());
    let mut owner =
        TableServer::enter(OTHER, Arc::new(replica_map), LeasePolicy::default(), nothing, &mut out);
    let clocks = PENDING_CLOCKS_MAX as u64 + 1;
    for clock in 0..clocks {
        assert!(request(&mut owner, ME, add(clock + 1, clock, &[0], &[1.0])).is_empty());
    }
    let state = donor.store().snapshot(0, None);
    owner.on_handover(ME, &state, &mut out).unwrap();
    let update =
        |message: &(Rank, TableMessage)| matches!(message, (Rank(2), TableMessage::ReplicaUpdate(_)));
    assert!(out.iter().any(update) && out.iter().all(|(_, message)| message.is_valid()), "{out:?}");
    assert_eq!(owner.store().snapshot(0, None).pending.len(), PENDING_CLOCKS_MAX);
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(clocks) });
    }
    assert_eq!(read(&owner, &[0]), [clocks as f32]);
}

/// A read of several chunks is answered once the last of them has arrived, with what its worker has changed in each.
#[test]
fn a_read_waits_for_all_of_its_chunks() {
    let layout = layout(TableRule::Sum, ApplyMode::Immediate);
    let [mut donor, _] = servers(&layout);
    donor.store.add(0, 0, &Rows { indices: indices(&[3]), values: vec![7.0] });
    let who = |byte| WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let replica_map = ReplicaMap {
        members: vec![who(1), who(2)],
        holders: vec![vec![OTHER]; 2],
        up_to_date: vec![vec![ME]; 2],
        view_number: 2,
        ..ReplicaMap::default()
    };
    let (nothing, mut out) = (ViewHandover::new(TableStore::new(layout)), Vec::new());
    let mut owner =
        TableServer::enter(OTHER, Arc::new(replica_map), LeasePolicy::default(), nothing, &mut out);
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(0) });
    }
    assert!(request(&mut owner, ME, add(1, 0, &[20], &[1.0])).is_empty());
    let rows = indices(&[3, 4, 20]);
    let get = Request::Get { request: 5, min_clock: WorkerClock::At(0), rows };
    assert!(request(&mut owner, ME, get).is_empty());
    for chunk in 0..2 {
        assert!(!owner.answer_ready(ME, &mut out), "chunk {chunk} is not there");
        owner.on_handover(ME, &donor.store().snapshot(chunk, None), &mut out).unwrap();
        out.clear();
        assert!(owner.answer_ready(ME, &mut out));
    }
    let got = Response::Rows {
        request: 5,
        clock: WorkerClock::At(0),
        applied: vec![0, 1],
        zero: indices(&[4]),
        values: vec![7.0, 1.0],
    };
    assert_eq!(out, [(ME, TableMessage::Response(got))]);
    assert_eq!(owner.workers[&Author::own(ME)].waiting_requests, 0);
}

/// All workers that had a clock are gone: the new ones start after all that they have added.
#[test]
fn if_all_workers_are_new_they_start_after_the_earlier_additions() {
    let mut owner = owner(TableRule::Sum, ApplyMode::PerClock);
    request(&mut owner, OTHER, add(1, 7, &[0], &[1.0]));
    request(&mut owner, ME, Request::NewWorker);
    assert_eq!(owner.clock(), None);
    request(&mut owner, OTHER, Request::NewWorker);
    assert_eq!((owner.clock(), read(&owner, &[0])), (Some(WorkerClock::At(8)), vec![1.0]));
    for (rank, clock, least) in [(ME, 8, 8), (OTHER, 3, 8), (ME, 9, 8), (OTHER, 9, 9)] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(clock) });
        assert_eq!(owner.clock(), Some(WorkerClock::At(least)));
    }
}

/// An addition that was refused, for lack of room, is repeated in the next view: no later one counts before it.
#[test]
fn an_addition_without_room_is_not_acknowledged() {
    let mut owner = owner(TableRule::Sum, ApplyMode::PerClock);
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(1) });
    }
    request(&mut owner, OTHER, add(1, 1, &[0], &[1.0]));
    owner.workers.get_mut(&Author::own(OTHER)).unwrap().waiting_bytes = WAITING_REQUEST_BYTES_MAX;
    let mut out = Vec::new();
    let hoard = Err(TableError::TooManyBytes(WAITING_REQUEST_BYTES_MAX));
    assert_eq!(owner.on_request(OTHER, add(2, 30, &[0], &[1.0]), &mut out), hoard);
    owner.workers.get_mut(&Author::own(OTHER)).unwrap().waiting_bytes = 0;
    assert_eq!(owner.on_request(OTHER, add(3, 1, &[0], &[1.0]), &mut out), hoard);
    owner.on_replica_ack(OTHER, 2, &mut out);
    assert!(out.contains(&(OTHER, TableMessage::Response(Response::Acknowledged { up_to: 1 }))), "{out:?}");
    assert_eq!(owner.store().applied(0, &owner.replica_map.worker_id(OTHER)), 1);
}

#[test]
fn a_worker_with_outstanding_leases_does_not_wait_for_itself() {
    for may_wait in [false, true] {
        let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
        let request_lease = |lease_number| Request::Lease { lease_number, samples: 5, may_wait };
        request(&mut owner, ME, request_lease(1));
        let none = request(&mut owner, ME, request_lease(2));
        assert!(
            matches!(
                &none[..],
                [(ME, TableMessage::Response(Response::Leased { lease_number: 2, trained: None, .. }))]
            ),
            "{none:?}"
        );
        assert!(request(&mut owner, OTHER, request_lease(1)).is_empty());
        let over = request(&mut owner, ME, complete(1, 1));
        let is_over = |message: &(Rank, TableMessage)| {
            matches!(message, (OTHER, TableMessage::Response(Response::Leased { trained: Some(_), .. })))
        };
        assert!(over.iter().any(is_over), "{over:?}");
    }
}

/// A worker may wait for samples while no other worker has a clock. Once another has one, that one may wait for it, so it must continue.
#[test]
fn a_worker_that_waits_for_samples_continues_once_others_may_wait_for_it() {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    let request_lease = |lease_number| Request::Lease { lease_number, samples: 5, may_wait: false };
    request(&mut owner, ME, request_lease(1));
    request(&mut owner, OTHER, Request::Tick { clock: WorkerClock::At(0) });
    assert!(request(&mut owner, OTHER, request_lease(1)).is_empty());
    let none = request(&mut owner, ME, Request::Tick { clock: WorkerClock::At(0) });
    assert!(
        matches!(
            &none[..],
            [(OTHER, TableMessage::Response(Response::Leased { lease_number: 1, trained: None, .. }))]
        ),
        "{none:?}"
    );
}

#[test]
fn after_the_run_was_ended_only_leased_samples_are_trained() {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    let request_lease = |lease_number| Request::Lease { lease_number, samples: 2, may_wait: true };
    request(&mut owner, ME, request_lease(1));
    let mut out = Vec::new();
    assert!(owner.close_leases(&mut out) && !owner.close_leases(&mut out));
    assert!(request(&mut owner, OTHER, request_lease(1)).is_empty(), "one worker still computes");
    let over = request(&mut owner, ME, complete(1, 1));
    let is_over = |message: &(Rank, TableMessage)| {
        matches!(message, (OTHER, TableMessage::Response(Response::Leased { trained: Some(2), .. })))
    };
    assert!(over.iter().any(is_over), "{over:?}");
}

/// The samples that a worker returns when it ends are leased to others.
#[test]
fn returned_leases_are_granted_again() {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    let request_lease = |lease_number| Request::Lease { lease_number, samples: 2, may_wait: true };
    (1..=3).for_each(|lease_number| drop(request(&mut owner, ME, request_lease(lease_number))));
    request(&mut owner, ME, complete(1, 1));
    assert!(request(&mut owner, OTHER, request_lease(1)).is_empty());
    request(&mut owner, ME, Request::Return { first_lease: 2 });
    let lease_table = owner.store.lease_table_mut().clone();
    let held_by = |worker| {
        let held = lease_table.outstanding.iter().find(|held| held.worker == worker);
        held.map_or(0, |held| held.leases.len())
    };
    let [me, other] = [ME, OTHER].map(|rank| owner.replica_map.worker_id(rank));
    assert_eq!((held_by(me), held_by(other), lease_table.returned.len()), (0, 1, 1));
    // It gets no more leases, whatever it had requested before.
    request(&mut owner, ME, request_lease(4));
    request(&mut owner, OTHER, Request::Return { first_lease: 1 });
    assert_eq!(owner.store.lease_table_mut().returned.len(), 2);
    assert!(owner.lease_requests.contains_key(&ME), "it is answered when all leases are complete");
}

/// No worker waits for the clock of one that has ended, and its place goes to another worker.
#[test]
fn a_finished_worker_blocks_no_other_and_frees_its_place() {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    owner.lease_policy = LeasePolicy { epochs: 1, samples: 8, warm_up: 4, ..LeasePolicy::default() };
    let request_lease = |lease_number, samples| Request::Lease { lease_number, samples, may_wait: false };
    request(&mut owner, OTHER, request_lease(1, 2));
    assert!(request(&mut owner, ME, request_lease(1, 2)).is_empty(), "another one warms up");
    request(&mut owner, OTHER, Request::Return { first_lease: 1 });
    request(&mut owner, OTHER, Request::Tick { clock: WorkerClock::Ended });
    let held = |owner: &mut TableServer| {
        let me = owner.replica_map.worker_id(ME);
        owner
            .store
            .lease_table_mut()
            .outstanding
            .iter()
            .find(|held| held.worker == me)
            .map_or(0, |held| held.leases.len())
    };
    assert_eq!(held(&mut owner), 1);
    request(&mut owner, ME, request_lease(2, 8));
    request(&mut owner, ME, complete(1, 2));
    assert!(owner.lease_requests.is_empty());
}

#[test]
fn a_lease_is_granted_only_once_the_replica_has_stored_it() {
    let [mut owner, mut replica] = servers(&layout(TableRule::Sum, ApplyMode::Immediate));
    owner.on_replica_ack(OTHER, 1, &mut Vec::new());
    let request_lease = |lease_number, may_wait| Request::Lease { lease_number, samples: 3, may_wait };
    let sent = request(&mut owner, OTHER, request_lease(1, false));
    let [(OTHER, TableMessage::ReplicaUpdate(update))] = &sent[..] else { panic!("{sent:?}") };
    replica.on_replica_update(ME, update, &mut Vec::new()).unwrap();
    assert_eq!(replica.store.lease_table_mut(), owner.store.lease_table_mut());
    let mut out = Vec::new();
    owner.on_replica_ack(OTHER, 2, &mut out);
    let [(OTHER, TableMessage::Response(Response::Leased { lease_number: 1, lease, trained: None, .. }))] =
        &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!(lease.len(), 3);
    request(&mut owner, ME, request_lease(1, true));
    out.clear();
    owner.on_replica_ack(OTHER, 3, &mut out);
    request(&mut owner, ME, complete(1, 1));
    // The rest is leased. One worker waits for what the other may return. The other, whose clock others may wait for, does not wait.
    request(&mut owner, ME, Request::Tick { clock: WorkerClock::At(0) });
    assert!(request(&mut owner, ME, request_lease(2, true)).is_empty());
    let none = request(&mut owner, OTHER, request_lease(2, false));
    assert!(
        matches!(&none[..], [(OTHER, TableMessage::Response(Response::Leased { trained: None, .. }))]),
        "{none:?}"
    );
    let over = request(&mut owner, OTHER, complete(1, 1));
    let is_over = |message: &(Rank, TableMessage)| {
        matches!(
            message,
            (ME, TableMessage::Response(Response::Leased { lease_number: 2, trained: Some(_), .. }))
        )
    };
    assert!(over.iter().any(is_over), "{over:?}");
}

/// Two workers are gone. A member has kept what one of them had changed, and sends it in its place; nobody has anything of the other.
#[test]
fn leases_of_departed_workers_are_reclaimed_once_all_members_have_sent_what_they_kept() {
    let mut before = owner(TableRule::Sum, ApplyMode::Immediate);
    let who = |byte| WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) };
    let replica_map = |members: &[u8], view_number| ReplicaMap {
        members: members.iter().map(|byte| who(*byte)).collect(),
        holders: vec![vec![ME]; 2],
        up_to_date: vec![vec![ME]; 2],
        newcomers: BTreeSet::new(),
        view_number,
    };
    before.replica_map = Arc::new(replica_map(&[1, 3, 4, 2], 2));
    for (rank, sequence) in [(Rank(1), 7), (Rank(2), 3)] {
        request(&mut before, rank, Request::Lease { lease_number: 1, samples: 2, may_wait: true });
        request(&mut before, rank, add(sequence, 0, &[0], &[1.0]));
    }
    let view = Arc::new(replica_map(&[1, 2], 3));
    let (policy, mut out) = (before.lease_policy, Vec::new());
    let mut owner = TableServer::enter(ME, view, policy, before.leave(), &mut out);
    request(&mut owner, ME, Request::Tick { clock: WorkerClock::At(1) });
    let returned = |owner: &mut TableServer| owner.store.lease_table_mut().returned.len();
    assert_eq!(returned(&mut owner), 0, "the other member may have changes to send");
    let replay = |sequence, operation| Request::Replay {
        worker: who(3),
        change: TableChange { sequence, chunk: 0, key: None, operation },
    };
    let rows = || Rows { indices: indices(&[0]), values: vec![1.0] };
    request(&mut owner, OTHER, replay(7, Operation::Add { clock: 0, rows: rows() }));
    assert_eq!(read(&owner, &[0]), [2.0], "it had this");
    request(&mut owner, OTHER, replay(8, Operation::Add { clock: 0, rows: rows() }));
    let sent = request(&mut owner, OTHER, replay(9, Operation::Complete { last_lease: 1 }));
    let acknowledged = Response::ReplayAcknowledged { worker: who(3), up_to: 9 };
    assert_eq!(sent, [(OTHER, TableMessage::Response(acknowledged))]);
    request(&mut owner, OTHER, Request::Tick { clock: WorkerClock::At(1) });
    assert_eq!((read(&owner, &[0]), returned(&mut owner)), (vec![3.0], 1), "only that of the other");
    // It may get the changes of the one again in the next view, and none of the other.
    assert_eq!([3, 4].map(|byte| owner.store.applied(0, &who(byte))), [9, 0]);
    let forged = Request::Replay {
        worker: who(1),
        change: TableChange {
            sequence: 1,
            chunk: 0,
            key: None,
            operation: Operation::Complete { last_lease: 1 },
        },
    };
    assert_eq!(owner.on_request(OTHER, forged, &mut out), Err(TableError::OtherWorker));
    let policy = owner.lease_policy;
    let view = Arc::new(replica_map(&[1, 2], 4));
    let mut owner = TableServer::enter(ME, view, policy, owner.leave(), &mut out);
    request(&mut owner, OTHER, replay(9, Operation::Complete { last_lease: 1 }));
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(1) });
    }
    assert_eq!(owner.store.applied(0, &who(3)), 9);
    let view = Arc::new(replica_map(&[1, 2], 5));
    let mut owner = TableServer::enter(ME, view, policy, owner.leave(), &mut out);
    for rank in [ME, OTHER] {
        request(&mut owner, rank, Request::Tick { clock: WorkerClock::At(1) });
    }
    assert_eq!(owner.store.applied(0, &who(3)), 0, "nobody has anything of it");
    assert!(owner.store.lease_table_mut().outstanding.is_empty());
}

/// A change with a key: of the first two that come, of the same worker or of two, one is carried out.
fn keyed(sequence: u64, round: u64, number: u32, value: f32) -> Request {
    let key = Some(IdempotencyKey { round, number });
    let rows = Rows { indices: indices(&[0]), values: vec![value] };
    Request::Change(TableChange { sequence, chunk: 0, key, operation: Operation::Add { clock: 0, rows } })
}

#[test]
fn a_change_with_a_key_is_carried_out_once() {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    request(&mut owner, ME, keyed(1, 4, 7, 1.0));
    request(&mut owner, OTHER, keyed(1, 4, 7, 10.0));
    assert_eq!(read(&owner, &[0]), [1.0], "the first one");
    request(&mut owner, OTHER, keyed(2, 4, 3, 2.0));
    request(&mut owner, OTHER, keyed(2, 4, 5, 40.0));
    assert_eq!(read(&owner, &[0]), [3.0], "a number that was sent before is a repetition, whatever the key");
    request(&mut owner, ME, keyed(2, 6, 7, 4.0));
    request(&mut owner, OTHER, keyed(3, 5, 9, 80.0));
    assert_eq!(read(&owner, &[0]), [7.0], "another round, and then an earlier one");
    let copy = owner.store().snapshot(0, None);
    assert_eq!(copy.used_keys, Some(UsedKeys { round: 6, numbers: vec![7] }));
    let mut store = TableStore::new(layout(TableRule::Sum, ApplyMode::Immediate));
    store.receive_chunk(&copy);
    assert!(!store.use_key(0, IdempotencyKey { round: 6, number: 7 }));
    assert!(store.use_key(0, IdempotencyKey { round: 6, number: 8 }));
}

/// The replica may not learn of the key later than the sender learns that the change is safe.
#[test]
fn a_key_goes_to_the_replica_with_its_change() {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    let out = request(&mut owner, OTHER, keyed(1, 4, 7, 1.0));
    let [(to, TableMessage::ReplicaUpdate(update))] = &out[..] else { panic!("{out:?}") };
    assert_eq!((*to, update.chunks.len()), (OTHER, 1));
    assert_eq!(update.chunks[0].used_keys, Some(UsedKeys { round: 4, numbers: vec![7] }));
}

#[test]
fn a_worker_learns_that_a_copy_of_its_lease_is_done() {
    a_copy_is_done(true);
}

#[test]
fn a_worker_gets_no_lease_of_which_a_copy_is_done_before() {
    a_copy_is_done(false);
}

/// `has_arrived`: the worker has its lease already when another one completes a copy of it.
fn a_copy_is_done(has_arrived: bool) {
    let mut owner = owner(TableRule::Sum, ApplyMode::Immediate);
    owner.lease_policy = LeasePolicy {
        epochs: 1,
        samples: 4,
        portions: NonZeroU64::new(1).map(Portions::PerWorker),
        ..LeasePolicy::default()
    };
    let lease = |lease_number| Request::Lease { lease_number, samples: 9, may_wait: true };
    request(&mut owner, ME, lease(1));
    request(&mut owner, OTHER, lease(1));
    if has_arrived {
        (1..=3).for_each(|number| owner.on_replica_ack(OTHER, number, &mut Vec::new()));
    }
    // Both portions are granted. The one that is done first lets its worker have a copy of the other.
    request(&mut owner, ME, complete(1, 1));
    request(&mut owner, ME, lease(2));
    let out = request(&mut owner, ME, complete(2, 2));
    let superseded = |(to, message): &(Rank, TableMessage)| match message {
        TableMessage::Response(Response::Superseded { lease_number: 1 }) => *to == OTHER,
        _ => false,
    };
    let nothing = |(to, message): &(Rank, TableMessage)| match message {
        TableMessage::Response(Response::Leased { lease_number: 1, lease, .. }) => {
            *to == OTHER && lease.is_empty()
        }
        _ => false,
    };
    assert_eq!((out.iter().any(superseded), out.iter().any(nothing)), (has_arrived, !has_arrived), "{out:?}");
    // It may not have got that: after a change of the view it asks again.
    let mut out = request(&mut owner, OTHER, lease(1));
    out.extend(request(&mut owner, OTHER, lease(2)));
    let trained = |message: &(Rank, TableMessage)| match &message.1 {
        TableMessage::Response(Response::Leased { trained, lease, .. }) if lease.is_empty() => *trained,
        _ => None,
    };
    assert_eq!(out.iter().find_map(trained), Some(4));
}
