//! The results of a sweep as text and as JSON.

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
pub(super) fn trial_object(sweep: &SweepSpecification, job: Job, result: &TrialResult, is_own: bool) -> Value {
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
    let head = format!("{done} of {}{of} done, {} under way{own}", plural(jobs, "training"), snapshot.claimed);
    if done == 0 { head } else { format!("{head}\n{}", ranking(sweep, snapshot, LIVE_ROWS).trim_end()) }
}

/// The result for people.
pub(super) fn result_text(sweep: &SweepSpecification, snapshot: &SweepSnapshot) -> String {
    let Some(best) = snapshot.best() else { return "no trial was trained".to_owned() };
    let (job, Some(result)) = (snapshot.jobs[best], &snapshot.results[best]) else {
        return "no trial was trained".to_owned();
    };
    let trained: u64 = snapshot.done().map(|(_, job, _)| sweep.samples(job)).sum();
    let own = snapshot.own_jobs.iter().filter(|number| snapshot.results[**number].is_some()).count();
    let shown = ranking(sweep, snapshot, RESULT_ROWS);
    let done = snapshot.done().count();
    let more = match done.saturating_sub(RESULT_ROWS) {
        0 => String::new(),
        more => format!("and {more} more, which `--json` and `--report` show\n"),
    };
    format!(
        "{shown}{more}best: trial {} ({}), {}\n{} on {} samples, {own} of them by this peer; all trials to their end: {} samples\n",
        job.trial + 1,
        sweep.trial_text(job.trial),
        quality(result),
        plural(done, "training"),
        count(trained),
        count(sweep.samples_of_all()),
    )
}

/// A row for each trial, at the highest rung that it has reached: those that went further first, and then the better ones.
fn ranking(sweep: &SweepSpecification, snapshot: &SweepSnapshot, most: usize) -> String {
    let mut done: Vec<(usize, Job, TrialResult)> = snapshot.done().collect();
    done.sort_by(|(_, one, result), (_, other, than)| {
        other.rung.cmp(&one.rung).then_with(|| result.order(than)).then(one.trial.cmp(&other.trial))
    });
    let mut seen = std::collections::BTreeSet::new();
    done.retain(|(_, job, _)| seen.insert(job.trial));
    let keys = sweep.sweep.keys.iter().map(String::as_str);
    let has_classes = done.iter().any(|(_, _, result)| result.accuracy.is_some());
    let last: &[&str] = if has_classes { &["epochs", "accuracy", "loss"] } else { &["epochs", "loss"] };
    let header: Vec<&str> = std::iter::once("trial").chain(keys).chain(last.iter().copied()).collect();
    let row = |(_, job, result): &(usize, Job, TrialResult)| {
        let mut row = vec![(job.trial + 1).to_string()];
        row.extend(sweep.trials[job.trial].values.iter().cloned());
        row.push(sweep.epochs(*job).to_string());
        if has_classes {
            row.push(result.accuracy.map_or_else(|| "-".to_owned(), |accuracy| format!("{accuracy:.4}")));
        }
        row.push(if result.diverged { "diverged".to_owned() } else { format!("{:.4}", result.loss) });
        row
    };
    let rows: Vec<Vec<String>> = done.iter().take(most).map(row).collect();
    text_table(&header, &rows)
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
