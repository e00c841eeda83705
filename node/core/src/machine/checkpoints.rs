//! Checkpoints in the machine: when a checkpoint is due, and how a restarted peer resumes from one.

use std::sync::Arc;

use peergrad_protocol::durable::RunDefinition;
use peergrad_protocol::message::{SaveAt, TrainingMessage};
use peergrad_protocol::wire::encode_record;
use peergrad_protocol::{Instant, Rank, StepNumber};

use super::{ActiveMember, Machine, NodeRole};
use crate::io::{Failure, Output};
use crate::membership::view_change::ViewChangePlanner;
use crate::state::checkpoint::Checkpoint;
use crate::state::shard_map::ShardingConfig;

impl ActiveMember {
    /// The member of lowest rank tells the others after which step to save a checkpoint.
    pub(super) fn announce_save(&self, steps: Option<StepNumber>, out: &mut Vec<Output>) {
        let (Some(steps), true) = (steps, self.training.base().rank() == Rank(0)) else { return };
        self.training.base().broadcast(
            &TrainingMessage::SaveCheckpoint(SaveAt { steps }).in_view(self.training.base().digest()),
            out,
        );
    }

    /// This member writes a checkpoint after `steps` steps.
    pub(super) fn save_after(&mut self, now: Instant, steps: StepNumber) {
        if let Some(engine) = self.training.steps_mut() {
            engine.state_mut().save_after(steps);
        }
        self.checkpoint_schedule.restart(now);
    }
}

impl Machine {
    /// Makes all members save a checkpoint, if one is due and this member has the lowest rank.
    pub(super) fn save_if_due(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let Some(steps) = active.checkpoint_schedule.tick(now, active.training.step()) else { return };
        // Members of a run with tables have no state in common after a step.
        if active.training.base().rank() == Rank(0)
            && let Some(engine) = active.training.steps_mut()
        {
            let state = engine.state_mut();
            // Where steps are slow, the earlier save may still be pending: a new one does not postpone it.
            if state.save_is_due().is_none() {
                state.save_after(steps);
            }
            let due = state.save_is_due();
            active.announce_save(due, out);
        }
    }

    /// Advances the recovery from a stop of all members, if this peer is in one.
    pub(super) fn poll_recovery(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Joiner(joiner) = &mut self.role else { return };
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let view = joiner.recovering().map(|recovering| recovering.shared_view());
        let shard_map = loaded
            .zip(view)
            .map(|(loaded, (view, digest))| self.cache.shard_map(&view, digest, ShardingConfig::of(loaded)));
        let planner = loaded
            .zip(shard_map.as_deref())
            .map(|(loaded, shard_map)| ViewChangePlanner::new(shard_map, loaded));
        joiner.poll_recovery(now, planner.as_ref(), out);
    }

    /// The encoded definition of the run, for the record on disk.
    pub(super) fn definition(&self) -> Arc<[u8]> {
        let preparation = self.preparation.as_ref().expect("a view is written down once its run is known");
        let nonce = self.nonce.expect("a view is written down once its run is known");
        encode_record(&RunDefinition { specification: preparation.specification().to_vec(), nonce }).into()
    }

    /// The checkpoint that was asked for has been read, or could not be read.
    pub(super) fn restored(&mut self, result: Result<Arc<Checkpoint>, String>, out: &mut Vec<Output>) {
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let parameters = loaded.map(|loaded| loaded.manifest.parameter_count());
        let fits = |checkpoint: &Checkpoint| {
            // A founder may get the checkpoint before it has read its data.
            parameters.is_none_or(|count| count == checkpoint.parameters.len())
        };
        let fitting = result.and_then(|checkpoint| match fits(&checkpoint) {
            true => Ok(checkpoint),
            false => Err("it is of another model".to_owned()),
        });
        let asked = match &self.role {
            NodeRole::Founder(founder) => founder.wanted_checkpoint().map(|saved| saved.steps),
            NodeRole::Joiner(joiner) => joiner.restoring().map(|view| view.first_step()),
            NodeRole::Member(_) | NodeRole::Ended => None,
        };
        // Nothing waits for the checkpoint any more.
        let Some(StepNumber(steps)) = asked else { return };
        let checkpoint = match fitting {
            Ok(checkpoint) => checkpoint,
            Err(reason) => return self.end(Err(Failure::CheckpointLost { steps, reason }), out),
        };
        match &mut self.role {
            NodeRole::Founder(founder) => founder.restored(checkpoint),
            NodeRole::Joiner(joiner) => {
                if let Some(view) = joiner.restored(checkpoint) {
                    // The view was checked before the checkpoint was read.
                    let _ = self.install(view, out);
                }
            }
            NodeRole::Member(_) | NodeRole::Ended => {}
        }
    }
}
