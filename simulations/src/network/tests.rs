//! The network alone: order within a link, shares of a line, and what each end learns of a connection.

use std::time::Duration;

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::id::ViewDigest;
use peergrad_protocol::message::AgreementMessage;
use peergrad_protocol::{Pool, Rank};

use super::*;
use crate::queue::Queue;

const A: HostId = HostId(0);
const B: HostId = HostId(1);
const C: HostId = HostId(2);

/// A network of three hosts that are all linked, and its queue.
struct TestNetwork {
    network: Network,
    queue: Queue<NetworkEvent>,
    now: Instant,
    delivered: Vec<(Instant, HostId, HostId, String)>,
}

impl TestNetwork {
    fn new(links: Links) -> Self {
        let mut network = Network::new(links, 7);
        for host in [A, B, C] {
            network.add(PeerId([host.0 as u8; 32]));
            network.start(host);
        }
        let mut world = Self { network, queue: Queue::default(), now: Instant::default(), delivered: vec![] };
        for (from, to) in [(A, B), (A, C), (B, C)] {
            world.network.dial(world.now, from, to);
        }
        world.run(Duration::from_secs(1));
        assert_eq!(world.delivered.drain(..).filter(|(.., event)| event == "up").count(), 6);
        world
    }

    /// Runs the network for a time.
    fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            for (at, event) in self.network.take_scheduled() {
                self.queue.push(at, event);
            }
            for Delivery { to, from, event } in self.network.take_deliveries() {
                let words = match event {
                    LinkEvent::Up => "up".to_owned(),
                    LinkEvent::Down(reason) => reason.to_owned(),
                    LinkEvent::Credit(segments) => format!("{segments} credit"),
                    LinkEvent::Frame(frame) => format!("frame {}", frame.head.last().expect("it has bytes")),
                };
                self.delivered.push((self.now, from, to, words));
            }
            match self.queue.next_at() {
                Some(at) if at <= end => {
                    let (at, event) = self.queue.pop().expect("just seen");
                    self.now = at;
                    self.network.handle(at, event);
                }
                _ => break,
            }
        }
        self.now = end;
    }

    fn send(&mut self, from: HostId, to: HostId, number: u8, bytes: usize) {
        self.send_frame(from, to, Frame { head: Vec::new(), payload: None }, number, bytes);
    }

    fn send_urgent(&mut self, from: HostId, to: HostId, number: u8, bytes: usize) {
        let vote = AgreementMessage::Withdraw {
            view: ViewDigest([0; 32]),
            ballot: Ballot { attempt: 1, rank: Rank(0) },
        };
        self.send_frame(from, to, Frame::encode(&vote.into(), None), number, bytes);
    }

    /// Sends a frame of this priority, with its number as its last byte.
    fn send_frame(&mut self, from: HostId, to: HostId, mut frame: Frame, number: u8, bytes: usize) {
        frame.head.resize(bytes, 0);
        frame.head[bytes - 1] = number;
        self.network.send(self.now, from, to, Transmission::Frame(frame), Duration::ZERO);
    }

    /// What arrived at the first host from the second, in order.
    fn heard(&self, from: HostId, to: HostId) -> Vec<&str> {
        let is_it = |(_, f, t, _): &&(Instant, HostId, HostId, String)| (*f, *t) == (from, to);
        self.delivered.iter().filter(is_it).map(|(.., words)| words.as_str()).collect()
    }
}

#[test]
fn order_is_kept_within_a_link_and_not_between_links() {
    let shaky = Links { jitter: Duration::from_millis(50), loss_per_million: 100_000, ..Links::lan() };
    let mut world = TestNetwork::new(shaky);
    for number in 0..100 {
        world.send(A, B, number, 500);
        world.send(A, C, number, 500);
    }
    world.run(Duration::from_secs(60));
    let expected: Vec<String> = (0..100).map(|number| format!("frame {number}")).collect();
    assert_eq!(world.heard(A, B), expected);
    assert_eq!(world.heard(A, C), expected);
    let receivers: Vec<HostId> = world.delivered.iter().map(|(_, _, to, _)| *to).collect();
    assert!(receivers.windows(2).any(|pair| pair[0] == pair[1]), "one link overtakes the other");
}

#[test]
fn urgent_frames_overtake_normal_ones_that_wait_and_keep_their_order() {
    let line = Links { jitter: Duration::ZERO, up: Some(8_000_000), ..Links::lan() };
    let mut world = TestNetwork::new(line);
    for number in 1..=3 {
        world.send(A, B, number, 100_000);
    }
    for number in 4..=6 {
        world.send_urgent(A, B, number, 500);
    }
    world.run(Duration::from_secs(1));
    let expected = [1, 4, 5, 6, 2, 3].map(|number| format!("frame {number}"));
    assert_eq!(world.heard(A, B), expected, "the first one is already on the line");
}

#[test]
fn flows_share_a_line_and_use_all_of_its_rate() {
    let line = Links { jitter: Duration::ZERO, up: Some(8_000_000), ..Links::lan() };
    let mut world = TestNetwork::new(line);
    // 1 MB a second: ten frames of 0.1 MB to one peer, and then one to the other.
    for number in 0..10 {
        world.send(A, B, number, 100_000);
    }
    world.send(A, C, 99, 100_000);
    let start = world.now;
    world.run(Duration::from_secs(10));
    let arrival = |to, number: u8| {
        let words = format!("frame {number}");
        let is_it = |entry: &&(Instant, HostId, HostId, String)| entry.2 == to && entry.3 == words;
        world.delivered.iter().find(is_it).expect("it arrived").0.since(start).as_millis()
    };
    assert!((200..400).contains(&arrival(C, 99)), "it waits for one or two of the others, not for ten");
    assert!((1100..1110).contains(&arrival(B, 9)), "together they take event eleven take");
}

/// Lines of 100 Mbit/s with a round trip of 100 ms.
fn long_lines(loss_per_million: u32, connections: u32) -> Links {
    let (latency, rate) = (Duration::from_millis(50), Some(100_000_000));
    Links {
        latency,
        jitter: Duration::ZERO,
        loss_per_million,
        connections,
        up: rate,
        down: rate,
        ..Links::lan()
    }
}

/// Sends so many frames of 0.1 MB to one receiver or several in turn. Returns how much of them arrived within ten seconds, in Mbit/s.
fn throughput(links: Links, receivers: &[HostId]) -> f64 {
    let mut world = TestNetwork::new(links);
    for number in 0..1250 {
        world.send(A, receivers[number % receivers.len()], 0, 100_000);
    }
    world.run(Duration::from_secs(10));
    world.delivered.len() as f64 * 0.8 / 10.0
}

/// 0.1 %: one connection has 38.73 packets of 1448 bytes in flight, by the formula of Mathis et al. What is on its way at the end is less
/// than a twentieth.
#[test]
fn losses_limit_a_link_and_each_connection_adds_as_much() {
    let one = 38.73 * 1448.0 * 8.0 / 0.1 / 1e6;
    for connections in [1, 2, 8, 16] {
        let found = throughput(long_lines(1000, connections), &[B]);
        let expected = f64::from(connections) * one;
        assert!(found < expected && found > 0.95 * expected, "{connections}: {found} of {expected} Mbit/s");
    }
    let found = throughput(long_lines(0, 1), &[B]);
    assert!(found < 100.0 && found > 95.0, "without loss {found} Mbit/s, on a line of 100");
    let found = throughput(long_lines(1000, 16), &[B, C]);
    assert!(
        found < 100.0 && found > 95.0,
        "of two links of {} Mbit/s each, a line of 100 gets {found}",
        16.0 * one
    );
    let found = throughput(long_lines(1000, 1), &[B, C]);
    assert!(
        found < 2.0 * one && found > 1.9 * one,
        "each link has a limit of its own: {found} of {}",
        2.0 * one
    );
    let no_line = Links { up: None, down: None, ..long_lines(1000, 1) };
    let found = throughput(no_line, &[B]);
    assert!(found < one && found > 0.95 * one, "without another limit, {found} of {one} Mbit/s");
}

#[test]
fn a_link_that_is_limited_leaves_the_line_to_others_and_lets_urgent_frames_overtake() {
    // A distant region: to it, a frame of 0.1 MB takes 0.18 s. To the near one it takes 0.01 s.
    let [here, far] = [0, 50].map(Duration::from_millis);
    let regions = vec![vec![here, far], vec![far, here]];
    let mut world =
        TestNetwork::new(Links { latency: Duration::from_millis(1), regions, ..long_lines(1000, 1) });
    // A and C are near, and B is not.
    for number in 0..10 {
        world.send(A, B, number, 100_000);
    }
    world.run(Duration::from_millis(1));
    world.send_urgent(A, B, 10, 500);
    world.send(A, C, 11, 100_000);
    let start = world.now;
    world.run(Duration::from_millis(170));
    assert_eq!((world.heard(A, C), world.heard(A, B)), (vec!["frame 11"], vec![]));
    world.run(Duration::from_secs(10));
    let order = [0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| format!("frame {number}"));
    assert_eq!(world.heard(A, B), order, "only the first one is already on its way");
    let last = world.delivered.last().expect("they arrived").0.since(start).as_millis();
    assert!((1700..2100).contains(&last), "{last} ms");
}

#[test]
fn a_host_finds_what_its_lines_carry_with_losses() {
    let found = |links: Links, receivers: &[HostId]| {
        let mut world = TestNetwork::new(links);
        for to in receivers {
            let payload = Some(Pool::new(1).take(1));
            world.send_frame(A, *to, Frame { head: Vec::new(), payload }, 1, 100);
        }
        let lines = world.network.take_lines(A);
        lines
            .iter()
            .map(|(_, line)| (line.round_trip.as_millis(), line.bytes_per_second / 1000))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(long_lines(0, 1), &[B]), [(100, 12_500)]);
    assert_eq!(found(long_lines(1000, 1), &[B]), [(100, 560)], "38.73 packets of 1448 bytes in 0.1 s");
    assert_eq!(found(long_lines(1000, 4), &[B]), [(100, 2243)]);
    assert_eq!(found(long_lines(1000, 16), &[B, C]), [(100, 6250); 2], "half of the line is less");
    assert_eq!(found(Links { up: None, down: None, ..long_lines(1000, 1) }, &[B]), [(100, 560)]);
}

#[test]
fn a_brief_cut_delays_frames_and_a_long_one_is_noticed_by_both_ends() {
    let mut world = TestNetwork::new(Links::lan());
    world.network.cut(world.now, A, B);
    world.send(A, B, 1, 100);
    world.send(B, A, 2, 100);
    world.run(Duration::from_secs(4));
    assert_eq!((world.heard(A, B), world.heard(B, A)), (vec![], vec!["frame 2"]));
    world.network.heal(world.now, A, B);
    world.run(Duration::from_secs(4));
    assert_eq!(world.heard(A, B), ["frame 1"]);

    world.network.cut(world.now, A, B);
    world.run(Duration::from_secs(11));
    assert_eq!(world.heard(A, B).last(), Some(&"nothing was heard from it"));
    // The other direction works: the end that closed the connection can report it.
    assert_eq!(world.heard(B, A).last(), Some(&"it closed the connection"));
    assert!(world.heard(C, A).is_empty() && world.heard(C, B).is_empty());
    world.network.heal(world.now, A, B);
    world.run(Duration::from_secs(20));
    assert_eq!((world.heard(A, B).last(), world.heard(B, A).last()), (Some(&"up"), Some(&"up")));
}

#[test]
fn a_power_loss_is_silent_and_a_killed_process_is_not() {
    for (crash, by) in [(Crash::Killed, 3), (Crash::PowerLost, 11)] {
        let mut world = TestNetwork::new(Links::lan());
        world.network.crash(world.now, A, crash);
        world.run(Duration::from_millis(1500));
        assert_eq!(world.heard(A, B), Vec::<&str>::new(), "half-open: nothing is known yet");
        world.run(Duration::from_secs(by));
        assert_eq!(world.heard(A, B).len(), 1);
    }
}

#[test]
fn a_goodbye_arrives_after_earlier_frames_and_ends_the_link() {
    let mut world = TestNetwork::new(Links::home());
    world.send(A, B, 1, 50_000);
    world.network.shut_down(world.now, A);
    world.run(Duration::from_secs(60));
    assert_eq!(world.heard(A, B), ["frame 1", "it left"]);
}

#[test]
fn frames_held_back_by_a_cut_arrive_before_later_ones() {
    // Each frame takes a second: when the cut is healed, the first one waits there and the second has almost arrived.
    let line = Links { jitter: Duration::ZERO, up: Some(800_000), ..Links::lan() };
    let mut world = TestNetwork::new(line);
    for number in 1..=3 {
        world.send(A, B, number, 100_000);
    }
    world.run(Duration::from_millis(10));
    world.network.cut(world.now, A, B);
    world.run(Duration::from_millis(1940));
    world.network.heal(world.now, A, B);
    world.send(A, B, 4, 100);
    // Cuts the link once more, before the frames that waited have passed.
    world.network.cut(world.now, A, B);
    world.run(Duration::from_millis(1));
    world.network.heal(world.now, A, B);
    world.run(Duration::from_secs(10));
    assert_eq!(world.heard(A, B), ["frame 1", "frame 2", "frame 3", "frame 4"]);
}

#[test]
fn a_line_that_becomes_faster_keeps_the_order_of_waiting_frames() {
    let mut world = TestNetwork::new(Links { up: None, down: None, ..Links::lan() });
    world.network.throttle(A, Some(8_000_000), None);
    for number in 1..=3 {
        world.send(A, B, number, 100_000);
    }
    world.run(Duration::from_millis(10));
    world.network.throttle(A, None, None);
    world.send(A, B, 4, 100);
    world.run(Duration::from_secs(10));
    assert_eq!(world.heard(A, B), ["frame 1", "frame 2", "frame 3", "frame 4"]);
}

#[test]
fn a_process_that_died_on_a_sleeping_machine_links_again_when_restarted() {
    let mut world = TestNetwork::new(Links::lan());
    world.network.sleep(world.now, A);
    world.network.crash(world.now, A, Crash::Killed);
    world.run(Duration::from_secs(20));
    world.network.start(A);
    world.network.dial(world.now, A, B);
    world.run(Duration::from_secs(1));
    assert_eq!(world.heard(A, B).last(), Some(&"up"));
}

/// A peer that still believes in a connection to the former process is told by the machine, as soon as it sends something.
#[test]
fn a_restarted_process_knows_no_connections_of_its_predecessor() {
    let mut world = TestNetwork::new(Links::lan());
    world.network.crash(world.now, A, Crash::PowerLost);
    world.network.start(A);
    world.run(Duration::from_secs(20));
    assert_eq!(world.heard(A, B), Vec::<&str>::new());
    world.send(B, A, 1, 100);
    world.run(Duration::from_secs(1));
    assert_eq!(world.heard(A, B), ["its connection was reset and did not come back"]);
    assert_eq!(world.heard(B, A), Vec::<&str>::new());
}

#[test]
fn a_goodbye_that_does_not_arrive_looks_like_silence() {
    let mut world = TestNetwork::new(Links::lan());
    world.network.throttle(A, Some(1), None);
    world.send(A, B, 1, 100_000);
    world.network.shut_down(world.now, A);
    world.run(Duration::from_secs(11));
    assert_eq!(world.heard(A, B), ["nothing was heard from it"]);
}

#[test]
fn a_sleeping_machine_notices_nothing_until_it_wakes_up() {
    let mut world = TestNetwork::new(Links::lan());
    world.network.cut(world.now, B, A);
    world.network.sleep(world.now, A);
    world.run(Duration::from_secs(7));
    assert_eq!(world.heard(A, B), Vec::<&str>::new());
    world.run(Duration::from_secs(20));
    // B has closed the connection by itself, and A cannot hear that.
    assert_eq!((world.heard(A, B), world.heard(B, A)), (vec!["nothing was heard from it"], vec![]));
    world.network.wake(world.now, A);
    world.run(Duration::from_secs(11));
    assert_eq!(world.heard(B, A), ["nothing was heard from it"]);
}
