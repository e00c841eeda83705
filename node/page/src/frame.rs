//! The frame of a plot: a vertical and a horizontal axis with their ticks, and the places of values between them.

use super::axis::AxisScale;
use super::svg::{Drawing, LEFT, RIGHT};

/// Where a plot is, and what its axes show.
pub(crate) struct Frame<'a> {
    /// The vertical axis.
    pub(crate) values: &'a AxisScale,
    /// The horizontal axis.
    pub(crate) sideways: &'a AxisScale,
    /// The upper edge.
    pub(crate) top: f64,
    /// The lower edge.
    pub(crate) bottom: f64,
}

impl Frame<'_> {
    /// The place of a value on the horizontal axis.
    pub(crate) fn x(&self, value: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * self.sideways.part(value)
    }

    /// The place of a value on the vertical axis.
    pub(crate) fn y(&self, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * self.values.part(value)
    }

    /// Draws both axes.
    pub(crate) fn draw(&self, drawing: &mut Drawing) {
        for (value, words) in &self.values.ticks {
            drawing.line("grid", (LEFT, self.y(*value)), (RIGHT, self.y(*value)));
            drawing.text("tick end", LEFT - 8.0, self.y(*value) + 4.0, words);
        }
        for (value, words) in &self.sideways.ticks {
            drawing.line("axis", (self.x(*value), self.bottom), (self.x(*value), self.bottom + 4.0));
            drawing.text("tick mid", self.x(*value), self.bottom + 16.0, words);
        }
        drawing.line("axis", (LEFT, self.bottom), (RIGHT, self.bottom));
    }
}
