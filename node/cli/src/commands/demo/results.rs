//! The results of the demo: what each peer owned, computed and sent, the cost of the kill, and the trained model's accuracy.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::faults::{DemoFaults, KilledPeer};
use crate::commands::plot;
use crate::commands::swarm::{ChildPeer, Swarm, short};
use crate::terminal::{emit, print_line};
use peergrad_embed::text::text_table::plural;
use peergrad_embed::text::text_table::{bytes, count, text_table};

/// A finished demo.
pub(super) struct Results<'a> {
    pub(super) swarm: &'a Swarm<'a>,
    pub(super) faults: &'a DemoFaults,
}

impl Results<'_> {
    /// Prints the results.
    pub(super) fn print(&self) -> anyhow::Result<ExitCode> {
        self.swarm.check_digests()?;
        let summaries = self.swarm.summaries();
        if self.swarm.output.format.is_json() {
            self.print_json(&summaries);
        } else {
            self.print_text(&summaries);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_json(&self, summaries: &[&Value]) {
        for summary in summaries {
            let mut object = (*summary).clone();
            object["event"] = json!("peer");
            emit(&object);
        }
        let sum = |key: &str| summaries.iter().filter_map(|summary| summary[key].as_u64()).sum::<u64>();
        let slowest =
            summaries.iter().filter_map(|summary| summary["wall_seconds"].as_f64()).fold(0.0, f64::max);
        let mut object = summaries[0].clone();
        for key in ["peer", "own_samples", "shard", "optimizer_bytes", "lines"] {
            object.as_object_mut().expect("a summary is an object").remove(key);
        }
        let stall = self.faults.killed.as_ref().and_then(|killed| killed.stall);
        object["wall_seconds"] = json!(slowest);
        for key in ["bytes_sent", "bytes_sent_directly", "bytes_received"] {
            object[key] = json!(sum(key));
        }
        object["stall_seconds"] = json!(stall.map(|stall| stall.as_secs_f64()));
        emit(&object);
    }

    fn print_text(&self, summaries: &[&Value]) {
        let header = ["peer", "owns parameters", "samples", "received", "sent", "optimizer memory", ""];
        print_line(&text_table(&header, &self.rows()));
        print_line(&format!(
            "training loss over {} steps\n{}",
            count(number(summaries[0], "steps")),
            plot::curve(self.swarm.peers[0].losses.means(), 60, 10)
        ));
        if let Some(killed) = &self.faults.killed {
            print_line(&self.killed_text(killed));
        }
        print_line(&epoch_text(&summaries[0]["epochs"]));
        let seconds = summaries[0]["wall_seconds"].as_f64().unwrap_or(0.0);
        print_line(&format!(
            "test accuracy {:.4} on the held-out fifth, after {seconds:.1} s",
            summaries[0]["test_accuracy"].as_f64().unwrap_or(0.0)
        ));
        print_line(&format!(
            "same digest at {}: {}",
            plural(summaries.len(), "peer"),
            summaries[0]["digest"].as_str().unwrap_or_default()
        ));
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let (peers, faults) = (&self.swarm.peers, self.faults);
        let parameters = peers[0].scope.map_or(1, |scope| scope.parameters).max(1);
        let row = |(index, peer): (usize, &ChildPeer)| {
            let killed = faults.killed.as_ref().filter(|killed| killed.index == index);
            let note = match killed {
                Some(killed) => format!("killed at step {}", killed.step),
                None if faults.late == Some(index) => match peer.first_step {
                    Some(step) => format!("joined at step {step}"),
                    None => "joined too late".to_owned(),
                },
                None => String::new(),
            };
            let Some(summary) = &peer.summary else {
                let nothing = std::iter::repeat_n(String::new(), 5);
                return std::iter::once(peer.name.clone()).chain(nothing).chain([note]).collect();
            };
            let shard = number(summary, "shard");
            let share = 100.0 * shard as f64 / parameters as f64;
            vec![
                short(&summary["peer"]),
                format!("{} ({share:.0} %)", count(shard)),
                count(number(summary, "own_samples")),
                bytes(number(summary, "bytes_received")),
                bytes(number(summary, "bytes_sent")),
                bytes(number(summary, "optimizer_bytes")),
                note,
            ]
        };
        peers.iter().enumerate().map(row).collect()
    }

    /// What the kill cost.
    fn killed_text(&self, killed: &KilledPeer) -> String {
        let name = &self.swarm.peers[killed.index].name;
        let Some(stall) = killed.stall else { return format!("peer {name} was killed after the last step") };
        let changes = &self.swarm.peers[0].changes;
        let moved: usize = changes.iter().map(|change| change.moving).sum();
        let dealt_again: u64 = changes.iter().map(|change| change.returned).sum();
        let restarted: usize = changes.iter().map(|change| change.restarted.len()).sum();
        let redone = changes.iter().filter(|change| change.is_interruption && !change.is_forward).count();
        let again = match redone {
            0 => "the others completed its step".to_owned(),
            _ => format!("{} restarted", plural(redone, "step")),
        };
        let lost = match restarted {
            0 => "no optimizer state was lost".to_owned(),
            _ => format!("the optimizer state of {} was lost", plural(restarted, "chunk")),
        };
        format!(
            "peer {name} was killed: training paused for {:.2} s; {again}, {} reassigned; {} moved in total; {lost}",
            stall.as_secs_f64(),
            plural(dealt_again as usize, "sample"),
            plural(moved, "chunk"),
        )
    }
}

/// Samples trained, lost and repeated over all epochs of a summary.
fn epoch_text(epochs: &Value) -> String {
    let epochs: Vec<&Value> = epochs.as_array().map(|epochs| epochs.iter().collect()).unwrap_or_default();
    let sum = |key: &str| epochs.iter().map(|epoch| number(epoch, key)).sum::<u64>();
    format!(
        "{} samples trained in {}: {} lost, {} repeated",
        count(sum("trained")),
        plural(epochs.len(), "epoch"),
        count(sum("lost")),
        count(sum("repeated"))
    )
}

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or(0)
}
