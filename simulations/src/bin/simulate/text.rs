//! The results of a run, as text for people.

use peergrad_page::axis::count;
use peergrad_simulations::history::History;
use peergrad_simulations::oracles::replay::REPLAY;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Outcome;

/// A summary in a few sentences.
pub(crate) fn summary(scenario: &Scenario, outcome: &Outcome) -> Vec<String> {
    let all = scenario.workload.loaded.step_count();
    let seconds = outcome.time.as_secs_f64();
    let mut words = vec![format!(
        "{} committed {} of {all} steps in {} of virtual time, {} of it in training; {} sent.",
        plural(outcome.peers, "peer"),
        outcome.steps,
        time(seconds),
        time(outcome.history.training_time().as_secs_f64()),
        bytes(outcome.history.traffic.total),
    )];
    for band in outcome.history.cuts.iter().take(BANDS_LISTED_MAX) {
        words.push(format!(
            "Network fault: {}, from {} to {}.",
            band.label,
            at(band.from.0),
            at(band.until.0.min(outcome.history.end.0))
        ));
    }
    if outcome.history.cuts.len() > BANDS_LISTED_MAX {
        words.push(format!("And {} more network faults.", outcome.history.cuts.len() - BANDS_LISTED_MAX));
    }
    let ended: Vec<String> =
        outcome.endings.iter().map(|(words, count)| format!("{count} {words}")).collect();
    words.push(format!("At the end: {}.", ended.join(", ")));
    if outcome.history.views.len() > 1 {
        words.push(format!(
            "{}; {} restarted; {} of an epoch lost, {} repeated.",
            plural(outcome.history.views.len(), "view"),
            plural(outcome.history.redone.len(), "step"),
            plural(outcome.samples_lost as usize, "sample"),
            outcome.samples_repeated(),
        ));
    }
    if let Some(evaluation) = outcome.evaluation.filter(|evaluation| evaluation.samples > 0) {
        let accuracy =
            evaluation.accuracy.map_or(String::new(), |accuracy| format!(", accuracy {accuracy:.4}"));
        words.push(format!("On held-out samples: loss {:.4}{accuracy}.", evaluation.loss));
    }
    if let Some(apart) = outcome.plain_loss_error {
        let apart =
            if apart == 0.0 { "equal".to_owned() } else { format!("equal within {apart:.0e} (relative)") };
        let is_replayed = outcome.checked.contains(&REPLAY);
        let replayed = if is_replayed {
            "; the parameters equal those of the replayed commit log, bit for bit"
        } else {
            ""
        };
        words.push(format!("The losses are {apart} to those of one plain loop{replayed}."));
    }
    words
}

/// How each branch ended that met another one again.
pub(crate) fn branch_ends(history: &History) -> Vec<String> {
    let mut words = history.branch_end_sentences();
    let more = words.len().saturating_sub(BANDS_LISTED_MAX);
    words.truncate(BANDS_LISTED_MAX);
    if more > 0 {
        words.push(format!("And {more} more ends of branches."));
    }
    words
}

/// Numbers with their names.
pub(crate) fn facts(outcome: &Outcome) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("virtual time", time(outcome.time.as_secs_f64())),
        fact("committed steps", count(outcome.steps)),
        fact("samples trained", count(outcome.samples_trained)),
        fact("samples left out", count(outcome.samples_left_out)),
        fact("samples lost", count(outcome.samples_lost)),
        fact("samples repeated", count(outcome.samples_repeated())),
        fact("steps redone", outcome.history.redone.len().to_string()),
        fact("bytes sent", bytes(outcome.history.traffic.total)),
        fact("views", outcome.history.views.len().to_string()),
        fact("trace hash", outcome.trace_hash.clone()),
    ]
}

/// An instant as text.
pub(crate) fn at(nanos: u64) -> String {
    time(nanos as f64 / 1e9)
}

/// A duration as text.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.2} s"),
        s if s >= 7200.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} min", s / 60.0),
    }
}

/// A date and time in UTC: "2026-11-23 08:27:15 UTC".
pub(crate) fn date(unix_seconds: f64) -> String {
    let seconds = unix_seconds.max(0.0) as u64;
    let (mut days, within) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut month) = (1970, 1);
    loop {
        let length = month_days(year, month);
        if days < length {
            break;
        }
        days -= length;
        (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    }
    let (hour, minute, second) = (within / 3600, within / 60 % 60, within % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", days + 1)
}

fn month_days(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

pub(crate) fn bytes(count: u64) -> String {
    match count as f64 {
        c if c < 1e3 => format!("{c} B"),
        c if c < 1e6 => format!("{:.1} kB", c / 1e3),
        c if c < 1e9 => format!("{:.1} MB", c / 1e6),
        c => format!("{:.2} GB", c / 1e9),
    }
}

pub(crate) fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Most partitions, and most ends of branches, that are listed one by one.
const BANDS_LISTED_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_utc_dates() {
        assert_eq!(date(0.0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_795_422_435.67), "2026-11-23 08:27:15 UTC");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(4_107_542_400.0), "2100-03-01 00:00:00 UTC", "not a leap year");
    }
}
