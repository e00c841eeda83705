//! The durable record: what a peer must still know after a crash, as one small record on its disk.
//!
//! Like a signature in a register: a member signs before it gives its word, so that it cannot deny it later. The record is
//! written whole each time. A crash leaves the record before or the new one, never half of each.
//!
//! # Invariants
//! - A member sends nothing in a view before the view is on its disk, and answers no proposer before its vote is.

use std::sync::Arc;

use crate::agreement::Acceptor;
use crate::id::{Incarnation, RunId};
use crate::view::{View, ViewChange};
use crate::wire::codec::{self, Decode, Encode};

/// The state of a member that survives a crash.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct DurableRecord {
    /// The newest view that was installed here.
    pub view: View,
    /// The incarnation under which this peer is in that view.
    pub incarnation: Incarnation,
    /// This peer's vote for the view after it.
    pub acceptor: Acceptor<ViewChange>,
    /// The specification and nonce of the run.
    pub definition: RunDefinition,
}

/// The specification and nonce that make a run's id. They are on disk so that a swarm whose peers all restart can resume.
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

/// The bytes of a record, in three pieces that follow each other. The view and the definition are shared between the records of
/// one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableBytes {
    /// The view, [encoded](codec::encode_record).
    pub view: Arc<[u8]>,
    /// The incarnation and the vote, encoded.
    pub promised: Arc<[u8]>,
    /// The definition, encoded.
    pub definition: Arc<[u8]>,
}

impl DurableBytes {
    /// The record of a view and a definition that are already encoded.
    #[must_use]
    pub fn new(
        view: Arc<[u8]>,
        incarnation: Incarnation,
        acceptor: &Acceptor<ViewChange>,
        definition: Arc<[u8]>,
    ) -> Self {
        Self { view, promised: codec::encode_record(&(incarnation, acceptor)).into(), definition }
    }

    /// The whole record, with its checksum.
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

    /// The record's bytes, in pieces.
    #[must_use]
    pub fn to_durable_bytes(&self) -> DurableBytes {
        let [view, definition] = [codec::encode_record(&self.view), codec::encode_record(&self.definition)];
        DurableBytes::new(view.into(), self.incarnation, &self.acceptor, definition.into())
    }

    /// Reads a record back. `None` if the bytes are damaged: a disk may return anything.
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

/// Appends the checksum: a vote that the disk has changed would be a different vote.
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
