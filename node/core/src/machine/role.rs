//! The role of a node in its run: what it does with each input, and which role follows.
//!
//! ```text
//! founder -- the first view is on disk --> member -- the others continue without it --> joiner
//! joiner --- its view is on disk --------> member -- the run is complete --> ended
//! each role -- a failure, or the user's wish --> ended
//! ```
//! The machine finds out once, for each input, which role the node has, and calls one method of [`Role`]. A role never replaces itself. It
//! returns a [`Transition`], and the machine carries that out.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{Contact, Heartbeat, Message, TrainingMessage};
use peergrad_protocol::view::{ExpulsionCause, MemberFault};
use peergrad_protocol::wire::WireError;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, RunId, StepNumber, ViewDigest};

use crate::io::{Failure, FinalState, Output, Reject};
use crate::machine::context::NodeContext;
use crate::machine::jobs::Jobs;
use crate::machine::preparation::Donor;
use crate::machine::violations::Consequence;
use crate::membership::join::ViewEntry;
use crate::membership::journal::Effect;
use crate::node_report::{NodeReport, NodeState};
use crate::peer_links::Route;
use crate::program::command::ProgramCommand;
use crate::state::checkpoint::Checkpoint;

/// The end of a role. It is returned as an error, so that nothing of the role runs after it.
pub(super) enum Transition {
    /// A view with this peer is on disk: this peer becomes a member.
    Enter(ViewEntry),
    /// The other members have continued without this one: it asks these peers to admit it again.
    Rejoin {
        /// The run.
        run: RunId,
        /// Members that may admit it, the most promising first.
        contacts: Vec<Contact>,
    },
    /// The run is complete. Holds the final state.
    Complete(Box<FinalState>),
    /// The run ends at this peer before it is complete.
    Fail(Failure),
}

impl From<Failure> for Transition {
    fn from(failure: Failure) -> Self {
        Self::Fail(failure)
    }
}

/// Why the handling of a message stops before its end.
pub(super) enum Interrupt {
    /// The message is wrong: it is counted, and nothing has changed.
    Reject(Reject),
    /// The role ends.
    Transition(Transition),
}

impl From<Reject> for Interrupt {
    fn from(reject: Reject) -> Self {
        Self::Reject(reject)
    }
}

impl From<Transition> for Interrupt {
    fn from(transition: Transition) -> Self {
        Self::Transition(transition)
    }
}

impl From<Failure> for Interrupt {
    fn from(failure: Failure) -> Self {
        Self::Transition(Transition::Fail(failure))
    }
}

/// What a role leaves when the run ends at this peer.
pub(super) struct Farewell {
    /// The state to report to the user; `None` if this peer has none.
    pub(super) state: Option<FinalState>,
    /// The peers that learn why this one stops.
    pub(super) peers: BTreeSet<PeerId>,
}

/// The role of a node. It has a method for each input, hence many. The default of a method is to do nothing: that input does not concern
/// the role.
pub(super) trait Role {
    // Reports.

    /// The state of the node, for observers.
    fn state(&self) -> NodeState;

    /// The report of the node, for status requests.
    fn report(&self, now: Instant, jobs: &Jobs) -> NodeReport;

    /// When the role needs the next tick; `None` if nothing waits for time.
    fn next_tick(&self) -> Option<Instant> {
        None
    }

    /// The peer that may send the data file.
    fn donor(&self) -> Donor {
        Donor::Nobody
    }

    // Time.

    /// Preparation begins.
    fn on_start(&mut self, _cx: &mut NodeContext<'_>) {}

    /// An input of any kind has arrived.
    fn wake(&mut self) {}

    /// Time has passed.
    fn on_tick(&mut self, _cx: &mut NodeContext<'_>) {}

    /// Advances the membership now, and not only at its next deadline.
    fn poll(&mut self, _cx: &mut NodeContext<'_>) {}

    /// Asks the others to continue without this peer, if the user wishes so and nothing of it would be lost.
    fn retire_if_done(&mut self, _cx: &mut NodeContext<'_>) {}

    /// Does whatever has become possible.
    fn advance(&mut self, _cx: &mut NodeContext<'_>) -> Result<(), Transition> {
        Ok(())
    }

    // Links. When one of these is called, `cx.node.links` has the change already.

    /// There is a new link to a peer.
    fn on_link_up(&mut self, _cx: &mut NodeContext<'_>, _peer: PeerId) {}

    /// The link to a peer is down.
    fn on_link_down(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, reason: String);

    /// A peer is now reached through another peer, or directly again.
    fn on_route_changed(&mut self, _cx: &mut NodeContext<'_>, _peer: PeerId, _route: Route) {}

    /// This peer has learnt more about where others can dial it, and its capacity may have changed.
    fn on_reachability_changed(&mut self, cx: &mut NodeContext<'_>);

    /// A peer has processed segments that this one sent.
    fn on_credit(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, segments: u32) {
        cx.node.links.give_back(&peer, segments);
    }

    // Frames.

    /// Handles a message that belongs to no view.
    fn on_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
    ) -> Result<(), Interrupt>;

    /// Handles a message of training in one view. A peer that has yet to enter that view keeps the message's frame.
    fn on_view_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        view: ViewDigest,
        _message: TrainingMessage,
        frame: Frame,
    ) -> Result<(), Reject> {
        cx.node.early_frames.hold(from, view, frame, cx.out)
    }

    /// A peer has a fault for which the other members may continue without it.
    fn complain(&mut self, _cx: &mut NodeContext<'_>, _about: PeerId, _fault: MemberFault) {}

    /// The heartbeat that is due, and its receivers. What was sent to each is not filled in yet.
    fn take_heartbeat(&mut self) -> Option<(Heartbeat, Vec<PeerId>)> {
        None
    }

    // Results.

    /// The task is ready.
    fn on_prepared(&mut self, _cx: &mut NodeContext<'_>) {}

    /// A job of the program has computed a contribution, or a part of one: carries out the command that adds it.
    fn on_contribution(&mut self, _cx: &mut NodeContext<'_>, _command: ProgramCommand) {}

    /// A job of the program has ended.
    fn on_program_idle(&mut self, _cx: &mut NodeContext<'_>) {}

    /// The parameters after so many steps have been evaluated.
    fn on_step_evaluated(&mut self, _cx: &mut NodeContext<'_>, _steps: StepNumber, _evaluation: Evaluation) {}

    /// The final parameters have been evaluated.
    fn on_evaluated(&mut self, _evaluation: Evaluation) -> Result<(), Transition> {
        Ok(())
    }

    /// Whether this peer may enter a view that its disk cannot keep: others keep it, who have chosen it.
    fn may_enter_unwritten(&self) -> bool {
        true
    }

    /// Records are on disk, or cannot be written at present: does what waits for them no longer.
    fn on_persisted(&mut self, cx: &mut NodeContext<'_>, effects: Vec<Effect>) -> Result<(), Transition>;

    /// The checkpoint that was asked for has been read, or could not be read.
    fn on_checkpoint_loaded(
        &mut self,
        _cx: &mut NodeContext<'_>,
        _result: Result<Arc<Checkpoint>, String>,
    ) -> Result<(), Transition> {
        Ok(())
    }

    // Requests of the user.

    /// Begins to expel a member.
    fn expel(&mut self, _cx: &mut NodeContext<'_>, _peer: PeerId, _cause: ExpulsionCause) {}

    /// Ends the run at all members after the next step, before its epochs are over.
    fn end_run(&mut self, _cx: &mut NodeContext<'_>) {}

    /// Gives up table chunks: all their replicas are gone for good, so nothing waits for them any more.
    fn declare_lost(&mut self) {}

    /// Gives the run a new secret, drawn at this Unix time in milliseconds.
    fn rekey(&mut self, _cx: &mut NodeContext<'_>, _secret: Secret, _drawn_at: u64) {}

    /// The user has said for how long the program is busy.
    fn on_busy(&mut self, _cx: &mut NodeContext<'_>) {}

    /// Leaves the run: at once, or once this peer has handed over the chunks that it owns.
    fn leave(&mut self, _cx: &mut NodeContext<'_>) -> Result<(), Transition> {
        Err(Failure::Left.into())
    }

    /// The run ends at this peer before it is complete: saves what would be lost.
    fn farewell(&mut self, cx: &mut NodeContext<'_>) -> Farewell;

    // What all roles do alike.

    /// Handles the loss of a link.
    fn lose_link(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, reason: String) {
        cx.node.links.down(&peer);
        cx.node.frame_audit.link_down(&peer);
        cx.node.early_frames.link_down(&peer);
        self.on_link_down(cx, peer, reason);
    }

    /// Counts a wrong message. A peer that has sent too many is expelled.
    fn reject(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, reject: Reject) {
        if reject == Reject::Stream && !cx.node.links.is_linked(&peer) {
            // The driver refuses such a peer. Counting would remember each identity that anybody invents.
            return self.complain(cx, peer, MemberFault::Refused);
        }
        let consequence = cx.node.violations.note(peer, reject, cx.out);
        let is_changed = matches!(reject, Reject::Wire(WireError::Changed));
        self.complain(cx, peer, if is_changed { MemberFault::Frames } else { MemberFault::Refused });
        match consequence {
            Consequence::Counted => return,
            Consequence::LinkClosed => {}
            Consequence::Expelled => self.expel(cx, peer, ExpulsionCause::Violations),
        }
        cx.out.push(Output::Disconnect(peer));
        let words = cx.node.violations.words(&peer, reject);
        self.lose_link(cx, peer, words);
    }
}
