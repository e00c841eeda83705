//! Checks: whether the logs of several peers agree, as far as they can show it.

use std::collections::BTreeMap;

use peergrad_protocol::view::Branch;
use peergrad_protocol::{PeerId, ViewDigest};

use super::reading::{Life, StepLine, Told, What};
use crate::report::Verdict;

/// Three things that logs can show. `peers` are in the order of the lanes.
#[must_use]
pub fn verdicts(lives: &[Life], peers: &[PeerId]) -> Vec<Verdict> {
    let name = |peer: &PeerId| {
        peers.iter().position(|known| known == peer).map_or("?".to_owned(), |at| format!("p{at}"))
    };
    let verdict = |name: &str, source: &str, outcome| Verdict {
        name: name.to_owned(),
        source: source.to_owned(),
        outcome,
    };
    let mut verdicts = vec![
        verdict("all tell of one chain of views", "law 1", one_chain(lives, &name)),
        verdict("steps are told of once, in order", "law 5", in_order(lives, &name)),
    ];
    if let Some(outcome) = same_losses(lives, &name) {
        verdicts.push(verdict("a step has one loss, at all who tell of it", "law 4", outcome));
    }
    if let Some(outcome) = same_digests(lives, &name) {
        verdicts.push(verdict("a step leaves the same parameters everywhere", "law 4", outcome));
    }
    verdicts
}

type Outcome = Result<(), String>;

/// In a branch of the run each number has one view, which follows one with the number before it.
fn one_chain(lives: &[Life], name: &impl Fn(&PeerId) -> String) -> Outcome {
    let mut chain: BTreeMap<(u64, Branch), (ViewDigest, PeerId)> = BTreeMap::new();
    for (life, view) in views(lives) {
        let (known, by) = *chain.entry((view.epoch, view.branch)).or_insert((view.digest, life.peer));
        if known != view.digest {
            return Err(format!(
                "view {} is one at {} and another one at {}",
                view.epoch,
                name(&by),
                name(&life.peer)
            ));
        }
    }
    for (life, view) in views(lives) {
        let is_before = |key: &(u64, Branch)| key.0 + 1 == view.epoch;
        let mut before =
            chain.iter().filter(|(key, _)| is_before(key)).map(|(_, (digest, _))| digest).peekable();
        if before.peek().is_some() && !before.any(|digest| view.parents.contains(digest)) {
            return Err(format!(
                "at {}, view {} does not follow the one before it",
                name(&life.peer),
                view.epoch
            ));
        }
    }
    Ok(())
}

fn views(lives: &[Life]) -> impl Iterator<Item = (&Life, &super::reading::ViewLine)> {
    lives.iter().flat_map(|life| {
        life.lines.iter().filter_map(move |line| match &line.what {
            What::View(view) => Some((life, view)),
            _ => None,
        })
    })
}

fn steps(lives: &[Life]) -> impl Iterator<Item = (&Life, Told, &StepLine)> {
    lives.iter().flat_map(|life| life.steps().map(move |(_, told, step)| (life, told, step)))
}

/// No process tells of a step after a later one: what is committed is not undone, unless all have stopped.
fn in_order(lives: &[Life], name: &impl Fn(&PeerId) -> String) -> Outcome {
    for life in lives {
        let mut last = None;
        for (_, told, step) in life.steps() {
            // Whoever joins another lineage, which went on elsewhere, begins there wherever that one is.
            let goes_back = |last: Told| {
                let is_one_lineage = told.0 == last.0 || (told.0.fork, last.0.fork) == (0, 0);
                is_one_lineage && told <= last
            };
            if last.is_some_and(goes_back) {
                return Err(format!("{} tells of step {} after a later one", name(&life.peer), step.step));
            }
            last = Some(told);
        }
    }
    Ok(())
}

/// `None` where nobody tells of the same steps, or where members have losses of their own, as in programs that drift.
fn same_losses(lives: &[Life], name: &impl Fn(&PeerId) -> String) -> Option<Outcome> {
    let mut known: BTreeMap<Told, (u64, PeerId)> = BTreeMap::new();
    let (mut same, mut other) = (0, Vec::new());
    for (life, at, step) in steps(lives) {
        let bits = step.loss.to_bits();
        match known.get(&at) {
            None => drop(known.insert(at, (bits, life.peer))),
            Some((_, by)) if *by == life.peer => {}
            Some((told, _)) if *told == bits => same += 1,
            Some((_, by)) => other.push((step.step, *by, life.peer)),
        }
    }
    match other.first() {
        None if same > 0 => Some(Ok(())),
        Some((step, a, b)) if same > other.len() => Some(Err(format!(
            "of {} steps that several tell of, {} have two; the first is step {step}, at {} and {}",
            same + other.len(),
            other.len(),
            name(a),
            name(b)
        ))),
        _ => None,
    }
}

/// `None` where nobody tells of the same ones.
fn same_digests(lives: &[Life], name: &impl Fn(&PeerId) -> String) -> Option<Outcome> {
    let mut known: BTreeMap<Told, (&str, PeerId)> = BTreeMap::new();
    let mut compared = 0;
    for (life, at, step) in steps(lives) {
        let Some(digest) = step.digest.as_deref() else { continue };
        let (told, by) = *known.entry(at).or_insert((digest, life.peer));
        compared += usize::from(by != life.peer);
        if told != digest {
            return Some(Err(format!(
                "after step {}, {} and {} hold different ones",
                step.step,
                name(&by),
                name(&life.peer)
            )));
        }
    }
    (compared > 0).then_some(Ok(()))
}
