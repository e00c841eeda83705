//! Speeds: how many samples a minute each member computes. Batches are divided in proportion, so that all need the same time.
//!
//! A member tells the coordinator its speed while the view has another one. If steps would become shorter, the coordinator proposes a view
//! with the new speeds. Nothing moves for it, and training continues. It does the same if rounds of a length in seconds would be too short
//! or too long.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::AgreementMessage;
use peergrad_protocol::view::weights_of;
use peergrad_protocol::{Instant, PeerId, Rank};

use super::members::Members;
use crate::io::Output;
use crate::state::round_size::RoundSize;

/// The speeds of members, where they differ from the view.
#[derive(Default)]
pub(super) struct Speeds {
    /// The speed of this member, in samples a minute; `None` before it is measured.
    own: Option<u32>,
    /// When this member last told the coordinator.
    told_at: Option<Instant>,
    /// The speeds of other members. Empty at a member that does not coordinate.
    reports: BTreeMap<PeerId, SpeedReport>,
    /// When the view began; `None` in the first view of this member.
    entered_at: Option<Instant>,
    /// By rank: the speeds that the next view should have; `None` if those of this view are good enough.
    proposal: Option<Vec<u32>>,
}

/// The speed of another member, and when it last said so.
#[derive(Clone, Copy, Debug)]
struct SpeedReport {
    samples_per_minute: u32,
    reported_at: Instant,
}

impl Speeds {
    /// This member has measured its speed again.
    pub(super) fn set_own(&mut self, samples_per_minute: Option<u32>) {
        self.own = samples_per_minute;
    }

    /// Another member tells its speed.
    pub(super) fn note(&mut self, now: Instant, peer: PeerId, samples_per_minute: u32) {
        self.reports.insert(peer, SpeedReport { samples_per_minute, reported_at: now });
    }

    /// There is another view, perhaps with other speeds.
    pub(super) fn view_changed(&mut self, now: Instant) {
        *self = Self { own: self.own, entered_at: Some(now), ..Self::default() };
    }

    /// Tells the coordinator this member's speed again, if the view has another one.
    pub(super) fn resend(&mut self, now: Instant, members: &Members, out: &mut Vec<Output>) {
        let place = &members.place;
        let known = place.view.speeds.get(place.rank.index()).copied().unwrap_or_default();
        let is_due = self.told_at.is_none_or(|told_at| now.since(told_at) >= REPORT_INTERVAL);
        let Some(samples_per_minute) = self.own.filter(|own| is_due && differs(known, *own)) else { return };
        let Some(coordinator) = members.coordinator(now).filter(|rank| *rank != place.rank) else { return };
        self.told_at = Some(now);
        let message = AgreementMessage::Speed { view: place.digest, samples_per_minute };
        members.send(place.peer(coordinator), &message.into(), out);
    }

    /// Finds out, at the coordinator, whether a step of this size would be computed faster with the speeds that are known now, or would have
    /// the length that the run asks for. A member that has no speed itself proposes none: perhaps this run divides batches evenly.
    pub(super) fn consider(&mut self, now: Instant, members: &Members, round_size: RoundSize) {
        self.reports.retain(|_, report| now.since(report.reported_at) < REPORT_MEMORY);
        self.proposal = None;
        let age = self.entered_at.map_or(Duration::MAX, |entered_at| now.since(entered_at));
        let coordinates = members.coordinator(now) == Some(members.place.rank);
        if age < CHANGE_INTERVAL || self.own.is_none() || !coordinates {
            return;
        }
        let speeds: Vec<u32> = members.place.ranks().map(|rank| self.speed_of(rank, members)).collect();
        let view = &members.place.view;
        let known = &view.speeds;
        if is_worthwhile(known, &speeds, round_size.samples(view, |_| true))
            || (age >= UNEVEN_MAX && is_uneven(known, &speeds))
            || round_size.is_off(known, &speeds)
        {
            self.proposal = Some(speeds);
        }
    }

    /// By rank: the speeds that the next view should have; `None` if those of this view are good enough.
    pub(super) fn proposal(&self) -> Option<&[u32]> {
        self.proposal.as_deref()
    }

    /// The newest speed of a member; 0 if it is unknown.
    fn speed_of(&self, rank: Rank, members: &Members) -> u32 {
        let newest = if rank == members.place.rank {
            self.own
        } else {
            self.reports.get(&members.place.peer(rank)).map(|report| report.samples_per_minute)
        };
        newest.or(members.place.view.speeds.get(rank.index()).copied()).unwrap_or_default()
    }
}

/// Whether a speed is so far from the known one that a member reports it.
fn differs(known: u32, speed: u32) -> bool {
    speed.abs_diff(known) > known / 10
}

/// Whether members would compute a batch much faster if each had a part in proportion to these speeds, instead of the known ones.
fn is_worthwhile(known: &[u32], speeds: &[u32], batch_size: u64) -> bool {
    if speeds.iter().all(|speed| *speed == 0) {
        return false;
    }
    let (weights, proposed) = (weights_of(known, speeds.len()), weights_of(speeds, speeds.len()));
    let batch_size = batch_size as f64;
    // A member of unknown speed counts as one of average speed. In minutes.
    let each = weights.iter().zip(&proposed).map(|(weight, speed)| f64::from(*weight) / f64::from(*speed));
    let present = batch_size * each.fold(0.0, f64::max) / sum(&weights);
    let best = batch_size / sum(&proposed);
    present > best * GAIN_MIN && present - best > SAVING_MIN.as_secs_f64() / 60.0
}

/// Whether the known speeds give one member much more or less than its part: among many members, that one computes too little makes steps
/// hardly longer.
fn is_uneven(known: &[u32], speeds: &[u32]) -> bool {
    if known.is_empty() {
        return false;
    }
    let (weights, proposed) = (weights_of(known, speeds.len()), weights_of(speeds, speeds.len()));
    let (whole, whole_proposed) = (sum(&weights), sum(&proposed));
    weights.iter().zip(&proposed).any(|(weight, speed)| {
        let change = f64::from(*speed) / whole_proposed * whole / f64::from(*weight);
        !(1.0 / UNEVEN_MIN..=UNEVEN_MIN).contains(&change)
    })
}

fn sum(weights: &[u32]) -> f64 {
    weights.iter().map(|weight| f64::from(*weight)).sum()
}

/// By what factor steps have to become shorter.
const GAIN_MIN: f64 = 1.15;
/// How much shorter a step has to become.
const SAVING_MIN: Duration = Duration::from_millis(10);
/// The time between two changes of speeds, in which members measure what the first one has brought.
const CHANGE_INTERVAL: Duration = Duration::from_secs(5);
/// By what factor a part is too large or too small, if it is changed for that alone, and after how long in a view.
const UNEVEN_MIN: f64 = 1.5;
const UNEVEN_MAX: Duration = Duration::from_secs(30);
/// How often a member repeats its speed.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a speed counts after it was last sent.
const REPORT_MEMORY: Duration = Duration::from_secs(7);

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn speeds_change_where_steps_become_much_shorter() {
        // With equal parts, a batch of 600 samples takes 0.2 s at each of three equal members, and 0.6 s at one that is three times slower.
        let (fast, slow) = (60_000, 20_000);
        assert!(is_worthwhile(&[], &[fast, slow, fast], 600));
        assert!(!is_worthwhile(&[fast, slow, fast], &[fast, slow, fast], 600), "they are known");
        assert!(is_worthwhile(&[fast, slow, fast], &[fast; 3], 600), "it is faster again");
        assert!(!is_worthwhile(&[], &[fast; 3], 600), "they are equal");
        assert!(!is_worthwhile(&[], &[fast, fast - fast / 10, fast], 600), "almost");
        assert!(!is_worthwhile(&[], &[fast, slow, fast], 6), "it takes no time");
        assert!(!is_worthwhile(&[], &[0; 3], 600), "nothing is known");
        assert!(is_worthwhile(&[], &[fast, slow, 0], 600), "one is not known yet");
    }

    #[test]
    fn a_machine_that_is_fast_again_gets_its_part_back_even_among_many() {
        let mut known = vec![1000; 16];
        known[3] = 100;
        assert!(!is_worthwhile(&known, &[1000; 16], 1 << 20));
        assert!(is_uneven(&known, &[1000; 16]) && is_uneven(&[1000; 16], &known));
        assert!(!is_uneven(&[1000; 16], &[900; 16]) && !is_uneven(&[], &known));
    }

    #[test]
    fn a_speed_is_reported_if_it_is_far_from_the_known_one() {
        assert!(differs(0, 1) && differs(100, 89) && differs(100, 111));
        assert!(!differs(100, 90) && !differs(100, 110) && !differs(u32::MAX, u32::MAX));
    }
}
