//! The comparison of a merge: how well either branch does on held-out data, and how well what was merged of them.

use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::{Buffer, Pool};

use crate::io::MergeEvaluation;
use crate::state::blend::RemoteState;

/// The parameters before and after a merge.
pub(crate) struct MergeComparison {
    /// Those of this branch.
    pub(super) ours: Arc<Buffer>,
    /// Those of the other branch, with the values of all chunks.
    pub(super) remote: Arc<RemoteState>,
    pub(super) merged: Arc<Buffer>,
}

impl MergeComparison {
    /// The held-out loss of each of the three, and the distance between the two branches.
    pub(crate) fn evaluate(&self, task: &dyn Task) -> MergeEvaluation {
        let pool = Pool::new(1);
        let mut theirs = pool.take(self.ours.len());
        // All chunks are there, and they follow each other.
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
