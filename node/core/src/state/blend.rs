//! Blending: the weighted mean of the states of two branches, chunk by chunk.
//!
//! A rule of owners that uses no sums: new values and new state are the mean of those of the two branches, weighted by the share of each.
//! Owners and replicas have the same state of both branches, so they compute the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_collectives::plan::are_finite;

use crate::state::optimizer_state::OptimizerState;

/// What a member has received of another branch's state, by chunk.
#[derive(Debug, Default)]
pub(crate) struct RemoteState {
    /// The values of each chunk that has arrived.
    pub(crate) values: BTreeMap<usize, Vec<f32>>,
    /// Optimizer states; empty if the rule keeps none.
    pub(crate) states: BTreeMap<usize, OptimizerState>,
}

impl RemoteState {
    /// Whether this much of a chunk is here.
    pub(crate) fn has(&self, chunk: usize, wanted: WantedContent) -> bool {
        let has_values = self.values.contains_key(&chunk);
        match wanted {
            WantedContent::Values => has_values,
            WantedContent::ValuesAndState => has_values && self.states.contains_key(&chunk),
        }
    }
}

/// How much of a chunk of the other branch a member needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedContent {
    Values,
    ValuesAndState,
}

/// The rule that blends in the state of another branch.
pub(crate) struct Blend {
    /// The state of the other branch, as far as this member needs it.
    pub(crate) remote: Arc<RemoteState>,
    /// The weight of the other branch, from 0 to 1.
    pub(crate) share: f32,
    /// The most updates that a state of this branch can have: the other branch may be a few steps further.
    pub(crate) updates_max: u32,
}

impl Blend {
    /// Computes the new values and state of one chunk. `parameters` are the exact ones before the step; the new ones are written to
    /// `values`. A state holds `moment_count` moments, then the master copy, if there is one. Returns `None` if the other branch's chunk is
    /// not here, or if the mean is not finite: then the chunk is unchanged, and the contents of `values` are unspecified.
    pub(crate) fn apply(
        &self,
        chunk: usize,
        old: &OptimizerState,
        moment_count: usize,
        parameters: &[f32],
        values: &mut [f32],
    ) -> Option<OptimizerState> {
        let theirs = self.remote.values.get(&chunk)?;
        let their_state = self.remote.states.get(&chunk);
        let mix = |ours: f32, theirs: f32| ours + (theirs - ours) * self.share;
        let has_master = old.moments.len() > moment_count;
        // A state without updates has no valid master copy.
        let exact = their_state.filter(|state| has_master && state.updates > 0);
        let theirs = exact.map_or(&theirs[..], |state| &state.moments[moment_count..]);
        let both = parameters.iter().zip(theirs);
        values.iter_mut().zip(both).for_each(|(value, (ours, theirs))| *value = mix(*ours, *theirs));
        let mut moments = old.moments.clone();
        if let Some(state) = their_state {
            let both = moments.iter_mut().zip(&state.moments).take(moment_count);
            both.for_each(|(ours, theirs)| *ours = mix(*ours, *theirs));
        }
        if has_master {
            moments[moment_count..].copy_from_slice(values);
        }
        if !are_finite(values) || !are_finite(&moments) {
            return None;
        }
        let updates = old.updates.max(their_state.map_or(0, |state| state.updates));
        Some(OptimizerState { moments, updates: updates.min(self.updates_max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(moments: &[f32], updates: u32) -> OptimizerState {
        OptimizerState { moments: moments.to_vec(), updates }
    }

    fn blend(values: &[f32], state: OptimizerState) -> Blend {
        let values = BTreeMap::from([(3, values.to_vec())]);
        let remote = RemoteState { values, states: BTreeMap::from([(3, state)]) };
        Blend { remote: Arc::new(remote), share: 0.25, updates_max: 9 }
    }

    #[test]
    fn values_and_moments_are_averaged_and_the_larger_update_count_is_kept() {
        let blend = blend(&[4.0, 8.0], state(&[2.0, 0.0], 7));
        let mut values = [0.0; 2];
        let new = blend.apply(3, &state(&[0.0, 4.0], 5), 2, &[0.0, 4.0], &mut values);
        assert_eq!((values, new), ([1.0, 5.0], Some(state(&[0.5, 3.0], 7))));
        assert_eq!(blend.apply(4, &state(&[0.0, 4.0], 5), 2, &[0.0, 4.0], &mut values), None);
    }

    #[test]
    fn a_branch_that_is_ahead_adds_no_updates_for_steps_not_taken_here() {
        let new = blend(&[4.0], state(&[2.0], 12)).apply(3, &state(&[0.0], 8), 1, &[0.0], &mut [0.0]);
        assert_eq!(new.map(|state| state.updates), Some(9));
    }

    #[test]
    fn a_chunk_is_not_blended_if_a_value_would_not_be_finite() {
        let mut values = [0.0];
        let blend = blend(&[f32::MAX], state(&[2.0], 7));
        assert_eq!(blend.apply(3, &state(&[0.0], 5), 1, &[f32::MIN], &mut values), None);
    }

    #[test]
    fn exact_values_come_from_the_master_copy_once_there_is_one() {
        // One moment, followed by the master copy.
        let mut values = [0.0];
        let new =
            blend(&[4.0], state(&[2.0, 4.4], 7)).apply(3, &state(&[0.0, 0.4], 5), 1, &[0.4], &mut values);
        assert_eq!((values, new), ([1.4], Some(state(&[0.5, 1.4], 7))));
        let new =
            blend(&[4.0], state(&[2.0, 0.0], 0)).apply(3, &state(&[0.0, 0.0], 0), 1, &[0.0], &mut values);
        assert_eq!((values, new), ([1.0], Some(state(&[0.5, 1.0], 0))));
    }
}
