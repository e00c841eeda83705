//! Training one model on many machines with no server.
//!
//! # Map
//! The pure half decides everything and waits for nothing: [`node`] is its surface and [`io`] what crosses it. Inside, a
//! machine founds or joins a run and trains in a session, and a [`program`] is the algorithm as straight-line code.
//! [`task`] is what a user brings; [`loader`] builds one from a specification.

mod founding;
mod host;
mod joining;
mod machine;
mod owned;
mod preparation;
mod session;

pub mod data;
pub mod io;
pub mod loader;
pub mod node;
pub mod optimizer;
pub mod peer;
pub mod program;
pub mod programs;
pub mod schedule;
pub mod task;
