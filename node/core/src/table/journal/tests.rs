//! Tests of the members that keep a journal, message by message.

use peergrad_protocol::table::{Request, RowSet, Rows};
use peergrad_protocol::{Incarnation, PeerId};

use super::*;
use crate::table::Table;

fn worker(byte: u8) -> WorkerId {
    WorkerId { peer: PeerId([byte; 32]), incarnation: Incarnation(1) }
}

/// A view of these members, of which the first owns all chunks. All members keep the journals of all others.
fn replica_map(members: &[u8]) -> Arc<ReplicaMap> {
    let holders: Vec<Rank> = (0..members.len()).map(Rank::from_index).collect();
    Arc::new(ReplicaMap {
        members: members.iter().map(|byte| worker(*byte)).collect(),
        holders: vec![holders; 2],
        ..ReplicaMap::default()
    })
}

/// The journal of the second member.
fn journal(members: &[u8]) -> Journal {
    let mut journal = Journal::new(Arc::new(TableLayout::new(vec![Table::additive("counts", 32, 1)])));
    journal.enter(Rank(1), replica_map(members), &mut Vec::new());
    journal
}

fn keep(byte: u8, sequence: u64, chunk: u32, ends_transaction: bool) -> JournalMessage {
    let rows =
        Rows { indices: RowSet::range(u64::from(chunk) * 16..u64::from(chunk) * 16 + 1), values: vec![1.0] };
    let change = TableChange { sequence, chunk, key: None, operation: Operation::Add { clock: 0, rows } };
    JournalMessage::Keep { worker: worker(byte), change, ends_transaction }
}

/// The numbers of the changes that are sent to their owner in the place of a worker.
fn replayed(out: &mut Outbox) -> Vec<u64> {
    let number = |message: (Rank, TableMessage)| match message {
        (Rank(0), TableMessage::Request(Request::Replay { change, .. })) => Some(change.sequence),
        _ => None,
    };
    std::mem::take(out).into_iter().filter_map(number).collect()
}

#[test]
fn whole_units_of_a_lost_worker_are_sent_in_its_place_after_other_keepers_have_them() {
    let mut journal = journal(&[1, 2, 3, 4]);
    let mut out = Vec::new();
    for (sequence, chunk, ends_transaction) in [(1, 0, false), (2, 1, true), (3, 0, true), (4, 0, false)] {
        journal.on_message(Rank(2), keep(3, sequence, chunk, ends_transaction), &mut out).unwrap();
    }
    let kept = |up_to| (Rank(2), TableMessage::Journal(JournalMessage::Kept { worker: worker(3), up_to }));
    assert_eq!(out, [kept(2), kept(3)]);
    out.clear();
    journal.on_message(Rank(2), JournalMessage::Forget { worker: worker(3), up_to: 2 }, &mut out).unwrap();
    journal.enter(Rank(1), replica_map(&[1, 2, 4]), &mut out);
    assert!(!journal.has_replayed() && replayed(&mut out).is_empty());
    assert_eq!(journal.awaited(), BTreeSet::from([Rank(0), Rank(2)]));
    for rank in [Rank(0), Rank(2)] {
        let kept = JournalMessage::Kept { worker: worker(3), up_to: 3 };
        journal.on_message(rank, kept, &mut out).unwrap();
    }
    assert_eq!(replayed(&mut out), [3], "what is safe, and what is incomplete, is not sent");
    assert!(journal.has_replayed() && !journal.is_settled());
    // The next view comes before the owner has answered.
    journal.enter(Rank(1), replica_map(&[1, 2]), &mut out);
    let kept = JournalMessage::Kept { worker: worker(3), up_to: 3 };
    journal.on_message(Rank(0), kept, &mut out).unwrap();
    assert_eq!(replayed(&mut out), [3]);
    journal.on_acknowledged(Rank(0), worker(3), 3, &mut out);
    assert!(journal.is_settled());
    let forget = JournalMessage::Forget { worker: worker(3), up_to: 3 };
    assert!(out.contains(&(Rank(0), TableMessage::Journal(forget))), "{out:?}");
}

#[test]
fn changes_that_no_correct_worker_sends_are_refused_and_not_kept() {
    let mut journal = journal(&[1, 2, 3]);
    let mut out = Vec::new();
    for (message, error) in [
        (keep(1, 1, 0, true), TableError::OtherWorker),
        (keep(3, 1, 2, true), TableError::NoChunk(2)),
        (JournalMessage::Forget { worker: worker(1), up_to: 1 }, TableError::OtherWorker),
    ] {
        assert_eq!(journal.on_message(Rank(2), message, &mut out), Err(error));
    }
    // A transaction that has a chunk twice could be of any size.
    journal.on_message(Rank(2), keep(3, 1, 1, false), &mut out).unwrap();
    for (sequence, chunk) in [(1, 1), (2, 1), (3, 0), (4, 1)] {
        let refused = journal.on_message(Rank(2), keep(3, sequence, chunk, true), &mut out);
        assert_eq!(refused, Err(TableError::OutOfOrder));
    }
    assert!(out.is_empty());
    // In the next view the worker begins again, and a change that comes again is not kept twice.
    journal.enter(Rank(1), replica_map(&[1, 2, 3]), &mut out);
    for _ in 0..2 {
        journal.on_message(Rank(2), keep(3, 1, 1, true), &mut out).unwrap();
    }
    assert_eq!(out.len(), 2);
    assert_eq!(journal.kept[&worker(3)].whole.len(), 1);
}

/// If a worker is gone, several members may send its changes. They may lack different ones, which are safe.
#[test]
fn several_members_send_the_changes_of_a_worker_that_is_gone() {
    let mut journal = journal(&[1, 2, 4]);
    let mut out = Vec::new();
    let mut tell = |journal: &mut Journal, from, message| journal.on_message(Rank(from), message, &mut out);
    tell(&mut journal, 0, keep(3, 5, 0, false)).unwrap();
    tell(&mut journal, 2, keep(3, 5, 0, false)).unwrap();
    tell(&mut journal, 2, keep(3, 7, 1, true)).unwrap();
    // What one of them does wrong does not concern the other.
    assert_eq!(tell(&mut journal, 2, keep(3, 9, 1, false)), Ok(()));
    assert_eq!(tell(&mut journal, 2, keep(3, 10, 0, false)), Err(TableError::OutOfOrder));
    tell(&mut journal, 0, keep(3, 6, 1, true)).unwrap();
    tell(&mut journal, 0, keep(3, 8, 0, true)).unwrap();
    let kept: Vec<u64> = journal.kept[&worker(3)].whole.iter().map(|(change, _)| change.sequence).collect();
    assert_eq!(kept, [5, 7, 8]);
    let invented = |number: u16| {
        let mut key = [7; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        let worker = WorkerId { peer: PeerId(key), incarnation: Incarnation(1) };
        let change = TableChange {
            sequence: 1,
            chunk: 0,
            key: None,
            operation: Operation::Complete { last_lease: 1 },
        };
        (worker, JournalMessage::Keep { worker, change, ends_transaction: true })
    };
    for number in 1..MEMBERS_MAX as u16 {
        tell(&mut journal, 0, invented(number).1).unwrap();
    }
    let (worker, message) = invented(5000);
    assert_eq!(tell(&mut journal, 0, message), Err(TableError::TooManyDeparted(MEMBERS_MAX)));
    assert!(!journal.kept.contains_key(&worker));
}
