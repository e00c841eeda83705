//! Branches: if both parts of a partitioned swarm go on, each view is checked by invariants that know the history of this view only.
//!
//! They resemble a chronicler who has the book copied whenever the story parts, and sends one copy along each road: what happens on one
//! road is written into one book only.
//!
//! # How it works
//! When a view is first installed, the invariants that follow a branch are copied from the parent view. What a host does is passed to the
//! invariants of its view, and to those of later views that it is about to enter. If another branch is merged, the invariants of the view
//! that merges it receive that branch's invariants.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::message::{AgreementMessage, Message};
use peergrad_protocol::view::View;

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The invariants of each view.
#[derive(Default)]
pub(super) struct Branches {
    /// In the order in which the views were first installed.
    views: Vec<ViewInvariants>,
    /// By host: its last view.
    current_views: BTreeMap<HostId, ViewDigest>,
    /// By view that was named in a message: its parent. Not every view is installed: peers that return after a stop may agree on several in
    /// a row.
    followed: BTreeMap<ViewDigest, ViewDigest>,
    /// By host: the indices of the views that see what it does; valid until there is a new view.
    concerned: BTreeMap<HostId, Vec<usize>>,
}

/// One view, and the invariants that follow its branch.
struct ViewInvariants {
    digest: ViewDigest,
    view: Arc<View>,
    invariants: Vec<Box<dyn Invariant>>,
}

impl Branches {
    /// The invariants that check this observation; `first` are those of a run that has not begun.
    pub(super) fn concerned(
        &mut self,
        observation: &Observation<'_>,
        world: &World<'_>,
        first: &[Box<dyn Invariant>],
    ) -> impl Iterator<Item = &mut Box<dyn Invariant>> {
        if let Observation::Emitted { host, event: Event::ViewInstalled { view, digest, .. } } = observation {
            self.installed(view, *digest, first);
            self.current_views.insert(*host, *digest);
            self.concerned.clear();
        }
        if let Observation::Sent { message: Message::Agreement(AgreementMessage::Install(view)), .. } =
            observation
            && let Some(parent) = view.parents.first()
        {
            let is_new = self.followed.insert(view.digest(), *parent).is_none();
            self.concerned.retain(|_, _| !is_new);
        }
        let host = host_of(observation);
        if !self.concerned.contains_key(&host) {
            let home = self.current_views.get(&host).copied();
            let peer = world.peer(host);
            let is_its = |of_view: &ViewInvariants| {
                let is_home = Some(of_view.digest) == home;
                is_home || (of_view.view.rank(&peer).is_some() && self.follows(&of_view.view, home))
            };
            let its = (0..self.views.len()).filter(|&index| is_its(&self.views[index])).collect();
            self.concerned.insert(host, its);
        }
        let its = &self.concerned[&host];
        let views = self.views.iter_mut().enumerate().filter(|(index, _)| its.contains(index));
        views.flat_map(|(_, of_view)| &mut of_view.invariants)
    }

    /// Whether a view descends from the view `earlier`.
    fn follows(&self, view: &View, earlier: Option<ViewDigest>) -> bool {
        let mut parent = view.parents.first().copied();
        while let Some(digest) = parent {
            if Some(digest) == earlier {
                return true;
            }
            parent = self.before(digest);
        }
        false
    }

    /// The parent of a view.
    fn before(&self, view: ViewDigest) -> Option<ViewDigest> {
        let installed = self.of_view(view).and_then(|of_view| of_view.view.parents.first());
        installed.or(self.followed.get(&view)).copied()
    }

    fn of_view(&self, digest: ViewDigest) -> Option<&ViewInvariants> {
        self.views.iter().rfind(|of_view| of_view.digest == digest)
    }

    fn installed(&mut self, view: &Arc<View>, digest: ViewDigest, first: &[Box<dyn Invariant>]) {
        if self.of_view(digest).is_some() {
            return;
        }
        let mut before = view.parents.first().copied();
        while before.is_some_and(|digest| self.of_view(digest).is_none()) {
            before = before.and_then(|digest| self.before(digest));
        }
        let parent = before.and_then(|parent| self.of_view(parent));
        let of_branch =
            parent.map_or(first, |parent| &parent.invariants).iter().filter_map(|invariant| invariant.fork());
        let mut invariants: Vec<Box<dyn Invariant>> = of_branch.collect();
        // If the parent already merges this branch, the copies include it.
        let is_new = parent.is_none_or(|parent| parent.view.merge() != view.merge());
        if let Some(other) = view.merge().filter(|_| is_new).and_then(|merge| self.of_view(merge.view)) {
            invariants
                .iter_mut()
                .zip(&other.invariants)
                .for_each(|(invariant, other)| invariant.merge(&**other, view));
        }
        self.views.push(ViewInvariants { digest, view: Arc::clone(view), invariants });
        if self.views.len() > VIEWS_MAX {
            let is_empty =
                |of_view: &ViewInvariants| self.current_views.values().all(|home| *home != of_view.digest);
            if let Some(oldest) = self.views.iter().position(is_empty) {
                self.views.remove(oldest);
            }
        }
    }
}

/// The host that does what is observed.
fn host_of(observation: &Observation<'_>) -> HostId {
    match observation {
        Observation::Sent { from, .. } | Observation::Granted { from, .. } => *from,
        Observation::Linked { at, .. } => *at,
        Observation::Emitted { host, .. } | Observation::Crashed { host } => *host,
    }
}

/// Most views whose invariants are kept, unless hosts are in more.
const VIEWS_MAX: usize = 32;
