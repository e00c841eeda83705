//! TCP rates: what a link carries at most when packets are lost.
//!
//! TCP takes a lost packet for a sign of a full line, and sends less for a while. The more packets are lost, and the longer it takes to hear
//! of it, the less a connection carries, whatever its line.
//!
//! # How it works
//! With a share `p` of packets lost, a connection has on average `W` packets in flight. It carries `W` packets in a round trip, and a link
//! with `n` connections `n` times as much. CUBIC, the default of most systems, has the larger one of two windows:
//! ```text
//! Reno:   W = (3/2 / p)^(1/2)
//! CUBIC:  W = (C (3 + beta) / (4 (1 - beta)))^(1/4) (round trip / p)^(3/4),  C = 0.4 packets/s^3, beta = 0.7
//! ```
//! CUBIC's is the larger one where `p` is small or the round trip is long: at 100 ms, where fewer than six of 10,000 packets are lost.
//! Of 100 ms and 0.1 % one connection makes 4.5 Mbit/s, of 100 ms and 1 % 1.4 Mbit/s.
//!
//! All is computed in integers, so that traces are equal on all machines.
//!
//! # Not here
//! - Chance. Both formulas assume that losses come at regular intervals. With losses at random, long times without one let a window grow
//!   more. Played through by RFC 9438, CUBIC then carries up to a quarter more, most of all where both windows are about equal.
//! - Timeouts, which make TCP slower still where more than about one packet in fifty is lost.
//! - Slow start, and the window of one connection: frames leave evenly, also after a pause.
//! - The windows that systems give to connections, and queues that overflow.
//! - BBR, for which such losses matter little. For hosts with BBR, set the loss of a scenario to 0.
//!
//! # Reading
//! Mathis, Semke, Mahdavi & Ott, *The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm*, 1997, equation 3. RFC 9438, *CUBIC for
//! Fast and Long-Distance Networks*, 2023, section 5.1, equation 5.

use std::time::Duration;

use crate::host::HostId;
use crate::links::Links;

/// What each link carries at most.
pub(super) struct TcpRates {
    /// Bits a second, by the regions of sender and receiver; `None` means no limit.
    by_region: Vec<Vec<Option<u64>>>,
}

impl TcpRates {
    /// The rates on these lines.
    pub(super) fn new(links: &Links) -> Self {
        let regions = || (0..links.regions.len().max(1) as u32).map(HostId);
        let rate = |from, to| {
            // Each way has half of the jitter on average.
            let round_trip = 2 * links.distance(from, to) + links.jitter;
            let one = connection_rate(links.loss_per_million, round_trip)?;
            Some(one.saturating_mul(links.connections.into()))
        };
        Self { by_region: regions().map(|from| regions().map(|to| rate(from, to)).collect()).collect() }
    }

    /// Bits a second from one host to another; `None` means no limit.
    pub(super) fn rate(&self, from: HostId, to: HostId) -> Option<u64> {
        let region = |host: HostId| host.index() % self.by_region.len();
        self.by_region[region(from)][region(to)]
    }
}

/// Bits a second of one connection; `None` means no limit.
fn connection_rate(loss_per_million: u32, round_trip: Duration) -> Option<u64> {
    let (loss, nanoseconds) = (u128::from(loss_per_million), round_trip.as_nanos().min(ROUND_TRIP_NANOS_MAX));
    if loss == 0 || nanoseconds == 0 {
        return None;
    }
    // rate^2 = S^2 / T^2 x 3/2 / p, with S bits in a packet, a round trip of T seconds, and both in the units of the arguments.
    let reno_squared = SEGMENT_BITS.pow(2) * 3 * 10_u128.pow(24) / (2 * loss * nanoseconds.pow(2));
    // rate^4 = S^4 / T x 37/30 / p^3. For S^4 there is no room, so the root is taken first, of 10^8 times the number for its digits.
    let root = (37 * 10_u128.pow(35) / (30 * loss.pow(3) * nanoseconds)).isqrt();
    let cubic_squared = SEGMENT_BITS.pow(2) * root / 10_000;
    Some(reno_squared.max(cubic_squared).isqrt().max(1) as u64)
}

/// Bits of a packet that a program sent, of 1500 bytes on the line.
const SEGMENT_BITS: u128 = 8 * 1448;
/// An hour, so that no product overflows.
const ROUND_TRIP_NANOS_MAX: u128 = 3_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The formulas of the header, in floating point.
    fn by_formula(loss: f64, round_trip: f64) -> f64 {
        let (c, beta) = (0.4, 0.7);
        let reno = (1.5 / loss).sqrt();
        let scale = libm::pow(c * (3.0 + beta) / (4.0 * (1.0 - beta)), 0.25);
        let cubic = scale * libm::pow(round_trip / loss, 0.75);
        1448.0 * 8.0 * reno.max(cubic) / round_trip
    }

    #[test]
    fn the_rate_is_that_of_the_formulas() {
        for loss_per_million in [1, 10, 100, 1000, 10_000, 100_000, 1_000_000] {
            for microseconds in [10, 400, 5000, 60_000, 100_000, 1_000_000, 100_000_000] {
                let found =
                    connection_rate(loss_per_million, Duration::from_micros(microseconds)).unwrap() as f64;
                let expected = by_formula(f64::from(loss_per_million) / 1e6, microseconds as f64 / 1e6);
                let apart = (found - expected).abs();
                assert!(
                    apart < expected / 1000.0 + 1.0,
                    "{loss_per_million}, {microseconds} us: {found}, by the formula {expected}"
                );
            }
        }
    }

    /// Computed by hand: 38.73 and 12.25 packets in flight by Reno's formula, 577.2 by that of CUBIC.
    #[test]
    fn some_rates_are_known() {
        let mbit = |loss_per_million, milliseconds| {
            let rate = connection_rate(loss_per_million, Duration::from_millis(milliseconds)).unwrap();
            rate as f64 / 1e6
        };
        for (found, expected) in [
            (mbit(1000, 100), 38.73 * 0.11584),
            (mbit(10_000, 100), 12.25 * 0.11584),
            (mbit(50, 224), 577.2 * 0.051_714),
        ] {
            assert!((found / expected - 1.0).abs() < 0.001, "{found} Mbit/s, by hand {expected}");
        }
    }

    #[test]
    fn without_loss_or_distance_there_is_no_limit_and_extremes_have_one() {
        assert_eq!(connection_rate(0, Duration::from_millis(100)), None);
        assert_eq!(connection_rate(1000, Duration::ZERO), None);
        assert!(connection_rate(1, Duration::from_nanos(1)).unwrap() > 1_000_000_000_000);
        assert!(connection_rate(1_000_000, Duration::from_secs(1_000_000)).unwrap() > 0);
    }

    #[test]
    fn one_connection_fills_the_line_of_a_home_and_a_sixth_of_one_between_continents() {
        let home = Links::home();
        assert!(TcpRates::new(&home).rate(HostId(0), HostId(1)) > home.up);
        let rates = TcpRates::new(&Links::continents());
        let mbit = [(0, 1), (1, 2), (0, 2)]
            .map(|(from, to)| rates.rate(HostId(from), HostId(to)).unwrap() as f64 / 1e6);
        assert_eq!(mbit.map(f64::round), [38.0, 33.0, 30.0]);
        assert_eq!(TcpRates::new(&Links::lan()).rate(HostId(0), HostId(1)), None);
    }

    #[test]
    fn each_pair_of_regions_has_its_rate_and_each_connection_adds_as_much() {
        let one = Links::continents();
        let rates = TcpRates::new(&one);
        for (from, to) in [(0, 1), (1, 2), (2, 0), (3, 5), (4, 4)].map(|(a, b)| (HostId(a), HostId(b))) {
            let round_trip = 2 * one.distance(from, to) + one.jitter;
            assert_eq!(rates.rate(from, to), connection_rate(one.loss_per_million, round_trip));
            let three = TcpRates::new(&Links { connections: 3, ..one.clone() });
            assert_eq!(three.rate(from, to), rates.rate(from, to).map(|rate| 3 * rate));
        }
        assert!(rates.rate(HostId(0), HostId(3)) > one.up, "within a region, the line is the limit");
        assert_eq!(rates.rate(HostId(1), HostId(5)), rates.rate(HostId(4), HostId(2)), "regions in turn");
        assert!(rates.rate(HostId(0), HostId(1)) > rates.rate(HostId(0), HostId(2)), "a longer line");
    }
}
