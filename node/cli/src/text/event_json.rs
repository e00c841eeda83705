//! Events as JSON: one object each, with the names that the words use; and back, where this program reads itself.

use peergrad_core::io::{BranchDetected, Event, MergeEvaluation, RecoveryProgress, ViewDelta};
use peergrad_models::task::Evaluation;
use peergrad_protocol::message::Rekey;
use peergrad_protocol::view::{Expulsion, ExpulsionCause};
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::{Value, json};

/// What a program that reads along is told of an event.
pub(crate) fn event_json(event: &Event) -> Option<Value> {
    Some(match event {
        Event::JoinRequested(peer) => json!({"event": "join_requested", "peer": peer.to_string()}),
        Event::PeerReady { peer, ready, wanted } => {
            json!({"event": "peer_ready", "peer": peer.to_string(), "ready": ready, "wanted": wanted})
        }
        Event::PeerWithdrawn { peer, reason, ready, wanted } => {
            json!({"event": "peer_withdrawn", "peer": peer.to_string(), "reason": reason, "ready": ready, "wanted": wanted})
        }
        Event::Welcomed { run, by } => {
            json!({"event": "welcomed", "run": run.to_string(), "by": by.to_string()})
        }
        Event::RecoveryStarted { view_number } => {
            json!({"event": "recovery_started", "view_number": view_number.0})
        }
        Event::FetchingData { received, total } => {
            json!({"event": "fetching_data", "received": received, "total": total})
        }
        Event::Prepared(scope) => json!({
            "event": "prepared", "parameters": scope.parameters, "samples": scope.samples,
            "steps": scope.steps, "epochs": scope.epochs,
        }),
        Event::ViewInstalled { view, digest, shard, share, change } => json!({
            "event": "view", "number": view.number.0, "digest": digest.to_string(), "shard": shard, "share": share,
            "members": view.members.iter().map(|member| member.peer.to_string()).collect::<Vec<_>>(),
            "change": change.as_ref().map(change_json),
        }),
        Event::MemberSuspected(peer) => json!({"event": "member_suspected", "peer": peer.to_string()}),
        Event::MemberStopped { peer, reason } => {
            json!({"event": "member_stopped", "peer": peer.to_string(), "reason": reason})
        }
        Event::Paused { reached, needed, members, missing } => {
            json!({
                "event": "paused", "reached": reached, "needed": needed, "members": members,
                "waiting_for": needed - reached, "missing": texts(missing),
            })
        }
        Event::NoActiveMember { peers } => json!({"event": "no_active_member", "peers": texts(peers)}),
        Event::NoPeerAnswers => json!({"event": "no_peer_answers"}),
        Event::ChunksMissing { chunks, peers } => {
            json!({"event": "chunks_missing", "chunks": chunks, "peers": texts(peers)})
        }
        Event::ChunksLost { chunks, retrains_all } => {
            json!({"event": "chunks_lost", "chunks": chunks, "retrains_all": retrains_all})
        }
        Event::ParametersUnreachable { peers } => {
            json!({"event": "parameters_unreachable", "peers": texts(peers)})
        }
        Event::Expelled(Expulsion { peer, by, cause }) => json!({
            "event": "expelled", "peer": peer.to_string(), "by": by.to_string(), "cause": cause_text(*cause),
        }),
        // Never the secret: logs are copied into bug reports.
        Event::Rekeyed { rekey: Rekey { by, .. }, .. } => json!({"event": "rekeyed", "by": by.to_string()}),
        Event::RecoveryProgress(RecoveryProgress { view_number, present, needed, missing }) => json!({
            "event": "recovery_progress", "view_number": view_number.0, "present": present, "needed": needed, "missing": texts(missing),
        }),
        Event::Restored { steps, epoch, digest, restarted } => json!({
            "event": "restored", "steps": steps.0, "epoch": epoch, "digest": digest.to_string(),
            "restarted": restarted,
        }),
        Event::Saved { steps, result } => json!({
            "event": "saved", "steps": steps.0, "failure": result.as_ref().err(),
        }),
        Event::Excluded { view_number } => json!({"event": "excluded", "view_number": view_number.0}),
        Event::BranchDetected(BranchDetected { leads, ours, theirs, is_merged }) => json!({
            "event": "branch_detected", "leads": leads.to_string(), "own_samples": ours, "their_samples": theirs,
            "merged": is_merged,
        }),
        Event::Merged(merge) => json!({
            "event": "merged", "view": merge.view.to_string(), "steps": merge.steps.0, "own_samples": merge.ours,
            "their_samples": merge.theirs,
        }),
        Event::MergeEvaluation(MergeEvaluation { ours, theirs, merged, distance, norm }) => json!({
            "event": "merge_evaluation", "own": evaluation_json(ours), "theirs": evaluation_json(theirs),
            "merged": evaluation_json(merged), "distance": distance, "norm": norm,
        }),
        Event::MergeAbandoned => json!({"event": "merge_abandoned"}),
        Event::BranchAbandoned { is_merged, steps_since } => {
            json!({"event": "branch_abandoned", "merged": is_merged, "steps_since": steps_since})
        }
        Event::MembersUnreachable { peers } => json!({"event": "members_unreachable", "peers": texts(peers)}),
        Event::Leaving => json!({"event": "leaving"}),
        Event::HandedOver { chunks, members } => {
            json!({"event": "handed_over", "chunks": chunks, "members": members})
        }
        Event::Committed(committed) => json!({
            "event": "step", "step": committed.step.0, "epoch": committed.epoch,
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

fn evaluation_json(evaluation: &Evaluation) -> Value {
    json!({"samples": evaluation.samples, "loss": evaluation.loss, "accuracy": evaluation.accuracy})
}

fn change_json(change: &ViewDelta) -> Value {
    json!({
        "joined": texts(&change.joined), "left": texts(&change.left), "step": change.step.0,
        "interrupted": change.is_interruption, "rolled_forward": change.is_forward, "merges": change.is_merge,
        "returned": change.returned, "moving": change.moving, "restarted": change.restarted,
        "retiring": texts(&change.retiring),
    })
}

/// A change of the members, as a `view` told it: the view's number, its members, and what is another way than before.
pub(crate) fn change_of(object: &Value) -> Option<(u64, usize, ViewDelta)> {
    let (change, members) = (&object["change"], object["members"].as_array()?.len());
    let peers = |key: &str| -> Option<Vec<PeerId>> {
        change[key].as_array()?.iter().map(|peer| peer.as_str()?.parse().ok()).collect()
    };
    let restarted = change["restarted"].as_array()?.iter().map(|chunk| u32::try_from(chunk.as_u64()?).ok());
    let change = ViewDelta {
        joined: peers("joined")?,
        left: peers("left")?,
        retiring: peers("retiring")?,
        step: StepNumber(change["step"].as_u64()?),
        is_interruption: change["interrupted"].as_bool()?,
        is_forward: change["rolled_forward"].as_bool()?,
        is_merge: change["merges"].as_bool()?,
        returned: change["returned"].as_u64()?,
        moving: change["moving"].as_u64()? as usize,
        restarted: restarted.collect::<Option<_>>()?,
    };
    Some((object["number"].as_u64()?, members, change))
}

fn texts(peers: &[PeerId]) -> Vec<String> {
    peers.iter().map(PeerId::to_string).collect()
}

/// Why a peer was put out of the run, in a word.
pub(crate) fn cause_text(cause: ExpulsionCause) -> &'static str {
    match cause {
        ExpulsionCause::Request => "request",
        ExpulsionCause::Violations => "violations",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_told() {
        let change = ViewDelta {
            joined: vec![PeerId([1; 32])],
            left: vec![PeerId([2; 32]), PeerId([3; 32])],
            step: StepNumber(7),
            is_interruption: true,
            is_forward: false,
            is_merge: true,
            returned: 16,
            moving: 200,
            restarted: vec![4, 9],
            retiring: vec![PeerId([4; 32])],
        };
        let object = json!({"number": 3, "members": ["a", "b"], "change": change_json(&change)});
        assert_eq!(change_of(&object), Some((3, 2, change)));
        assert_eq!(change_of(&json!({"number": 1, "members": [], "change": null})), None);
    }
}
