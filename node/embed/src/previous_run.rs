//! What an earlier start of a peer left in its data directory.

use std::sync::Arc;

use peergrad_core::node::StartMode;
use peergrad_net::{BootstrapAddress, Damaged, Directory, DirectoryError, Port};
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{PeerId, RunId};

/// What an earlier start of a peer left in its data directory.
pub(crate) struct PreviousRun {
    /// The bytes of its durable record; `None` if it has never been a member of a run.
    pub(crate) restored: Option<Arc<[u8]>>,
    /// The same, decoded; `None` if it is missing or damaged.
    record: Option<DurableRecord>,
    /// Other members of its last view, if it joins the same run.
    pub(crate) members: Vec<BootstrapAddress>,
    /// Its checkpoints of the run, newest first.
    pub(crate) saved: Vec<SavedCheckpoint>,
    /// Checkpoints of the run that cannot be read.
    pub(crate) damaged: Vec<Damaged>,
    /// The port it listened on, since restarted members look for it there.
    pub(crate) port: Port,
}

impl PreviousRun {
    pub(crate) fn read(
        directory: &Directory,
        start_mode: &StartMode,
        me: PeerId,
    ) -> Result<Self, DirectoryError> {
        let restored = directory.restored()?;
        let record = restored.as_deref().and_then(DurableRecord::from_bytes);
        let mut previous =
            Self { members: vec![], saved: vec![], damaged: vec![], port: Port::default(), restored, record };
        if let (StartMode::Join { run }, Some(record)) = (start_mode, &previous.record) {
            previous.members = members_before(record, run.as_ref(), me);
            (previous.saved, previous.damaged) = directory.checkpoint_store().scan(&record.view.run);
            let left = directory.last_record().filter(|left| left.invite.run == record.view.run);
            previous.port = left.map_or(previous.port, |left| Port::Preferred(left.port));
        }
        Ok(previous)
    }

    /// Whether there is a durable record that cannot be read.
    pub(crate) fn is_record_damaged(&self) -> bool {
        self.restored.is_some() && self.record.is_none()
    }

    /// The unfinished run that a new run in the same directory replaces; `None` if it replaces none.
    pub(crate) fn replaced_by(&self, start_mode: &StartMode) -> Option<RunId> {
        let record = self.record.as_ref()?;
        matches!(start_mode, StartMode::Bootstrap { .. }).then_some(record.view.run)
    }
}

/// The other members of the view that this peer was in when it stopped, if that was in the same run. They may still train when the
/// member that issued the invite does not.
fn members_before(record: &DurableRecord, run: Option<&RunId>, me: PeerId) -> Vec<BootstrapAddress> {
    if run.is_some_and(|run| *run != record.view.run) {
        return Vec::new();
    }
    let members = record.view.members.iter().filter(|member| member.peer != me);
    members.take(CONTACTS_MAX).map(|member| BootstrapAddress::Contact(member.contact())).collect()
}
