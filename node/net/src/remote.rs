//! The remote: what is known of one peer at the other end, and what its session numbers mean for the link.
//!
//! ```text
//!            its session is new, or another          nothing heard for too long, or hung up
//!   no link --------------------------------> link -------------------------------------> no link, own session redrawn
//!            (another: the old link is down)
//! ```
//! Our session changes only when *we* give up a link, so two ends that both react to each other's change agree at once.
//!
//! Two processes may have one identity: a data directory was copied. The one with the larger number of starts behind it, mostly
//! the one that was started later, is the peer, and what the other says changes nothing here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::ConnectionId;
use peergrad_protocol::{Incarnation, PeerId};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::address::{Carrier, host_of, ip_of, is_relayed, remember};
use super::dial::CarrierHistory;
use super::direct::DirectPath;
use super::link::{Link, OpenRequest, SessionId};

/// One peer, as long as there is a connection or a link.
#[derive(Debug)]
pub(super) struct RemotePeer {
    pub(super) peer: PeerId,
    pub(super) mine: SessionId,
    /// The last start of the other end's process that is known.
    last_start: Incarnation,
    pub(super) link: Option<Arc<Link>>,
    /// A link that is closed for the node, and on which last frames and goodbyes are still under way.
    pub(super) closing_link: Option<ClosingLink>,
    pub(super) intent: LinkIntent,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    /// It has said where it sees this peer: before that, nobody here knows what this peer can offer it.
    pub(super) is_identified: bool,
    /// When a way without a relay is looked for next, where there is none, and after which pause again.
    relay_upgrade: RelayUpgrade,
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) outgoing: Outgoing,
    /// Since when, and why, the link has no outgoing lane; `None` while it has one.
    pub(super) outage: Option<Outage>,
    /// What is known of the ways there.
    pub(super) carriers: CarrierHistory,
    /// The user was told that the way is over QUIC.
    pub(super) is_quic_told: bool,
    /// How long the last ping took.
    pub(super) round_trip: Option<Duration>,
    /// Machines that it has been connected from or to, since there is a link or a connection.
    pub(super) ips: Vec<IpAddr>,
    /// When an opening was answered by one who did not know what it named.
    pub(super) unknown_session_at: Option<Instant>,
    /// Why we are about to close its connections, if we are.
    pub(super) closing: Option<String>,
    pub(super) violations: u32,
    pub(super) direct: Arc<DirectPath>,
    /// The user was told that there is no direct lane.
    pub(super) is_indirect_told: bool,
    /// The user was told that the way leads through another peer.
    pub(super) is_relay_told: bool,
}

/// A connection of libp2p.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) since: Instant,
    pub(super) carrier: Carrier,
    /// It leads through another peer.
    pub(super) is_relayed: bool,
    /// Where this peer has dialed the other one; `None`: it was dialed.
    pub(super) dialed: Option<Multiaddr>,
}

/// Attempts to do without a relay.
#[derive(Clone, Copy, Debug)]
struct RelayUpgrade {
    due: Instant,
    pause: Duration,
}

/// A link that is being ended in an orderly way.
#[derive(Debug)]
pub(super) struct ClosingLink {
    pub(super) link: Arc<Link>,
    /// The task of its outgoing lane, which may still be opening it.
    pub(super) outgoing: u64,
}

/// What we want of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkIntent {
    /// A link.
    Connect,
    /// Nothing, but it may come back: it said goodbye.
    Idle,
    /// To be rid of it: we said goodbye.
    Disconnect,
}

/// The task that opens and keeps the outgoing lane.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// There is none, and none before this.
    Idle { not_before: Instant },
    /// This one; reports of others are of no interest any more. It was opened with what was known of the other end then.
    Running { number: u64, task: AbortHandle, known: Option<SessionId> },
}

/// A link without its outgoing lane.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) reason: String,
    /// The link had a lane before; otherwise it is still being made.
    pub(super) was_up: bool,
    /// The user has heard of it.
    pub(super) is_told: bool,
}

/// What a session number of the other end means.
#[derive(Debug)]
pub(super) enum SessionChange {
    /// The link goes on.
    Same(Arc<Link>),
    /// A link begins.
    New(Arc<Link>),
    /// The other end began anew: the old link is closed, and another begins.
    Replaced { old: Arc<Link>, new: Arc<Link> },
}

impl RemotePeer {
    pub(super) fn new(peer: PeerId, my_start: Incarnation, now: Instant) -> Self {
        Self {
            peer,
            mine: SessionId::draw(my_start),
            last_start: Incarnation(0),
            link: None,
            closing_link: None,
            intent: LinkIntent::Connect,
            connections: BTreeMap::new(),
            is_identified: false,
            relay_upgrade: RelayUpgrade { due: now, pause: RELAY_UPGRADE_PAUSE },
            addresses: Vec::new(),
            outgoing: Outgoing::Idle { not_before: now },
            outage: None,
            carriers: CarrierHistory::default(),
            is_quic_told: false,
            round_trip: None,
            ips: Vec::new(),
            unknown_session_at: None,
            closing: None,
            violations: 0,
            direct: Arc::new(DirectPath::new(now)),
            is_indirect_told: false,
            is_relay_told: false,
        }
    }

    /// Whether there is a connection that the link may use: one that carries tensors never goes on over a circuit.
    pub(super) fn has_usable_connection(&self) -> bool {
        let takes_circuits = self.link.as_ref().is_none_or(|link| link.is_relayed());
        self.connections.values().any(|connection| takes_circuits || !connection.is_relayed)
    }

    /// Whether a link may begin: who the other end is to us is known, or it does not say.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        let is_late = |connection: &Connection| now >= connection.since + IDENTIFIED_AFTER_MAX;
        self.is_identified || self.link.is_some() || self.connections.values().any(is_late)
    }

    /// Whether no lane of the link is open yet.
    pub(super) fn is_unanswered(&self) -> bool {
        self.link.is_none() || self.outage.is_some()
    }

    /// Whether there is a connection without a relay.
    pub(super) fn has_unrelayed_connection(&self) -> bool {
        self.connections.values().any(|connection| !connection.is_relayed)
    }

    /// What its connections, but for these, run over where they lead through nobody else; TCP, if some do and some do not.
    pub(super) fn carrier_without(&self, without: &[ConnectionId]) -> Option<Carrier> {
        let is_own = |(id, known): &(&ConnectionId, &Connection)| !known.is_relayed && !without.contains(id);
        let carriers = self.connections.iter().filter(is_own).map(|(_, known)| known.carrier);
        carriers.min_by_key(|carrier| *carrier == Carrier::Quic)
    }

    /// The connections that a new one takes the place of.
    pub(super) fn superseded_by(&self, new: &ConnectedPoint, now: Instant) -> Vec<ConnectionId> {
        let is_superseded = |known: &Connection| match new {
            _ if new.is_relayed() => false,
            // Nobody dials a peer to which it has a connection: the other end has given up those from before.
            ConnectedPoint::Listener { .. } => {
                known.is_relayed || now.duration_since(known.since) > DIALED_AT_ONCE
            }
            ConnectedPoint::Dialer { .. } => known.is_relayed,
        };
        self.connections.iter().filter(|(_, known)| is_superseded(known)).map(|(id, _)| *id).collect()
    }

    /// Its circuits.
    pub(super) fn circuits(&self) -> Vec<ConnectionId> {
        let circuits = self.connections.iter().filter(|(_, connection)| connection.is_relayed);
        circuits.map(|(id, _)| *id).collect()
    }

    /// There is only a circuit, and it is time to look for a better way. Where that may be.
    pub(super) fn take_relay_upgrade(&mut self, now: Instant) -> Option<Vec<Multiaddr>> {
        if self.connections.is_empty() || self.has_unrelayed_connection() || now < self.relay_upgrade.due {
            return None;
        }
        let addresses: Vec<_> =
            self.addresses.iter().filter(|address| !is_relayed(address)).cloned().collect();
        if addresses.is_empty() {
            // They are about to be told.
            return None;
        }
        self.relay_upgrade.due = now + self.relay_upgrade.pause;
        self.relay_upgrade.pause = (2 * self.relay_upgrade.pause).min(RELAY_UPGRADE_PAUSE_MAX);
        Some(addresses)
    }

    /// The first circuit is there: a better way is looked for from now on.
    pub(super) fn begin_relay_upgrade(&mut self, now: Instant) {
        self.relay_upgrade = RelayUpgrade { due: now, pause: RELAY_UPGRADE_PAUSE };
    }

    /// What to say when opening a lane.
    pub(super) fn open_request(&self) -> OpenRequest {
        OpenRequest { session: self.mine, known: self.link.as_ref().map(|link| link.theirs()) }
    }

    /// Whether an opening is meant for us as we are now, and not for an earlier life of the link.
    pub(super) fn is_current(&self, opening: OpenRequest) -> bool {
        opening.known.is_none_or(|known| known == self.mine)
    }

    /// Whether a session is of a process that another one with the same identity has taken the place of.
    pub(super) fn is_duplicate(&self, theirs: SessionId) -> bool {
        theirs.start < self.last_start
    }

    /// Whether an answer to an opening that named `known` may tell something new. If another session was learnt while it
    /// was under way, nobody can say which of them is the later one.
    pub(super) fn is_response_current(&self, known: Option<SessionId>, answered: SessionId) -> bool {
        let current = self.link.as_ref().map(|link| link.theirs());
        current == known || current == Some(answered)
    }

    /// Whether the other end has no process any more: it has no connection, and a machine that it was seen on says that
    /// nobody listens where it did. Where TCP did not get through before, that may be what keeps it from getting through.
    pub(super) fn is_gone(&self, refused: &[Multiaddr]) -> bool {
        let is_known = |address: &Multiaddr| ip_of(address).is_some_and(|ip| self.ips.contains(&ip));
        !self.has_usable_connection()
            && self.carriers.likely() == Carrier::Tcp
            && refused.iter().any(is_known)
    }

    /// Takes note of where it is.
    pub(super) fn note_ip(&mut self, address: &Multiaddr) {
        self.note_host(address);
        let Some(ip) = ip_of(address).filter(|ip| !self.ips.contains(ip)) else { return };
        self.ips.truncate(IPS_MAX - 1);
        self.ips.insert(0, ip);
    }

    /// Takes note of where a direct lane to it may lead.
    pub(super) fn note_host(&self, address: &Multiaddr) {
        if let Some(host) = host_of(address) {
            self.direct.note_host(host);
        }
    }

    /// Takes in the other end's session.
    pub(super) fn note_session(&mut self, theirs: SessionId, now: Instant) -> SessionChange {
        if let Some(link) = self.link.as_ref().filter(|link| link.theirs() == theirs) {
            return SessionChange::Same(Arc::clone(link));
        }
        self.last_start = self.last_start.max(theirs.start);
        let new = Arc::new(Link::new(self.peer, theirs));
        new.set_relayed(!self.connections.is_empty() && !self.has_unrelayed_connection());
        self.outage =
            Some(Outage { since: now, reason: "no answer".to_owned(), was_up: false, is_told: false });
        match self.link.replace(Arc::clone(&new)) {
            None => SessionChange::New(new),
            Some(old) => {
                old.close();
                SessionChange::Replaced { old, new }
            }
        }
    }

    /// Takes the link away for good; what the other end says about it is no longer understood.
    pub(super) fn take_link(&mut self) -> Option<Arc<Link>> {
        let link = self.link.take()?;
        self.mine = SessionId::draw(self.mine.start);
        self.outage = None;
        Some(link)
    }

    /// The outgoing lane is gone. Remembers the first reason, which is the cause of those that follow.
    pub(super) fn note_outage(&mut self, reason: String, now: Instant) {
        if self.link.is_some() && self.outage.is_none() {
            self.outage = Some(Outage { since: now, reason, was_up: true, is_told: false });
        }
    }

    pub(super) fn stop_outgoing(&mut self) {
        let idle = Outgoing::Idle { not_before: Instant::now() };
        if let Outgoing::Running { task, .. } = std::mem::replace(&mut self.outgoing, idle) {
            task.abort();
        }
    }

    /// Why the link is to be given up now, if it is.
    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let outage = self.outage.as_ref().filter(|_| self.link.is_some())?;
        let patience = match (self.has_usable_connection(), self.carriers.likely()) {
            (false, Carrier::Tcp) => RECONNECT_MAX,
            (false, Carrier::Quic) => RECONNECT_OVER_QUIC_MAX,
            (true, _) => ANSWER_MAX,
        };
        if now < outage.since + patience {
            return None;
        }
        Some(if !self.has_usable_connection() {
            outage.reason.clone()
        } else {
            format!("no answer for {} s", ANSWER_MAX.as_secs())
        })
    }

    pub(super) fn remember(&mut self, address: Multiaddr) {
        remember(&mut self.addresses, address);
    }

    /// Whether nothing would be lost if this were forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.link.is_none() && self.closing_link.is_none() && self.connections.is_empty()
    }
}

/// A link does not wait for longer than this until the other end has said who it is.
const IDENTIFIED_AFTER_MAX: Duration = Duration::from_secs(1);
/// Before the second attempt to do without a relay; it grows.
const RELAY_UPGRADE_PAUSE: Duration = Duration::from_secs(2);
const RELAY_UPGRADE_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Machines that are remembered of one peer.
const IPS_MAX: usize = 4;
/// Two connections within this time come from dialing each other at once, and both stay.
const DIALED_AT_ONCE: Duration = Duration::from_secs(3);
/// A link without a connection is given up after this.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// As above, over QUIC: an attempt that nobody answers takes 5 s, and no refusal ends it sooner; after it TCP is tried as well.
const RECONNECT_OVER_QUIC_MAX: Duration = Duration::from_secs(7);
/// A link with a connection on which no lane gets an answer is given up after this.
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(now: Instant) -> RemotePeer {
        RemotePeer::new(PeerId([1; 32]), Incarnation(1), now)
    }

    fn connection(since: Instant, is_relayed: bool) -> Connection {
        Connection { since, carrier: Carrier::Tcp, is_relayed, dialed: None }
    }

    #[test]
    fn a_link_that_carries_tensors_does_not_go_on_over_a_circuit() {
        let now = Instant::now();
        let mut remote = remote(now);
        remote.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
        let SessionChange::New(link) = remote.note_session(draw(), now) else { panic!("the first") };
        assert!(!link.is_relayed() && remote.has_usable_connection());
        remote.connections.clear();
        remote.connections.insert(ConnectionId::new_unchecked(2), connection(now, true));
        assert!(!remote.has_usable_connection());
        remote.outage = None;
        remote.note_outage("connection reset".to_owned(), now);
        assert_eq!(remote.overdue(now + RECONNECT_MAX).as_deref(), Some("connection reset"));
        remote.take_link().unwrap();
        let SessionChange::New(link) = remote.note_session(draw(), now) else { panic!("another one") };
        assert!(link.is_relayed() && remote.has_usable_connection() && !remote.has_unrelayed_connection());
    }

    #[test]
    fn a_better_way_than_a_circuit_is_looked_for_ever_more_rarely() {
        let now = Instant::now();
        let mut remote = remote(now);
        let address: Multiaddr = "/ip4/10.0.0.7/tcp/9".parse().unwrap();
        remote.remember(address.clone());
        assert_eq!(remote.take_relay_upgrade(now), None, "there is no circuit");
        remote.connections.insert(ConnectionId::new_unchecked(2), connection(now, true));
        assert_eq!(remote.take_relay_upgrade(now), Some(vec![address]));
        assert_eq!(remote.take_relay_upgrade(now), None);
        assert!(remote.take_relay_upgrade(now + RELAY_UPGRADE_PAUSE).is_some());
        assert_eq!(remote.take_relay_upgrade(now + 2 * RELAY_UPGRADE_PAUSE), None);
        remote.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
        assert_eq!(remote.take_relay_upgrade(now + RELAY_UPGRADE_PAUSE_MAX), None);
    }

    fn draw() -> SessionId {
        SessionId::draw(Incarnation(1))
    }

    #[test]
    fn of_two_processes_the_later_one_is_the_peer() {
        let now = Instant::now();
        let mut remote = remote(now);
        let [first, second] = [1, 2].map(|start| SessionId::draw(Incarnation(start)));
        remote.note_session(first, now);
        assert!(!remote.is_duplicate(first) && !remote.is_duplicate(second));
        assert!(matches!(remote.note_session(second, now), SessionChange::Replaced { .. }));
        assert!(remote.is_duplicate(first));
        remote.take_link().unwrap();
        assert!(remote.is_duplicate(first), "the later one may come back");
    }

    #[test]
    fn a_link_lasts_as_long_as_both_sessions() {
        let now = Instant::now();
        let mut remote = remote(now);
        let (first, second) = (draw(), draw());
        assert!(matches!(remote.note_session(first, now), SessionChange::New(_)));
        let mine = remote.mine;
        assert!(matches!(remote.note_session(first, now), SessionChange::Same(_)));
        assert!(matches!(remote.note_session(second, now), SessionChange::Replaced { .. }));
        assert_eq!(remote.mine, mine, "only our own giving up changes our session");
        remote.take_link().unwrap();
        assert_ne!(remote.mine, mine);
    }

    #[test]
    fn an_opening_for_an_earlier_life_is_recognized() {
        let now = Instant::now();
        let mut remote = remote(now);
        let theirs = draw();
        let opening = |known| OpenRequest { session: theirs, known };
        assert!(remote.is_current(opening(None)));
        assert!(remote.is_current(opening(Some(remote.mine))));
        let before = remote.mine;
        remote.note_session(theirs, now);
        remote.take_link();
        assert!(!remote.is_current(opening(Some(before))));
    }

    #[test]
    fn an_outage_ends_the_link_sooner_without_a_connection() {
        let now = Instant::now();
        let mut remote = remote(now);
        remote.note_session(draw(), now);
        remote.outage = None;
        assert_eq!(remote.overdue(now + ANSWER_MAX), None);
        remote.note_outage("connection reset".to_owned(), now);
        remote.note_outage("connection refused".to_owned(), now);
        assert_eq!(remote.overdue(now), None);
        assert_eq!(remote.overdue(now + RECONNECT_MAX).as_deref(), Some("connection reset"));
        remote.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
        assert_eq!(remote.overdue(now + RECONNECT_MAX), None);
        assert_eq!(remote.overdue(now + ANSWER_MAX).as_deref(), Some("no answer for 10 s"));
    }

    #[test]
    fn an_answer_that_was_overtaken_tells_nothing() {
        let now = Instant::now();
        let mut remote = remote(now);
        let (first, second) = (draw(), draw());
        assert!(remote.is_response_current(None, first));
        remote.note_session(first, now);
        assert!(remote.is_response_current(None, first), "both have said the same");
        assert!(remote.is_response_current(Some(first), second), "it began anew");
        remote.note_session(second, now);
        assert!(!remote.is_response_current(Some(first), first), "said before it began anew");
    }

    #[test]
    fn one_is_gone_if_its_own_machine_says_that_nobody_listens() {
        let now = Instant::now();
        let mut remote = remote(now);
        let refused: Vec<Multiaddr> = vec!["/ip4/10.0.0.7/tcp/9".parse().unwrap()];
        assert!(!remote.is_gone(&refused), "another machine may have that address");
        remote.note_ip(&"/ip4/10.0.0.7/tcp/40000".parse().unwrap());
        assert!(remote.is_gone(&refused));
        remote.carriers.last = Some(Carrier::Quic);
        assert!(!remote.is_gone(&refused), "what keeps TCP out may say so as well");
        remote.carriers.out = Some(Carrier::Tcp);
        assert!(
            remote.is_gone(&refused),
            "TCP gets through from here, whatever the last connection ran over"
        );
        remote.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
        assert!(!remote.is_gone(&refused));
    }

    #[test]
    fn a_link_over_quic_is_given_more_time_for_its_next_connection() {
        let now = Instant::now();
        let mut remote = remote(now);
        remote.note_session(draw(), now);
        remote.carriers = CarrierHistory { last: Some(Carrier::Tcp), out: Some(Carrier::Quic) };
        assert_eq!(remote.overdue(now + RECONNECT_MAX), None);
        assert!(remote.overdue(now + RECONNECT_OVER_QUIC_MAX).is_some());
    }
}
