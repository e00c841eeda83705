//! The page of a comparison: what each way of training is worth against samples, against time and against bytes, all of them in
//! one picture each, below a table of what they came to.
//!
//! Time is the network's and the machine's, bytes are the algorithm's; so the last picture is the fairest between two of them.

use std::time::Duration;

use super::axis::AxisScale;
use super::svg::{Drawing, Escaped, HUES, LEFT, Px, RIGHT, stroke};
use super::{add, head, reproduce_with, section};

/// What a page tells.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// What is compared, and how; may be empty.
    pub about: &'a str,
    /// The command that makes this page again.
    pub command: &'a str,
    /// A table: a head, and a line for each contender.
    pub rows: &'a [Vec<String>],
    /// What the pictures show.
    pub worth: QualityMetric,
    /// One sentence: how that was measured.
    pub how: &'a str,
    /// What `time` is in points: "virtual time in training".
    pub time: &'a str,
    /// One colour each.
    pub trainings: &'a [ComparedTraining<'a>],
}

/// One way of training.
#[derive(Clone, Debug)]
pub struct ComparedTraining<'a> {
    /// What it is called.
    pub name: &'a str,
    /// One for each seed.
    pub courses: Vec<Vec<Point>>,
}

/// Where a run was at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Samples trained.
    pub samples: u64,
    /// In training.
    pub time: Duration,
    /// Sent by all peers together.
    pub bytes: u64,
    /// Accuracy or loss.
    pub worth: f64,
}

/// What a model is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QualityMetric {
    /// Share of held-out samples that are classified rightly.
    Accuracy,
    /// Loss on held-out samples.
    Loss,
    /// Loss on the samples that are trained.
    TrainingLoss,
}

/// The page as HTML.
#[must_use]
pub fn render(comparison: &Comparison<'_>) -> String {
    let names: Vec<&str> = comparison.trainings.iter().map(|contender| contender.name).collect();
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

/// What a picture goes along.
type Reading = fn(&Point) -> f64;
/// The axis for it, from 0 to the most that there is.
type Axis = fn(f64) -> AxisScale;

impl QualityMetric {
    fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "Accuracy",
            Self::Loss => "Loss",
            Self::TrainingLoss => "Training loss",
        }
    }

    fn axis(self, low: f64, high: f64) -> AxisScale {
        match self {
            Self::Accuracy => AxisScale::covering(low, high, 6),
            Self::Loss | Self::TrainingLoss => AxisScale::of_losses(low, high, 6),
        }
    }
}

fn table(page: &mut String, rows: &[Vec<String>]) {
    page.push_str("<table>\n");
    for (index, row) in rows.iter().enumerate() {
        let cell = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|text| format!("<{cell}>{}</{cell}>", Escaped(text))).collect();
        add(page, format_args!("<tr>{cells}</tr>\n"));
    }
    page.push_str("</table>\n");
}

fn picture(comparison: &Comparison<'_>, label: &str, reading: Reading, axis: Axis) -> String {
    let points = comparison.trainings.iter().flat_map(|contender| contender.courses.iter().flatten());
    let all = || points.clone().filter(|point| point.worth.is_finite());
    let extent = |(low, high): (f64, f64), point: &Point| (low.min(point.worth), high.max(point.worth));
    let (low, high) = all().fold((f64::MAX, f64::MIN), extent);
    if low > high {
        return "<p class=\"empty\">Nothing was evaluated.</p>\n".to_owned();
    }
    let values = comparison.worth.axis(low, high);
    // One peer alone sends nothing, and still has its place.
    let sideways = axis(all().map(reading).fold(0.0, f64::max).max(1.0));
    let mut drawing = Drawing::default();
    let top = key(&mut drawing, comparison.trainings) + 16.0;
    let bottom = top + HEIGHT;
    let (x, y) = (
        |value: f64| LEFT + (RIGHT - LEFT) * sideways.part(value),
        |value: f64| bottom - (bottom - top) * values.part(value),
    );
    for (value, words) in &values.ticks {
        drawing.line("grid", (LEFT, y(*value)), (RIGHT, y(*value)));
        drawing.text("tick end", LEFT - 8.0, y(*value) + 4.0, words);
    }
    for (value, words) in &sideways.ticks {
        drawing.line("axis", (x(*value), bottom), (x(*value), bottom + 4.0));
        drawing.text("tick mid", x(*value), bottom + 16.0, words);
    }
    drawing.line("axis", (LEFT, bottom), (RIGHT, bottom));
    for (index, contender) in comparison.trainings.iter().enumerate() {
        for course in &contender.courses {
            let course = course.iter().filter(|point| point.worth.is_finite());
            let places: Vec<(f64, f64)> = course.map(|point| (x(reading(point)), y(point.worth))).collect();
            line(&mut drawing, index, contender.name, &places);
        }
    }
    drawing.finish(bottom + 20.0, "", label)
}

/// One course: a line, and a dot at each of its points.
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

/// Which line is whose, in as many rows as that takes; returns where it ends.
fn key(drawing: &mut Drawing, trainings: &[ComparedTraining<'_>]) -> f64 {
    let (mut x, mut y) = (LEFT, 10.0);
    for (index, contender) in trainings.iter().enumerate() {
        let width = 52.0 + contender.name.chars().count() as f64 * CHARACTER;
        if x > LEFT && x + width > RIGHT {
            (x, y) = (LEFT, y + 18.0);
        }
        drawing.line(&line_style(index), (x, y), (x + 22.0, y));
        drawing.text("tick", x + 27.0, y + 4.0, contender.name);
        x += width;
    }
    y
}

/// The classes of a line. Where hues come round again, the line is broken in another way.
fn line_style(index: usize) -> String {
    let pattern = ["", " dashed", " dotted"][(index / HUES).min(2)];
    format!("curve {}{pattern}", stroke(index))
}

const HEIGHT: f64 = 260.0;
/// About the width of a letter in the key.
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
    fn there_are_three_pictures_with_a_line_for_each_course() {
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
        assert_eq!(page.matches("<circle").count(), 3 * 8, "what is not finite has no place");
        assert!(page.contains("Training loss against bytes sent") && page.contains("10 kB"), "{page}");
        assert!(page.contains("<h1>a&lt;b and c</h1>"), "{page}");
        assert!(page.contains("<td>a&lt;b</td>") && !page.contains("a<b"), "{page}");
    }

    #[test]
    fn nothing_and_one_point_are_no_trouble() {
        let nothing = [ComparedTraining { name: "a", courses: vec![vec![], course(&[f64::NAN])] }];
        assert_eq!(page(&nothing, QualityMetric::Accuracy).matches("Nothing was evaluated").count(), 3);
        let alone = Point { samples: 0, time: Duration::ZERO, bytes: 0, worth: 0.5 };
        let alone = [ComparedTraining { name: "a", courses: vec![vec![alone]] }];
        assert!(!page(&alone, QualityMetric::Loss).contains("NaN"));
    }

    #[test]
    fn many_names_take_several_rows_and_differ() {
        let names: Vec<String> =
            (0..12).map(|index| format!("a/rather/long/path/number-{index}.toml")).collect();
        let trainings: Vec<ComparedTraining<'_>> =
            names.iter().map(|name| ComparedTraining { name, courses: vec![] }).collect();
        assert!(key(&mut Drawing::default(), &trainings) > 28.0);
        let looks: std::collections::BTreeSet<String> = (0..12).map(line_style).collect();
        assert_eq!(looks.len(), 12);
    }
}
