//! The messages that a member receives outside of training: joiners, votes on the next view, other branches, and requests of users.

use peergrad_protocol::message::{
    AdminMessage, AgreementMessage, Departure, Join, JoinMessage, MergeMessage, Message, Refusal,
};
use peergrad_protocol::{Buffer, PeerId};

use super::{ActiveMember, views};
use crate::io::Reject;
use crate::machine::context::NodeContext;
use crate::machine::role::{Interrupt, Role};
use crate::membership::{JoinAnswer, Measurement, RunPhase};

/// Handles a message while the run continues.
pub(super) fn receive(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: Message,
    payload: Option<Buffer>,
) -> Result<(), Interrupt> {
    match message {
        Message::Join(message) => receive_join(active, cx, from, message)?,
        Message::Agreement(message) => receive_agreement(active, cx, from, message)?,
        Message::Merge(message) => receive_merge(active, cx, from, message, payload)?,
        Message::Admin(message) => receive_admin(active, cx, from, message),
        Message::Heartbeat(beat) => {
            active.training.base_mut().widen(from, beat.window_bytes, cx.out);
            active.membership.on_heartbeat(cx.now, from, beat, cx.out);
        }
        Message::FrameCount { .. } => {}
        Message::Leave(Departure { reason }) => {
            if active.membership.departed(&from, &reason, cx.out) {
                active.poll(cx);
            }
        }
        Message::InView { .. } => return Err(Reject::OutOfPlace.into()),
    }
    Ok(())
}

fn receive_join(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: JoinMessage,
) -> Result<(), Reject> {
    let membership = &mut active.membership;
    match message {
        JoinMessage::Join(join) => answer_join(active, cx, from, &join),
        JoinMessage::Ready(_) if membership.on_ready(cx.now, from) => active.poll(cx),
        // The sender is a member already, and does not know it yet.
        JoinMessage::Ready(_) if membership.members.is_member(&from) => {
            cx.send(from, &active.install_message())
        }
        // An earlier incarnation of this member welcomed the sender, or this one has forgotten the sender: the sender has to ask again.
        JoinMessage::Ready(_) => cx.send(from, &JoinMessage::Refuse(Refusal::NotReady).into()),
        JoinMessage::Candidate(member) => {
            membership.on_candidate(cx.now, from, member);
            active.poll(cx);
        }
        JoinMessage::WantData(want) => cx.send_data_piece(from, want)?,
        // It answers a request that this member sent before it was a member.
        JoinMessage::Welcome(_)
        | JoinMessage::Refuse(_)
        | JoinMessage::Redirect(_)
        | JoinMessage::Data(_) => {}
    }
    Ok(())
}

/// A peer asks to join: answers whether it may, and what it needs to prepare.
fn answer_join(active: &mut ActiveMember, cx: &mut NodeContext<'_>, from: PeerId, join: &Join) {
    let phase = if active.training.is_closing() { RunPhase::Closing } else { RunPhase::Training };
    let answer = match active.membership.on_join(from, join, phase) {
        JoinAnswer::Refuse(refusal) => Message::Join(JoinMessage::Refuse(refusal)),
        JoinAnswer::IsMember => active.install_message(),
        JoinAnswer::Welcome => active.welcome_message(&cx.node.run),
        JoinAnswer::WelcomeBack => {
            cx.send(from, &active.install_message());
            active.welcome_message(&cx.node.run)
        }
    };
    cx.send(from, &answer);
}

fn receive_agreement(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: AgreementMessage,
) -> Result<(), Interrupt> {
    let (now, jobs, journal) = (cx.now, &cx.node.jobs, &mut cx.node.journal);
    match message {
        AgreementMessage::Prepare(prepare) => {
            let commands = active.with_status(jobs, |membership, status| {
                membership.on_prepare(now, from, prepare, status, journal, cx.out)
            })?;
            active.apply(commands, cx.out);
        }
        AgreementMessage::Promise(promise) => {
            let commands = active.with_status(jobs, |membership, status| {
                membership.on_promise(now, from, *promise, status, cx.out)
            });
            active.apply(commands, cx.out);
        }
        AgreementMessage::Nack(nack) => active.membership.on_nack(now, &nack),
        AgreementMessage::Propose(propose) => {
            active.with_status(jobs, |membership, status| {
                membership.on_propose(now, from, propose, status, journal, cx.out)
            })?;
        }
        AgreementMessage::Accepted(accepted) => active.membership.on_accepted(now, from, accepted, cx.out),
        AgreementMessage::Learn(change) => {
            active.with_status(jobs, |membership, status| {
                membership.on_learn(&change, status, journal, cx.out)
            })?;
        }
        AgreementMessage::Install(view) => views::on_install(active, cx, from, view)?,
        AgreementMessage::Complain { view, complaint } => {
            if active.membership.members.on_complaint(now, &from, view, complaint, cx.out) {
                active.poll(cx);
            }
        }
        AgreementMessage::Measured { view, samples_per_minute, line } => {
            active.membership.on_measured(now, from, view, Measurement { samples_per_minute, line });
        }
        AgreementMessage::Withdraw { view, ballot } => {
            let commands = active.membership.on_withdraw(from, (view, ballot));
            active.apply(commands, cx.out);
        }
    }
    Ok(())
}

fn receive_merge(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: MergeMessage,
    payload: Option<Buffer>,
) -> Result<(), Interrupt> {
    let (negotiation, mut branch) = active.negotiation(cx);
    match message {
        MergeMessage::Probe(probe) => negotiation.on_probe(from, probe, &mut branch)?,
        MergeMessage::Offer(offer) => negotiation.on_offer(from, offer, &mut branch)?,
        MergeMessage::Ready(ready) => {
            negotiation.on_ready(from, ready, &branch);
            active.poll(cx);
        }
        MergeMessage::WantSnapshot(want) => negotiation.send_snapshot_chunks(from, &want, &mut branch),
        MergeMessage::SnapshotChunks(chunks) => {
            let payload = payload.ok_or(Reject::Chunk)?;
            negotiation.on_snapshot_chunks(from, &chunks, &payload, &mut branch)?;
        }
        MergeMessage::Accept(accept) => {
            if let Some(accept) = negotiation.on_accept(from, accept, &mut branch) {
                return Err(views::abandon_branch(active, cx, accept).into());
            }
        }
    }
    Ok(())
}

fn receive_admin(active: &mut ActiveMember, cx: &mut NodeContext<'_>, from: PeerId, message: AdminMessage) {
    let is_secret = matches!(message, AdminMessage::Rekey(_) | AdminMessage::Rekeyed(_));
    active.membership.on_admin(from, message, cx.out);
    if !is_secret {
        active.poll(cx);
    }
}

/// The run is complete at this member: it answers peers that still send requests.
pub(super) fn answer_after_end(
    active: &ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: &Message,
) {
    match message {
        Message::Join(JoinMessage::Join(_)) => {
            cx.send(from, &JoinMessage::Refuse(Refusal::RunComplete).into());
        }
        // A member learns that all have finished; a peer that was removed learns that it was.
        Message::Heartbeat(_) | Message::Agreement(AgreementMessage::Prepare(_)) => {
            let is_in = active.membership.members.is_member(&from);
            let answer = if is_in { active.training.base().closed() } else { active.install_message() };
            cx.send(from, &answer);
        }
        _ => {}
    }
}
