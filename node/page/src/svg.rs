//! SVG marks: the few shapes that pictures consist of.
//!
//! Coordinates are CSS pixels at a page width of [`WIDTH`]. The class of a mark sets its look (`style.css`). This file sets its
//! position and its tooltip.

use std::fmt::{self, Write};

/// The width of every drawing.
pub const WIDTH: f64 = 1200.0;
/// The left edge of the plot area; the labels of the vertical axis are to the left of it.
pub const LEFT: f64 = 64.0;
/// The right edge of the plot area; the last values of curves are to the right of it.
pub const RIGHT: f64 = WIDTH - 48.0;
/// The number of distinct hues; higher numbers reuse them.
pub const HUES: usize = 5;

/// A drawing under construction.
#[derive(Default)]
pub struct Drawing {
    body: String,
}

/// A rectangle.
#[derive(Clone, Copy)]
pub struct Area {
    /// The left edge.
    pub x: f64,
    /// The upper edge.
    pub y: f64,
    /// The width.
    pub width: f64,
    /// The height.
    pub height: f64,
}

impl Drawing {
    /// Adds markup without escaping.
    pub fn put(&mut self, markup: fmt::Arguments<'_>) {
        self.body.write_fmt(markup).expect("writing to a string succeeds");
    }

    /// Adds a rectangle; `words` is its tooltip, or empty for none.
    pub fn rect(&mut self, class: &str, area: Area, words: &str) {
        let Area { x, y, width, height } = area;
        self.put(format_args!(
            r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}""#,
            Px(x),
            Px(y),
            Px(width.max(0.0)),
            Px(height.max(0.0))
        ));
        self.close("rect", words);
    }

    /// Adds a path with this text of its `d` attribute; `words` is its tooltip, or empty for none.
    pub fn path(&mut self, class: &str, d: &str, words: &str) {
        if !d.is_empty() {
            self.put(format_args!(r#"<path class="{class}" d="{d}""#));
            self.close("path", words);
        }
    }

    /// Adds a straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.put(format_args!(
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}"/>"#,
            Px(from.0),
            Px(from.1),
            Px(to.0),
            Px(to.1)
        ));
    }

    /// Adds text with its baseline at `y`; its class sets the alignment to `x`.
    pub fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        self.put(format_args!(
            r#"<text class="{class}" x="{}" y="{}">{}</text>"#,
            Px(x),
            Px(y),
            Escaped(text)
        ));
    }

    fn close(&mut self, element: &str, words: &str) {
        if words.is_empty() {
            self.body.push_str("/>");
        } else {
            self.put(format_args!("><title>{}</title></{element}>", Escaped(words)));
        }
    }

    /// The finished drawing. `attributes` are added to the `svg` element; `label` describes the drawing.
    #[must_use]
    pub fn finish(self, height: f64, attributes: &str, label: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\"{attributes}>\n{}\n</svg>\n",
            Escaped(label),
            Px(WIDTH),
            Px(height),
            self.body
        )
    }
}

/// The class of a line with this hue number.
#[must_use]
pub fn stroke(hue: usize) -> String {
    format!("s{}", hue % HUES)
}

/// The outline of an area as path commands; several can be concatenated.
#[must_use]
pub fn outline(area: Area) -> String {
    let Area { x, y, width, height } = area;
    format!("M{} {}h{}v{}h{}z", Px(x), Px(y), Px(width), Px(height), Px(-width))
}

/// Displays text with the characters escaped that are special in markup.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(character)?,
                _ if character.is_control() => f.write_char('\u{fffd}')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Displays a length with at most two decimals; a number that is not finite is displayed as 0.
pub struct Px(pub f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = if self.0.is_finite() { (self.0 * 100.0).round() as i64 } else { 0 };
        let sign = if hundredths < 0 { "-" } else { "" };
        let (whole, rest) = (hundredths.unsigned_abs() / 100, hundredths.unsigned_abs() % 100);
        match rest {
            0 => write!(f, "{sign}{whole}"),
            _ if rest % 10 == 0 => write!(f, "{sign}{whole}.{}", rest / 10),
            _ => write!(f, "{sign}{whole}.{rest:02}"),
        }
    }
}

/// Calls `draw` with ever coarser resolutions until it returns at most `budget` items. The resolution is the width in pixels below
/// which `draw` need not distinguish items.
pub fn thinned<T>(budget: usize, draw: impl Fn(f64) -> Vec<T>) -> Vec<T> {
    let mut grain = GRAIN_MIN;
    loop {
        let drawn = draw(grain);
        if drawn.len() <= budget || grain >= GRAIN_MAX {
            return drawn;
        }
        grain *= 2.0;
    }
}

/// The finest and the coarsest resolution of [`thinned`], in pixels.
const GRAIN_MIN: f64 = 0.5;
const GRAIN_MAX: f64 = 64.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_short_and_finite() {
        let written: Vec<String> =
            [0.0, -0.001, 1.5, -2.25, 1.05, f64::NAN, f64::INFINITY].map(|x| Px(x).to_string()).into();
        assert_eq!(written, ["0", "0", "1.5", "-2.25", "1.05", "0", "0"]);
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(Escaped("<b a='1'>&\"\u{7}").to_string(), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{fffd}");
    }
}
