//! stub
pub mod io;
pub mod task;

#[cfg(feature = "net")]
pub mod net;
