//! The results of a sweep as text and as JSON.

use std::collections::BTreeSet;

use peergrad_config::sweep::{Job, SweepSpecification, TrialResult};
use peergrad_embed::text::text_table::{count, plural, text_table};
use serde_json::{Value, json};

use super::monitor::SweepSnapshot;

/// One result in a line.
pub(super) fn trial_text(sweep: &SweepSpecification, job: Job, result: &TrialResult) -> String {
    format!(
        "trial {} ({}), {}: {}",
        job.trial + 1,
        sweep.trial_text(job.trial),
        plural(sweep.epochs(job) as usize, "epoch"),
        quality(result)
    )
}

/// One result as a JSON object.
pub(super) fn trial_object(
    sweep: &SweepSpecification,
    job: Job,
    result: &TrialResult,
    is_own: bool,
) -> Value {
    let mut object = job_object(sweep, job, result);
    object["event"] = json!("trial");
    object["own"] = json!(is_own);
    object
}

fn job_object(sweep: &SweepSpecification, job: Job, result: &TrialResult) -> Value {
    // Texts with as many digits as a result has.
    let number = |number: f32| number.to_string().parse::<f64>().ok();
    let loss = (!result.diverged).then(|| number(result.loss)).flatten();
    json!({
        "trial": job.trial + 1, "rung": job.rung + 1, "values": values(sweep, job.trial),
        "epochs": sweep.epochs(job), "samples": sweep.samples(job),
        "test_accuracy": result.accuracy.and_then(number), "test_loss": loss, "diverged": result.diverged,
    })
}

/// The whole result as a JSON object.
pub(super) fn sweep_object(sweep: &SweepSpecification, snapshot: &SweepSnapshot) -> Value {
    let samples = |own: bool| -> u64 {
        let counted = snapshot.done().filter(|(number, ..)| !own || snapshot.own_jobs.contains(number));
        counted.map(|(_, job, _)| sweep.samples(job)).sum()
    };
    let best = snapshot.best().and_then(|number| {
        Some(job_object(sweep, snapshot.jobs[number], snapshot.results[number].as_ref()?))
    });
    let jobs: Vec<Value> = snapshot.done().map(|(_, job, result)| job_object(sweep, job, &result)).collect();
    json!({
        "event": "sweep", "trials": sweep.trials.len(), "results": jobs, "best": best,
        "samples": samples(false), "own_samples": samples(true), "samples_of_all": sweep.samples_of_all(),
    })
}

fn values(sweep: &SweepSpecification, trial: usize) -> Value {
    Value::Object(sweep.trial_values(trial).into_iter().collect())
}

/// The best trials so far, and how many are done.
pub(super) fn live_text(sweep: &SweepSpecification, snapshot: &SweepSnapshot) -> String {
    let done = snapshot.done().count();
    let of = if snapshot.is_complete { "" } else { " so far" };
    let own = snapshot.own.map_or_else(String::new, |(number, part)| {
        let trial = snapshot.jobs[number].trial + 1;
        format!("; here: trial {trial}, {:.0} % trained", 100.0 * part)
    });
    let jobs = snapshot.jobs.len();
    let head =
        format!("{done} of {}{of} done, {} under way{own}", plural(jobs, "training"), snapshot.claimed);
    if done == 0 { head } else { format!("{head}\n{}", ranking(sweep, snapshot, LIVE_ROWS).trim_end()) }
}

/// The result for people.
pub(super) fn result_text(sweep: &SweepSpecification, snapshot: &SweepSnapshot) -> String {
    let more = match trials_done(snapshot).len().saturating_sub(RESULT_ROWS) {
        0 => String::new(),
        more => format!("and {more} more, which `--json` and `--report` show\n"),
    };
    format!("{}{more}{}", ranking(sweep, snapshot, RESULT_ROWS), best_text(sweep, snapshot))
}

/// The best trial, and what was trained to find it.
pub(super) fn best_text(sweep: &SweepSpecification, snapshot: &SweepSnapshot) -> String {
    let best = snapshot.best().and_then(|best| Some((snapshot.jobs[best], snapshot.results[best].as_ref()?)));
    let Some((job, result)) = best else { return "no trial was trained\n".to_owned() };
    let trained: u64 = snapshot.done().map(|(_, job, _)| sweep.samples(job)).sum();
    let own = snapshot.done().filter(|(number, ..)| snapshot.own_jobs.contains(number)).count();
    format!(
        "best: trial {} ({}), {}\n{} on {} samples, {own} of them by this peer; all trials to their end: {} samples\n",
        job.trial + 1,
        sweep.trial_text(job.trial),
        quality(result),
        plural(snapshot.done().count(), "training"),
        count(trained),
        count(sweep.samples_of_all()),
    )
}

/// The trials that have a result, each at the highest rung that it has reached: those that went further first, and then the better ones.
fn trials_done(snapshot: &SweepSnapshot) -> Vec<(Job, TrialResult)> {
    let mut done: Vec<(Job, TrialResult)> = snapshot.done().map(|(_, job, result)| (job, result)).collect();
    done.sort_by(|(one, result), (other, than)| {
        other.rung.cmp(&one.rung).then_with(|| result.order(than)).then(one.trial.cmp(&other.trial))
    });
    let mut seen = BTreeSet::new();
    done.retain(|(job, _)| seen.insert(job.trial));
    done
}

fn ranking(sweep: &SweepSpecification, snapshot: &SweepSnapshot, most: usize) -> String {
    let rows = ranked_rows(sweep, snapshot, most);
    let header: Vec<&str> = rows[0].iter().map(String::as_str).collect();
    text_table(&header, &rows[1..])
}

/// A header, and a row for each of so many trials.
pub(super) fn ranked_rows(
    sweep: &SweepSpecification,
    snapshot: &SweepSnapshot,
    most: usize,
) -> Vec<Vec<String>> {
    let done = trials_done(snapshot);
    let has_classes = done.iter().any(|(_, result)| result.accuracy.is_some());
    let last: &[&str] = if has_classes { &["epochs", "accuracy", "loss"] } else { &["epochs", "loss"] };
    let keys = sweep.sweep.keys.iter().cloned();
    let header =
        std::iter::once("trial".to_owned()).chain(keys).chain(last.iter().map(|name| (*name).to_owned()));
    let row = |(job, result): &(Job, TrialResult)| {
        let mut row = vec![(job.trial + 1).to_string()];
        row.extend(sweep.trials[job.trial].values.iter().cloned());
        row.push(sweep.epochs(*job).to_string());
        if has_classes {
            row.push(result.accuracy.map_or_else(|| "-".to_owned(), |accuracy| format!("{accuracy:.4}")));
        }
        row.push(if result.diverged { "diverged".to_owned() } else { format!("{:.4}", result.loss) });
        row
    };
    std::iter::once(header.collect()).chain(done.iter().take(most).map(row)).collect()
}

fn quality(result: &TrialResult) -> String {
    match result.accuracy {
        _ if result.diverged => "diverged".to_owned(),
        Some(accuracy) => format!("accuracy {accuracy:.4}, loss {:.4}", result.loss),
        None => format!("loss {:.4}", result.loss),
    }
}

/// The rows of the live table.
const LIVE_ROWS: usize = 8;
/// The rows of the table at the end.
const RESULT_ROWS: usize = 20;

#[cfg(test)]
pub(super) mod tests {
    use peergrad_config::specification::RunFile;
    use peergrad_config::sweep::TrialSource;
    use peergrad_config::sweep::specification::{StrategyChoice, SweepPlan};

    use super::*;

    /// A sweep over a small file.
    pub(in crate::commands::sweep) fn sweep(vary: &[&str]) -> SweepSpecification {
        let text = "epochs = 3\n[data]\nfile = \"f.csv\"\n";
        let rows: String = (0..20).map(|row| format!("{row},{},{}\n", row % 3, row % 2)).collect();
        let plan = SweepPlan {
            variations: vary.iter().map(|text| (*text).to_owned()).collect(),
            source: TrialSource::Grid,
            strategy: StrategyChoice::All,
        };
        let run = RunFile::parse(text).unwrap();
        SweepSpecification::resolve(&run, text, &plan, "f.csv", &rows.as_bytes().into()).unwrap().0
    }

    /// All trials trained; each is better than the one before.
    pub(in crate::commands::sweep) fn trained(sweep: &SweepSpecification) -> SweepSnapshot {
        let mut schedule = sweep.schedule();
        let result = |trial| TrialResult { loss: 1.0, accuracy: Some(trial as f32 / 10.0), diverged: false };
        let results: Vec<Option<TrialResult>> =
            (0..sweep.trials.len()).map(|trial| Some(result(trial))).collect();
        schedule.extend(&results);
        SweepSnapshot::of(&schedule, &results)
    }

    #[test]
    fn the_better_trials_come_first() {
        let sweep = sweep(&["optimizer.rate=0.001,0.1", "model.hidden=[4],[8]"]);
        let text = result_text(&sweep, &trained(&sweep));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "trial  optimizer.rate  model.hidden  epochs  accuracy    loss");
        assert_eq!(lines[1], "4                 0.1           [8]       3    0.3000  1.0000");
        assert_eq!(lines[4].split_whitespace().next(), Some("1"));
        assert!(
            lines[5].starts_with("best: trial 4 (optimizer.rate = 0.1, model.hidden = [8]), accuracy 0.3000")
        );
        assert!(lines[6].starts_with("4 trainings on 192 samples, 0 of them by this peer"), "{text}");
    }

    #[test]
    fn json_has_the_values_as_they_are() {
        let sweep = sweep(&["optimizer.rate=0.001,0.1", "model.hidden=[4],[8]"]);
        let object = sweep_object(&sweep, &trained(&sweep));
        assert_eq!(object["best"]["values"], json!({"optimizer.rate": 0.1, "model.hidden": [8]}));
        assert_eq!(
            (object["trials"].as_u64(), object["results"].as_array().map(Vec::len)),
            (Some(4), Some(4))
        );
        assert_eq!(object["best"]["test_accuracy"].as_f64(), Some(0.3));
        let diverged = TrialResult { loss: 0.0, accuracy: None, diverged: true };
        let object = trial_object(&sweep, Job { trial: 1, rung: 0 }, &diverged, true);
        assert_eq!((object["test_loss"].as_f64(), object["own"].as_bool()), (None, Some(true)));
    }

    #[test]
    fn nothing_and_a_part_can_be_shown() {
        let sweep = sweep(&["batch=4,8"]);
        let nothing = SweepSnapshot::default();
        assert!(result_text(&sweep, &nothing).ends_with("no trial was trained\n"));
        assert!(live_text(&sweep, &nothing).starts_with("0 of 0 trainings so far done, 0 under way"));
        let mut snapshot = trained(&sweep);
        (snapshot.own, snapshot.claimed) = (Some((1, 0.25)), 1);
        assert!(
            live_text(&sweep, &snapshot)
                .starts_with("2 of 2 trainings done, 1 under way; here: trial 2, 25 % trained\ntrial  batch")
        );
    }
}
