//! The oracles: what a run must compute, found out without any of its machinery.
//!
//! | oracle | what it is | how close | file |
//! |---|---|---|---|
//! | plain | one process, one loop, the same batches | what the scenario says, 5e-6 in the named ones, in the loss of the first 200 steps | [`plain`] |
//! | replay | the commit log once more: the same views, parts, order of sums and owners | bit for bit | [`replay`] |

pub mod lineage;
pub mod passes;
pub mod plain;
pub mod replay;
