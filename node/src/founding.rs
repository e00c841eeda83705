//! Founding: the first peer of a run lets others in until there are enough, and writes the first view.

use std::collections::BTreeMap;

use peergrad_protocol::ledger::Ledger;
use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::message::{Contact, Join, Message, Refusal, Welcome};
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Epoch, Frame, PeerId, RunId};

use crate::io::{Event, Output};

/// The founder before the first view.
pub(crate) struct Founding {
    run: RunId,
    nonce: [u8; 32],
    me: Member,
    wanted: usize,
    candidates: BTreeMap<PeerId, Candidate>,
    is_ready: bool,
}

/// A peer that asked to be let in.
struct Candidate {
    member: Member,
    is_ready: bool,
}

impl Founding {
    /// A run waiting for `wanted` peers, this one included.
    pub(crate) fn new(run: RunId, nonce: [u8; 32], me: Member, wanted: usize) -> Self {
        Self { run, nonce, me, wanted, candidates: BTreeMap::new(), is_ready: false }
    }

    /// A peer asks to be let in: it is told what the run is, or why not.
    pub(crate) fn join(&mut self, from: PeerId, join: Join, specification: &[u8], out: &mut Vec<Output>) {
        let refusal = if join.run.is_some_and(|run| run != self.run) {
            Some(Refusal::OtherRun { run: self.run })
        } else if self.candidates.len() + 1 >= MEMBERS_MAX && !self.candidates.contains_key(&from) {
            Some(Refusal::Full)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            out.push(Output::Send { to: from, frame: Frame::encode(&Message::Refuse(refusal), None) });
            return;
        }
        let Join { incarnation, addresses, weight, .. } = join;
        let member = Member { peer: from, incarnation, addresses, weight };
        self.candidates.insert(from, Candidate { member, is_ready: false });
        let founder = Contact { peer: self.me.peer, addresses: self.me.addresses.clone() };
        let welcome = Welcome { specification: specification.to_vec(), nonce: self.nonce, founder };
        out.push(Output::Send { to: from, frame: Frame::encode(&Message::Welcome(welcome), None) });
    }

    /// A candidate has task and data. False if it never asked to be let in.
    pub(crate) fn ready(&mut self, from: PeerId, out: &mut Vec<Output>) -> bool {
        let Some(candidate) = self.candidates.get_mut(&from) else { return false };
        if !std::mem::replace(&mut candidate.is_ready, true) {
            self.tell_gathered(from, out);
        }
        true
    }

    /// This peer has task and data itself.
    pub(crate) fn ready_here(&mut self, out: &mut Vec<Output>) {
        self.is_ready = true;
        self.tell_gathered(self.me.peer, out);
    }

    /// Everyone that asked to be let in and is still there.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = PeerId> {
        self.candidates.keys().copied()
    }

    /// A peer has left, or its link is gone.
    pub(crate) fn gone(&mut self, peer: PeerId, reason: String, out: &mut Vec<Output>) {
        if self.candidates.remove(&peer).is_some_and(|candidate| candidate.is_ready) {
            let (ready, wanted) = (self.ready_count(), self.wanted);
            out.push(Output::Event(Event::Withdrawn { peer, reason, ready, wanted }));
        }
    }

    /// The first view, once enough peers are ready.
    pub(crate) fn view(&self) -> Option<View> {
        if !self.is_ready || self.ready_count() < self.wanted {
            return None;
        }
        let others = self.candidates.values().filter(|candidate| candidate.is_ready);
        let mut members: Vec<Member> = others.map(|candidate| candidate.member.clone()).collect();
        members.push(self.me.clone());
        if members.iter().all(|member| member.weight == 0) {
            // Nobody offered to own anything, and somebody must.
            members.iter_mut().filter(|member| member.peer == self.me.peer).for_each(|me| me.weight = 1);
        }
        members.sort_by_key(|member| member.peer);
        Some(View {
            run: self.run,
            epoch: Epoch(1),
            parents: vec![],
            members,
            recovery: Recovery::Found,
            ledger: Ledger::default(),
        })
    }

    fn ready_count(&self) -> usize {
        usize::from(self.is_ready) + self.candidates.values().filter(|candidate| candidate.is_ready).count()
    }

    fn tell_gathered(&self, peer: PeerId, out: &mut Vec<Output>) {
        let (ready, wanted) = (self.ready_count(), self.wanted);
        out.push(Output::Event(Event::Gathered { peer, ready, wanted }));
    }
}
