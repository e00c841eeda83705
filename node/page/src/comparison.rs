//! The page of a comparison of trainings: a table of results, and their learning curves against samples, time and bytes.
//!
//! Time depends on the network and the machine, bytes depend only on the algorithm. So the last picture compares algorithms best.

use std::time::Duration;

use super::axis::AxisScale;
use super::frame::Frame;
use super::svg::{Drawing, Escaped, HUES, LEFT, Px, RIGHT, stroke};
use super::{add, head, reproduce_with, section};

/// The contents of a page.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// A description of the comparison; may be empty.
    pub about: &'a str,
    /// The command that reproduces the page.
    pub command: &'a str,
    /// The table: a header, and a row for each training.
    pub rows: &'a [Vec<String>],
    /// The metric of the learning curves.
    pub worth: QualityMetric,
    /// A sentence that says how the metric was measured.
    pub how: &'a str,
    /// The name of the time axis, such as "virtual time in training".
    pub time: &'a str,
    /// The trainings, each with its own line style.
    pub trainings: &'a [ComparedTraining<'a>],
}

/// A training, repeated with several seeds.
#[derive(Clone, Debug)]
pub struct ComparedTraining<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its learning curves, one for each seed.
    pub courses: Vec<Vec<Point>>,
}

/// A point of a learning curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Samples trained so far.
    pub samples: u64,
    /// Time in training so far.
    pub time: Duration,
    /// Bytes sent so far by all peers.
    pub bytes: u64,
    /// The value of the metric.
    pub worth: f64,
}

/// The metric of learning curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QualityMetric {
    /// The accuracy on held-out samples.
    Accuracy,
    /// The loss on held-out samples.
    Loss,
    /// The loss on training samples.
    TrainingLoss,
}

/// The page as HTML.
#[must_use]
pub fn render(comparison: &Comparison<'_>) -> String {
    let names: Vec<&str> = comparison.trainings.iter().map(|training| training.name).collect();
    let title = match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    };
    let mut page = head(&title, "");
    add(&mut page, format_args!("<h1>{}</h1>\n", Escaped(&title)));
    if !comparison.about.is_empty() {
        add(&mut page, format_args!("<p class=\"about\">{}</p>\n", Escaped(comparison.about)));
    }
    reproduce_with(&mut page, comparison.command);
    table(&mut page, comparison.rows);
    let time = format!("{} against {}", comparison.worth.name(), comparison.time);
    let pictures: [(&str, Reading, Axis); 3] = [
        ("samples trained", |point| point.samples as f64, |most| AxisScale::covering(0.0, most, 10)),
        ("", |point| point.time.as_nanos() as f64, |most| AxisScale::times(most as u64)),
        (
            "bytes sent by all peers together",
            |point| point.bytes as f64,
            |most| AxisScale::bytes(most, 10, ""),
        ),
    ];
    for (what, reading, axis) in pictures {
        let title = match what {
            "" => time.clone(),
            what => format!("{} against {what}", comparison.worth.name()),
        };
        let picture = picture(comparison, &title, reading, axis);
        section(&mut page, &Escaped(&title).to_string(), &Escaped(comparison.how).to_string(), &picture);
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// Reads the horizontal coordinate of a point.
type Reading = fn(&Point) -> f64;
/// Creates the horizontal axis for coordinates from 0 to the given maximum.
type Axis = fn(f64) -> AxisScale;

impl QualityMetric {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "Accuracy",
            Self::Loss => "Loss",
            Self::TrainingLoss => "Training loss",
        }
    }

    pub(crate) fn axis(self, low: f64, high: f64) -> AxisScale {
        match self {
            Self::Accuracy => AxisScale::covering(low, high, 6),
            Self::Loss | Self::TrainingLoss => AxisScale::of_losses(low, high, 6),
        }
    }
}

pub(crate) fn table(page: &mut String, rows: &[Vec<String>]) {
    page.push_str("<table>\n");
    for (index, row) in rows.iter().enumerate() {
        let cell = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|text| format!("<{cell}>{}</{cell}>", Escaped(text))).collect();
        add(page, format_args!("<tr>{cells}</tr>\n"));
    }
    page.push_str("</table>\n");
}

fn picture(comparison: &Comparison<'_>, label: &str, reading: Reading, axis: Axis) -> String {
    let points = comparison.trainings.iter().flat_map(|training| training.courses.iter().flatten());
    let all = || points.clone().filter(|point| point.worth.is_finite());
    let extent = |(low, high): (f64, f64), point: &Point| (low.min(point.worth), high.max(point.worth));
    let (low, high) = all().fold((f64::MAX, f64::MIN), extent);
    if low > high {
        return "<p class=\"empty\">Nothing was evaluated.</p>\n".to_owned();
    }
    let values = comparison.worth.axis(low, high);
    // A single peer sends no bytes, and the axis must not be empty.
    let sideways = axis(all().map(reading).fold(0.0, f64::max).max(1.0));
    let mut drawing = Drawing::default();
    let top = key(&mut drawing, comparison.trainings) + 16.0;
    let bottom = top + HEIGHT;
    let frame = Frame { values: &values, sideways: &sideways, top, bottom };
    frame.draw(&mut drawing);
    for (index, training) in comparison.trainings.iter().enumerate() {
        for course in &training.courses {
            let course = course.iter().filter(|point| point.worth.is_finite());
            let places: Vec<(f64, f64)> =
                course.map(|point| (frame.x(reading(point)), frame.y(point.worth))).collect();
            line(&mut drawing, index, training.name, &places);
        }
    }
    drawing.finish(bottom + 20.0, "", label)
}

/// Draws one learning curve: a line with a dot at each point.
fn line(drawing: &mut Drawing, index: usize, name: &str, places: &[(f64, f64)]) {
    let mut d = String::new();
    for (x, y) in places {
        d.push_str(&format!("{}{} {}", if d.is_empty() { 'M' } else { 'L' }, Px(*x), Px(*y)));
    }
    drawing.path(&line_style(index), &d, name);
    for (x, y) in places {
        let (class, x, y) = (stroke(index), Px(*x), Px(*y));
        drawing.put(format_args!(r#"<circle class="dot {class}" cx="{x}" cy="{y}" r="2"/>"#));
    }
}

/// Draws the legend in as many rows as it needs, and returns the position of the last.
fn key(drawing: &mut Drawing, trainings: &[ComparedTraining<'_>]) -> f64 {
    let (mut x, mut y) = (LEFT, 10.0);
    for (index, training) in trainings.iter().enumerate() {
        let width = 52.0 + training.name.chars().count() as f64 * CHARACTER;
        if x > LEFT && x + width > RIGHT {
            (x, y) = (LEFT, y + 18.0);
        }
        drawing.line(&line_style(index), (x, y), (x + 22.0, y));
        drawing.text("tick", x + 27.0, y + 4.0, training.name);
        x += width;
    }
    y
}

/// The classes of a line. Lines that reuse a hue have another dash pattern.
fn line_style(index: usize) -> String {
    let pattern = ["", " dashed", " dotted"][(index / HUES).min(2)];
    format!("curve {}{pattern}", stroke(index))
}

/// The height of the plot area.
const HEIGHT: f64 = 260.0;
/// The approximate width of a letter in the legend.
const CHARACTER: f64 = 6.2;

#[cfg(test)]
mod tests {
    use super::*;

    fn course(worths: &[f64]) -> Vec<Point> {
        let point = |(index, worth): (usize, &f64)| {
            let index = index as u64 + 1;
            Point {
                samples: 100 * index,
                time: Duration::from_secs(index),
                bytes: 5_000 * index,
                worth: *worth,
            }
        };
        worths.iter().enumerate().map(point).collect()
    }

    fn page(trainings: &[ComparedTraining<'_>], worth: QualityMetric) -> String {
        let rows = [vec![String::new(), "in the end".to_owned()], vec!["a<b".to_owned(), "0.9".to_owned()]];
        render(&Comparison {
            about: "",
            command: "compare a b",
            rows: &rows,
            worth,
            how: "As it was.",
            time: "time",
            trainings,
        })
    }

    #[test]
    fn each_of_three_pictures_has_a_line_per_curve() {
        let trainings = [
            ComparedTraining {
                name: "a<b",
                courses: vec![course(&[2.0, 1.0, 0.2]), course(&[2.1, 0.9, 0.1])],
            },
            ComparedTraining { name: "c", courses: vec![course(&[2.0, f64::NAN, 0.3])] },
        ];
        let page = page(&trainings, QualityMetric::TrainingLoss);
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<path class=\"curve").count(), 9);
        assert_eq!(page.matches("<circle").count(), 3 * 8, "values that are not finite have no dot");
        assert!(page.contains("Training loss against bytes sent") && page.contains("10 kB"), "{page}");
        assert!(page.contains("<h1>a&lt;b and c</h1>"), "{page}");
        assert!(page.contains("<td>a&lt;b</td>") && !page.contains("a<b"), "{page}");
    }

    #[test]
    fn no_points_or_one_point_can_be_drawn() {
        let nothing = [ComparedTraining { name: "a", courses: vec![vec![], course(&[f64::NAN])] }];
        assert_eq!(page(&nothing, QualityMetric::Accuracy).matches("Nothing was evaluated").count(), 3);
        let alone = Point { samples: 0, time: Duration::ZERO, bytes: 0, worth: 0.5 };
        let alone = [ComparedTraining { name: "a", courses: vec![vec![alone]] }];
        assert!(!page(&alone, QualityMetric::Loss).contains("NaN"));
    }

    #[test]
    fn many_names_take_several_rows_and_have_distinct_styles() {
        let names: Vec<String> =
            (0..12).map(|index| format!("a/rather/long/path/number-{index}.toml")).collect();
        let trainings: Vec<ComparedTraining<'_>> =
            names.iter().map(|name| ComparedTraining { name, courses: vec![] }).collect();
        assert!(key(&mut Drawing::default(), &trainings) > 28.0);
        let looks: std::collections::BTreeSet<String> = (0..12).map(line_style).collect();
        assert_eq!(looks.len(), 12);
    }
}
