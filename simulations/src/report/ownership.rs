//! Ownership: the shares of the parameter vector, stacked in the order of the lanes, with a step at each view; and a table of what moved
//! between a view and its parent.
//!
//! Each branch has its own chart, since after a fork there are two sets of owners at one time.

use peergrad_protocol::ViewDigest;

use super::axis::{self, percent};
use super::peers::Groups;
use super::svg::{Area, Drawing, Escaped, LEFT, Px, RIGHT};
use super::timeline::Timeline;
use crate::history::{ViewNote, branch_letter};
use crate::host::HostId;

/// The shares in one view of a branch.
struct OwnershipPeriod {
    left: f64,
    right: f64,
    view: usize,
    /// By group: the share of all elements that the groups before it own; the last entry is the share that all own together.
    sums: Vec<f64>,
}

/// The panel.
pub(super) fn panel(timeline: &Timeline<'_>) -> String {
    let history = timeline.history;
    let chunk_count = history.views.iter().map(|view| view.shards.values().sum::<usize>()).max().unwrap_or(0);
    let whole = history.parameters.filter(|_| chunk_count > 0).unwrap_or(chunk_count);
    if whole == 0 {
        return "<p class=\"empty\">No view was installed, so no peer owned anything.</p>\n".to_owned();
    }
    let hosts =
        history.views.iter().flat_map(|view| view.shards.keys()).max().map_or(0, |host| host.index() + 1);
    let groups = Groups::new(hosts.max(history.peers.len()));
    let branches = timeline.branch_count();
    let mut page = String::new();
    for branch_index in 0..branches.min(BRANCHES_MAX) {
        let periods = periods(timeline, groups, branch_index, whole as f64);
        if !periods.is_empty() {
            page.push_str(&picture(timeline, groups, branch_index, &periods));
        }
    }
    if branches > BRANCHES_MAX {
        page.push_str(&format!("<p class=\"more\">and {} parts more</p>\n", branches - BRANCHES_MAX));
    }
    page + &moves(timeline, whole as f64)
}

/// The views of a branch that are at least a few pixels long, with their shares.
fn periods(timeline: &Timeline<'_>, groups: Groups, branch_index: usize, whole: f64) -> Vec<OwnershipPeriod> {
    let views = timeline.history.views.iter().enumerate();
    let views: Vec<_> =
        views.filter(|(_, view)| view.branch_index == branch_index && !view.shards.is_empty()).collect();
    let last_end = timeline.x(timeline.branch_end_time(branch_index));
    let grain = (groups.count() as f64 * (RIGHT - LEFT) / EDGES_MAX).max(1.0);
    let mut periods: Vec<OwnershipPeriod> = Vec::new();
    for (position, (index, view)) in views.iter().enumerate() {
        let left = timeline.x(view.at);
        let right = views.get(position + 1).map_or(last_end.max(left), |next| timeline.x(next.1.at));
        let mut sums = vec![0.0; groups.count() + 1];
        for (host, shard) in &view.shards {
            sums[groups.of(*host) + 1] += *shard as f64 / whole;
        }
        for group in 0..groups.count() {
            sums[group + 1] += sums[group];
        }
        match periods.last_mut() {
            // The view before was too short to be visible.
            Some(before) if before.right - before.left < grain => {
                *before = OwnershipPeriod { left: before.left, right, view: *index, sums };
            }
            _ => periods.push(OwnershipPeriod { left, right, view: *index, sums }),
        }
    }
    periods
}

fn picture(
    timeline: &Timeline<'_>,
    groups: Groups,
    branch_index: usize,
    periods: &[OwnershipPeriod],
) -> String {
    let mut drawing = Drawing::default();
    let is_only = timeline.branch_count() == 1;
    let top = if is_only { 4.0 } else { 22.0 };
    if !is_only {
        drawing.text("small-head", LEFT, 14.0, &format!("part {}", branch_letter(branch_index)));
    }
    let bottom = top + (groups.count() as f64 * 22.0).clamp(44.0, HEIGHT);
    timeline.backdrop(&mut drawing, top, bottom);
    for group in 0..groups.count() {
        share(timeline, &mut drawing, groups, group, periods, (top, bottom));
    }
    timeline.foreground(&mut drawing, top, bottom);
    for (part, label) in [(0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %")] {
        let y = top + (bottom - top) * part;
        drawing.line("axis", (LEFT - 4.0, y), (LEFT, y));
        drawing.text("tick end", LEFT - 8.0, y + 4.0, label);
    }
    let height = timeline.axis(&mut drawing, bottom);
    drawing.finish(
        height,
        &timeline.attributes(),
        &format!("Shares of the parameters over {}", timeline.time()),
    )
}

/// One group's share as an area with a step at each view, with its name and size where there is room.
fn share(
    timeline: &Timeline<'_>,
    drawing: &mut Drawing,
    groups: Groups,
    group: usize,
    periods: &[OwnershipPeriod],
    (top, bottom): (f64, f64),
) {
    let y = |part: f64| top + (bottom - top) * part.min(1.0);
    let part = |period: &OwnershipPeriod| period.sums[group + 1] - period.sums[group];
    if periods.iter().all(|period| part(period) <= 0.0) {
        return;
    }
    let mut d = format!("M{} {}", Px(periods[0].left), Px(y(periods[0].sums[group])));
    for period in periods {
        d.push_str(&format!("V{}H{}", Px(y(period.sums[group])), Px(period.right)));
    }
    for period in periods.iter().rev() {
        d.push_str(&format!("V{}H{}", Px(y(period.sums[group + 1])), Px(period.left)));
    }
    let (colour, is_light) = groups.colour(group);
    let lines = periods
        .iter()
        .take(VIEWS_LISTED_MAX)
        .map(|period| format!("view {}: {}", timeline.view_name(period.view), percent(part(period), 1.0)));
    let mut words = format!("{}\n{}", groups.name(group), lines.collect::<Vec<_>>().join("\n"));
    if periods.len() > VIEWS_LISTED_MAX {
        words.push_str(&format!("\nand {} views more", periods.len() - VIEWS_LISTED_MAX));
    }
    let class = if groups.count() <= SEPARATED_MAX { "share" } else { "share-many" };
    drawing.put(format_args!(
        r#"<path class="{class}" fill="{colour}" d="{d}z"><title>{}</title></path>"#,
        Escaped(&words)
    ));
    let class = if is_light { "on-light" } else { "on-dark" };
    let mut labelled = f64::NAN;
    for period in periods {
        let area = Area {
            x: period.left,
            y: y(period.sums[group]),
            width: period.right - period.left,
            height: y(period.sums[group + 1]) - y(period.sums[group]),
        };
        let has_room = area.height >= 12.0 && area.width >= 74.0;
        if has_room && part(period) != labelled {
            let text = format!("{}  {}", groups.short_name(group), percent(part(period), 1.0));
            drawing.text(class, area.x + 6.0, area.y + area.height / 2.0 + 3.5, &text);
            labelled = part(period);
        }
    }
}

/// What moved between two views.
struct Change {
    /// Members that were not in the view before, and former members that are no longer in the view.
    joined: Vec<HostId>,
    left: Vec<HostId>,
    /// Number of elements by which shares have grown, together.
    moved: f64,
    /// The largest gains and losses.
    gains: Vec<(HostId, f64)>,
}

impl Change {
    fn between(before: &ViewNote, after: &ViewNote) -> Self {
        let is_new = |host: &&HostId| !before.shards.contains_key(*host);
        let is_gone = |host: &&HostId| !after.shards.contains_key(*host);
        let joined: Vec<HostId> = after.shards.keys().filter(is_new).copied().collect();
        let left: Vec<HostId> = before.shards.keys().filter(is_gone).copied().collect();
        let share = |view: &ViewNote, host: &HostId| view.shards.get(host).map_or(0.0, |shard| *shard as f64);
        let hosts = before.shards.keys().chain(&joined);
        let gains = hosts.map(|host| (*host, share(after, host) - share(before, host)));
        let mut gains: Vec<_> = gains.filter(|gain| gain.1 != 0.0).collect();
        // The sum of an empty list is a negative zero.
        let moved = gains.iter().map(|gain| gain.1.max(0.0)).sum::<f64>().abs();
        gains.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
        Self { joined, left, moved, gains }
    }

    /// The row of the table.
    fn row(&self, timeline: &Timeline<'_>, index: usize, from: &str, whole: f64) -> String {
        let note = &timeline.history.views[index];
        let gains = self.gains.iter().take(GAINS_LISTED_MAX).map(|(host, gain)| {
            let sign = if *gain < 0.0 { "−" } else { "+" };
            format!("{host} {sign}{}", percent(gain.abs(), whole))
        });
        let mut gains = gains.collect::<Vec<_>>().join(", ");
        if self.gains.len() > GAINS_LISTED_MAX {
            gains.push_str(&format!(" and {} more", self.gains.len() - GAINS_LISTED_MAX));
        }
        format!(
            "<tr><td>{from} → {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{gains}</td></tr>\n",
            timeline.view_name(index),
            axis::duration(note.at.0),
            note.view.members.len(),
            hosts(&self.joined),
            hosts(&self.left),
            axis::count(self.moved as u64),
            percent(self.moved, whole),
        )
    }
}

/// The names of a few hosts.
fn hosts(hosts: &[HostId]) -> String {
    let listed_max = if hosts.len() <= HOSTS_MAX { HOSTS_MAX } else { HOSTS_LISTED_MAX };
    let listed: Vec<String> = hosts.iter().take(listed_max).map(HostId::to_string).collect();
    match hosts.len() {
        0 => "–".to_owned(),
        count if count > listed.len() => format!("{} and {} more", listed.join(" "), count - listed.len()),
        _ => listed.join(" "),
    }
}

/// What moved from view to view, as a table.
fn moves(timeline: &Timeline<'_>, whole: f64) -> String {
    let views = &timeline.history.views;
    let mut rows = Vec::new();
    for (index, note) in views.iter().enumerate() {
        let known = |digest: &ViewDigest| views.iter().position(|view| view.digest == *digest);
        let parents: Vec<usize> = note.view.parents.iter().filter_map(known).collect();
        let Some(before) = parents.first().filter(|_| !note.shards.is_empty()) else { continue };
        let names: Vec<String> = parents.iter().map(|parent| timeline.view_name(*parent)).collect();
        rows.push((Change::between(&views[*before], note), index, names.join(" + ")));
    }
    if rows.is_empty() {
        return "<p class=\"more\">One set of owners throughout: nothing moved.</p>\n".to_owned();
    }
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    // Of many rows, those with the most moved elements.
    rows.sort_by(|a, b| b.0.moved.total_cmp(&a.0.moved).then(a.1.cmp(&b.1)));
    rows.truncate(ROWS_MAX);
    rows.sort_by_key(|row| row.1);
    let body: String =
        rows.iter().map(|(change, index, from)| change.row(timeline, *index, from, whole)).collect();
    let more = match left_out {
        0 => String::new(),
        count => format!("<p class=\"more\">and {count} changes of view more, in which less moved</p>\n"),
    };
    format!(
        "<table><thead><tr><th>view</th><th class=\"n\">installed</th><th class=\"n\">members</th><th>joined</th>\
         <th>left</th><th class=\"n\">elements moved</th><th class=\"n\">of all</th><th>largest changes</th></tr></thead>\n\
         <tbody>\n{body}</tbody></table>\n{more}"
    )
}

const HEIGHT: f64 = 168.0;
const BRANCHES_MAX: usize = 4;
/// Most corners that are drawn, over all groups.
const EDGES_MAX: f64 = 10_000.0;
/// With more shares than these, lines between them would hide their colours.
const SEPARATED_MAX: usize = 24;
const VIEWS_LISTED_MAX: usize = 6;
const GAINS_LISTED_MAX: usize = 3;
const HOSTS_MAX: usize = 6;
const HOSTS_LISTED_MAX: usize = 3;
const ROWS_MAX: usize = 24;
