//! A joiner enters a view: perhaps after it has recovered with other restarted members or has read a checkpoint, and once the view is on
//! disk.

use std::sync::Arc;

use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, ViewDigest};

use super::{Joiner, RECOVERY, RECOVERY_INTERVAL};
use crate::io::Output;
use crate::membership::journal::{Effect, Journal};
use crate::membership::links::send;
use crate::membership::recovery::RecoveringMember;
use crate::membership::view_change::ViewChangePlanner;
use crate::state::checkpoint::Checkpoint;

/// A view that this peer enters as a member; it is on disk.
pub(crate) struct ViewEntry {
    pub(crate) view: Arc<View>,
    pub(crate) digest: ViewDigest,
    /// The checkpoint of the view's first step, if this peer resumes from one.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

impl Joiner {
    /// Whether this peer is about to enter a view.
    pub(super) fn is_entering(&self) -> bool {
        self.is_recording || self.restoring.is_some()
    }

    /// Whether this peer, in this incarnation, is in `view`.
    pub(crate) fn is_in(&self, view: &View) -> bool {
        let is_me =
            |member: &Member| member.peer == self.me.peer && member.incarnation == self.me.incarnation;
        self.run == Some(view.run) && !self.is_entering() && view.members.iter().any(is_me)
    }

    /// The checkpoint that this peer must read before it can enter `view`; `None` if it needs none. The view waits until `restored`.
    pub(crate) fn restore(&mut self, view: &View) -> Option<SavedCheckpoint> {
        let Recovery::Resume(resume) = &view.recovery else { return None };
        let is_new = view.rank(&self.me.peer).is_none_or(|rank| resume.newcomers.contains(&rank));
        if !resume.is_restored || is_new || self.checkpoint.is_some() {
            return None;
        }
        let saved = self.recovering.as_ref()?.checkpoint_of(view)?.clone();
        self.restoring = Some(view.clone());
        Some(saved)
    }

    /// The view that waits for a checkpoint, if there is one.
    pub(crate) fn restoring(&self) -> Option<&View> {
        self.restoring.as_ref()
    }

    /// The checkpoint has been read. Returns the view that waited for it.
    pub(crate) fn restored(&mut self, checkpoint: Arc<Checkpoint>) -> Option<View> {
        self.checkpoint = Some(checkpoint);
        self.restoring.take()
    }

    /// The view that this peer enters is being written to disk.
    pub(crate) fn recording(&mut self) {
        self.is_recording = true;
    }

    /// Records are on disk: sends the answers that waited for them. Returns the view, if this peer may enter one, with its checkpoint.
    pub(crate) fn persisted(&mut self, effects: Vec<Effect>, out: &mut Vec<Output>) -> Option<ViewEntry> {
        let mut entry = None;
        for effect in effects {
            match effect {
                Effect::Answer { to, message } => send(to, &message, out),
                Effect::EnterView(view, digest) => {
                    entry = Some(ViewEntry { view, digest, checkpoint: self.checkpoint.take() });
                }
            }
        }
        entry
    }

    /// Whether this peer was a member of the run before its restart.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.is_some() && self.run.is_some()
    }

    /// The member that this peer was before its restart, if it was one.
    pub(crate) fn recovering(&mut self) -> Option<&mut RecoveringMember> {
        self.recovering.as_mut()
    }

    /// Another member sends a view that does not contain this incarnation of this peer.
    pub(crate) fn on_install(&mut self, now: Instant, from: PeerId, view: View, journal: &mut Journal) {
        if let Some(recovering) = &mut self.recovering {
            recovering.on_install(now, from, view, journal);
            self.timers.set(RECOVERY, now);
        }
    }

    /// Advances the recovery, if it is needed. `planner` is `None` until this peer could train.
    pub(crate) fn poll_recovery(
        &mut self,
        now: Instant,
        planner: Option<&ViewChangePlanner<'_>>,
        out: &mut Vec<Output>,
    ) {
        let is_entering = self.is_entering();
        let Some(recovering) = self.recovering.as_mut().filter(|_| self.run.is_some()) else { return };
        if self.timers.expired(RECOVERY, now) {
            if !std::mem::replace(&mut self.has_dialed, true) {
                recovering.dial(out);
            }
            // A peer that a member may admit starts no attempt.
            let planner = planner.filter(|_| self.sponsor.is_none() && !is_entering);
            recovering.poll(now, planner, out);
            self.timers.set(RECOVERY, now.after(RECOVERY_INTERVAL));
        }
    }
}
