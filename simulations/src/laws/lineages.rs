//! Lineages: where both parts of a swarm that is cut in two go on, each view is judged by laws that know its own past, and
//! nothing else.
//!
//! Like a chronicler who has an apprentice copy the book whenever the story parts, and sends one copy along each road: what
//! happens on one road is written into one book only.
//!
//! # How it works
//! When a view is first installed, the laws that count what a lineage has done are copied from the view that it follows.
//! What a host does is shown to the laws of its view, and of those views after it that it is about to enter. Where another
//! lineage is merged, its laws are shown to those of the view that merges it.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad::io::Event;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::message::Message;
use peergrad_protocol::view::View;

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// The laws of each view.
#[derive(Default)]
pub(super) struct Lineages {
    /// In the order in which the views were first installed.
    tracks: Vec<Track>,
    /// By host: the view that it was in last.
    homes: BTreeMap<HostId, ViewDigest>,
    /// By view that somebody has spoken of: the one that it follows. Not every view is installed: those who are back after a stop
    /// may agree on one after the other.
    followed: BTreeMap<ViewDigest, ViewDigest>,
    /// By host: the tracks that are shown what it does, as long as no view comes.
    concerned: BTreeMap<HostId, Vec<usize>>,
}

/// One view, and what its lineage has done so far.
struct Track {
    digest: ViewDigest,
    view: Arc<View>,
    laws: Vec<Box<dyn Law>>,
}

impl Lineages {
    /// The laws that judge this; `first` are those of a run that has not begun.
    pub(super) fn concerned(
        &mut self,
        observation: &Observation<'_>,
        world: &World<'_>,
        first: &[Box<dyn Law>],
    ) -> impl Iterator<Item = &mut Box<dyn Law>> {
        if let Observation::Told { host, event: Event::Installed { view, digest, .. } } = observation {
            self.installed(view, *digest, first);
            self.homes.insert(*host, *digest);
            self.concerned.clear();
        }
        if let Observation::Sent { message: Message::Install(view), .. } = observation
            && let Some(parent) = view.parents.first()
        {
            let is_new = self.followed.insert(view.digest(), *parent).is_none();
            self.concerned.retain(|_, _| !is_new);
        }
        let host = host_of(observation);
        if !self.concerned.contains_key(&host) {
            let home = self.homes.get(&host).copied();
            let peer = world.peer(host);
            let is_its = |track: &Track| {
                let is_home = Some(track.digest) == home;
                is_home || (track.view.rank(&peer).is_some() && self.follows(&track.view, home))
            };
            let its = (0..self.tracks.len()).filter(|&index| is_its(&self.tracks[index])).collect();
            self.concerned.insert(host, its);
        }
        let its = &self.concerned[&host];
        let tracks = self.tracks.iter_mut().enumerate().filter(|(index, _)| its.contains(index));
        tracks.flat_map(|(_, track)| &mut track.laws)
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
        let installed = self.track(view).and_then(|track| track.view.parents.first());
        installed.or(self.followed.get(&view)).copied()
    }

    fn track(&self, digest: ViewDigest) -> Option<&Track> {
        self.tracks.iter().rfind(|track| track.digest == digest)
    }

    fn installed(&mut self, view: &Arc<View>, digest: ViewDigest, first: &[Box<dyn Law>]) {
        if self.track(digest).is_some() {
            return;
        }
        let mut before = view.parents.first().copied();
        while before.is_some_and(|digest| self.track(digest).is_none()) {
            before = before.and_then(|digest| self.before(digest));
        }
        let parent = before.and_then(|parent| self.track(parent));
        let of_lineage = parent.map_or(first, |parent| &parent.laws).iter().filter_map(|law| law.fork());
        let mut laws: Vec<Box<dyn Law>> = of_lineage.collect();
        // What begins again is in the copies already.
        let is_new = parent.is_none_or(|parent| parent.view.merge() != view.merge());
        if let Some(other) = view.merge().filter(|_| is_new).and_then(|merge| self.track(merge.view)) {
            laws.iter_mut().zip(&other.laws).for_each(|(law, other)| law.merge(&**other, view));
        }
        self.tracks.push(Track { digest, view: Arc::clone(view), laws });
        if self.tracks.len() > TRACKS_MAX {
            let is_empty = |track: &Track| self.homes.values().all(|home| *home != track.digest);
            if let Some(oldest) = self.tracks.iter().position(is_empty) {
                self.tracks.remove(oldest);
            }
        }
    }
}

/// Who does it.
fn host_of(observation: &Observation<'_>) -> HostId {
    match observation {
        Observation::Sent { from, .. } | Observation::Granted { from, .. } => *from,
        Observation::Linked { at, .. } => *at,
        Observation::Told { host, .. } | Observation::Crashed { host } => *host,
    }
}

/// Views whose laws are kept, unless more have hosts in them.
const TRACKS_MAX: usize = 32;
