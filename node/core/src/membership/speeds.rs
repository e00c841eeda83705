//! Speeds: how many samples a minute each member computes. Batches are divided in proportion, so that all need the same time.
//!
//! A member tells the coordinator its speed while the view has another one. If steps would become shorter, the coordinator proposes a view
//! with the new speeds. Nothing moves for it, and training continues.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::AgreementMessage;
use peergrad_protocol::view::View;
use peergrad_protocol::{Instant, PeerId, Rank};

use super::members::Members;
use crate::io::Output;

/// The speeds of members, where they differ from the view.
#[derive(Default)]
pub(super) struct Speeds {
    /// The speed of this member, in samples a minute; `None` before it is measured.
    own: Option<u32>,
    /// When this member last told the coordinator.
    told_at: Option<Instant>,
    /// The speeds of other members. Empty at a member that does not coordinate.
    reports: BTreeMap<PeerId, SpeedReport>,
    /// When the speeds of the view may change again; `None`: at once.
    not_before: Option<Instant>,
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
        self.proposal = None;
        self.told_at = None;
        self.not_before = Some(now.after(CHANGE_INTERVAL));
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

    /// Finds out whether a batch of so many samples would be computed faster with the speeds that are known now.
    pub(super) fn consider(&mut self, now: Instant, members: &Members, batch_size: u64) {
        self.reports.retain(|_, report| now.since(report.reported_at) < REPORT_MEMORY);
        let may_change = self.not_before.is_none_or(|not_before| now >= not_before);
        let view = &members.place.view;
        let speeds: Vec<u32> = members.place.ranks().map(|rank| self.speed_of(rank, members)).collect();
        self.proposal = Some(speeds).filter(|speeds| may_change && is_worthwhile(view, speeds, batch_size));
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

/// Whether members would compute a batch much faster if each had a part in proportion to these speeds, instead of those of the view.
fn is_worthwhile(view: &View, speeds: &[u32], batch_size: u64) -> bool {
    if speeds.iter().all(|speed| *speed == 0) {
        return false;
    }
    let weights = view.batch_weights(|_| true);
    let proposed = View { speeds: speeds.to_vec(), ..view.clone() }.batch_weights(|_| true);
    let sum = |weights: &[u32]| weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
    let batch_size = batch_size as f64;
    // A member of unknown speed counts as one of average speed. In minutes.
    let each = weights.iter().zip(&proposed).map(|(weight, speed)| f64::from(*weight) / f64::from(*speed));
    let present = batch_size * each.fold(0.0, f64::max) / sum(&weights);
    let best = batch_size / sum(&proposed);
    present > best * GAIN_MIN && present - best > SAVING_MIN.as_secs_f64() / 60.0
}

/// By what factor steps have to become shorter.
const GAIN_MIN: f64 = 1.15;
/// How much shorter a step has to become.
const SAVING_MIN: Duration = Duration::from_millis(10);
/// The time between two changes of speeds, in which members measure what the first one has brought.
const CHANGE_INTERVAL: Duration = Duration::from_secs(5);
/// How often a member repeats its speed.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a speed counts after it was last sent.
const REPORT_MEMORY: Duration = Duration::from_secs(7);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    /// A view of three members with these speeds.
    fn view(speeds: &[u32]) -> View {
        View { speeds: speeds.to_vec(), ..fixtures::view(&[1, 2, 3]) }
    }

    #[test]
    fn speeds_change_where_steps_become_much_shorter() {
        // With equal parts, a batch of 600 samples takes 0.2 s at each of three equal members, and 0.6 s at one that is three times slower.
        let (fast, slow) = (60_000, 20_000);
        assert!(is_worthwhile(&view(&[]), &[fast, slow, fast], 600));
        assert!(!is_worthwhile(&view(&[fast, slow, fast]), &[fast, slow, fast], 600), "they are known");
        assert!(is_worthwhile(&view(&[fast, slow, fast]), &[fast; 3], 600), "it is faster again");
        assert!(!is_worthwhile(&view(&[]), &[fast; 3], 600), "they are equal");
        assert!(!is_worthwhile(&view(&[]), &[fast, fast - fast / 10, fast], 600), "almost");
        assert!(!is_worthwhile(&view(&[]), &[fast, slow, fast], 6), "it takes no time");
        assert!(!is_worthwhile(&view(&[]), &[0; 3], 600), "nothing is known");
        assert!(is_worthwhile(&view(&[]), &[fast, slow, 0], 600), "one is not known yet");
    }

    #[test]
    fn a_speed_is_reported_if_it_is_far_from_the_known_one() {
        assert!(differs(0, 1) && differs(100, 89) && differs(100, 111));
        assert!(!differs(100, 90) && !differs(100, 110) && !differs(u32::MAX, u32::MAX));
    }
}
