//! A lane with two connections from end to end: two endpoints in this process, with a line between them that delays what it carries. Without
//! the delay a lane keeps one connection.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use libp2p::identity::PublicKey;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{Message, Phase, SampleStats, Segment, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, Incarnation, Pool, StepNumber, ViewDigest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep_until;

use super::*;
use crate::counters::Counters;
use crate::direct::{DirectEndpoint, Joins};
use crate::identity::Identity;
use crate::keyring::Keyring;
use crate::link::{LinkEvent, Route, STALL_TIMEOUT, SessionId, Uplink, WaitingTime};
use crate::listen::{Listen, Port};
use crate::network::command::{Admission, Command, LaneReport};
use crate::network::lanes::answer;
use crate::substreams::SubstreamBehaviour;

/// One way through the line. Where a lane keeps several connections, a round trip takes at least five milliseconds.
const DELAY: Duration = Duration::from_millis(10);
/// Elements of each frame: 128 KiB.
const ELEMENTS: usize = 32 * 1024;
/// How many frames are under way.
const UNDER_WAY: u64 = 8;
/// What the second connection carries before the test goes on.
const CARRIED_BYTES: u64 = 1 << 20;
/// More frames than are sent until it has carried that.
const FRAMES_MAX: u64 = 20_000;

/// One end, without a swarm: only direct lanes.
struct End {
    lanes: Lanes,
    peer: PeerId,
    session: SessionId,
    events: mpsc::UnboundedReceiver<LinkEvent>,
    reports: mpsc::UnboundedReceiver<Command>,
    _open: watch::Sender<()>,
}

impl End {
    /// An end that answers at the returned port.
    async fn listen() -> (Self, u16) {
        let identity = Identity::generate();
        let listen = Listen { address: Some([127, 0, 0, 1].into()), port: Port::Any };
        let keyring = Keyring::new(Secret([1; 32]));
        let (endpoint, listeners) =
            DirectEndpoint::open(&identity, &keyring, &listen, u16::MAX).await.unwrap();
        let port = endpoint.port().unwrap().get();
        let ((events, heard), (reports, reported)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (keeper, open) = watch::channel(());
        let lanes = Lanes {
            opener: SubstreamBehaviour::default().opener(),
            direct_endpoint: Arc::new(endpoint),
            joins: Joins::default(),
            waiting: WaitingTime::default(),
            uplink: Uplink::default(),
            events,
            counters: Arc::new(Counters::default()),
            pool: Pool::new(UNDER_WAY as usize),
            reports,
            open,
        };
        lanes.spawn(answer(listeners.unwrap(), lanes.clone()));
        let key: PublicKey = identity.keypair().public();
        let end = Self {
            lanes,
            peer: key.to_peer_id(),
            session: SessionId::draw(Incarnation(1)),
            events: heard,
            reports: reported,
            _open: keeper,
        };
        (end, port)
    }

    /// Opens a lane of the link to the address, and sends frames as long as it lasts.
    async fn send(
        &self,
        peer: PeerId,
        address: SocketAddr,
        path: &DirectPath,
        link: &Arc<Link>,
    ) -> Result<(), LaneError> {
        let mut records = self.lanes.direct_endpoint.dial_address(peer, address).await.unwrap();
        let opening = OpenRequest { session: self.session, known: Some(link.theirs()), joins: None };
        let answer = link::open(&mut records, opening).await?;
        let (number, _) = link.outbox.start_lane(answer.acknowledgement)?.unwrap();
        let joining = answer.token.map(|_| OpenRequest { joins: answer.token, ..opening });
        let lane = OutgoingLane { peer, path, link, number, patience: STALL_TIMEOUT, joining };
        self.lanes.send_directly(records, lane).await
    }
}

/// Lets in all lanes of the link.
async fn admit(mut reports: mpsc::UnboundedReceiver<Command>, link: Arc<Link>, session: SessionId) {
    while let Some(command) = reports.recv().await {
        if let Command::Report(_, LaneReport::OpenRequested { reply, .. }) = command {
            let (link, lane) = (Arc::clone(&link), link.inbox.start_lane());
            reply.send(Admission::Welcome { link, lane, session }).unwrap();
        }
    }
}

/// A line to a port of this machine.
struct Line {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<Connection>>>,
}

/// A connection that the line carries.
struct Connection {
    /// How many bytes it has carried towards the port.
    carried: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Line {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = Self { address: listener.local_addr().unwrap(), connections: Arc::default() };
        let connections = Arc::clone(&line.connections);
        tokio::spawn(async move {
            loop {
                let near = listener.accept().await.unwrap().0;
                let carried = Arc::<AtomicU64>::default();
                let counted = Arc::clone(&carried);
                let task = tokio::spawn(async move {
                    let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::join!(carry(near_in, far_out, counted), carry(far_in, near_out, Arc::default()));
                });
                connections.lock().unwrap().push(Connection { carried, task: task.abort_handle() });
            }
        });
        line
    }

    /// What each connection has carried.
    fn carried(&self) -> Vec<u64> {
        let connections = self.connections.lock().unwrap();
        connections.iter().map(|connection| connection.carried.load(Ordering::Relaxed)).collect()
    }

    fn cut(&self, index: usize) {
        self.connections.lock().unwrap()[index].task.abort();
    }
}

/// Carries what comes in one direction, late.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, carried: Arc<AtomicU64>) {
    let (delayed, mut due) = mpsc::unbounded_channel();
    let reading = async move {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            let _ = delayed.send((Instant::now() + DELAY, bytes[..count].to_vec()));
        }
    };
    let writing = async move {
        while let Some((time, bytes)) = due.recv().await {
            sleep_until(time).await;
            carried.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}

/// Numbered frames from one end of a link to the other.
struct Frames {
    link: Arc<Link>,
    events: mpsc::UnboundedReceiver<LinkEvent>,
    sent: u64,
    received: u64,
}

impl Frames {
    /// Sends frames, and checks that they arrive in order, each once, until the condition holds.
    async fn carry_until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.sent < FRAMES_MAX, "the second connection carries nothing");
            while self.sent < self.received + UNDER_WAY {
                self.link.send(frame(self.sent));
                self.sent += 1;
            }
            if let LinkEvent::Frame { frame, .. } = self.events.recv().await.unwrap() {
                let payload = Buffer::from_values(&[self.received as f32; ELEMENTS]);
                assert_eq!(frame.decode().unwrap(), segment(self.received));
                assert!(frame.payload.unwrap()[..] == payload[..], "frame {} is damaged", self.received);
                self.received += 1;
            }
        }
    }
}

fn segment(number: u64) -> Message {
    let (step, stats) = (StepNumber(number), SampleStats { samples: 1, loss: 0.5 });
    let segment = Segment { step, phase: Phase::Reduce, owner: 0, index: 0, stats };
    TrainingMessage::Segment(segment).in_view(ViewDigest([3; 32]))
}

fn frame(number: u64) -> Frame {
    Frame::encode(&segment(number), Some(Buffer::from_values(&[number as f32; ELEMENTS])))
}

#[tokio::test]
async fn frames_arrive_in_order_over_two_connections_and_after_one_of_them_breaks() {
    let ((near, _), (far, port)) = (End::listen().await, End::listen().await);
    let line = Line::to(port).await;
    // The path knows only an address where nobody listens.
    let path = DirectPath::new(Instant::now());
    path.note_host("203.0.113.1".to_owned());
    path.note_stripe_count(2);
    let ids = [1, 2].map(|byte| peergrad_protocol::PeerId([byte; 32]));
    let link = Arc::new(Link::new(ids[1], far.session, Route::Straight));
    let far_link = Arc::new(Link::new(ids[0], near.session, Route::Straight));
    tokio::spawn(admit(far.reports, far_link, far.session));
    let mut frames = Frames { link: Arc::clone(&link), events: far.events, sent: 0, received: 0 };

    let mut lane = Box::pin(near.send(far.peer, line.address, &path, &link));
    let second_carries = |_: &Frames| line.carried().get(1).is_some_and(|second| *second >= CARRIED_BYTES);
    tokio::select! {
        ended = &mut lane => panic!("the lane has ended: {ended:?}"),
        () = frames.carry_until(second_carries) => {}
    }
    assert!(link.stripe_count() >= Some(2));
    line.cut(1);
    let ended = lane.await;
    assert!(matches!(ended, Err(LaneError::Broken(_))), "{ended:?}");

    let last = frames.sent + 100;
    tokio::select! {
        ended = near.send(far.peer, line.address, &path, &link) => panic!("the lane has ended: {ended:?}"),
        () = frames.carry_until(|frames| frames.received >= last) => {}
    }
}
