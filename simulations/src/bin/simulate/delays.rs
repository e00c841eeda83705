//! `simulate delays`: measures the cost of staleness for several models and optimizers.

use std::process::ExitCode;

use anyhow::{Context, bail};
use peergrad_config::specification::RunFile;
use peergrad_config::specification::run_file::DataSection;
use peergrad_page::pairing::factor;
use peergrad_simulations::Workload;
use peergrad_simulations::delays::{Target, Trials, median};
use serde_json::json;

use crate::DelaysArguments;
use crate::fixed_delays::fixed_delays;
use crate::say::{say, table};

/// Widths of hidden layers.
#[derive(Clone, Debug)]
pub(crate) struct Widths(Vec<usize>);

/// Parses widths of hidden layers: `64,64`.
pub(crate) fn widths(text: &str) -> Result<Widths, String> {
    let width = |text: &str| text.trim().parse().ok().filter(|width| *width > 0);
    let widths: Option<Vec<usize>> = text.split(',').map(width).collect();
    widths.map(Widths).ok_or_else(|| "write widths with commas, e.g. 64,64 for two hidden layers".to_owned())
}

/// Parses a number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "write a number above 0".to_owned())
}

/// One line of the table.
struct Case<'a> {
    hidden: &'a Widths,
    rule: &'a str,
    rate: f64,
    /// Batches by seed, for each staleness.
    batches: Vec<Vec<Option<u64>>>,
}

/// Measures every optimizer on every model, or fixed delays.
pub(crate) fn delays(arguments: &DelaysArguments) -> anyhow::Result<ExitCode> {
    let DelaysArguments { rules, rates, hidden, target, .. } = arguments;
    if let Some(delays) = &arguments.fixed {
        fixed_delays(arguments, delays)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !rates.is_empty() && rates.len() != rules.len() {
        bail!("--rates has {} for {} of --rules: give one rate for each rule", rates.len(), rules.len());
    }
    if *target > 1.0 {
        bail!("--target {target} is a share: give a number up to 1");
    }
    if rates.is_empty() && arguments.batches_max < arguments.baseline_batches {
        bail!(
            "--batches-max {} ends the study before its --baseline-batches, {}",
            arguments.batches_max,
            arguments.baseline_batches
        );
    }
    // All workloads are made before the first study, which may take long, so that a mistake is reported at once.
    let mut workloads = Vec::new();
    for hidden in hidden {
        for rule in rules {
            workloads.push((hidden, rule, workload(arguments, hidden, rule)?));
        }
    }
    let mut staleness: Vec<u64> = arguments.staleness.iter().copied().chain([0]).collect();
    staleness.sort_unstable();
    staleness.dedup();
    let mut rows = vec![head(&staleness)];
    for (index, (hidden, rule, workload)) in workloads.iter().enumerate() {
        let trials = trials(arguments, workload);
        let rate = match rates.get(index % rules.len()) {
            Some(rate) => *rate,
            None => rate(arguments, &trials, hidden, rule)?,
        };
        let batches =
            staleness.iter().map(|staleness| trials.batches(rate, *staleness, arguments.batches_max));
        let case = Case { hidden, rule, rate, batches: batches.collect() };
        if arguments.json {
            print_json(&case, &staleness)?;
        }
        rows.push(row(&case, arguments.batches_max));
    }
    if !arguments.json {
        table(&rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A model and an optimizer, on the data.
fn workload(arguments: &DelaysArguments, hidden: &Widths, rule: &str) -> anyhow::Result<Workload> {
    let text = format!("[model]\nhidden = {:?}\n[optimizer]\nrule = {rule:?}", hidden.0);
    let run = RunFile::parse(&text)?;
    let workload = match &arguments.data {
        None => Workload::digits(&run)?,
        Some(path) => {
            let name = path.display().to_string();
            let bytes = std::fs::read(path).with_context(|| format!("cannot read the data file {name}"))?;
            let data = Some(DataSection::new(&name));
            Workload::data_file(&RunFile { data, ..run }, &name, &bytes)?
        }
    };
    let loaded = &workload.loaded;
    let mut parameters = vec![0.0; loaded.manifest.parameter_count()];
    loaded.task.initial(0, &mut parameters);
    if arguments.target_loss.is_none() && loaded.task.evaluate(&parameters).accuracy.is_none() {
        bail!("these data have no classes, so there is no accuracy: give a --target-loss");
    }
    Ok(workload)
}

fn trials<'a>(arguments: &DelaysArguments, workload: &'a Workload) -> Trials<'a> {
    Trials {
        task: &*workload.loaded.task,
        workers: arguments.workers,
        batch: arguments.batch,
        rule: workload.loaded.config.rule,
        seeds: arguments.seeds.clone(),
        target: arguments.target_loss.map_or(Target::Accuracy(arguments.target), Target::Loss),
    }
}

/// The learning rate that reaches the target in `baseline_batches`.
fn rate(
    arguments: &DelaysArguments,
    trials: &Trials<'_>,
    hidden: &Widths,
    rule: &str,
) -> anyhow::Result<f64> {
    let baseline_batches = arguments.baseline_batches;
    trials.rate(baseline_batches).with_context(|| {
        format!(
            "there is no learning rate with which {rule} on hidden layers of {} reaches the target in {baseline_batches} batches, even \
             without staleness: give a larger --baseline-batches or an easier target",
            layers(hidden)
        )
    })
}

fn layers(Widths(widths): &Widths) -> String {
    widths.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn head(staleness: &[u64]) -> Vec<String> {
    let columns = staleness.iter().map(|staleness| format!("batches, s = {staleness}"));
    ["hidden", "rule", "rate"].into_iter().map(str::to_owned).chain(columns).collect()
}

/// Medians over the seeds, and their ratio to those without staleness.
fn row(case: &Case<'_>, batches_max: u64) -> Vec<String> {
    let first = median(&case.batches[0]);
    let cell = |(index, batches): (usize, &Vec<Option<u64>>)| match (median(batches), first) {
        (None, _) => format!("> {batches_max}"),
        (Some(own), Some(first)) if index > 0 => format!("{own:.0} ({})", factor(own, first)),
        (Some(own), _) => format!("{own:.0}"),
    };
    let cells = case.batches.iter().enumerate().map(cell);
    [layers(case.hidden), case.rule.to_owned(), case.rate.to_string()].into_iter().chain(cells).collect()
}

fn print_json(case: &Case<'_>, staleness: &[u64]) -> anyhow::Result<()> {
    let first = median(&case.batches[0]);
    for (staleness, batches) in staleness.iter().zip(&case.batches) {
        let own = median(batches);
        let ratio = own.zip(first).map(|(own, first)| own / first);
        say!(
            "{}",
            json!({"event": "delays", "hidden": case.hidden.0, "rule": case.rule, "rate": case.rate,
                "staleness": staleness, "batches": batches, "median": own, "ratio": ratio})
        );
    }
    Ok(())
}
