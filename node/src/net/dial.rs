//! Dialing: whom to try, where, when to try again, and when to tell the user that it does not work.
//!
//! Like someone who must reach people by telephone: some names are on a list until crossed out, some numbers came without
//! a name, some people were cut off in the middle and are called back for a while. This is the list; it makes no calls.
//!
//! # How it works
//! An attempt is made over TCP, and where that does not get through, at once another one over QUIC; the other way round where QUIC
//! has got through to that one before, or, if nothing has yet, to the last other one. The two are one *round*: pauses
//! are between rounds, and the user hears of an address once for both. Where an answer came that the other way would give as well
//! (another secret, another peer), there is no second attempt. And at first TCP is believed: one that refuses mostly does not
//! listen yet, and one that was there a moment ago is mostly cut off from everything. An attempt over QUIC goes on asking for
//! seconds, so that it also finds one who only now began to listen: whom it reaches late TCP may get to as well.

use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::addresses::{parse_all, remember, without_peer};
use super::bootstrap::Bootstrap;
use super::circuits::is_relayed;
use super::identity::to_libp2p;
use super::notice::{DialTrouble, Notice};
use super::quic::Carrier;
pub use target::Unreached;
use target::{Cause, First, NEIGHBOUR_FAILURES_MAX, State, Target, WANTED_FAILURES_TOLD};
pub(super) use trouble::{refused_everywhere, trouble_of};
pub(super) use ways::{Lesson, Ways};

mod target;
mod trouble;
mod ways;

/// Everyone to be reached.
#[derive(Debug, Default)]
pub(super) struct Dialing {
    targets: Vec<Target>,
    /// What got through to the last one who was dialed. What keeps TCP out is mostly near us, or everywhere.
    habit: Carrier,
}

/// A connection that has come about.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    /// Which attempt it comes from, if it is one of ours.
    pub(super) connection: ConnectionId,
    /// Where the other end is.
    pub(super) address: &'a Multiaddr,
    /// What it says of the ways there.
    pub(super) lesson: Lesson,
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

    /// The connection to `peer`, of which so much is known, is lost: dials it, from `due` on.
    pub(super) fn call_back(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, ways: Ways, due: Instant) {
        self.add(Some(peer), addresses, Cause::CutOff, due);
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            target.ways.learn(ways);
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

    /// A connection is there, perhaps from one of the attempts, to a peer of whose ways so much was known. Returns what is known now.
    pub(super) fn connected(
        &mut self,
        peer: PeerId,
        arrival: Arrival<'_>,
        before: Ways,
        now: Instant,
    ) -> Ways {
        let attempt = State::Trying { attempt: arrival.connection };
        let tried = self.targets.iter().find(|target| target.state == attempt);
        let is_luck = tried.is_some_and(|target| target.may_have_begun_to_listen(arrival.address, now));
        let carrier = Carrier::of(arrival.address);
        if tried.is_some() && arrival.lesson == Lesson::Out && !is_luck {
            self.habit = carrier;
        }
        let is_answer = |target: &Target| target.peer.is_none() && target.state == attempt;
        if let Some(index) = self.targets.iter().position(is_answer) {
            // The address has found its peer.
            let answered = self.targets.swap_remove(index);
            self.add(Some(peer), answered.addresses, answered.cause, now);
        }
        self.targets.retain(|target| target.peer != Some(peer) || target.cause != Cause::CutOff);
        let known = self.targets.iter().find(|target| target.peer == Some(peer)).map(|target| target.ways);
        let mut ways = known.unwrap_or_default();
        ways.learn(before);
        ways.learn_from(arrival.lesson, carrier, is_luck);
        self.mark_connected(peer, ways);
        ways
    }

    /// A connection is there that is of no use: the next attempt is made at `due`.
    pub(super) fn try_later(&mut self, attempt: ConnectionId, due: Instant) {
        let state = State::Trying { attempt };
        for target in self.targets.iter_mut().filter(|target| target.state == state) {
            target.state = State::Waiting { due };
        }
    }

    /// Those who are wanted and not there, and the ways through relays that are known of.
    pub(super) fn missing(&self) -> impl Iterator<Item = (PeerId, Vec<Multiaddr>)> {
        let is_missing = |target: &&Target| target.cause >= Cause::CutOff && target.state != State::Connected;
        let circuits = |target: &Target| {
            target.addresses.iter().filter(|address| is_relayed(address)).cloned().collect()
        };
        self.targets
            .iter()
            .filter(is_missing)
            .filter_map(move |target| Some((target.peer?, circuits(target))))
    }

    /// A connection to `peer` is there already, and so much is known of the ways there.
    pub(super) fn mark_connected(&mut self, peer: PeerId, ways: Ways) {
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            target.connected(ways);
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

    /// Those of whom the user was told that they cannot be reached, and still cannot.
    pub(super) fn unreached(&self, now: Instant) -> Vec<Unreached> {
        self.targets.iter().filter_map(|target| target.unreached(now)).collect()
    }

    /// Whether everyone was tried, over everything, and nobody was reached.
    pub(super) fn have_all_failed(&self) -> bool {
        self.targets.iter().all(|target| target.failures > 0)
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
        self.targets.push(Target::new(peer, addresses, cause, due));
    }
}

#[cfg(test)]
mod tests;
