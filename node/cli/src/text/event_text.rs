//! Words: what an event is to a person.

use peergrad_core::io::{BranchDetected, Event, MergeEvaluation, RecoveryProgress, RunSize};
use peergrad_models::task::Evaluation;
use peergrad_protocol::message::Rekey;
use peergrad_protocol::view::{Expulsion, ExpulsionCause};
use peergrad_protocol::{PeerId, StepNumber};

use super::change_text;
use super::text_table::{bytes, count, plural};
use crate::terminal::program_name;

/// One line for an event, as the peer `me` tells it; `None` for those that come all the time, and for the end.
pub(crate) fn event_text(event: &Event, me: &PeerId, scope: Option<&RunSize>) -> Option<String> {
    Some(match event {
        Event::JoinRequested(peer) => format!("asking peer {} to be let in", peer.short()),
        Event::PeerReady { peer, ready, wanted } if peer == me && ready >= wanted => "ready".to_owned(),
        Event::PeerReady { peer, ready, wanted } if peer == me => {
            format!("ready; waiting for {} more", wanted - ready)
        }
        Event::PeerReady { peer, ready, wanted } => {
            format!("peer {} is ready: {ready} of {wanted}", peer.short())
        }
        Event::PeerWithdrawn { peer, reason, ready, wanted } => {
            format!("peer {} has gone before the start ({reason}): {ready} of {wanted}", peer.short())
        }
        Event::Welcomed { run, by } => format!("let into run {} by peer {}", run.short(), by.short()),
        Event::RecoveryStarted { view_number } => format!(
            "this peer was in view {} of the run before it stopped; what it held in memory is gone",
            view_number.0
        ),
        Event::FetchingData { received, total } if received == total => {
            format!("data received from the swarm: {}", bytes(*total))
        }
        Event::FetchingData { .. } => return None,
        Event::Prepared(scope) => format!(
            "{} parameters, {} training samples, {} ({})",
            count(scope.parameters as u64),
            count(scope.samples),
            plural(scope.epochs as usize, "epoch"),
            plural(scope.steps as usize, "step"),
        ),
        Event::MembersUnreachable { peers } => format!(
            "ready, but these members cannot be reached from here: {}; either they have stopped, and the run waits for them, or the network between here and there has to be looked at",
            short_names(peers)
        ),
        Event::Rekeyed { rekey: Rekey { by, .. }, .. } => format!(
            "the run has another secret, as a user wants it at peer {}: invites from before are of no use any more, and `{} invite` prints one that is",
            by.short(),
            program_name()
        ),
        Event::Expelled(Expulsion { peer, by, cause }) => {
            let reason = match cause {
                ExpulsionCause::Request => "as a user wants it at",
                ExpulsionCause::Violations => "as it keeps sending what no correct peer sends to",
            };
            format!("peer {} is out of the run for good, {reason} peer {}", peer.short(), by.short())
        }
        Event::RecoveryProgress(regrouping) => regrouping_text(regrouping),
        Event::NoActiveMember { peers } => format!(
            "{} {}, but nobody trains; waiting for a member that does (if all of them have stopped, `{} resume` on their machines goes on from what they have saved)",
            short_names(peers),
            if peers.len() == 1 { "answers" } else { "answer" },
            program_name(),
        ),
        Event::NoPeerAnswers => format!(
            "nobody answers any more; still trying. The run may be over; if it goes on, `{} invite` on a machine where it does prints an invite with another address",
            program_name()
        ),
        event => return change_text(event, scope),
    })
}

/// As [`event_text`], from the first view on.
fn change_text(event: &Event, scope: Option<&RunSize>) -> Option<String> {
    Some(match event {
        Event::ViewInstalled { view, change: Some(change), .. } => {
            change_text::change_text(view.number.0, view.members.len(), change)
        }
        Event::ViewInstalled { view, shard, .. } => {
            let total = scope.map_or(0, |scope| scope.parameters).max(1);
            let share = 100.0 * *shard as f64 / total as f64;
            let owns = match shard {
                0 => "its share moves here in the next steps".to_owned(),
                _ => format!("this one owns {} parameters ({share:.0} %)", count(*shard as u64)),
            };
            format!("training with {}; {owns}", plural(view.members.len(), "peer"))
        }
        Event::MemberSuspected(peer) => format!("no contact with peer {}", peer.short()),
        Event::MemberStopped { peer, reason } => format!("peer {} stops: {reason}", peer.short()),
        Event::Paused { reached, needed, members, missing } => format!(
            "paused: {reached} of {members} peers can be reached, this one included, and {needed} are needed; waiting for {} more of {} (one that has stopped can join again from its data directory; Ctrl-C saves the model as it is)",
            needed - reached,
            short_names(missing)
        ),
        Event::ChunksMissing { chunks, peers } => format!(
            "nobody who can be reached has {} of the tables as they are now; waiting for one of {} (one that has stopped cannot bring them back; if all of them have, `{} declare-lost` on this machine goes on without)",
            plural(*chunks, "chunk"),
            short_names(peers),
            program_name()
        ),
        Event::ChunksLost { chunks, retrains_all } => format!(
            "{} of the tables begin anew, as a user has declared them lost: what was added to them is gone{}",
            plural(*chunks, "chunk"),
            if *retrains_all { ", and so is who has trained what: all epochs are trained again" } else { "" }
        ),
        Event::ParametersUnreachable { peers } => {
            format!("nobody who can be reached has the parameters; waiting for one of {}", short_names(peers))
        }
        Event::Restored { steps: StepNumber(0), .. } => {
            "everybody had stopped, and nobody who is back has a checkpoint: beginning anew".to_owned()
        }
        Event::Restored { steps, epoch, restarted, .. } => {
            let lost = match restarted.len() {
                0 => String::new(),
                count => format!(
                    "; nobody who is back has saved the optimizer state of {}, it starts anew",
                    plural(count, "chunk")
                ),
            };
            let (steps, epoch) = (count(steps.0), epoch + 1);
            format!(
                "everybody had stopped: going on from the checkpoint after step {steps}, in epoch {epoch}{lost}"
            )
        }
        Event::Saved { steps, result: Err(reason) } => format!(
            "cannot write the checkpoint after step {} ({reason}); training goes on, but if all peers stop now, they go back to the one before",
            steps.0
        ),
        Event::Excluded { .. } => {
            "the others could not reach this peer and have gone on; asking to be let in again".to_owned()
        }
        Event::BranchDetected(BranchDetected { leads, ours, theirs, is_merged }) => format!(
            "met other peers of this run again, which have gone on since the cut: {} samples there, {} here; {} (peer {} speaks for them)",
            count(*theirs),
            count(*ours),
            if *is_merged { "what was learnt here is merged into theirs" } else { "what they have is kept" },
            leads.short()
        ),
        Event::Merged(merge) => format!(
            "merged with the other part of the swarm: {} samples here and {} there since the cut",
            count(merge.ours),
            count(merge.theirs)
        ),
        Event::MergeEvaluation(MergeEvaluation { ours, theirs, merged, distance, norm }) => format!(
            "on held-out samples: {} here before, {} there, {} merged; the parameters of the two parts were {:.1} % apart",
            quality(ours),
            quality(theirs),
            quality(merged),
            100.0 * distance / norm.max(f64::MIN_POSITIVE)
        ),
        Event::MergeAbandoned => "the other part of the swarm was not merged: somebody could not get its parameters; what this part has is kept".to_owned(),
        Event::BranchAbandoned { is_merged: true, steps_since } => {
            let since = match steps_since {
                0 => String::new(),
                1 => ", but for the last step, which is trained again there".to_owned(),
                since => format!(", but for the last {} steps, which are trained again there", count(*since)),
            };
            format!("what was learnt here is merged with the other part of the swarm{since}; asking to be let in there")
        }
        Event::BranchAbandoned { is_merged: false, .. } => {
            "the other part of the swarm is further, and what it has is kept; asking to be let in there".to_owned()
        }
        Event::Leaving => "handing over to the others before leaving".to_owned(),
        Event::HandedOver { chunks: 0, .. } => {
            "others hold all that this peer owned; nothing is lost".to_owned()
        }
        Event::HandedOver { chunks, members } => format!(
            "{} handed over to {}; nothing is lost",
            plural(*chunks, "chunk"),
            plural(*members, "peer")
        ),
        Event::Violation { peer, reject } => format!("peer {} misbehaves, ignored: {reject}", peer.short()),
        _ => return None,
    })
}

/// How well parameters do, in a few words.
fn quality(evaluation: &Evaluation) -> String {
    match evaluation.accuracy {
        Some(accuracy) => format!("loss {:.3} ({:.1} % right)", evaluation.loss, 100.0 * accuracy),
        None => format!("loss {:.4}", evaluation.loss),
    }
}

/// Who is back of those who had all stopped.
pub(crate) fn regrouping_text(regrouping: &RecoveryProgress) -> String {
    let RecoveryProgress { present, needed, ref missing, .. } = *regrouping;
    let of = present + missing.len();
    match (needed.checked_sub(present), missing.len()) {
        (_, 0) => format!("all {of} members are back"),
        (None | Some(0), _) => format!(
            "{present} of {of} members are back, which is enough; giving {} a moment",
            short_names(missing)
        ),
        (Some(more), _) => format!(
            "{present} of {of} members are back, and {needed} are needed; waiting for {more} more of {} (to go on alone, as a run of its own: Ctrl-C, then `{} resume --alone`)",
            short_names(missing),
            program_name()
        ),
    }
}

/// Peers by the names that people know them by.
pub(crate) fn short_names(peers: &[PeerId]) -> String {
    peers.iter().map(PeerId::short).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_was_apart() {
        let of = |loss| Evaluation { samples: 10, loss, accuracy: None };
        let weighed =
            MergeEvaluation { ours: of(0.5), theirs: of(0.6), merged: of(0.4), distance: 0.364, norm: 1.0 };
        let words = event_text(&Event::MergeEvaluation(weighed), &PeerId([1; 32]), None).unwrap();
        assert_eq!(
            words,
            "on held-out samples: loss 0.5000 here before, loss 0.6000 there, loss 0.4000 merged; the parameters of the two parts were 36.4 % apart"
        );
    }
}
