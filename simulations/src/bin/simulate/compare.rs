//! `simulate compare`: several scenarios with the same seeds, in one table and one page of charts.

use std::ops::Range;
use std::process::ExitCode;

use anyhow::{Context, bail};
use peergrad_page::comparison::{ComparedTraining, Comparison, Point, QualityMetric, render};
use peergrad_page::pairing::{factor, median};
use peergrad_simulations::compare::{CurvePoint, TrainingCurve, measure};
use peergrad_simulations::scenario::file::Size;

use crate::run::check_writable;
use crate::say::{say, table};
use crate::{CompareArguments, source, text};

/// Runs all scenarios, and prints the comparison.
pub(crate) fn compare(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let scenarios: Vec<_> = arguments
        .scenarios
        .iter()
        .map(|name| source::scenario(name, Size::Full))
        .collect::<anyhow::Result<_>>()?;
    let first = &scenarios[0];
    for other in &scenarios[1..] {
        let (one, two) = (&first.workload.loaded, &other.workload.loaded);
        if one.manifest != two.manifest || one.task.sample_count() != two.task.sample_count() {
            bail!(
                "{} and {} train different models or data; scenarios can only be compared if both are the same",
                first.name,
                other.name
            );
        }
    }
    if let Some(path) = &arguments.report {
        check_writable(path)?;
    }
    let mut courses: Vec<Vec<TrainingCurve>> = Vec::new();
    for scenario in &scenarios {
        let followed: Vec<TrainingCurve> =
            arguments.seeds.clone().map(|seed| measure(scenario, seed)).collect();
        for course in &followed {
            if let Some(violation) = course.outcome.violations.first() {
                say!("VIOLATED  {}: {}: {}", scenario.name, violation.invariant, violation.message);
            }
        }
        courses.push(followed);
    }
    let rows = rows(&arguments.scenarios, &courses);
    table(&rows)?;
    if let Some(path) = &arguments.report {
        let names = scenarios.iter().map(|scenario| scenario.name.as_str());
        std::fs::write(path, page(arguments, names.zip(&courses), &rows))
            .with_context(|| format!("cannot write the report {}", path.display()))?;
        say!("report: {}", path.display());
    }
    let is_kept = courses.iter().flatten().all(|course| course.outcome.violations.is_empty());
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The page with the curves of scenarios, by their names.
fn page<'a>(
    arguments: &CompareArguments,
    courses: impl Iterator<Item = (&'a str, &'a Vec<TrainingCurve>)>,
    rows: &[Vec<String>],
) -> String {
    let point = |mark: &CurvePoint| {
        let CurvePoint { samples, time, bytes, .. } = *mark;
        Point { samples, time, bytes, worth: worth(mark) }
    };
    let points = |course: &TrainingCurve| course.points.iter().chain(&course.end).map(point).collect();
    let courses: Vec<(&str, &Vec<TrainingCurve>)> = courses.collect();
    let mut ends = courses.iter().flat_map(|(_, courses)| ends(courses));
    let is_accuracy = ends.any(|mark| mark.evaluation.accuracy.is_some());
    let contender = |(name, courses): &(&'a str, &Vec<TrainingCurve>)| ComparedTraining {
        name,
        courses: courses.iter().map(points).collect(),
    };
    let trainings: Vec<ComparedTraining<'_>> = courses.iter().map(contender).collect();
    let Range { start, end } = arguments.seeds;
    render(&Comparison {
        about: "",
        command: &format!("simulate compare {} --seeds {start}..{end}", arguments.scenarios.join(" ")),
        rows,
        worth: if is_accuracy { QualityMetric::Accuracy } else { QualityMetric::Loss },
        how: "Evaluated on held-out samples, with the mean of all members’ parameters; one line per seed.",
        time: "virtual training time",
        trainings: &trainings,
    })
}

/// A header, and a row for each scenario: medians over the seeds, and the paired comparison with the first scenario.
fn rows(names: &[String], courses: &[Vec<TrainingCurve>]) -> Vec<Vec<String>> {
    let head = [
        "",
        "final quality",
        "difference to the first, by seed",
        "worst member before averaging",
        "training time",
        "bytes sent",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (index, name) in names.iter().enumerate() {
        let own = ends(&courses[index]);
        if own.is_empty() {
            rows.push(vec![name.clone(), "did not finish with any seed".to_owned()]);
            continue;
        }
        let unended = courses[index].len() - own.len();
        let name = if unended == 0 { name.clone() } else { format!("{name} ({unended} did not finish)") };
        let before = courses[index].iter().filter(|course| course.end.is_some());
        let before = before.filter_map(|course| course.points.last());
        let worst = median(before.map(|mark| mark.worst.accuracy.unwrap_or(mark.worst.loss)));
        let first = ends(&courses[0]);
        let (time, first_time) = (median_of(&own, seconds), median_of(&first, seconds));
        let (bytes, first_bytes) = (median_of(&own, bytes), median_of(&first, bytes));
        let pair = |(own, first): (&TrainingCurve, &TrainingCurve)| match (&own.end, &first.end) {
            (Some(own), Some(first)) => format!("{:+.4}", worth(own) - worth(first)),
            _ => "-".to_owned(),
        };
        let pairs: Vec<String> = courses[index].iter().zip(&courses[0]).map(pair).collect();
        rows.push(vec![
            name,
            match own[0].evaluation.accuracy {
                Some(_) => format!("{:.4}, loss {:.4}", median_of(&own, worth), median_of(&own, loss)),
                None => format!("loss {:.4}", median_of(&own, loss)),
            },
            if index == 0 { String::new() } else { pairs.join(" ") },
            worst.map_or(String::new(), |worst| format!("{worst:.4}")),
            format!("{} ({})", text::time(time), factor(time, first_time)),
            format!("{} ({})", text::bytes(bytes as u64), factor(bytes, first_bytes)),
        ]);
    }
    rows
}

/// The last points of the runs that finished.
fn ends(courses: &[TrainingCurve]) -> Vec<CurvePoint> {
    courses.iter().filter_map(|course| course.end).collect()
}

fn worth(mark: &CurvePoint) -> f64 {
    mark.evaluation.accuracy.unwrap_or(mark.evaluation.loss)
}

fn loss(mark: &CurvePoint) -> f64 {
    mark.evaluation.loss
}

fn seconds(mark: &CurvePoint) -> f64 {
    mark.time.as_secs_f64()
}

fn bytes(mark: &CurvePoint) -> f64 {
    mark.bytes as f64
}

fn median_of(points: &[CurvePoint], value: impl Fn(&CurvePoint) -> f64) -> f64 {
    median(points.iter().map(value)).unwrap_or(f64::NAN)
}
