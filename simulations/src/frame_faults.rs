//! Faults of a member's frames: some of those that it sends are lost, changed, repeated or late, without a word. A faulty program or memory
//! does that; a network does not. Or a member does not send them at all: it has stopped doing one of its tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::{Message, Phase, Priority, Segment, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, Instant};
use rand::Rng;
use rand::rngs::ChaCha8Rng;

use crate::filters::{Envelope, FrameAction, FrameFilter};
use crate::host::HostId;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// It does not arrive.
    Lost,
    /// It is not sent, and heartbeats do not count it.
    Withheld,
    /// A bit of it is another one.
    Changed,
    /// What the sender says in it is wrong: a value of its payload, or a digest.
    Wrong,
    /// It arrives twice.
    Repeated,
    /// It arrives later, and so do the frames behind it.
    Late(Duration),
}

/// The frames that a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameKind {
    /// All frames.
    All,
    /// Those of training.
    Training,
    /// Partial sums.
    Reduce,
    /// Final values.
    Gather,
    /// Sums for the holders of replicas.
    Mirror,
    /// Chunks, and requests for them.
    Chunks,
    /// Messages of tables.
    Tables,
    /// Those by which members agree on the next view.
    Agreement,
    /// Heartbeats.
    Heartbeats,
    /// Digests of parameters.
    Digests,
    /// Norms of the sums of shards.
    Norms,
}

impl FrameKind {
    fn contains(self, message: Option<&Message>) -> bool {
        let in_view = match message {
            Some(Message::InView { message, .. }) => Some(message),
            _ => None,
        };
        let is_of = |wanted| matches!(in_view, Some(TrainingMessage::Segment(Segment { phase, .. })) if *phase == wanted);
        match self {
            Self::All => true,
            Self::Training => in_view.is_some(),
            Self::Reduce => is_of(Phase::Reduce),
            Self::Gather => is_of(Phase::Gather),
            Self::Mirror => is_of(Phase::Mirror),
            Self::Chunks => {
                matches!(in_view, Some(TrainingMessage::ChunkBatch(_) | TrainingMessage::WantChunks(_)))
            }
            Self::Tables => matches!(in_view, Some(TrainingMessage::Tables)),
            Self::Agreement => matches!(message, Some(Message::Agreement(_))),
            Self::Heartbeats => matches!(message, Some(Message::Heartbeat(_))),
            Self::Digests => matches!(in_view, Some(TrainingMessage::ParametersDigest(_))),
            Self::Norms => matches!(in_view, Some(TrainingMessage::ShardNorm(_))),
        }
    }
}

/// A host whose frames have a fault.
pub(crate) struct FaultyFrames {
    /// The host.
    pub(crate) host: HostId,
    /// The fault.
    pub(crate) fault: FrameFault,
    /// Which of its frames may have it.
    pub(crate) kind: FrameKind,
    /// How many of a million frames have it.
    pub(crate) per_million: u32,
    /// When the fault ends; `None` if it does not.
    pub(crate) until: Option<Instant>,
    /// The source of chance.
    pub(crate) generator: ChaCha8Rng,
    /// What heartbeats must not count.
    pub(crate) withheld: CountCorrection,
}

impl FrameFilter for FaultyFrames {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        if envelope.from != self.host {
            return FrameAction::Pass;
        }
        let message = envelope.message();
        let is_over = self.until.is_some_and(|until| envelope.at >= until);
        if is_over || !self.kind.contains(message.as_ref()) || !self.is_chosen() {
            let corrected = self.withheld.correct(envelope.to, message);
            return corrected.map_or(FrameAction::Pass, |frame| FrameAction::Replace(vec![frame]));
        }
        match self.fault {
            FrameFault::Lost => FrameAction::Drop,
            FrameFault::Withheld => {
                self.withheld.add(envelope.to, envelope.frame.priority(), -1);
                FrameAction::Drop
            }
            FrameFault::Late(delay) => FrameAction::Delay(delay),
            FrameFault::Repeated => FrameAction::Replace(vec![copy(envelope.frame), copy(envelope.frame)]),
            FrameFault::Changed => {
                let mut frame = copy(envelope.frame);
                let bit = self.generator.next_u64() as usize % (8 * frame.byte_count());
                let (byte, mask) = (bit / 8, 1 << (bit % 8));
                let head_bytes = frame.head.len();
                match &mut frame.payload {
                    Some(payload) if byte >= head_bytes => payload.bytes_mut()[byte - head_bytes] ^= mask,
                    _ => frame.head[byte] ^= mask,
                }
                FrameAction::Replace(vec![frame])
            }
            FrameFault::Wrong => match message {
                Some(message) => FrameAction::Replace(vec![self.wrong(message, envelope.frame)]),
                None => FrameAction::Pass,
            },
        }
    }
}

impl FaultyFrames {
    /// The frame of this message with a wrong value or digest, as a sender that computes wrongly makes it.
    fn wrong(&mut self, mut message: Message, frame: &Frame) -> Frame {
        if let Message::InView { message: TrainingMessage::ParametersDigest(parameters), .. } = &mut message {
            parameters.digest.0[0] ^= 1;
        }
        let mut payload = frame.payload.as_ref().map(|payload| Buffer::from_bytes(payload.bytes()));
        if let Some(bytes) = payload.as_mut().map(Buffer::bytes_mut).filter(|bytes| !bytes.is_empty()) {
            let index = self.generator.next_u64() as usize % bytes.len();
            // In the lowest bits of a value, so that it stays a number of about the same size.
            bytes[index & !3] ^= 0x10;
        }
        Frame::encode(&message, payload)
    }

    /// Whether this frame has the fault.
    fn is_chosen(&mut self) -> bool {
        self.generator.next_u32() % 1_000_000 < self.per_million
    }
}

/// The difference between the frames that a node sends and those that its host sends, by receiver and priority: what the node
/// says of their number has to fit it, or the receiver would notice.
#[derive(Default)]
pub(crate) struct CountCorrection {
    /// The link of the last count, if there was one, and the difference on it.
    by_receiver: BTreeMap<(HostId, Priority), (Option<u32>, i64)>,
}

impl CountCorrection {
    /// The host sends so many more such frames than its node does.
    pub(crate) fn add(&mut self, to: HostId, priority: Priority, frames: i64) {
        self.by_receiver.entry((to, priority)).or_default().1 += frames;
    }

    /// A frame that a node sends, as its host sends it.
    pub(crate) fn corrected(&mut self, to: HostId, frame: Frame) -> Frame {
        if !Priority::ALL.iter().any(|priority| self.by_receiver.contains_key(&(to, *priority))) {
            return frame;
        }
        let message = frame.decode().ok();
        self.correct(to, message).unwrap_or(frame)
    }

    /// The frame of a message with the count that fits; `None` if the message has no count, or the right one.
    fn correct(&mut self, to: HostId, message: Option<Message>) -> Option<Frame> {
        let mut message = message?;
        let (sent, priority) = match &mut message {
            Message::Heartbeat(heartbeat) => (&mut heartbeat.sent, Priority::Urgent),
            Message::FrameCount { sent, .. } => (sent, Priority::Normal),
            _ => return None,
        };
        let (known, difference) = self.by_receiver.get_mut(&(to, priority))?;
        if known.replace(sent.link).is_some_and(|known| known != sent.link) {
            // The count began again with the link.
            *difference = 0;
        }
        sent.count = sent.count.saturating_add_signed(*difference);
        Some(Frame::encode(&message, None))
    }
}

fn copy(frame: &Frame) -> Frame {
    let payload = frame.payload.as_ref().map(|payload| Buffer::from_bytes(payload.bytes()));
    Frame { head: frame.head.clone(), payload }
}
