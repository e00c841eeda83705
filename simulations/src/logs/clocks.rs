//! Clocks: each life's times, as one clock would have shown them.
//!
//! Hosts' clocks differ, by milliseconds or by hours. But a step is known to be committed at all members within about the time of
//! a step, and a view is entered by all at about the same time. So of two lives that tell of the same steps, the differences lie
//! around how far their clocks are apart, and the median of many is hardly off.
//!
//! The life that tells of most is believed; the others are set by it, or by those that were, as far as they share anything. One
//! that shares nothing keeps its own time, or what was found for another life of the same peer.

use std::collections::BTreeMap;

use peergrad_protocol::{PeerId, ViewDigest};

use super::reading::{Life, Told, What};

/// How the clock of one life was set.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Whose.
    pub peer: PeerId,
    /// Which start of it.
    pub incarnation: u64,
    /// How many seconds were added to its times.
    pub added: f64,
    /// By how many things that another one tells of as well; 0: it was believed.
    pub points: usize,
    /// How far off half of them were, after that.
    pub spread: f64,
}

/// Something that several tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Step(Told),
    View(ViewDigest),
}

/// Sets the clocks.
pub fn set(lives: &mut [Life]) -> Vec<Setting> {
    let points: Vec<BTreeMap<Point, f64>> = lives.iter().map(points_of).collect();
    let mut waiting: Vec<usize> = (0..lives.len()).collect();
    // The most talkative is at the end.
    waiting.sort_by_key(|index| (points[*index].len(), std::cmp::Reverse(*index)));
    let mut known: BTreeMap<Point, f64> = BTreeMap::new();
    let mut settings: BTreeMap<usize, Setting> = BTreeMap::new();
    while let Some(next) = next(&waiting, &points, &known) {
        let index = waiting.remove(next);
        let life = &lives[index];
        let differences =
            points[index].iter().filter_map(|(point, at)| Some(known.get(point)? - at)).collect::<Vec<_>>();
        let of_peer =
            settings.values().find(|setting| setting.peer == life.peer).map(|setting| setting.added);
        let added = median(differences.clone()).or(of_peer).unwrap_or(0.0);
        let spread = median(differences.iter().map(|difference| (difference - added).abs()).collect());
        let (peer, incarnation) = (life.peer, life.incarnation);
        let setting =
            Setting { peer, incarnation, added, points: differences.len(), spread: spread.unwrap_or(0.0) };
        settings.insert(index, setting);
        for (point, at) in &points[index] {
            known.entry(*point).or_insert(at + added);
        }
    }
    for (index, setting) in &settings {
        lives[*index].lines.iter_mut().for_each(|line| line.at += setting.added);
    }
    settings.into_values().collect()
}

/// Whose turn it is: somebody who shares something with those who are set; else the most talkative.
fn next(waiting: &[usize], points: &[BTreeMap<Point, f64>], known: &BTreeMap<Point, f64>) -> Option<usize> {
    let shares = |index: &usize| points[*index].keys().any(|point| known.contains_key(point));
    waiting.iter().rposition(shares).or(waiting.len().checked_sub(1))
}

fn points_of(life: &Life) -> BTreeMap<Point, f64> {
    let views = life.lines.iter().filter_map(|line| match &line.what {
        What::View(view) => Some((Point::View(view.digest), line.at)),
        _ => None,
    });
    let steps = life.steps().map(|(at, told, _)| (Point::Step(told), at));
    let mut points = BTreeMap::new();
    views.chain(steps).for_each(|(point, at)| _ = points.entry(point).or_insert(at));
    points
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
