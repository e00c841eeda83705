//! Clocks: each process log's times, as one clock would have shown them.
//!
//! Hosts' clocks differ, by milliseconds or by hours. But all members learn of a committed step within about the time of a step, and enter
//! a view at about the same time. So for two process logs with the same steps, the time differences are close to the difference of the
//! clocks, and the median of many is accurate.
//!
//! The process log with the most such events is the reference; the others are aligned with it, or with aligned ones, as far as they share
//! events. A log that shares none keeps its own time, or gets the offset of another process log of the same peer.

use std::collections::BTreeMap;

use peergrad_protocol::{PeerId, ViewDigest};

use super::reader::{LineContent, ProcessLog, StepId};

/// How the clock of one process log was aligned.
#[derive(Clone, Copy, Debug)]
pub struct ClockOffset {
    /// The peer that wrote the log.
    pub peer: PeerId,
    /// The peer's incarnation.
    pub incarnation: u64,
    /// Seconds that were added to its times.
    pub added: f64,
    /// Number of shared events that were used; 0 for the reference.
    pub points: usize,
    /// Median distance of these events from the reference afterwards, in seconds.
    pub spread: f64,
}

/// An event that several logs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Step(StepId),
    View(ViewDigest),
}

/// Aligns the clocks.
pub fn align(process_logs: &mut [ProcessLog]) -> Vec<ClockOffset> {
    let points: Vec<BTreeMap<Point, f64>> = process_logs.iter().map(points_of).collect();
    let mut waiting: Vec<usize> = (0..process_logs.len()).collect();
    // The log with the most events is at the end.
    waiting.sort_by_key(|index| (points[*index].len(), std::cmp::Reverse(*index)));
    let mut known: BTreeMap<Point, f64> = BTreeMap::new();
    let mut clock_offsets: BTreeMap<usize, ClockOffset> = BTreeMap::new();
    while let Some(next) = next(&waiting, &points, &known) {
        let index = waiting.remove(next);
        let process_log = &process_logs[index];
        let differences =
            points[index].iter().filter_map(|(point, at)| Some(known.get(point)? - at)).collect::<Vec<_>>();
        let of_peer =
            clock_offsets.values().find(|offset| offset.peer == process_log.peer).map(|offset| offset.added);
        let added = median(differences.clone()).or(of_peer).unwrap_or(0.0);
        let spread = median(differences.iter().map(|difference| (difference - added).abs()).collect());
        let (peer, incarnation) = (process_log.peer, process_log.incarnation);
        let offset = ClockOffset {
            peer,
            incarnation,
            added,
            points: differences.len(),
            spread: spread.unwrap_or(0.0),
        };
        clock_offsets.insert(index, offset);
        for (point, at) in &points[index] {
            known.entry(*point).or_insert(at + added);
        }
    }
    for (index, offset) in &clock_offsets {
        process_logs[*index].lines.iter_mut().for_each(|line| line.at += offset.added);
    }
    clock_offsets.into_values().collect()
}

/// The next log to align: one that shares events with aligned logs; else the one with the most events.
fn next(waiting: &[usize], points: &[BTreeMap<Point, f64>], known: &BTreeMap<Point, f64>) -> Option<usize> {
    let shares = |index: &usize| points[*index].keys().any(|point| known.contains_key(point));
    waiting.iter().rposition(shares).or(waiting.len().checked_sub(1))
}

fn points_of(process_log: &ProcessLog) -> BTreeMap<Point, f64> {
    let views = process_log.lines.iter().filter_map(|line| match &line.content {
        LineContent::View(view) => Some((Point::View(view.digest), line.at)),
        _ => None,
    });
    let steps = process_log.steps().map(|(at, step, _)| (Point::Step(step), at));
    let mut points = BTreeMap::new();
    views.chain(steps).for_each(|(point, at)| _ = points.entry(point).or_insert(at));
    points
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
