//! Machines: what counts as one machine, and places of which each machine may hold only a few.
//!
//! A bounded number of places does not keep one machine from taking them all. So the places of strangers and guests are also counted per
//! machine.
//!
//! # Invariants
//! - An IPv6 network of 64 bits is one machine: a user who has one address in it usually has all of them.
//! - Everybody who comes through a relay counts as one machine, since the relay hides the address.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use libp2p::Multiaddr;

use super::address::{ip_of, is_relayed};

/// A machine, as far as its address tells machines apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Machine {
    /// The machine with this address.
    V4(Ipv4Addr),
    /// A machine in the network of 64 bits that begins with this address.
    V6(Ipv6Addr),
    /// A machine whose address is unknown, since it comes through a relay.
    Hidden,
}

impl From<IpAddr> for Machine {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => Self::V6(Ipv6Addr::from_bits(ip.to_bits() & NETWORK_MASK)),
        }
    }
}

impl Machine {
    /// The machine at the other end of a connection to or from this address.
    pub(super) fn at(address: &Multiaddr) -> Self {
        match ip_of(address).filter(|_| !is_relayed(address)) {
            Some(ip) => ip.into(),
            None => Self::Hidden,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(ip) => write!(f, "{ip}"),
            // The address of this machine is one whole address.
            Self::V6(ip) if ip.is_unspecified() => write!(f, "{}", Ipv6Addr::LOCALHOST),
            Self::V6(ip) => write!(f, "{ip}/64"),
            Self::Hidden => write!(f, "behind a relay"),
        }
    }
}

/// A bounded number of places, of which each machine may hold only a few. Clones share the places.
#[derive(Clone, Debug)]
pub struct Places {
    /// For each machine, how many places it holds; no entry for those that hold none.
    held: Arc<Mutex<BTreeMap<Machine, usize>>>,
    count_max: usize,
    count_per_machine_max: usize,
}

/// A place that a machine holds. Dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    machine: Machine,
    held: Arc<Mutex<BTreeMap<Machine, usize>>>,
}

impl Places {
    /// So many free places, and so many for each machine.
    #[must_use]
    pub fn new(count_max: usize, count_per_machine_max: usize) -> Self {
        Self { held: Arc::default(), count_max, count_per_machine_max }
    }

    /// A place for this machine; `None` if all are taken, or if the machine holds all that it may.
    #[must_use]
    pub fn take(&self, machine: Machine) -> Option<Place> {
        // Counting cannot panic.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.get(&machine).copied().unwrap_or(0);
        if own >= self.count_per_machine_max || held.values().sum::<usize>() >= self.count_max {
            return None;
        }
        held.insert(machine, own + 1);
        Some(Place { machine, held: Arc::clone(&self.held) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.machine) {
            *count -= 1;
        }
        held.retain(|_, count| *count > 0);
    }
}

/// The part of an IPv6 address that names the network.
const NETWORK_MASK: u128 = !0 << 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(ip: &str) -> Machine {
        ip.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn addresses_of_one_machine_count_together() {
        assert_eq!(machine("10.0.0.7"), machine("::ffff:10.0.0.7"));
        assert_ne!(machine("10.0.0.7"), machine("10.0.0.8"));
        assert_eq!(machine("2001:db8::1"), machine("2001:db8::ffff:1"));
        assert_ne!(machine("2001:db8::1"), machine("2001:db8:0:1::1"));
        let texts = ["10.0.0.7", "2001:db8::1", "::1"].map(|ip| machine(ip).to_string());
        assert_eq!(texts, ["10.0.0.7", "2001:db8::/64", "::1"]);
        let relayed = "/ip4/10.0.0.7/tcp/9/p2p-circuit".parse().unwrap();
        assert_eq!(Machine::at(&relayed), Machine::Hidden);
        assert_eq!(Machine::at(&"/ip4/10.0.0.7/udp/9/quic-v1".parse().unwrap()), machine("10.0.0.7"));
    }

    #[test]
    fn no_machine_takes_all_places_and_a_dropped_place_is_free() {
        let places = Places::new(3, 2);
        let (one, other) = (machine("10.0.0.7"), machine("10.0.0.8"));
        let mut held = vec![places.take(one).unwrap(), places.take(one).unwrap()];
        assert!(places.take(one).is_none(), "it holds its share");
        held.push(places.take(other).unwrap());
        assert!(places.take(other).is_none(), "all are taken");
        held.clear();
        assert!(places.take(one).is_some() && places.held.lock().unwrap().is_empty());
    }
}
