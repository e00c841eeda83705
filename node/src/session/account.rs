//! The account that a session gives of itself: where it is, and what it leaves.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;

use super::Session;
use crate::io::FinalState;
use crate::node::{MemberStanding, Wait};

impl Session {
    /// Where this member is.
    pub(crate) fn standing(&self, has_begun: bool) -> MemberStanding {
        let wait = match (has_begun, &self.reduced, &self.gathered) {
            (false, ..) => Wait::Start,
            (true, Some(_), _) => Wait::Sums,
            (true, None, Some(_)) => Wait::Shards,
            (true, None, None) if self.is_closing => Wait::Closing,
            (true, None, None) => Wait::Program,
        };
        MemberStanding {
            view: Arc::clone(&self.view),
            digest: self.digest,
            has_begun,
            complete: self.step.0,
            committed: self.committed_steps(),
            wait,
            held_segments: self.held_total,
        }
    }

    /// What the run leaves here: the newest committed state.
    pub(crate) fn state(&self) -> FinalState {
        let parameters = self.parameters();
        FinalState {
            run: self.view.run,
            specification: Arc::clone(&self.specification),
            manifest: self.loaded.manifest.clone(),
            steps: self.committed_steps(),
            samples: self.trained,
            left_out: self.left_out,
            own_samples: self.own_trained,
            parameters: Arc::clone(parameters),
            digest: ContentDigest::of(parameters.bytes()),
            evaluation: None,
            optimizer_bytes: self.owned.byte_count(),
            shard: self.shard_len(),
        }
    }
}
