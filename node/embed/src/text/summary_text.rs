//! The first line of `peer status`: one sentence on what a peer is doing, or on what is wrong and what to do about it.

use peergrad_core::io::RecoveryProgress;
use peergrad_core::node::Wait;
use peergrad_core::node_report::{Condition, MemberDetails};
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_protocol::PeerId;

use super::event_text::{recovery_text, short_names};
use super::text_table::{count, plural};

/// A peer's state in a sentence.
#[derive(Debug, PartialEq)]
pub struct StatusSummary {
    /// False where a user may have to act.
    pub is_well: bool,
    /// One sentence, or a few parts separated by semicolons.
    pub text: String,
}

impl StatusSummary {
    fn well(text: impl Into<String>) -> Self {
        Self { is_well: true, text: text.into() }
    }

    fn trouble(text: impl Into<String>) -> Self {
        Self { is_well: false, text: text.into() }
    }

    /// The run has ended at this peer.
    pub fn ended() -> Self {
        Self::well("the run has ended here")
    }

    /// The peer had no time to report its state.
    pub fn busy() -> Self {
        Self::trouble(
            "too busy to report its state: ask again; if this persists, check what else uses this machine",
        )
    }

    /// A founder of whose `wanted` peers `ready` are ready.
    pub fn bootstrapping(ready: usize, wanted: usize) -> Self {
        Self::well(format!(
            "waiting for {} more before training begins: {ready} of {wanted} ready, this one included",
            plural(wanted.saturating_sub(ready), "peer")
        ))
    }

    /// A former member that waits for the others to be back.
    pub fn recovering(progress: &RecoveryProgress) -> Self {
        Self::trouble(format!("this peer was a member when it stopped: {}", recovery_text(progress)))
    }

    /// A joiner that no member has answered yet.
    pub fn looking_for_sponsor() -> Self {
        Self::trouble("looking for a member that admits this peer")
    }

    /// A joiner that loads the data, after `sponsor` has welcomed it.
    pub fn preparing(sponsor: &PeerId) -> Self {
        Self::well(format!("welcomed by peer {}; fetching and preparing the data", sponsor.short()))
    }

    /// A joiner that has the data and waits for the view that admits it. It has to reach the members in `out_of_reach` first.
    pub fn awaiting_admission(sponsor: &PeerId, out_of_reach: &[PeerId]) -> Self {
        if out_of_reach.is_empty() {
            return Self::well(format!(
                "ready; peer {} is arranging the admission of this peer",
                sponsor.short()
            ));
        }
        Self::trouble(format!(
            "ready, but this peer must also reach these members before it is admitted: {}",
            short_names(out_of_reach)
        ))
    }

    /// The member `me`, whose details are `member`.
    pub fn member(member: &MemberDetails, me: &PeerId) -> Self {
        let troubled =
            || member.members.iter().filter(|seen| seen.peer != *me && seen.condition.is_trouble());
        if let Some(pause) = pause_text(member, troubled().map(|seen| seen.peer).collect()) {
            return Self::trouble(pause);
        }
        match member.progress.wait {
            Wait::Evaluation => return Self::well("trained; evaluating the model"),
            Wait::Closing => return Self::well("done; waiting for the others to finish the last step"),
            _ => {}
        }
        if troubled().next().is_some() {
            return Self::trouble(trouble_text(member, me));
        }
        let lost = lost_text(member);
        let is_well = lost.is_none();
        let text = match member.progress.wait {
            Wait::View => "the members are agreeing on the next view".to_owned(),
            _ if !member.progress.has_parameters => {
                "in the view; the parameters arrive with the first step".to_owned()
            }
            _ => training_text(member, me, lost),
        };
        Self { is_well, text }
    }
}

/// Why this member waits; `None` while it does not. `troubled` are the other members with a problem.
fn pause_text(member: &MemberDetails, troubled: Vec<PeerId>) -> Option<String> {
    if let Some((reached, needed)) = member.paused {
        let total = member.members.len();
        let lacking = needed.saturating_sub(reached);
        let missing =
            if troubled.is_empty() { String::new() } else { format!(" of {}", short_names(&troubled)) };
        return Some(format!(
            "paused: {reached} of {total} peers can be reached and {needed} are needed; waiting for {lacking} more{missing}. Restart one of them from its data directory, or repair the network: training then continues automatically"
        ));
    }
    if member.is_orphaned {
        return Some("paused: no reachable peer has the parameters".to_owned());
    }
    (member.missing_chunks > 0).then(|| {
        format!(
            "paused: no reachable peer has the current state of {}. Repair the network; if the peers that had it have stopped, \
             `declare-lost` on this machine continues without it",
            plural(member.missing_chunks, "table chunk")
        )
    })
}

/// What is wrong with other members.
fn trouble_text(member: &MemberDetails, me: &PeerId) -> String {
    let problems: Vec<String> = [
        (Condition::Unreachable, "cannot be reached"),
        (Condition::Suspected, "silent for too long"),
        (Condition::Hanging, "stuck in one step"),
        (Condition::Stopped, "stopping"),
    ]
    .into_iter()
    .filter_map(|(condition, problem)| {
        let peers = others_in(member, me, condition);
        (!peers.is_empty()).then(|| format!("{} {problem}", short_names(&peers)))
    })
    .collect();
    format!("{}: the other members are about to continue without", problems.join(", "))
}

/// The activity of a member without problems. `lost` is the text about members that another part of the swarm may have.
fn training_text(member: &MemberDetails, me: &PeerId, lost: Option<String>) -> String {
    let total = member.members.len();
    let mut text = match (lost, total) {
        (None, _) => format!("training with {}", plural(total, "peer")),
        (Some(lost), 1) => format!("training {lost}"),
        (Some(lost), _) => format!("training with {}, {lost}", plural(total, "peer")),
    };
    for (condition, activity) in [
        (Condition::CatchingUp, "receiving parameters"),
        (Condition::HandingOver, "handing over before leaving"),
        (Condition::Connecting, "connecting"),
        (Condition::Busy, "busy with a long step"),
    ] {
        let peers = others_in(member, me, condition);
        if !peers.is_empty() {
            text.push_str(&format!("; {} {activity}", short_names(&peers)));
        }
    }
    if member.moves_left > 0 {
        text.push_str(&format!("; {} chunks have yet to move", count(member.moves_left as u64)));
    }
    text
}

fn others_in(member: &MemberDetails, me: &PeerId, condition: Condition) -> Vec<PeerId> {
    let others = member.members.iter().filter(|seen| seen.peer != *me && seen.condition == condition);
    others.map(|seen| seen.peer).collect()
}

/// The members that this part of a swarm has lost, and what happens when both parts meet again. `None` if it has lost none, or if
/// only a majority may continue.
fn lost_text(member: &MemberDetails) -> Option<String> {
    let becomes = match member.policy {
        PartitionPolicy::Majority => return None,
        PartitionPolicy::Merge => "both models are merged",
        PartitionPolicy::Winner => "the model that is further ahead is kept",
    };
    let lost = &member.estranged;
    (!lost.is_empty()).then(|| {
        format!(
            "without {} lost in a partition: {}; when the parts meet again, {becomes}",
            plural(lost.len(), "peer"),
            short_names(lost)
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use peergrad_core::io::RunSize;
    use peergrad_core::node::MemberProgress;
    use peergrad_core::node_report::ObservedMember;
    use peergrad_protocol::view::{Member, View};
    use peergrad_protocol::{Incarnation, RunId};

    use super::*;

    /// One of `members`, which trains after it has lost the members `lost`.
    pub(crate) fn member(members: &[u8], lost: &[u8], policy: PartitionPolicy) -> MemberDetails {
        let peers = |names: &[u8]| names.iter().map(|name| PeerId([*name; 32])).collect::<Vec<_>>();
        let seen = |peer| ObservedMember {
            peer,
            capacity: 4,
            samples_per_minute: None,
            condition: Condition::Working,
            complete: None,
            silence: None,
            owned: 5,
            replicated: 0,
        };
        let record = |peer| Member { peer, incarnation: Incarnation(1), addresses: vec![], capacity: 4 };
        let view = View::first(RunId([9; 32]), peers(members).into_iter().map(record).collect());
        MemberDetails {
            progress: MemberProgress {
                digest: view.digest(),
                view: Arc::new(view),
                has_parameters: true,
                complete: 10,
                committed: 10,
                wait: Wait::Sums,
                held_segments: 0,
            },
            run_size: RunSize {
                parameters: 10,
                owned: 10,
                samples: 100,
                steps: 80,
                epochs: 8,
                flops_per_sample: None,
                tokens_per_sample: None,
            },
            epoch: 1,
            chunks: 1,
            moves_left: 0,
            view_age: Duration::from_secs(1),
            members: peers(members).into_iter().map(seen).collect(),
            joiners: vec![],
            estranged: peers(lost),
            policy,
            paused: None,
            is_orphaned: false,
            missing_chunks: 0,
            without_secret: None,
            is_troubled: false,
        }
    }

    #[test]
    fn one_part_of_a_swarm_names_the_members_it_has_lost() {
        let summary = |member: &MemberDetails| StatusSummary::member(member, &PeerId([1; 32]));
        let [two, three] = [2, 3].map(|name| PeerId([name; 32]).short());
        assert_eq!(
            summary(&member(&[1], &[2, 3], PartitionPolicy::Merge)),
            StatusSummary::trouble(format!(
                "training without 2 peers lost in a partition: {two}, {three}; when the parts meet again, both models are merged"
            ))
        );
        assert_eq!(
            summary(&member(&[1, 2], &[3], PartitionPolicy::Winner)),
            StatusSummary::trouble(format!(
                "training with 2 peers, without 1 peer lost in a partition: {three}; when the parts meet again, the model that is further ahead is kept"
            ))
        );
        assert_eq!(
            summary(&member(&[1, 2], &[], PartitionPolicy::Merge)),
            StatusSummary::well("training with 2 peers")
        );
        // Under this policy, lost members have left the run.
        assert!(summary(&member(&[1, 2], &[3], PartitionPolicy::Majority)).is_well);
    }
}
