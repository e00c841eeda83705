//! The publication of a run: the record in a peer's data directory from which invites are made.

use peergrad_net::{Directory, DirectoryError, RunRecord};
use peergrad_protocol::RunId;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::message::Contact;
use peergrad_protocol::view::{Member, View};
use tokio::sync::watch;

/// What an invite to the run of one peer says, as far as it is known by now. A method that changes it says whether it did.
pub(crate) struct RunPublication {
    secret: Secret,
    contact: Contact,
    /// The port that the peer listens on.
    listening: u16,
    /// The run; `None` until it is known.
    run: Option<RunId>,
    /// Some other members, which invites name too.
    others: Vec<Contact>,
    /// The current invite, for all who have a receiver.
    invite: watch::Sender<Option<Invite>>,
}

impl RunPublication {
    /// For a peer whose run is not known yet.
    pub(crate) fn new(secret: Secret, contact: Contact, listening: u16) -> Self {
        let (run, others, invite) = (None, vec![], watch::Sender::new(None));
        Self { secret, contact, listening, run, others, invite }
    }

    /// Where the current invite can be read; it holds `None` until the run is known.
    pub(crate) fn invites(&self) -> watch::Receiver<Option<Invite>> {
        self.invite.subscribe()
    }

    pub(crate) fn set_run(&mut self, run: RunId) -> bool {
        self.run.replace(run) != Some(run)
    }

    /// Takes a new secret, which later joiners have from their invite.
    pub(crate) fn set_secret(&mut self, secret: Secret) -> bool {
        std::mem::replace(&mut self.secret, secret) != secret
    }

    /// Takes the peer's announced addresses.
    pub(crate) fn set_addresses(&mut self, announced: &[String]) -> bool {
        let is_news = self.contact.addresses != announced;
        self.contact.addresses = announced.to_vec();
        is_news
    }

    /// Takes the other members that invites name from a new view.
    pub(crate) fn set_members(&mut self, view: &View) -> bool {
        let mut members: Vec<&Member> =
            view.members.iter().filter(|member| member.peer != self.contact.peer).collect();
        // Members that own nothing may be unreachable.
        members.sort_by_key(|member| member.capacity == 0);
        let contact = |member: &&Member| Contact {
            peer: member.peer,
            addresses: member.addresses.iter().take(INVITED_ADDRESSES_MAX).cloned().collect(),
        };
        let others = members.iter().take(INVITED_MAX).map(contact).collect();
        std::mem::replace(&mut self.others, others) != self.others
    }

    /// Makes the invite current, and writes the record that `peer invite` reads. Does nothing before the run is known.
    pub(crate) fn publish(&self, directory: &Directory) -> Result<(), DirectoryError> {
        let Some(run) = self.run else { return Ok(()) };
        // This peer first, then some other members, which can admit a joiner after this peer has gone.
        let contacts = std::iter::once(&self.contact).chain(&self.others).cloned().collect();
        let invite = Invite { run, secret: self.secret, contacts };
        self.invite.send_replace(Some(invite.clone()));
        directory.publish(&RunRecord { invite, port: self.listening })
    }
}

/// How many other members an invite names; more of them make a longer command.
const INVITED_MAX: usize = 3;
/// How many addresses of each other member an invite names.
const INVITED_ADDRESSES_MAX: usize = 3;
