//! A machine that sends numbered segments to all others, as many at a time as its credit allows, and checks what it receives.

use std::collections::BTreeMap;

use peergrad_core::io::{Ended, Event, Input, Output};
use peergrad_net::{Disconnector, StateMachine};
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{
    Contact, JoinMessage, Message, Phase, Refusal, SampleStats, Segment, TrainingMessage,
};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Pool, StepNumber, ViewDigest};

/// Elements of each segment: 128 KiB.
const ELEMENTS: usize = 32 * 1024;
/// After this number of segments a frame without payload is sent.
const CONTROL_EVERY: u64 = 10;

pub(crate) struct Courier {
    pub(crate) own: PeerId,
    others: BTreeMap<PeerId, Progress>,
    contacts: Vec<Contact>,
    total: u64,
    pool: Pool,
    /// Cuts the connection on which a segment arrived, after every given number of segments; `None` cuts none.
    pub(crate) disconnector: Option<(Disconnector, u64)>,
    /// Every link that went up or down, in order.
    pub(crate) history: Vec<String>,
    has_ended: bool,
}

#[derive(Default)]
struct Progress {
    is_up: bool,
    sent: u64,
    received: u64,
    controls: u64,
    credit: u32,
}

impl Courier {
    /// Sends `total` segments to each of `others`, and ends when it has received as many from each.
    pub(crate) fn new(own: PeerId, contacts: Vec<Contact>, others: &[PeerId], total: u64) -> Self {
        let others = others.iter().filter(|peer| **peer != own).map(|peer| (*peer, Progress::default()));
        Self {
            own,
            others: others.collect(),
            contacts,
            total,
            pool: Pool::new(64),
            disconnector: None,
            history: vec![],
            has_ended: false,
        }
    }

    fn on_frame(&mut self, from: PeerId, frame: &Frame, out: &mut Vec<Output>) {
        let message = frame.decode().expect("frames arrive as they were sent");
        let progress = self.others.get_mut(&from).expect("frames come from those who take part");
        assert!(progress.is_up, "a frame from {from} before its link");
        match message {
            Message::InView { message: TrainingMessage::Segment(segment), .. } => {
                assert_eq!(segment.step, StepNumber(progress.received), "segments of {from} in order");
                let payload = frame.payload.as_ref().unwrap();
                assert_eq!(payload.len(), ELEMENTS);
                assert_contents(payload, from, progress.received);
                progress.received += 1;
                out.push(Output::Credit { to: from, segments: 1 });
                if let Some((disconnector, every)) = &self.disconnector
                    && progress.received.is_multiple_of(*every)
                {
                    disconnector.disconnect(from);
                }
            }
            Message::Join(JoinMessage::Refuse(Refusal::Full)) => progress.controls += 1,
            other => panic!("nobody sent {other:?}"),
        }
    }

    fn send_what_may_go(&mut self, out: &mut Vec<Output>) {
        for (peer, progress) in &mut self.others {
            while progress.is_up && progress.credit > 0 && progress.sent < self.total {
                let number = progress.sent;
                if number % CONTROL_EVERY == 0 {
                    out.push(Output::Send {
                        to: *peer,
                        frame: Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None),
                    });
                }
                let mut payload = self.pool.take(ELEMENTS);
                fill(&mut payload, self.own, number);
                let frame = Frame::encode(&segment(number), Some(payload));
                out.push(Output::Send { to: *peer, frame });
                progress.sent += 1;
                progress.credit -= 1;
            }
        }
    }

    fn is_done(&self) -> bool {
        let controls = self.total.div_ceil(CONTROL_EVERY);
        self.others.values().all(|progress| {
            progress.sent == self.total && progress.received == self.total && progress.controls == controls
        })
    }
}

impl StateMachine for Courier {
    fn handle(&mut self, _: Instant, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Tick => out.extend(self.contacts.drain(..).map(Output::Dial)),
            Input::LinkUp(peer) => {
                self.history.push(format!("up {}", peer.short()));
                let progress = self.others.entry(peer).or_default();
                (progress.is_up, progress.credit) = (true, LINK_SEGMENTS);
            }
            Input::LinkDown { peer, reason } => {
                self.history.push(format!("down {} {reason}", peer.short()));
                self.others.get_mut(&peer).unwrap().is_up = false;
            }
            Input::Frame { from, frame } => self.on_frame(from, &frame, out),
            Input::Credit { peer, segments } => {
                let progress = self.others.get_mut(&peer).unwrap();
                progress.credit += segments;
                assert!(progress.credit <= LINK_SEGMENTS, "credit for what was never sent");
            }
            Input::LineMeasured { .. }
            | Input::UplinkMeasured { .. }
            | Input::UplinkBusy(_)
            | Input::BadStream(_) => {}
            other => panic!("no reason for {other:?}"),
        }
        self.send_what_may_go(out);
        if self.is_done() && !self.has_ended {
            self.has_ended = true;
            out.push(Output::Event(Event::Ended(Ended { outcome: Ok(()), state: None })));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// The message of segment `number`.
pub(crate) fn segment(number: u64) -> Message {
    let stats = SampleStats { samples: 1, loss: 0.5 };
    let view = ViewDigest([3; 32]);
    let step = StepNumber(number);
    TrainingMessage::Segment(Segment { step, phase: Phase::Reduce, owner: 0, index: 0, stats }).in_view(view)
}

/// Every element depends on the sender, the segment's number and the element's index.
fn element(sender: PeerId, number: u64, index: usize) -> f32 {
    let mixed = number.wrapping_mul(0x9e37_79b9)
        ^ u64::from(sender.0[0])
        ^ (index as u64).wrapping_mul(2_654_435_761);
    (mixed as u32 >> 8) as f32
}

fn fill(payload: &mut Buffer, sender: PeerId, number: u64) {
    payload.iter_mut().enumerate().for_each(|(index, value)| *value = element(sender, number, index));
}

fn assert_contents(payload: &Buffer, sender: PeerId, number: u64) {
    let is_right =
        |(index, value): (usize, &f32)| value.to_bits() == element(sender, number, index).to_bits();
    assert!(payload.iter().enumerate().all(is_right), "segment {number} of {sender} is damaged");
}
