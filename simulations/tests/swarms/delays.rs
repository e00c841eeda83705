//! Delays: what Dai et al. found on staleness holds for digits. Deep networks suffer more than shallow ones, and optimizers with moments
//! more than plain SGD.

use std::ops::RangeInclusive;

use peergrad_config::specification::RunFile;
use peergrad_simulations::Workload;
use peergrad_simulations::delays::{Target, Trials, median};

/// Batches, over eight workers, to the target without staleness, for every model and optimizer. (Rates are a fifth apart.)
const PACE: RangeInclusive<f64> = 250.0..=400.0;

/// How many times as many batches a held-out accuracy of 0.93 takes when updates are up to 16 iterations late.
fn slowdown(hidden: &str, rule: &str) -> f64 {
    let text = format!("[model]\nhidden = [{hidden}]\n[optimizer]\nrule = \"{rule}\"");
    let run = RunFile::parse(&text).expect("it is a run file");
    let loaded = Workload::digits(&run).expect("all of it is allowed").loaded;
    let trials = Trials {
        task: &*loaded.task,
        workers: 8,
        batch: 16,
        rule: loaded.config.rule,
        seeds: 1..6,
        target: Target::Accuracy(0.93),
    };
    let rate = trials.rate(*PACE.end() as u64).expect("one is fast enough");
    let batches = |staleness| median(&trials.batches(rate, staleness, 8000)).unwrap_or(f64::INFINITY);
    let (first, stale) = (batches(0), batches(16));
    println!("{hidden}, {rule} at {rate}: {first} batches, {stale} with a staleness of 16");
    assert!(PACE.contains(&first), "{hidden}, {rule}: {first}");
    stale / first
}

#[test]
fn staleness_costs_deep_networks_and_moments_more() {
    let depths = ["64", "64,64,64,64"];
    let [shallow, deep] = depths.map(|hidden| ["sgd", "momentum", "adam"].map(|rule| slowdown(hidden, rule)));
    for (shallow, deep) in shallow.iter().zip(deep) {
        assert!(deep > 1.3 * shallow, "{deep} of the deep one, {shallow} of the shallow one");
    }
    for [sgd, momentum, adam] in [shallow, deep] {
        assert!(momentum > sgd && adam > sgd, "{momentum} and {adam}, where it is {sgd} for SGD");
    }
}
