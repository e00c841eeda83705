//! The built-in programs, one short file each.

pub mod diloco;
pub mod downpour;
pub mod ds_sync;
mod gradients;
pub mod local;
pub mod quorum;
pub mod ring;
pub mod ssp;
pub mod worker;
