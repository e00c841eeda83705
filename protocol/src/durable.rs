//! The durable record: what a peer must still know after a crash, as one small record on its disk.
//!
//! Like a signature in a register: it is made before the word is given, so that nobody can deny it later. The record is
//! written whole each time; a crash leaves the one before or the new one, never half of each.
//!
//! # Invariants
//! - A member says nothing in a view before the view is on its disk, and answers no proposer before its answer is.

use std::sync::Arc;

use crate::agreement::Acceptor;
use crate::id::Incarnation;
use crate::view::{Succession, View};
use crate::wire::{self, Decode, Encode};

/// What survives.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Durable {
    /// The newest view that was installed here.
    pub view: View,
    /// Which start of the peer is in that view.
    pub incarnation: Incarnation,
    /// What was promised and accepted for the view after it.
    pub acceptor: Acceptor<Succession>,
}

/// The bytes of a record, in two pieces that follow each other: those of the view, which are the same from one record to the
/// next, and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was [encoded](wire::encode_record) of the view.
    pub view: Arc<[u8]>,
    /// Everything after it.
    pub rest: Arc<[u8]>,
}

impl Record {
    /// The record of a view that was encoded before.
    #[must_use]
    pub fn new(view: Arc<[u8]>, incarnation: Incarnation, acceptor: &Acceptor<Succession>) -> Self {
        Self { view, rest: wire::encode_record(&(incarnation, acceptor)).into() }
    }

    /// All of it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [&*self.view, &*self.rest].concat()
    }
}

impl Durable {
    /// The record's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Arc<[u8]> {
        wire::encode_record(self).into()
    }

    /// The record's bytes, in two pieces.
    #[must_use]
    pub fn to_record(&self) -> Record {
        Record::new(wire::encode_record(&self.view).into(), self.incarnation, &self.acceptor)
    }

    /// Reads a record back. `None` if it is none: a disk may return anything.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let durable: Self = wire::decode_durable(bytes).ok()?;
        durable.view.validate().ok()?;
        Some(durable)
    }
}
