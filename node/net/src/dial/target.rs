//! A dial target: one peer or address to reach, where to try it next and over which carrier, and what to report.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::failure::{DialFailure, failure_of, is_final};
use super::{CarrierHistory, OwnAddresses};
use crate::address::{Carrier, is_relayed, over_quic, over_tcp, remember, without_peer};
use crate::identity::from_libp2p;

#[derive(Debug)]
pub(super) struct DialTarget {
    pub(super) aim: DialAim,
    pub(super) reason: DialReason,
    pub(super) state: TargetState,
    /// What is known of the carriers to this target.
    pub(super) carriers: CarrierHistory,
    /// The carrier of the current attempt, or of the last one.
    trying: Carrier,
    /// The failed first attempt of the round, if the second is due or under way.
    pub(super) first: Option<FirstAttempt>,
    /// Rounds that have failed in a row.
    pub(super) failures: u32,
    reported: BTreeMap<Multiaddr, ReportedFailure>,
    /// When the last round failed; `None` before the first failure.
    failed_at: Option<Instant>,
}

/// What is dialed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DialAim {
    /// This peer, at any of these addresses or where other peers say that it is.
    Peer { id: PeerId, addresses: Vec<Multiaddr> },
    /// Any peer at this address. Once a peer has answered, that peer is the aim.
    Address(Multiaddr),
}

/// A failure to report to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedAddress {
    /// The peer that is looked for there; `None` where only the address is known.
    pub(crate) peer: Option<peergrad_protocol::PeerId>,
    /// The address, as it was given to this peer.
    pub(crate) address: Multiaddr,
    /// Why it could not be reached.
    pub(crate) trouble: DialFailure,
}

/// A peer that is dialed repeatedly, and was reported to the user as unreachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The peer; `None` where only an address is known.
    pub peer: Option<peergrad_protocol::PeerId>,
    /// The address that is tried, or one of several.
    pub address: Multiaddr,
    /// Why it could not be reached.
    pub trouble: DialFailure,
    /// How many rounds have failed in a row.
    pub tries: u32,
    /// The time since the last round failed.
    pub since_last: Duration,
}

/// The first attempt of a round, which has failed.
#[derive(Debug)]
pub(super) struct FirstAttempt {
    pub(super) carrier: Carrier,
    pub(super) troubles: Vec<(Multiaddr, DialFailure)>,
    failed_at: Instant,
}

/// Why a target is dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DialReason {
    /// It was seen on the local network. It is tried for a while, and the user hears of no failure.
    Mdns,
    /// Its connection was lost. It is dialed until the link is given up.
    Reconnect,
    /// The node wants it. It is dialed until the node stops wanting it. Other members may be about to remove it, so the user
    /// hears only of failures that go on.
    Wanted,
    /// The user has named it. It is dialed until the user stops, and the user hears of each kind of failure at once.
    Named,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetState {
    Waiting { due: Instant },
    Trying { attempt: ConnectionId },
    Connected,
}

/// The last failure of an address that the user was told.
#[derive(Debug)]
struct ReportedFailure {
    trouble: DialFailure,
    told_at: Instant,
    pause: Duration,
}

impl DialAim {
    /// The peer, or any peer at this address if `peer` is `None`.
    pub(super) fn at(peer: Option<PeerId>, address: Multiaddr) -> Self {
        match peer {
            Some(id) => Self::Peer { id, addresses: vec![address] },
            None => Self::Address(address),
        }
    }

    /// The peer; `None` for an address at which any peer will do.
    pub(super) fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Peer { id, .. } => Some(*id),
            Self::Address(_) => None,
        }
    }

    /// The addresses at which to dial.
    pub(super) fn addresses(&self) -> &[Multiaddr] {
        match self {
            Self::Peer { addresses, .. } => addresses,
            Self::Address(address) => std::slice::from_ref(address),
        }
    }

    /// Whether the other aim is the same peer, or the same address.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Peer { id, .. }, Self::Peer { id: other, .. }) => id == other,
            _ => self == other,
        }
    }

    /// Remembers further addresses of the peer.
    pub(super) fn learn(&mut self, others: &[Multiaddr]) {
        if let Self::Peer { addresses, .. } = self {
            others.iter().for_each(|address| remember(addresses, address.clone()));
        }
    }
}

impl DialTarget {
    pub(super) fn new(aim: DialAim, reason: DialReason, due: Instant) -> Self {
        Self {
            aim,
            reason,
            state: TargetState::Waiting { due },
            carriers: CarrierHistory::default(),
            trying: Carrier::default(),
            first: None,
            failures: 0,
            reported: BTreeMap::new(),
            failed_at: None,
        }
    }

    /// Whether this peer is the aim.
    pub(super) fn is_for(&self, peer: PeerId) -> bool {
        self.aim.peer() == Some(peer)
    }

    /// What to show of this target, if the user knows that it cannot be reached: of several addresses, the one whose failure
    /// says most.
    pub(super) fn unreached(&self, now: Instant) -> Option<Unreached> {
        let (address, complaint) =
            self.reported.iter().max_by_key(|(_, complaint)| is_final(&complaint.trouble))?;
        let failed_at = self.failed_at.filter(|_| self.state != TargetState::Connected)?;
        Some(Unreached {
            peer: self.aim.peer().as_ref().and_then(from_libp2p),
            address: address.clone(),
            trouble: complaint.trouble.clone(),
            tries: self.failures,
            since_last: now.saturating_duration_since(failed_at),
        })
    }

    /// A connection is open, and this is known of its carriers.
    pub(super) fn connected(&mut self, carriers: CarrierHistory) {
        self.state = TargetState::Connected;
        self.carriers = carriers;
        self.first = None;
        self.failures = 0;
        self.reported.clear();
        // The target was reached where the user said. From now on the node decides whether it is wanted.
        self.reason = self.reason.min(DialReason::Wanted);
    }

    /// Whether the current attempt, which has got through to this address, may owe that to the time that it took: TCP was
    /// refused there, and since then QUIC has retried more than once.
    pub(super) fn may_have_begun_to_listen(&self, address: &Multiaddr, now: Instant) -> bool {
        self.first.as_ref().is_some_and(|first| {
            let asked_for = now.saturating_duration_since(first.failed_at);
            let at = self.as_given(&without_peer(address.clone()));
            let was_refused = first.troubles.contains(&(at, DialFailure::Refused));
            first.carrier == Carrier::Tcp && was_refused && asked_for >= QUIC_ASKS_AGAIN
        })
    }

    /// Always from a new port: from the listening port, two peers that dial each other at once, or one that dials again at
    /// once, would meet their own earlier connection.
    pub(super) fn options(&mut self, usual_carrier: Carrier) -> DialOpts {
        let addresses = match &self.first {
            Some(first) => {
                self.trying = first.carrier.other();
                self.second_carrier_addresses(first)
            }
            None => {
                let wanted = self.carriers.out.unwrap_or(usual_carrier);
                let has_any = !self.addresses_over(wanted).is_empty();
                self.trying = if has_any { wanted } else { wanted.other() };
                self.addresses_over(self.trying)
            }
        };
        match &self.aim {
            DialAim::Address(given) => {
                let address = addresses.into_iter().next().unwrap_or_else(|| given.clone());
                DialOpts::unknown_peer_id().address(address).allocate_new_port().build()
            }
            DialAim::Peer { id, .. } => {
                // The peer discovery may be dialing it at the same time, through relays that take long to fail.
                let options = DialOpts::peer_id(*id).condition(PeerCondition::Disconnected);
                let options = options.addresses(addresses).allocate_new_port();
                // The peer may have moved, and others may know its new address.
                if self.failures > 0 {
                    options.extend_addresses_through_behaviour().build()
                } else {
                    options.build()
                }
            }
        }
    }

    /// The addresses to try over this carrier. QUIC addresses follow from TCP addresses, unless they were given.
    fn addresses_over(&self, carrier: Carrier) -> Vec<Multiaddr> {
        let mut found = Vec::new();
        for address in self.aim.addresses() {
            let address = match (carrier, Carrier::of(address)) {
                (Carrier::Quic, Carrier::Tcp) => over_quic(address),
                (wanted, given) => (wanted == given).then(|| address.clone()),
            };
            found.extend(address.filter(|address| !found.contains(address)));
        }
        // Relays are tried as well, by other attempts. In this one they would delay the news that the peer's own machine refuses.
        if !found.iter().all(is_relayed) {
            found.retain(|address| !is_relayed(address));
        }
        found
    }

    /// The addresses to try over the other carrier, after the first attempt has failed.
    fn second_carrier_addresses(&self, first: &FirstAttempt) -> Vec<Multiaddr> {
        let is_drained = |address: &Multiaddr| {
            let trouble = first.troubles.iter().find(|(at, _)| *at == self.as_given(address));
            trouble.is_some_and(|(_, trouble)| self.failures < self.rounds_believed(first.carrier, trouble))
        };
        let mut addresses = self.addresses_over(first.carrier.other());
        addresses.retain(|address| !is_drained(address));
        addresses
    }

    /// For how many rounds in a row this failure is no reason to try the other carrier.
    fn rounds_believed(&self, carrier: Carrier, trouble: &DialFailure) -> u32 {
        match (carrier, trouble) {
            // TCP is tried in any case: a router may send the two carriers to different machines.
            (Carrier::Quic, _) => 0,
            (Carrier::Tcp, trouble) if is_final(trouble) => u32::MAX,
            (Carrier::Tcp, DialFailure::Refused) => REFUSALS_BELIEVED,
            (Carrier::Tcp, _) if self.carriers.last == Some(Carrier::Tcp) => SILENCES_BELIEVED,
            (Carrier::Tcp, _) => 0,
        }
    }

    /// The address as it was given to this peer, for an address that was dialed.
    fn as_given(&self, address: &Multiaddr) -> Multiaddr {
        let given = over_tcp(address.clone());
        if self.aim.addresses().contains(&given) { given } else { address.clone() }
    }

    /// An attempt has failed. Returns the failures of the round, or `None` if its second attempt is due now.
    pub(super) fn end_attempt(
        &mut self,
        error: &DialError,
        own: &OwnAddresses,
        now: Instant,
    ) -> Option<Vec<(Multiaddr, DialFailure)>> {
        let troubles = self.troubles(error, own);
        let (first, second) = match self.first.take() {
            Some(first) => (first, troubles),
            None => {
                let first = FirstAttempt { carrier: self.trying, troubles, failed_at: now };
                let may_go_on = match error {
                    DialError::Transport(_) => true,
                    DialError::WrongPeerId { .. } => first.carrier == Carrier::Quic,
                    _ => false,
                };
                let has_second = may_go_on && !self.second_carrier_addresses(&first).is_empty();
                if has_second {
                    self.first = Some(first);
                    self.state = TargetState::Waiting { due: now };
                    return None;
                }
                (first, Vec::new())
            }
        };
        self.failures += 1;
        self.failed_at = Some(now);
        // The second attempt has taken a part of the pause.
        self.state = TargetState::Waiting { due: now.max(first.failed_at + pause_after(self.failures)) };
        Some(first.joined_with(second))
    }

    fn troubles(&self, error: &DialError, own: &OwnAddresses) -> Vec<(Multiaddr, DialFailure)> {
        let mut troubles = self.reported_troubles(error, own);
        // libp2p leaves these out of an attempt.
        let own_addresses = self.aim.addresses().iter().filter(|address| own.contains(address));
        for address in own_addresses {
            if !troubles.iter().any(|(at, _)| at == address) {
                troubles.push((address.clone(), DialFailure::Ourselves));
            }
        }
        troubles
    }

    /// The troubles that libp2p reports.
    fn reported_troubles(&self, error: &DialError, own: &OwnAddresses) -> Vec<(Multiaddr, DialFailure)> {
        let as_given = |address: &Multiaddr| self.as_given(&without_peer(address.clone()));
        let one = |address: &Multiaddr, trouble| vec![(as_given(address), trouble)];
        let everywhere = |words: &str| {
            let trouble = |at: &Multiaddr| (at.clone(), DialFailure::System(words.to_owned()));
            self.aim.addresses().iter().map(trouble).collect()
        };
        match error {
            DialError::Transport(errors) => {
                let all = errors.iter().map(|(at, error)| (as_given(at), failure_of(error)));
                // The user need not hear of addresses that other peers have named.
                all.filter(|(at, _)| self.aim.peer().is_none() || self.aim.addresses().contains(at)).collect()
            }
            DialError::WrongPeerId { obtained, address } if own.is_id(obtained) => {
                one(address, DialFailure::Ourselves)
            }
            DialError::WrongPeerId { obtained, address } => {
                one(address, DialFailure::OtherPeer { found: *obtained })
            }
            DialError::LocalPeerId { address } => one(address, DialFailure::Ourselves),
            DialError::Denied { .. } => everywhere("too many connections at once"),
            DialError::Aborted => everywhere("given up"),
            // No address is known yet, or another attempt is under way.
            DialError::NoAddresses | DialError::DialPeerConditionFalse(_) => Vec::new(),
        }
    }

    pub(super) fn report_failures(
        &mut self,
        troubles: Vec<(Multiaddr, DialFailure)>,
        now: Instant,
    ) -> Vec<FailedAddress> {
        troubles.into_iter().filter_map(|(at, why)| self.report_failure(at, why, now)).collect()
    }

    /// Reports a failure once for each address, again if the reason changes, and otherwise at growing intervals.
    fn report_failure(
        &mut self,
        address: Multiaddr,
        trouble: DialFailure,
        now: Instant,
    ) -> Option<FailedAddress> {
        let pause = match self.reported.get(&address) {
            Some(last) if last.trouble == trouble && now < last.told_at + last.pause => return None,
            Some(last) if last.trouble == trouble => (last.pause * 2).min(COMPLAINT_PAUSE_MAX),
            _ => COMPLAINT_PAUSE,
        };
        let complaint = ReportedFailure { trouble: trouble.clone(), told_at: now, pause };
        self.reported.insert(address.clone(), complaint);
        let peer = self.aim.peer().as_ref().and_then(from_libp2p);
        Some(FailedAddress { peer, address, trouble })
    }
}

impl FirstAttempt {
    /// The failures of both attempts: one for each address, which is the final one if there is one, or else that of TCP.
    fn joined_with(self, second: Vec<(Multiaddr, DialFailure)>) -> Vec<(Multiaddr, DialFailure)> {
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

pub(super) fn pause_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (RETRY_PAUSE * (1 << doublings)).min(RETRY_PAUSE_MAX)
}

const RETRY_PAUSE: Duration = Duration::from_millis(200);
pub(super) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);
const COMPLAINT_PAUSE_MAX: Duration = Duration::from_secs(3600);
pub(super) const MDNS_FAILURES_MAX: u32 = 5;
/// Rounds in a row in which a refusal is no reason to try QUIC. An attempt over QUIC takes seconds, in which this peer would not
/// notice that the other one has begun to listen. A firewall refuses every time.
const REFUSALS_BELIEVED: u32 = 3;
/// Rounds in a row in which silence is no reason to try QUIC, if TCP has answered before.
const SILENCES_BELIEVED: u32 = 1;
/// A QUIC attempt without an answer retries after a little more than this: the library assumes a round trip of a third of a
/// second until it has measured one, and waits for three of them.
const QUIC_ASKS_AGAIN: Duration = Duration::from_millis(900);
/// Failed rounds before the user hears of a peer that the node wants: by then the other members had time to remove it.
pub(super) const WANTED_FAILURES_REPORTED: u32 = 5;
