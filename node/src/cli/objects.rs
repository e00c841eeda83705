//! Events as JSON: one object each, with the names that the words use; and back, where this program reads itself.

use peergrad_protocol::message::Rekey;
use peergrad_protocol::view::{Cause, Expulsion};
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::{Value, json};

use crate::io::{Change, Event, Met, Regrouping, Weighed};
use crate::task::Evaluation;

/// What a program that reads along is told of an event.
pub(crate) fn event_object(event: &Event) -> Option<Value> {
    Some(match event {
        Event::Asking(peer) => json!({"event": "asking", "peer": peer.to_string()}),
        Event::Gathered { peer, ready, wanted } => {
            json!({"event": "gathered", "peer": peer.to_string(), "ready": ready, "wanted": wanted})
        }
        Event::Withdrawn { peer, reason, ready, wanted } => {
            json!({"event": "withdrawn", "peer": peer.to_string(), "reason": reason, "ready": ready, "wanted": wanted})
        }
        Event::Welcomed { run, by } => {
            json!({"event": "welcomed", "run": run.to_string(), "by": by.to_string()})
        }
        Event::Returned { epoch } => json!({"event": "returned", "epoch": epoch.0}),
        Event::Fetching { received, total } => {
            json!({"event": "fetching", "received": received, "total": total})
        }
        Event::Prepared(scope) => json!({
            "event": "prepared", "parameters": scope.parameters, "samples": scope.samples,
            "steps": scope.steps, "passes": scope.passes,
        }),
        Event::Installed { view, digest, shard, share, change } => json!({
            "event": "view", "epoch": view.epoch.0, "digest": digest.to_string(), "shard": shard, "share": share,
            "members": view.members.iter().map(|member| member.peer.to_string()).collect::<Vec<_>>(),
            "change": change.as_ref().map(change_object),
        }),
        Event::Missed(peer) => json!({"event": "missed", "peer": peer.to_string()}),
        Event::Stopped { peer, reason } => {
            json!({"event": "stopped", "peer": peer.to_string(), "reason": reason})
        }
        Event::Paused { reached, needed, members, missing } => {
            json!({
                "event": "paused", "reached": reached, "needed": needed, "members": members,
                "waiting_for": needed - reached, "missing": texts(missing),
            })
        }
        Event::NobodyTrains { peers } => json!({"event": "nobody_trains", "peers": texts(peers)}),
        Event::NobodyAnswers => json!({"event": "nobody_answers"}),
        Event::ChunksMissing { chunks, peers } => {
            json!({"event": "chunks_missing", "chunks": chunks, "peers": texts(peers)})
        }
        Event::ChunksLost { chunks, deals_anew } => {
            json!({"event": "chunks_lost", "chunks": chunks, "deals_anew": deals_anew})
        }
        Event::Orphaned { peers } => json!({"event": "orphaned", "peers": texts(peers)}),
        Event::Expelled(Expulsion { peer, by, cause }) => json!({
            "event": "expelled", "peer": peer.to_string(), "by": by.to_string(), "cause": cause_word(*cause),
        }),
        // Never the secret: logs are copied into bug reports.
        Event::Rekeyed { rekey: Rekey { by, .. }, .. } => json!({"event": "rekeyed", "by": by.to_string()}),
        Event::Regrouping(Regrouping { epoch, present, needed, missing }) => json!({
            "event": "regrouping", "epoch": epoch.0, "present": present, "needed": needed, "missing": texts(missing),
        }),
        Event::Restored { steps, pass, digest, restarted } => json!({
            "event": "restored", "steps": steps.0, "pass": pass, "digest": digest.to_string(),
            "restarted": restarted,
        }),
        Event::Saved { steps, result } => json!({
            "event": "saved", "steps": steps.0, "failure": result.as_ref().err(),
        }),
        Event::Excluded { epoch } => json!({"event": "excluded", "epoch": epoch.0}),
        Event::Met(Met { leads, ours, theirs, is_merged }) => json!({
            "event": "met", "leads": leads.to_string(), "own_samples": ours, "their_samples": theirs,
            "merged": is_merged,
        }),
        Event::Merged(merge) => json!({
            "event": "merged", "view": merge.view.to_string(), "steps": merge.steps.0, "own_samples": merge.ours,
            "their_samples": merge.theirs,
        }),
        Event::Weighed(Weighed { ours, theirs, merged, distance, norm }) => json!({
            "event": "weighed", "own": evaluation_object(ours), "theirs": evaluation_object(theirs),
            "merged": evaluation_object(merged), "distance": distance, "norm": norm,
        }),
        Event::NotMerged => json!({"event": "not_merged"}),
        Event::GaveWay { is_merged, steps_since } => {
            json!({"event": "gave_way", "merged": is_merged, "steps_since": steps_since})
        }
        Event::OutOfReach { peers } => json!({"event": "out_of_reach", "peers": texts(peers)}),
        Event::Leaving => json!({"event": "leaving"}),
        Event::HandedOver { chunks, members } => {
            json!({"event": "handed_over", "chunks": chunks, "members": members})
        }
        Event::Committed(committed) => json!({
            "event": "step", "step": committed.step.0, "pass": committed.pass,
            "steps_expected": committed.steps_expected, "loss": committed.loss, "samples": committed.samples, "left_out": committed.left_out, "rate": committed.rate,
            "digest": committed.digest.map(|digest| digest.to_string()),
        }),
        Event::Violation { peer, reject } => {
            json!({"event": "violation", "peer": peer.to_string(), "reason": reject.to_string()})
        }
        // Told as `summary` or `failed`.
        Event::Ended(_) => return None,
    })
}

fn evaluation_object(evaluation: &Evaluation) -> Value {
    json!({"samples": evaluation.samples, "loss": evaluation.loss, "accuracy": evaluation.accuracy})
}

fn change_object(change: &Change) -> Value {
    json!({
        "joined": texts(&change.joined), "left": texts(&change.left), "step": change.step.0,
        "interrupted": change.is_interruption, "rolled_forward": change.is_forward, "merges": change.is_merge,
        "given_back": change.given_back, "moving": change.moving, "restarted": change.restarted,
        "retiring": texts(&change.retiring),
    })
}

/// A change of the members, as a `view` told it: the view's number, its members, and what is another way than before.
pub(super) fn change_of(object: &Value) -> Option<(u64, usize, Change)> {
    let (change, members) = (&object["change"], object["members"].as_array()?.len());
    let peers = |key: &str| -> Option<Vec<PeerId>> {
        change[key].as_array()?.iter().map(|peer| peer.as_str()?.parse().ok()).collect()
    };
    let restarted = change["restarted"].as_array()?.iter().map(|chunk| u32::try_from(chunk.as_u64()?).ok());
    let change = Change {
        joined: peers("joined")?,
        left: peers("left")?,
        retiring: peers("retiring")?,
        step: StepNumber(change["step"].as_u64()?),
        is_interruption: change["interrupted"].as_bool()?,
        is_forward: change["rolled_forward"].as_bool()?,
        is_merge: change["merges"].as_bool()?,
        given_back: change["given_back"].as_u64()?,
        moving: change["moving"].as_u64()? as usize,
        restarted: restarted.collect::<Option<_>>()?,
    };
    Some((object["epoch"].as_u64()?, members, change))
}

fn texts(peers: &[PeerId]) -> Vec<String> {
    peers.iter().map(PeerId::to_string).collect()
}

/// Why a peer was put out of the run, in a word.
pub(crate) fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Request => "request",
        Cause::Violations => "violations",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_told() {
        let change = Change {
            joined: vec![PeerId([1; 32])],
            left: vec![PeerId([2; 32]), PeerId([3; 32])],
            step: StepNumber(7),
            is_interruption: true,
            is_forward: false,
            is_merge: true,
            given_back: 16,
            moving: 200,
            restarted: vec![4, 9],
            retiring: vec![PeerId([4; 32])],
        };
        let object = json!({"epoch": 3, "members": ["a", "b"], "change": change_object(&change)});
        assert_eq!(change_of(&object), Some((3, 2, change)));
        assert_eq!(change_of(&json!({"epoch": 1, "members": [], "change": null})), None);
    }
}
