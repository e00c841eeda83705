//! `simulate delays --fixed`: what gradients cost that are all late by the same number of steps.

use peergrad_page::pairing::median;
use peergrad_simulations::delays::fixed::{EARLY_STEPS, Paid, STEPS, Stream};
use serde_json::json;

use crate::DelaysArguments;
use crate::say::{say, table};

/// Measures learners with these delays; 0 is always measured, and first.
pub(crate) fn fixed_delays(arguments: &DelaysArguments, delays: &[u64]) -> anyhow::Result<()> {
    let mut delays: Vec<u64> = delays.iter().copied().chain([0]).collect();
    delays.sort_unstable();
    delays.dedup();
    let streams: Vec<Stream> = arguments.seeds.clone().map(Stream::new).collect();
    let mut rows = vec![head()];
    let mut first = None;
    for delay in delays {
        let paid: Vec<Paid> = streams.iter().map(|stream| stream.learn(delay as usize)).collect();
        let of = |number: fn(&Paid) -> f64| median(paid.iter().map(number)).expect("there is a seed");
        let (early_loss, regret, slope) =
            (of(|paid| paid.early_loss), of(Paid::last_regret), of(Paid::slope));
        let ratio = regret / *first.get_or_insert(regret);
        if arguments.json {
            say!(
                "{}",
                json!({"event": "fixed-delays", "delay": delay, "early_loss": early_loss, "regret": regret, "ratio": ratio,
                    "slope": slope})
            );
        }
        let numbers = [
            format!("{early_loss:.3}"),
            format!("{regret:.5}"),
            format!("{ratio:.2} x"),
            format!("{slope:.2}"),
        ];
        rows.push([delay.to_string()].into_iter().chain(numbers).collect());
    }
    if !arguments.json {
        table(&rows)?;
    }
    Ok(())
}

fn head() -> Vec<String> {
    let early = format!("mean loss of {EARLY_STEPS} steps");
    let late = format!("average regret of {STEPS} steps");
    ["delay", &early, &late, "to no delay", "slope"].map(str::to_owned).to_vec()
}
