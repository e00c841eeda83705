//! The picture: a status as a person looks at it, in lines no wider than the terminal.
//!
//! ```text
//! ● training with 3 peers
//!   peer 8fXa in run 3tQz, release 0.1.0, up 4 min 12 s
//!
//!   step 12,345 of 53,760   pass 24 of 100   loss 0.0213   182 steps/s   3 min 47 s to go
//!   ━━━━━━━━━━━━━╺────────────────────────────────────────────  23 %
//!
//!   view 3 (9f2c41d8, after a81b77c0), for 2 min 3 s
//!
//!   member   state       owns                       step   heard    over    ping     sent/s  received/s
//!   8fXa *   working     ██████▊           34.1 %  12,345
//!   Bk3d     working     ██████▍           32.4 %  12,345  0.1 s  direct  0.4 ms  12.1 MB     11.9 MB
//!
//!   12 s ago  view 3, 3 peers: with Bk3d; from step 1,204 on; nobody was interrupted
//! ```
//! First what matters most: is it well? Colour repeats what words say, and is left away where it is not wanted (`NO_COLOR`).

use std::path::Path;

use console::{Style, measure_text_width, truncate_str};
use peergrad_protocol::PeerId;

use crate::cli::table::{bytes, count};
use crate::status::{Link, MemberState, MemberStatus, OtherState, Phase, Status, Training};

/// What is known of one peer.
pub(super) struct Block<'a> {
    pub(super) status: &'a Status,
    /// Where its data is, on its own machine.
    pub(super) directory: Option<&'a Path>,
    /// Why the status is an old one.
    pub(super) trouble: Option<&'a str>,
}

/// The picture; each line ends with a line break.
pub(super) fn picture(block: &Block<'_>, width: usize) -> String {
    let Block { status, directory, trouble } = block;
    let mut lines = heading(status, *directory, *trouble, width);
    if let Some(training) = &status.training {
        lines.push(String::new());
        lines.extend(progress(training, status.phase, width));
    }
    if let Some(view) = &status.view {
        let after = match view.parents.first() {
            Some(parent) => format!(", after {}", short(parent)),
            None => ", the first of the run".to_owned(),
        };
        let age = duration(view.age_seconds);
        lines.push(String::new());
        lines.push(format!(
            "  view {} ({}{after}), for {age}",
            bold(&view.epoch.to_string()),
            short(&view.digest)
        ));
    }
    if !status.members.is_empty() || !status.others.is_empty() {
        lines.push(String::new());
        lines.extend(table(status));
    }
    if !status.events.is_empty() {
        lines.push(String::new());
        lines.extend(events(status, width));
    }
    let fitted = lines.iter().map(|line| truncate_str(line.trim_end(), width, "…").into_owned() + "\n");
    fitted.collect()
}

/// Whether it is well; who this is.
fn heading(status: &Status, directory: Option<&Path>, trouble: Option<&str>, width: usize) -> Vec<String> {
    let (sign, words) = match (trouble, status.is_well) {
        (Some(words), _) => (red("✗"), format!("{words}; what follows is from before")),
        (None, true) => (green("●"), status.summary.clone()),
        (None, false) => (yellow("▲"), status.summary.clone()),
    };
    let mut lines = Vec::new();
    for (index, line) in wrapped(&words, width.saturating_sub(2)).into_iter().enumerate() {
        let line = if index == 0 { bold(&line) } else { line };
        lines.push(if index == 0 { format!("{sign} {line}") } else { format!("  {line}") });
    }
    let run =
        status.run.as_deref().map_or_else(|| "no run yet".to_owned(), |run| format!("run {}", short(run)));
    let place = directory.map(|path| format!(", data in {}", path.display())).unwrap_or_default();
    lines.push(dim(&format!(
        "  peer {} in {run}, release {}, up {}{place}",
        name(&status.peer),
        status.version,
        duration(status.uptime_seconds)
    )));
    lines
}

/// How far, how fast, how good.
fn progress(training: &Training, phase: Phase, width: usize) -> Vec<String> {
    let Training { steps, steps_expected, pass, passes, loss, steps_per_second, .. } = training;
    let mut parts = vec![
        format!("step {} of {}", bold(&count(*steps)), count(*steps_expected)),
        format!("pass {} of {}", count(*pass), count(*passes)),
        loss.map_or_else(|| "no loss yet".to_owned(), |loss| format!("loss {}", bold(&loss_words(loss)))),
    ];
    let is_still = phase == Phase::Paused;
    parts.push(match is_still {
        true => yellow("stands still"),
        false => format!("{} steps/s", few_digits(*steps_per_second)),
    });
    let left = steps_expected.saturating_sub(*steps);
    if left > 0 && *steps_per_second > 0.0 && !is_still {
        parts.push(format!("{} to go", duration(left as f64 / steps_per_second)));
    }
    let done = *steps as f64 / (*steps_expected).max(1) as f64;
    let cells = width.saturating_sub(12).clamp(10, 60);
    let filled = ((done * cells as f64) as usize).min(cells);
    let bar = format!("{}{}", green(&"━".repeat(filled)), dim(&"─".repeat(cells - filled)));
    vec![format!("  {}", parts.join("   ")), format!("  {bar}  {:.0} %", (100.0 * done).floor())]
}

/// Who is in, who owns what, over what they are reached. Those who want to come in are below.
fn table(status: &Status) -> Vec<String> {
    let largest = status.members.iter().map(|member| member.share).fold(0.0, f64::max);
    let header =
        ["member", "state", "owns", "", "step", "heard", "over", "ping", "sent/s", "received/s"].map(dim);
    let mut rows = vec![header.to_vec()];
    rows.extend(status.members.iter().map(|member| member_row(member, largest)));
    for other in &status.others {
        let state = match other.state {
            OtherState::Preparing => cyan("preparing"),
            OtherState::Ready => cyan("ready"),
            OtherState::Linked => "linked".to_owned(),
        };
        let mut row =
            vec![name(&other.peer), state, String::new(), String::new(), String::new(), String::new()];
        row.extend(link_cells(other.link.as_ref(), true));
        rows.push(row);
    }
    aligned(&rows)
}

fn member_row(member: &MemberStatus, largest: f64) -> Vec<String> {
    let name = name(&member.peer);
    let is_gone = matches!(member.state, MemberState::Unreachable | MemberState::Stopped);
    let silent = member.silent_seconds.filter(|_| !member.is_this);
    let mut row = vec![
        if member.is_this { format!("{} *", bold(&name)) } else { name },
        state_words(member.state),
        bar(member.share, largest),
        format!("{:.1} %", 100.0 * member.share),
        member.steps.map(count).unwrap_or_default(),
        silent
            .map(|seconds| if seconds < 1.0 { "now".to_owned() } else { duration(seconds) })
            .unwrap_or_default(),
    ];
    row.extend(link_cells(member.link.as_ref(), !member.is_this && !is_gone));
    row
}

/// Lane, ping, bytes; a missing lane is told where there should be one.
fn link_cells(link: Option<&Link>, is_wanted: bool) -> Vec<String> {
    let none = || if is_wanted { yellow("no link") } else { String::new() };
    let Some(link) = link else { return vec![none(), String::new(), String::new(), String::new()] };
    let lane = match link.lane.as_deref() {
        Some("direct") => "direct".to_owned(),
        Some("tcp") => "libp2p".to_owned(),
        Some("quic") => "QUIC".to_owned(),
        Some(other) => other.to_owned(),
        None => none(),
    };
    let ping = link.round_trip_seconds.map(|seconds| format!("{} ms", few_digits(1000.0 * seconds)));
    let rate = |bytes_per_second: f64| bytes(bytes_per_second.round() as u64);
    vec![
        lane,
        ping.unwrap_or_default(),
        rate(link.sent_bytes_per_second),
        rate(link.received_bytes_per_second),
    ]
}

fn state_words(state: MemberState) -> String {
    match state {
        MemberState::Working => green("working"),
        MemberState::CatchingUp => cyan("catching up"),
        MemberState::HandingOver => cyan("hands over"),
        MemberState::Connecting => cyan("connecting"),
        MemberState::Paused => yellow("paused"),
        MemberState::Hanging => yellow("hangs"),
        MemberState::Suspected => yellow("suspected"),
        MemberState::Unreachable => red("unreachable"),
        MemberState::Stopped => red("stops"),
        MemberState::Unwatched => dim("not watched"),
    }
}

/// A share as a bar, of which a whole one is the next power of a half above the largest share: among three peers that is one
/// half of all.
fn bar(share: f64, largest: f64) -> String {
    let mut whole = 1.0;
    while whole / 2.0 >= largest && whole > 1e-6 {
        whole /= 2.0;
    }
    let eighths = (share / whole * (BAR_CELLS * 8) as f64).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    let (full, rest) = (eighths / 8, eighths % 8);
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][rest];
    let text = format!("{}{part}", "█".repeat(full));
    blue(&format!("{text:<BAR_CELLS$}"))
}

/// What happened last, each on a line of its own.
fn events(status: &Status, width: usize) -> Vec<String> {
    let newest = status.events.iter().rev().take(EVENTS_SHOWN).rev();
    let ages: Vec<String> =
        newest.clone().map(|told| format!("{} ago", duration(told.seconds_ago))).collect();
    let widest = ages.iter().map(|age| age.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (age, told) in ages.iter().zip(newest) {
        let indent = widest + 4;
        let words = wrapped(&told.words, width.saturating_sub(indent).max(20));
        for (index, line) in words.into_iter().take(EVENT_LINES_MAX).enumerate() {
            let left = if index == 0 {
                format!("  {}  ", dim(&format!("{age:>widest$}")))
            } else {
                " ".repeat(indent)
            };
            lines.push(left + &line);
        }
    }
    lines
}

/// Rows of cells in columns: the first three to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| measure_text_width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let room = " ".repeat(width - measure_text_width(cell));
            if column < 3 { format!("{cell}{room}") } else { format!("{room}{cell}") }
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

/// Text in lines of at most so many columns, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && measure_text_width(&line) + 1 + measure_text_width(word) > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// What people know a peer by.
fn name(peer: &str) -> String {
    peer.parse::<PeerId>().map_or_else(|_| peer.to_owned(), |peer| peer.short())
}

/// The beginning of a run's id, or of a digest.
fn short(id: &str) -> String {
    id.chars().take(SHORT_CHARS).collect()
}

/// "0.4 s", "12 s", "3 min 47 s", "2 h 5 min", "3 d 4 h".
fn duration(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    let two = |large: u64, name: &str, small: u64, small_name: &str| match small {
        0 => format!("{large} {name}"),
        _ => format!("{large} {name} {small} {small_name}"),
    };
    match whole {
        ..60 => format!("{whole} s"),
        60..3600 => two(whole / 60, "min", whole % 60, "s"),
        3600..86_400 => two(whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3600, "h"),
    }
}

/// A number with as many digits as one wants to know of it.
fn few_digits(value: f64) -> String {
    match value {
        ..0.0095 => "0".to_owned(),
        ..1.0 => format!("{value:.2}"),
        ..10.0 => format!("{value:.1}"),
        _ => count(value.round() as u64),
    }
}

/// Small losses are told by their size.
fn loss_words(loss: f64) -> String {
    if loss != 0.0 && loss.abs() < 0.001 { format!("{loss:.1e}") } else { format!("{loss:.4}") }
}

fn bold(text: &str) -> String {
    Style::new().bold().apply_to(text).to_string()
}

fn dim(text: &str) -> String {
    Style::new().dim().apply_to(text).to_string()
}

fn green(text: &str) -> String {
    Style::new().green().apply_to(text).to_string()
}

fn yellow(text: &str) -> String {
    Style::new().yellow().bold().apply_to(text).to_string()
}

fn red(text: &str) -> String {
    Style::new().red().bold().apply_to(text).to_string()
}

fn cyan(text: &str) -> String {
    Style::new().cyan().apply_to(text).to_string()
}

fn blue(text: &str) -> String {
    Style::new().blue().apply_to(text).to_string()
}

const BAR_CELLS: usize = 16;
const SHORT_CHARS: usize = 8;
const EVENTS_SHOWN: usize = 8;
const EVENT_LINES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Told, TrafficStatus, ViewStatus};

    fn member(name: &str, is_this: bool, state: MemberState, share: f64) -> MemberStatus {
        let link = Link {
            lane: Some("direct".to_owned()),
            round_trip_seconds: Some(0.000_41),
            trouble: None,
            sent_bytes: 0,
            received_bytes: 0,
            sent_bytes_per_second: 12_100_000.0,
            received_bytes_per_second: 950.0,
        };
        MemberStatus {
            peer: name.to_owned(),
            is_this,
            state,
            weight: 4,
            owned: 0,
            share,
            copied: 0,
            steps: Some(12_345),
            silent_seconds: (!is_this).then_some(if state == MemberState::Suspected { 4.2 } else { 0.1 }),
            link: (!is_this).then_some(link),
        }
    }

    fn status() -> Status {
        Status {
            format: 1,
            version: "0.1.0".to_owned(),
            peer: "alice".to_owned(),
            run: Some("193ac52f00".to_owned()),
            uptime_seconds: 252.0,
            phase: Phase::Training,
            is_well: false,
            summary: "carol silent for too long: the others are about to go on without".to_owned(),
            training: Some(Training {
                steps: 12_345,
                steps_expected: 53_760,
                pass: 24,
                passes: 100,
                loss: Some(0.021_34),
                rate: Some(0.01),
                steps_per_second: 182.0,
                waits_for: "sums".to_owned(),
                parameters: 9610,
                chunks: 600,
                chunks_to_move: 0,
            }),
            view: Some(ViewStatus {
                epoch: 3,
                digest: "9f2c41d8ffff".to_owned(),
                parents: vec!["a81b77c0ffff".to_owned()],
                expelled: vec![],
                age_seconds: 123.0,
            }),
            members: vec![
                member("alice", true, MemberState::Working, 0.25),
                member("bob", false, MemberState::Working, 0.28),
                member("carol", false, MemberState::Suspected, 0.47),
            ],
            others: vec![],
            rekey: None,
            traffic: TrafficStatus {
                sent_bytes: 0,
                received_bytes: 0,
                sent_bytes_per_second: 0.0,
                received_bytes_per_second: 0.0,
            },
            events: vec![Told {
                seconds_ago: 83.0,
                event: "view".to_owned(),
                words: "view 3, 3 peers: with bob; from step 1204 on; nobody was interrupted".to_owned(),
            }],
        }
    }

    #[test]
    fn a_status_is_a_few_lines_with_what_matters_first() {
        console::set_colors_enabled(false);
        let status = status();
        let text = picture(&Block { status: &status, directory: None, trouble: None }, 100);
        let expected = "\
▲ carol silent for too long: the others are about to go on without
  peer alice in run 193ac52f, release 0.1.0, up 4 min 12 s

  step 12,345 of 53,760   pass 24 of 100   loss 0.0213   182 steps/s   3 min 48 s to go
  ━━━━━━━━━━━━━───────────────────────────────────────────────  22 %

  view 3 (9f2c41d8, after a81b77c0), for 2 min 3 s

  member   state      owns                        step  heard    over     ping   sent/s  received/s
  alice *  working    ████████          25.0 %  12,345
  bob      working    █████████         28.0 %  12,345    now  direct  0.41 ms  12.1 MB       950 B
  carol    suspected  ███████████████   47.0 %  12,345  4.2 s  direct  0.41 ms  12.1 MB       950 B

  1 min 23 s ago  view 3, 3 peers: with bob; from step 1204 on; nobody was interrupted
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        console::set_colors_enabled(false);
        let status = status();
        for width in [20, 40, 80, 200] {
            let text =
                picture(&Block { status: &status, directory: None, trouble: Some("it is gone") }, width);
            assert!(text.lines().all(|line| measure_text_width(line) <= width), "{width}:\n{text}");
            assert!(text.starts_with('✗') && text.contains("it is gone"), "{text}");
        }
    }

    #[test]
    fn shares_are_bars_of_one_scale() {
        console::set_colors_enabled(false);
        assert_eq!(bar(0.0, 0.4), " ".repeat(BAR_CELLS));
        assert_eq!(bar(0.5, 0.5), "█".repeat(BAR_CELLS));
        assert_eq!(bar(1.0, 1.0), "█".repeat(BAR_CELLS));
        assert_eq!(bar(1e-9, 0.5).trim(), "▏", "a little is not nothing");
        assert_eq!(bar(0.0, 0.0), " ".repeat(BAR_CELLS));
    }

    #[test]
    fn times_and_numbers_are_short() {
        let told = [0.04, 9.9, 59.4, 227.0, 3600.0, 7500.0, 100_000.0].map(duration);
        assert_eq!(told, ["0.0 s", "9.9 s", "59 s", "3 min 47 s", "1 h", "2 h 5 min", "1 d 3 h"]);
        assert_eq!([0.0, 0.033, 4.25, 1494.4].map(few_digits), ["0", "0.03", "4.2", "1,494"]);
        assert_eq!([0.0, 0.021_34, 2.3e-7].map(loss_words), ["0.0000", "0.0213", "2.3e-7"]);
    }
}
