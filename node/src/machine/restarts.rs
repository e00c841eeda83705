//! Checkpoints, as the machine sees them: when one is due, and how a peer that is back begins with one.

use std::sync::Arc;

use peergrad_protocol::durable::Charter;
use peergrad_protocol::message::{Message, Save};
use peergrad_protocol::wire::encode_record;
use peergrad_protocol::{Instant, Rank, StepNumber};

use super::{Machine, Seat, Stage};
use crate::checkpoint::Checkpoint;
use crate::geometry::Cut;
use crate::io::{Failure, Output};
use crate::succession::Basis;

impl Seat {
    /// The lowest rank tells the others after which step to save.
    pub(super) fn tell_when_to_save(&self, steps: Option<StepNumber>, out: &mut Vec<Output>) {
        let (Some(steps), true) = (steps, self.session.rank() == Rank(0)) else { return };
        self.session.tell_all(&Message::Save(Save { view: self.session.digest(), steps }), out);
    }

    /// A checkpoint is to be written after so many steps.
    pub(super) fn save_after(&mut self, now: Instant, steps: StepNumber) {
        self.session.save_after(steps);
        self.timetable.restart(now);
    }
}

impl Machine {
    /// Has everybody save, if that is due and for this member to say.
    pub(super) fn save_in_time(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let Some(steps) = seat.timetable.tick(now, seat.session.step()) else { return };
        // Of tables there is no state that all have after the same step.
        if seat.session.rank() == Rank(0) && !seat.session.has_tables() {
            // Where steps are slow, a step that is still to come is not put off by the next one.
            if seat.session.save_is_due().is_none() {
                seat.session.save_after(steps);
            }
            seat.tell_when_to_save(seat.session.save_is_due(), out);
        }
    }

    /// Looks after those who are back, where nobody has gone on without them.
    pub(super) fn regroup(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Joining(joining) = &mut self.stage else { return };
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let view = joining.returning().map(|returning| returning.shared_view());
        let geometry = loaded
            .zip(view)
            .map(|(loaded, (view, digest))| self.memo.geometry(&view, digest, Cut::of(loaded)));
        let basis = loaded.zip(geometry.as_deref()).map(|(loaded, geometry)| Basis::new(geometry, loaded));
        joining.regroup(now, basis.as_ref(), out);
    }

    /// What the run is, for the record on disk.
    pub(super) fn charter(&self) -> Arc<[u8]> {
        let preparation = self.preparation.as_ref().expect("a view is written down once its run is known");
        let nonce = self.nonce.expect("a view is written down once its run is known");
        encode_record(&Charter { specification: preparation.specification().to_vec(), nonce }).into()
    }

    /// The checkpoint is here that was asked for, or cannot be read.
    pub(super) fn restored(&mut self, result: Result<Arc<Checkpoint>, String>, out: &mut Vec<Output>) {
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let parameters = loaded.map(|loaded| loaded.manifest.parameter_count());
        let fits = |checkpoint: &Checkpoint| {
            // A founder may get it before it has read its data.
            parameters.is_none_or(|count| count == checkpoint.parameters.len())
        };
        let fitting = result.and_then(|checkpoint| match fits(&checkpoint) {
            true => Ok(checkpoint),
            false => Err("it is of another model".to_owned()),
        });
        let asked = match &self.stage {
            Stage::Founding(founding) => founding.wants().map(|saved| saved.steps),
            Stage::Joining(joining) => joining.restoring().map(|view| view.first_step()),
            Stage::Member(_) | Stage::Ended => None,
        };
        // Nobody asks for it any more.
        let Some(StepNumber(steps)) = asked else { return };
        let checkpoint = match fitting {
            Ok(checkpoint) => checkpoint,
            Err(reason) => return self.end(Err(Failure::CheckpointLost { steps, reason }), out),
        };
        match &mut self.stage {
            Stage::Founding(founding) => founding.restored(checkpoint),
            Stage::Joining(joining) => {
                if let Some(view) = joining.restored(checkpoint) {
                    // It was looked at before.
                    let _ = self.install(view, out);
                }
            }
            Stage::Member(_) | Stage::Ended => {}
        }
    }
}
