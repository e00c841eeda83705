//! The oracles: what a run must compute, found without any of the nodes' code.
//!
//! | oracle | what it is | how close | file |
//! |---|---|---|---|
//! | plain | one process, one loop, the batches of the run | what the scenario says, 5e-6 in the named ones, or what rounding explains, in the loss of every step | [`plain`] |
//! | replay | the commit log once more: the same views, parts, order of sums and owners | bit for bit | [`replay`] |
//! | table sums | the sum of all samples' gradients, where owners add integers and clocks are atomic | exactly, at the end | [`table_sums`] |
//!
//! Two counts serve them, and the invariants that count: which view a step belongs to ([`view_chain`]), and which samples are in it
//! ([`sample_counter`]). The replay computes the assignment by itself, so that each would notice the other's mistakes.

pub mod plain;
pub mod replay;
pub mod sample_counter;
pub mod table_sums;
pub mod view_chain;
