//! The page of a sweep: what [`peergrad_page::sweep`] draws of its results.

use peergrad_config::sweep::{Job, SweepSpecification, TrialResult};
use peergrad_page::comparison::QualityMetric;
use peergrad_page::sweep::{SweepPage, SweptKey, TrialPoint, render};

use super::monitor::SweepSnapshot;
use super::table::{best_text, ranked_rows, trial_text};

/// The page as HTML.
pub(super) fn page(sweep: &SweepSpecification, snapshot: &SweepSnapshot) -> String {
    let has_classes = snapshot.done().any(|(_, _, result)| result.accuracy.is_some());
    let worth = if has_classes { QualityMetric::Accuracy } else { QualityMetric::Loss };
    let keys: Vec<SweptKey> = (0..sweep.sweep.keys.len()).map(|index| key(sweep, index)).collect();
    let point = |(number, job, result)| point(sweep, snapshot, &keys, (number, job, result), has_classes);
    let points: Vec<TrialPoint> = snapshot.done().map(point).collect();
    let epochs = |rung| sweep.epochs(Job { trial: 0, rung });
    let rungs: Vec<u64> = (0..sweep.sweep.strategy.rungs()).map(epochs).collect();
    let about = best_text(sweep, snapshot);
    let rows = ranked_rows(sweep, snapshot, usize::MAX);
    render(&SweepPage {
        about: about.trim_end(),
        rows: &rows,
        worth,
        keys: &keys,
        points: &points,
        rungs: &rungs,
    })
}

/// A key, with its choices if not all of its values are numbers.
fn key(sweep: &SweepSpecification, index: usize) -> SweptKey {
    let name = sweep.sweep.keys[index].clone();
    let numbers: Vec<Option<f64>> =
        (0..sweep.trials.len()).map(|trial| sweep.trial_values(trial)[index].1.as_f64()).collect();
    if numbers.iter().all(Option::is_some) {
        return SweptKey { name, choices: vec![] };
    }
    let mut choices: Vec<String> = Vec::new();
    for trial in &sweep.trials {
        if !choices.contains(&trial.values[index]) {
            choices.push(trial.values[index].clone());
        }
    }
    SweptKey { name, choices }
}

fn point(
    sweep: &SweepSpecification,
    snapshot: &SweepSnapshot,
    keys: &[SweptKey],
    (number, job, result): (usize, Job, TrialResult),
    has_classes: bool,
) -> TrialPoint {
    let numbers = sweep.trial_values(job.trial);
    let texts = &sweep.trials[job.trial].values;
    let value = |(index, key): (usize, &SweptKey)| {
        let place = key.choices.iter().position(|choice| *choice == texts[index]);
        place.map_or_else(|| numbers[index].1.as_f64().unwrap_or(f64::NAN), |place| place as f64)
    };
    let worth = match result.accuracy {
        _ if result.diverged => f64::NAN,
        Some(accuracy) if has_classes => accuracy.into(),
        _ => result.loss.into(),
    };
    TrialPoint {
        trial: job.trial,
        label: trial_text(sweep, job, &result),
        values: keys.iter().enumerate().map(value).collect(),
        rung: job.rung,
        worth,
        is_best: snapshot.best() == Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::sweep::table::tests::{sweep, trained};

    #[test]
    fn numbers_have_an_axis_and_other_values_are_choices() {
        let sweep = sweep(&["optimizer.rate=0.001,0.1", "model.hidden=[4],[8]"]);
        let page = page(&sweep, &trained(&sweep));
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<circle").count(), 2 * 4);
        assert!(page.contains("Sweep of optimizer.rate, model.hidden"), "{page}");
        assert!(page.contains(">[8]</text>") && page.contains("<td>[8]</td>"), "{page}");
        assert!(page.contains("best: trial 4"), "{page}");
    }
}
