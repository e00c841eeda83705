//! The view: an agreed record of the members, from which everything else is computed.
//!
//! Like the minutes of a meeting: numbered, naming those present, pointing at the minutes before. All members that hold the same
//! record compute the same owners, the same batches and the same ring, without asking each other.
//!
//! # How a view follows another
//! Members agree on a [`ViewChange`], which says only what changes; [`View::apply`] makes the next record from it. [`Resume`] says
//! what the next view does with the step in progress, [`Moves`] which chunks change hands, and [`ViewHistory`] which views led here.
//!
//! # Invariants
//! - All members of a view hold the same record, byte for byte; its digest names it in every frame that touches owned state.
//! - Members are sorted by peer id, so a rank is a function of the record.
//! - The record alone says where training resumes, how an interrupted batch is assigned, and which members hold the state of each
//!   chunk.

pub use change::ViewChange;
pub use faults::{Complaint, MemberFault, Quarantine};
pub use history::{Ancestor, Branch, ViewHistory, fork_point};
pub use moves::{Move, Moves};
pub use record::{Expulsion, ExpulsionCause, Member, MemberLine, View, weights_of};
pub use resume::{BatchParts, Donor, Merge, Recovery, Resume, RollForward};
pub use validate::{InvalidView, are_bounded};

mod change;
mod faults;
mod history;
mod moves;
mod record;
mod resume;
#[cfg(test)]
mod tests;
mod validate;
