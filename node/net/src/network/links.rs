//! The links: when one begins, when it is given up, and what the reports of its lanes mean for it.
//!
//! # How it works
//! - A connection to a holder of the secret becomes a link: this peer opens an outgoing lane, and accepts the other end's.
//! - A link that has lost its connection waits, and its frames go into the next lane.
//! - A link that waits for too long is given up, with the reason. It is given up at once if dialing shows that the other process is
//!   gone.

use std::sync::Arc;
use std::time::Duration;

use libp2p::Swarm;
use peergrad_protocol::limits::REJECTS_MAX;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::command::{Admission, LaneReport};
use super::lanes::Lanes;
use super::sinks::Sinks;
use crate::dial::Dialer;
use crate::link::{LaneError, LaneKind, Link, LinkEvent, OpenRequest, OpenResponse, SessionId, Verdict};
use crate::notice::PeerNotice;
use crate::remote::{ClosingLink, Condition, LinkIntent, Outage, Outgoing, Remotes, SessionChange};
use crate::transport::SwarmBehaviour;

/// Begins and ends links. It borrows what that needs from the actor.
pub(super) struct Links<'a> {
    /// Closes connections.
    pub(super) swarm: &'a mut Swarm<SwarmBehaviour>,
    /// The peers, each with its link.
    pub(super) remotes: &'a mut Remotes,
    /// Stops dialing a peer whose link ends.
    pub(super) dialer: &'a mut Dialer,
    /// Starts the tasks of lanes.
    pub(super) lanes: &'a Lanes,
    /// The number of the last outgoing lane.
    pub(super) outgoing_count: &'a mut u64,
    /// Receives what links report to the driver and to the user.
    pub(super) sinks: &'a Sinks,
}

impl Links<'_> {
    pub(super) fn on_report(&mut self, id: libp2p::PeerId, report: LaneReport) {
        match report {
            LaneReport::OpenRequested { lane_kind, opening, reply } => {
                self.on_open_requested(id, lane_kind, opening, reply)
            }
            LaneReport::OpenAnswered { number, answer, reply } => {
                self.on_open_answered(id, number, answer, reply)
            }
            LaneReport::Direct(result) => self.on_direct(id, result),
            LaneReport::OutgoingEnded { number, result } => self.on_outgoing_ended(id, number, result),
            LaneReport::IncomingFailed { error } if error.is_violation() => self.on_violation(id, &error),
            // The sender opens the next lane.
            LaneReport::IncomingFailed { .. } => {}
            LaneReport::Goodbye { link } => self.on_goodbye(id, &link),
            LaneReport::Drained { link } => self.on_drained(id, &link),
        }
    }

    /// The other end opens a lane to send frames.
    fn on_open_requested(
        &mut self,
        id: libp2p::PeerId,
        lane_kind: LaneKind,
        opening: OpenRequest,
        reply: oneshot::Sender<Admission>,
    ) {
        let Some(remote) = self.remotes.record(id) else { return };
        // A direct lane is an additional path to a connected peer, and no other way in.
        let is_alone = lane_kind == LaneKind::Direct && !remote.paths.has_unrelayed_connection();
        // A link that carries tensors does not go on over a circuit either. The other end learns that when one of the two gives
        // up.
        let is_barred = lane_kind == LaneKind::Substream
            && !remote.paths.connections.is_empty()
            && !remote.has_usable_connection();
        let is_early = lane_kind == LaneKind::Substream && !remote.may_begin(Instant::now());
        if remote.link.intent == LinkIntent::Disconnect || is_alone || is_barred || is_early {
            return self.remotes.forget_if_idle(id);
        }
        let session = remote.link.mine;
        let admission = if remote.link.is_duplicate(opening.session) {
            Admission::Refused { verdict: Verdict::DuplicateIdentity, session }
        } else if remote.link.is_current(opening) {
            remote.link.intent = LinkIntent::Connect;
            let link = self.note_session(id, opening.session);
            let lane = link.inbox.start_lane();
            Admission::Welcome { link, lane, session }
        } else {
            Admission::Refused { verdict: Verdict::UnknownSession, session }
        };
        // If the lane has ended meanwhile, it does not wait for the reply.
        let _ = reply.send(admission);
        self.open_lane(id);
    }

    /// The other end has answered our opening: the link has an outgoing lane again.
    fn on_open_answered(
        &mut self,
        id: libp2p::PeerId,
        number: u64,
        answer: OpenResponse,
        reply: oneshot::Sender<(Arc<Link>, u64)>,
    ) {
        let Some(remote) = self.remotes.get(&id) else { return };
        let link = match (&remote.link.closing, &remote.link.outgoing) {
            (Some(closing_link), _) if closing_link.outgoing == number => {
                if answer.session != closing_link.link.theirs() {
                    return closing_link.link.close();
                }
                Arc::clone(&closing_link.link)
            }
            (_, Outgoing::Running { number: current, known, .. }) if *current == number => {
                if remote.link.is_duplicate(answer.session) {
                    // The process that was meant is behind another connection.
                    return self.on_unknown_session(id, number);
                }
                if !remote.link.is_response_current(*known, answer.session) {
                    // The lane ends, and the next one is opened with what is known now.
                    return;
                }
                if answer.verdict == Verdict::DuplicateIdentity {
                    let by = remote.peer;
                    self.on_unknown_session(id, number);
                    return self.sinks.emit(LinkEvent::DuplicateIdentity { by });
                }
                self.note_session(id, answer.session)
            }
            _ => return,
        };
        if answer.verdict == Verdict::UnknownSession {
            return self.on_unknown_session(id, number);
        }
        match link.outbox.start_lane(answer.acknowledgement) {
            Ok(Some((lane, segments))) => {
                self.end_outage(id, &link);
                self.note_large_packets(id, &link);
                if segments > 0 {
                    self.sinks.emit(LinkEvent::Credit { link: Arc::clone(&link), segments });
                }
                let _ = reply.send((link, lane));
            }
            Ok(None) => {}
            Err(_) if self.remotes.get(&id).is_none_or(|remote| remote.link.current.is_none()) => {
                link.close()
            }
            Err(_) => self.give_up(id, "it no longer knows which frames it has received".to_owned()),
        }
    }

    /// A lane of a link was opened again: the user learns if that is all that goes through.
    fn note_large_packets(&mut self, id: libp2p::PeerId, link: &Link) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if !link.outbox.loses_large_packets() {
            remote.notices.end(Condition::LosesLargePackets);
        } else if remote.notices.begin(Condition::LosesLargePackets) {
            self.sinks.notify_of(remote.peer, PeerNotice::LosesLargePackets);
        }
    }

    /// A direct lane to a peer was opened, or could not be, for a reason.
    fn on_direct(&mut self, id: libp2p::PeerId, result: Result<(), String>) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let peer = remote.peer;
        match result {
            Err(reason) if remote.notices.begin(Condition::NoDirectLane) => {
                self.sinks.notify_of(peer, PeerNotice::DirectLaneFailed { reason });
            }
            Ok(()) if remote.notices.end(Condition::NoDirectLane) => {
                self.sinks.notify_of(peer, PeerNotice::DirectLaneRestored);
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// The other end does not know the session that our opening named. Its answer names its current session, so the next
    /// opening will succeed. If that happens again and again, two machines have one identity.
    fn on_unknown_session(&mut self, id: libp2p::PeerId, number: u64) {
        let now = Instant::now();
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let is_repeated =
            remote.link.unknown_session_at.replace(now).is_some_and(|at| now - at < UNKNOWN_SESSION_PAUSE);
        if is_repeated
            && matches!(remote.link.outgoing, Outgoing::Running { number: current, .. } if current == number)
        {
            remote.link.outgoing = Outgoing::Idle { not_before: now + REOPEN_PAUSE };
        }
    }

    fn on_outgoing_ended(&mut self, id: libp2p::PeerId, number: u64, result: Result<(), LaneError>) {
        let now = Instant::now();
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        match &remote.link.outgoing {
            Outgoing::Running { number: current, .. } if *current == number => {}
            _ => return,
        }
        let pause = match &result {
            Ok(()) => Duration::ZERO,
            Err(LaneError::Unwanted) => LOOKING_PAUSE,
            Err(_) => REOPEN_PAUSE,
        };
        remote.link.outgoing = Outgoing::Idle { not_before: now + pause };
        let Err(error) = result else { return self.open_lane(id) };
        remote.link.note_outage(error.to_string(), now);
        if error.is_violation() {
            self.on_violation(id, &error);
        } else if matches!(error, LaneError::Stalled) {
            self.disconnect(id, &error.to_string());
        }
    }

    /// A peer that holds the secret has broken the protocol.
    fn on_violation(&mut self, id: libp2p::PeerId, error: &LaneError) {
        self.lanes.counters.add_bad_stream();
        let violations = self.remotes.violators.note(id, Instant::now());
        let Some(peer) = self.remotes.record(id).map(|remote| remote.peer) else { return };
        if violations <= REJECTS_MAX && !error.is_other_release() {
            self.sinks.emit(LinkEvent::BadStream(peer));
        }
        // Reported ever more rarely, so that the peer cannot fill the screen.
        if violations.is_power_of_two() {
            self.sinks.notify_of(peer, PeerNotice::BadStream { reason: error.to_string() });
        }
        if violations >= REJECTS_MAX {
            self.disconnect(id, "it keeps sending bytes that are not frames");
        }
        self.remotes.forget_if_idle(id);
    }

    /// The other end says goodbye. This peer says goodbye too, so that its frames are acknowledged before the other end goes.
    fn on_goodbye(&mut self, id: libp2p::PeerId, link: &Arc<Link>) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if remote.link.is(link) {
            self.dialer.forget(id);
            self.close(id, LinkIntent::Idle);
            self.sinks.emit(LinkEvent::Down { link: Arc::clone(link), reason: "it left".to_owned() });
        }
    }

    fn on_drained(&mut self, id: libp2p::PeerId, link: &Arc<Link>) {
        link.close();
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.link.closing =
            remote.link.closing.take().filter(|closing_link| !Arc::ptr_eq(&closing_link.link, link));
        if remote.link.intent == LinkIntent::Disconnect && remote.link.closing.is_none() {
            self.disconnect(id, "hung up");
        }
        self.remotes.forget_if_idle(id);
    }

    /// Closes the link in order: the queued frames and a goodbye are still sent.
    pub(super) fn close(&mut self, id: libp2p::PeerId, intent: LinkIntent) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        // The other end knows the session with which the link began.
        let opening = remote.link.open_request();
        remote.link.intent = intent;
        let Some(link) = remote.take_link() else {
            if intent == LinkIntent::Disconnect {
                self.disconnect(id, "hung up");
            }
            return;
        };
        let idle = Outgoing::Idle { not_before: Instant::now() };
        let outgoing = std::mem::replace(&mut remote.link.outgoing, idle);
        if remote.paths.connections.is_empty() {
            link.close();
            return self.remotes.forget_if_idle(id);
        }
        link.finish();
        // The lane stays with the link that it serves, and the next link gets its own lane.
        let number = match outgoing {
            Outgoing::Running { number, .. } => number,
            Outgoing::Idle { .. } => self.spawn_outgoing(id, opening).0,
        };
        let closing_link = ClosingLink { link: Arc::clone(&link), outgoing: number };
        let before = self.remotes.get_mut(&id).and_then(|remote| remote.link.closing.replace(closing_link));
        if let Some(before) = before {
            before.link.close();
        }
        self.lanes.spawn(self.lanes.clone().drain(id, link));
    }

    /// Closes the link because it does not work any more.
    pub(super) fn give_up(&mut self, id: libp2p::PeerId, reason: String) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(link) = remote.take_link() else { return };
        remote.link.stop_outgoing();
        link.close();
        self.dialer.stop_reconnecting(id);
        self.sinks.emit(LinkEvent::Down { link, reason });
        self.open_lane(id);
        self.remotes.forget_if_idle(id);
    }

    /// Takes in a session of the other end, and reports the change of the link to the driver.
    fn note_session(&mut self, id: libp2p::PeerId, theirs: SessionId) -> Arc<Link> {
        let remote = self.remotes.record(id).expect("the id of a peer with a lane was converted before");
        match remote.note_session(theirs, Instant::now()) {
            SessionChange::Same(link) => link,
            SessionChange::New(link) => {
                link.share(self.lanes.uplink.clone());
                self.sinks.emit(LinkEvent::Up(Arc::clone(&link)));
                link
            }
            SessionChange::Replaced { old, new } => {
                new.share(self.lanes.uplink.clone());
                self.sinks.emit(LinkEvent::Down {
                    link: old,
                    reason: "it restarted, or another machine uses a copy of its data directory".to_owned(),
                });
                self.sinks.emit(LinkEvent::Up(Arc::clone(&new)));
                new
            }
        }
    }

    fn end_outage(&mut self, id: libp2p::PeerId, link: &Arc<Link>) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if !remote.link.is(link) {
            return;
        }
        let (peer, outage) = (remote.peer, remote.link.outage.take());
        let was_told = remote.notices.end(Condition::Reconnecting);
        let Some(Outage { was_up: true, .. }) = outage else { return };
        self.lanes.counters.add_resumed_link();
        if was_told {
            self.sinks.notify_of(peer, PeerNotice::Resumed);
        }
    }

    /// Opens a lane to a peer, if this peer wants one, has none, and there is a connection for it.
    pub(super) fn open_lane(&mut self, id: libp2p::PeerId) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let now = Instant::now();
        let is_due = matches!(remote.link.outgoing, Outgoing::Idle { not_before } if not_before <= now)
            && remote.may_begin(now);
        if !is_due || remote.link.intent != LinkIntent::Connect || !remote.has_usable_connection() {
            return;
        }
        let opening = remote.link.open_request();
        let (number, task) = self.spawn_outgoing(id, opening);
        if let Some(remote) = self.remotes.get_mut(&id) {
            remote.link.outgoing = Outgoing::Running { number, task, known: opening.known };
        }
    }

    fn spawn_outgoing(&mut self, id: libp2p::PeerId, opening: OpenRequest) -> (u64, AbortHandle) {
        *self.outgoing_count += 1;
        let number = *self.outgoing_count;
        let remote = self.remotes.get(&id).expect("a lane is opened only to a peer with a record");
        let lane = self.lanes.clone().send(id, number, opening, Arc::clone(&remote.paths.direct));
        (number, self.lanes.spawn(lane))
    }

    pub(super) fn disconnect(&mut self, id: libp2p::PeerId, reason: &str) {
        if let Some(remote) = self.remotes.get_mut(&id) {
            remote.paths.close_reason.get_or_insert_with(|| reason.to_owned());
        }
        // An error only means that there is no connection.
        let _ = self.swarm.disconnect_peer_id(id);
    }
    /// Gives up the links that have waited for too long.
    pub(super) fn give_up_overdue(&mut self, now: Instant) {
        let overdue: Vec<_> =
            self.remotes.iter().filter_map(|(id, remote)| Some((*id, remote.overdue(now)?))).collect();
        for (id, reason) in overdue {
            self.give_up(id, reason);
        }
    }

    /// Opens the lanes that are due.
    pub(super) fn open_lanes(&mut self) {
        let ids: Vec<_> = self.remotes.iter().map(|(id, _)| *id).collect();
        for id in ids {
            self.open_lane(id);
        }
    }
}

/// Pause before a failed lane is opened again on a connection that is still open.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// The pause before a lane is opened to an end that accepts none: a status client.
const LOOKING_PAUSE: Duration = Duration::from_secs(10);
/// An opening that is refused twice within this time is not retried at once.
const UNKNOWN_SESSION_PAUSE: Duration = Duration::from_secs(1);
