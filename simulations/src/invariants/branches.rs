//! Branches: where both parts of a swarm that is cut in two go on, each view is judged by invariants that know its own past, and
//! nothing else.
//!
//! Like a chronicler who has an apprentice copy the book whenever the story parts, and sends one copy along each road: what
//! happens on one road is written into one book only.
//!
//! # How it works
//! When a view is first installed, the invariants that count what a branch has done are copied from the view that it follows.
//! What a host does is shown to the invariants of its view, and of those views after it that it is about to enter. Where another
//! branch is merged, its invariants are shown to those of the view that merges it.

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
    /// By host: the view that it was in last.
    current_views: BTreeMap<HostId, ViewDigest>,
    /// By view that somebody has spoken of: the one that it follows. Not every view is installed: those who are back after a stop
    /// may agree on one after the other.
    followed: BTreeMap<ViewDigest, ViewDigest>,
    /// By host: the views that are shown what it does, as long as no view comes.
    concerned: BTreeMap<HostId, Vec<usize>>,
}

/// One view, and what its branch has done so far.
struct ViewInvariants {
    digest: ViewDigest,
    view: Arc<View>,
    invariants: Vec<Box<dyn Invariant>>,
}

impl Branches {
    /// The invariants that judge this; `first` are those of a run that has not begun.
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

    /// Whether a view follows that one, be it over others.
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

    /// The view that this one follows.
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
        // What begins again is in the copies already.
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

/// Who does it.
fn host_of(observation: &Observation<'_>) -> HostId {
    match observation {
        Observation::Sent { from, .. } | Observation::Granted { from, .. } => *from,
        Observation::Linked { at, .. } => *at,
        Observation::Emitted { host, .. } | Observation::Crashed { host } => *host,
    }
}

/// Views whose invariants are kept, unless more have hosts in them.
const VIEWS_MAX: usize = 32;
