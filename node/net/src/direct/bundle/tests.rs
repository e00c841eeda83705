//! Both ends of a bundle, over real connections: order, changes of the stripes, and stripes that break.

use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::*;
use crate::direct::handshake::tests::record_pairs;
use crate::link::LaneError;

/// Both ends of a lane, and what adds stripes at each.
struct Lane {
    sender: BundleSender,
    receiver: BundleReceiver,
    changes: mpsc::UnboundedSender<Change>,
    joining: mpsc::Sender<Stripe>,
}

fn stripe(records: Records) -> Stripe {
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    Stripe { records, place }
}

impl Lane {
    /// A lane with one stripe, and connections that may become others.
    async fn open(more: usize) -> (Self, Vec<(Records, Records)>) {
        let mut pairs = record_pairs(1 + more).await;
        let (near, far) = pairs.pop().unwrap();
        let ((changes, changed), (joining, joined)) = (mpsc::unbounded_channel(), mpsc::channel(4));
        let (sender, receiver) =
            (BundleSender::new(near, changed), BundleReceiver::new(far, joined, Arc::default()));
        (Self { sender, receiver, changes, joining }, pairs)
    }

    async fn add(&mut self, (near, far): (Records, Records)) {
        self.joining.send(stripe(far)).await.unwrap();
        self.changes.send(Change::Add(Box::new(stripe(near)))).unwrap();
    }

    /// Sends so many bytes, in writes of several sizes, and checks that they arrive.
    async fn carry(&mut self, byte_count: usize) {
        let sent: Vec<u8> = (0..byte_count).map(|index| (index / 251) as u8 ^ index as u8).collect();
        let mut received = vec![0; byte_count];
        let writing = async {
            for part in sent.chunks(100_003) {
                let (head, body) = part.split_at(part.len().min(60));
                self.sender.write_all(head).await.unwrap();
                self.sender.write_all(body).await.unwrap();
            }
            self.sender.flush().await.unwrap();
        };
        tokio::join!(writing, async { self.receiver.read_exact(&mut received).await.unwrap() });
        assert!(sent == received, "what arrived is not what was sent");
    }
}

#[tokio::test]
async fn bytes_arrive_in_order_while_stripes_come_and_go() {
    let (mut lane, mut more) = Lane::open(3).await;
    lane.carry(3_000_000).await;
    while let Some(pair) = more.pop() {
        lane.add(pair).await;
        lane.carry(3_000_000).await;
    }
    for count in [2, 1] {
        lane.changes.send(Change::Keep(count)).unwrap();
        lane.carry(3_000_000).await;
    }
    lane.carry(1).await;
    assert_eq!(lane.receiver.stripe_count(), 1, "stripes that were closed are forgotten");
}

#[tokio::test]
async fn acknowledgements_come_back_on_the_first_stripe() {
    let (mut lane, mut more) = Lane::open(1).await;
    lane.add(more.pop().unwrap()).await;
    lane.carry(100_000).await;
    lane.receiver.write_all(b"acknowledged").await.unwrap();
    lane.receiver.flush().await.unwrap();
    let mut bytes = [0; 12];
    lane.sender.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"acknowledged");
}

#[tokio::test]
async fn both_ends_notice_that_a_stripe_breaks() {
    let (mut lane, mut more) = Lane::open(2).await;
    let (near, far) = more.pop().unwrap();
    lane.changes.send(Change::Add(Box::new(stripe(near)))).unwrap();
    lane.sender.write_all(b"a piece").await.unwrap();
    drop(far);
    let error = LaneError::from(lane.sender.read(&mut [0]).await.unwrap_err());
    assert!(!error.is_violation(), "a piece may be lost: {error}");

    let (mut lane, mut more) = Lane::open(1).await;
    let (mut near, far) = more.pop().unwrap();
    lane.joining.send(stripe(far)).await.unwrap();
    near.write_all(&PieceHead { number: 0, byte_count: 9 }.to_bytes()).await.unwrap();
    near.close().await.unwrap();
    assert!(lane.receiver.read(&mut [0]).await.is_err(), "the bytes of the piece are missing");
}

#[tokio::test]
async fn what_is_not_a_piece_is_refused() {
    for head in
        [PieceHead { number: 0, byte_count: 0 }, PieceHead { number: 0, byte_count: PIECE_BYTES_MAX + 1 }]
    {
        let error = PieceHead::from_bytes(head.to_bytes(), 0).unwrap_err();
        assert!(LaneError::from(error).is_violation(), "{head:?}");
    }
    let repeated = PieceHead { number: 6, byte_count: 1 };
    assert!(LaneError::from(PieceHead::from_bytes(repeated.to_bytes(), 7).unwrap_err()).is_violation());

    // Nothing comes back on an added stripe.
    let (mut lane, mut more) = Lane::open(1).await;
    let (near, mut far) = more.pop().unwrap();
    lane.changes.send(Change::Add(Box::new(stripe(near)))).unwrap();
    lane.sender.write_all(b"a piece").await.unwrap();
    far.write_all(b"no acknowledgement").await.unwrap();
    far.flush().await.unwrap();
    assert!(LaneError::from(lane.sender.read(&mut [0]).await.unwrap_err()).is_violation());

    // A piece that never has its turn only waits.
    let (near, far) = record_pairs(1).await.pop().unwrap();
    let (mut near, (_joining, joined)) = (near, mpsc::channel(1));
    let mut receiver = BundleReceiver::new(far, joined, Arc::default());
    near.write_all(&PieceHead { number: 1, byte_count: 1 }.to_bytes()).await.unwrap();
    near.flush().await.unwrap();
    assert!(timeout(Duration::from_millis(50), receiver.read(&mut [0])).await.is_err());
}
