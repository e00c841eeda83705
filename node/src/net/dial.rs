//! Dialing: whom to try, where, when to try again, and when to tell the user that it does not work.
//!
//! Like someone who must reach people by telephone: some names are on a list until crossed out, some numbers came without
//! a name, some people were cut off in the middle and are called back for a while. This is the list; it makes no calls.
//!
//! # How it works
//! An attempt is made over TCP, and where that does not get through, at once another one over QUIC; the other way round for one
//! that was last reached over QUIC, and for one that was not reached yet when the last one was. The two are one *round*: pauses
//! are between rounds, and the user hears of an address once for both. Where an answer came that the other way would give as well
//! (another secret, another peer), there is no second attempt. And at first TCP is believed: one that refuses mostly does not
//! listen yet, and one that was there a moment ago is mostly cut off from everything.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use libp2p::core::upgrade::{NegotiationError, ProtocolError};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId, TransportError, dns, noise};
use peergrad_protocol::limits::ADDRESSES_MAX;
use peergrad_protocol::message::Contact;
use tokio::time::Instant;

use super::identity::to_libp2p;
use super::link::words_of;
use super::listen::DEFAULT_PORT;
use super::notice::{DialTrouble, Notice};
use super::proof::ProofError;
use super::quic::{Carrier, over_quic, over_tcp};

/// A peer to try when joining.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// From an invite: who, and where.
    Contact(Contact),
    /// An address alone; whoever answers there with the run's secret will do.
    Address(Multiaddr),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address: expected HOST, HOST:PORT or /ip4/10.0.0.7/tcp/4747")]
pub struct NotAnAddress(String);

/// `HOST`, `HOST:PORT`, or a multiaddress with or without the peer's id.
impl FromStr for Bootstrap {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let refused = || NotAnAddress(text.to_owned());
        if text.starts_with('/') {
            return text.parse().map(Self::Address).map_err(|_| refused());
        }
        if let Ok(socket) = text.parse::<std::net::SocketAddr>() {
            return Ok(Self::Address(super::listen::to_multiaddr(socket.ip(), socket.port())));
        }
        if let Ok(ip) = text.parse::<std::net::IpAddr>() {
            return Ok(Self::Address(super::listen::to_multiaddr(ip, DEFAULT_PORT)));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| refused())?),
            None => (text, DEFAULT_PORT),
        };
        let is_host = |letter: char| letter.is_alphanumeric() || "-._".contains(letter);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(refused());
        }
        Ok(Self::Address(Multiaddr::empty().with(Protocol::Dns(host.into())).with(Protocol::Tcp(port))))
    }
}

/// Everyone to be reached.
#[derive(Debug, Default)]
pub(super) struct Dialing {
    targets: Vec<Target>,
    /// What the last one who was dialed was reached over. What keeps TCP out is mostly near us, or everywhere.
    habit: Carrier,
}

#[derive(Debug)]
struct Target {
    /// Who; `None` for an address that came alone, until someone has answered there.
    peer: Option<PeerId>,
    addresses: Vec<Multiaddr>,
    cause: Cause,
    state: State,
    /// What it was last reached over, and is tried over first; `None` if it was not reached yet: then what others were.
    carrier: Option<Carrier>,
    /// What the attempt under way goes over, or the last one did.
    trying: Carrier,
    /// What came of the first attempt of the round, if the second is due or under way.
    first: Option<First>,
    /// Rounds in a row.
    failures: u32,
    complaints: BTreeMap<Multiaddr, Complaint>,
}

/// The first attempt of a round, which has failed.
#[derive(Debug)]
struct First {
    carrier: Carrier,
    troubles: Vec<(Multiaddr, DialTrouble)>,
    failed_at: Instant,
}

/// Why somebody is dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// It was seen on the local network: tried for a while, without a word.
    Neighbour,
    /// It was cut off: called back until the link is given up.
    CutOff,
    /// The node wants it: tried until told otherwise. Others may be about to leave it out, so the user hears of failures
    /// only if they go on.
    Wanted,
    /// The user has named it: tried until told otherwise, and the user hears of each kind of failure at once.
    Named,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting { due: Instant },
    Trying { attempt: ConnectionId },
    Connected,
}

/// The last thing told about an address.
#[derive(Debug)]
struct Complaint {
    trouble: DialTrouble,
    told_at: Instant,
    pause: Duration,
}

impl Dialing {
    /// Keeps trying to reach this peer until [`forget`](Self::forget); the next attempt is due now.
    pub(super) fn want(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, now: Instant) {
        self.add(Some(peer), addresses, Cause::Wanted, now);
    }

    /// As [`want`](Self::want), from what the user gave.
    pub(super) fn want_bootstrap(&mut self, bootstrap: Bootstrap, now: Instant) {
        match bootstrap {
            Bootstrap::Contact(contact) => {
                if let Some(peer) = to_libp2p(contact.peer) {
                    self.add(Some(peer), parse_all(&contact.addresses), Cause::Named, now);
                }
            }
            Bootstrap::Address(mut address) => {
                let peer = match address.iter().last() {
                    Some(Protocol::P2p(peer)) => {
                        address.pop();
                        Some(peer)
                    }
                    _ => None,
                };
                self.add(peer, vec![address], Cause::Named, now);
            }
        }
    }

    /// Tries a peer that was seen on the local network.
    pub(super) fn try_neighbour(&mut self, peer: PeerId, address: Multiaddr, now: Instant) {
        self.add(Some(peer), vec![without_peer(address)], Cause::Neighbour, now);
    }

    /// The connection to `peer`, over this carrier, is lost: dials it, from `due` on.
    pub(super) fn call_back(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        carrier: Carrier,
        due: Instant,
    ) {
        self.add(Some(peer), addresses, Cause::CutOff, due);
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            target.carrier = Some(carrier);
        }
        self.wait_again(peer, due);
    }

    /// A connection without a link is gone: if the peer is wanted, it is dialed again from `due` on.
    pub(super) fn wait_again(&mut self, peer: PeerId, due: Instant) {
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            if target.state == State::Connected {
                target.state = State::Waiting { due };
            }
        }
    }

    /// Stops calling back someone who was cut off; whoever is wanted is still tried.
    pub(super) fn give_up_calling_back(&mut self, peer: PeerId) {
        self.targets.retain(|target| target.peer != Some(peer) || target.cause >= Cause::Wanted);
    }

    /// Stops trying.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.targets.retain(|target| target.peer != Some(peer));
    }

    /// Stops trying everyone whom the node or the user wants, but for those of whom `is_wanted` is true.
    pub(super) fn keep_wanted(&mut self, is_wanted: impl Fn(&PeerId) -> bool) {
        self.targets
            .retain(|target| target.cause < Cause::Wanted || target.peer.as_ref().is_some_and(&is_wanted));
    }

    /// The attempts to make now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<DialOpts> {
        let is_due = |target: &&mut Target| matches!(target.state, State::Waiting { due } if due <= now);
        let due = self.targets.iter_mut().filter(is_due);
        due.map(|target| {
            let options = target.options(self.habit);
            target.state = State::Trying { attempt: options.connection_id() };
            options
        })
        .collect()
    }

    /// A connection is there, perhaps from one of the attempts.
    pub(super) fn connected(&mut self, peer: PeerId, connection: ConnectionId, carrier: Carrier) {
        let attempt = State::Trying { attempt: connection };
        if self.targets.iter().any(|target| target.state == attempt) {
            self.habit = carrier;
        }
        let is_answer = |target: &Target| target.peer.is_none() && target.state == attempt;
        if let Some(index) = self.targets.iter().position(is_answer) {
            // The address has found its peer.
            let answered = self.targets.swap_remove(index);
            self.add(Some(peer), answered.addresses, answered.cause, Instant::now());
        }
        self.targets.retain(|target| target.peer != Some(peer) || target.cause != Cause::CutOff);
        self.mark_connected(peer, carrier);
    }

    /// A connection to `peer` is there already, over this carrier.
    pub(super) fn mark_connected(&mut self, peer: PeerId, carrier: Carrier) {
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            target.state = State::Connected;
            target.carrier = Some(carrier);
            target.first = None;
            target.failures = 0;
            target.complaints.clear();
            // It was reached where the user said. From now on the node looks after it.
            target.cause = target.cause.min(Cause::Wanted);
        }
    }

    /// Whose attempt this is, if that is known.
    pub(super) fn whose(&self, attempt: ConnectionId) -> Option<PeerId> {
        self.targets.iter().find(|target| target.state == State::Trying { attempt })?.peer
    }

    /// An attempt failed; returns what the user should hear.
    pub(super) fn failed(&mut self, attempt: ConnectionId, error: &DialError, now: Instant) -> Vec<Notice> {
        let state = State::Trying { attempt };
        let Some(index) = self.targets.iter().position(|target| target.state == state) else {
            return Vec::new();
        };
        let target = &mut self.targets[index];
        let Some(troubles) = target.end_attempt(error, now) else {
            // Whoever named an address does not have to wait for the second attempt to hear what is wrong with it.
            return match (target.cause, target.failures, &target.first) {
                (Cause::Named, 0, Some(First { carrier: Carrier::Tcp, troubles, .. })) => {
                    target.complain_of(troubles.clone(), now)
                }
                _ => Vec::new(),
            };
        };
        match target.cause {
            Cause::Wanted if target.failures < WANTED_FAILURES_TOLD => Vec::new(),
            Cause::Wanted | Cause::Named => {
                let notices = target.complain_of(troubles, now);
                if matches!(error, DialError::LocalPeerId { .. }) {
                    self.targets.swap_remove(index);
                }
                notices
            }
            Cause::Neighbour => {
                let is_stranger =
                    |(_, trouble): &_| matches!(trouble, DialTrouble::WrongSecret | DialTrouble::NotAPeer);
                if target.failures >= NEIGHBOUR_FAILURES_MAX || troubles.iter().any(is_stranger) {
                    self.targets.swap_remove(index);
                }
                Vec::new()
            }
            Cause::CutOff => Vec::new(),
        }
    }

    fn add(&mut self, peer: Option<PeerId>, addresses: Vec<Multiaddr>, cause: Cause, due: Instant) {
        let is_same = |target: &&mut Target| match peer {
            Some(peer) => target.peer == Some(peer),
            None => target.peer.is_none() && target.addresses == addresses,
        };
        if let Some(target) = self.targets.iter_mut().find(is_same) {
            target.cause = target.cause.max(cause);
            if let State::Waiting { due: planned } = &mut target.state
                && cause > Cause::Neighbour
            {
                *planned = due.min(*planned);
            }
            for address in addresses {
                remember(&mut target.addresses, address);
            }
            return;
        }
        self.targets.push(Target {
            peer,
            addresses,
            cause,
            state: State::Waiting { due },
            carrier: None,
            trying: Carrier::default(),
            first: None,
            failures: 0,
            complaints: BTreeMap::new(),
        });
    }
}

impl Target {
    /// Always from a fresh port: from the listening port, two peers that dial each other at once, or one that dials again
    /// at once, would meet their own earlier connection.
    fn options(&mut self, habit: Carrier) -> DialOpts {
        let addresses = match &self.first {
            Some(first) => {
                self.trying = first.carrier.other();
                self.second_addresses(first)
            }
            None => {
                let wanted = self.carrier.unwrap_or(habit);
                let has_any = !self.addresses_over(wanted).is_empty();
                self.trying = if has_any { wanted } else { wanted.other() };
                self.addresses_over(self.trying)
            }
        };
        match (self.peer, addresses.as_slice()) {
            (None, [address, ..]) => {
                DialOpts::unknown_peer_id().address(address.clone()).allocate_new_port().build()
            }
            (None, []) => unreachable!("a target without a peer is made from an address"),
            (Some(peer), _) => DialOpts::peer_id(peer).addresses(addresses).allocate_new_port().build(),
        }
    }

    /// Where to try it over this carrier. Over QUIC that follows from where it is over TCP, but for addresses that somebody gave.
    fn addresses_over(&self, carrier: Carrier) -> Vec<Multiaddr> {
        let mut found = Vec::new();
        for address in &self.addresses {
            let address = match (carrier, Carrier::of(address)) {
                (Carrier::Quic, Carrier::Tcp) => over_quic(address),
                (wanted, given) => (wanted == given).then(|| address.clone()),
            };
            found.extend(address.filter(|address| !found.contains(address)));
        }
        found
    }

    /// Where to try it over the other carrier, after a first attempt that came to nothing.
    fn second_addresses(&self, first: &First) -> Vec<Multiaddr> {
        let is_settled = |address: &Multiaddr| {
            let trouble = first.troubles.iter().find(|(at, _)| *at == self.as_given(address));
            trouble.is_some_and(|(_, trouble)| self.failures < self.rounds_believed(first.carrier, trouble))
        };
        let mut addresses = self.addresses_over(first.carrier.other());
        addresses.retain(|address| !is_settled(address));
        addresses
    }

    /// For how many rounds in a row this trouble is no reason to try the other carrier.
    fn rounds_believed(&self, carrier: Carrier, trouble: &DialTrouble) -> u32 {
        match (carrier, trouble) {
            // TCP is asked in any case: a router may send the two to different machines.
            (Carrier::Quic, _) => 0,
            (Carrier::Tcp, trouble) if is_final(trouble) => u32::MAX,
            (Carrier::Tcp, DialTrouble::Refused) => REFUSALS_BELIEVED,
            (Carrier::Tcp, _) if self.carrier == Some(Carrier::Tcp) => SILENCES_BELIEVED,
            (Carrier::Tcp, _) => 0,
        }
    }

    /// An address that was dialed, as it was given to us.
    fn as_given(&self, address: &Multiaddr) -> Multiaddr {
        let given = over_tcp(address.clone());
        if self.addresses.contains(&given) { given } else { address.clone() }
    }

    /// An attempt has failed: what came of the round, or nothing if its second attempt is due now.
    fn end_attempt(&mut self, error: &DialError, now: Instant) -> Option<Vec<(Multiaddr, DialTrouble)>> {
        let troubles = self.troubles(error);
        let (first, second) = match self.first.take() {
            Some(first) => (first, troubles),
            None => {
                let first = First { carrier: self.trying, troubles, failed_at: now };
                let may_go_on = match error {
                    DialError::Transport(_) => true,
                    DialError::WrongPeerId { .. } => first.carrier == Carrier::Quic,
                    _ => false,
                };
                let has_second = may_go_on && !self.second_addresses(&first).is_empty();
                if has_second {
                    self.first = Some(first);
                    self.state = State::Waiting { due: now };
                    return None;
                }
                (first, Vec::new())
            }
        };
        self.failures += 1;
        // While the second attempt was under way, time has passed as well.
        self.state = State::Waiting { due: now.max(first.failed_at + pause_after(self.failures)) };
        Some(first.joined_with(second))
    }

    fn troubles(&self, error: &DialError) -> Vec<(Multiaddr, DialTrouble)> {
        let as_given = |address: &Multiaddr| self.as_given(&without_peer(address.clone()));
        let one = |address: &Multiaddr, trouble| vec![(as_given(address), trouble)];
        let everywhere = |words: &str| {
            let trouble = |at: &Multiaddr| (at.clone(), DialTrouble::System(words.to_owned()));
            self.addresses.iter().map(trouble).collect()
        };
        match error {
            DialError::Transport(errors) => {
                errors.iter().map(|(at, error)| (as_given(at), trouble_of(error))).collect()
            }
            DialError::WrongPeerId { obtained, address } => {
                one(address, DialTrouble::OtherPeer { found: *obtained })
            }
            DialError::LocalPeerId { address } => one(address, DialTrouble::Ourselves),
            DialError::Denied { .. } => everywhere("too many connections at once"),
            DialError::Aborted => everywhere("given up"),
            // No address is known yet, or an attempt by other means is under way.
            DialError::NoAddresses | DialError::DialPeerConditionFalse(_) => Vec::new(),
        }
    }

    fn complain_of(&mut self, troubles: Vec<(Multiaddr, DialTrouble)>, now: Instant) -> Vec<Notice> {
        troubles.into_iter().filter_map(|(at, why)| self.complain(at, why, now)).collect()
    }

    /// Once for each address, again when the trouble is another one, and then ever more rarely.
    fn complain(&mut self, address: Multiaddr, trouble: DialTrouble, now: Instant) -> Option<Notice> {
        let pause = match self.complaints.get(&address) {
            Some(last) if last.trouble == trouble && now < last.told_at + last.pause => return None,
            Some(last) if last.trouble == trouble => (last.pause * 2).min(COMPLAINT_PAUSE_MAX),
            _ => COMPLAINT_PAUSE,
        };
        let complaint = Complaint { trouble: trouble.clone(), told_at: now, pause };
        self.complaints.insert(address.clone(), complaint);
        Some(Notice::Unreachable { address, trouble })
    }
}

impl First {
    /// What the user may hear of both attempts: of each address one thing, and that what is final, or else of TCP.
    fn joined_with(self, second: Vec<(Multiaddr, DialTrouble)>) -> Vec<(Multiaddr, DialTrouble)> {
        let (mut joined, others) = match self.carrier {
            Carrier::Tcp => (self.troubles, second),
            Carrier::Quic => (second, self.troubles),
        };
        for (address, trouble) in others {
            match joined.iter_mut().find(|(at, _)| *at == address) {
                Some((_, known)) if is_final(&trouble) => *known = trouble,
                Some(_) => {}
                None => joined.push((address, trouble)),
            }
        }
        joined
    }
}

/// Whether what came over TCP would come of an attempt over QUIC as well.
fn is_final(trouble: &DialTrouble) -> bool {
    match trouble {
        DialTrouble::WrongSecret
        | DialTrouble::NotAPeer
        | DialTrouble::OtherPeer { .. }
        | DialTrouble::Ourselves
        | DialTrouble::Unusable(_) => true,
        DialTrouble::Refused | DialTrouble::System(_) | DialTrouble::HungUp => false,
    }
}

/// The addresses that an attempt has tried, if the machine at each of them says that nobody listens there.
pub(super) fn refused_everywhere(error: &DialError) -> Vec<Multiaddr> {
    let DialError::Transport(errors) = error else { return Vec::new() };
    let is_refused = |(_, error): &(_, TransportError<io::Error>)| trouble_of(error) == DialTrouble::Refused;
    if errors.iter().all(is_refused) {
        errors.iter().map(|(address, _)| without_peer(address.clone())).collect()
    } else {
        Vec::new()
    }
}

/// Adds an address to a list that stays short; the newest push out the oldest.
pub(super) fn remember(addresses: &mut Vec<Multiaddr>, address: Multiaddr) {
    if addresses.contains(&address) {
        return;
    }
    if addresses.len() == ADDRESSES_MAX {
        addresses.remove(0);
    }
    addresses.push(address);
}

/// Addresses that others gave: what cannot be read is left out.
pub(super) fn parse_all(texts: &[String]) -> Vec<Multiaddr> {
    texts.iter().filter_map(|text| text.parse().ok()).map(without_peer).collect()
}

/// The address alone: the peer's id at its end is known anyway.
pub(super) fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

/// Finds out of libp2p's nested errors what the user can do something about.
fn trouble_of(error: &TransportError<io::Error>) -> DialTrouble {
    let error = match error {
        TransportError::MultiaddrNotSupported(_) => {
            return DialTrouble::Unusable(
                "this kind of address is not supported: use /ip4/.../tcp/...".to_owned(),
            );
        }
        TransportError::Other(error) => error,
    };
    let mut words = words_of(error);
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        match cause.downcast_ref::<noise::Error>() {
            // What does not decrypt is invalid data with the reason inside; invalid data without one comes from the
            // negotiation before, which libp2p checks only now. Any other I/O error is the connection's.
            Some(noise::Error::Io(error)) => match (error.kind(), error.get_ref()) {
                (io::ErrorKind::InvalidData, Some(_)) => return DialTrouble::WrongSecret,
                (io::ErrorKind::InvalidData, None) => return DialTrouble::NotAPeer,
                _ => {}
            },
            Some(_) => return DialTrouble::WrongSecret,
            None => {}
        }
        match cause.downcast_ref::<ProofError>() {
            Some(ProofError::OtherSecret) => return DialTrouble::WrongSecret,
            Some(ProofError::NotAPeer) => return DialTrouble::NotAPeer,
            Some(ProofError::Broken(_)) | None => {}
        }
        match cause.downcast_ref::<NegotiationError>() {
            Some(NegotiationError::ProtocolError(ProtocolError::IoError(_))) | None => {}
            Some(_) => return DialTrouble::NotAPeer,
        }
        if cause.is::<libp2p::core::multiaddr::Error>() || cause.is::<dns::ResolveError>() {
            return DialTrouble::Unusable("the name cannot be resolved".to_owned());
        }
        // An I/O error hides what it wraps from `source`.
        next = match cause.downcast_ref::<io::Error>() {
            Some(system) => {
                words = words_of(system);
                system.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static))
            }
            None => {
                words = tidied(&cause.to_string());
                cause.source()
            }
        };
    }
    match words.as_str() {
        // Which of them it is depends on who was faster; told apart, they would be told again and again.
        "connection closed"
        | "connection reset"
        | "connection reset by peer"
        | "Broken pipe"
        | "unexpected end of file" => DialTrouble::HungUp,
        "connection refused" => DialTrouble::Refused,
        _ => DialTrouble::System(words),
    }
}

/// Some wrappers hide the system's error and leave only its text.
fn tidied(text: &str) -> String {
    match text.split_once(" (os error").map_or(text, |(words, _)| words) {
        "Timeout has been reached" | "Connection timed out" => "timed out".to_owned(),
        words => words.replacen("Connection", "connection", 1),
    }
}

fn pause_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (RETRY_PAUSE * (1 << doublings)).min(RETRY_PAUSE_MAX)
}

const RETRY_PAUSE: Duration = Duration::from_millis(200);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);
const COMPLAINT_PAUSE_MAX: Duration = Duration::from_secs(300);
const NEIGHBOUR_FAILURES_MAX: u32 = 5;
/// Rounds in a row in which a refusal is no reason to try QUIC, which would take seconds in which nobody asks again whether
/// somebody listens by now. A firewall refuses every time.
const REFUSALS_BELIEVED: u32 = 3;
/// The same for silence, where there was an answer over TCP before.
const SILENCES_BELIEVED: u32 = 1;
/// Rounds that the node wanted and that failed, before the user hears of it: by then the others had time to leave out
/// one that is gone.
const WANTED_FAILURES_TOLD: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_may_type_addresses_in_several_ways() {
        let address = |text: &str| match text.parse() {
            Ok(Bootstrap::Address(address)) => address.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(address("10.0.0.7"), "/ip4/10.0.0.7/tcp/4747");
        assert_eq!(address("10.0.0.7:9"), "/ip4/10.0.0.7/tcp/9");
        assert_eq!(address("[::1]:9"), "/ip6/::1/tcp/9");
        assert_eq!(address("lab-3.example.org"), "/dns/lab-3.example.org/tcp/4747");
        assert_eq!(address("/ip4/10.0.0.7/tcp/9"), "/ip4/10.0.0.7/tcp/9");
        for text in ["", "a b", "host:port", "/ip4/10.0.0.7/tpc/9", "host:99999"] {
            assert!(text.parse::<Bootstrap>().is_err(), "{text}");
        }
    }

    #[test]
    fn pauses_between_attempts_double_up_to_a_limit() {
        let pauses: Vec<_> = (1..8).map(|failures| pause_after(failures).as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn a_trouble_is_told_once_and_then_ever_more_rarely() {
        let mut dialing = Dialing::default();
        let start = Instant::now();
        dialing.want_bootstrap("10.0.0.7".parse().unwrap(), start);
        let mut told_at = Vec::new();
        for second in 0..80 {
            let now = start + Duration::from_secs(second);
            for options in dialing.take_due(now) {
                let address = Multiaddr::empty();
                let refused = TransportError::Other(io::Error::from(io::ErrorKind::ConnectionRefused));
                let error = DialError::Transport(vec![(address, refused)]);
                let notices = dialing.failed(options.connection_id(), &error, now);
                told_at.extend(notices.iter().map(|_| second));
            }
        }
        assert_eq!(told_at.len(), 4, "{told_at:?}");
    }

    fn refusal() -> DialError {
        failure(TCP, io::ErrorKind::ConnectionRefused.into())
    }

    fn failure(address: &str, error: io::Error) -> DialError {
        DialError::Transport(vec![(address.parse().unwrap(), TransportError::Other(error))])
    }

    const TCP: &str = "/ip4/10.0.0.7/tcp/9";
    const QUIC: &str = "/ip4/10.0.0.7/udp/9/quic-v1";

    /// What an attempt goes over; libp2p keeps its addresses to itself, but shows them.
    fn carrier_of(options: &DialOpts) -> Carrier {
        let shown = format!("{options:?}");
        let (over_tcp, over_quic) = (shown.contains(TCP), shown.contains(QUIC));
        assert_ne!(over_tcp, over_quic, "each attempt is over one of both: {shown}");
        if over_quic { Carrier::Quic } else { Carrier::Tcp }
    }

    /// What a test sees of a target whose attempts all fail.
    #[derive(Default)]
    struct Seen {
        /// When it was tried, in milliseconds.
        over_tcp: Vec<u64>,
        over_quic: Vec<u64>,
        told: Vec<String>,
    }

    /// Fails every attempt for so long, as `fail` says.
    fn fail_with(
        dialing: &mut Dialing,
        start: Instant,
        milliseconds: u64,
        fail: impl Fn(Carrier) -> DialError,
    ) -> Seen {
        let mut seen = Seen::default();
        for passed in 0..milliseconds {
            let now = start + Duration::from_millis(passed);
            let mut due = dialing.take_due(now);
            while let Some(options) = due.pop() {
                let carrier = carrier_of(&options);
                match carrier {
                    Carrier::Tcp => seen.over_tcp.push(passed),
                    Carrier::Quic => seen.over_quic.push(passed),
                }
                let notices = dialing.failed(options.connection_id(), &fail(carrier), now);
                seen.told.extend(notices.iter().map(ToString::to_string));
                due.extend(dialing.take_due(now));
            }
        }
        seen
    }

    /// Two connections that time out.
    fn silence(carrier: Carrier) -> DialError {
        let address = if carrier == Carrier::Tcp { TCP } else { QUIC };
        failure(address, io::ErrorKind::TimedOut.into())
    }

    fn addresses() -> Vec<Multiaddr> {
        vec![TCP.parse().unwrap()]
    }

    fn named(address: &str, start: Instant) -> Dialing {
        let mut dialing = Dialing::default();
        dialing.want_bootstrap(address.parse().unwrap(), start);
        dialing
    }

    #[test]
    fn one_that_is_wanted_again_is_tried_at_once_and_one_that_is_forgotten_never() {
        let mut dialing = Dialing::default();
        let (peer, start) = (PeerId::random(), Instant::now());
        dialing.want(peer, addresses(), start);
        let seen = fail_with(&mut dialing, start, 5000, |_| refusal());
        assert_eq!((seen.over_tcp, seen.told.len()), (vec![0, 200, 600, 1400, 3000], 1));
        let later = start + Duration::from_secs(5);
        dialing.want(peer, addresses(), later);
        assert_eq!(fail_with(&mut dialing, later, 1000, |_| refusal()).over_tcp, [0]);
        dialing.keep_wanted(|other| *other != peer);
        assert!(fail_with(&mut dialing, later, 60_000, |_| refusal()).over_tcp.is_empty());
    }

    #[test]
    fn where_tcp_does_not_get_through_quic_is_tried_at_once_and_an_address_is_told_once() {
        let start = Instant::now();
        let seen = fail_with(&mut named(TCP, start), start, 5000, silence);
        assert_eq!(seen.over_tcp, [0, 200, 600, 1400, 3000]);
        assert_eq!(seen.over_quic, seen.over_tcp);
        assert_eq!(seen.told, [format!("{TCP}: timed out; still trying")]);
    }

    #[test]
    fn the_second_attempt_is_part_of_the_pause() {
        let start = Instant::now();
        let mut dialing = named(TCP, start);
        let first = dialing.take_due(start).pop().unwrap();
        dialing.failed(first.connection_id(), &silence(Carrier::Tcp), start);
        let second = dialing.take_due(start).pop().unwrap();
        let later = start + RETRY_PAUSE_MAX;
        dialing.failed(second.connection_id(), &silence(Carrier::Quic), later);
        assert_eq!(carrier_of(&dialing.take_due(later).pop().unwrap()), Carrier::Tcp);
    }

    #[test]
    fn a_refusal_is_believed_at_first() {
        let start = Instant::now();
        let seen = fail_with(&mut named(TCP, start), start, 5000, |carrier| match carrier {
            Carrier::Tcp => refusal(),
            Carrier::Quic => silence(carrier),
        });
        assert_eq!(seen.over_tcp, [0, 200, 600, 1400, 3000]);
        assert_eq!(seen.over_quic, [1400, 3000]);
        assert_eq!(seen.told, [format!("{TCP}: connection refused; still trying")]);
    }

    #[test]
    fn one_that_was_reached_over_tcp_is_tried_over_quic_if_it_stays_away() {
        let (peer, start) = (PeerId::random(), Instant::now());
        let mut dialing = Dialing::default();
        dialing.want(peer, addresses(), start);
        dialing.connected(peer, ConnectionId::new_unchecked(0), Carrier::Tcp);
        dialing.wait_again(peer, start);
        let seen = fail_with(&mut dialing, start, 3000, silence);
        assert_eq!((seen.over_tcp, seen.over_quic), (vec![0, 200, 600, 1400], vec![200, 600, 1400]));
    }

    #[test]
    fn an_answer_that_is_final_is_not_asked_for_twice_and_is_what_the_user_hears() {
        let start = Instant::now();
        let stranger = || io::Error::other(ProofError::OtherSecret);
        let over_tcp = fail_with(&mut named(TCP, start), start, 5000, |_| failure(TCP, stranger()));
        assert_eq!((over_tcp.over_quic.len(), over_tcp.told.len()), (0, 1));
        let over_quic = fail_with(&mut named(TCP, start), start, 5000, |carrier| match carrier {
            Carrier::Tcp => silence(carrier),
            Carrier::Quic => failure(QUIC, stranger()),
        });
        // What came of TCP does not wait for what comes of QUIC.
        assert_eq!(over_quic.told[0], format!("{TCP}: timed out; still trying"));
        assert_eq!(over_quic.told[1..], over_tcp.told);
        assert!(over_tcp.told[0].contains("the secret (or the run) differs"), "{:?}", over_tcp.told);

        // Of two addresses, the one that nobody answers at is tried over QUIC.
        let mut dialing = Dialing::default();
        let other: Multiaddr = "/ip4/10.0.0.8/tcp/9".parse().unwrap();
        dialing.want(PeerId::random(), vec![other.clone(), TCP.parse().unwrap()], start);
        let first = dialing.take_due(start).pop().unwrap();
        let DialError::Transport(mut errors) = silence(Carrier::Tcp) else { unreachable!() };
        errors.push((other, TransportError::Other(stranger())));
        dialing.failed(first.connection_id(), &DialError::Transport(errors), start);
        let second = format!("{:?}", dialing.take_due(start).pop().unwrap());
        assert!(second.contains(QUIC) && !second.contains("10.0.0.8"), "{second}");
    }

    /// A router may send the two to different machines.
    #[test]
    fn another_peer_that_answers_over_quic_is_no_reason_not_to_try_tcp() {
        let (peer, start) = (PeerId::random(), Instant::now());
        let mut dialing = Dialing::default();
        dialing.want(peer, addresses(), start);
        dialing.connected(peer, ConnectionId::new_unchecked(0), Carrier::Quic);
        dialing.wait_again(peer, start);
        let first = dialing.take_due(start).pop().unwrap();
        assert_eq!(carrier_of(&first), Carrier::Quic);
        let error =
            DialError::WrongPeerId { obtained: libp2p::PeerId::random(), address: QUIC.parse().unwrap() };
        dialing.failed(first.connection_id(), &error, start);
        assert_eq!(carrier_of(&dialing.take_due(start).pop().unwrap()), Carrier::Tcp);
    }

    #[test]
    fn one_that_was_reached_over_quic_is_tried_there_first() {
        let start = Instant::now();
        let (peer, connection) = (PeerId::random(), ConnectionId::new_unchecked(0));
        let mut wanted = Dialing::default();
        wanted.want(peer, addresses(), start);
        wanted.connected(peer, connection, Carrier::Quic);
        wanted.wait_again(peer, start);
        let mut cut_off = Dialing::default();
        cut_off.call_back(peer, addresses(), Carrier::Quic, start);
        for mut dialing in [wanted, cut_off] {
            let first = dialing.take_due(start).pop().unwrap();
            assert_eq!(carrier_of(&first), Carrier::Quic);
            dialing.failed(first.connection_id(), &silence(Carrier::Quic), start);
            let second = dialing.take_due(start).pop().unwrap();
            assert_eq!(carrier_of(&second), Carrier::Tcp);
            assert!(dialing.failed(second.connection_id(), &refusal(), start).is_empty());
            assert!(dialing.take_due(start).is_empty(), "the pause comes after both");
            dialing.call_back(peer, addresses(), Carrier::Tcp, start);
            assert_eq!(carrier_of(&dialing.take_due(start).pop().unwrap()), Carrier::Tcp);
        }
    }

    #[test]
    fn where_one_was_reached_over_quic_others_are_tried_there_first() {
        let start = Instant::now();
        let mut dialing = named(TCP, start);
        let first = dialing.take_due(start).pop().unwrap();
        dialing.failed(first.connection_id(), &silence(Carrier::Tcp), start);
        let second = dialing.take_due(start).pop().unwrap();
        dialing.connected(PeerId::random(), second.connection_id(), Carrier::Quic);
        dialing.want(PeerId::random(), addresses(), start);
        assert_eq!(carrier_of(&dialing.take_due(start).pop().unwrap()), Carrier::Quic);

        // One who has come by itself says nothing about the way from here.
        let mut dialing = Dialing::default();
        dialing.connected(PeerId::random(), ConnectionId::new_unchecked(0), Carrier::Quic);
        dialing.want(PeerId::random(), addresses(), start);
        assert_eq!(carrier_of(&dialing.take_due(start).pop().unwrap()), Carrier::Tcp);
    }

    #[test]
    fn an_address_over_quic_that_the_user_gives_is_used_as_it_is() {
        let start = Instant::now();
        let seen = fail_with(&mut named(QUIC, start), start, 1000, silence);
        assert_eq!((seen.over_tcp.len(), seen.over_quic), (0, vec![0, 200, 600]));
        assert_eq!(seen.told, [format!("{QUIC}: timed out; still trying")]);
    }

    #[test]
    fn only_a_refusal_at_every_address_says_that_nobody_is_there() {
        assert_eq!(refused_everywhere(&refusal()).len(), 1);
        let DialError::Transport(mut errors) = refusal() else { unreachable!() };
        let silent = TransportError::Other(io::Error::from(io::ErrorKind::TimedOut));
        errors.push(("/ip4/10.0.0.8/tcp/9".parse().unwrap(), silent));
        assert!(refused_everywhere(&DialError::Transport(errors)).is_empty());
    }
}
