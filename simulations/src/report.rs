//! The report of a run: one page with charts.
//!
//! It is a single HTML file with its charts inside. It opens from a disk, prints, and follows the reader's choice of light or dark. From
//! top to bottom:
//! ```text
//! the run in sentences and numbers; which invariants held
//! lanes        each peer's view, and when steps were committed        \
//! ownership    each member's share of the parameters                   | one axis of time,
//! loss         against time, and against bytes                         | aligned
//! links        bytes per second; bytes between each two peers         /
//! ```
//! The page has a bounded size for any run: what would be smaller than a pixel is merged or left out.
//!
//! # Not here
//! Verdicts: the [`CheckResult`]s have their outcomes already.

mod curves;
mod lanes;
mod legend;
mod marks;
mod matrix;
mod ownership;
mod peers;
mod rows;
mod steps;
mod timeline;
mod traffic;

use std::time::Duration;

use peergrad_page::svg::Escaped;
use peergrad_page::{self as page, add, axis, section, svg};

use peergrad_protocol::Instant;

use self::timeline::Timeline;
use crate::history::History;

/// The content of a page.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// "partition, seed 7".
    pub title: &'a str,
    /// One sentence on what the scenario shows.
    pub about: &'a str,
    /// The command that makes this report again.
    pub command: &'a str,
    /// The run in a few sentences.
    pub words: &'a [String],
    /// The run in numbers: names and values, with their units.
    pub facts: &'a [(String, String)],
    /// The results of the invariants, oracles and expectations.
    pub check_results: &'a [CheckResult],
    /// What happened in the run.
    pub history: &'a History,
}

/// Whether one invariant, oracle or expectation held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// What must hold: "views form one chain".
    pub name: String,
    /// Its source: "invariant 1".
    pub source: String,
    /// `Ok` if it held; otherwise a description of the violation, with time and peer.
    pub outcome: Result<(), String>,
}

/// The page as HTML.
#[must_use]
pub fn render(report: &Report<'_>) -> String {
    let timeline = Timeline::new(report.history);
    let mut page = head(report);
    page.push_str(&check_results(report.check_results));
    let lanes = format!("{}{}", lanes::panel(&timeline), events(report.history));
    section(&mut page, "Who was in which view", LANES_HOW, &lanes);
    if !report.history.branch_ends.is_empty() {
        section(&mut page, "Parts that met again", BRANCH_ENDS_HOW, &branch_ends(report.history));
    }
    section(&mut page, "Who owned what", OWNERSHIP_HOW, &ownership::panel(&timeline));
    section(&mut page, "Loss", LOSS_HOW, &curves::panel(&timeline));
    let links = format!("{}{}", traffic::panel(&timeline), matrix::panel(&timeline));
    section(&mut page, "Link use", LINKS_HOW, &links);
    page.push_str("<div id=\"tip\" hidden></div>\n<script>\n");
    page.push_str(SCRIPT);
    page.push_str("</script>\n</body>\n</html>\n");
    page
}

/// Title, description, summary, and numbers.
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
    page::reproduce_with(&mut page, report.command);
    page
}

/// Violations in large type; what held in small type.
fn check_results(check_results: &[CheckResult]) -> String {
    let (kept, broken): (Vec<_>, Vec<_>) = check_results.iter().partition(|verdict| verdict.outcome.is_ok());
    let mut page = match (kept.len(), broken.len()) {
        (0, 0) => "<p class=\"verdict\">Nothing was checked.</p>\n".to_owned(),
        (1, 0) => "<p class=\"verdict kept\">✓ The one check held.</p>\n".to_owned(),
        (kept, 0) => format!("<p class=\"verdict kept\">✓ All {kept} checks held.</p>\n"),
        (_, broken) => {
            format!("<p class=\"verdict broken\">✗ {broken} of {} checks failed.</p>\n", check_results.len())
        }
    };
    if !broken.is_empty() {
        page.push_str("<ul class=\"broken-list\">\n");
        for CheckResult { name, source, outcome } in broken {
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
        page.push_str("<details><summary>What was checked</summary>\n<ul class=\"kept-list\">\n");
        for CheckResult { name, source, .. } in kept {
            let (name, source) = (Escaped(name), Escaped(source));
            add(&mut page, format_args!("<li>{name} <span class=\"source\">{source}</span></li>\n"));
        }
        page.push_str("</ul></details>\n");
    }
    page
}

/// Events in order, where peers to which the same happens at about the same time are listed together.
fn events(history: &History) -> String {
    let mut notes: Vec<(Instant, usize, &str)> = Vec::new();
    for (index, lane) in history.peers.iter().enumerate() {
        notes.extend(lane.notes.iter().map(|(at, words)| (*at, index, words.as_str())));
    }
    notes.sort_by_key(|note| note.0);
    let mut listed: Vec<(Instant, Vec<usize>, &str)> = Vec::new();
    for (at, host, words) in notes {
        let is_same = |entry: &&mut (Instant, Vec<usize>, &str)| {
            entry.2 == words && at.since(entry.0) <= TOGETHER && !entry.1.contains(&host)
        };
        match listed.iter_mut().rev().take(NEAR_MAX).find(is_same) {
            Some(entry) => entry.1.push(host),
            None => listed.push((at, vec![host], words)),
        }
    }
    if listed.is_empty() {
        return String::new();
    }
    let mut list = "<details><summary>What happened, in order</summary>\n<ul class=\"events\">\n".to_owned();
    for (at, hosts, words) in listed.iter().take(EVENTS_MAX) {
        let mut names: Vec<String> = hosts.iter().take(HOSTS_MAX).map(|host| format!("p{host}")).collect();
        if hosts.len() > HOSTS_MAX {
            names.push(format!("{} more", hosts.len() - HOSTS_MAX));
        }
        let (at, names, words) = (axis::duration(at.0), names.join(", "), Escaped(words));
        add(&mut list, format_args!("<li><time>{at}</time> {names}: {words}</li>\n"));
    }
    list.push_str("</ul>\n");
    if listed.len() > EVENTS_MAX {
        add(&mut list, format_args!("<p class=\"more\">and {} more</p>\n", listed.len() - EVENTS_MAX));
    }
    list + "</details>\n"
}

/// How branches ended, in sentences.
fn branch_ends(history: &History) -> String {
    let sentences = history.branch_end_sentences();
    let mut list = "<ul class=\"branch-ends\">\n".to_owned();
    for words in sentences.iter().take(BRANCH_ENDS_MAX) {
        add(&mut list, format_args!("<li>{}</li>\n", Escaped(words)));
    }
    list.push_str("</ul>\n");
    if sentences.len() > BRANCH_ENDS_MAX {
        add(
            &mut list,
            format_args!("<p class=\"more\">and {} more</p>\n", sentences.len() - BRANCH_ENDS_MAX),
        );
    }
    list
}

const BRANCH_ENDS_MAX: usize = 40;
const EVENTS_MAX: usize = 300;
const HOSTS_MAX: usize = 8;
/// Equal events of several peers within this time are listed together; `NEAR_MAX` earlier events are searched.
const TOGETHER: Duration = Duration::from_secs(1);
const NEAR_MAX: usize = 16;
const BRANCH_ENDS_HOW: &str =
    "After a partition, each part continued by itself. How each part ended, and the quality of its model.";
/// Longer values take two cells and use the font of code.
const FACT_CHARS: usize = 13;
const STYLE: &str = include_str!("report/style.css");
const SCRIPT: &str = include_str!("report/hover.js");
const DEFINITIONS: &str = "<svg class=\"defs\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"5\" height=\"5\" \
    patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"hatch-paper\" width=\"5\" height=\"5\"/>\
    <line class=\"hatch-line\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"5\"/></pattern></defs></svg>\n";
const LANES_HOW: &str = "One lane a peer, from its start to its end. A view's number stands where it was first installed; \
    below, a tick for each committed step.";
const OWNERSHIP_HOW: &str = "Shares of the parameter vector, in the order and the colours of the lanes, as they are once \
    all that moves in a view has moved.";
const LOSS_HOW: &str = "The mean loss over each committed step’s samples, before its update.";
const LINKS_HOW: &str = "Bytes as they leave their senders.";
