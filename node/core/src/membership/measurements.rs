//! Measurements: how many samples a minute each member computes, and what its line carries.
//!
//! A member tells the coordinator what it has measured while the view has something else. The coordinator proposes a view with the new
//! values where that makes a difference, and training continues. By speeds, batches are divided so that all members
//! need the same time, and rounds get the length in seconds that a run asks for. By lines, members choose the topology of a round, and how much
//! they offer to own.
//!
//! Lines change the topology of all steps, so they change rarely: the first ones are taken in after [`FIRST_LINES_AFTER`], others after
//! [`LINES_INTERVAL`], where one has become much faster or slower, longer or shorter.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::AgreementMessage;
use peergrad_protocol::view::{MemberLine, View, weights_of};
use peergrad_protocol::{Instant, PeerId, Rank};

use super::members::Members;
use crate::io::Output;
use crate::state::round_size::RoundSize;

/// What a member has measured of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measurement {
    /// How many samples a minute it computes; 0 if that is unknown.
    pub(crate) samples_per_minute: u32,
    /// What its line carries, if that is a long one.
    pub(crate) line: MemberLine,
}

/// What members have measured, where it differs from the view.
pub(super) struct Measurements {
    /// That of this member.
    own: Measurement,
    /// When this member last told the coordinator.
    told_at: Option<Instant>,
    /// Those of other members. Empty at a member that does not coordinate.
    reports: BTreeMap<PeerId, Report>,
    /// When the view began for this member, and whether it is its first one.
    entered_at: Instant,
    is_first: bool,
    /// By rank: what the next view should have; `None` if this one has it.
    proposal: Option<Vec<Measurement>>,
}

/// The measurement of another member, and when it last said so.
#[derive(Clone, Copy, Debug)]
struct Report {
    measurement: Measurement,
    reported_at: Instant,
}

impl Measurement {
    /// What the view has of a member.
    pub(crate) fn in_view(view: &View, rank: Rank) -> Self {
        Self {
            samples_per_minute: view.speeds.get(rank.index()).copied().unwrap_or_default(),
            line: view.lines.get(rank.index()).copied().unwrap_or_default(),
        }
    }

    /// Whether it is so far from what the view has that a member reports it.
    fn differs(self, known: Self) -> bool {
        let (now, before) = (self.samples_per_minute, known.samples_per_minute);
        (now > 0 && now.abs_diff(before) > before / 10)
            || is_other_line(known.line, self.line, REPORTED_CHANGE)
    }
}

impl Measurements {
    /// Those of a member that enters its first view now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            own: Measurement::default(),
            told_at: None,
            reports: BTreeMap::new(),
            entered_at: now,
            is_first: true,
            proposal: None,
        }
    }

    /// This member has measured again.
    pub(super) fn set_own(&mut self, measurement: Measurement) {
        self.own = measurement;
    }

    /// Another member tells what it has measured.
    pub(super) fn note(&mut self, now: Instant, peer: PeerId, measurement: Measurement) {
        self.reports.insert(peer, Report { measurement, reported_at: now });
    }

    /// There is another view, perhaps with other measurements.
    pub(super) fn view_changed(&mut self, now: Instant) {
        *self = Self { own: self.own, is_first: false, ..Self::new(now) };
    }

    /// Tells the coordinator again what this member has measured, if the view has something else.
    pub(super) fn resend(&mut self, now: Instant, members: &Members, out: &mut Vec<Output>) {
        let place = &members.place;
        let is_due = self.told_at.is_none_or(|told_at| now.since(told_at) >= REPORT_INTERVAL);
        if !is_due || !self.own.differs(Measurement::in_view(&place.view, place.rank)) {
            return;
        }
        let Some(coordinator) = members.coordinator(now).filter(|rank| *rank != place.rank) else { return };
        self.told_at = Some(now);
        let Measurement { samples_per_minute, line } = self.own;
        let message = AgreementMessage::Measured { view: place.digest, samples_per_minute, line };
        members.send(place.peer(coordinator), &message.into(), out);
    }

    /// Finds out, at the coordinator, whether a step of this size would be computed faster with the speeds that are known now, or would have
    /// the length that the run asks for, and whether lines are no longer what they were. A member that has no speed itself proposes no
    /// speeds: perhaps this run divides batches evenly.
    pub(super) fn consider(&mut self, now: Instant, members: &Members, round_size: RoundSize) {
        self.reports.retain(|_, report| now.since(report.reported_at) < REPORT_MEMORY);
        self.proposal = None;
        if members.coordinator(now) != Some(members.place.rank) {
            return;
        }
        let age = now.since(self.entered_at);
        let newest: Vec<Measurement> =
            members.place.ranks().map(|rank| self.newest_of(rank, members)).collect();
        let view = &members.place.view;
        let speeds: Vec<u32> = newest.iter().map(|measurement| measurement.samples_per_minute).collect();
        let lines: Vec<MemberLine> = newest.iter().map(|measurement| measurement.line).collect();
        let has_speeds = self.own.samples_per_minute > 0
            && (self.is_first || age >= CHANGE_INTERVAL)
            && (is_worthwhile(&view.speeds, &speeds, round_size.samples(view, |_| true))
                || ((self.is_first || age >= UNEVEN_MAX) && is_uneven(&view.speeds, &speeds))
                || round_size.is_off(&view.speeds, &speeds));
        let has_lines = are_other_lines(&view.lines, &lines, age);
        if has_speeds || has_lines {
            let with_news = |rank: Rank| {
                let (known, news) = (Measurement::in_view(view, rank), newest[rank.index()]);
                Measurement {
                    samples_per_minute: if has_speeds { news } else { known }.samples_per_minute,
                    line: if has_lines { news } else { known }.line,
                }
            };
            self.proposal = Some(members.place.ranks().map(with_news).collect());
        }
    }

    /// By rank: what the next view should have; `None` if what this view has is good enough.
    pub(super) fn proposal(&self) -> Option<&[Measurement]> {
        self.proposal.as_deref()
    }

    /// The newest measurement of a member.
    fn newest_of(&self, rank: Rank, members: &Members) -> Measurement {
        let known = Measurement::in_view(&members.place.view, rank);
        let newest = if rank == members.place.rank {
            self.own
        } else {
            self.reports.get(&members.place.peer(rank)).map_or(known, |report| report.measurement)
        };
        // A member that has no speed yet keeps its last one.
        let speed = Some(newest.samples_per_minute).filter(|speed| *speed > 0);
        Measurement { samples_per_minute: speed.unwrap_or(known.samples_per_minute), ..newest }
    }
}

/// Whether the lines are so different from the known ones, in a view of this age, that members should agree on them again.
fn are_other_lines(known: &[MemberLine], lines: &[MemberLine], age: Duration) -> bool {
    if known.is_empty() && age < LINES_INTERVAL {
        return age >= FIRST_LINES_AFTER && lines.iter().all(MemberLine::is_known);
    }
    let before = |index: usize| known.get(index).copied().unwrap_or_default();
    let mut all = lines.iter().enumerate();
    age >= LINES_INTERVAL && all.any(|(index, line)| is_other_line(before(index), *line, AGREED_CHANGE))
}

/// Whether a line has another rate or round trip than the known one, by more than so many hundredths. One that is no longer long does.
fn is_other_line(known: MemberLine, line: MemberLine, hundredths: u64) -> bool {
    let is_other = |before: u32, now: u32| {
        let (least, most) = (u64::from(before.min(now)), u64::from(before.max(now)));
        100 * most > hundredths * least
    };
    is_other(known.kilobytes_per_second, line.kilobytes_per_second)
        || is_other(known.round_trip_milliseconds, line.round_trip_milliseconds)
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
/// By how many hundredths a line has to change for a report to the coordinator, and for another view.
const REPORTED_CHANGE: u64 = 125;
const AGREED_CHANGE: u64 = 150;
/// The age of a view in which the first lines of all members, and later ones, are taken in.
const FIRST_LINES_AFTER: Duration = Duration::from_secs(10);
const LINES_INTERVAL: Duration = Duration::from_secs(30);
/// How often a member repeats its measurement.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a measurement counts after it was last sent.
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
    fn a_measurement_is_reported_if_it_is_far_from_the_known_one() {
        let differs = |known: u32, now: u32| {
            let of = |samples_per_minute| Measurement { samples_per_minute, ..Measurement::default() };
            of(now).differs(of(known))
        };
        assert!(differs(0, 1) && differs(100, 89) && differs(100, 111));
        assert!(!differs(100, 90) && !differs(100, 110) && !differs(u32::MAX, u32::MAX));
        assert!(!differs(100, 0), "it is not known any more");
        let line = |kilobytes_per_second, round_trip_milliseconds| Measurement {
            line: MemberLine { kilobytes_per_second, round_trip_milliseconds },
            ..Measurement::default()
        };
        assert!(line(1000, 50).differs(line(0, 0)) && line(1000, 50).differs(line(1000, 30)));
        assert!(!line(1000, 50).differs(line(1200, 45)) && !line(0, 0).differs(line(0, 0)));
        assert!(line(0, 0).differs(line(1200, 45)), "it is no longer long");
    }

    #[test]
    fn lines_change_rarely_and_only_where_one_is_much_faster_or_slower_longer_or_shorter() {
        let line = |kilobytes_per_second, round_trip_milliseconds| MemberLine {
            kilobytes_per_second,
            round_trip_milliseconds,
        };
        let (fast, slow, unknown) = (line(25_000, 100), line(2500, 100), MemberLine::default());
        let seconds = Duration::from_secs;
        assert!(!are_other_lines(&[], &[fast, fast], seconds(9)), "they are still being measured");
        assert!(are_other_lines(&[], &[fast, fast], seconds(10)));
        assert!(!are_other_lines(&[], &[fast, unknown], seconds(29)));
        assert!(are_other_lines(&[], &[fast, unknown], seconds(30)), "the other one has a short line");
        assert!(!are_other_lines(&[], &[unknown; 2], seconds(30)));
        assert!(!are_other_lines(&[fast, fast], &[fast, slow], seconds(29)), "not so soon again");
        assert!(are_other_lines(&[fast, fast], &[fast, slow], seconds(30)));
        assert!(are_other_lines(&[fast, fast], &[line(25_000, 160), fast], seconds(30)));
        assert!(!are_other_lines(&[fast, fast], &[line(30_000, 90), line(20_000, 120)], seconds(30)));
        assert!(are_other_lines(&[fast, fast], &[fast, unknown], seconds(30)), "it is no longer long");
    }
}
