//! The trace: one digest of every frame that arrived and every step that was committed. On request it keeps the last of them as text.

use std::collections::VecDeque;

use peergrad_core::io::Event;
use peergrad_protocol::message::{AgreementMessage, JoinMessage, Message, TrainingMessage};
use peergrad_protocol::{Frame, Instant};

use crate::host::HostId;

/// A hash of all events so far.
#[derive(Default)]
pub struct Trace {
    hasher: blake3::Hasher,
    lines: VecDeque<(Instant, String)>,
    lines_max: usize,
}

impl Trace {
    /// Keeps the last `count` events as text.
    pub fn keep_lines(&mut self, count: usize) {
        self.lines_max = count;
    }

    /// The last events, as text.
    pub fn lines(&self) -> impl Iterator<Item = &(Instant, String)> {
        self.lines.iter()
    }

    /// Digest of everything so far: equal for equal seeds, on machines of one kind.
    #[must_use]
    pub fn digest(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }

    /// Adds a frame that arrived.
    pub(crate) fn frame(&mut self, at: Instant, from: HostId, to: HostId, frame: &Frame) {
        self.hasher.update(&at.0.to_le_bytes()).update(&from.0.to_le_bytes()).update(&to.0.to_le_bytes());
        self.hasher.update(&frame.head);
        if let Some(payload) = &frame.payload {
            // The first four bytes stand for the payload; the digest of its effect follows with the commit.
            self.hasher.update(&payload.bytes()[..payload.byte_count().min(4)]);
        }
        if self.lines_max > 0 {
            let words = match frame.decode() {
                Ok(message) => describe(&message),
                Err(error) => format!("bytes that are not a frame ({error})"),
            };
            self.keep(at, format!("{from} -> {to}  {words}"));
        }
    }

    /// Adds an event that a node has reported to its user.
    pub(crate) fn event(&mut self, at: Instant, host: HostId, event: &Event) {
        if let Event::Committed(committed) = event {
            self.hasher.update(&at.0.to_le_bytes()).update(&host.0.to_le_bytes());
            self.hasher.update(&committed.step.0.to_le_bytes());
            if let Some(digest) = &committed.digest {
                self.hasher.update(&digest.0);
            }
        }
        if self.lines_max > 0 {
            let words = match event {
                Event::Committed(committed) => {
                    format!("commits step {} (loss {:.6})", committed.step.0, committed.loss)
                }
                Event::ViewInstalled { view, .. } => {
                    format!("installs view {} of {} members", view.number.0, view.members.len())
                }
                Event::Ended(ended) => match &ended.outcome {
                    Ok(()) => "is done".to_owned(),
                    Err(failure) => format!("ends: {failure}"),
                },
                other => format!("{other:?}"),
            };
            self.keep(at, format!("{host}  {words}"));
        }
    }

    /// Adds an action of the simulator.
    pub fn annotate(&mut self, at: Instant, words: String) {
        if self.lines_max > 0 {
            self.keep(at, format!("** {words}"));
        }
    }

    fn keep(&mut self, at: Instant, line: String) {
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back((at, line));
    }
}

fn describe(message: &Message) -> String {
    match message {
        Message::InView { message: TrainingMessage::Segment(segment), .. } => format!(
            "step {} {:?} segment {} of rank {}'s shard ({} samples)",
            segment.step.0, segment.phase, segment.index, segment.owner, segment.stats.samples
        ),
        Message::Agreement(AgreementMessage::Install(view)) => {
            format!("Install view {} of {} members", view.number.0, view.members.len())
        }
        Message::Join(JoinMessage::Welcome(_)) => "Welcome".to_owned(),
        Message::Join(JoinMessage::Data(piece)) => format!("Data from byte {}", piece.offset),
        other => format!("{other:?}"),
    }
}
