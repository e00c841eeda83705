//! Invariant 8, progress: once no fault is active, steps are committed again within a bounded time, and within twice that time all peers
//! are in one view; or all peers know that the run is over. A peer that is told to leave, or is removed by a user, ends within the
//! bounded time.

use std::time::Duration;

use peergrad_core::node::{NodeState, Wait};
use peergrad_protocol::{Instant, ViewDigest};

use crate::cluster::Cluster;

/// Checks for progress while no fault is active.
pub struct Liveness {
    patience: Duration,
    /// Number of steps committed by any member, and the time of the last commit or fault, if that is later.
    seen: (usize, Instant),
    /// When all peers were last in one view, or the time of the last fault, if that is later.
    together: Instant,
    /// The time of the last fault.
    last_fault_at: Instant,
}

impl Liveness {
    /// Expects progress within `patience`.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            seen: (0, Instant::default()),
            together: Instant::default(),
            last_fault_at: Instant::default(),
        }
    }

    /// A fault was active until now: starts the time limits again.
    pub fn restart_clock(&mut self, now: Instant) {
        self.seen.1 = now;
        self.together = now;
        self.last_fault_at = now;
    }

    /// Checks that the last commit, the last time at which all peers were in one view, and the oldest open order are recent enough.
    ///
    /// # Errors
    /// A description of the peers that wait, and of what they wait for.
    pub fn check(&mut self, cluster: &Cluster) -> Result<(), String> {
        let commits = cluster.history().commits.len();
        if commits != self.seen.0 {
            self.seen = (commits, cluster.now());
        }
        if are_together(cluster) {
            self.together = cluster.now();
        }
        let waited = cluster.now().since(self.seen.1);
        if waited > self.patience {
            return Err(format!(
                "no step was committed for {:.1} s; {}",
                waited.as_secs_f64(),
                describe_waiting(cluster)
            ));
        }
        let apart = cluster.now().since(self.together);
        if apart > 2 * self.patience {
            return Err(format!(
                "peers have been in different views for {:.1} s; {}",
                apart.as_secs_f64(),
                describe_waiting(cluster)
            ));
        }
        if let Some((given_at, host)) = cluster.oldest_order()
            && cluster.now().since(given_at.max(self.last_fault_at)) > self.patience
        {
            return Err(format!(
                "{host} was told to leave, or removed, {:.1} s ago and still runs; {}",
                cluster.now().since(given_at).as_secs_f64(),
                describe_waiting(cluster)
            ));
        }
        Ok(())
    }
}

/// Whether all peers whose run is not over are in one view.
fn are_together(cluster: &Cluster) -> bool {
    let mut view: Option<ViewDigest> = None;
    let hosts = cluster.hosts();
    let healthy = hosts.ids().filter(|host| !hosts.has_faulty_frames(*host));
    healthy.filter_map(|host| hosts.node_state(host)).all(|standing| match standing {
        NodeState::Member(member) if member.wait == Wait::Evaluation => true,
        NodeState::Member(member) => *view.get_or_insert(member.digest) == member.digest,
        NodeState::Bootstrap | NodeState::Join | NodeState::Recovery => false,
        NodeState::Ended => true,
    })
}

/// The state of each peer as text, without the peers that have finished.
#[must_use]
pub fn describe_waiting(cluster: &Cluster) -> String {
    let words = |standing: NodeState| match standing {
        NodeState::Bootstrap => Some("waits for peers".to_owned()),
        NodeState::Join => Some("asks to join".to_owned()),
        NodeState::Recovery => Some("has restarted, and asks to join".to_owned()),
        NodeState::Member(member) => {
            Some(format!("{} steps complete, waits for {:?}", member.complete, member.wait))
        }
        NodeState::Ended => None,
    };
    let hosts = cluster.hosts();
    let of = |host| {
        let sleeps = if hosts.is_asleep(host) { " (asleep)" } else { "" };
        Some(format!("{host}{sleeps}: {}", words(hosts.node_state(host)?)?))
    };
    let all: Vec<String> = hosts.ids().filter_map(of).collect();
    match all.len() {
        0 => "no peer is left".to_owned(),
        count if count > WAITING_MAX => {
            format!("{}; and {} more", all[..WAITING_MAX].join("; "), count - WAITING_MAX)
        }
        _ => all.join("; "),
    }
}

/// Most peers that are listed one by one.
const WAITING_MAX: usize = 12;
/// The name of invariant 8.
pub const LIVENESS: &str = "progress (invariant 8)";
