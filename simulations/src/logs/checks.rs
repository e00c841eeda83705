//! Checks: whether the logs of several peers agree, as far as the logs can show it.

use std::collections::BTreeMap;

use peergrad_protocol::view::Branch;
use peergrad_protocol::{PeerId, ViewDigest};

use super::reader::{Line, LineContent, ProcessLog, StepId, StepLine};
use crate::report::CheckResult;

/// Three checks that logs allow. `peers` are in the order of the lanes.
#[must_use]
pub fn check_results(process_logs: &[ProcessLog], peers: &[PeerId]) -> Vec<CheckResult> {
    let name = |peer: &PeerId| {
        peers.iter().position(|known| known == peer).map_or("?".to_owned(), |at| format!("p{at}"))
    };
    let verdict = |name: &str, source: &str, outcome| CheckResult {
        name: name.to_owned(),
        source: source.to_owned(),
        outcome,
    };
    let mut check_results = vec![
        verdict("all logs have one chain of views", "invariant 1", one_chain(process_logs, &name)),
        verdict("each log lists steps once, in order", "invariant 5", in_order(process_logs, &name)),
    ];
    if let Some(outcome) = same_losses(process_logs, &name) {
        check_results.push(verdict("a step has the same loss in all logs", "invariant 4", outcome));
    }
    if let Some(outcome) = same_digests(process_logs, &name) {
        check_results.push(verdict("a step has the same parameters in all logs", "invariant 4", outcome));
    }
    check_results
}

type Outcome = Result<(), String>;

/// In a branch of the run each number has one view, which follows one with the number before it.
fn one_chain(process_logs: &[ProcessLog], name: &impl Fn(&PeerId) -> String) -> Outcome {
    let mut chain: BTreeMap<(u64, Branch), (ViewDigest, PeerId)> = BTreeMap::new();
    for (process_log, view) in views(process_logs) {
        let (known, by) = *chain.entry((view.number, view.branch)).or_insert((view.digest, process_log.peer));
        if known != view.digest {
            return Err(format!(
                "view {} differs between {} and {}",
                view.number,
                name(&by),
                name(&process_log.peer)
            ));
        }
    }
    for (process_log, view) in views(process_logs) {
        let is_before = |key: &(u64, Branch)| key.0 + 1 == view.number;
        let mut before =
            chain.iter().filter(|(key, _)| is_before(key)).map(|(_, (digest, _))| digest).peekable();
        if before.peek().is_some() && !before.any(|digest| view.parents.contains(digest)) {
            return Err(format!(
                "at {}, view {} does not follow the one before it",
                name(&process_log.peer),
                view.number
            ));
        }
    }
    Ok(())
}

fn views(process_logs: &[ProcessLog]) -> impl Iterator<Item = (&ProcessLog, &super::reader::ViewLine)> {
    process_logs.iter().flat_map(|process_log| {
        process_log.lines.iter().filter_map(move |line| match &line.content {
            LineContent::View(view) => Some((process_log, view)),
            _ => None,
        })
    })
}

fn steps(process_logs: &[ProcessLog]) -> impl Iterator<Item = (&ProcessLog, StepId, &StepLine)> {
    process_logs
        .iter()
        .flat_map(|process_log| process_log.steps().map(move |(_, id, step)| (process_log, id, step)))
}

/// No process reports a step after a later one: what is committed is not undone, unless all members have stopped.
fn in_order(process_logs: &[ProcessLog], name: &impl Fn(&PeerId) -> String) -> Outcome {
    for process_log in process_logs {
        let mut last = None;
        for (_, id, step) in process_log.steps() {
            // A peer that joins another branch begins there at whatever step that branch has reached.
            let goes_back = |last: StepId| {
                let is_one_branch = id.0 == last.0 || (id.0.fork, last.0.fork) == (None, None);
                is_one_branch && id <= last
            };
            if last.is_some_and(goes_back) {
                return Err(format!(
                    "{} lists step {} after a later one",
                    name(&process_log.peer),
                    step.step
                ));
            }
            last = Some(id);
        }
    }
    Ok(())
}

/// `None` if no two logs have the same steps, or unless all logs say that members have no losses of their own.
fn same_losses(process_logs: &[ProcessLog], name: &impl Fn(&PeerId) -> String) -> Option<Outcome> {
    let is_common = |line: &Line| match line.content {
        LineContent::Prepared { has_own_losses, .. } => has_own_losses == Some(false),
        _ => true,
    };
    if !process_logs.iter().flat_map(|process_log| &process_log.lines).all(is_common) {
        return None;
    }
    let mut known: BTreeMap<StepId, (u64, PeerId)> = BTreeMap::new();
    let (mut same, mut other) = (0, Vec::new());
    for (process_log, at, step) in steps(process_logs) {
        let bits = step.loss.to_bits();
        match known.get(&at) {
            None => drop(known.insert(at, (bits, process_log.peer))),
            Some((_, by)) if *by == process_log.peer => {}
            Some((known, _)) if *known == bits => same += 1,
            Some((_, by)) => other.push((step.step, *by, process_log.peer)),
        }
    }
    match other.first() {
        None => (same > 0).then_some(Ok(())),
        Some((step, a, b)) => Some(Err(format!(
            "of {} steps in several logs, {} have two losses; the first is step {step}, at {} and {}",
            same + other.len(),
            other.len(),
            name(a),
            name(b)
        ))),
    }
}

/// `None` if no two logs have a digest of the same step.
fn same_digests(process_logs: &[ProcessLog], name: &impl Fn(&PeerId) -> String) -> Option<Outcome> {
    let mut known: BTreeMap<StepId, (&str, PeerId)> = BTreeMap::new();
    let mut compared = 0;
    for (process_log, at, step) in steps(process_logs) {
        let Some(digest) = step.digest.as_deref() else { continue };
        let (known_digest, by) = *known.entry(at).or_insert((digest, process_log.peer));
        compared += usize::from(by != process_log.peer);
        if known_digest != digest {
            return Some(Err(format!(
                "after step {}, {} and {} have different parameters",
                step.step,
                name(&by),
                name(&process_log.peer)
            )));
        }
    }
    (compared > 0).then_some(Ok(()))
}
