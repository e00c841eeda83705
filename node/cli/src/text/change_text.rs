//! What a change of the view is to a person: who has come, who is gone, what became of the step, what moves.

use peergrad_core::io::ViewDelta;
use peergrad_protocol::PeerId;

use super::text_table::{count, plural};

/// One line for a view that is another one than before.
pub(crate) fn change_text(view_number: u64, members: usize, change: &ViewDelta) -> String {
    let mut parts = Vec::new();
    if !change.left.is_empty() {
        parts.push(format!("without {}", names(&change.left)));
    }
    if !change.joined.is_empty() {
        parts.push(format!("with {}", names(&change.joined)));
    }
    if !change.retiring.is_empty() {
        parts.push(format!("{} hands over", names(&change.retiring)));
    }
    if change.is_merge {
        parts.push("what the other part has learnt is merged in".to_owned());
    }
    if parts.is_empty() {
        parts.push("the same members".to_owned());
    }
    let step = change.step.0;
    parts.push(match (change.is_interruption, change.is_forward) {
        (true, true) => format!("step {} was completed with what the others held", step.saturating_sub(1)),
        (true, false) => format!("step {step} begins again with the gradients that were kept"),
        (false, _) => format!("from step {step} on; nobody was interrupted"),
    });
    if change.returned > 0 {
        parts.push(format!("{} are dealt again", plural(change.returned as usize, "sample")));
    }
    if change.moving > 0 {
        parts.push(format!("{} are to move", plural(change.moving, "chunk")));
    }
    if !change.restarted.is_empty() {
        parts.push(format!(
            "nobody held the optimizer state of {} any more, it starts anew: {}",
            plural(change.restarted.len(), "chunk"),
            listed(&change.restarted)
        ));
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

fn listed(chunks: &[u32]) -> String {
    let shown: Vec<String> = chunks.iter().take(CHUNKS_MAX).map(u32::to_string).collect();
    match chunks.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), count(more as u64)),
    }
}

/// Peers that are named one by one.
const NAMES_MAX: usize = 8;
/// Chunks that are.
const CHUNKS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use peergrad_protocol::StepNumber;

    use super::*;

    #[test]
    fn a_loss_is_told_with_all_that_comes_of_it() {
        let change = ViewDelta {
            joined: vec![],
            left: vec![PeerId([1; 32])],
            step: StepNumber(41),
            is_interruption: true,
            is_forward: false,
            is_merge: false,
            returned: 16,
            moving: 200,
            restarted: vec![3, 9],
            retiring: vec![],
        };
        let name = PeerId([1; 32]).short();
        assert_eq!(
            change_text(3, 2, &change),
            format!(
                "view 3, 2 peers: without {name}; step 41 begins again with the gradients that were kept; 16 samples are dealt again; 200 chunks are to move; nobody held the optimizer state of 2 chunks any more, it starts anew: 3, 9"
            )
        );
    }
    #[test]
    fn a_merge_is_told_as_one() {
        let change = ViewDelta {
            joined: vec![],
            left: vec![],
            step: StepNumber(512),
            is_interruption: false,
            is_forward: false,
            is_merge: true,
            returned: 0,
            moving: 0,
            restarted: vec![],
            retiring: vec![],
        };
        assert_eq!(
            change_text(4, 1, &change),
            "view 4, 1 peer: what the other part has learnt is merged in; from step 512 on; nobody was interrupted"
        );
    }
}
