//! The view chain: the views that were installed, one after the other, and the view in which each step was trained.
//!
//! It resembles the volumes of a diary, each with its first day on the title page. If a later volume begins before an earlier one was full,
//! the rest of the earlier one is void.
//!
//! ```text
//! view       1 (from step 0)      2 (from step 7)    3 (from step 7)    4 (from step 12)
//! steps      0 1 2 3 4 5 6        none: it was       7 8 9 10 11        12 13 ...
//!                                 left at once
//! ```
//! A step that was interrupted and rolled forward belongs to the view in which its sums were made: the next view begins after it. So the
//! view of a step is the last one that begins no later than the step, whatever was in between.
//!
//! # Not here
//! Forks: there is one branch under `majority`, which [`crate::invariants::one_chain`] checks; under other policies each branch has a view
//! chain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::view::{Merge, Recovery, View};

use crate::history::History;
use crate::observation::Observation;

/// The views of a run.
#[derive(Clone, Debug, Default)]
pub struct ViewChain {
    /// The installed views, by number.
    views: BTreeMap<u64, Installed>,
}

/// A view and the digest that names it.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The record.
    pub view: Arc<View>,
    /// Its digest.
    pub digest: ViewDigest,
}

impl ViewChain {
    /// The views in a history; with several branches, those of the branch with the most steps.
    #[must_use]
    pub fn of(history: &History) -> Self {
        Self::from_views(history, &history.main_chain())
    }

    /// The views with these indices in a history.
    #[must_use]
    pub fn from_views(history: &History, chain: &BTreeSet<usize>) -> Self {
        let mut view_chain = Self::default();
        for note in chain.iter().map(|&index| &history.views[index]) {
            view_chain.install(&note.view, note.digest);
        }
        view_chain
    }

    /// Steps with which another branch is merged.
    pub fn merges(&self) -> impl Iterator<Item = (u64, &Merge)> {
        let steps: BTreeSet<u64> = self.views.values().map(|known| known.view.first_step().0).collect();
        steps.into_iter().filter_map(|step| Some((step, self.merge_of(step)?)))
    }

    /// Adds a view that a member installed; of two records with one number the first counts. Returns whether it is new.
    pub fn install(&mut self, view: &Arc<View>, digest: ViewDigest) -> bool {
        let is_new = !self.views.contains_key(&view.number.0);
        self.views.entry(view.number.0).or_insert_with(|| Installed { view: Arc::clone(view), digest });
        is_new
    }

    /// As [`ViewChain::install`], if the observation is an installed view. If the run goes back to a checkpoint, returns the step from
    /// which it continues: steps committed after that no longer count.
    pub fn observe(&mut self, observation: &Observation<'_>) -> Option<u64> {
        let Observation::Emitted { event: Event::ViewInstalled { view, digest, .. }, .. } = observation
        else {
            return None;
        };
        let is_new = self.install(view, *digest);
        (is_new && is_restored(view)).then_some(view.first_step().0)
    }

    /// The view in which the sums of `step` were made, as far as is known; once the step is committed, this no longer changes.
    #[must_use]
    pub fn of_step(&self, step: u64) -> Option<&Installed> {
        self.newest_first().find(|known| known.view.first_step().0 <= step)
    }

    /// The merge in `step`; `None` also if one was planned that a later view has abandoned.
    #[must_use]
    pub fn merge_of(&self, step: u64) -> Option<&Merge> {
        let view = &self.of_step(step)?.view;
        view.merge().filter(|_| view.first_step().0 == step)
    }

    /// Chunks whose optimizer state restarts with `step`: no member held it when a view began there, even if that view ended before the
    /// step was over. A later view that begins at an earlier step undoes this.
    #[must_use]
    pub fn restarted_with(&self, step: u64) -> Vec<usize> {
        let until = self.newest_first().take_while(|known| known.view.first_step().0 >= step);
        let beginning = until.filter(|known| known.view.first_step().0 == step);
        beginning.flat_map(|known| &known.view.moves.restarted).map(|&chunk| chunk as usize).collect()
    }

    /// The parent of `view`, if it was installed.
    #[must_use]
    pub fn parent(&self, view: &View) -> Option<&Installed> {
        let before = self.views.get(&view.number.0.checked_sub(1)?)?;
        view.parents.contains(&before.digest).then_some(before)
    }

    fn newest_first(&self) -> impl Iterator<Item = &Installed> {
        self.views.values().rev()
    }
}

/// Whether a view continues from checkpoints.
#[must_use]
pub fn is_restored(view: &View) -> bool {
    matches!(&view.recovery, Recovery::Resume(resume) if resume.is_restored)
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::cursor::DataCursor;
    use peergrad_protocol::view::{Branch, Moves, Resume, ViewHistory};
    use peergrad_protocol::{RunId, StepNumber, ViewNumber};

    use super::*;

    /// Views that begin with these steps; each restarts the chunk with its own number.
    fn view_chain(first_steps: &[u64]) -> ViewChain {
        let mut view_chain = ViewChain::default();
        for (index, &step) in first_steps.iter().enumerate() {
            let view = View {
                run: RunId([1; 32]),
                number: ViewNumber(index as u64 + 1),
                parents: vec![],
                members: vec![],
                speeds: vec![],
                lines: vec![],
                history: ViewHistory::starting_with(Branch {
                    view_number: ViewNumber(1),
                    step: StepNumber(0),
                    fork: None,
                }),
                recovery: Recovery::Resume(Resume::at(StepNumber(step))),
                cursor: DataCursor::default(),
                expelled: vec![],
                quarantined: vec![],
                moves: Moves { restarted: vec![index as u32 + 1], ..Moves::default() },
            };
            view_chain.install(&Arc::new(view), ViewDigest([index as u8; 32]));
        }
        view_chain
    }

    fn view_of(view_chain: &ViewChain, step: u64) -> u64 {
        view_chain.of_step(step).unwrap().view.number.0
    }

    #[test]
    fn a_step_belongs_to_the_last_view_that_begins_before_it() {
        let view_chain = view_chain(&[0, 7, 7, 12]);
        let view_numbers: Vec<u64> = [0, 6, 7, 11, 12, 99].map(|step| view_of(&view_chain, step)).to_vec();
        assert_eq!(view_numbers, [1, 1, 3, 3, 4, 4]);
    }

    #[test]
    fn steps_that_a_later_view_takes_back_are_void() {
        let view_chain = view_chain(&[0, 9, 5]);
        assert_eq!([4, 5, 9].map(|step| view_of(&view_chain, step)), [1, 3, 3]);
        assert_eq!([0, 5, 9].map(|step| view_chain.restarted_with(step)), [vec![1], vec![3], vec![]]);
    }

    #[test]
    fn views_that_were_abandoned_at_once_still_count_as_begun() {
        let view_chain = view_chain(&[0, 7, 8, 7]);
        assert_eq!(view_chain.restarted_with(7), [4, 2]);
    }
}
