//! The founder's role: it admits peers until the first view can begin, and sends that view to its members.

use std::sync::Arc;

use peergrad_protocol::message::{AgreementMessage, JoinMessage, Message, Refusal};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Instant, PeerId};

use crate::io::{Event, Output, Reject};
use crate::machine::context::NodeContext;
use crate::machine::jobs::Jobs;
use crate::machine::role::{Farewell, Interrupt, Role, Transition};
use crate::membership::bootstrap::Founder;
use crate::membership::join::ViewEntry;
use crate::membership::journal::Effect;
use crate::node_report::{NodeReport, NodeState};
use crate::state::checkpoint::Checkpoint;
use crate::state::shard_map::ShardingConfig;

impl Role for Founder {
    fn state(&self) -> NodeState {
        NodeState::Bootstrap
    }

    fn report(&self, _now: Instant, _jobs: &Jobs) -> NodeReport {
        self.node_report()
    }

    fn on_start(&mut self, cx: &mut NodeContext<'_>) {
        cx.out.extend(self.wanted_checkpoint().cloned().map(Output::LoadCheckpoint));
    }

    /// Writes the first view to disk, once enough peers are ready.
    fn advance(&mut self, cx: &mut NodeContext<'_>) -> Result<(), Transition> {
        let sharding = cx.node.run.ready().map(ShardingConfig::of).filter(|sharding| sharding.has_state);
        if let Some(view) = self.view(sharding.map_or(0, |sharding| sharding.chunks.count())) {
            if let Some(checkpoint) = self.checkpoint() {
                cx.node.run.check_alone(checkpoint)?;
            }
            self.recording();
            cx.out.extend(self.differing().map(Event::InitialParametersDiffer).map(Output::Event));
            cx.node.record(view, cx.out);
        }
        Ok(())
    }

    fn on_link_down(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, reason: String) {
        self.peer_left(peer, reason, cx.out);
    }

    fn on_reachability_changed(&mut self, cx: &mut NodeContext<'_>) {
        self.reachability_changed(&cx.node.me);
    }

    fn on_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        message: Message,
        _payload: Option<Buffer>,
    ) -> Result<(), Interrupt> {
        match message {
            Message::Join(JoinMessage::Join(join)) => match cx.node.run.specification_with_data() {
                Some(specification) => self.join(from, join, specification, cx.out),
                // An admitted joiner may ask for the data at once.
                None => cx.send(from, &JoinMessage::Refuse(Refusal::NotReady).into()),
            },
            Message::Join(JoinMessage::Ready(parameters)) if self.ready(from, parameters, cx.out) => {}
            Message::Join(JoinMessage::WantData(want)) => cx.send_data_piece(from, want)?,
            Message::Leave(departure) => self.peer_left(from, departure.reason, cx.out),
            Message::Heartbeat(_) | Message::FrameCount { .. } => {}
            _ => return Err(Reject::OutOfPlace.into()),
        }
        Ok(())
    }

    fn on_prepared(&mut self, cx: &mut NodeContext<'_>) {
        let parameters = cx.node.run.initial_digest().expect("the task is built");
        self.ready_here(parameters, cx.out);
    }

    /// Nobody else has the first view yet.
    fn may_enter_unwritten(&self) -> bool {
        false
    }

    /// The first view is on disk. It is the only record of a founder.
    fn on_persisted(&mut self, cx: &mut NodeContext<'_>, effects: Vec<Effect>) -> Result<(), Transition> {
        let Some(Effect::EnterView(view, digest)) = effects.into_iter().next() else { return Ok(()) };
        send_first_view(self, cx, &view);
        Err(Transition::Enter(ViewEntry { view, digest, checkpoint: self.checkpoint() }))
    }

    fn on_checkpoint_loaded(
        &mut self,
        cx: &mut NodeContext<'_>,
        result: Result<Arc<Checkpoint>, String>,
    ) -> Result<(), Transition> {
        let Some(steps) = self.wanted_checkpoint().map(|saved| saved.steps) else { return Ok(()) };
        self.restored(cx.node.run.fitting_checkpoint(steps, result)?);
        Ok(())
    }

    fn farewell(&mut self, _cx: &mut NodeContext<'_>) -> Farewell {
        Farewell { state: None, peers: self.candidates().collect() }
    }
}

/// Sends the first view to its members.
fn send_first_view(founder: &Founder, cx: &mut NodeContext<'_>, view: &View) {
    let install = Message::Agreement(AgreementMessage::Install(view.clone()));
    let me = cx.node.me.peer;
    for member in view.members.iter().filter(|member| member.peer != me) {
        cx.send(member.peer, &install);
    }
    for late in founder.candidates().filter(|peer| view.rank(peer).is_none()) {
        // The candidate asks again, and then finds members.
        cx.send(late, &JoinMessage::Refuse(Refusal::NotReady).into());
    }
}
