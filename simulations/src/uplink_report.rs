//! The uplink of a process, as the cluster reports it to the node before a tick: whether frames wait, and what the lines to their receivers
//! carry.
//!
//! A real peer measures its lines from frames and their acknowledgements. Here their rates and latencies are known. The rate that a link
//! would find is its part of the uplink, which those to which tensors are sent share, and at most what the receiver takes in.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_core::io::{Input, LONG_ROUND_TRIP, Line};
use peergrad_protocol::{Instant, PeerId};

/// What a node was last told of its uplink.
#[derive(Default)]
pub(crate) struct UplinkReport {
    /// Whether frames waited.
    is_busy: bool,
    /// How many bytes a second the long lines carried together, and when that was measured.
    uplink: Option<(u64, Instant)>,
    /// What each line carried, and when that was measured.
    lines: BTreeMap<PeerId, (Line, Instant)>,
}

impl UplinkReport {
    /// A link has ended: what was known of its line is forgotten.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.lines.remove(peer);
    }

    /// What the node is to be told: whether frames wait, and what the lines carry over which it has sent tensors.
    pub(crate) fn news(&mut self, now: Instant, is_busy: bool, lines: Vec<(PeerId, Line)>) -> Vec<Input> {
        let mut news = Vec::new();
        if std::mem::replace(&mut self.is_busy, is_busy) != is_busy {
            news.push(Input::UplinkBusy(is_busy));
        }
        let long = lines.iter().map(|(_, line)| line).filter(|line| line.round_trip >= LONG_ROUND_TRIP);
        // They share the uplink.
        let together = long.map(|line| line.bytes_per_second).sum();
        if together > 0 && self.uplink.is_none_or(|(before, at)| together >= before || now.since(at) > RECENT)
        {
            let before = self.uplink.replace((together, now));
            if before.is_none_or(|(before, _)| before != together) {
                news.push(Input::UplinkMeasured { bytes_per_second: together });
            }
        }
        for (peer, line) in lines {
            let is_as_large = |before: Line| line.bytes_per_second >= before.bytes_per_second;
            let known = self.lines.get(&peer).copied();
            if known.is_none_or(|(before, at)| is_as_large(before) || now.since(at) > RECENT) {
                self.lines.insert(peer, (line, now));
                if known.is_none_or(|(before, _)| before != line) {
                    news.push(Input::LineMeasured { peer, line });
                }
            }
        }
        news
    }
}

/// How long the largest rate counts.
const RECENT: Duration = Duration::from_secs(10);
