//! Reports: answers to `peer status`, and event logs.

use std::path::{Path, PathBuf};

use peergrad_cli::commands::status_text;
use peergrad_embed::status::connection::parse_answer;
use peergrad_embed::status::{AdminCommand, Status};
use peergrad_protocol::PeerId;
use peergrad_simulations::logs::{reader, recorded_run_of};
use peergrad_simulations::report::{Report, render};
use serde_json::{Value, json};

use super::repository_file;
use crate::target::{Bound, Form, Target, Verdict};

/// Answers to `peer status`.
pub(super) struct StatusTarget;

impl Target for StatusTarget {
    fn name(&self) -> &'static str {
        "status"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let golden: Value = serde_json::from_str(&repository_file("node/embed/src/status/golden.json"))
            .expect("the file is JSON");
        let mut joining = golden.clone();
        for key in ["training", "view", "run", "rekey"] {
            joining[key] = Value::Null;
        }
        for key in ["members", "others", "events"] {
            joining[key] = json!([]);
        }
        [golden, joining].map(|value| value.to_string().into_bytes()).to_vec()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let _ = serde_json::from_slice::<AdminCommand>(input);
        let Ok(status) = parse_answer("the peer", input) else { return Verdict::Refused };
        for width in [0, 1, 20, 80, 300] {
            let text = status_text(&status, width);
            assert!(!text.contains(['\r', '\u{7}']), "a terminal would act on it");
        }
        let again = serde_json::to_vec(&status).expect("text and numbers can be written as JSON");
        assert!(serde_json::from_slice::<Status>(&again).is_ok(), "a status reads back");
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        Bound { largest_bytes: (4 << 20) + 64 * input_bytes, total_bytes: (64 << 20) + 4096 * input_bytes }
    }
}

/// Event logs: those of several peers, with an empty line between them.
pub(super) struct EventsTarget;

/// The lines of one peer in a run of two.
fn log(peer: u8) -> String {
    let id = |peer: u8| PeerId([peer; 32]).to_string();
    let hex = |byte: u8| format!("{byte:02x}").repeat(32);
    let view = |number: u8, members: &[u8], first_step: u64| {
        let parents: Vec<String> = (number > 1).then(|| hex(number - 1)).into_iter().collect();
        let members: Vec<String> = members.iter().map(|member| id(*member)).collect();
        json!({"event": "view", "number": number, "digest": hex(number), "parents": parents, "members": members,
            "first_step": first_step, "redone": first_step > 0, "branch": {"view_number": 1, "step": 0, "fork": 2},
            "share": 50, "run": hex(9), "text": "training with 2 peers"})
    };
    let step = |step: u64| {
        json!({"event": "step", "step": step, "epoch": step / 4, "loss": 0.5, "samples": 8, "left_out": 0, "rate": 0.1,
            "bytes_sent": step * 1000, "digest": hex(step as u8)})
    };
    let evaluation = json!({"samples": 9, "loss": 0.25, "accuracy": 0.75});
    let other = id(3 - peer);
    let lines = [
        json!({"event": "log", "format": 1, "version": "0.1.0", "peer": id(peer), "incarnation": 7}),
        json!({"event": "prepared", "parameters": 100, "samples": 80, "steps": 1200, "epochs": 1}),
        view(1, &[1, 2], 0),
        step(0),
        json!({"event": "traffic", "bytes": {&other: [1000, 500]}}),
        step(1),
        json!({"event": "paused", "text": "waits"}),
        view(2, &[1, 2], 2),
        step(2),
        json!({"event": "merged", "view": hex(2), "steps": 3, "own_samples": 4, "their_samples": 5, "text": "merged"}),
        json!({"event": "merge_evaluation", "own": evaluation, "theirs": evaluation, "merged": evaluation, "distance": 0.5,
            "norm": 2.0, "text": "both"}),
        json!({"event": "lost", "lines": 3}),
        json!({"event": "excluded", "text": "is out"}),
        json!({"event": "branch_abandoned", "merged": false, "text": "yields"}),
        json!({"event": "suspected", "text": "no contact"}),
        json!({"event": "ended", "finished": true, "left": false, "text": "finished"}),
    ];
    let line = |(index, mut line): (usize, Value)| {
        line["at"] = json!(1_795_000_000.0 + index as f64 * 0.25 + f64::from(peer));
        format!("{line}\n")
    };
    lines.into_iter().enumerate().map(line).collect()
}

impl Target for EventsTarget {
    fn name(&self) -> &'static str {
        "events"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        vec![log(1).into_bytes(), format!("{}\n{}", log(1), log(2)).into_bytes()]
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let text = String::from_utf8_lossy(input);
        let file = |text: &str| [(PathBuf::from("events.jsonl"), text.as_bytes().to_vec())];
        let logs = text.split("\n\n").map(|text| reader::parse(Path::new("p"), &file(text)));
        let Ok(logs) = logs.collect::<Result<Vec<_>, _>>() else { return Verdict::Refused };
        let Ok(recorded) = recorded_run_of(logs, None) else { return Verdict::Refused };
        let page = render(&Report {
            title: "run",
            about: "A real run.",
            command: "simulate report",
            words: &[],
            facts: &[],
            check_results: &recorded.check_results,
            history: &recorded.history,
        });
        assert!(page.ends_with("</html>\n") || page.contains("</html>"), "the page is whole");
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        Bound {
            largest_bytes: (16 << 20) + 256 * input_bytes,
            total_bytes: (256 << 20) + 16_384 * input_bytes,
        }
    }
}
