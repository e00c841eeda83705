//! Events as JSON objects, for `--json` and the event log; and the way back, for the commands that start peers and read their output.

use peergrad_core::io::{BranchDetected, Event, MergeEvaluation, RecoveryProgress, ViewDelta};
use peergrad_models::task::Evaluation;
use peergrad_protocol::message::{Rekey, Stage};
use peergrad_protocol::view::{Expulsion, ExpulsionCause, MemberFault, Quarantine};
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::{Value, json};

/// The object of an event: its [name](event_name) under `event`, and its fields. `None` for the end of the run, which has the
/// objects `summary` and `failed`.
pub fn event_json(event: &Event) -> Option<Value> {
    let mut object = joining_fields(event)
        .or_else(|| membership_fields(event))
        .or_else(|| state_fields(event))
        .or_else(|| partition_fields(event))?;
    object["event"] = event_name(event).into();
    Some(object)
}

/// The name of an event in JSON and in the event log.
pub fn event_name(event: &Event) -> &'static str {
    match event {
        Event::JoinRequested(_) => "join_requested",
        Event::PeerReady { .. } => "peer_ready",
        Event::InitialParametersDiffer(_) => "initial_parameters_differ",
        Event::PeerWithdrawn { .. } => "peer_withdrawn",
        Event::Welcomed { .. } => "welcomed",
        Event::RecoveryStarted { .. } => "recovery_started",
        Event::MembersUnreachable { .. } => "members_unreachable",
        Event::FetchingData { .. } => "fetching_data",
        Event::Prepared { .. } => "prepared",
        Event::ViewInstalled { .. } => "view",
        Event::MemberSuspected(_) => "member_suspected",
        Event::DiskFails { .. } => "disk_fails",
        Event::MemberStopped { .. } => "member_stopped",
        Event::Paused { .. } => "paused",
        Event::NoActiveMember { .. } => "no_active_member",
        Event::NoPeerAnswers => "no_peer_answers",
        Event::ChunksMissing { .. } => "chunks_missing",
        Event::ChunksLost { .. } => "chunks_lost",
        Event::ParametersUnreachable { .. } => "parameters_unreachable",
        Event::Expelled(_) => "expelled",
        Event::Evaluated { .. } => "evaluated",
        Event::BestKept { .. } => "best_kept",
        Event::EndsEarly => "ends_early",
        Event::TablesIncomplete => "tables_incomplete",
        Event::Stalled { .. } => "stalled",
        Event::FaultNoticed { .. } => "fault_noticed",
        Event::Quarantined(_) => "quarantined",
        Event::Rekeyed { .. } => "rekeyed",
        Event::RecoveryProgress(_) => "recovery_progress",
        Event::Restored { .. } => "restored",
        Event::Saved { .. } => "saved",
        Event::Excluded { .. } => "excluded",
        Event::BranchDetected(_) => "branch_detected",
        Event::Merged(_) => "merged",
        Event::MergeEvaluation(_) => "merge_evaluation",
        Event::MergeAbandoned => "merge_abandoned",
        Event::BranchAbandoned { .. } => "branch_abandoned",
        Event::Leaving { .. } => "leaving",
        Event::HandedOver { .. } => "handed_over",
        Event::Committed(_) => "step",
        Event::Violation { .. } => "violation",
        Event::Ended(_) => "ended",
    }
}

/// Events up to the first view that a peer is in.
fn joining_fields(event: &Event) -> Option<Value> {
    Some(match event {
        Event::JoinRequested(peer) => json!({"peer": peer.to_string()}),
        Event::PeerReady { peer, ready, wanted } => {
            json!({"peer": peer.to_string(), "ready": ready, "wanted": wanted})
        }
        Event::PeerWithdrawn { peer, reason, ready, wanted } => {
            json!({"peer": peer.to_string(), "reason": reason, "ready": ready, "wanted": wanted})
        }
        Event::Welcomed { run, by } => json!({"run": run.to_string(), "by": by.to_string()}),
        Event::RecoveryStarted { view_number } => json!({"view_number": view_number.0}),
        Event::FetchingData { received, total } => json!({"received": received, "total": total}),
        Event::Prepared { size, has_own_losses } => json!({
            "parameters": size.parameters, "owned": size.owned, "samples": size.samples, "steps": size.steps,
            "epochs": size.epochs, "own_losses": has_own_losses,
        }),
        Event::MembersUnreachable { peers } => json!({"peers": texts(peers)}),
        Event::RecoveryProgress(RecoveryProgress { view_number, present, needed, missing }) => json!({
            "view_number": view_number.0, "present": present, "needed": needed, "missing": texts(missing),
        }),
        Event::NoActiveMember { peers } => json!({"peers": texts(peers)}),
        Event::NoPeerAnswers => json!({}),
        _ => return None,
    })
}

/// Who is in the run, who is lost, and whether enough members are reachable.
fn membership_fields(event: &Event) -> Option<Value> {
    Some(match event {
        Event::ViewInstalled { view, digest, shard, share, change } => json!({
            "number": view.number.0, "digest": digest.to_string(), "shard": shard, "share": share,
            "members": view.members.iter().map(|member| member.peer.to_string()).collect::<Vec<_>>(),
            "change": change.as_ref().map(change_json),
        }),
        Event::MemberSuspected(peer) | Event::InitialParametersDiffer(peer) => {
            json!({"peer": peer.to_string()})
        }
        Event::DiskFails { peer, fails } => json!({"peer": peer.to_string(), "fails": fails}),
        Event::MemberStopped { peer, reason } => json!({"peer": peer.to_string(), "reason": reason}),
        Event::Paused { reached, needed, members, missing } => json!({
            "reached": reached, "needed": needed, "members": members, "waiting_for": needed - reached,
            "missing": texts(missing),
        }),
        Event::Expelled(Expulsion { peer, by, cause }) => {
            json!({"peer": peer.to_string(), "by": by.to_string(), "cause": cause_text(*cause)})
        }
        // Never the secret: users copy logs into bug reports.
        Event::Rekeyed { rekey: Rekey { by, .. }, .. } => json!({"by": by.to_string()}),
        Event::Stalled { step, stage, peers } => {
            json!({"step": step.0, "awaited": stage_word(*stage), "peers": texts(peers)})
        }
        Event::FaultNoticed { peer, by, fault } => {
            json!({"peer": peer.to_string(), "by": by.to_string(), "fault": fault_word(*fault)})
        }
        Event::Quarantined(quarantine) => quarantine_json(quarantine),
        Event::Excluded { view_number, quarantine } => {
            json!({"view_number": view_number.0, "quarantine": quarantine.as_ref().map(quarantine_json)})
        }
        Event::Evaluated { steps, evaluation, by, is_best, best } => json!({
            "steps": steps.0, "by": by.to_string(), "is_best": is_best, "evaluation": evaluation_json(evaluation),
            "best_steps": best.steps.0, "best_loss": best.loss,
        }),
        Event::BestKept { steps, result } => json!({"steps": steps.0, "failure": result.as_ref().err()}),
        Event::EndsEarly | Event::TablesIncomplete => json!({}),
        Event::Leaving { reason } => json!({"reason": reason.to_string()}),
        Event::HandedOver { chunks, members } => json!({"chunks": chunks, "members": members}),
        Event::Violation { peer, reject } => json!({"peer": peer.to_string(), "reason": reject.to_string()}),
        _ => return None,
    })
}

/// What the members hold: committed steps, table chunks and checkpoints.
fn state_fields(event: &Event) -> Option<Value> {
    Some(match event {
        Event::Committed(committed) => json!({
            "step": committed.step.0, "epoch": committed.epoch, "steps_expected": committed.steps_expected,
            "loss": committed.loss, "samples": committed.samples, "left_out": committed.left_out,
            "rate": committed.rate, "digest": committed.digest.map(|digest| digest.to_string()),
        }),
        Event::ChunksMissing { chunks, peers } => json!({"chunks": chunks, "peers": texts(peers)}),
        Event::ChunksLost { chunks, retrains_all } => json!({"chunks": chunks, "retrains_all": retrains_all}),
        Event::ParametersUnreachable { peers } => json!({"peers": texts(peers)}),
        Event::Restored { steps, epoch, digest, restarted } => json!({
            "steps": steps.0, "epoch": epoch, "digest": digest.to_string(), "restarted": restarted,
        }),
        Event::Saved { steps, result } => json!({"steps": steps.0, "failure": result.as_ref().err()}),
        _ => return None,
    })
}

/// What happens when two parts of a swarm, which trained apart for a while, meet again.
fn partition_fields(event: &Event) -> Option<Value> {
    Some(match event {
        Event::BranchDetected(BranchDetected { leads, ours, theirs, is_merged }) => json!({
            "leads": leads.to_string(), "own_samples": ours, "their_samples": theirs, "merged": is_merged,
        }),
        Event::Merged(merge) => json!({
            "view": merge.view.to_string(), "steps": merge.steps.0, "own_samples": merge.ours,
            "their_samples": merge.theirs,
        }),
        Event::MergeEvaluation(MergeEvaluation { ours, theirs, merged, distance, norm }) => json!({
            "own": evaluation_json(ours), "theirs": evaluation_json(theirs), "merged": evaluation_json(merged),
            "distance": distance, "norm": norm,
        }),
        Event::MergeAbandoned => json!({}),
        Event::BranchAbandoned { is_merged, steps_since } => {
            json!({"merged": is_merged, "steps_since": steps_since})
        }
        _ => return None,
    })
}

fn evaluation_json(evaluation: &Evaluation) -> Value {
    json!({"samples": evaluation.samples, "loss": evaluation.loss, "accuracy": evaluation.accuracy})
}

fn change_json(change: &ViewDelta) -> Value {
    json!({
        "joined": texts(&change.joined), "left": texts(&change.left), "step": change.step.map(|step| step.0),
        "interrupted": change.is_interruption, "rolled_forward": change.is_forward, "merges": change.is_merge,
        "returned": change.returned, "moving": change.moving, "restarted": change.restarted,
        "retiring": texts(&change.retiring),
        "local_steps": change.local_steps,
        "owned_share": change.owned_per_mille.map(|per_mille| f64::from(per_mille) / 1000.0),
        "batch_share": change.batch_per_mille.map(|per_mille| f64::from(per_mille) / 1000.0),
    })
}

/// Reads the object of a `view` event: the view's number, how many members it has, and how it differs from the view before.
/// `None` for a first view, and for an object that is none of this program.
pub fn change_of(object: &Value) -> Option<(u64, usize, ViewDelta)> {
    let (change, members) = (&object["change"], object["members"].as_array()?.len());
    let peers = |key: &str| -> Option<Vec<PeerId>> {
        change[key].as_array()?.iter().map(|peer| peer.as_str()?.parse().ok()).collect()
    };
    let restarted = change["restarted"].as_array()?.iter().map(|chunk| u32::try_from(chunk.as_u64()?).ok());
    let per_mille = |key: &str| change[key].as_f64().map(|share| (1000.0 * share).round() as u16);
    let change = ViewDelta {
        joined: peers("joined")?,
        left: peers("left")?,
        retiring: peers("retiring")?,
        step: change["step"].as_u64().map(StepNumber),
        is_interruption: change["interrupted"].as_bool()?,
        is_forward: change["rolled_forward"].as_bool()?,
        is_merge: change["merges"].as_bool()?,
        returned: change["returned"].as_u64()?,
        moving: change["moving"].as_u64()? as usize,
        restarted: restarted.collect::<Option<_>>()?,
        local_steps: change["local_steps"].as_u64(),
        owned_per_mille: per_mille("owned_share"),
        batch_per_mille: per_mille("batch_share"),
    };
    Some((object["number"].as_u64()?, members, change))
}

fn texts(peers: &[PeerId]) -> Vec<String> {
    peers.iter().map(PeerId::to_string).collect()
}

fn quarantine_json(quarantine: &Quarantine) -> Value {
    let Quarantine { peer, other, fault, is_certain } = quarantine;
    json!({
        "peer": peer.to_string(), "other": other.to_string(), "fault": fault_word(*fault), "certain": is_certain,
    })
}

/// What members need of each other, as one word.
fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Chunks => "chunks",
        Stage::Progress => "progress",
        Stage::Contributors => "contributors",
        Stage::Reduce => "reduce",
        Stage::Mirror => "mirror",
        Stage::Gather => "gather",
        Stage::Norms => "norms",
        Stage::Clocks => "clocks",
        Stage::Rows => "rows",
        Stage::Journal => "journal",
    }
}

/// What a member has noticed of another one, as one word.
fn fault_word(fault: MemberFault) -> &'static str {
    match fault {
        MemberFault::Frames => "frames",
        MemberFault::Refused => "refused",
        MemberFault::Withheld => "withheld",
        MemberFault::Parameters => "parameters",
        MemberFault::Values => "values",
        MemberFault::Late => "late",
    }
}

/// Why a peer was expelled, as one word.
pub fn cause_text(cause: ExpulsionCause) -> &'static str {
    match cause {
        ExpulsionCause::Request => "request",
        ExpulsionCause::Violations => "violations",
        ExpulsionCause::Faults => "faults",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_survives_writing_and_reading() {
        let change = ViewDelta {
            joined: vec![PeerId([1; 32])],
            left: vec![PeerId([2; 32]), PeerId([3; 32])],
            step: Some(StepNumber(7)),
            is_interruption: true,
            is_forward: false,
            is_merge: true,
            returned: 16,
            moving: 200,
            restarted: vec![4, 9],
            retiring: vec![PeerId([4; 32])],
            owned_per_mille: Some(77),
            batch_per_mille: Some(43),
            local_steps: Some(24),
        };
        let object = json!({"number": 3, "members": ["a", "b"], "change": change_json(&change)});
        assert_eq!(change_of(&object), Some((3, 2, change)));
        assert_eq!(change_of(&json!({"number": 1, "members": [], "change": null})), None);
    }
}
