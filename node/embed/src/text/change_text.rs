//! The text of a view change, in one line: who joined, who left, what happened to the interrupted step, and which chunks move.

use peergrad_core::io::ViewDelta;
use peergrad_protocol::{PeerId, StepNumber};

use super::text_table::{count, plural};

/// The line for view `view_number`, which has `members` members and differs from the view before it by `change`.
pub fn change_text(view_number: u64, members: usize, change: &ViewDelta) -> String {
    let mut parts = Vec::new();
    if !change.left.is_empty() {
        parts.push(format!("without {}", names(&change.left)));
    }
    if !change.joined.is_empty() {
        parts.push(format!("with {}", names(&change.joined)));
    }
    if !change.retiring.is_empty() {
        parts.push(format!("handover from {}", names(&change.retiring)));
    }
    if change.is_merge {
        parts.push("merged with the other part of the swarm".to_owned());
    }
    if let Some(per_mille) = change.owned_per_mille {
        let own = f64::from(per_mille) / 10.0;
        parts
            .push(format!("members have other capacities: this peer is to own {own:.1} % of the parameters"));
    }
    if let Some(per_mille) = change.batch_per_mille {
        let (own, even) = (f64::from(per_mille) / 10.0, 100.0 / members.max(1) as f64);
        parts.push(format!(
            "batches are divided by speed: this peer computes {own:.1} % of each (evenly: {even:.1} %)"
        ));
    }
    if let Some(local_steps) = change.local_steps {
        parts.push(format!("rounds of {}", plural(local_steps as usize, "local step")));
    }
    if parts.is_empty() {
        parts.push("same members".to_owned());
    }
    if let Some(StepNumber(step)) = change.step {
        parts.push(match (change.is_interruption, change.is_forward) {
            (true, true) => format!("the remaining members completed step {}", step.saturating_sub(1)),
            (true, false) => format!("step {step} restarts with the kept gradients"),
            (false, _) => format!("continues at step {step} without interruption"),
        });
    }
    if change.returned > 0 {
        parts.push(format!("{} reassigned", plural(change.returned as usize, "sample")));
    }
    if change.moving > 0 {
        parts.push(format!("moving {}", plural(change.moving, "chunk")));
    }
    if !change.restarted.is_empty() {
        let (chunks, list) = (plural(change.restarted.len(), "chunk"), chunk_list(&change.restarted));
        parts.push(match change.step {
            Some(_) => format!("no member had the optimizer state of {chunks}, which is reset: {list}"),
            None => format!("no member had {chunks}, which will begin again: {list}"),
        });
    }
    format!("view {view_number}, {}: {}", plural(members, "peer"), parts.join("; "))
}

fn names(peers: &[PeerId]) -> String {
    let shown: Vec<String> = peers.iter().take(NAMES_MAX).map(PeerId::short).collect();
    match peers.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn chunk_list(chunks: &[u32]) -> String {
    let shown: Vec<String> = chunks.iter().take(CHUNKS_MAX).map(u32::to_string).collect();
    match chunks.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), count(more as u64)),
    }
}

/// The most peers that a line names; it counts the rest.
const NAMES_MAX: usize = 8;
/// The most chunk numbers that a line lists; it counts the rest.
const CHUNKS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_member_is_described_with_all_consequences() {
        let change = ViewDelta {
            joined: vec![],
            left: vec![PeerId([1; 32])],
            step: Some(StepNumber(41)),
            is_interruption: true,
            is_forward: false,
            is_merge: false,
            returned: 16,
            moving: 200,
            restarted: vec![3, 9],
            retiring: vec![],
            owned_per_mille: None,
            batch_per_mille: None,
            local_steps: None,
        };
        let name = PeerId([1; 32]).short();
        assert_eq!(
            change_text(3, 2, &change),
            format!(
                "view 3, 2 peers: without {name}; step 41 restarts with the kept gradients; 16 samples reassigned; moving 200 chunks; no member had the optimizer state of 2 chunks, which is reset: 3, 9"
            )
        );
    }

    #[test]
    fn a_change_with_tables_says_nothing_of_steps() {
        let change = ViewDelta { left: vec![PeerId([1; 32])], moving: 3, ..ViewDelta::default() };
        let name = PeerId([1; 32]).short();
        assert_eq!(change_text(3, 2, &change), format!("view 3, 2 peers: without {name}; moving 3 chunks"));
        let lost = ViewDelta { restarted: vec![4], ..ViewDelta::default() };
        assert_eq!(
            change_text(4, 2, &lost),
            "view 4, 2 peers: same members; no member had 1 chunk, which will begin again: 4"
        );
    }

    #[test]
    fn a_merge_is_described_as_a_merge() {
        let change = ViewDelta {
            joined: vec![],
            left: vec![],
            step: Some(StepNumber(512)),
            is_interruption: false,
            is_forward: false,
            is_merge: true,
            returned: 0,
            moving: 0,
            restarted: vec![],
            retiring: vec![],
            owned_per_mille: None,
            batch_per_mille: None,
            local_steps: None,
        };
        assert_eq!(
            change_text(4, 1, &change),
            "view 4, 1 peer: merged with the other part of the swarm; continues at step 512 without interruption"
        );
        let timed = ViewDelta { is_merge: false, local_steps: Some(24), ..change.clone() };
        assert_eq!(
            change_text(4, 2, &timed),
            "view 4, 2 peers: rounds of 24 local steps; continues at step 512 without interruption"
        );
        let by_line = ViewDelta { is_merge: false, owned_per_mille: Some(77), moving: 680, ..change.clone() };
        assert_eq!(
            change_text(4, 4, &by_line),
            "view 4, 4 peers: members have other capacities: this peer is to own 7.7 % of the parameters; continues at step 512 without interruption; moving 680 chunks"
        );
        let dealt = ViewDelta { is_merge: false, batch_per_mille: Some(43), ..change };
        assert_eq!(
            change_text(5, 8, &dealt),
            "view 5, 8 peers: batches are divided by speed: this peer computes 4.3 % of each (evenly: 12.5 %); continues at step 512 without interruption"
        );
    }
}
