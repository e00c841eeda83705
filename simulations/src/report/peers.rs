//! The colours of peers: from dark to light in the order of the lanes, so that neighbours in colour are neighbours in order, also for
//! readers who distinguish few hues.
//!
//! Of up to [`APART_MAX`] peers each has its own colour; above that, neighbours form groups.

use std::ops::Range;

use super::svg::{Area, Drawing};
use crate::host::HostId;

/// Most peers with a colour each.
const APART_MAX: usize = 64;
/// Most groups that more peers form.
const GROUPS_MAX: usize = 48;

/// Groups of neighbouring peers.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    /// Number of peers in all.
    pub(super) peers: usize,
    /// Number of peers in a group; the last one may have fewer.
    size: usize,
}

impl Groups {
    /// Groups of one peer each, or the smallest groups within the limit.
    pub(super) fn new(peers: usize) -> Self {
        Self { peers, size: if peers <= APART_MAX { 1 } else { peers.div_ceil(GROUPS_MAX) } }
    }

    /// Number of groups.
    pub(super) fn count(self) -> usize {
        self.peers.div_ceil(self.size)
    }

    /// The group of a host.
    pub(super) fn of(self, host: HostId) -> usize {
        host.index() / self.size
    }

    /// The hosts of a group.
    pub(super) fn hosts(self, group: usize) -> Range<usize> {
        group * self.size..((group + 1) * self.size).min(self.peers)
    }

    /// "p3", or "p16 to p31".
    pub(super) fn name(self, group: usize) -> String {
        let hosts = self.hosts(group);
        match hosts.len() {
            1 => format!("p{}", hosts.start),
            _ => format!("p{} to p{}", hosts.start, hosts.end.saturating_sub(1)),
        }
    }

    /// The name where there is little room.
    pub(super) fn short_name(self, group: usize) -> String {
        format!("p{}", self.hosts(group).start)
    }

    /// Whether each group is one peer.
    pub(super) fn are_peers(self) -> bool {
        self.size == 1
    }

    /// The colour of a group: its hexadecimal digits, and whether dark text is needed on it.
    pub(super) fn colour(self, group: usize) -> (String, bool) {
        let place = match self.count() {
            0 | 1 => 0.35,
            count => group as f64 / (count - 1) as f64,
        };
        let scaled = place * (RAMP.len() - 1) as f64;
        let below = (scaled as usize).min(RAMP.len() - 2);
        let mix = |channel: usize| {
            let (from, to) = (RAMP[below][channel], RAMP[below + 1][channel]);
            from + (to - from) * (scaled - below as f64)
        };
        let [red, green, blue] = [mix(0), mix(1), mix(2)];
        let is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 128.0;
        (format!("#{:02x}{:02x}{:02x}", red as u8, green as u8, blue as u8), is_light)
    }

    /// A narrow strip in the peers' colours along lanes that begin at `top` and are `pitch` apart.
    pub(super) fn key(self, drawing: &mut Drawing, x: f64, top: f64, pitch: f64, gap: f64) {
        for group in 0..self.count() {
            let hosts = self.hosts(group);
            let area = Area {
                x,
                y: top + hosts.start as f64 * pitch + gap / 2.0,
                width: 3.0,
                height: hosts.len() as f64 * pitch - gap,
            };
            let Area { y, width, height, .. } = area;
            drawing.put(format_args!(
                r#"<rect x="{x}" y="{y:.2}" width="{width}" height="{height:.2}" fill="{}"/>"#,
                self.colour(group).0
            ));
        }
    }
}

/// After Crameri's "batlow", without its darkest and lightest ends: even in lightness, and readable with colour blindness.
const RAMP: [[f64; 3]; 7] = [
    [28.0, 74.0, 112.0],
    [36.0, 106.0, 112.0],
    [78.0, 124.0, 92.0],
    [128.0, 141.0, 70.0],
    [190.0, 154.0, 68.0],
    [236.0, 166.0, 108.0],
    [247.0, 190.0, 178.0],
];
