//! Why a run ended at a peer before it was complete.

use peergrad_protocol::limits::{QUARANTINE_TIMES_MAX, REJECTS_MAX};
use peergrad_protocol::message::Refusal;
use peergrad_protocol::view::{Expulsion, ExpulsionCause};
use peergrad_protocol::{PeerId, StepNumber};

/// Why a run ended at this peer before it was complete. Each message says what the user can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The founder has left before the run began.
    #[error("peer {} has left before the run began ({reason}): start the run again and ask for a fresh invite", by.short())]
    FounderLeft {
        /// The founder's id.
        by: PeerId,
        /// The reason that the founder gave.
        reason: String,
    },
    /// The members refuse to admit this peer.
    #[error("{}", refusal_text(*refusal, *by))]
    Refused {
        /// The peer that refused.
        by: PeerId,
        /// The reason.
        refusal: Refusal,
    },
    /// The founder's specification does not belong to the run of the invite.
    #[error("peer {} sent a specification that is not the invite's run; ask for a fresh invite", by.short())]
    WrongSpecification {
        /// The sender.
        by: PeerId,
    },
    /// The specification or the data cannot be used here.
    #[error("{0}")]
    Unusable(String),
    /// The data file is neither here, nor is it sent by a member.
    #[error("the data file `{name}` ({} MiB) is not on this machine, and no peer can send it: copy it here and add --data FILE", byte_count >> 20)]
    DataMissing {
        /// The file's name at the founder.
        name: String,
        /// The size of the file in bytes.
        byte_count: u64,
    },
    /// The file that a member has sent is not that of the specification, or cannot be read back.
    #[error(
        "what a member has sent is not the data file `{name}` of this run, or cannot be read back from the data directory: join with an invite from another member, or copy the file here and add --data FILE"
    )]
    DataDiffers {
        /// The file's name at the founder.
        name: String,
    },
    /// The data file from a member cannot be written to disk.
    #[error("the data file `{name}` ({} MiB) from the swarm cannot be written to the data directory ({reason}): mend that, or start with --dir on another disk; what was received is kept", byte_count >> 20)]
    DataNotStored {
        /// The file's name at the founder.
        name: String,
        /// The size of the file in bytes.
        byte_count: u64,
        /// The system's error, in words.
        reason: String,
    },
    /// The checkpoint with which this peer was to begin cannot be read.
    #[error(
        "the checkpoint after step {steps} cannot be read any more ({reason}): start this peer again, and the others give it what it lacks"
    )]
    CheckpointLost {
        /// The number of steps behind the checkpoint.
        steps: u64,
        /// A text that says why.
        reason: String,
    },
    /// The task's code panicked.
    #[error("the task failed: {0}")]
    TaskPanicked(String),
    /// The loss has not been a finite number for many steps, or at the end of the run.
    #[error("the loss has not been a finite number since step {} ({steps} in a row): begin a new run with a smaller `rate`, and check the data. Nothing was saved since then; checkpoints from before are kept, if there are any", since.0)]
    Diverged {
        /// The first of these steps; in a run with tables, of this member's clocks.
        since: StepNumber,
        /// How many there are.
        steps: u64,
    },
    /// The members' parameters differ, although all compute the same.
    #[error("{}", differing_text(*steps, peers))]
    ParametersDiffer {
        /// The number of steps after which they were compared.
        steps: StepNumber,
        /// The members whose parameters are not those of this peer; empty if most members have the same and this peer has others.
        peers: Vec<PeerId>,
    },
    /// The user asked this peer to leave.
    #[error("stopped on request")]
    Left,
}

fn refusal_text(refusal: Refusal, by: PeerId) -> String {
    let by = by.short();
    match refusal {
        Refusal::OtherRun { run } => {
            format!(
                "peer {by} belongs to run {}, not to the invite's: ask for an invite of the run you want",
                run.short()
            )
        }
        Refusal::RunComplete => format!("peer {by} says the run is over: there is nothing left to train"),
        Refusal::DuplicateIdentity => format!(
            "peer {by} knows another running machine with this peer's identity: one of the two data directories is a copy of the other; give this machine its own with --dir"
        ),
        Refusal::Full => format!("peer {by} says the run has all the members that it can have"),
        Refusal::NotReady => format!("peer {by} is itself still joining"),
        Refusal::Expelled(Expulsion { by, cause: ExpulsionCause::Request, .. }) => format!(
            "this peer was removed from the run, as a user wanted it at peer {}: ask there why",
            by.short()
        ),
        Refusal::Expelled(Expulsion { cause: ExpulsionCause::Faults, .. }) => format!(
            "this peer was removed from the run: it was excluded {QUARANTINE_TIMES_MAX} times because of faults that other members noticed (the event log says which); use the same release on all machines; if all have the same, test this machine's memory and network, and join again with a new data directory (--dir)"
        ),
        Refusal::Expelled(Expulsion { by, cause: ExpulsionCause::Violations, .. }) => format!(
            "this peer was removed from the run: peer {} rejected {REJECTS_MAX} of its messages; use the same release on all machines; if all have the same, test this machine's memory",
            by.short()
        ),
    }
}

fn differing_text(StepNumber(steps): StepNumber, peers: &[PeerId]) -> String {
    if peers.is_empty() {
        return format!(
            "after step {steps}, most members have other parameters than this peer, which has saved nothing since: check this machine's memory, and that its task computes the same as theirs; then join again"
        );
    }
    let peers: Vec<String> = peers.iter().map(|peer| peer.short().to_string()).collect();
    format!(
        "after step {steps}, the members have different parameters, and none are those of most (those of {} are not those of this peer). Nothing was saved since then. Check that the task draws the same initial parameters and computes the same on every machine, and the machines' memory",
        peers.join(", ")
    )
}
