//! Invariant 7, nothing waits on the departed: a member that is gone is out of everybody's view in no longer than it takes to
//! notice and to agree.
//!
//! Whoever cannot reach enough members of its view to agree on the next one waits on purpose; its time counts from when it
//! could again.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_core::io::Event;
use peergrad_core::node::{MemberProgress, NodeState, Wait};
use peergrad_protocol::agreement::is_quorum;
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::view::View;
use peergrad_protocol::{Incarnation, Instant, PeerId, Rank, ViewDigest};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// Who is gone since when.
pub struct Departed {
    patience: Duration,
    /// Whoever is left goes on, however few.
    forks: bool,
    gone: BTreeMap<(PeerId, Incarnation), Instant>,
    /// By host: the member that its process is.
    members: BTreeMap<HostId, (PeerId, Incarnation)>,
    /// By host: when it was last excused for being in a view with somebody who is gone.
    excused: BTreeMap<HostId, Instant>,
}

/// A member that is gone, and since when.
type Gone = ((PeerId, Incarnation), Instant);

impl Departed {
    /// The invariant where a departure is noticed, and a view without the departed agreed on, within `patience`; `forks`: where all parts of
    /// a swarm that is cut in two go on.
    #[must_use]
    pub fn new(patience: Duration, forks: bool) -> Self {
        Self { patience, forks, gone: BTreeMap::new(), members: BTreeMap::new(), excused: BTreeMap::new() }
    }

    fn depart(&mut self, host: HostId, now: Instant) {
        self.excused.remove(&host);
        if let Some(member) = self.members.remove(&host) {
            self.gone.insert(member, now);
        }
    }

    /// The member of a view that has been gone the longest.
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
            // Whoever evaluates is done with everybody.
            let votes = *votes.entry(standing.digest).or_insert_with(|| vote_count(&standing, world));
            // At most so many of the votes are not reached.
            let unlinked = running.saturating_sub(1 + world.linked_count(host));
            let is_reached = self.forks
                || 2 * votes.saturating_sub(unlinked) > standing.view.members.len()
                || reaches_quorum(host, &standing, world);
            if standing.wait == Wait::Evaluation || !is_reached {
                self.excused.insert(host, world.now);
                continue;
            }
            let excused = self.excused.get(&host).copied().unwrap_or_default();
            if since.max(attentive).max(excused).after(self.patience) < world.now {
                // Told once.
                self.gone.remove(&member);
                let peer = world.hosts_of(member.0).first().copied().unwrap_or(host);
                return Err(format!(
                    "{host} is still in a view with {peer}, which is gone since {:.3} s (it waits for {:?})",
                    since.0 as f64 / 1e9,
                    standing.wait
                ));
            }
        }
        Ok(())
    }
}

/// Whether enough members of its view can be reached from a host to agree on the next one.
fn reaches_quorum(host: HostId, standing: &MemberProgress, world: &World<'_>) -> bool {
    let view = &standing.view;
    let is_reached = |rank: &Rank| {
        let mut homes = world.hosts_of(view.member(*rank).peer).iter();
        homes.any(|&home| home == host || (world.are_linked(host, home) && has_vote(home, standing, world)))
    };
    let ranks: Vec<Rank> = (0..view.members.len()).map(Rank::from_index).filter(is_reached).collect();
    is_quorum(ranks, view.members.len())
}

/// How many members of its view can answer at present, wherever they are.
fn vote_count(standing: &MemberProgress, world: &World<'_>) -> usize {
    let has_vote = |peer: PeerId| world.hosts_of(peer).iter().any(|&home| has_vote(home, standing, world));
    standing.view.members.iter().filter(|member| has_vote(member.peer)).count()
}

/// Whether the process on a host can answer for a member of that view: it is in it, or knows from its disk that it was.
fn has_vote(home: HostId, standing: &MemberProgress, world: &World<'_>) -> bool {
    if world.awake_since(home).is_none() {
        return false;
    }
    match world.node_state(home) {
        // A later view is as good: its members tell what it is.
        Some(NodeState::Member(theirs)) => theirs.view.number >= standing.view.number,
        Some(NodeState::Recovery) => world
            .record(home)
            .and_then(|record| DurableRecord::from_bytes(&record.to_bytes()))
            .is_some_and(|durable| durable.view.digest() == standing.digest),
        Some(NodeState::Bootstrap | NodeState::Join | NodeState::Ended) | None => false,
    }
}

/// Before that nobody has to be excused.
const NOTICED_SOON: Duration = Duration::from_secs(3);
