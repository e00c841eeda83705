//! The page of a comparison: the model's worth against samples, against time and against bytes, all runs in one picture each.

use super::axis::Values;
use super::svg::{Drawing, Escaped, Px};
use super::timeline::{LEFT, RIGHT, stroke};
use super::{STYLE, add, section};
use crate::compare::{Course, Mark};

/// What is compared.
pub struct Contender<'a> {
    /// The scenario's name.
    pub name: &'a str,
    /// One for each seed.
    pub courses: &'a [Course],
}

/// The page as HTML. `rows` is a table: a head, and a line for each contender.
#[must_use]
pub fn render_comparison(command: &str, contenders: &[Contender<'_>], rows: &[Vec<String>]) -> String {
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
    let title = names.join(" and ");
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<p class=\"again\">Again: <code>{1}</code></p>\n",
        Escaped(&title),
        Escaped(command)
    );
    table(&mut page, rows);
    let is_accuracy = contenders.iter().flat_map(marks).any(|mark| mark.evaluation.accuracy.is_some());
    let worth = if is_accuracy { "Accuracy" } else { "Loss" };
    let pictures: [(&str, Reading); 3] = [
        ("samples dealt", |mark| mark.samples as f64),
        ("seconds of virtual time in training", |mark| mark.time.as_secs_f64()),
        ("megabytes sent by all peers together", |mark| mark.bytes as f64 / 1e6),
    ];
    for (what, x) in pictures {
        let title = format!("{worth} against {what}");
        section(&mut page, &title, HOW, &picture(contenders, &title, x));
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// What a picture goes along.
type Reading = fn(&Mark) -> f64;

fn table(page: &mut String, rows: &[Vec<String>]) {
    page.push_str("<table>\n");
    for (index, row) in rows.iter().enumerate() {
        let cell = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|text| format!("<{cell}>{}</{cell}>", Escaped(text))).collect();
        add(page, format_args!("<tr>{cells}</tr>\n"));
    }
    page.push_str("</table>\n");
}

fn marks<'a>(contender: &'a Contender<'_>) -> impl Iterator<Item = &'a Mark> {
    contender.courses.iter().flat_map(of_course)
}

fn of_course(course: &Course) -> impl Iterator<Item = &Mark> {
    course.marks.iter().chain(&course.end)
}

fn worth(mark: &Mark) -> f64 {
    mark.evaluation.accuracy.unwrap_or(mark.evaluation.loss)
}

fn picture(contenders: &[Contender<'_>], label: &str, x: Reading) -> String {
    let all = || contenders.iter().flat_map(marks).filter(|mark| worth(mark).is_finite());
    let (low, high) = all().map(worth).fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
    if low > high {
        return "<p class=\"empty\">Nothing was evaluated.</p>\n".to_owned();
    }
    let values = Values::covering(low, high, 6);
    let most = all().map(x).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let sideways = Values::covering(0.0, most, 10);
    let (top, bottom) = (26.0, 26.0 + HEIGHT);
    let at = |mark: &Mark| {
        let x = LEFT + (RIGHT - LEFT) * sideways.part(x(mark));
        (x, bottom - (bottom - top) * values.part(worth(mark)))
    };
    let mut drawing = Drawing::default();
    for (value, words) in &values.ticks {
        let y = bottom - (bottom - top) * values.part(*value);
        drawing.line("grid", (LEFT, y), (RIGHT, y));
        drawing.text("tick end", LEFT - 8.0, y + 4.0, words);
    }
    for (value, words) in &sideways.ticks {
        let x = LEFT + (RIGHT - LEFT) * sideways.part(*value);
        drawing.line("axis", (x, bottom), (x, bottom + 4.0));
        drawing.text("tick mid", x, bottom + 16.0, words);
    }
    drawing.line("axis", (LEFT, bottom), (RIGHT, bottom));
    for (index, contender) in contenders.iter().enumerate() {
        let x = LEFT + index as f64 * 220.0;
        drawing.line(&format!("curve {}", stroke(index)), (x, 10.0), (x + 16.0, 10.0));
        drawing.text("tick", x + 21.0, 14.0, contender.name);
        for course in contender.courses {
            let mut d = String::new();
            for mark in of_course(course).filter(|mark| worth(mark).is_finite()) {
                let (x, y) = at(mark);
                d.push_str(&format!("{}{} {}", if d.is_empty() { 'M' } else { 'L' }, Px(x), Px(y)));
                drawing.put(format_args!(
                    r#"<circle class="dot {}" cx="{}" cy="{}" r="2"/>"#,
                    stroke(index),
                    Px(x),
                    Px(y)
                ));
            }
            drawing.path(&format!("curve {}", stroke(index)), &d, contender.name);
        }
    }
    drawing.finish(bottom + 20.0, "", label)
}

const HEIGHT: f64 = 260.0;
const HOW: &str = "On samples that nobody trains, of the mean of all members’ parameters; one line a seed.";
