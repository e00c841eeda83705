//! The report of a run: one page for looking rather than reading.
//!
//! A single HTML file with its pictures inside, that opens from a disk, prints, and follows the reader's choice of light or
//! dark. From top to bottom:
//! ```text
//! what it was, in words and numbers; which laws held
//! lanes        who was in which view, and when steps were committed   \
//! ownership    whose share of the parameters was how large             | one axis of time,
//! loss         against time, and against bytes                         | aligned
//! links        bytes per second; who sent to whom                     /
//! ```
//! Whatever the run did, the page stays of a bounded size: what would be smaller than a pixel is merged or left out.
//!
//! # Not here
//! Judging: [`Verdict`]s come with their outcome.

mod curves;
mod lanes;
mod legend;
mod marks;
mod matrix;
mod ownership;
mod peers;
mod steps;
mod timeline;
mod traffic;

use peergrad::page::svg::Escaped;
use peergrad::page::{self, add, axis, section, svg};

use self::timeline::Timeline;
use crate::history::History;

/// What a page tells.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// "partition, seed 7".
    pub title: &'a str,
    /// One sentence: what the scenario shows.
    pub about: &'a str,
    /// The command that makes this report again.
    pub command: &'a str,
    /// The run in a few sentences.
    pub words: &'a [String],
    /// The run in numbers: names and values, with their units.
    pub facts: &'a [(String, String)],
    /// One for each law, oracle and expectation.
    pub verdicts: &'a [Verdict],
    /// What happened.
    pub history: &'a History,
}

/// Whether one law, oracle or expectation held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it says: "views form one chain".
    pub name: String,
    /// Where it is written: "law 1".
    pub source: String,
    /// It held; or in words, with time and peer, how it was broken.
    pub outcome: Result<(), String>,
}

/// The page as HTML.
#[must_use]
pub fn render(report: &Report<'_>) -> String {
    let timeline = Timeline::new(report.history);
    let mut page = head(report);
    page.push_str(&verdicts(report.verdicts));
    let lanes = lanes::panel(&timeline);
    section(&mut page, "Who was in which view", LANES_HOW, &lanes);
    section(&mut page, "Who owned what", OWNERSHIP_HOW, &ownership::panel(&timeline));
    section(&mut page, "Loss", LOSS_HOW, &curves::panel(&timeline));
    let links = format!("{}{}", traffic::panel(&timeline), matrix::panel(&timeline));
    section(&mut page, "Link use", LINKS_HOW, &links);
    page.push_str("<div id=\"tip\" hidden></div>\n<script>\n");
    page.push_str(SCRIPT);
    page.push_str("</script>\n</body>\n</html>\n");
    page
}

/// Title, what it is about, the summary, the numbers.
fn head(report: &Report<'_>) -> String {
    let title = Escaped(report.title);
    let mut page = page::head(report.title, STYLE);
    let about = Escaped(report.about);
    add(&mut page, format_args!("{DEFINITIONS}<h1>{title}</h1>\n<p class=\"about\">{about}</p>\n"));
    for words in report.words {
        add(&mut page, format_args!("<p>{}</p>\n", Escaped(words)));
    }
    if !report.facts.is_empty() {
        page.push_str("<dl class=\"facts\">\n");
        for (name, value) in report.facts {
            let class = if value.chars().count() > FACT_CHARS { " class=\"long\"" } else { "" };
            let (name, value) = (Escaped(name), Escaped(value));
            add(&mut page, format_args!("<div{class}><dt>{name}</dt><dd>{value}</dd></div>\n"));
        }
        page.push_str("</dl>\n");
    }
    page::again(&mut page, report.command);
    page
}

/// What was broken, large; what was kept, small.
fn verdicts(verdicts: &[Verdict]) -> String {
    let (kept, broken): (Vec<_>, Vec<_>) = verdicts.iter().partition(|verdict| verdict.outcome.is_ok());
    let mut page = match (kept.len(), broken.len()) {
        (0, 0) => "<p class=\"verdict\">Nothing was checked.</p>\n".to_owned(),
        (1, 0) => "<p class=\"verdict kept\">✓ The one check held.</p>\n".to_owned(),
        (kept, 0) => format!("<p class=\"verdict kept\">✓ All {kept} checks held.</p>\n"),
        (_, broken) => {
            format!("<p class=\"verdict broken\">✗ {broken} of {} checks broken.</p>\n", verdicts.len())
        }
    };
    if !broken.is_empty() {
        page.push_str("<ul class=\"broken-list\">\n");
        for Verdict { name, source, outcome } in broken {
            let words = outcome.as_ref().err().map_or("", String::as_str);
            let (name, source, words) = (Escaped(name), Escaped(source), Escaped(words));
            add(
                &mut page,
                format_args!("<li><b>{name}</b> <span class=\"source\">{source}</span><p>{words}</p></li>\n"),
            );
        }
        page.push_str("</ul>\n");
    }
    if !kept.is_empty() {
        page.push_str("<ul class=\"kept-list\">\n");
        for Verdict { name, source, .. } in kept {
            let (name, source) = (Escaped(name), Escaped(source));
            add(&mut page, format_args!("<li>{name} <span class=\"source\">{source}</span></li>\n"));
        }
        page.push_str("</ul>\n");
    }
    page
}

/// Longer values take two cells and are set like code.
const FACT_CHARS: usize = 16;
const STYLE: &str = include_str!("report/style.css");
const SCRIPT: &str = include_str!("report/hover.js");
const DEFINITIONS: &str = "<svg class=\"defs\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"5\" height=\"5\" \
    patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"hatch-paper\" width=\"5\" height=\"5\"/>\
    <line class=\"hatch-line\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"5\"/></pattern></defs></svg>\n";
const LANES_HOW: &str = "One lane a peer, from its start to its end. A view's number stands where it was first installed; \
    below, a tick for each committed step.";
const OWNERSHIP_HOW: &str = "Shares of the parameter vector, in the order and the colours of the lanes, as each member said \
    when it installed the view.";
const LOSS_HOW: &str = "The mean loss over each committed step’s samples, before its update.";
const LINKS_HOW: &str = "Bytes as they leave their senders.";
