//! Invariant 7, nothing waits on the departed: a departed member is out of every view after the time that it takes to notice and to agree.
//!
//! A member that cannot reach enough members of its view to agree on the next one waits on purpose; its time counts from when it could
//! reach them again.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_core::io::Event;
use peergrad_core::node::{MemberProgress, NodeState, Wait};
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_protocol::agreement::is_quorum;
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::view::View;
use peergrad_protocol::{Incarnation, Instant, PeerId, Rank, ViewDigest};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The departed members, and when they departed.
pub struct Departed {
    patience: Duration,
    /// It decides whether the remaining members go on without a quorum.
    policy: PartitionPolicy,
    /// When each member departed.
    gone: BTreeMap<(PeerId, Incarnation), Instant>,
    /// By host: the member that its process is.
    members: BTreeMap<HostId, (PeerId, Incarnation)>,
    /// By host: when it last had a reason to remain in a view with a departed member.
    excused: BTreeMap<HostId, Instant>,
}

/// A departed member, and the time of its departure.
type Gone = ((PeerId, Incarnation), Instant);

impl Departed {
    /// The invariant: a departure is to be noticed, and a view without the departed member agreed on, within `patience`.
    #[must_use]
    pub fn new(patience: Duration, policy: PartitionPolicy) -> Self {
        Self { patience, policy, gone: BTreeMap::new(), members: BTreeMap::new(), excused: BTreeMap::new() }
    }

    fn depart(&mut self, host: HostId, now: Instant) {
        self.excused.remove(&host);
        if let Some(member) = self.members.remove(&host) {
            self.gone.insert(member, now);
        }
    }

    /// The member of a view that departed first.
    fn longest_gone(&self, view: &View) -> Option<Gone> {
        let is_in = |member: &(PeerId, Incarnation)| {
            view.rank(&member.0).is_some_and(|rank| view.member(rank).incarnation == member.1)
        };
        let gone = self.gone.iter().filter(|(member, _)| is_in(member));
        gone.map(|(member, since)| (*member, *since)).min_by_key(|(_, since)| *since)
    }
}

impl Invariant for Departed {
    fn name(&self) -> &'static str {
        "nothing waits on the departed (invariant 7)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { host, event: Event::ViewInstalled { view, .. } } => {
                let me = world.peer(*host);
                if let Some(rank) = view.rank(&me) {
                    self.members.insert(*host, (me, view.member(rank).incarnation));
                }
            }
            Observation::Emitted { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.depart(*host, world.now);
            }
            _ => {}
        }
        Ok(())
    }

    fn check_periodically(&mut self, world: &World<'_>) -> Result<(), String> {
        if self.gone.is_empty() {
            return Ok(());
        }
        let mut by_view: BTreeMap<ViewDigest, Option<Gone>> = BTreeMap::new();
        let mut votes: BTreeMap<ViewDigest, usize> = BTreeMap::new();
        let running = world.hosts().filter(|host| world.node_state(*host).is_some()).count();
        for host in world.hosts() {
            let Some(attentive) = world.awake_since(host) else { continue };
            let Some(NodeState::Member(standing)) = world.node_state(host) else { continue };
            let longest = by_view.entry(standing.digest).or_insert_with(|| self.longest_gone(&standing.view));
            let Some((member, since)) = *longest else {
                self.excused.remove(&host);
                continue;
            };
            if since.after(NOTICED_SOON) > world.now {
                continue;
            }
            // A member that evaluates the final model waits for no other one.
            let votes = *votes.entry(standing.digest).or_insert_with(|| vote_count(&standing, world));
            // Most votes that this host cannot reach.
            let unlinked = running.saturating_sub(1 + world.linked_count(host));
            let is_reached = self.policy.allows_forks()
                || 2 * votes.saturating_sub(unlinked) > standing.view.members.len()
                || reaches_quorum(host, &standing, world);
            if standing.wait == Wait::Evaluation || !is_reached {
                self.excused.insert(host, world.now);
                continue;
            }
            let excused = self.excused.get(&host).copied().unwrap_or_default();
            if since.max(attentive).max(excused).after(self.patience) < world.now {
                // It is reported once.
                self.gone.remove(&member);
                let peer = world.hosts_of(member.0).first().copied().unwrap_or(host);
                return Err(format!(
                    "{host} is still in a view with {peer}, which departed at {:.3} s (it waits for {:?})",
                    since.0 as f64 / 1e9,
                    standing.wait
                ));
            }
        }
        Ok(())
    }
}

/// Whether a host can reach enough members of its view to agree on the next one.
fn reaches_quorum(host: HostId, standing: &MemberProgress, world: &World<'_>) -> bool {
    let view = &standing.view;
    let is_reached = |rank: &Rank| {
        let mut homes = world.hosts_of(view.member(*rank).peer).iter();
        homes.any(|&home| home == host || (world.are_linked(host, home) && has_vote(home, standing, world)))
    };
    let ranks: Vec<Rank> = (0..view.members.len()).map(Rank::from_index).filter(is_reached).collect();
    is_quorum(ranks, view.members.len())
}

/// How many members of its view can answer at present, on any host.
fn vote_count(standing: &MemberProgress, world: &World<'_>) -> usize {
    let has_vote = |peer: PeerId| world.hosts_of(peer).iter().any(|&home| has_vote(home, standing, world));
    standing.view.members.iter().filter(|member| has_vote(member.peer)).count()
}

/// Whether the process on a host can answer for a member of that view: it is in the view, or has it on its disk.
fn has_vote(home: HostId, standing: &MemberProgress, world: &World<'_>) -> bool {
    if world.awake_since(home).is_none() {
        return false;
    }
    match world.node_state(home) {
        // A member of a later view can answer too: it reports that view.
        Some(NodeState::Member(theirs)) => theirs.view.number >= standing.view.number,
        Some(NodeState::Recovery) => world
            .record(home)
            .and_then(|record| DurableRecord::from_bytes(&record.to_bytes()))
            .is_some_and(|durable| durable.view.digest() == standing.digest),
        Some(NodeState::Bootstrap | NodeState::Join | NodeState::Ended) | None => false,
    }
}

/// Before that time, a member needs no reason.
const NOTICED_SOON: Duration = Duration::from_secs(3);
