//! Marks on paper: the few shapes that pictures are made of, written as SVG text.
//!
//! Coordinates are CSS pixels at a page width of [`WIDTH`]. How a mark looks is its class's business (`style.css`);
//! where it is, and its words for whoever points at it, stand here.

use std::fmt::{self, Write};

/// Width of every drawing.
pub const WIDTH: f64 = 1200.0;
/// Where what is drawn begins; to the left of it stand the values of the axis.
pub const LEFT: f64 = 64.0;
/// Where it ends; the last value of a curve stands to the right of it.
pub const RIGHT: f64 = WIDTH - 48.0;
/// Distinct hues; what has a greater number than these gets one of them again.
pub const HUES: usize = 5;

/// A drawing on its way.
#[derive(Default)]
pub struct Drawing {
    body: String,
}

/// An upright rectangle.
#[derive(Clone, Copy)]
pub struct Area {
    /// Its left edge.
    pub x: f64,
    /// Its upper edge.
    pub y: f64,
    /// To the right.
    pub width: f64,
    /// Down.
    pub height: f64,
}

impl Drawing {
    /// Adds markup as it is.
    pub fn put(&mut self, markup: fmt::Arguments<'_>) {
        self.body.write_fmt(markup).expect("a string takes any text");
    }

    /// A rectangle; `words` are shown to whoever points at it, if there are any.
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

    /// A path, given as the text of its `d`.
    pub fn path(&mut self, class: &str, d: &str, words: &str) {
        if !d.is_empty() {
            self.put(format_args!(r#"<path class="{class}" d="{d}""#));
            self.close("path", words);
        }
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.put(format_args!(
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}"/>"#,
            Px(from.0),
            Px(from.1),
            Px(to.0),
            Px(to.1)
        ));
    }

    /// Text whose baseline is at `y`; the class says to which side of `x` it goes.
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

    /// The finished drawing. `attributes` go into the `svg` element; `label` says what it shows.
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

/// The class of a line in the hue with this number.
#[must_use]
pub fn stroke(hue: usize) -> String {
    format!("s{}", hue % HUES)
}

/// The outline of an area, to be joined with others into one path.
#[must_use]
pub fn outline(area: Area) -> String {
    let Area { x, y, width, height } = area;
    format!("M{} {}h{}v{}h{}z", Px(x), Px(y), Px(width), Px(height), Px(-width))
}

/// Text where markup is expected.
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

/// A length with at most two decimals, and never anything that SVG does not know.
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

/// Thins out until few enough are left: `draw` is given the width in pixels below which it need not tell things
/// apart, wider from try to try.
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
