//! Invariant 1, one chain: each view number has one record, which follows the one before, was agreed on by its members, and is installed
//! only at peers that it names.
//!
//! The invariant itself counts what was agreed: it sees each proposal with its ballot, and each acceptance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_core::node::NodeState;
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_protocol::agreement::{Ballot, is_quorum};
use peergrad_protocol::message::{AgreementMessage, Message};
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::{PeerId, Rank, ViewDigest, ViewNumber};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The installed views, and the votes on the next one.
#[derive(Default)]
pub struct OneChain {
    /// It decides whether several views may follow one, each agreed on by its own members.
    policy: PartitionPolicy,
    /// The record of each view number, in a run that cannot fork.
    chain: BTreeMap<ViewNumber, (ViewDigest, Arc<View>)>,
    /// All installed views, in a run that can fork.
    tree: BTreeMap<ViewDigest, Arc<View>>,
    /// Views that were sent, in a run that can fork. Peers that return after a stop may agree on several in a row, and install only the
    /// last.
    sent: BTreeMap<ViewDigest, Arc<View>>,
    /// By parent view and ballot: the proposal and its acceptances.
    ballots: BTreeMap<ViewDigest, BTreeMap<Ballot, Vote>>,
}

/// Proposal and acceptances of one ballot.
#[derive(Default)]
struct Vote {
    proposed: Option<ViewChange>,
    accepted_by: BTreeSet<PeerId>,
    /// Whether the peers that accepted it were members again only after a stop of all.
    is_of_recovery: bool,
}

impl OneChain {
    /// The invariant of a run with this policy.
    #[must_use]
    pub fn new(policy: PartitionPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    fn proposed(&mut self, from: HostId, ballot: Ballot, change: &ViewChange) -> Result<(), String> {
        let vote = self.ballots.entry(change.parent).or_default().entry(ballot).or_default();
        let proposed = vote.proposed.get_or_insert_with(|| change.clone());
        if proposed == change {
            return Ok(());
        }
        Err(format!("{from} proposes two values under ballot {} of rank {}", ballot.attempt, ballot.rank.0))
    }

    fn installed(
        &mut self,
        host: HostId,
        peer: &PeerId,
        digest: ViewDigest,
        view: &Arc<View>,
    ) -> Result<(), String> {
        let view_number = view.number.0;
        if view.rank(peer).is_none() {
            return Err(format!("{host} installs view {view_number} without being in it"));
        }
        if self.policy.allows_forks() {
            return self.grown(host, digest, view);
        }
        if let Some((known, other)) = self.chain.get(&view.number) {
            if *known == digest {
                return Ok(());
            }
            return Err(format!(
                "{host} installs view {view_number}, but another host has installed a different record: {} and {} members",
                view.members.len(),
                other.members.len()
            ));
        }
        self.chain.insert(view.number, (digest, Arc::clone(view)));
        if view_number == 1 {
            return if view.parents.is_empty() {
                Ok(())
            } else {
                Err(format!("the first view at {host} follows another"))
            };
        }
        if !self.chain.contains_key(&ViewNumber(view_number - 1)) {
            self.pass_over(host, view);
        }
        let before = self.chain.get(&ViewNumber(view_number - 1)).cloned();
        match before {
            Some((parent, before)) if view.parents == [parent] => {
                self.is_agreed(host, parent, &before, digest)
            }
            _ => Err(format!("view {view_number} at {host} does not follow view {}", view_number - 1)),
        }
    }

    /// Members that have agreed on a view and all stopped before they entered it go on with a later one: the view between was agreed on and
    /// never installed.
    fn pass_over(&mut self, host: HostId, view: &View) {
        let number = ViewNumber(view.number.0 - 1);
        let Some((parent, before)) = self.chain.get(&ViewNumber(number.0 - 1)).cloned() else { return };
        let votes = self.ballots.get(&parent).into_iter().flat_map(BTreeMap::values);
        let mut changes = votes.filter_map(|vote| vote.proposed.clone());
        let between = changes.find_map(|change| {
            before.apply(parent, &change).ok().filter(|between| view.parents == [between.digest()])
        });
        if let Some(between) = between
            && self.is_agreed(host, parent, &before, between.digest()).is_ok()
        {
            self.chain.insert(number, (between.digest(), Arc::new(between)));
        }
    }

    /// Where several views may follow one: the view must follow a known one, and all members that remain must have accepted it.
    fn grown(&mut self, host: HostId, digest: ViewDigest, view: &Arc<View>) -> Result<(), String> {
        if self.tree.insert(digest, Arc::clone(view)).is_some() || view.parents.is_empty() {
            return Ok(());
        }
        let view_number = view.number.0;
        if let Some(before) = self.sent.remove(&view.parents[0]) {
            self.grown(host, view.parents[0], &before)?;
        }
        let Some(before) =
            self.tree.get(&view.parents[0]).filter(|before| before.number.0 + 1 == view_number)
        else {
            return Err(format!("view {view_number} at {host} follows none that was installed"));
        };
        if view.merge().is_some_and(|merge| !self.tree.contains_key(&merge.view)) {
            return Err(format!("view {view_number} at {host} merges a view that no host has installed"));
        }
        let stays = |peer: &PeerId| {
            let incarnation = |view: &View| view.rank(peer).map(|rank| view.member(rank).incarnation);
            incarnation(before) == incarnation(view)
        };
        let needed: Vec<PeerId> =
            before.members.iter().map(|member| member.peer).filter(|peer| stays(peer)).collect();
        let is_it = |change: &ViewChange| {
            before.apply(view.parents[0], change).is_ok_and(|view| view.digest() == digest)
        };
        let is_chosen = |vote: &Vote| {
            // After a stop of all members a quorum decides as usual: the members that return are other processes. They may adopt a change
            // from before, in which members stay.
            let ranks = vote.accepted_by.iter().filter_map(|peer| before.rank(peer));
            let is_quorum = is_quorum(ranks.collect::<Vec<Rank>>(), before.members.len());
            let have_all = !needed.is_empty() && needed.iter().all(|peer| vote.accepted_by.contains(peer));
            (have_all || (is_quorum && (needed.is_empty() || vote.is_of_recovery)))
                && vote.proposed.as_ref().is_some_and(is_it)
        };
        if self.ballots.get(&view.parents[0]).is_some_and(|votes| votes.values().any(is_chosen)) {
            return Ok(());
        }
        Err(format!("{host} installs view {view_number}, which some remaining member has not accepted"))
    }

    /// Whether a quorum of `before` has accepted, under one ballot, the change that leads to this view.
    fn is_agreed(
        &mut self,
        host: HostId,
        parent: ViewDigest,
        before: &View,
        digest: ViewDigest,
    ) -> Result<(), String> {
        let votes = self.ballots.remove(&parent).unwrap_or_default();
        let is_it =
            |change: &ViewChange| before.apply(parent, change).is_ok_and(|view| view.digest() == digest);
        let is_chosen = |vote: &Vote| {
            let ranks = vote.accepted_by.iter().filter_map(|peer| before.rank(peer));
            is_quorum(ranks.collect::<Vec<Rank>>(), before.members.len())
                && vote.proposed.as_ref().is_some_and(is_it)
        };
        if votes.values().any(is_chosen) {
            return Ok(());
        }
        Err(format!(
            "{host} installs view {}, which no quorum of view {} has accepted",
            before.number.0 + 1,
            before.number.0
        ))
    }
}

impl Invariant for OneChain {
    fn name(&self) -> &'static str {
        "one chain (invariant 1)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Sent {
                from,
                message: Message::Agreement(AgreementMessage::Propose(propose)),
                ..
            } => self.proposed(*from, propose.ballot, &propose.change),
            Observation::Sent {
                from,
                message: Message::Agreement(AgreementMessage::Accepted(accepted)),
                ..
            } => {
                let ballots = self.ballots.entry(accepted.view).or_default();
                let vote = ballots.entry(accepted.ballot).or_default();
                vote.accepted_by.insert(world.peer(*from));
                vote.is_of_recovery |= world.node_state(*from) == Some(NodeState::Recovery);
                Ok(())
            }
            Observation::Sent { message: Message::Agreement(AgreementMessage::Install(view)), .. }
                if self.policy.allows_forks() =>
            {
                self.sent.insert(view.digest(), Arc::new(view.clone()));
                Ok(())
            }
            Observation::Emitted { host, event: Event::ViewInstalled { view, digest, .. } } => {
                self.installed(*host, &world.peer(*host), *digest, view)
            }
            Observation::Emitted { host, event: Event::Committed(_) } => {
                let Some(NodeState::Member(standing)) = world.node_state(*host) else { return Ok(()) };
                let (view, digest) = (&standing.view, standing.digest);
                match self.chain.get(&view.number).filter(|_| !self.policy.allows_forks()) {
                    Some((known, _)) if *known != digest => Err(format!(
                        "{host} commits in a view {} that differs from the others' one",
                        view.number.0
                    )),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
