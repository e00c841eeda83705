//! Cuts: which frames a partition or a cut blocks, and its name in reports.

use peergrad_protocol::Instant;

use crate::cluster::Cluster;
use crate::history::CutInterval;
use crate::host::HostId;
use crate::scenario::{Directions, Groups};

/// A cut to be made.
pub(super) struct Cut {
    /// Sender and receiver of the frames that are blocked.
    edges: Vec<(HostId, HostId)>,
    /// Its name in reports.
    label: String,
}

/// A cut that was made.
pub(super) struct OpenCut {
    /// Sender and receiver of the frames that are blocked.
    edges: Vec<(HostId, HostId)>,
    /// Its index in the history's cuts.
    index: usize,
}

impl Cut {
    /// A cut between two hosts.
    pub(super) fn between([a, b]: [HostId; 2], directions: Directions) -> Self {
        let (edges, sign) = match directions {
            Directions::Forward => (vec![(a, b)], "->"),
            Directions::Both => (vec![(a, b), (b, a)], "|"),
        };
        Self { edges, label: format!("cut {a} {sign} {b}") }
    }

    /// A cut between groups of hosts.
    pub(super) fn partition(cluster: &Cluster, groups: &Groups) -> Self {
        let groups = groups_of(cluster, groups);
        let label = groups.iter().map(|group| names(group)).collect::<Vec<_>>().join(" | ");
        let mut edges = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            for other in groups.iter().enumerate().filter(|(other, _)| *other != index).flat_map(|o| o.1) {
                edges.extend(group.iter().map(|&host| (host, *other)));
            }
        }
        Self { edges, label: format!("cut {label}") }
    }

    /// Blocks the frames, of those hosts that exist.
    pub(super) fn open(self, cluster: &mut Cluster) -> OpenCut {
        let count = cluster.hosts().ids().count();
        let is_real =
            |(from, to): &(HostId, HostId)| from != to && from.index() < count && to.index() < count;
        let edges: Vec<_> = self.edges.into_iter().filter(is_real).collect();
        for &(from, to) in &edges {
            cluster.cut(from, to);
        }
        let from = cluster.now();
        let cuts = &mut cluster.history_mut().cuts;
        cuts.push(CutInterval { from, until: Instant(u64::MAX), label: self.label });
        OpenCut { edges, index: cuts.len() - 1 }
    }
}

impl OpenCut {
    /// Lets the frames pass again.
    pub(super) fn heal(self, cluster: &mut Cluster) {
        for (from, to) in self.edges {
            cluster.heal(from, to);
        }
        let now = cluster.now();
        cluster.history_mut().cuts[self.index].until = now;
    }
}

fn groups_of(cluster: &Cluster, groups: &Groups) -> Vec<Vec<HostId>> {
    let all: Vec<HostId> = cluster.hosts().ids().collect();
    match groups {
        Groups::Peers(groups) => {
            groups.iter().map(|group| group.iter().map(|&peer| HostId(peer as u32)).collect()).collect()
        }
        Groups::Split(parts) => {
            let mut rest = all.as_slice();
            let part_of = |size| {
                let (part, others) = rest.split_at(size);
                rest = others;
                part.to_vec()
            };
            Groups::sizes(parts, all.len()).into_iter().map(part_of).collect()
        }
    }
}

fn names(hosts: &[HostId]) -> String {
    match hosts {
        [] => "nobody".to_owned(),
        [one] => one.to_string(),
        [first, .., last] if hosts.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0) => {
            format!("{first}-{last}")
        }
        hosts => hosts.iter().map(HostId::to_string).collect::<Vec<_>>().join(" "),
    }
}
