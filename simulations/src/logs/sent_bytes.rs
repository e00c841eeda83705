//! Bytes sent: how many each peer sent to each other one, over time.
//!
//! Each peer writes from time to time how much it has sent to, and received from, each other peer since its process started. In between,
//! the bytes are assumed to flow evenly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_protocol::PeerId;

use super::reader::{LineContent, ProcessLog};
use super::total;
use crate::history::{LineRate, Traffic};
use crate::host::HostId;

/// Bytes sent from one peer to another, over time.
pub(super) struct SentBytes {
    /// By sender and receiver: a series for each process log, as counts restart with a process.
    series: BTreeMap<(usize, usize), Vec<Series>>,
    /// By sender and receiver: the line as the sender last measured it.
    lines: BTreeMap<(usize, usize), LineRate>,
    began_at: f64,
}

/// Pairs of seconds since the beginning, and bytes sent by then.
type Series = Vec<(f64, u64)>;

impl SentBytes {
    /// Uses the senders' numbers, and the receivers' for senders without a log.
    pub(super) fn of(process_logs: &[ProcessLog], peers: &[PeerId], began_at: f64) -> Self {
        let index = |peer: &PeerId| peers.iter().position(|known| known == peer);
        let wrote: BTreeSet<PeerId> = process_logs.iter().map(|process_log| process_log.peer).collect();
        let mut series: BTreeMap<(usize, usize), Vec<Series>> = BTreeMap::new();
        let mut lines = BTreeMap::new();
        for process_log in process_logs {
            let Some(me) = index(&process_log.peer) else { continue };
            let mut of_life: BTreeMap<(usize, usize), Series> = BTreeMap::new();
            let start = process_log.began() - began_at;
            for line in &process_log.lines {
                let LineContent::Traffic { bytes, lines: measured } = &line.content else { continue };
                let known = |(peer, rate): (&PeerId, &LineRate)| Some(((me, index(peer)?), *rate));
                lines.extend(measured.iter().filter_map(known));
                for (peer, (sent, received)) in bytes {
                    // Status clients and unknown peers are not peers of the run.
                    let Some(other) = index(peer) else { continue };
                    let mut note = |edge, count: u64| {
                        let series = of_life.entry(edge).or_insert_with(|| vec![(start, 0)]);
                        series.push((line.at - began_at, count));
                    };
                    note((me, other), *sent);
                    if !wrote.contains(peer) {
                        note((other, me), *received);
                    }
                }
            }
            for (edge, one) in of_life {
                series.entry(edge).or_default().push(one);
            }
        }
        Self { series, lines, began_at }
    }

    /// All bytes sent until then.
    pub(super) fn until(&self, seconds: f64) -> u64 {
        let at = seconds - self.began_at;
        total(self.series.values().flatten().map(|one| until(one, at)))
    }

    /// The traffic in the form that a report draws.
    pub(super) fn traffic(&self, seconds: f64) -> Traffic {
        let step = Duration::from_secs_f64((seconds / SLOTS_MAX as f64).max(0.1));
        let slots = (seconds / step.as_secs_f64()).ceil() as usize;
        let mut traffic = Traffic { step, over_time: vec![0; slots.max(1)], ..Traffic::default() };
        for ((from, to), process_logs) in &self.series {
            let sent = total(process_logs.iter().filter_map(|one| Some(one.last()?.1)));
            traffic.total = traffic.total.saturating_add(sent);
            traffic.by_link.insert((HostId(*from as u32), HostId(*to as u32)), sent);
            for one in process_logs {
                spread(one, step.as_secs_f64(), &mut traffic.over_time);
            }
        }
        let hosts = |(from, to): &(usize, usize)| (HostId(*from as u32), HostId(*to as u32));
        traffic.lines = self.lines.iter().map(|(edge, rate)| (hosts(edge), *rate)).collect();
        traffic
    }
}

/// Bytes sent until then, interpolated linearly.
fn until(one: &[(f64, u64)], at: f64) -> u64 {
    let after = one.partition_point(|(time, _)| *time <= at);
    match (after.checked_sub(1).map(|index| one[index]), one.get(after)) {
        (None, _) => 0,
        (Some((_, count)), None) => count,
        (Some((from, before)), Some((to, later))) => {
            let part = (at - from) / (to - from).max(f64::EPSILON);
            before + (later.saturating_sub(before) as f64 * part) as u64
        }
    }
}

/// Distributes the bytes between two times evenly over the slots between them.
fn spread(one: &[(f64, u64)], step: f64, slots: &mut [u64]) {
    let Some(last) = slots.len().checked_sub(1) else { return };
    let slot = |at: f64| ((at / step).max(0.0) as usize).min(last);
    for pair in one.windows(2) {
        let first = slot(pair[0].0);
        let until = slot(pair[1].0).max(first);
        for (index, bytes) in slots.iter_mut().enumerate().take(until + 1).skip(first) {
            let (from, to) = (index as f64 * step, (index + 1) as f64 * step);
            let before = until_within(pair, from.max(pair[0].0));
            let sent = until_within(pair, to.max(pair[0].0)).saturating_sub(before);
            *bytes = bytes.saturating_add(sent);
        }
    }
}

fn until_within(pair: &[(f64, u64)], at: f64) -> u64 {
    until(pair, at.min(pair[1].0))
}

/// Most slots; a chart cannot show more.
const SLOTS_MAX: usize = 20_000;
