//! The uplink: what all long lines of this peer carry together.
//!
//! Each large frame over a long line remembers what was acknowledged on all of them when it was sent, and its own acknowledgement gives a
//! rate, as for a single [line](super). A pause of a round trip begins another measurement: a burst after it says nothing about the time
//! before.
//!
//! A line that is alone for a moment is measured with the whole uplink. If each line then had in flight what it once carried, a queue before
//! the uplink would overflow. So where several lines are in use, they share what the uplink carries in a round trip, and somewhat more: a
//! line may have an equal part of it in flight, or what the others leave, if that is more. And their large frames leave at about the rate of
//! the uplink together: on a slow one, a single frame of each line together would fill the queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_core::io::{LONG_ROUND_TRIP, Line};
use tokio::time::Instant;

use super::is_other;
use super::least_in_flight;
use super::pacing::{WAIT_MAX, carried_in, leaves_at};
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
    /// The bytes of large frames in flight over long lines.
    in_flight: u64,
    /// On how many lines these are.
    lines_in_use: u64,
    /// When all that was sent has left, at the rate of the uplink; `None` before the first frame.
    left_at: Option<Instant>,
}

/// The use of an uplink by one line. Once it is dropped, nothing of this line is in flight.
#[derive(Debug, Default)]
pub(super) struct UplinkUse {
    uplink: Uplink,
    /// The bytes of this line's large frames in flight.
    in_flight: u64,
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
    fn note_sent(&self, now: Instant, round_trip: Duration) -> Option<UplinkMark> {
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
    fn note_acknowledged(&self, now: Instant, frame: &AcknowledgedFrame) {
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

impl UplinkUse {
    pub(super) fn new(uplink: Uplink) -> Self {
        Self { uplink, in_flight: 0 }
    }

    /// A large frame leaves over this line, which has this round trip. `None` if it is no long line.
    pub(super) fn note_sent(
        &mut self,
        now: Instant,
        byte_count: usize,
        round_trip: Duration,
    ) -> Option<UplinkMark> {
        let mark = self.uplink.note_sent(now, round_trip)?;
        self.note_leaving(now, byte_count);
        self.set_in_flight(self.in_flight + byte_count as u64);
        Some(mark)
    }

    /// A large frame takes its turn behind those of the other lines. A line that is alone leaves no such trace: it has a pace of its own.
    fn note_leaving(&self, now: Instant, byte_count: usize) {
        let mut state = self.uplink.lock();
        let Some(rate) = state.rates.largest() else { return };
        let takes = carried_in(byte_count as u64, rate / 100 * SHARED_RATE_PERCENT);
        let before = state.left_at.filter(|at| *at > now && self.line_count(&state) > 1);
        // A rate may be wrong.
        state.left_at = Some((before.unwrap_or(now) + takes).min(now + WAIT_MAX));
    }

    /// A large frame has arrived.
    pub(super) fn note_acknowledged(&mut self, now: Instant, frame: &AcknowledgedFrame) {
        self.uplink.note_acknowledged(now, frame);
        self.set_in_flight(self.in_flight.saturating_sub(frame.byte_count as u64));
    }

    /// Nothing of this line is in flight any more.
    pub(super) fn clear(&mut self) {
        self.set_in_flight(0);
    }

    /// The rate of the uplink, as for [`Uplink::take_news`].
    pub(super) fn take_news(&self, now: Instant) -> Option<u64> {
        self.uplink.take_news(now)
    }

    /// How many bytes of this line, with this round trip, may be in flight beside those of the others; `None` if it is alone, or the
    /// uplink is not measured.
    pub(super) fn limit(&self, round_trip: Duration) -> Option<u64> {
        let state = self.uplink.lock();
        let line_count = self.line_count(&state);
        if line_count <= 1 || round_trip < LONG_ROUND_TRIP {
            return None;
        }
        let line = Line::without_losses(round_trip, state.rates.largest()?);
        let all = line.bytes_to_fill() / 100 * SHARED_WINDOW_PERCENT;
        // On a slow one, acknowledgements wait behind frames that go the other way.
        let all = all.max(least_in_flight(line.bytes_per_second));
        Some((all / line_count).max(all.saturating_sub(state.in_flight - self.in_flight)))
    }

    /// When the next large frame may leave over this line, with this round trip, beside those of the others; `None` if it may do so now.
    pub(super) fn time(&self, now: Instant, round_trip: Duration) -> Option<Instant> {
        let state = self.uplink.lock();
        if self.line_count(&state) <= 1 || round_trip < LONG_ROUND_TRIP {
            return None;
        }
        leaves_at(now, state.left_at?, state.rates.largest()?)
    }

    /// Whether other lines have large frames in flight.
    pub(super) fn is_shared(&self) -> bool {
        self.line_count(&self.uplink.lock()) > 1
    }

    /// The number of lines in use, with this one.
    fn line_count(&self, state: &UplinkState) -> u64 {
        state.lines_in_use + u64::from(self.in_flight == 0)
    }

    fn set_in_flight(&mut self, bytes: u64) {
        let mut state = self.uplink.lock();
        state.in_flight = state.in_flight - self.in_flight + bytes;
        state.lines_in_use = state.lines_in_use - u64::from(self.in_flight > 0) + u64::from(bytes > 0);
        drop(state);
        self.in_flight = bytes;
    }
}

impl Drop for UplinkUse {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What several lines may have in flight together, in hundredths of what the uplink carries in a round trip. Each may exceed its part by
/// a frame.
const SHARED_WINDOW_PERCENT: u64 = 125;
/// At which part of the uplink's rate their frames leave, in hundredths: it may carry more than was measured.
const SHARED_RATE_PERCENT: u64 = 110;
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
                meters[lane].note_acknowledged(now, 1, now - begin);
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
    fn lines_share_what_the_uplink_carries_in_a_round_trip() {
        let uplink = Uplink::default();
        let now = sent(&uplink, 20_000_000, ROUND_TRIP, 5);
        let [mut one, mut other] = [0, 1].map(|_| UplinkUse::new(uplink.clone()));
        assert_eq!(one.limit(ROUND_TRIP), None, "it is alone");
        let mark = one.note_sent(now, 500_000, ROUND_TRIP).unwrap();
        assert_eq!(one.limit(ROUND_TRIP), None, "it still is");
        // 2.5 MB for both.
        let is_about = |bytes: Option<u64>, expected| bytes.unwrap().abs_diff(expected) < expected / 5;
        assert!(is_about(other.limit(ROUND_TRIP), 2_000_000), "what the first one leaves");
        other.note_sent(now, 2_000_000, ROUND_TRIP).unwrap();
        assert!(is_about(one.limit(ROUND_TRIP), 1_250_000), "an equal part");
        let frame = AcknowledgedFrame { byte_count: 500_000, mark, was_last: false, round_trip: ROUND_TRIP };
        one.note_acknowledged(now + ROUND_TRIP, &frame);
        assert_eq!(other.limit(ROUND_TRIP), None, "it is alone again");
        one.note_sent(now, 500_000, ROUND_TRIP).unwrap();
        one.clear();
        assert_eq!(other.limit(ROUND_TRIP), None, "the lane of the first one has ended");
        let late = AcknowledgedFrame { byte_count: 500_000, mark, was_last: true, round_trip: ROUND_TRIP };
        one.note_acknowledged(now + ROUND_TRIP, &late);
        one.note_sent(now, 500_000, ROUND_TRIP).unwrap();
        assert!(other.limit(ROUND_TRIP).is_some());
        drop(one);
        assert_eq!(other.limit(ROUND_TRIP), None);
        assert_eq!(other.limit(LONG_ROUND_TRIP / 2), None);
    }

    #[test]
    fn large_frames_leave_a_slow_uplink_one_after_another() {
        let uplink = Uplink::default();
        let now = sent(&uplink, 1_000_000, ROUND_TRIP, 20);
        let [mut one, mut other] = [0, 1].map(|_| UplinkUse::new(uplink.clone()));
        assert_eq!(one.time(now, ROUND_TRIP), None);
        one.note_sent(now, FRAME, ROUND_TRIP).unwrap();
        let limit = other.limit(ROUND_TRIP).unwrap();
        assert!((70_000..80_000).contains(&limit), "half of what it carries in 0.15 s: {limit}");
        let waits = other.time(now, ROUND_TRIP).unwrap() - now;
        assert!(
            (80..120).contains(&waits.as_millis()),
            "a frame takes 131 ms at most, a tenth less here: {waits:?}"
        );
        let then = now + waits;
        assert_eq!(other.time(then, ROUND_TRIP), None);
        other.note_sent(then, FRAME, ROUND_TRIP).unwrap();
        assert!(one.time(then, ROUND_TRIP).is_some());
        other.clear();
        assert_eq!(one.time(then, ROUND_TRIP), None, "it is alone again");
    }

    #[test]
    fn short_lines_do_not_count() {
        let uplink = Uplink::default();
        let now = sent(&uplink, 1_000_000_000, Duration::from_micros(100), 2);
        assert_eq!(uplink.take_news(now), None);
    }
}
