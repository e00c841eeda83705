//! The page of a sweep: a table of trials, a picture of the results for each key that varies, and one of the rungs.
//!
//! In the picture of a key, a dot is a training of a trial: to the right by the trial's value, up by its result. The hue is that of the rung.

use super::axis::AxisScale;
use super::comparison::{QualityMetric, table};
use super::frame::Frame;
use super::svg::{Drawing, Escaped, LEFT, Px, stroke};
use super::{add, head, section};

/// The contents of a page.
#[derive(Clone, Copy, Debug)]
pub struct SweepPage<'a> {
    /// What was found, in a sentence or two.
    pub about: &'a str,
    /// The table: a header, and a row for each trial.
    pub rows: &'a [Vec<String>],
    /// The metric of the results.
    pub worth: QualityMetric,
    /// The keys that vary.
    pub keys: &'a [SweptKey],
    /// The trainings.
    pub points: &'a [TrialPoint],
    /// The epochs that each rung trains, the lowest rung first.
    pub rungs: &'a [u64],
}

/// A key that varies.
#[derive(Clone, Debug)]
pub struct SweptKey {
    /// Its name.
    pub name: String,
    /// Its values where they are no numbers, in the order of their places; empty where they are.
    pub choices: Vec<String>,
}

/// A training of a trial.
#[derive(Clone, Debug)]
pub struct TrialPoint {
    /// The number of the trial.
    pub trial: usize,
    /// The trial in words.
    pub label: String,
    /// For each key the value, or the index of the choice.
    pub values: Vec<f64>,
    /// The rung, from 0.
    pub rung: usize,
    /// The result; not finite if there is none.
    pub worth: f64,
    /// Whether no trial was better.
    pub is_best: bool,
}

/// The page as HTML.
#[must_use]
pub fn render(sweep: &SweepPage<'_>) -> String {
    let names: Vec<&str> = sweep.keys.iter().map(|key| key.name.as_str()).collect();
    let title = format!("Sweep of {}", names.join(", "));
    let mut page = head(&title, STYLE);
    add(&mut page, format_args!("<h1>{}</h1>\n", Escaped(&title)));
    add(&mut page, format_args!("<p class=\"about\">{}</p>\n", Escaped(sweep.about)));
    for (index, key) in sweep.keys.iter().enumerate() {
        let title = format!("{} against {}", sweep.worth.name(), key.name);
        let how =
            "A dot is a training; a filled one is the best. The colour is that of the number of epochs.";
        section(&mut page, &Escaped(&title).to_string(), how, &key_picture(sweep, index, key, &title));
    }
    if sweep.rungs.len() > 1 {
        let title = format!("{} against epochs", sweep.worth.name());
        let how = "A line is a trial. It ends where others were better.";
        section(&mut page, &title, how, &rung_picture(sweep, &title));
    }
    table(&mut page, sweep.rows);
    page.push_str("</body>\n</html>\n");
    page
}

/// The axis of the results; `None` if there are none.
fn worth_axis(sweep: &SweepPage<'_>) -> Option<AxisScale> {
    let worths = sweep.points.iter().map(|point| point.worth).filter(|worth| worth.is_finite());
    let (low, high) =
        worths.fold((f64::MAX, f64::MIN), |(low, high), worth| (low.min(worth), high.max(worth)));
    (low <= high).then(|| sweep.worth.axis(low, high))
}

/// The axis of a key's values.
fn key_axis(points: &[TrialPoint], index: usize, key: &SweptKey) -> AxisScale {
    if !key.choices.is_empty() {
        let place = |(place, choice): (usize, &String)| (place as f64, choice.clone());
        let ticks = key.choices.iter().enumerate().map(place).collect();
        return AxisScale { low: -0.5, high: key.choices.len() as f64 - 0.5, ticks, is_logarithmic: false };
    }
    let values = points.iter().map(|point| point.values[index]);
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > 0.0 && high > low * LINEAR_FACTOR_MAX {
        AxisScale::by_factors(low, high)
    } else {
        AxisScale::covering(low, high, 8)
    }
}

fn key_picture(sweep: &SweepPage<'_>, index: usize, key: &SweptKey, label: &str) -> String {
    let Some(values) = worth_axis(sweep) else { return NOTHING.to_owned() };
    let sideways = key_axis(sweep.points, index, key);
    let mut drawing = Drawing::default();
    let top = legend(&mut drawing, sweep.rungs) + 16.0;
    let frame = Frame { values: &values, sideways: &sideways, top, bottom: top + HEIGHT };
    frame.draw(&mut drawing);
    for point in sweep.points.iter().filter(|point| point.worth.is_finite()) {
        dot(&mut drawing, point, (frame.x(point.values[index]), frame.y(point.worth)));
    }
    drawing.finish(frame.bottom + 20.0, "", label)
}

fn rung_picture(sweep: &SweepPage<'_>, label: &str) -> String {
    let Some(values) = worth_axis(sweep) else { return NOTHING.to_owned() };
    let most = sweep.rungs.iter().copied().max().unwrap_or(1) as f64;
    let sideways = AxisScale::covering(0.0, most, 10);
    let mut drawing = Drawing::default();
    let frame = Frame { values: &values, sideways: &sideways, top: 10.0, bottom: 10.0 + HEIGHT };
    frame.draw(&mut drawing);
    let place = |point: &TrialPoint| (frame.x(sweep.rungs[point.rung] as f64), frame.y(point.worth));
    let trials = sweep.points.iter().map(|point| point.trial + 1).max().unwrap_or(0);
    for trial in 0..trials {
        let is_own = |point: &&TrialPoint| point.trial == trial && point.worth.is_finite();
        let mut points: Vec<&TrialPoint> = sweep.points.iter().filter(is_own).collect();
        points.sort_by_key(|point| point.rung);
        let mut d = String::new();
        for (x, y) in points.iter().map(|point| place(point)) {
            d.push_str(&format!("{}{} {}", if d.is_empty() { 'M' } else { 'L' }, Px(x), Px(y)));
        }
        if let (Some(last), true) = (points.last(), points.len() > 1) {
            drawing.path(&format!("curve {}", stroke(last.rung)), &d, &last.label);
        }
        points.iter().for_each(|point| dot(&mut drawing, point, place(point)));
    }
    drawing.finish(frame.bottom + 20.0, "", label)
}

/// Draws a training, with its trial and result as a tooltip.
fn dot(drawing: &mut Drawing, point: &TrialPoint, (x, y): (f64, f64)) {
    let (class, radius) = if point.is_best { ("dot best", 5.0) } else { ("dot", 3.5) };
    drawing.put(format_args!(
        r#"<circle class="{class} {}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>"#,
        stroke(point.rung),
        Px(x),
        Px(y),
        Px(radius),
        Escaped(&point.label)
    ));
}

/// Draws which hue has how many epochs, and returns the position of the line. Nothing if all have as many.
fn legend(drawing: &mut Drawing, rungs: &[u64]) -> f64 {
    if rungs.len() < 2 {
        return 0.0;
    }
    for (rung, epochs) in rungs.iter().enumerate() {
        let x = LEFT + rung as f64 * LEGEND_WIDTH;
        drawing.line(&format!("curve {}", stroke(rung)), (x, 10.0), (x + 22.0, 10.0));
        let noun = if *epochs == 1 { "epoch" } else { "epochs" };
        drawing.text("tick", x + 27.0, 14.0, &format!("{epochs} {noun}"));
    }
    10.0
}

const NOTHING: &str = "<p class=\"empty\">No trial has a result.</p>\n";
/// The best trial is filled.
const STYLE: &str = ".dot.best { fill: currentColor; }\n";
/// The height of the plot area.
const HEIGHT: f64 = 260.0;
/// The room for a hue in the legend.
const LEGEND_WIDTH: f64 = 120.0;
/// Values that span a larger factor have a logarithmic axis.
const LINEAR_FACTOR_MAX: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn point(trial: usize, rung: usize, rate: f64, worth: f64) -> TrialPoint {
        let label = format!("trial {trial} <rate {rate}>");
        TrialPoint {
            trial,
            label,
            values: vec![rate, (trial % 2) as f64],
            rung,
            worth,
            is_best: trial == 1 && rung == 1,
        }
    }

    fn page(points: &[TrialPoint], rungs: &[u64]) -> String {
        let keys = [
            SweptKey { name: "optimizer.rate".to_owned(), choices: vec![] },
            SweptKey { name: "model.hidden".to_owned(), choices: vec!["[8]".to_owned(), "[32]".to_owned()] },
        ];
        let rows = [vec!["trial".to_owned()], vec!["1".to_owned()]];
        render(&SweepPage {
            about: "best: a<b",
            rows: &rows,
            worth: QualityMetric::Accuracy,
            keys: &keys,
            points,
            rungs,
        })
    }

    #[test]
    fn each_key_has_a_picture_with_a_dot_for_each_training() {
        let points = [
            point(0, 0, 1e-4, 0.5),
            point(1, 0, 1e-2, 0.7),
            point(1, 1, 1e-2, 0.9),
            point(2, 0, 1e-1, f64::NAN),
        ];
        let page = page(&points, &[3, 9]);
        assert_eq!(page.matches("<svg").count(), 3, "two keys, and the rungs");
        assert_eq!(page.matches("<circle").count(), 3 * 3, "a result that is not finite has no dot");
        assert_eq!(page.matches("class=\"dot best").count(), 3);
        assert!(page.contains("Accuracy against model.hidden") && page.contains(">[32]</text>"), "{page}");
        assert!(page.contains(">9 epochs</text>") && page.contains("best: a&lt;b"), "{page}");
        assert!(page.contains("trial 1 &lt;rate 0.01&gt;") && !page.contains("<rate"), "{page}");
        for outside in ["src=", "href=", "http"] {
            assert!(!page.contains(outside), "it needs nothing but itself: {outside}");
        }
    }

    #[test]
    fn one_rung_or_no_result_can_be_drawn() {
        assert_eq!(page(&[point(0, 0, 0.1, 0.5)], &[9]).matches("<svg").count(), 2);
        assert_eq!(page(&[], &[9]).matches("No trial has a result").count(), 2);
        assert_eq!(page(&[point(0, 0, 0.1, f64::NAN)], &[3, 9]).matches("No trial has a result").count(), 3);
    }
}
