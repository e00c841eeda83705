//! The views of a member: the first one, the change to the next one, and what follows if the next one is without this member.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::PeerId;
use peergrad_protocol::cursor::Ending;
use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::{AgreementMessage, MergeAccept, Refusal};
use peergrad_protocol::view::{ExpulsionCause, Member, Recovery, View};

use super::{ActiveMember, Progress, frames};
use crate::io::{Event, Failure, Output, Reject};
use crate::machine::context::NodeContext;
use crate::machine::role::{Interrupt, Transition};
use crate::membership::join::ViewEntry;
use crate::membership::{MemberRules, Membership};
use crate::merge::MergeNegotiation;
use crate::peer_links::Route;
use crate::program::command::ProgramCommand;
use crate::program::loader::TrainingConfig;
use crate::state::checkpoint::CheckpointSchedule;
use crate::training::{Training, TrainingInputs};

impl ActiveMember {
    /// A view with this peer is on disk: this peer becomes a member.
    pub(in crate::machine) fn begin_in(entry: ViewEntry, cx: &mut NodeContext<'_>) -> Self {
        let ViewEntry { view, digest, checkpoint } = entry;
        let (now, node) = (cx.now, &mut *cx.node);
        let inputs = TrainingInputs {
            me: node.me.clone(),
            specification: Arc::clone(node.run.identity().0),
            loaded: node.run.ready().expect("a peer is in a view once it is prepared").clone(),
            vectors: node.run.vectors().expect("as it is prepared").clone(),
            initial: node.run.take_initial(),
            segments: node.segments.clone(),
            cache: node.cache.clone(),
            checkpoint,
        };
        let checkpoint_schedule = CheckpointSchedule::new(now, inputs.loaded.config.checkpoint_every);
        let mut training = Training::begin_in(&view, digest, inputs, &mut node.links.flows, cx.out);
        let TrainingConfig { policy, patience, .. } = training.base().loaded().config;
        let rules = MemberRules { policy, patience };
        let rest = (node.cache.clone(), node.run.definition(), rules);
        let linked = node.links.linked().collect();
        let mut membership = Membership::new(now, node.me.clone(), Arc::clone(&view), digest, linked, rest);
        node.links.relayed().for_each(|peer| membership.members.set_route(now, peer, Route::Relayed));
        membership.offer_capacity(node.me.capacity);
        cx.out.push(Output::Event(training.installed_event(None)));
        if view.cursor.ending != Ending::None {
            cx.out.push(Output::Event(Event::EndsEarly));
        }
        cx.out.extend(training.restored_event().map(Output::Event));
        if view.parents.is_empty() && training.restored_event().is_some() {
            // A new run that starts from another run's checkpoint has its first checkpoint under its own id.
            cx.out.extend(training.checkpoint());
        }
        if let Some(reply) = node.program.unpark() {
            training.command(ProgramCommand::Ready(reply), cx.out).expect("it takes in no segment");
        }
        let mut active = Self {
            training,
            membership,
            progress: Progress::Training,
            checkpoint_schedule,
            negotiation: MergeNegotiation::default(),
            leaves_for: None,
        };
        resume_removals(&mut active, cx);
        let me = cx.node.me.peer;
        active.membership.members.set_disk_fails(me, cx.node.journal.is_failing());
        cx.node.frame_audit.view_entered(digest, active.membership.members.heartbeat_interval());
        dial(&view, view.members.iter().map(|member| member.peer).filter(|peer| *peer != me), cx.out);
        frames::replay_early(&mut active, cx);
        active
    }

    /// Leaves the view, to ask for admission again. The program waits until this peer is in a view.
    pub(in crate::machine) fn leave_view(self, cx: &mut NodeContext<'_>) {
        let node = &mut *cx.node;
        node.journal.drop_effects();
        node.removals_before.extend(self.membership.members.removals_ordered_here());
        node.state_before = self.training.final_state().or(node.state_before.take());
        if let Some(reply) = self.training.leave(&mut node.links.flows, cx.out) {
            node.program.park(reply);
        }
        node.early_frames.drop_all(cx.out);
    }
}

/// Enters the next view, once it is chosen and training has reached the point where the view begins.
pub(super) fn enter_next(active: &mut ActiveMember, cx: &mut NodeContext<'_>) -> Result<(), Transition> {
    let Some((view, digest)) = active.membership.next() else { return Ok(()) };
    let (view, digest) = (Arc::clone(view), digest);
    // Only the first view begins otherwise.
    let Recovery::Resume(resume) = &view.recovery else { return Ok(()) };
    if !active.can_enter(resume) {
        if active.training.can_thaw() {
            active.training.thaw(cx.out);
        }
        active.training.stop_before(resume.step, cx.out);
        if !active.can_enter(resume) {
            return Ok(());
        }
    }
    let me = active.membership.members.me();
    let rank = view.rank(&me.peer).filter(|rank| view.member(*rank).incarnation == me.incarnation);
    let Some(rank) = rank else { return Err(exclude(active, cx, &view)) };
    let sponsored = active.membership.admission.sponsored_in(&view);
    let known = &active.training.view().expelled;
    let expelled = view.expelled.iter().filter(|expulsion| !known.contains(expulsion));
    cx.out.extend(expelled.map(|expulsion| Output::Event(Event::Expelled(*expulsion))));
    let quarantined = view.quarantined_since(active.training.view()).iter();
    let may_return = quarantined.filter(|quarantine| view.expulsion(&quarantine.peer).is_none());
    cx.out.extend(may_return.map(|quarantine| Output::Event(Event::Quarantined(*quarantine))));
    if active.training.view().cursor.ending == Ending::None && view.cursor.ending != Ending::None {
        cx.out.push(Output::Event(Event::EndsEarly));
    }
    let entered_at = cx.out.len();
    // The members that are gone may have had parts of the newest cut.
    active.checkpoint_schedule.request_cut();
    active.training.enter((&view, digest), resume, &mut cx.node.links.flows, cx.out);
    let difference = active.membership.advance(cx.now).expect("the next view is known");
    cx.node.follow_lines(&view, rank);
    active.membership.offer_capacity(cx.node.me.capacity);
    active.negotiation.enter(cx.now);
    cx.node.frame_audit.view_entered(digest, active.membership.members.heartbeat_interval());
    // The step that entering completes is committed in this view: another view after the same one might not have committed it.
    cx.out.insert(entered_at, Output::Event(active.training.installed_event(Some((&difference, resume)))));
    // New members do not know about the save.
    let due = active.training.steps().and_then(|steps| steps.state().save_is_due());
    if due.is_some_and(|steps| steps > active.training.step()) {
        active.announce_save(due, cx.out);
    }
    announce_view(active, cx, &sponsored, &difference.joined, &difference.left);
    resume_removals(active, cx);
    frames::replay_early(active, cx);
    Ok(())
}

/// Begins the removals again that a user ordered here before this peer was excluded, of the peers that are members.
fn resume_removals(active: &mut ActiveMember, cx: &mut NodeContext<'_>) {
    let ordered = std::mem::take(&mut cx.node.removals_before);
    let is_member = |peer: &PeerId| active.membership.members.is_member(peer);
    let (due, later): (Vec<PeerId>, _) = ordered.into_iter().partition(is_member);
    cx.node.removals_before = later;
    for peer in due {
        active.membership.members.expel(peer, ExpulsionCause::Request, cx.out);
    }
}

/// Tells the peers that do not know it yet that this member is in a new view: those that it has sponsored or welcomed, and those that left.
/// Dials the new members, and those that are not linked.
fn announce_view(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    sponsored: &[PeerId],
    joined: &[PeerId],
    left: &[PeerId],
) {
    let me = cx.node.me.peer;
    let wanted: BTreeSet<PeerId> = joined
        .iter()
        .filter(|peer| **peer != me)
        .chain(active.membership.members.unlinked())
        .copied()
        .collect();
    let install = active.install_message();
    for joiner in sponsored {
        cx.send(*joiner, &install);
    }
    // Joiners get the secret after the view in which they are members.
    active.membership.send_secret(joined, cx.out);
    tell_waiting(active, cx);
    let view = active.training.view();
    for gone in left.iter().copied().filter(|peer| view.rank(peer).is_none()) {
        // A removed peer that is still linked learns of its removal, and may ask to join again.
        if cx.node.links.is_linked(&gone) {
            cx.send(gone, &install);
        } else {
            cx.out.push(Output::Disconnect(gone));
        }
    }
    dial(view, wanted.into_iter(), cx.out);
}

/// Tells the joiners that wait for admission who the members are now: all that they knew may be gone when they are admitted.
fn tell_waiting(active: &ActiveMember, cx: &mut NodeContext<'_>) {
    let sponsored = active.membership.admission.sponsored().copied().collect::<Vec<_>>();
    if sponsored.is_empty() {
        return;
    }
    let welcome = active.welcome_message(&cx.node.run);
    for joiner in sponsored {
        cx.send(joiner, &welcome);
    }
}

/// A member sends a view that this peer may enter next, or that no longer contains this peer.
pub(super) fn on_install(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    view: View,
) -> Result<(), Interrupt> {
    if view.run != active.training.view().run || !active.training.planner().fits(&view) {
        return Err(Reject::OutOfPlace.into());
    }
    let own = active.training.base().digest();
    if active.membership.members.is_minority_branch(&view) && !active.has_snapshot() {
        active.membership.note_in_other_view(cx.now, &from, view.digest());
    } else if !active.membership.members.allows_forks() || view.parents.first() == Some(&own) {
        if !active.membership.on_install(view.clone(), &mut cx.node.journal, cx.out) {
            // The others are more than one view ahead: this peer is not a member any more.
            return Err(exclude(active, cx, &view).into());
        }
    } else if view.descends_from(own) {
        if active.has_snapshot() {
            // Other members of this branch may not know that view yet, and would continue alone.
            active.training.base().broadcast(&AgreementMessage::Install(view.clone()).into(), cx.out);
        }
        return Err(exclude(active, cx, &view).into());
    } else if !active.training.view().descends_from(view.digest()) {
        active.membership.note_in_other_view(cx.now, &from, view.digest());
    }
    Ok(())
}

/// The other members have continued without this peer.
fn exclude(active: &ActiveMember, cx: &mut NodeContext<'_>, view: &View) -> Transition {
    if let Some(expulsion) = view.expulsion(&cx.node.me.peer).copied() {
        let by = expulsion.by;
        let refusal = Refusal::Expelled(expulsion);
        return Transition::Fail(Failure::Refused { by, refusal });
    }
    if let Some(failure) = active.leaves_for.clone() {
        // The peer may have been lost before its handover was complete; then some state was lost with it.
        let is_whole = view.moves.restarted.is_empty();
        if is_whole {
            let chunks = active.training.base().handed_over();
            cx.out.push(Output::Event(Event::HandedOver { chunks, members: view.members.len() }));
        }
        return Transition::Fail(failure);
    }
    // If the view contains this branch's snapshot, it comes from a merge rather than from a loss.
    let is_merged = active.has_snapshot() && view.has_merged(active.training.base().digest());
    let event = if is_merged {
        Event::BranchAbandoned { is_merged, steps_since: active.steps_since_snapshot() }
    } else {
        let quarantined = view.quarantined_since(active.training.view()).iter();
        let quarantine = quarantined.copied().rfind(|quarantine| quarantine.peer == cx.node.me.peer);
        Event::Excluded { view_number: view.number, quarantine }
    };
    cx.out.push(Output::Event(event));
    Transition::Rejoin { run: view.run, contacts: view.members.iter().map(Member::contact).collect() }
}

/// This branch has ended: this peer asks the other branch to admit it.
pub(super) fn abandon_branch(
    active: &ActiveMember,
    cx: &mut NodeContext<'_>,
    accept: MergeAccept,
) -> Transition {
    if let Some(failure) = active.leaves_for.clone() {
        return Transition::Fail(failure);
    }
    let (run, members) = (active.training.view().run, active.membership.members.contacts());
    let contacts = accept.contacts.into_iter().chain(members).take(CONTACTS_MAX).collect();
    let steps_since = if accept.is_merged { active.steps_since_snapshot() } else { 0 };
    cx.out.push(Output::Event(Event::BranchAbandoned { is_merged: accept.is_merged, steps_since }));
    Transition::Rejoin { run, contacts }
}

/// Dials these members of a view.
fn dial(view: &View, peers: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
    for member in peers.filter_map(|peer| view.rank(&peer)).map(|rank| view.member(rank)) {
        out.push(Output::Dial(member.contact()));
    }
}
