//! Round size: how many samples a step takes, and in how many local steps.
//!
//! Most programs take one local step between two exchanges, or a number that the run's specification gives. A run can ask for rounds of so
//! many seconds instead. Then the number follows from the speeds in the view's record, and no clock is read: all members compute the same
//! number from the same record, and it changes only with the view.
//!
//! ```text
//! speeds 40, 20 and 60 samples a second, batch 60: a local step takes half a second    rounds of 30 s have 60 local steps
//! ```
//!
//! # Invariants
//! - A round has at least one local step and at most [`LOCAL_STEPS_MAX`], and it ends with its epoch.
//! - Speeds decide how many samples a step takes from the data cursor, never which ones come next. So each sample is trained once.

use std::time::Duration;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::LOCAL_STEPS_MAX;
use peergrad_protocol::view::{View, weights_of};

/// How many samples a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundSize {
    /// Samples of a local step, over all members together.
    pub(crate) batch_size: u64,
    /// How many samples stay together when the round is divided.
    pub(crate) block: u64,
    /// Local steps of a round; where rounds have a `duration`, only while no speed is known.
    pub(crate) local_steps: u64,
    /// How long the local steps of a round take together; `None` if their number is fixed.
    pub(crate) duration: Option<Duration>,
}

impl RoundSize {
    /// The number of local steps in the rounds of a view in which these members compute.
    pub(crate) fn local_steps(&self, view: &View, computes: impl Fn(Rank) -> bool) -> u64 {
        match self.duration {
            Some(duration) if are_known(&view.speeds) => {
                self.within(duration, total(&view.batch_weights(computes)))
            }
            _ => self.local_steps,
        }
    }

    /// The number of samples in the rounds of a view in which these members compute.
    pub(crate) fn samples(&self, view: &View, computes: impl Fn(Rank) -> bool) -> u64 {
        self.batch_size.saturating_mul(self.local_steps(view, computes))
    }

    /// Whether rounds are so much shorter or longer than the run asks for that a view with these new `speeds` is worthwhile, where the
    /// present one has the speeds `known`.
    pub(crate) fn is_off(&self, known: &[u32], speeds: &[u32]) -> bool {
        let Some(duration) = self.duration.filter(|_| are_known(speeds)) else { return false };
        let proposed = total(&weights_of(speeds, speeds.len()));
        if !are_known(known) {
            return self.within(duration, proposed) != self.local_steps;
        }
        let present = total(&weights_of(known, speeds.len()));
        let (least, most) = (present.min(proposed), present.max(proposed));
        most * OFF_MIN.1 > least * OFF_MIN.0
            && self.within(duration, present) != self.within(duration, proposed)
    }

    /// The number of local steps that members of this speed together, in samples a minute, take in this time: the nearest one.
    fn within(&self, duration: Duration, samples_per_minute: u64) -> u64 {
        let samples = duration.as_nanos() * u128::from(samples_per_minute);
        let of_each = u128::from(self.batch_size.max(1)) * MINUTE.as_nanos();
        let steps = (2 * samples + of_each) / (2 * of_each);
        u64::try_from(steps).unwrap_or(u64::MAX).clamp(1, LOCAL_STEPS_MAX)
    }
}

/// Whether the speed of any member is known.
fn are_known(speeds: &[u32]) -> bool {
    speeds.iter().any(|speed| *speed > 0)
}

fn total(weights: &[u32]) -> u64 {
    weights.iter().map(|weight| u64::from(*weight)).sum()
}

const MINUTE: Duration = Duration::from_secs(60);
/// By what factor all members together have to be faster or slower than the view says, as a fraction: 5/4.
const OFF_MIN: (u64, u64) = (5, 4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    const HALF_A_MINUTE: Duration = Duration::from_secs(30);

    fn timed(duration: Duration) -> RoundSize {
        RoundSize { batch_size: 60, block: 1, local_steps: 4, duration: Some(duration) }
    }

    fn view(speeds: &[u32]) -> View {
        View { speeds: speeds.to_vec(), ..fixtures::view(&[1, 2, 3]) }
    }

    #[test]
    fn a_round_has_as_many_local_steps_as_the_seconds_allow() {
        let count = |duration: Duration, speeds: &[u32]| timed(duration).local_steps(&view(speeds), |_| true);
        assert_eq!(count(HALF_A_MINUTE, &[2400, 1200, 3600]), 60);
        assert_eq!(
            count(HALF_A_MINUTE, &[2400, 1200, 0]),
            45,
            "a member of unknown speed is of average speed"
        );
        assert_eq!(count(HALF_A_MINUTE, &[2400, 1200, 3660]), 61, "the nearest number");
        assert_eq!(count(HALF_A_MINUTE, &[]), 4, "no speed is known");
        assert_eq!(count(HALF_A_MINUTE, &[0, 0, 0]), 4);
        assert_eq!(count(Duration::from_millis(1), &[1, 1, 1]), 1);
        assert_eq!(count(Duration::from_secs(86_400), &[u32::MAX; 3]), LOCAL_STEPS_MAX);
        let fixed = RoundSize { duration: None, ..timed(HALF_A_MINUTE) };
        assert_eq!(fixed.local_steps(&view(&[2400, 1200, 3600]), |_| true), 4);
    }

    #[test]
    fn a_newcomer_without_parameters_does_not_count() {
        let round_size = timed(HALF_A_MINUTE);
        let samples = round_size.samples(&view(&[2400, 1200, 3600]), |rank| rank != Rank(2));
        assert_eq!(samples, 30 * 60);
    }

    #[test]
    fn a_view_is_worthwhile_if_rounds_have_the_wrong_length() {
        let is_off = |known: &[u32], speeds: &[u32]| timed(HALF_A_MINUTE).is_off(known, speeds);
        assert!(is_off(&[], &[2400; 3]), "no speed is known, and all are equal");
        assert!(!is_off(&[], &[160; 3]), "four local steps take half a minute");
        assert!(!is_off(&[2400; 3], &[0; 3]));
        assert!(is_off(&[2400; 3], &[1200; 3]) && is_off(&[1200; 3], &[2400; 3]));
        assert!(!is_off(&[2400; 3], &[2100; 3]) && !is_off(&[2400; 3], &[2800; 3]), "almost");
        let fixed = RoundSize { duration: None, ..timed(HALF_A_MINUTE) };
        assert!(!fixed.is_off(&[], &[2400; 3]));
        let short = timed(Duration::from_millis(100));
        assert!(!short.is_off(&[600; 3], &[2400; 3]), "one local step is the least");
    }
}
