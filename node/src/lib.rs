//! Training one model on many machines with no server.

pub mod alone;
pub mod data;
pub mod io;
pub mod loader;
pub mod model_file;
pub mod optimizer;
pub mod schedule;
pub mod specification;
pub mod task;
