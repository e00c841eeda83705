//! The built-in programs, one short file each.

pub mod backup_workers;
pub mod diloco;
pub mod downpour;
pub mod ds_sync;
mod gradients;
pub mod lbfgs;
pub mod lda;
pub mod local;
pub mod local_trainer;
pub mod ssp;
pub mod sync;
