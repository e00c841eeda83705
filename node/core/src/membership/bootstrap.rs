//! Founder: the first peer of a run admits others until there are enough, and writes the first view.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::MEMBERS_MAX;
use peergrad_protocol::message::{Join, JoinMessage, Refusal, SavedCheckpoint, Welcome};
use peergrad_protocol::view::{Member, Moves, View};
use peergrad_protocol::{PeerId, RunId};

use crate::io::{Event, Output};
use crate::membership::links::send;
use crate::node_report::NodeReport;
use crate::state::checkpoint::Checkpoint;

/// The founder before the first view.
pub(crate) struct Founder {
    run: RunId,
    /// The random bytes from which the run's id is derived, with the specification.
    nonce: [u8; 32],
    /// This peer, as the first view would list it.
    me: Member,
    /// How many peers the first view waits for, this one included.
    wanted: usize,
    /// Peers that asked to join and still prepare.
    candidates: BTreeMap<PeerId, Member>,
    /// Peers that have task and data, possibly this one among them, with the digest of the initial parameters that each has drawn.
    ready: BTreeMap<PeerId, (Member, ContentDigest)>,
    /// Whether the first view is being written to disk.
    is_recording: bool,
    /// The checkpoint from which the run starts, and its contents once they have been read; `None` for a run that starts from initial
    /// values.
    from: Option<(SavedCheckpoint, Option<Arc<Checkpoint>>)>,
}

impl Founder {
    /// A run that waits for `wanted` peers, this one included.
    pub(crate) fn new(
        run: RunId,
        nonce: [u8; 32],
        me: Member,
        wanted: usize,
        from: Option<SavedCheckpoint>,
    ) -> Self {
        // A run that starts from a checkpoint begins at once; other peers join later.
        let wanted = if from.is_some() { 1 } else { wanted };
        let from = from.map(|saved| (saved, None));
        let (candidates, ready) = (BTreeMap::new(), BTreeMap::new());
        Self { run, nonce, me, wanted, candidates, ready, is_recording: false, from }
    }

    /// The checkpoint that must be read before the run can begin; `None` if it has been read or none is needed.
    pub(crate) fn wanted_checkpoint(&self) -> Option<&SavedCheckpoint> {
        self.from.as_ref().filter(|(_, checkpoint)| checkpoint.is_none()).map(|(saved, _)| saved)
    }

    /// The checkpoint has been read.
    pub(crate) fn restored(&mut self, checkpoint: Arc<Checkpoint>) {
        if let Some((_, lacking)) = &mut self.from {
            *lacking = Some(checkpoint);
        }
    }

    /// The checkpoint from which the run starts; `None` if it starts from the beginning, or until the checkpoint has been read.
    pub(crate) fn checkpoint(&self) -> Option<Arc<Checkpoint>> {
        self.from.as_ref()?.1.clone()
    }

    /// A peer asks to join: sends it the run's specification, or the reason of a refusal.
    pub(crate) fn join(&mut self, from: PeerId, join: Join, specification: &[u8], out: &mut Vec<Output>) {
        let refusal = if join.run.is_some_and(|run| run != self.run) {
            Some(Refusal::OtherRun { run: self.run })
        } else if self.candidates().filter(|peer| *peer != from).count() + 1 >= MEMBERS_MAX {
            Some(Refusal::Full)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            send(from, &JoinMessage::Refuse(refusal).into(), out);
            return;
        }
        let Join { incarnation, addresses, capacity, .. } = join;
        let member = Member { peer: from, incarnation, addresses, capacity };
        self.ready.remove(&from);
        self.candidates.insert(from, member);
        let members = vec![self.me.contact()];
        // A joiner only needs to reach the founder, which tells it about the others.
        let workers = vec![];
        let welcome = Welcome {
            specification: specification.to_vec(),
            nonce: self.nonce,
            members,
            non_owners: workers,
        };
        send(from, &JoinMessage::Welcome(welcome).into(), out);
    }

    /// A candidate has task and data. Returns false if the peer never asked to join.
    pub(crate) fn ready(&mut self, from: PeerId, parameters: ContentDigest, out: &mut Vec<Output>) -> bool {
        let Some(member) = self.candidates.remove(&from) else { return self.ready.contains_key(&from) };
        self.ready.insert(from, (member, parameters));
        self.report_gathered(from, out);
        true
    }

    /// This peer has task and data itself.
    pub(crate) fn ready_here(&mut self, parameters: ContentDigest, out: &mut Vec<Output>) {
        self.ready.insert(self.me.peer, (self.me.clone(), parameters));
        self.report_gathered(self.me.peer, out);
    }

    /// This peer's addresses or its offered capacity have changed.
    pub(crate) fn reachability_changed(&mut self, me: &Member) {
        self.me = me.clone();
        if let Some((ready, _)) = self.ready.get_mut(&me.peer) {
            ready.clone_from(me);
        }
    }

    /// The other peers that asked to join and are still there.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = PeerId> {
        let is_other = |peer: &PeerId| *peer != self.me.peer;
        self.candidates.keys().chain(self.ready.keys()).copied().filter(is_other)
    }

    /// The founder's part of the node's report.
    pub(crate) fn node_report(&self) -> NodeReport {
        let preparing = self.candidates.keys().map(|peer| (*peer, false));
        let peers = preparing.chain(self.ready.keys().map(|peer| (*peer, true))).collect();
        NodeReport::Bootstrap { run: self.run, wanted: self.wanted, peers }
    }

    /// A peer has left, or its link is down.
    pub(crate) fn peer_left(&mut self, peer: PeerId, reason: String, out: &mut Vec<Output>) {
        self.candidates.remove(&peer);
        if self.ready.remove(&peer).is_some() {
            let (ready, wanted) = (self.ready.len(), self.wanted);
            out.push(Output::Event(Event::PeerWithdrawn { peer, reason, ready, wanted }));
        }
    }

    /// The peers that are ready and have drawn other initial parameters than this one. They join once the run has begun, as newcomers.
    pub(crate) fn differing(&self) -> impl Iterator<Item = PeerId> {
        let own = self.ready.get(&self.me.peer).map(|(_, parameters)| *parameters);
        let differs = move |of: &ContentDigest| own.is_some_and(|own| own != *of);
        self.ready.iter().filter(move |(_, (_, of))| differs(of)).map(|(peer, _)| *peer)
    }

    /// The first view, of the peers with the same initial parameters as this one; `None` until enough peers are ready. The run has
    /// `stateful` chunks with optimizer state.
    pub(crate) fn view(&self, stateful: usize) -> Option<View> {
        if self.is_recording
            || self.ready.len() < self.wanted
            || !self.ready.contains_key(&self.me.peer)
            || self.wanted_checkpoint().is_some()
        {
            return None;
        }
        if let Some((saved, _)) = &self.from {
            let me = Member { capacity: self.me.capacity.max(1), ..self.me.clone() };
            let restarted = (0..stateful as u32).filter(|chunk| !saved.states.contains(*chunk as usize));
            let moves = Moves { restarted: restarted.collect(), ..Moves::default() };
            let first = View::first_from_checkpoint(self.run, me, saved.steps, saved.cursor.clone());
            return Some(View { moves, ..first });
        }
        let differing: Vec<PeerId> = self.differing().collect();
        let alike = self.ready.values().map(|(member, _)| member).filter(|it| !differing.contains(&it.peer));
        let mut members: Vec<Member> = alike.cloned().collect();
        if members.iter().all(|member| member.capacity == 0) {
            // No peer has offered to own anything, and at least one must.
            members.iter_mut().filter(|member| member.peer == self.me.peer).for_each(|me| me.capacity = 1);
        }
        Some(View::first(self.run, members))
    }

    /// The first view is being written to disk.
    pub(crate) fn recording(&mut self) {
        self.is_recording = true;
    }

    fn report_gathered(&self, peer: PeerId, out: &mut Vec<Output>) {
        let (ready, wanted) = (self.ready.len(), self.wanted);
        out.push(Output::Event(Event::PeerReady { peer, ready, wanted }));
    }
}
