//! Restarts: when all members have stopped, the run continues from the newest step that the returned members have saved completely. It uses
//! what is really on their disks, and nothing of a branch that was abandoned before.
//!
//! # How it works
//! What a peer reports as saved is compared with its disk. When a view continues from checkpoints, the invariant finds the newest step
//! itself, from the last reports of the view's members.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

use peergrad_core::io::Event;
use peergrad_core::program::loader::Loaded;
use peergrad_protocol::message::{AgreementMessage, Message, SavedCheckpoint};
use peergrad_protocol::view::{Branch, View};
use peergrad_protocol::{PeerId, ViewNumber};

use super::{Invariant, Observation};
use crate::oracles::view_chain::is_restored;
use crate::world::World;

/// The checkpoints of peers that have returned.
#[derive(Clone)]
pub struct Restarts {
    chunk_count: usize,
    has_state: bool,
    has_tables: bool,
    has_local_parameters: bool,
    saved: BTreeMap<PeerId, Vec<SavedCheckpoint>>,
    branches: BTreeMap<ViewNumber, Branch>,
}

impl Restarts {
    /// The invariant for a run of this task and configuration.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let tables = loaded.program.table_spec(loaded).map(|table_spec| table_spec.layout.chunk_count());
        let has_local_parameters = loaded.program.has_local_parameters();
        Self {
            chunk_count: tables.unwrap_or_else(|| loaded.manifest.chunks().count()),
            has_tables: tables.is_some(),
            has_local_parameters,
            has_state: tables.is_some() || (loaded.state_count() > 0 && !has_local_parameters),
            saved: BTreeMap::new(),
            branches: BTreeMap::new(),
        }
    }

    fn installed(&mut self, view: &View) -> Result<(), String> {
        let is_new = self.branches.insert(view.number, view.history.branch).is_none();
        if !is_new || !is_restored(view) {
            return Ok(());
        }
        let mut chain: Vec<Branch> = self.branches.range(..view.number).map(|(_, branch)| *branch).collect();
        chain.dedup();
        let due = self.newest(view, &chain);
        let step = view.first_step().0;
        if step == due {
            return Ok(());
        }
        Err(format!(
            "view {} restarts from step {step}, but its members have saved step {due} completely",
            view.number.0
        ))
    }

    /// The newest step that members have saved completely; else, without tables, the newest that any of them has; else the beginning.
    fn newest(&self, view: &View, chain: &[Branch]) -> u64 {
        let of_members = view.members.iter().filter_map(|member| self.saved.get(&member.peer)).flatten();
        // Only checkpoints up to the beginning of the next branch count, and none of an abandoned branch.
        let is_valid = |saved: &&SavedCheckpoint| {
            let place = chain.iter().position(|branch| *branch == saved.branch);
            place.is_some_and(|place| chain[place + 1..].iter().all(|later| saved.steps <= later.step))
        };
        let valid: Vec<&SavedCheckpoint> = of_members.filter(is_valid).collect();
        let position =
            |saved: &SavedCheckpoint| (saved.steps.0, (!self.has_local_parameters).then_some(saved.digest.0));
        let positions: BTreeSet<_> = valid.iter().map(|saved| position(saved)).collect();
        let is_whole = |wanted: &&(u64, Option<[u8; 32]>)| {
            let mut chunks = 0..self.chunk_count;
            let is_saved =
                |chunk| valid.iter().any(|saved| position(saved) == **wanted && saved.states.contains(chunk));
            !self.has_state || chunks.all(is_saved)
        };
        let in_part = positions.last().filter(|_| !self.has_tables);
        let newest = positions.iter().rev().find(is_whole).or(in_part);
        newest.map_or(0, |(steps, _)| *steps)
    }
}

impl Invariant for Restarts {
    fn name(&self) -> &'static str {
        "restarts"
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Sent {
                from,
                message: Message::Agreement(AgreementMessage::Promise(promise)),
                ..
            } => {
                let Some(again) = &promise.report.rejoin else { return Ok(()) };
                let really: Vec<&SavedCheckpoint> = world.saved(*from).collect();
                let is_there = |said: &SavedCheckpoint| really.contains(&said);
                self.saved.insert(world.peer(*from), again.saved.clone());
                if again.saved.iter().all(is_there) && again.saved.len() == really.len() {
                    Ok(())
                } else {
                    Err(format!("{from} reports a checkpoint that is not on its disk"))
                }
            }
            Observation::Emitted { event: Event::ViewInstalled { view, .. }, .. } => self.installed(view),
            _ => Ok(()),
        }
    }
}
