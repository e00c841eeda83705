//! The link state: the link to a peer, and the session numbers by which both ends recognize it.
//!
//! ```text
//!            its session is new, or another          silent for too long, or closed here    
//!   no link --------------------------------> link -------------------------------------> no link, own session redrawn
//!            (another: the old link is down)
//! ```
//! Our session number changes only when *we* give up a link, so two ends that both react to each other's change agree at once.

use std::sync::Arc;

use peergrad_protocol::{Incarnation, PeerId};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::link::{Link, OpenRequest, Route, SessionId};

/// The link to one peer, and what this peer does to open or close one.
#[derive(Debug)]
pub(crate) struct LinkState {
    /// This end's session number.
    pub(crate) mine: SessionId,
    /// The largest start number of the other end's process that is known; 0 before the first session.
    last_start: Incarnation,
    /// The link; `None` while there is none.
    pub(crate) current: Option<Arc<Link>>,
    /// A link that is closed for the node, and whose last frames and goodbyes are still under way.
    pub(crate) closing: Option<ClosingLink>,
    /// Whether this peer wants a link.
    pub(crate) intent: LinkIntent,
    /// The task of the outgoing lane.
    pub(crate) outgoing: Outgoing,
    /// Since when, and why, the link has no outgoing lane; `None` while it has one, or there is no link.
    pub(crate) outage: Option<Outage>,
    /// When the other end last answered that it does not know the session that an opening named; `None` before the first such answer.
    pub(crate) unknown_session_at: Option<Instant>,
}

/// A link that is being ended in an orderly way.
#[derive(Debug)]
pub(crate) struct ClosingLink {
    /// The link.
    pub(crate) link: Arc<Link>,
    /// The number of the task of its outgoing lane, which may still be opening that lane.
    pub(crate) outgoing: u64,
}

/// Whether this peer wants a link to the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkIntent {
    /// It wants a link.
    Connect,
    /// It wants none, but accepts one: the other end said goodbye, and may come back.
    Idle,
    /// It wants to be disconnected: it said goodbye.
    Disconnect,
}

/// The task that opens and keeps the outgoing lane.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// This peer has no lane to the other, and opens none before this time.
    Idle { not_before: Instant },
    /// The task with this number runs; reports of earlier tasks are ignored. Its opening named the session `known`.
    Running { number: u64, task: AbortHandle, known: Option<SessionId> },
}

/// A link without its outgoing lane.
#[derive(Debug)]
pub(crate) struct Outage {
    /// When the lane was lost, or the link began.
    pub(crate) since: Instant,
    /// Why, in words.
    pub(crate) reason: String,
    /// Whether the link had a lane before; otherwise its first lane is still being opened.
    pub(crate) was_up: bool,
}

/// What a session number of the other end means for the link.
#[derive(Debug)]
pub(crate) enum SessionChange {
    /// The link continues.
    Same(Arc<Link>),
    /// A link begins.
    New(Arc<Link>),
    /// The other end has restarted or given up the link: the old link is closed, and another begins.
    Replaced { old: Arc<Link>, new: Arc<Link> },
}

impl LinkState {
    pub(super) fn new(my_start: Incarnation, now: Instant) -> Self {
        Self {
            mine: SessionId::draw(my_start),
            last_start: Incarnation(0),
            current: None,
            closing: None,
            intent: LinkIntent::Connect,
            outgoing: Outgoing::Idle { not_before: now },
            outage: None,
            unknown_session_at: None,
        }
    }

    /// Whether this link is the current one.
    pub(crate) fn is(&self, link: &Arc<Link>) -> bool {
        self.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link))
    }

    /// Whether no lane of the link is open yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.current.is_none() || self.outage.is_some()
    }

    /// The request that opens a lane.
    pub(crate) fn open_request(&self) -> OpenRequest {
        OpenRequest {
            session: self.mine,
            known: self.current.as_ref().map(|link| link.theirs()),
            joins: None,
        }
    }

    /// Whether an opening is meant for the current life of the link, and not for an earlier one.
    pub(crate) fn is_current(&self, opening: OpenRequest) -> bool {
        opening.known.is_none_or(|known| known == self.mine)
    }

    /// Whether a session belongs to a process that a later one with the same identity has replaced.
    pub(crate) fn is_duplicate(&self, theirs: SessionId) -> bool {
        theirs.start < self.last_start
    }

    /// Whether an answer to an opening that named `known` may be news. If another session became known while the opening was
    /// under way, the order of the two is unknown.
    pub(crate) fn is_response_current(&self, known: Option<SessionId>, answered: SessionId) -> bool {
        let current = self.current.as_ref().map(|link| link.theirs());
        current == known || current == Some(answered)
    }

    /// Takes in the other end's session. A link that begins leads over `route`.
    pub(super) fn note_session(
        &mut self,
        peer: PeerId,
        theirs: SessionId,
        route: Route,
        now: Instant,
    ) -> SessionChange {
        if let Some(link) = self.current.as_ref().filter(|link| link.theirs() == theirs) {
            return SessionChange::Same(Arc::clone(link));
        }
        self.last_start = self.last_start.max(theirs.start);
        let new = Arc::new(Link::new(peer, theirs, route));
        self.outage = Some(Outage { since: now, reason: "no answer".to_owned(), was_up: false });
        match self.current.replace(Arc::clone(&new)) {
            None => SessionChange::New(new),
            Some(old) => {
                old.close();
                SessionChange::Replaced { old, new }
            }
        }
    }

    /// Takes the link away and draws another session.
    pub(super) fn take(&mut self) -> Option<Arc<Link>> {
        let link = self.current.take()?;
        self.mine = SessionId::draw(self.mine.start);
        self.outage = None;
        Some(link)
    }

    /// The outgoing lane is gone. Remembers the first reason, which is the cause of the following ones.
    pub(crate) fn note_outage(&mut self, reason: String, now: Instant) {
        if self.current.is_some() && self.outage.is_none() {
            self.outage = Some(Outage { since: now, reason, was_up: true });
        }
    }

    pub(crate) fn stop_outgoing(&mut self) {
        let idle = Outgoing::Idle { not_before: Instant::now() };
        if let Outgoing::Running { task, .. } = std::mem::replace(&mut self.outgoing, idle) {
            task.abort();
        }
    }
}
