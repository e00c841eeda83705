//! The rows of the lanes: where each peer's lane lies on the page. Few peers get high lanes; many share the same height.

/// Where the lanes lie.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Top of the first.
    pub(super) top: f64,
    /// From one to the next.
    pub(super) pitch: f64,
    /// Height of what is drawn in one.
    pub(super) bar: f64,
    /// How many there are.
    pub(super) count: usize,
}

impl Rows {
    /// `count` lanes below `top`: the more there are, the lower is each.
    pub(super) fn new(count: usize, top: f64) -> Self {
        let pitch = (LANES_HEIGHT / count as f64).clamp(PITCH_MIN, PITCH_MAX);
        let bar = match pitch {
            ..4.0 => pitch,
            4.0..10.0 => pitch - 1.0,
            _ => (pitch * 0.7).round(),
        };
        Self { top, pitch, bar, count }
    }

    /// Where the bar of a lane begins.
    pub(super) fn bar_top(self, lane: usize) -> f64 {
        self.top + lane as f64 * self.pitch + (self.pitch - self.bar) / 2.0
    }

    /// The middle of a lane.
    pub(super) fn middle(self, lane: usize) -> f64 {
        self.top + (lane as f64 + 0.5) * self.pitch
    }

    /// Where the last lane ends.
    pub(super) fn bottom(self) -> f64 {
        self.top + self.count as f64 * self.pitch
    }

    /// Whether a lane is high enough to be looked at by itself.
    pub(super) fn are_tall(self) -> bool {
        self.pitch >= PITCH_TALL
    }
}

/// All lanes together are no higher than this, unless there are more than a thousand.
const LANES_HEIGHT: f64 = 700.0;
const PITCH_MAX: f64 = 22.0;
const PITCH_MIN: f64 = 0.6;
/// Lanes of this height are drawn one by one.
const PITCH_TALL: f64 = 5.0;
