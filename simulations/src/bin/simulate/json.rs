//! The results for programs: one JSON object per line; the last one has the event `summary`.

use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Outcome;
use serde_json::json;

use crate::say::say;

/// Prints views, commits, violations and the summary.
pub(crate) fn print(scenario: &Scenario, seed: u64, outcome: &Outcome) -> std::io::Result<()> {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    for note in &outcome.history.views {
        say!(
            "{}",
            json!({"event": "view", "at": seconds(note.at.0), "number": note.view.number.0,
                "members": note.view.members.len(), "digest": note.digest.to_string()})
        );
    }
    for note in &outcome.history.commits {
        say!(
            "{}",
            json!({"event": "step", "at": seconds(note.at.0), "step": note.committed.step.0,
                "epoch": note.committed.epoch, "loss": note.committed.loss, "samples": note.committed.samples,
                "bytes": note.bytes})
        );
    }
    for violation in &outcome.violations {
        say!(
            "{}",
            json!({"event": "violation", "at": seconds(violation.at.0), "invariant": violation.invariant, "text": violation.message})
        );
    }
    say!(
        "{}",
        json!({
            "event": "summary", "scenario": scenario.name, "seed": seed, "peers": outcome.peers,
            "trace_hash": outcome.trace_hash, "virtual_seconds": outcome.time.as_secs_f64(),
            "committed_steps": outcome.steps, "samples_trained": outcome.samples_trained,
            "samples_left_out": outcome.samples_left_out, "samples_lost": outcome.samples_lost,
            "samples_repeated": outcome.samples_repeated(),
            "steps_redone": outcome.history.redone.len(), "bytes": outcome.history.traffic.total,
            "endings": outcome.endings, "digest": outcome.digest, "checked": outcome.checked,
            "violations": outcome.violations.len(),
        })
    );
    Ok(())
}
