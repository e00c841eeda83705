//! Checkpoints: when all members save one.

use peergrad_protocol::message::{SaveAt, TrainingMessage};
use peergrad_protocol::{Instant, Rank, StepNumber};

use super::ActiveMember;
use crate::io::{Event, Output};

impl ActiveMember {
    /// Makes all members save a checkpoint, if one is due and this member has the lowest rank.
    pub(super) fn save_if_due(&mut self, now: Instant, out: &mut Vec<Output>) {
        let steps = self.training.step();
        let due = self.checkpoint_schedule.tick(now, steps);
        let is_lowest = self.training.base().rank() == Rank(0);
        if let Some(tables) = self.training.tables_mut() {
            // Workers with clocks of their own have no step in common: they let a cut be taken.
            if self.checkpoint_schedule.cut_is_late(now) && tables.give_up_cut(out) {
                let reason = "members needed too long to send what they had added".to_owned();
                self.checkpoint_schedule.cut_fails();
                out.push(Output::Event(Event::Saved { steps, result: Err(reason) }));
            }
            if due.is_some() {
                self.checkpoint_schedule.request_cut();
            }
            if is_lowest && self.checkpoint_schedule.cut_is_due() && tables.begin_cut(out) {
                self.checkpoint_schedule.cut_begins(now);
            }
        } else if let (Some(steps), true, Some(engine)) = (due, is_lowest, self.training.steps_mut()) {
            let state = engine.state_mut();
            // Where steps are slow, the earlier save may still be pending: a new one does not postpone it.
            if state.save_is_due().is_none() {
                state.save_after(steps);
            }
            let due = state.save_is_due();
            self.announce_save(due, out);
        }
    }

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
