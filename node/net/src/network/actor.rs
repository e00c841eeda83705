//! The actor: the task that owns the swarm and everything that is known of each peer. It decides when links begin and end.
//!
//! # How it works
//! - A connection to a holder of the secret becomes a link: this peer opens an outgoing lane, and accepts the other end's.
//! - A lost connection is dialed again, by the peer with the smaller id at once and by the other one half a second later, so
//!   that they do not dial at the same time. Meanwhile the link waits, and its frames go into the next lane.
//! - A link that waits for too long is closed, with the reason. It is closed at once if dialing shows that the other process is
//!   gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::{Multiaddr, Swarm};
use peergrad_protocol::Incarnation;
use peergrad_protocol::limits::REJECTS_MAX;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::command::{Admission, Command, Report};
use super::lanes::Lanes;
use super::status::NetworkStatus;
use crate::address::parse_all;
use crate::bootstrap_address::BootstrapAddress;
use crate::dial::Dialer;
use crate::identity::{from_libp2p, to_libp2p};
use crate::link::{LaneError, LaneKind, Link, LinkEvent, OpenRequest, OpenResponse, SessionId, Verdict};
use crate::listen::Claim;
use crate::notice::Notice;
use crate::reachability::Connectivity;
use crate::remote::{ClosingLink, Condition, LinkIntent, Outage, Outgoing, RemotePeer, SessionChange};
use crate::transport::Behaviour;

pub(super) struct NetworkActor {
    pub(super) swarm: Swarm<Behaviour>,
    pub(super) lanes: Lanes,
    notices: mpsc::UnboundedSender<Notice>,
    pub(super) announce: watch::Sender<Vec<String>>,
    /// Looked up only by key: its order never matters.
    pub(super) remotes: BTreeMap<libp2p::PeerId, RemotePeer>,
    pub(super) dialer: Dialer,
    pub(super) connectivity: Connectivity,
    outgoing_count: u64,
    /// The start number of this process.
    start: Incarnation,
    /// The claim on the port, held as long as the swarm listens.
    _claim: Claim,
}

impl NetworkActor {
    pub(super) fn new(
        swarm: Swarm<Behaviour>,
        lanes: Lanes,
        notices: mpsc::UnboundedSender<Notice>,
        announce: watch::Sender<Vec<String>>,
        external: Vec<Multiaddr>,
        start: Incarnation,
        claim: Claim,
    ) -> Self {
        let listening: Vec<_> = swarm.listeners().cloned().collect();
        let connectivity = Connectivity::new(external, &listening, announce.borrow().clone());
        Self {
            swarm,
            lanes,
            notices,
            announce,
            connectivity,
            remotes: BTreeMap::new(),
            dialer: Dialer::default(),
            outgoing_count: 0,
            start,
            _claim: claim,
        }
    }

    pub(super) fn want_bootstrap(&mut self, bootstrap: BootstrapAddress) {
        self.dialer.want_bootstrap(bootstrap, Instant::now());
    }

    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Commands first: a connection that closes after a goodbye is not a loss, if the goodbye has been handled by
                // then.
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => return,
                },
                _ = rounds.tick() => self.on_tick(),
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
            }
            self.dial_due();
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Dial(contact) => {
                let Some(id) = to_libp2p(contact.peer).filter(|id| id != self.swarm.local_peer_id()) else {
                    return;
                };
                self.dialer.want(id, parse_all(&contact.addresses), Instant::now());
                if let Some(remote) = self.remotes.get_mut(&id) {
                    remote.link.intent = LinkIntent::Connect;
                    if remote.has_usable_connection() {
                        self.dialer.mark_connected(id, remote.paths.carriers);
                    }
                    self.open_lane(id);
                }
            }
            Command::HangUp(peer) => {
                if let Some(id) = to_libp2p(peer) {
                    self.dialer.forget(id);
                    self.close_link(id, LinkIntent::Disconnect);
                }
            }
            Command::StopDialing(peer) => {
                if let Some(id) = to_libp2p(peer) {
                    self.dialer.forget(id);
                }
            }
            Command::KeepWanted(peers) => {
                self.dialer.keep_wanted(|id| from_libp2p(id).is_some_and(|peer| peers.contains(&peer)));
            }
            Command::Disconnect(peer) => {
                if let Some(id) = to_libp2p(peer) {
                    self.disconnect(id, "cut on request");
                }
            }
            Command::KeepOnly(peers) => {
                let is_kept = |id| from_libp2p(id).is_some_and(|peer| peers.contains(&peer));
                let others: Vec<_> =
                    self.swarm.connected_peers().filter(|id| !is_kept(id)).copied().collect();
                for id in others {
                    self.disconnect(id, "the run has another secret");
                }
            }
            // The task that asked may be gone.
            Command::Status(reply) => _ = reply.send(NetworkStatus::of(self.remotes.values(), &self.dialer)),
            Command::Report(id, report) => self.on_report(id, report),
            Command::Checked(id, findings) => self.on_checked(id, findings),
            Command::AskedRouter(answer) => self.on_router(answer),
            Command::HandshakeRefused { from, reason } => {
                let count = self.lanes.counters.add_refused_stranger();
                // Reported ever more rarely, so that no stranger can fill the screen.
                if let Some(reason) = reason
                    && count.is_power_of_two()
                {
                    self.notify(Notice::HandshakeRefused { from, reason, count });
                }
            }
        }
    }

    fn on_report(&mut self, id: libp2p::PeerId, report: Report) {
        match report {
            Report::OpenRequested { way, opening, reply } => self.on_open_requested(id, way, opening, reply),
            Report::OpenAnswered { number, answer, reply } => {
                self.on_open_answered(id, number, answer, reply)
            }
            Report::Direct(result) => self.on_direct(id, result),
            Report::OutgoingEnded { number, result } => self.on_outgoing_ended(id, number, result),
            Report::IncomingFailed { error } if error.is_violation() => self.on_violation(id, &error),
            // The sender opens the next lane.
            Report::IncomingFailed { .. } => {}
            Report::Goodbye { link } => self.on_goodbye(id, &link),
            Report::Drained { link } => self.on_drained(id, &link),
        }
    }

    /// The other end opens a lane to send frames.
    fn on_open_requested(
        &mut self,
        id: libp2p::PeerId,
        way: LaneKind,
        opening: OpenRequest,
        reply: oneshot::Sender<Admission>,
    ) {
        let Some(remote) = self.remote(id) else { return };
        // A direct lane is an additional path to a connected peer, and no other way in.
        let is_alone = way == LaneKind::Direct && !remote.paths.has_unrelayed_connection();
        // A link that carries tensors does not go on over a circuit either. The other end learns that when one of the two gives
        // up.
        let is_barred = way == LaneKind::Substream
            && !remote.paths.connections.is_empty()
            && !remote.has_usable_connection();
        let is_early = way == LaneKind::Substream && !remote.may_begin(Instant::now());
        if remote.link.intent == LinkIntent::Disconnect || is_alone || is_barred || is_early {
            return self.forget_if_idle(id);
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
                    return self.emit(LinkEvent::DuplicateIdentity { by });
                }
                self.note_session(id, answer.session)
            }
            _ => return,
        };
        if answer.verdict == Verdict::UnknownSession {
            return self.on_unknown_session(id, number);
        }
        match link.outbox.start_lane(answer.record) {
            Ok(Some((lane, segments))) => {
                self.end_outage(id, &link);
                if segments > 0 {
                    self.emit(LinkEvent::Credit { link: Arc::clone(&link), segments });
                }
                let _ = reply.send((link, lane));
            }
            Ok(None) => {}
            Err(_) if self.remotes.get(&id).is_none_or(|remote| remote.link.current.is_none()) => {
                link.close()
            }
            Err(_) => self.drop_link(id, "it has lost track of the frames that it had received".to_owned()),
        }
    }

    /// There is a direct lane to a peer, or a reason why there is none.
    fn on_direct(&mut self, id: libp2p::PeerId, result: Result<(), String>) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let peer = remote.peer;
        match result {
            Err(reason) if remote.notices.begin(Condition::NoDirectLane) => {
                self.notify(Notice::DirectLaneFailed { peer, reason });
            }
            Ok(()) if remote.notices.end(Condition::NoDirectLane) => {
                self.notify(Notice::DirectLaneRestored { peer });
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
        let Some(remote) = self.remote(id) else { return };
        remote.link.violations += 1;
        let (violations, peer) = (remote.link.violations, remote.peer);
        // Reported ever more rarely, so that the peer cannot fill the screen.
        if violations.is_power_of_two() {
            self.notify(Notice::BadStream { peer, reason: error.to_string() });
        }
        if violations >= REJECTS_MAX {
            self.disconnect(id, "it keeps sending bytes that are not frames");
        }
        self.forget_if_idle(id);
    }

    /// The other end says goodbye. This peer says goodbye too, so that its frames are acknowledged before the other end goes.
    fn on_goodbye(&mut self, id: libp2p::PeerId, link: &Arc<Link>) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if remote.link.is(link) {
            self.dialer.forget(id);
            self.close_link(id, LinkIntent::Idle);
            self.emit(LinkEvent::Down { link: Arc::clone(link), reason: "it left".to_owned() });
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
        self.forget_if_idle(id);
    }

    /// Closes the link in order: the queued frames and a goodbye are still sent.
    fn close_link(&mut self, id: libp2p::PeerId, intent: LinkIntent) {
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
            return self.forget_if_idle(id);
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
    pub(super) fn drop_link(&mut self, id: libp2p::PeerId, reason: String) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(link) = remote.take_link() else { return };
        remote.link.stop_outgoing();
        link.close();
        self.dialer.stop_reconnecting(id);
        self.emit(LinkEvent::Down { link, reason });
        self.open_lane(id);
        self.forget_if_idle(id);
    }

    /// Takes in a session of the other end, and reports the change of the link to the driver.
    fn note_session(&mut self, id: libp2p::PeerId, theirs: SessionId) -> Arc<Link> {
        let remote = self.remote(id).expect("the id of a peer with a lane was converted before");
        match remote.note_session(theirs, Instant::now()) {
            SessionChange::Same(link) => link,
            SessionChange::New(link) => {
                self.emit(LinkEvent::Up(Arc::clone(&link)));
                link
            }
            SessionChange::Replaced { old, new } => {
                self.emit(LinkEvent::Down {
                    link: old,
                    reason: "it restarted, or another machine uses a copy of its data directory".to_owned(),
                });
                self.emit(LinkEvent::Up(Arc::clone(&new)));
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
            self.notify(Notice::Resumed { peer });
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
        self.outgoing_count += 1;
        let number = self.outgoing_count;
        let remote = self.remotes.get(&id).expect("a lane is opened only to a peer with a record");
        let lane = self.lanes.clone().send(id, number, opening, Arc::clone(&remote.paths.direct));
        (number, self.lanes.spawn(lane))
    }

    /// Checks the timers.
    fn on_tick(&mut self) {
        let now = Instant::now();
        let overdue: Vec<_> =
            self.remotes.iter().filter_map(|(id, remote)| Some((*id, remote.overdue(now)?))).collect();
        for (id, reason) in overdue {
            self.drop_link(id, reason);
        }
        self.maintain_connectivity(now);
        let ids: Vec<_> = self.remotes.keys().copied().collect();
        for id in ids {
            self.open_lane(id);
        }
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for options in self.dialer.take_due(now) {
            let attempt = options.connection_id();
            if let Err(error) = self.swarm.dial(options) {
                self.on_dial_failed(attempt, &error);
            }
        }
    }

    pub(super) fn disconnect(&mut self, id: libp2p::PeerId, reason: &str) {
        if let Some(remote) = self.remotes.get_mut(&id) {
            remote.paths.close_reason.get_or_insert_with(|| reason.to_owned());
        }
        // An error only means that there is no connection.
        let _ = self.swarm.disconnect_peer_id(id);
    }

    /// The record of this peer, created if needed; `None` if its id is of a kind that no peer has.
    pub(super) fn remote(&mut self, id: libp2p::PeerId) -> Option<&mut RemotePeer> {
        let (peer, start) = (from_libp2p(&id)?, self.start);
        Some(self.remotes.entry(id).or_insert_with(|| RemotePeer::new(peer, start, Instant::now())))
    }

    pub(super) fn forget_if_idle(&mut self, id: libp2p::PeerId) {
        if self.remotes.get(&id).is_some_and(RemotePeer::is_idle) {
            self.remotes.remove(&id);
        }
    }

    pub(super) fn emit(&self, event: LinkEvent) {
        // The driver may be gone, and then needs no events.
        let _ = self.lanes.events.send(event);
    }

    pub(super) fn notify(&self, notice: Notice) {
        // The receiver may be gone: notices need no reader.
        let _ = self.notices.send(notice);
    }
}

/// How often the timers are checked.
const ROUND: Duration = Duration::from_millis(100);
/// Pause before a failed lane is opened again on a connection that is still open.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// As above, for an end that takes no lanes: a status client that asks and goes.
const LOOKING_PAUSE: Duration = Duration::from_secs(10);
/// An opening that is refused twice within this time is not retried at once.
const UNKNOWN_SESSION_PAUSE: Duration = Duration::from_secs(1);
