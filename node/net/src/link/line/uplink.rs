//! The uplink: what all long lines of this peer carry together.
//!
//! Each large frame over a long line remembers what was acknowledged on all of them when it was sent, and its own acknowledgement gives a
//! rate, as for a single [line](super). A pause of a round trip begins another measurement: a burst after it says nothing about the time
//! before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_core::io::LONG_ROUND_TRIP;
use tokio::time::Instant;

use super::is_other;
use super::recent_max::RecentMax;

/// Measures the uplink. Its clones measure the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uplink(Arc<Mutex<UplinkState>>);

#[derive(Debug, Default)]
struct UplinkState {
    /// The bytes that were acknowledged so far, and when that last grew, or when a pause ended.
    acknowledged: u64,
    acknowledged_at: Option<Instant>,
    /// When a large frame was last sent over a long line.
    sent_at: Option<Instant>,
    /// Recent rates, in bytes per second.
    rates: RecentMax<u64>,
    /// The rate that was last reported, and when.
    reported: Option<(u64, Instant)>,
}

/// What was acknowledged when a frame was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct UplinkMark {
    acknowledged: u64,
    acknowledged_at: Instant,
}

/// A frame that was acknowledged.
pub(super) struct AcknowledgedFrame {
    pub(super) byte_count: usize,
    /// The state of the uplink when it was sent.
    pub(super) mark: UplinkMark,
    /// Whether no other frame waited behind it on its line.
    pub(super) was_last: bool,
    /// The shortest recent round trip of its line.
    pub(super) round_trip: Duration,
}

impl Uplink {
    /// A frame leaves over a line with this round trip. `None` if that is no long line.
    pub(super) fn note_sent(&self, now: Instant, round_trip: Duration) -> Option<UplinkMark> {
        if round_trip < LONG_ROUND_TRIP {
            return None;
        }
        let mut state = self.lock();
        let used_at = state.sent_at.max(state.acknowledged_at);
        if let Some(at) = used_at.filter(|at| now - *at > round_trip) {
            state.rates.skip(now - at);
            state.acknowledged_at = Some(now);
        }
        state.sent_at = Some(now);
        let acknowledged_at = *state.acknowledged_at.get_or_insert(now);
        Some(UplinkMark { acknowledged: state.acknowledged, acknowledged_at })
    }

    /// A frame has arrived.
    pub(super) fn note_acknowledged(&self, now: Instant, frame: &AcknowledgedFrame) {
        let mut state = self.lock();
        state.acknowledged += frame.byte_count as u64;
        state.acknowledged_at = Some(now);
        let took = now - frame.mark.acknowledged_at;
        // What arrives within less than a round trip may have waited for one acknowledgement.
        if took < frame.round_trip || took.is_zero() {
            return;
        }
        let byte_count = u128::from(state.acknowledged - frame.mark.acknowledged);
        let rate = u64::try_from(byte_count * 1_000_000_000 / took.as_nanos()).unwrap_or(u64::MAX);
        // Where nothing more waited, the rate is the sender's and not the uplink's.
        if !frame.was_last || state.rates.largest().is_none_or(|largest| rate > largest) {
            state.rates.insert(now, rate);
        }
    }

    /// The rate in bytes per second, if it differs much from what was last returned.
    pub(super) fn take_news(&self, now: Instant) -> Option<u64> {
        let mut state = self.lock();
        let rate = state.rates.largest()?;
        let is_news =
            state.reported.is_none_or(|(before, at)| now - at > REPORT_INTERVAL && is_other(before, rate));
        is_news.then(|| {
            state.reported = Some((rate, now));
            rate
        })
    }

    /// A panic elsewhere cannot leave the state half-changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, UplinkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a change is reported at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::line::{LineMeter, Turn};

    const FRAME: usize = 128 << 10;
    const ROUND_TRIP: Duration = Duration::from_millis(100);

    /// Sends over two lines that share an uplink for some seconds. Their frames take turns.
    fn sent(uplink: &Uplink, bytes_per_second: u64, round_trip: Duration, seconds: u64) -> Instant {
        let begin = Instant::now();
        let mut now = begin;
        let mut meters = [0, 1].map(|_| LineMeter::new(now));
        meters.iter_mut().for_each(|meter| meter.share(uplink.clone()));
        let (mut free_at, mut arrivals) = (now, std::collections::VecDeque::new());
        while now < begin + Duration::from_secs(seconds) {
            let may_send = |meter: &LineMeter| meter.turn(now, FRAME) == Turn::Now;
            let next = (0..2).filter(|lane| may_send(&meters[*lane]));
            // The one with less in flight.
            if let Some(lane) = next.min_by_key(|lane| meters[*lane].in_flight_bytes()) {
                meters[lane].note_sent(now, FRAME, false);
                free_at =
                    free_at.max(now) + Duration::from_nanos(FRAME as u64 * 1_000_000_000 / bytes_per_second);
                arrivals.push_back((free_at + round_trip, lane));
                continue;
            }
            now += Duration::from_millis(1);
            while let Some((_, lane)) = arrivals.pop_front_if(|(at, _)| *at <= now) {
                meters[lane].note_acknowledged(now, 1);
            }
        }
        now
    }

    #[test]
    fn lines_that_share_an_uplink_show_what_it_carries() {
        let uplink = Uplink::default();
        let now = sent(&uplink, 20_000_000, ROUND_TRIP, 5);
        let rate = uplink.take_news(now).unwrap();
        assert!(rate.abs_diff(20_000_000) < 2_000_000, "{rate}");
        assert_eq!(uplink.take_news(now + 2 * REPORT_INTERVAL), None, "it is as before");
    }

    #[test]
    fn short_lines_do_not_count() {
        let uplink = Uplink::default();
        let now = sent(&uplink, 1_000_000_000, Duration::from_micros(100), 2);
        assert_eq!(uplink.take_news(now), None);
    }
}
