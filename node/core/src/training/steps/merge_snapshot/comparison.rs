//! The comparison of a merge: the held-out losses of both branches and of the merged parameters.

use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::{Buffer, Pool};

use crate::io::MergeEvaluation;
use crate::state::blend::RemoteState;

/// The parameters before and after a merge.
pub(crate) struct MergeComparison {
    /// The parameters of this branch.
    pub(super) ours: Arc<Buffer>,
    /// The parameters of the other branch: the values of all chunks.
    pub(super) remote: Arc<RemoteState>,
    /// The parameters after the merge: the mean of both.
    pub(super) merged: Arc<Buffer>,
}

impl MergeComparison {
    /// Evaluates the three parameter vectors on held-out samples, and computes the distance between the branches.
    pub(crate) fn evaluate(&self, task: &dyn Task) -> MergeEvaluation {
        let pool = Pool::new(1);
        let mut theirs = pool.take(self.ours.len());
        // All chunks are here, in their order.
        let mut rest = &mut theirs[..];
        for values in self.remote.values.values() {
            let (part, after) = rest.split_at_mut(values.len());
            part.copy_from_slice(values);
            rest = after;
        }
        let squares = |ours: f32, theirs: f32| f64::from(ours - theirs) * f64::from(ours - theirs);
        let distance: f64 = self.ours.iter().zip(theirs.iter()).map(|(o, t)| squares(*o, *t)).sum();
        let norm: f64 = self.ours.iter().map(|ours| squares(*ours, 0.0)).sum();
        let [ours, theirs, merged] =
            [&*self.ours, &theirs, &*self.merged].map(|parameters| task.evaluate(parameters));
        MergeEvaluation { ours, theirs, merged, distance: distance.sqrt(), norm: norm.sqrt() }
    }
}
