//! The durable record: the state of a member that must survive a crash, as one small record on its disk.
//!
//! A member signs in a register before it gives its word, so that it cannot deny it later. The record has the newest view, the member's
//! vote for the next view (its Paxos acceptor), and the definition of the run. It is written as a whole each time. After a crash, the disk
//! has the previous record or the new one, never a mixture.
//!
//! ```text
//! | view | incarnation, vote | definition | checksum (16 bytes of blake3) |
//! ```
//!
//! # Invariants
//! - A member sends nothing in a view before the view is on its disk, and answers no proposer before its vote is on its disk.
//!
//! # Reading
//! Lamport, *Paxos Made Simple*, 2001, section 2.5: what an acceptor keeps in stable storage.

use std::sync::Arc;

use crate::agreement::Acceptor;
use crate::id::{Incarnation, RunId};
use crate::view::{View, ViewChange};
use crate::wire::codec::{self, Decode, Encode};

/// The state of a member that survives a crash.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct DurableRecord {
    /// The newest view that this peer has installed.
    pub view: View,
    /// This peer's incarnation in that view.
    pub incarnation: Incarnation,
    /// This peer's vote on the next view.
    pub acceptor: Acceptor<ViewChange>,
    /// The specification and nonce of the run.
    pub definition: RunDefinition,
}

/// The specification and nonce of a run, which determine its id. They are on disk so that a run can resume after all its peers restart.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RunDefinition {
    /// The specification's bytes.
    pub specification: Vec<u8>,
    /// The random bytes drawn when the run was founded.
    pub nonce: [u8; 32],
}

impl RunDefinition {
    /// The id of the run.
    #[must_use]
    pub fn run(&self) -> RunId {
        RunId::derive(&self.specification, &self.nonce)
    }
}

/// The bytes of a record, in three parts that follow each other. The records of one view share the parts of view and definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableBytes {
    /// The view, [encoded](codec::encode_record).
    pub view: Arc<[u8]>,
    /// The incarnation and the vote, encoded. They are the part that changes within a view.
    pub promised: Arc<[u8]>,
    /// The definition, encoded.
    pub definition: Arc<[u8]>,
}

impl DurableBytes {
    /// The record of a view and a definition that are already encoded, with this incarnation and vote.
    #[must_use]
    pub fn new(
        view: Arc<[u8]>,
        incarnation: Incarnation,
        acceptor: &Acceptor<ViewChange>,
        definition: Arc<[u8]>,
    ) -> Self {
        Self { view, promised: codec::encode_record(&(incarnation, acceptor)).into(), definition }
    }

    /// The bytes of the whole record, with their checksum.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        sealed([&*self.view, &*self.promised, &*self.definition].concat())
    }
}

impl DurableRecord {
    /// The record's bytes, with their checksum.
    #[must_use]
    pub fn to_bytes(&self) -> Arc<[u8]> {
        sealed(codec::encode_record(self)).into()
    }

    /// The record's bytes in parts, without the checksum.
    #[must_use]
    pub fn to_durable_bytes(&self) -> DurableBytes {
        let [view, definition] = [codec::encode_record(&self.view), codec::encode_record(&self.definition)];
        DurableBytes::new(view.into(), self.incarnation, &self.acceptor, definition.into())
    }

    /// Decodes a record that was read from disk. `None` if the bytes are damaged, or if the view is invalid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (record, checksum) = bytes.split_last_chunk()?;
        if checksum_of(record) != *checksum {
            return None;
        }
        let durable: Self = codec::decode_durable(record).ok()?;
        durable.view.validate().ok()?;
        Some(durable)
    }
}

/// Appends the checksum, so that a vote changed by the disk is never taken for the real one.
fn sealed(mut record: Vec<u8>) -> Vec<u8> {
    let checksum = checksum_of(&record);
    record.extend_from_slice(&checksum);
    record
}

fn checksum_of(record: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut checksum = [0; CHECKSUM_BYTES];
    checksum.copy_from_slice(&blake3::hash(record).as_bytes()[..CHECKSUM_BYTES]);
    checksum
}

const CHECKSUM_BYTES: usize = 16;
