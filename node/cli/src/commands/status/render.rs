//! Renders a status as lines of text that are no wider than the terminal.
//!
//! ```text
//! ● training with 3 peers
//!   peer 8fXa in run 3tQz, release 0.1.0, up 4 min 12 s
//!
//!   step 12,345 of 53,760   epoch 24 of 100   loss 0.0213   182 steps/s   3 min 47 s to go
//!   ━━━━━━━━━━━━━╺────────────────────────────────────────────  23 %
//!
//!   view 3 (9f2c41d8, after a81b77c0), for 2 min 3 s
//!
//!   member   state       owns                       step   heard    over    ping     sent/s  received/s
//!   8fXa *   working     ██████▊           34.1 %  12,345
//!   Bk3d     working     ██████▍           32.4 %  12,345  0.1 s  direct  0.4 ms  12.1 MB     11.9 MB
//!
//!   12 s ago  view 3, 3 peers: with Bk3d; continues at step 1204 without interruption
//! ```
//! The first line says whether all is well. Colours only repeat what the text says, and `NO_COLOR` turns them off.

use std::collections::VecDeque;
use std::path::Path;

use console::{Style, measure_text_width, truncate_str};
use peergrad_protocol::PeerId;

use crate::text::quantities::{PAUSED, duration, few_digits, loss_text, speed_text, time_to_go};
use crate::text::wrapping::{pieces, wrapped};
use peergrad_embed::status::{
    EventStatus, LinkStatus, MemberState, MemberStatus, OtherState, Phase, Status, TrainingStatus,
    UnreachedStatus,
};
use peergrad_embed::text::printable::printable;
use peergrad_embed::text::text_table::{bytes, count};

/// What to render for one peer.
pub(super) struct Block<'a> {
    pub(super) status: &'a Status,
    /// Its data directory; `None` if the peer runs elsewhere.
    pub(super) directory: Option<&'a Path>,
    /// Why the status is not current; `None` if it is.
    pub(super) trouble: Option<&'a str>,
}

/// A rendered status. No line is wider than the terminal.
pub(super) struct RenderedStatus {
    /// All lines above the events.
    pub(super) lines: Vec<String>,
    /// The newest events, oldest first, each with its lines. With less room, the oldest are dropped.
    pub(super) events: VecDeque<Vec<String>>,
}

impl RenderedStatus {
    /// How many lines it has.
    pub(super) fn height(&self) -> usize {
        let events: usize = self.events.iter().map(Vec::len).sum();
        self.lines.len() + usize::from(events > 0) + events
    }

    /// All lines, each with a line break.
    pub(super) fn text(&self) -> String {
        let blank = String::new();
        let gap = (!self.events.is_empty()).then_some(&blank);
        let lines = self.lines.iter().chain(gap).chain(self.events.iter().flatten());
        lines.map(|line| format!("{line}\n")).collect()
    }
}

/// Renders one peer for a terminal of `width` columns.
pub(super) fn render(block: &Block<'_>, width: usize) -> RenderedStatus {
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
            bold(&view.number.to_string()),
            short(&view.digest)
        ));
    }
    if !status.members.is_empty() || !status.others.is_empty() {
        lines.push(String::new());
        lines.extend(table(status, width));
    }
    if !status.unreached.is_empty() {
        lines.push(String::new());
        lines.extend(status.unreached.iter().flat_map(|unreached| unreached_text(unreached, width)));
    }
    let fitted = |line: String| truncate_str(line.trim_end(), width, "…").into_owned();
    RenderedStatus {
        lines: lines.into_iter().map(fitted).collect(),
        events: events(status, width)
            .into_iter()
            .map(|event| event.into_iter().map(fitted).collect())
            .collect(),
    }
}

/// The summary, and the line that identifies the peer.
fn heading(status: &Status, directory: Option<&Path>, trouble: Option<&str>, width: usize) -> Vec<String> {
    let (sign, words) = match (trouble, status.is_well) {
        (Some(trouble), _) => (red("✗"), format!("{trouble}; the data below is from the last answer")),
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
    let place = directory
        .map(|path| format!(", data in {}", printable(&path.display().to_string())))
        .unwrap_or_default();
    lines.push(dim(&format!(
        "  peer {} in {run}, release {}, up {}{place}",
        name(&status.peer),
        status.version,
        duration(status.uptime_seconds)
    )));
    lines
}

/// Progress, speed and loss.
fn progress(training: &TrainingStatus, phase: Phase, width: usize) -> Vec<String> {
    let TrainingStatus { steps, steps_expected, epoch, epochs, loss, steps_per_second, .. } = training;
    let mut parts = vec![
        format!("step {} of {}", bold(&count(*steps)), count(*steps_expected)),
        format!("epoch {} of {}", count(*epoch), count(*epochs)),
        loss.map_or_else(|| "no loss yet".to_owned(), |loss| format!("loss {}", bold(&loss_text(loss)))),
    ];
    let is_still = phase == Phase::Paused;
    parts.push(if is_still { yellow(PAUSED) } else { speed_text(*steps_per_second) });
    if !is_still {
        parts.extend(
            training.tokens_per_second.map(|tokens| format!("{} tokens/s", count(tokens.round() as u64))),
        );
        parts.extend(time_to_go(steps_expected.saturating_sub(*steps), *steps_per_second));
    }
    let done = *steps as f64 / (*steps_expected).max(1) as f64;
    let cells = width.saturating_sub(12).clamp(10, 60);
    let filled = ((done * cells as f64) as usize).min(cells);
    let bar = format!("{}{}", green(&"━".repeat(filled)), dim(&"─".repeat(cells - filled)));
    // On a narrow terminal, the remaining time gets its own line.
    let mut lines: Vec<String> =
        pieces(parts, "   ", width.saturating_sub(2)).into_iter().map(|line| format!("  {line}")).collect();
    lines.push(format!("  {bar}  {:.0} %", (100.0 * done).floor()));
    lines
}

/// The columns of the table of members that a narrow terminal has no room for.
#[derive(Clone, Copy)]
struct WideColumns {
    /// The width of the bars; 0 without them.
    bar_cells: usize,
    /// Whether there are columns for what members compute and what lines carry.
    has_rates: bool,
}

/// The table of members with their shards and links, and below them the other peers. If it does not fit, speeds and the rates of lines are
/// left out first, and then the bars shrink.
fn table(status: &Status, width: usize) -> Vec<String> {
    let laid_out = |columns: WideColumns, gap| {
        let left = if columns.bar_cells > 0 { 3 } else { 2 };
        aligned(&rows(status, columns), left, gap)
    };
    let whole = laid_out(WideColumns { bar_cells: BAR_CELLS, has_rates: true }, 2);
    if widest(&whole) <= width {
        return whole;
    }
    let with_bars = |bar_cells| WideColumns { bar_cells, has_rates: false };
    let excess = widest(&laid_out(with_bars(BAR_CELLS), 2)).saturating_sub(width);
    if let cells @ BAR_CELLS_MIN.. = BAR_CELLS.saturating_sub(excess) {
        return laid_out(with_bars(cells), 2);
    }
    let without = laid_out(with_bars(0), 2);
    if widest(&without) <= width { without } else { laid_out(with_bars(0), 1) }
}

fn rows(status: &Status, columns: WideColumns) -> Vec<Vec<String>> {
    let WideColumns { bar_cells, has_rates } = columns;
    let largest = status.members.iter().map(|member| member.share).fold(0.0, f64::max);
    let mut header = vec!["member", "state", "owns"];
    // A bar has its own column, beside that of the share.
    header.extend((bar_cells > 0).then_some(""));
    header.push("step");
    header.extend(has_rates.then_some("samples/s"));
    header.extend(["heard", "over", "ping"]);
    header.extend(has_rates.then_some("line/s"));
    header.extend(["sent/s", "received/s"]);
    let mut rows = vec![header.into_iter().map(dim).collect::<Vec<String>>()];
    rows.extend(status.members.iter().map(|member| member_row(member, columns, largest)));
    for other in &status.others {
        let state = match other.state {
            OtherState::Preparing => cyan("preparing"),
            OtherState::Ready => cyan("ready"),
            OtherState::Linked => "linked".to_owned(),
            OtherState::Missing => yellow("missing"),
        };
        let mut row = vec![name(&other.peer), state];
        let empty = 3 + usize::from(bar_cells > 0) + usize::from(has_rates);
        row.extend(std::iter::repeat_n(String::new(), empty));
        let no_link = if other.state == OtherState::Missing { String::new() } else { yellow("no link") };
        row.extend(link_cells(other.link.as_ref(), no_link, has_rates));
        rows.push(row);
    }
    rows
}

fn member_row(member: &MemberStatus, columns: WideColumns, largest: f64) -> Vec<String> {
    let WideColumns { bar_cells, has_rates } = columns;
    let name = name(&member.peer);
    let is_gone = matches!(member.state, MemberState::Unreachable | MemberState::Stopped);
    let silent = member.silent_seconds.filter(|_| !member.is_this);
    let mut row =
        vec![if member.is_this { format!("{} *", bold(&name)) } else { name }, state_text(member.state)];
    row.extend((bar_cells > 0).then(|| bar(member.share, largest, bar_cells)));
    row.push(format!("{:.1} %", 100.0 * member.share));
    row.push(member.steps.map(count).unwrap_or_default());
    let speed = || member.samples_per_second.map(|samples| count(samples.round() as u64));
    row.extend(has_rates.then(|| speed().unwrap_or_default()));
    row.push(
        silent
            .map(|seconds| if seconds < 1.0 { "now".to_owned() } else { duration(seconds) })
            .unwrap_or_default(),
    );
    let no_link = if member.is_this || is_gone { String::new() } else { yellow("no link") };
    row.extend(link_cells(member.link.as_ref(), no_link, has_rates));
    row
}

/// The cells for lane, ping, line and traffic. `no_link` stands in place of the lane while the link is down.
fn link_cells(link: Option<&LinkStatus>, no_link: String, has_rates: bool) -> Vec<String> {
    let Some(link) = link else {
        let mut cells = vec![no_link];
        cells.resize(if has_rates { 5 } else { 4 }, String::new());
        return cells;
    };
    let lane = match link.lane.as_deref() {
        Some("direct") => match link.connections {
            // As many connections.
            Some(count @ 2..) if has_rates => format!("direct x{count}"),
            _ => "direct".to_owned(),
        },
        Some("tcp") => "libp2p".to_owned(),
        Some("quic") => "QUIC".to_owned(),
        Some(other) => other.to_owned(),
        None => no_link,
    };
    let ping = link.round_trip_seconds.map(|seconds| format!("{} ms", few_digits(1000.0 * seconds)));
    let rate = |bytes_per_second: f64| bytes(bytes_per_second.round() as u64);
    let mut cells = vec![lane, ping.unwrap_or_default()];
    cells.extend(has_rates.then(|| link.line_bytes_per_second.map(rate).unwrap_or_default()));
    cells.extend([link.sent_bytes_per_second, link.received_bytes_per_second].map(rate));
    cells
}

fn state_text(state: MemberState) -> String {
    match state {
        MemberState::Working => green("working"),
        MemberState::CatchingUp => cyan("catching up"),
        MemberState::HandingOver => cyan("leaving"),
        MemberState::Connecting => cyan("connecting"),
        MemberState::Paused => yellow("paused"),
        MemberState::Busy => cyan("busy"),
        MemberState::Hanging => yellow("stuck"),
        MemberState::Suspected => yellow("suspected"),
        MemberState::Unreachable => red("unreachable"),
        MemberState::Stopped => red("stopped"),
        MemberState::Unwatched => dim("not watched"),
    }
}

/// A share as a bar. A full bar stands for the smallest power of one half that is at least the largest share: among three equal
/// peers, one half.
fn bar(share: f64, largest: f64, cells: usize) -> String {
    let mut whole = 1.0;
    while whole / 2.0 >= largest && whole > 1e-6 {
        whole /= 2.0;
    }
    let eighths = (share / whole * (cells * 8) as f64).round() as usize;
    // Another peer reports the share, and may report any number.
    let eighths = if share > 0.0 { eighths.clamp(1, cells * 8) } else { 0 };
    let (full, rest) = (eighths / 8, eighths % 8);
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][rest];
    let text = format!("{}{part}", "█".repeat(full));
    blue(&format!("{text:<cells$}"))
}

/// The lines for a peer that cannot be reached.
fn unreached_text(unreached: &UnreachedStatus, width: usize) -> Vec<String> {
    let who = unreached.peer.as_deref().map_or_else(|| unreached.address.clone(), name);
    let tries = match unreached.tries {
        1 => "1 try".to_owned(),
        more => format!("{} tries, the last", count(u64::from(more))),
    };
    let words = format!(
        "{who}: cannot be reached ({}), {tries} {} ago",
        unreached.trouble,
        duration(unreached.seconds_ago)
    );
    wrapped(&words, width.saturating_sub(2)).iter().map(|line| format!("  {}", yellow(line))).collect()
}

/// The newest events, oldest first, each as its lines.
fn events(status: &Status, width: usize) -> Vec<Vec<String>> {
    let newest = status.events.iter().rev().take(EVENTS_SHOWN).rev();
    let ages: Vec<String> =
        newest.clone().map(|event| format!("{} ago", duration(event.seconds_ago))).collect();
    let widest = ages.iter().map(|age| age.chars().count()).max().unwrap_or(0);
    let event = |(age, event): (&String, &EventStatus)| {
        let indent = widest + 4;
        let words = wrapped(&event.text, width.saturating_sub(indent).max(20));
        let line = |(index, line): (usize, String)| match index {
            0 => format!("  {}  {line}", dim(&format!("{age:>widest$}"))),
            _ => " ".repeat(indent) + &line,
        };
        words.into_iter().take(EVENT_LINES_MAX).enumerate().map(line).collect()
    };
    ages.iter().zip(newest).map(event).collect()
}

/// The width of the widest line.
fn widest(lines: &[String]) -> usize {
    lines.iter().map(|line| measure_text_width(line)).max().unwrap_or(0)
}

/// Lays out rows in columns: the first `left` columns are left-aligned, the others right-aligned.
fn aligned(rows: &[Vec<String>], left: usize, gap: usize) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| measure_text_width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let room = " ".repeat(width - measure_text_width(cell));
            if column < left { format!("{cell}{room}") } else { format!("{room}{cell}") }
        });
        format!("  {}", cells.collect::<Vec<_>>().join(&" ".repeat(gap)))
    };
    rows.iter().map(line).collect()
}

/// The short name of a peer.
fn name(peer: &str) -> String {
    peer.parse::<PeerId>().map_or_else(|_| peer.to_owned(), |peer| peer.short())
}

/// The first characters of a run's id or of a digest.
fn short(id: &str) -> String {
    id.chars().take(SHORT_CHARS).collect()
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
/// A shorter bar is omitted.
const BAR_CELLS_MIN: usize = 4;
const SHORT_CHARS: usize = 8;
const EVENTS_SHOWN: usize = 8;
const EVENT_LINES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use peergrad_embed::status::{OtherStatus, TrafficStatus, ViewStatus};

    #[test]
    fn a_wide_terminal_shows_how_many_connections_a_direct_lane_has() {
        let link = |connections| {
            let status = member("8fXa", false, MemberState::Working, 0.5);
            LinkStatus { connections, ..status.link.expect("it is another peer") }
        };
        let lane = |connections, has_rates| {
            link_cells(Some(&link(connections)), String::new(), has_rates).swap_remove(0)
        };
        assert_eq!(lane(Some(4), true), "direct x4");
        assert_eq!([lane(Some(1), true), lane(Some(4), false), lane(None, true)], ["direct"; 3]);
    }

    fn member(name: &str, is_this: bool, state: MemberState, share: f64) -> MemberStatus {
        let link = LinkStatus {
            lane: Some("direct".to_owned()),
            connections: Some(1),
            round_trip_seconds: Some(0.000_41),
            line_bytes_per_second: Some(118_000_000.0),
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
            capacity: 4,
            samples_per_second: None,
            owned: 0,
            share,
            replicated: 0,
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
            summary: "carol silent for too long: the other members are about to continue without".to_owned(),
            training: Some(TrainingStatus {
                steps: 12_345,
                steps_expected: 53_760,
                epoch: 24,
                epochs: 100,
                loss: Some(0.021_34),
                rate: Some(0.01),
                steps_per_second: 182.0,
                samples_per_second: 11_648.0,
                tokens_per_second: None,
                flops_per_second: None,
                evaluation: None,
                waits_for: "sums".to_owned(),
                parameters: 9610,
                chunks: 600,
                chunks_to_move: 0,
            }),
            view: Some(ViewStatus {
                number: 3,
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
            unreached: vec![],
            traffic: TrafficStatus {
                sent_bytes: 0,
                received_bytes: 0,
                sent_bytes_per_second: 0.0,
                received_bytes_per_second: 0.0,
            },
            events: vec![EventStatus {
                seconds_ago: 83.0,
                event: "view".to_owned(),
                text: "view 3, 3 peers: with bob; continues at step 1204 without interruption".to_owned(),
            }],
        }
    }

    #[test]
    fn a_status_starts_with_the_summary() {
        console::set_colors_enabled(false);
        let status = status();
        let text = render(&Block { status: &status, directory: None, trouble: None }, 100).text();
        let expected = "\
▲ carol silent for too long: the other members are about to continue without
  peer alice in run 193ac52f, release 0.1.0, up 4 min 12 s

  step 12,345 of 53,760   epoch 24 of 100   loss 0.0213   182 steps/s   3 min 48 s to go
  ━━━━━━━━━━━━━───────────────────────────────────────────────  22 %

  view 3 (9f2c41d8, after a81b77c0), for 2 min 3 s

  member   state      owns                        step  heard    over     ping   sent/s  received/s
  alice *  working    ████████          25.0 %  12,345
  bob      working    █████████         28.0 %  12,345    now  direct  0.41 ms  12.1 MB       950 B
  carol    suspected  ███████████████   47.0 %  12,345  4.2 s  direct  0.41 ms  12.1 MB       950 B

  1 min 23 s ago  view 3, 3 peers: with bob; continues at step 1204 without interruption
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_wide_terminal_shows_what_lines_carry() {
        console::set_colors_enabled(false);
        let status = status();
        let text = render(&Block { status: &status, directory: None, trouble: None }, 120).text();
        let rows: Vec<&str> =
            text.lines().filter(|line| line.contains("/s") && line.contains("ping")).collect();
        assert!(rows.len() == 1 && rows[0].ends_with("ping    line/s   sent/s  received/s"), "{text}");
        assert!(text.contains("0.41 ms  118.0 MB  12.1 MB       950 B\n"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        console::set_colors_enabled(false);
        let status = status();
        for width in [20, 40, 80, 108, 200] {
            let text =
                render(&Block { status: &status, directory: None, trouble: Some("it has ended") }, width)
                    .text();
            assert!(text.lines().all(|line| measure_text_width(line) <= width), "{width}:\n{text}");
            assert!(text.starts_with('✗') && text.contains("it has ended"), "{text}");
        }
    }

    #[test]
    fn at_eighty_columns_the_bars_are_omitted_and_nothing_is_cut() {
        console::set_colors_enabled(false);
        let mut status = status();
        status.training.as_mut().unwrap().steps_per_second = 1757.0;
        let block = Block { status: &status, directory: None, trouble: None };
        let text = render(&block, 80).text();
        assert!(!text.contains('…') && text.contains("1,757 steps/s\n  24 s to go\n"), "{text}");
        assert!(text.contains("working   25.0 % 12,345") && text.contains("12.1 MB      950 B"), "{text}");
        let text = render(&block, 92).text();
        assert!(text.contains("  received/s") && text.contains("  █████  "), "{text}");
        // The remaining time is never cut.
        for width in [40, 60, 80, 120] {
            let text = render(&block, width).text();
            assert!(text.lines().any(|line| line.trim_end().ends_with("24 s to go")), "{width}:\n{text}");
        }
    }

    #[test]
    fn a_missing_or_unreachable_peer_has_one_line() {
        console::set_colors_enabled(false);
        let mut status = status();
        status.others = vec![OtherStatus { peer: "dave".to_owned(), state: OtherState::Missing, link: None }];
        let unreached = UnreachedStatus {
            peer: Some("dave".to_owned()),
            address: "/ip4/10.0.0.7/tcp/4747".to_owned(),
            trouble: "connection refused".to_owned(),
            tries: 7,
            seconds_ago: 1.0,
        };
        let nobody = UnreachedStatus { peer: None, tries: 1, ..unreached.clone() };
        status.unreached = vec![unreached, nobody];
        let text = render(&Block { status: &status, directory: None, trouble: None }, 100).text();
        assert!(text.contains("\n  dave     missing\n"), "{text}");
        assert!(
            text.contains(
                "\n\n  dave: cannot be reached (connection refused), 7 tries, the last 1.0 s ago\n  /ip4/10.0.0.7/tcp/4747: cannot be reached (connection refused), 1 try 1.0 s ago\n\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn all_bars_have_the_same_scale() {
        console::set_colors_enabled(false);
        assert_eq!(bar(0.0, 0.4, BAR_CELLS), " ".repeat(BAR_CELLS));
        assert_eq!(bar(0.5, 0.5, BAR_CELLS), "█".repeat(BAR_CELLS));
        assert_eq!(bar(1.0, 1.0, BAR_CELLS), "█".repeat(BAR_CELLS));
        assert_eq!(bar(1e-9, 0.5, BAR_CELLS).trim(), "▏", "a small share is visible");
        assert_eq!(bar(0.0, 0.0, BAR_CELLS), " ".repeat(BAR_CELLS));
        for share in [1.5, 1e12, f64::MAX] {
            assert_eq!(bar(share, 0.5, BAR_CELLS), "█".repeat(BAR_CELLS), "no share: {share}");
            assert_eq!(bar(-share, 0.5, BAR_CELLS), " ".repeat(BAR_CELLS), "no share: -{share}");
        }
    }
}
