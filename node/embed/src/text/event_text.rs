//! One line for people about each event: the report, the event log and `peer status` all use these.

use peergrad_core::io::{BranchDetected, Event, Failure, MergeEvaluation, RecoveryProgress, RunSize};
use peergrad_models::task::Evaluation;
use peergrad_protocol::limits::{KEPT_DATA_BYTES_MAX, QUARANTINE_TIMES_MAX};
use peergrad_protocol::message::{Rekey, Stage};
use peergrad_protocol::view::{Expulsion, ExpulsionCause, MemberFault, Quarantine};
use peergrad_protocol::{PeerId, StepNumber};

use super::change_text::change_text;
use super::command_name::command_name;
use super::text_table::{bytes, count, plural};

/// The line for an event of the peer `me`. `None` for events that occur all the time (committed steps, partly received data) and
/// for the end of the run, which has its own report. `scope` is the size of the run, once the peer has prepared its task.
pub fn event_text(event: &Event, me: &PeerId, scope: Option<&RunSize>) -> Option<String> {
    joining_text(event, me)
        .or_else(|| membership_text(event, scope))
        .or_else(|| evaluation_text(event))
        .or_else(|| state_text(event))
        .or_else(|| partition_text(event))
}

/// Events up to the first view that a peer is in.
fn joining_text(event: &Event, me: &PeerId) -> Option<String> {
    Some(match event {
        Event::JoinRequested(peer) => format!("asking peer {} for admission", peer.short()),
        Event::PeerReady { peer, ready, wanted } if peer == me && ready >= wanted => "ready".to_owned(),
        Event::PeerReady { peer, ready, wanted } if peer == me => {
            format!("ready; waiting for {} more", wanted - ready)
        }
        Event::PeerReady { peer, ready, wanted } => {
            format!("peer {} is ready ({ready} of {wanted})", peer.short())
        }
        Event::InitialParametersDiffer(peer) => format!(
            "peer {} has drawn other initial parameters than this one, so it joins after the start and gets those of the run: a task must draw the same on every machine",
            peer.short()
        ),
        Event::PeerWithdrawn { peer, reason, ready, wanted } => {
            format!("peer {} left before the start ({reason}); {ready} of {wanted} are ready", peer.short())
        }
        Event::Welcomed { run, by } => {
            format!("peer {} admitted this peer to run {}", by.short(), run.short())
        }
        Event::RecoveryStarted { view_number } => format!(
            "this peer was a member of view {} when it stopped; recovering, since its memory is lost",
            view_number.0
        ),
        Event::FetchingData { received, total } if received == total => {
            format!("received the data file from the swarm: {}", bytes(*total))
        }
        // Once at the beginning, and then at each tenth.
        Event::FetchingData { received, total }
            if *total > KEPT_DATA_BYTES_MAX
                && matches!(received / (total / 100), 1 | 10 | 20 | 30 | 40 | 50 | 60 | 70 | 80 | 90) =>
        {
            format!("receiving the data file from the swarm: {} of {}", bytes(*received), bytes(*total))
        }
        Event::Prepared { size, .. } => format!(
            "{} parameters, {} training samples, {} ({})",
            count(size.parameters as u64),
            count(size.samples),
            plural(size.epochs as usize, "epoch"),
            plural(size.steps as usize, "step")
        ),
        Event::MembersUnreachable { peers } => format!(
            "ready, but this peer cannot reach these members: {}; if they have stopped, the run waits for them, otherwise check the network between here and there",
            short_names(peers)
        ),
        Event::RecoveryProgress(progress) => recovery_text(progress),
        Event::NoActiveMember { peers } => format!(
            "{} {}, but no member is training; waiting for one (if all members have stopped, run `{} resume` on their machines to continue from the checkpoints)",
            short_names(peers),
            if peers.len() == 1 { "answers" } else { "answer" },
            command_name(),
        ),
        Event::NoPeerAnswers => format!(
            "no peer of the run answers; still trying. The run may have ended, or its peers have other addresses now: ask for a fresh invite (`{} invite` on the machine of a peer that trains)",
            command_name()
        ),
        _ => return None,
    })
}

/// How much this peer owns in its first view.
fn owned_text(shard: usize, scope: Option<&RunSize>) -> String {
    if shard == 0 {
        return "its share arrives during the next steps".to_owned();
    }
    let share = 100.0 * shard as f64 / scope.map_or(0, |scope| scope.owned).max(1) as f64;
    let what = match scope {
        Some(scope) if scope.owned != scope.parameters => "numbers in tables",
        _ => "parameters",
    };
    format!("this one owns {} {what} ({share:.0} %)", count(shard as u64))
}

/// Who is in the run, who is lost, and whether enough members are reachable.
fn membership_text(event: &Event, scope: Option<&RunSize>) -> Option<String> {
    Some(match event {
        Event::ViewInstalled { view, change: Some(change), .. } => {
            change_text(view.number.0, view.members.len(), change)
        }
        Event::ViewInstalled { view, shard, .. } => {
            format!("training with {}; {}", plural(view.members.len(), "peer"), owned_text(*shard, scope))
        }
        Event::MemberSuspected(peer) => format!("no contact with peer {}", peer.short()),
        Event::DiskFails { peer, fails } => disk_text(*peer, *fails),
        Event::MemberStopped { peer, reason } => format!("peer {} stopped: {reason}", peer.short()),
        Event::Expelled(expulsion) => expulsion_text(expulsion),
        Event::Stalled { step, stage, peers } => format!(
            "step {} does not end: this peer waits for {} of {}",
            step.0,
            stage_text(*stage),
            short_names(peers)
        ),
        Event::FaultNoticed { peer, by, fault } => {
            format!("peer {} reports of peer {}: {}", by.short(), peer.short(), fault_text(*fault))
        }
        Event::Quarantined(quarantine) => quarantine_text(quarantine),
        Event::Rekeyed { rekey: Rekey { by, .. }, .. } => format!(
            "a user of peer {} changed the run's secret: old invites no longer work; `{} invite` prints a new one",
            by.short(),
            command_name()
        ),
        Event::Paused { reached, needed, members, missing } => format!(
            "paused: {reached} of {members} peers can be reached (this one included) and {needed} are needed; waiting for {} more of {} (a stopped peer can rejoin from its data directory; Ctrl-C saves the current model)",
            needed - reached,
            short_names(missing)
        ),
        Event::Excluded { quarantine: Some(Quarantine { other, fault, .. }), .. } => format!(
            "the other members continued without this peer: {} between it and peer {}; asking for readmission",
            fault_text(*fault),
            other.short()
        ),
        Event::Excluded { .. } => {
            "the other members continued without this peer (unreachable, or too long in one step); asking for readmission"
                .to_owned()
        }
        Event::Leaving { reason: Failure::Diverged { .. } } => {
            "the loss is not a finite number any more: handing over to the other members before leaving"
                .to_owned()
        }
        Event::Leaving { reason: Failure::ParametersDiffer { .. } } => {
            "the members have different parameters: the run ends".to_owned()
        }
        Event::Leaving { .. } => "handing over to the other members before leaving".to_owned(),
        Event::HandedOver { chunks: 0, .. } => {
            "the other members already hold everything that this peer owned; nothing is lost".to_owned()
        }
        Event::HandedOver { chunks, members } => format!(
            "{} handed over to {}; nothing is lost",
            plural(*chunks, "chunk"),
            plural(*members, "peer")
        ),
        Event::Violation { peer, reject } => {
            format!("ignored an invalid message from peer {}: {reject}", peer.short())
        }
        _ => return None,
    })
}

/// How good the model is during the run, and what follows from it.
fn evaluation_text(event: &Event) -> Option<String> {
    Some(match event {
        Event::Evaluated { steps, evaluation, is_best, .. } => {
            let best = if *is_best { ", the best so far" } else { "" };
            format!("after step {}: held-out {}{best}", steps.0, quality(evaluation))
        }
        Event::EndsEarly => "the members have agreed to end the run early".to_owned(),
        Event::TablesIncomplete => format!(
            "the members that are back have saved only some chunks of the tables; waiting for the peers of the run that have the rest (if these are gone for good, begin again from initial values with `{} declare-lost`)",
            command_name()
        ),
        Event::BestKept { steps, result: Ok(()) } => {
            format!("kept the model after step {} as best.safetensors", steps.0)
        }
        Event::BestKept { steps, result: Err(reason) } => {
            format!("cannot keep the model after step {} as best.safetensors ({reason})", steps.0)
        }
        _ => return None,
    })
}

/// Which peer was removed from the run, and why.
fn expulsion_text(Expulsion { peer, by, cause }: &Expulsion) -> String {
    let (peer, by) = (peer.short(), by.short());
    let reason = match cause {
        ExpulsionCause::Request => format!("at the request of a user of peer {by}"),
        ExpulsionCause::Violations => format!("for repeated protocol violations reported by peer {by}"),
        ExpulsionCause::Faults => format!("because it was excluded {QUARANTINE_TIMES_MAX} times for faults"),
    };
    format!("peer {peer} was removed from the run permanently, {reason}")
}

/// What members need of each other.
fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::Chunks => "chunks",
        Stage::Progress => "the progress",
        Stage::Contributors => "the list of contributors",
        Stage::Reduce => "partial sums",
        Stage::Mirror => "the sums of replicated chunks",
        Stage::Gather => "new parameters",
        Stage::Norms => "the norm of the gradient",
        Stage::Clocks => "the clocks",
        Stage::Rows => "rows",
        Stage::Journal => "the journal of additions",
    }
}

/// Whether a member can write to its disk.
fn disk_text(peer: PeerId, fails: bool) -> String {
    let peer = peer.short();
    if fails {
        format!(
            "peer {peer} cannot write to its disk: it trains, and has no part in view changes until it can"
        )
    } else {
        format!("peer {peer} can write to its disk again")
    }
}

/// What a member has noticed of another one.
fn fault_text(fault: MemberFault) -> &'static str {
    match fault {
        MemberFault::Frames => "frames were lost, changed or repeated",
        MemberFault::Refused => "a message was one that no correct peer sends",
        MemberFault::Withheld => "something was owed and not sent",
        MemberFault::Parameters => "parameters differed",
        MemberFault::Values => "values that one sent to the other were wrong",
        MemberFault::Late => "messages took seconds, over a line that carried almost nothing",
    }
}

/// Without whom the members continue, and why.
fn quarantine_text(Quarantine { peer, other, fault, is_certain }: &Quarantine) -> String {
    let (peer, other, fault) = (peer.short(), other.short(), fault_text(*fault));
    let certainty = if *is_certain {
        ", as several members report".to_owned()
    } else {
        format!(" between it and peer {other}, and either may be at fault")
    };
    format!("the members continue without peer {peer}: {fault}{certainty}; it may join again")
}

/// What the members hold: parameters, table chunks and checkpoints.
fn state_text(event: &Event) -> Option<String> {
    Some(match event {
        Event::ChunksMissing { chunks, peers } => format!(
            "no reachable peer has the current state of {}; waiting for one of {} (a peer that has stopped cannot bring it back; if all of them have stopped, `{} declare-lost` on this machine continues without it)",
            plural(*chunks, "table chunk"),
            short_names(peers),
            command_name()
        ),
        Event::ChunksLost { chunks, retrains_all } => format!(
            "{} reset to initial values, because a user declared the state lost: all additions to them are gone{}",
            plural(*chunks, "table chunk"),
            if *retrains_all {
                ", and so is the record of trained samples: all epochs are trained again"
            } else {
                ""
            }
        ),
        Event::ParametersUnreachable { peers } => {
            format!("no reachable peer has the parameters; waiting for one of {}", short_names(peers))
        }
        Event::Restored { steps: StepNumber(0), .. } => {
            "all members had stopped and none of those present has a checkpoint: training starts from the beginning"
                .to_owned()
        }
        Event::Restored { epoch: None, .. } => {
            "all members had stopped: continuing from the newest checkpoint of the tables".to_owned()
        }
        Event::Restored { steps, epoch: Some(epoch), restarted, .. } => {
            let lost = match restarted.len() {
                0 => String::new(),
                count => format!(
                    "; the optimizer state of {} was in no checkpoint and is reset",
                    plural(count, "chunk")
                ),
            };
            let (steps, epoch) = (count(steps.0), epoch + 1);
            format!(
                "all members had stopped: continuing from the checkpoint after step {steps}, in epoch {epoch}{lost}"
            )
        }
        Event::Saved { result: Err(reason), .. } => format!(
            "cannot write a checkpoint ({reason}); training continues, but if all peers stop now, they fall back to the previous one"
        ),
        _ => return None,
    })
}

/// What happens when two parts of a swarm, which trained apart for a while, meet again.
fn partition_text(event: &Event) -> Option<String> {
    Some(match event {
        Event::BranchDetected(BranchDetected { leads, ours, theirs, is_merged }) => format!(
            "found another part of this run that trained separately since the partition: {} samples there, {} here; {} (peer {} coordinates)",
            count(*theirs),
            count(*ours),
            if *is_merged { "this part is merged into the other" } else { "the other part's model is kept" },
            leads.short()
        ),
        Event::Merged(merge) => format!(
            "merged with the other part of the swarm: {} samples here and {} there since the partition",
            count(merge.ours),
            count(merge.theirs)
        ),
        Event::MergeEvaluation(MergeEvaluation { ours, theirs, merged, distance, norm }) => format!(
            "on held-out samples: {} here before, {} there, {} merged; distance between the two models: {:.1} % of this part's parameter norm",
            quality(ours),
            quality(theirs),
            quality(merged),
            100.0 * distance / norm.max(f64::MIN_POSITIVE)
        ),
        Event::MergeAbandoned => {
            "merge abandoned: a member could not fetch the other part's parameters; this part keeps its own model"
                .to_owned()
        }
        Event::BranchAbandoned { is_merged: true, steps_since } => {
            let since = match steps_since {
                0 => String::new(),
                1 => ", except for the last step, which is trained again there".to_owned(),
                since => format!(", except for the last {} steps, which are trained again there", count(*since)),
            };
            format!("this part's model was merged into the other part{since}; asking for admission there")
        }
        Event::BranchAbandoned { is_merged: false, .. } => {
            "the other part of the swarm is further ahead and its model is kept; asking for admission there"
                .to_owned()
        }
        _ => return None,
    })
}

/// Loss, and accuracy where the task has one.
fn quality(evaluation: &Evaluation) -> String {
    match evaluation.accuracy {
        _ if evaluation.samples == 0 => "no held-out samples".to_owned(),
        Some(accuracy) => format!("loss {:.3} ({:.1} % correct)", evaluation.loss, 100.0 * accuracy),
        None => format!("loss {:.4}", evaluation.loss),
    }
}

/// How many members are back after all of them had stopped, and what the peer waits for.
pub fn recovery_text(progress: &RecoveryProgress) -> String {
    let RecoveryProgress { present, needed, ref missing, .. } = *progress;
    let of = present + missing.len();
    match (needed.checked_sub(present), missing.len()) {
        (_, 0) => format!("all {of} members are back"),
        (None | Some(0), _) => format!(
            "{present} of {of} members are back, which is enough; waiting briefly for {}",
            short_names(missing)
        ),
        (Some(more), _) => format!(
            "{present} of {of} members are back and {needed} are needed; waiting for {more} more of {} (to continue alone as a new run: Ctrl-C, then `{} resume --alone`)",
            short_names(missing),
            command_name()
        ),
    }
}

/// Whether a user may call a peer by this name: its short name or its whole id.
pub fn is_called(peer: &PeerId, name: &str) -> bool {
    peer.short() == name || peer.to_string() == name
}

/// The short names of peers, separated by commas.
pub fn short_names(peers: &[PeerId]) -> String {
    peers.iter().map(PeerId::short).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_report_has_three_losses_and_the_distance() {
        let of = |loss| Evaluation { samples: 10, loss, accuracy: None };
        let evaluation =
            MergeEvaluation { ours: of(0.5), theirs: of(0.6), merged: of(0.4), distance: 0.364, norm: 1.0 };
        let text = event_text(&Event::MergeEvaluation(evaluation), &PeerId([1; 32]), None).unwrap();
        assert_eq!(
            text,
            "on held-out samples: loss 0.5000 here before, loss 0.6000 there, loss 0.4000 merged; distance between the two models: 36.4 % of this part's parameter norm"
        );
    }
}
