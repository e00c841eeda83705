//! Agreement in every order of events: a model checker tries all schedules of a few members, not a sample of them.
//!
//! It is like solving a maze with a thread that marks each path, instead of wandering about in it. A simulation tries very many random
//! schedules. Here all schedules within small bounds are tried, with the very functions that a node calls. A state that no schedule reaches
//! cannot occur within those bounds.
//!
//! # How it works
//! - **Network.** The messages that were sent are a set. Delivery reads a message and leaves it there, so messages arrive late, in any
//!   order, many times or never; a partition is messages that are never delivered.
//! - **Members.** Any member may start an attempt at any time, under any ballot above the one it has promised, and may stop at any point.
//!   With a quorum of promises it may name a value, or wait for more. It receives answers when it takes its next step: no other peer can
//!   see before then what it has received, and so there are far fewer states.
//! - **Crashes.** A peer that restarts has its disk, with the record and the view, and nothing else. One that loses its disk returns as a
//!   new incarnation, has no vote in the old view, and asks to join.
//! - **Values.** A value is the next view; the members named in it agree on the one after that, with a new record. So the checker follows a
//!   chain of views, and not only one decision.
//! - **Planted bugs.** The model, not the code under test, leaves out one rule at a time, and the checker must then find a schedule in
//!   which two values are chosen. If it found none, its other results would prove nothing.
//!
//! # Not here
//! That a decision is reached at last: two proposers may interrupt each other for ever. Timeouts prevent that, and only the simulation has
//! timeouts.
//!
//! # Reading
//! Lamport's specification of Paxos in TLA+ keeps messages in a set and proposers without memory in the same way.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

use peergrad_protocol::Rank;
use peergrad_protocol::agreement::{Acceptor, Ballot, Proposer, is_quorum};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// A small set of peers, and the bounds of their schedules.
#[derive(Clone, Copy, Debug)]
struct World {
    peer_count: u8,
    named: Named,
    /// The highest attempt of a member in each view, by the view's number; the view after the last of them has no successor.
    attempts_max: &'static [u32],
    /// Most attempts of all members together.
    tries_max: u8,
    restarts_max: u8,
    disk_losses_max: u8,
    bug: Option<Bug>,
}

/// The members that a proposer names in its own value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// All members of its view: fewer states, for worlds of one decision.
    Everybody,
    /// Those whose promises it has received: a peer that is cut off is left out.
    Promised,
}

/// The rule that a planted bug leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A proposer ignores the accepted values in promises.
    NoAdoption,
    /// A peer that restarts keeps its vote, but not its promise and its accepted value.
    NoPersistence,
    /// A peer that restarts may use a ballot again that it has promised to itself.
    BallotUsedTwice,
}

/// The index of a peer.
type Peer = u8;

/// A peer in one incarnation: the first, or the one after the loss of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Member {
    peer: Peer,
    incarnation: u8,
}

/// A set of members, as bits: states hold many of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Members(u8);

/// A set of ranks, as bits.
type Ranks = u8;

/// A view, reduced to what matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct View {
    number: u8,
    members: Members,
    /// The ballot under which it was first proposed: two records differ even if they name the same members.
    named_under: Ballot,
}

/// The messages between peers; `view` is the one whose successor is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Prepare {
        view: View,
        ballot: Ballot,
    },
    Promise {
        view: View,
        ballot: Ballot,
        from: Rank,
        accepted: Option<(Ballot, View)>,
    },
    Propose {
        view: View,
        ballot: Ballot,
        value: View,
    },
    /// Only the checks use the value; a proposer does not read it.
    Accepted {
        view: View,
        ballot: Ballot,
        from: Rank,
        value: View,
    },
    Install(View),
    Join(Member),
}

/// A transition from one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A member starts an attempt to have a successor chosen, and ends its earlier attempt.
    Try { peer: Peer, ballot: Ballot },
    /// A proposer that has received the promises of some names a value, and may admit peers that asked to join.
    Name { peer: Peer, heard: Ranks, with_joiners: bool },
    /// A proposer learns that its value is chosen, and announces it.
    Conclude { peer: Peer },
    /// A message is delivered.
    Deliver { to: Peer, message: Message },
    /// A peer crashes and starts again from its disk.
    Restart { peer: Peer },
    /// A peer crashes and starts again with an empty disk.
    LoseDisk { peer: Peer },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The nodes, by peer.
    nodes: Vec<Node>,
    said: BTreeSet<Message>,
    tries_left: u8,
    restarts_left: u8,
    disk_losses_left: u8,
}

/// The state of one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    incarnation: u8,
    /// On disk. `None` in a new incarnation until it is admitted.
    view: Option<View>,
    /// On disk.
    acceptor: Acceptor<View>,
    /// In memory; `None` if it has no attempt in progress.
    attempt: Option<Attempt>,
}

/// A proposer, to which each promise reports its sender. Two are equal if they will do the same: once a value is named, it does not matter
/// which promises led to it.
#[derive(Clone, Debug)]
struct Attempt(Proposer<View, Member>);

const ONE_VALUE: &str = "an agreement chooses at most one value";
const ONE_VIEW: &str = "a number has at most one view";
const ONE_ACTIVE: &str = "training goes on in at most one view of a number";

#[test]
fn two_members_and_their_successors_agree() {
    check(World { attempts_max: &[2, 2], restarts_max: 1, disk_losses_max: 1, ..world(2) });
}

#[test]
fn three_members_agree_however_often_they_try() {
    check(World { named: Named::Everybody, attempts_max: &[2], ..world(3) });
}

#[test]
fn three_members_agree_through_crashes() {
    check(World { restarts_max: 1, disk_losses_max: 1, ..world(3) });
}

#[test]
fn three_members_and_their_successors_agree() {
    check(World { attempts_max: &[1, 1], ..world(3) });
}

#[test]
fn four_members_agree_although_half_of_them_may_decide() {
    check(World { named: Named::Everybody, tries_max: 2, restarts_max: 1, ..world(4) });
}

#[test]
fn without_adoption_two_halves_continue() {
    let world = World { attempts_max: &[1, 1], bug: Some(Bug::NoAdoption), ..world(3) };
    check_finds(world, &[ONE_VALUE, ONE_VIEW, ONE_ACTIVE]);
}

#[test]
fn without_persistence_two_values_are_chosen() {
    check_finds(World { restarts_max: 1, bug: Some(Bug::NoPersistence), ..world(3) }, &[ONE_VALUE]);
}

#[test]
fn with_a_ballot_used_twice_two_values_are_chosen() {
    check_finds(World { restarts_max: 1, bug: Some(Bug::BallotUsedTwice), ..world(3) }, &[ONE_VALUE]);
}

/// One decision among peers that do not crash.
fn world(peer_count: u8) -> World {
    World {
        peer_count,
        named: Named::Promised,
        attempts_max: &[1],
        tries_max: 3,
        restarts_max: 0,
        disk_losses_max: 0,
        bug: None,
    }
}

/// Tries every schedule of `world`: the invariants must hold, and what should be possible must occur.
fn check(world: World) {
    let checker = world.checker().spawn_bfs().join();
    println!("{world:?}: {} states, up to {} steps", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Tries the schedules of `world`, shortest first, until each invariant in `broken` was violated.
fn check_finds(world: World, broken: &[&'static str]) {
    let finish = HasDiscoveries::AllOf(broken.iter().copied().collect());
    let checker = world.checker().finish_when(finish).spawn_bfs().join();
    println!("{world:?}: {} states", checker.unique_state_count());
    for property in broken {
        println!("  not so: {property}");
        for action in checker.assert_any_discovery(property).into_actions() {
            println!("    {action:?}");
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let members = (0..self.peer_count).map(|peer| Member { peer, incarnation: 0 });
        let named_under = Ballot { attempt: 0, rank: Rank(0) };
        let view = View { number: 1, members: Members::of(members), named_under };
        vec![State {
            nodes: vec![Node { view: Some(view), ..Node::new(0) }; usize::from(self.peer_count)],
            said: BTreeSet::new(),
            tries_left: self.tries_max,
            restarts_left: self.restarts_max,
            disk_losses_left: self.disk_losses_max,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (peer, node) in (0..).zip(&state.nodes) {
            if state.tries_left > 0 {
                self.tries(state, peer, node, actions);
            }
            if let (Some(view), Some(attempt)) = (node.view, &node.attempt) {
                match attempt.0.proposed() {
                    None => self.namings(state, peer, view, attempt, actions),
                    Some(value) => {
                        let is_told = state.said.contains(&Message::Install(*value));
                        if !is_told && state.has_chosen(view, attempt) {
                            actions.push(Action::Conclude { peer });
                        }
                    }
                }
            }
            // A restart changes nothing if there is nothing to lose.
            let has_memory = node.attempt.is_some() || self.bug == Some(Bug::NoPersistence);
            if state.restarts_left > 0 && has_memory {
                actions.push(Action::Restart { peer });
            }
            if state.disk_losses_left > 0 && node.incarnation == 0 {
                actions.push(Action::LoseDisk { peer });
            }
            actions.extend(state.said.iter().map(|&message| Action::Deliver { to: peer, message }));
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        // Most deliveries change nothing; it is cheaper to find that out with one node than with a copy of the whole state.
        if let Action::Deliver { to, message } = action {
            let node = &before.nodes[usize::from(to)];
            let mut after = node.clone();
            let answer = after.handle(to, message);
            if after == *node && answer.is_none_or(|answer| before.said.contains(&answer)) {
                return None;
            }
        }
        let mut state = before.clone();
        self.apply(&mut state, action);
        state.drop_late_promises();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_VALUE, |_, state: &State| {
                let chosen: BTreeSet<(View, View)> = state.chosen().collect();
                let decided: BTreeSet<View> = chosen.iter().map(|(view, _)| *view).collect();
                chosen.len() == decided.len()
            }),
            Property::always(ONE_VIEW, |_, state: &State| has_one_a_number(state.installed())),
            Property::always(ONE_ACTIVE, |_, state: &State| has_one_a_number(state.active())),
            Property::always("an installed view was proposed by somebody, and chosen", |_, state: &State| {
                let proposed: BTreeSet<View> = state.said.iter().filter_map(own_value).collect();
                let chosen: BTreeSet<View> = state.chosen().map(|(_, value)| value).collect();
                state.installed().all(|view| proposed.contains(&view) && chosen.contains(&view))
            }),
            Property::sometimes("a value is chosen", |_, state: &State| state.chosen().next().is_some()),
            Property::sometimes("a value is adopted", |_, state: &State| {
                let is_proposal = |message: &&Message| matches!(message, Message::Propose { .. });
                state.said.iter().filter(is_proposal).any(|message| own_value(message).is_none())
            }),
        ];
        if self.peer_count.is_multiple_of(2) {
            properties.push(Property::sometimes(
                "half of the members choose",
                |world: &Self, state: &State| {
                    let is_acceptance = |message: &&Message| matches!(message, Message::Accepted { .. });
                    let acceptances = state.said.iter().filter(is_acceptance).count();
                    state.installed().next().is_some() && 2 * acceptances == usize::from(world.peer_count)
                },
            ));
        }
        if self.attempts_max.len() > 1 {
            properties.push(Property::sometimes("a successor has a successor", |_, state: &State| {
                state.installed().any(|view| view.number == 3)
            }));
        }
        if self.disk_losses_max > 0 {
            properties.push(Property::sometimes("a new incarnation is let in", |_, state: &State| {
                state.nodes.iter().any(|node| node.incarnation == 1 && node.view.is_some())
            }));
        }
        properties
    }
}

impl World {
    /// The ballots that `peer` may try next: any above the one it has promised, as if it had heard of higher ones.
    fn tries(&self, state: &State, peer: Peer, node: &Node, actions: &mut Vec<Action>) {
        let Some(view) = node.view else { return };
        let Some(rank) = node.rank_in(peer, view) else { return };
        let attempts_max = self.attempts_max.get(usize::from(view.number) - 1).copied().unwrap_or(0);
        let ballots = (1..=attempts_max).map(|attempt| Ballot { attempt, rank });
        let promised = node.acceptor.promised();
        let is_free = |ballot: &Ballot| match self.bug {
            Some(Bug::BallotUsedTwice) if node.attempt.is_none() => promised <= Some(*ballot),
            // So that only the missing persistence can do harm.
            Some(Bug::NoPersistence) => {
                promised < Some(*ballot) && !state.said.contains(&Message::Prepare { view, ballot: *ballot })
            }
            _ => promised < Some(*ballot),
        };
        actions.extend(ballots.filter(is_free).map(|ballot| Action::Try { peer, ballot }));
    }

    /// The ways in which `peer` may name a value next: after any quorum of promises that includes its own.
    fn namings(&self, state: &State, peer: Peer, view: View, attempt: &Attempt, actions: &mut Vec<Action>) {
        let own: Ranks = 1 << attempt.0.ballot().rank.0;
        let said: Ranks = state.promises(view, attempt).fold(0, |ranks, (from, _)| ranks | 1 << from.0);
        for heard in (0..=said).filter(|heard| heard & !said == 0 && heard & own != 0) {
            let proposer = self.hear(state, view, attempt, heard);
            if proposer.has_quorum() {
                actions.push(Action::Name { peer, heard, with_joiners: false });
                if proposer.adopted().is_none() && state.joiners().next().is_some() {
                    actions.push(Action::Name { peer, heard, with_joiners: true });
                }
            }
        }
    }

    /// The proposer of `attempt` after it has received the promises of the ranks in `heard`.
    fn hear(&self, state: &State, view: View, attempt: &Attempt, heard: Ranks) -> Proposer<View, Member> {
        let mut proposer = attempt.0.clone();
        for (from, accepted) in state.promises(view, attempt).filter(|(from, _)| heard & 1 << from.0 != 0) {
            let accepted = accepted.filter(|_| self.bug != Some(Bug::NoAdoption));
            proposer.promised(from, accepted, view.members.at(from));
        }
        proposer
    }

    /// Applies `action` to the state.
    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Try { peer, ballot } => {
                state.tries_left -= 1;
                let node = &mut state.nodes[usize::from(peer)];
                let view = node.view.unwrap();
                node.attempt = Some(Attempt(Proposer::new(ballot, view.members.count())));
                // It sends the message to itself first, and writes its promise to disk, so that it does not use this ballot again after a
                // restart.
                let prepare = Message::Prepare { view, ballot };
                let promise = node.handle(peer, prepare).unwrap();
                state.said.extend([prepare, promise]);
            }
            Action::Name { peer, heard, with_joiners } => {
                let node = &state.nodes[usize::from(peer)];
                let view = node.view.unwrap();
                let mut proposer = self.hear(state, view, node.attempt.as_ref().unwrap(), heard);
                let ballot = proposer.ballot();
                let value = *proposer.propose(|reports| {
                    let old = match self.named {
                        Named::Everybody => view.members,
                        Named::Promised => Members::of(reports.values().copied()),
                    };
                    let joiners = state.joiners().filter(|_| with_joiners);
                    let members = joiners.fold(old, |members, joiner| members.replace(joiner));
                    View { number: view.number + 1, members, named_under: ballot }
                });
                state.nodes[usize::from(peer)].attempt = Some(Attempt(proposer));
                state.said.insert(Message::Propose { view, ballot, value });
            }
            Action::Conclude { peer } => {
                let attempt = state.nodes[usize::from(peer)].attempt.as_ref().unwrap();
                state.said.insert(Message::Install(*attempt.0.proposed().unwrap()));
            }
            Action::Deliver { to, message } => {
                let answer = state.nodes[usize::from(to)].handle(to, message);
                state.said.extend(answer);
            }
            Action::Restart { peer } => {
                state.restarts_left -= 1;
                let node = &mut state.nodes[usize::from(peer)];
                node.attempt = None;
                if self.bug == Some(Bug::NoPersistence) {
                    node.acceptor = Acceptor::default();
                }
            }
            Action::LoseDisk { peer } => {
                state.disk_losses_left -= 1;
                state.nodes[usize::from(peer)] = Node::new(1);
                state.said.insert(Message::Join(Member { peer, incarnation: 1 }));
            }
        }
    }
}

impl Node {
    fn new(incarnation: u8) -> Self {
        Self { incarnation, view: None, acceptor: Acceptor::default(), attempt: None }
    }

    /// The peer's rank in `view`; `None` if the peer is in another view, and so has no vote in this one.
    fn rank_in(&self, peer: Peer, view: View) -> Option<Rank> {
        let member = Member { peer, incarnation: self.incarnation };
        view.members.rank(member).filter(|_| self.view == Some(view))
    }

    /// Processes a message and returns the answer. This is one step: its state is on disk before the answer leaves, and a crash between the
    /// two is the same as a lost answer.
    fn handle(&mut self, peer: Peer, message: Message) -> Option<Message> {
        match message {
            Message::Prepare { view, ballot } => {
                let from = self.rank_in(peer, view)?;
                self.acceptor.promise(ballot).ok()?;
                Some(Message::Promise { view, ballot, from, accepted: self.acceptor.accepted().copied() })
            }
            Message::Propose { view, ballot, value } => {
                let from = self.rank_in(peer, view)?;
                self.acceptor.accept(ballot, value).ok()?;
                Some(Message::Accepted { view, ballot, from, value })
            }
            Message::Install(view) => {
                let member = Member { peer, incarnation: self.incarnation };
                let is_newer = self.view.is_none_or(|installed| installed.number < view.number);
                if is_newer && view.members.rank(member).is_some() {
                    *self = Self { view: Some(view), ..Self::new(self.incarnation) };
                }
                None
            }
            // A proposer receives these when it takes its next step.
            Message::Promise { .. } | Message::Accepted { .. } | Message::Join(_) => None,
        }
    }
}

impl State {
    /// Drops promises for which no attempt waits: an attempt receives none once it has named a value or has ended.
    fn drop_late_promises(&mut self) {
        let nodes = &self.nodes;
        self.said.retain(|message| match *message {
            Message::Promise { view, ballot, .. } => (0..).zip(nodes).any(|(peer, node)| {
                let is_asker = node.rank_in(peer, view) == Some(ballot.rank);
                is_asker && node.attempt.as_ref().is_some_and(|attempt| attempt.key() == (ballot, None))
            }),
            _ => true,
        });
    }

    /// The promises for `attempt` in `view`: the sender's rank, and the value that it had accepted.
    fn promises(
        &self,
        view: View,
        attempt: &Attempt,
    ) -> impl Iterator<Item = (Rank, Option<(Ballot, View)>)> {
        let asked = (view, attempt.0.ballot());
        self.said.iter().filter_map(move |message| match *message {
            Message::Promise { view, ballot, from, accepted } => {
                (asked == (view, ballot)).then_some((from, accepted))
            }
            _ => None,
        })
    }

    /// The acceptances under `ballot` in `view`: the sender's rank, and the value.
    fn acceptances(&self, view: View, ballot: Ballot) -> impl Iterator<Item = (Rank, View)> {
        let asked = (view, ballot);
        self.said.iter().filter_map(move |message| match *message {
            Message::Accepted { view, ballot, from, value } => {
                (asked == (view, ballot)).then_some((from, value))
            }
            _ => None,
        })
    }

    /// Whether the value of `attempt` in `view` is chosen, as its proposer sees it after it has received every acceptance.
    fn has_chosen(&self, view: View, attempt: &Attempt) -> bool {
        let mut proposer = attempt.0.clone();
        let ballot = proposer.ballot();
        let ranks = self.acceptances(view, ballot).map(|(from, _)| from);
        let times = ranks.filter(|from| proposer.accepted(*from)).count();
        assert!(times <= 1, "a proposer hears only once that its value is chosen");
        times == 1
    }

    /// Every value that was ever chosen, whether or not a peer knows it, with the view whose successor it is: a quorum has accepted it
    /// under one ballot.
    fn chosen(&self) -> impl Iterator<Item = (View, View)> {
        self.said.iter().filter_map(|message| {
            let Message::Propose { view, ballot, value } = *message else { return None };
            let acceptances = self.acceptances(view, ballot).filter(|(_, accepted)| *accepted == value);
            let is_chosen = is_quorum(acceptances.map(|(from, _)| from), view.members.count());
            is_chosen.then_some((view, value))
        })
    }

    /// Every view that was sent to members to be installed.
    fn installed(&self) -> impl Iterator<Item = View> {
        self.said.iter().filter_map(|message| match message {
            Message::Install(view) => Some(*view),
            _ => None,
        })
    }

    /// Every installed view in which training goes on: a quorum of its members is in it.
    fn active(&self) -> impl Iterator<Item = View> {
        self.installed().filter(|view| {
            let ranks = (0..).zip(&self.nodes).filter_map(|(peer, node)| node.rank_in(peer, *view));
            is_quorum(ranks, view.members.count())
        })
    }

    /// The peers that asked to join.
    fn joiners(&self) -> impl Iterator<Item = Member> {
        self.said.iter().filter_map(|message| match message {
            Message::Join(member) => Some(*member),
            _ => None,
        })
    }
}

/// Whether all `views` have different numbers.
fn has_one_a_number(mut views: impl Iterator<Item = View>) -> bool {
    let mut view_numbers = BTreeSet::new();
    views.all(|view| view_numbers.insert(view.number))
}

/// The value of a proposal, unless the proposer adopted it.
fn own_value(message: &Message) -> Option<View> {
    match *message {
        Message::Propose { ballot, value, .. } if value.named_under == ballot => Some(value),
        _ => None,
    }
}

impl Attempt {
    fn key(&self) -> (Ballot, Option<&View>) {
        (self.0.ballot(), self.0.proposed())
    }
}

impl PartialEq for Attempt {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Attempt {}

impl Hash for Attempt {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

impl Members {
    fn of(members: impl IntoIterator<Item = Member>) -> Self {
        members.into_iter().fold(Self::default(), Self::replace)
    }

    /// The same set with `member` in place of the same peer in another incarnation.
    fn replace(self, member: Member) -> Self {
        let others = self.0 & !(0b11 << (2 * member.peer));
        Self(others | Self::bit(member))
    }

    fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    fn rank(self, member: Member) -> Option<Rank> {
        let bit = Self::bit(member);
        (self.0 & bit != 0).then(|| Rank((self.0 & (bit - 1)).count_ones()))
    }

    fn at(self, rank: Rank) -> Member {
        self.iter().nth(rank.index()).unwrap()
    }

    fn iter(self) -> impl Iterator<Item = Member> {
        let all = (0..4).flat_map(|peer| [0, 1].map(|incarnation| Member { peer, incarnation }));
        all.filter(move |member| self.0 & Self::bit(*member) != 0)
    }

    /// Two bits for each peer, one for each incarnation, so that members are sorted by peer.
    fn bit(member: Member) -> u8 {
        1 << (2 * member.peer + member.incarnation)
    }
}

/// Peers by index, with a mark after those in their second incarnation: `{0, 2'}`.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |member: Member| format!("{}{}", member.peer, ["", "'"][usize::from(member.incarnation)]);
        write!(f, "{{{}}}", self.iter().map(name).collect::<Vec<_>>().join(", "))
    }
}
